#!/usr/bin/env bash
# Quire beside llama.cpp and transformers on the same weights, in turns: prefill, decode, and a
# question over ten documents.
#   bench/peers.sh [--quick] [--models 135m,1b] [--parts speed,documents,perplexity]
#                  [--lengths 1,512,4096] [--kinds Q4_0,Q8_0,Q4_1] [--rounds N] [--text FILE]
#                  [--without-transformers]
# Installs llama-cpp-python (built from its source package), gguf and, unless left out, transformers
# with torch into build/peers from the package index; the first time takes about ten minutes. The
# 135M model is SmolLM2 (scripts/get_model.sh smollm2); the 1B shape is Llama-3.2-1B's with random
# weights, rounded by llama.cpp itself.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
arguments=(); transformers=1
for a in "$@"; do
  case "$a" in --without-transformers) transformers=0 ;; *) arguments+=("$a") ;; esac
done
cd "$ROOT"
cmake --preset release >/dev/null &&
  cmake --build --preset release --target quire quire_perplexity_bench >&2
environment="${QUIRE_PEERS:-$ROOT/build/peers}"
if [ ! -x "$environment/bin/python" ]; then python3 -m venv "$environment" >&2; fi
has() { "$environment/bin/python" -c "import $1" 2>/dev/null; }
has gguf || "$environment/bin/pip" install -q numpy gguf==0.17.1 >&2
if ! has llama_cpp; then
  echo "building llama-cpp-python from its source package" >&2
  CMAKE_BUILD_PARALLEL_LEVEL="$(nproc)" CMAKE_ARGS="-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF" \
    "$environment/bin/pip" install -q --no-binary llama-cpp-python llama-cpp-python==0.3.16 >&2
fi
if [ $transformers = 1 ] && ! has transformers; then
  "$environment/bin/pip" install -q torch transformers accelerate >&2 || {
    echo "transformers could not be installed: its rows are left out" >&2
    transformers=0
  }
fi
[ $transformers = 1 ] && arguments+=(--transformers)
ls models/smollm2/*.gguf >/dev/null 2>&1 || scripts/get_model.sh smollm2 >&2
exec "$environment/bin/python" bench/peers.py ${arguments[@]+"${arguments[@]}"}
