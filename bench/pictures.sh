#!/usr/bin/env bash
# Draws the pictures of docs/fidelity.md and docs/strategies.md from bench/results.
#   bench/pictures.sh
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
real="bench/results/real_text.json|"
long="bench/results/long_text.json|context_tokens=4096"
published="samkv:anchors=none,keep_ratio=0.2,recompute=none,score=keys"
paragraphs="Ten to twenty paragraphs"; articles="Three whole articles"
all="prophetkv:r=0.15=prophetkv, 15 % again;reuse=reuse"
all_long="prophetkv:layers=3,r=0.15=prophetkv by 3 layers, 15 %;reuse=reuse"
blend="cacheblend:recompute_ratio=0.15=cacheblend, 15 % again"
fifth="samkv=+samkv;$published=+samkv as published, 20 %;random:keep_ratio=0.2=+chance"
python3 bench/interval_plot.py --out docs/fidelity-smollm2.svg --metric nll_difference \
  --title "How much less likely the right answer becomes" \
  --axis "nats a token; right of the line is worse" --zero "full recompute" \
  --note "Blue: all KV is read. Red: a fifth of it. Lines: 95 % intervals. SmolLM2-135M." \
  --panel "$paragraphs|$real|$all;$blend;$fifth" --panel "$articles|$long|$all_long;samkv=+samkv"
rules="samkv=+samkv: heads, words, titles;samkv:links=0=heads and words;"
rules+="samkv:score=heads=heads alone;$published=score as published"
python3 bench/interval_plot.py --out docs/strategies.svg --metric support_kept --percent \
  --title "What a fifth of the KV keeps of the text that answers" \
  --axis "per cent of the supporting sentences' tokens" \
  --note "Lines: 95 % intervals. SmolLM2-135M." \
  --panel "$paragraphs|$real|$rules;random:keep_ratio=0.2=chance" \
  --panel "$articles|$long|samkv=+samkv: heads and words"
