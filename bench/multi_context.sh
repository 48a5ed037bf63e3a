#!/usr/bin/env bash
# SamKV and its competitors: scores on models/demo in two geometries, chunks (16 documents of 300 to
# 500 tokens, blocks of 16) and long (4 of 1,500 to 2,000, blocks of 64), and speed over 8,000
# cached tokens on random weights of published shapes.
#   bench/multi_context.sh [--quick] [--per-kind N] [--scores FOLDER] [--speeds FILE]
#                          [options of quire_multi_context_bench:
#                           --shape qwen,llama --rounds N --strategies LIST]
# --scores and --speeds take those of an earlier run: a folder of quire fidelity --json files and
# the output of quire_multi_context_bench. --scores-only FOLDER writes scores and ends; the same
# command again goes on after an interruption.
# Prints {"settings", "rows"}: rows with "task" are scores, rows with "tier" are speeds. Writes
# bench/results/multi_context-GEOMETRY.svg with new scores.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
per_kind=25; scores=; only=; speeds=; speed=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) per_kind=2; speed+=(--quick) ;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift ;;
    --scores) scores="$(realpath "${2:?--scores needs a folder}")"; shift ;;
    --speeds) speeds="$(realpath "${2:?--speeds needs a file}")"; shift ;;
    --scores-only) only="$(realpath -m "${2:?--scores-only needs a folder}")"; shift ;;
    *) speed+=("$1") ;;
  esac
  shift
done
cd "$ROOT"
cmake --preset release >/dev/null &&
  cmake --build --preset release --target quire quire_multi_context_bench >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT

# The published rows; ratios as published where a method takes one. Last what ranks blocks by words,
# without names that link, and with more.
strategies=recompute,reuse,reuse:positions=naive,multi_infllm,cacheblend:recompute_ratio=0.15
strategies+=,epic:recompute_ratio=0.15,samkv:score=keys,recompute=overwrite,samkv:score=keys
strategies+=,samkv:select=off,recompute=none,samkv:select=off,samkv:bias=off,recompute=none
strategies+=,samkv:score=keys,recompute=none,samkv:bias=off
strategies+=,samkv:layer_mode=shared,samkv_words,samkv_words:link_share=0,samkv_words:keep_ratio=0.3
kinds="single continuation alias two_hop comparison needle"
declare -A shapes=(
  [chunks]="--documents 16 --document-tokens 300:500"
  [long]="--documents 4 --document-tokens 1500:2000")
declare -A chunk_tokens=([chunks]=512 [long]=2304)
if [ -z "$scores" ]; then
  scores="${only:-$work/scores}"
  mkdir -p "$scores" bench/results
  for geometry in chunks long; do
    suite="$scores/$geometry.jsonl"
    if [ ! -s "$suite" ]; then
      # The names of the test split; one seed for each geometry and kind.
      for kind in $kinds; do
        # shellcheck disable=SC2086
        python3 models/generate.py --seed 77 ${shapes[$geometry]} --kinds "$kind" \
          --questions "$per_kind" --per-world 5 --split test --out "$work/part.jsonl"
        cat "$work/part.jsonl"
      done >"$suite.part"
      mv "$suite.part" "$suite"
    fi
    build/release/quire fidelity -m models/demo --suite "$suite" --limit 0 \
      --chunk-tokens "${chunk_tokens[$geometry]}" --strategies "$strategies" \
      --json "$scores/$geometry.json" --svg "bench/results/multi_context-$geometry.svg" >&2
  done
  [ -z "$only" ] || exit 0
fi
if [ -z "$speeds" ]; then
  speeds="$work/speeds.json"
  build/release/bench/quire_multi_context_bench ${speed[@]+"${speed[@]}"} >"$speeds"
fi
jq -n --slurpfile chunks "$scores/chunks.json" --slurpfile long "$scores/long.json" \
  --slurpfile speed "$speeds" '
  def scores($s; $geometry):
    [range($s.rows | length) | . as $i
     | $s.rows[$i] + {geometry: $geometry, em_difference: $s.details[$i].em_difference}];
  $chunks[0] as $c | $long[0] as $l | $speed[0] as $v |
  {settings: {scores: ($c.settings
                       + {model: $c.model.name, commit: $c.commit,
                          questions: ([$c.rows[] | select(.task == "all") | .n] | max)}),
              speed: $v.settings},
   rows: (scores($c; "chunks") + scores($l; "long") + $v.rows)}'
