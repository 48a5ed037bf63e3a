#!/usr/bin/env bash
# Decode steps over a part of the context on random weights of the 1B shape (quire_decode_bench):
# what the methods take at 65,536 tokens, at their defaults and with a choice in every step; over
# contexts of 8,192 to 130,000 tokens and batches of 1 to 16; and without one of their parts each.
# Draws bench/results/decode-*.svg.
#   bench/decode.sh [--quick] [--part long|lengths|batches|parts] [--steps N]
# Prints {"settings", "rows"}: rows of the program, and of each the part, options and steps held. It
# takes 11 GB of memory. --part runs one part alone, several times: several of them.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
steps=8; parts=; quick=
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) quick=--quick ;;
    --part) parts+=" ${2:?--part needs a name}"; shift ;;
    --steps) steps="${2:?--steps needs a number}"; shift ;;
    *)
      echo "usage: bench/decode.sh [--quick] [--part long|lengths|batches|parts] [--steps N]" >&2
      exit 2 ;;
  esac
  shift
done
parts="${parts:- long lengths batches parts}"
cd "$ROOT"
cmake --preset release >/dev/null && cmake --build --preset release --target quire_decode_bench >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
count=0

# measure PART OPTIONS ARGUMENT...: one run of the program.
measure() {
  local part="$1" options="$2"; shift 2
  echo "$part: $* ${options:+--options $options}" >&2
  count=$((count + 1))
  if [ -n "$quick" ]; then set -- "$@" --contexts 4096 --batch 1 --steps 2; fi
  build/release/bench/quire_decode_bench --weights int8 "$@" ${options:+--options "$options"} \
    >"$work/run.json"
  jq --arg part "$part" --arg options "$options" '
    {settings: (.settings | del(.options, .hold, .steps)),
     rows: [.settings.hold as $hold | .rows[]
            | . + {part: $part, options: $options, hold: $hold}]}' \
    "$work/run.json" >"$work/$(printf %03d "$count").part"
}

all=freekv,specontext,ctkvr
for part in $parts; do
  case "$part" in
    long)
      measure long "" --contexts 65536 --batch 4 --steps "$steps" --retrievers $all
      measure long decode_reuse=1 --contexts 65536 --batch 4 --steps "$steps" \
        --retrievers freekv,ctkvr
      measure long "" --contexts 65536 --batch 2 --steps $((steps * 2)) --retrievers $all
      measure long "" --contexts 65536 --batch 1 --steps "$steps" --retrievers $all ;;
    lengths)
      measure lengths decode_centroids=256 --contexts 8192,16384,32768,65536,130000 --batch 1 \
        --steps "$steps" --retrievers $all ;;
    batches)
      for batch in 1 4 16; do
        measure batches decode_centroids=256 --contexts 8192 --batch "$batch" --steps "$steps" \
          --retrievers $all
      done ;;
    parts)
      measure parts "" --contexts 16384 --batch 1 --steps $((steps * 2)) --ablations --hold 4 ;;
    *) echo "error: there is no part $part" >&2; exit 2 ;;
  esac
done
jq -s --argjson quick "$([ -n "$quick" ] && echo true || echo false)" \
  '{settings: (.[0].settings + {quick: $quick}), rows: (map(.rows) | add)}' \
  "$work"/*.part >"$work/all.json"
draw() {
  python3 bench/line_plot.py "$work/all.json" --where "part=$1" --x "$2" --title "$3" \
    --out "bench/results/decode-$1.svg"
}
if [ -z "$quick" ]; then
  case "$parts" in
    *lengths*)
      draw lengths context "Decode step, 1B shape, one sequence, int8 weights, budget 2,048 (ms)" ;;
  esac
  case "$parts" in
    *batches*)
      draw batches batch "Decode step, 1B shape, 8,192 tokens, int8 weights, budget 2,048 (ms)" ;;
  esac
fi
cat "$work/all.json"
