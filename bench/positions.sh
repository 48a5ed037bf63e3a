#!/usr/bin/env bash
# At which positions cached documents should stand: SmolLM2-135M-Instruct (scripts/get_model.sh
# smollm2) on HotpotQA, 2WikiMultihopQA and MuSiQue, with `reuse` at aligned, naive and parallel
# positions. What supports an answer stands where the files have it, before the other documents,
# behind them, or without them.
#   bench/positions.sh --data FOLDER [--half report|choose] [--orders LIST] [--lead-in]
#                      [--questions N] [--work FOLDER] [--quire FILE]
# FOLDER holds hotpotqa_train100, 2wikimultihop_train500 and musique_train100 (.jsonl.gz). `report`
# (default) is the questions of bench/real_text.sh, `choose` those that it chooses with, N of each
# set at most (50, 60 of 2Wiki). LIST has given, first, last and alone (all of them, separated by
# commas). With --lead-in each document is read behind the fixed lead-in. --work keeps the state, so
# that the same command goes on after an interruption. --quire is a finished program to measure
# with, in place of a new build. Prints {"settings", "rows"}: the rows and details of 'quire
# fidelity', each with its `order`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=; half=report; orders=given,first,last,alone; behind=()
while [ $# -gt 0 ]; do
  case "$1" in
    --half) half="${2:?--half needs report or choose}"; shift ;;
    --orders) orders="${2:?--orders needs names}"; shift ;;
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --lead-in) behind=(--lead-in) ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
check_names --orders "$orders" given first last alone
rank="$(rank_of "$half")"
prepare
calibrate_store
for set in hotpotqa_train100:50 2wikimultihop_train500:60 musique_train100:50; do
  gzip -dc "$data/${set%:*}.jsonl.gz" |
    awk -v rank="$rank" -v most="${questions:-${set#*:}}" 'NR % 2 == rank && n++ < most'
done >"$work/given.jsonl"
results=()
for order in ${orders//,/ }; do
  name="$half.$order$(IFS=; echo "${behind[*]}")"
  python3 bench/support_order.py "$order" <"$work/given.jsonl" >"$work/$name.jsonl"
  "$quire" fidelity -m "$model" --suite "$work/$name.jsonl" --limit 0 --work "$work/store" \
    "${behind[@]}" --json "$work/$name.json" \
    --strategies recompute,reuse,reuse:positions=naive,reuse:positions=parallel >&2
  results+=("$order" "$work/$name.json")
done
by_order "{\"half\": \"$half\"}" "${results[@]}"
