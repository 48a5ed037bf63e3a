#!/usr/bin/env bash
# What weights in four bits cost on text, beside llama.cpp: the part "perplexity" of bench/peers.sh.
#   bench/perplexity.sh [--quick] [--text FILE]
# Nats a token of SmolLM2 over 51,200 tokens of FILE (the documentation without it), for its values,
# for its own blocks, and for Q4_0 and Q4_K_M that llama.cpp rounds from the values.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
exec "$ROOT/bench/peers.sh" --parts perplexity --models 135m --without-transformers "$@"
