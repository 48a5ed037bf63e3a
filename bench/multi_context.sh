#!/usr/bin/env bash
# SamKV and its competitors: scores on the embedded model, and speed over 8,000 cached tokens on random weights of published shapes.
#   bench/multi_context.sh [--quick] [--per-kind N] [--scores FILE] [--speeds FILE] [options of quire_multi_context_bench: --shape qwen,llama --rounds N --strategies LIST]
# --scores and --speeds take those of an earlier run: the output of quire fidelity --json and of quire_multi_context_bench. --scores-only FILE writes
# scores and ends; the same command again goes on after an interruption.
# Prints {"settings", "rows"}: rows with "task" are scores, rows with "tier" are speeds. Writes bench/results/multi_context.svg with new scores.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
per_kind=20; scores=; only=; speeds=; speed=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) per_kind=2; speed+=(--quick) ;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift ;;
    --scores) scores="$(realpath "${2:?--scores needs a file}")"; shift ;;
    --speeds) speeds="$(realpath "${2:?--speeds needs a file}")"; shift ;;
    --scores-only) only="$(realpath -m "${2:?--scores-only needs a file}")"; shift ;;
    *) speed+=("$1") ;;
  esac
  shift
done
cd "$ROOT"; cmake --preset release >/dev/null && cmake --build --preset release --target quire quire_multi_context_bench >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT

# The published rows; ratios as published where a method takes one. Last what ranks blocks by words.
strategies=recompute,reuse,reuse:positions=naive,multi_infllm,cacheblend:recompute_ratio=0.15,epic:recompute_ratio=0.15,samkv_overwrite,samkv
strategies+=,samkv:select=off,recompute=none,samkv:select=off,samkv:bias=off,recompute=none,samkv:recompute=none,samkv:bias=off
strategies+=,samkv:layer_mode=shared,samkv_words,samkv_words:keep_ratio=0.3
if [ -z "$scores" ]; then
  scores="${only:-$work/scores.json}"
  python3 bench/long_documents.py models/demo/encyclopedia.jsonl --per-kind "$per_kind" >"$work/suite.jsonl"
  mkdir -p bench/results
  build/release/quire fidelity -m models/demo --suite "$work/suite.jsonl" --limit 0 --strategies "$strategies" --json "$scores" --svg bench/results/multi_context.svg >&2
  [ -z "$only" ] || exit 0
fi
if [ -z "$speeds" ]; then
  speeds="$work/speeds.json"
  build/release/bench/quire_multi_context_bench ${speed[@]+"${speed[@]}"} >"$speeds"
fi
jq -n --slurpfile scores "$scores" --slurpfile speed "$speeds" '
  $scores[0] as $s | $speed[0] as $v |
  {settings: {scores: ($s.settings + {model: $s.model.name, commit: $s.commit, documents: "4 of 300 to 500 tokens, blocks of 16", questions: ([$s.rows[] | select(.task == "all") | .n] | max)}), speed: $v.settings},
   rows: ([range($s.rows | length) | . as $i | $s.rows[$i] + {em_difference: $s.details[$i].em_difference}] + $v.rows)}'
