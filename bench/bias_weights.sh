#!/usr/bin/env bash
# How strongly SamKV's bias bends a document's query (w_j of the paper), in both frames in which the
# similarity can be measured: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2) on HotpotQA,
# 2WikiMultihopQA and MuSiQue.
#   bench/bias_weights.sh --data FOLDER [--questions N] [--quire FILE]
# FOLDER holds hotpotqa_train100, 2wikimultihop_train500 and musique_train100 (.jsonl.gz); N (7)
# questions of each set are asked, of those of bench/real_text.sh. Prints {"settings", "rows"}.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=7
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
for set in hotpotqa_train100 2wikimultihop_train500 musique_train100; do
  gzip -dc "$data/$set.jsonl.gz" | awk -v most="$questions" 'NR % 2 == 0 && n++ < most'
done | python3 bench/bias_weights.py "$quire" "$model"/*.gguf
