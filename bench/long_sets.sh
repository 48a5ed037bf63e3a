#!/usr/bin/env bash
# Public long sets on a pretrained model: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2) on
# RULER's 13 tasks at 4,096 tokens and on LongBench's English questions that fit its window.
#   bench/long_sets.sh --data FOLDER [--per-task N] [--ruler-tokens N] [--sets ruler,longbench]
#                      [--work FOLDER] [--quire FILE]
# FOLDER holds MiniLongBench's files: 2wikimqa.jsonl.gz, hotpotqa.jsonl.gz and the like. RULER asks
# N questions (12) of each task, of --ruler-tokens each, LongBench all that it has. --work keeps
# the state, so that the same command goes on after an interruption. --quire is a finished program
# to measure with, in place of a new build. Prints {"settings", "rows"}: the rows and details of
# 'quire fidelity', each with its `suite`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
per_task=12; ruler_tokens=4096; sets=ruler,longbench
while [ $# -gt 0 ]; do
  case "$1" in
    --per-task) per_task="${2:?--per-task needs a number}"; shift ;;
    --ruler-tokens) ruler_tokens="${2:?--ruler-tokens needs a number}"; shift ;;
    --sets) sets="${2:?--sets needs names}"; shift ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
calibrate_store
strategies=recompute,reuse,prophetkv:r=0.15,samkv,epic:recompute_ratio=0.15
strategies+=,cacheblend:recompute_ratio=0.15,random:keep_ratio=0.2
results=()
# measure NAME OPTION...: one set.
measure() {
  local name="$1"; shift
  case ",$sets," in *",$name,"*) ;; *) return 0 ;; esac
  results+=("$work/$name.json")
  "$quire" fidelity -m "$model" --work "$work/store" --strategies "$strategies" \
    --json "$work/$name.json" "$@" >&2
}
for task in 2wikimqa hotpotqa musique multifieldqa_en qasper narrativeqa triviaqa; do
  gzip -dc "$data/$task.jsonl.gz"
done >"$work/longbench.jsonl"
measure longbench --suite "$work/longbench.jsonl" --limit 0
measure ruler --suite "ruler@$ruler_tokens" --per-task "$per_task" --limit 0
jq -s '{
  settings: (.[0].settings + {model: .[0].model}),
  rows: [.[] | .suite as $suite | range(.rows | length) as $i
    | {suite: $suite} + .rows[$i] + (.details[$i] | del(.strategy, .task))]
}' "${results[@]}"
