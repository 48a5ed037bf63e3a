#!/usr/bin/env bash
# In which order found documents should stand: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2)
# over the K (4) best paragraphs that the service's search by words finds for each question of
# HotpotQA, 2WikiMultihopQA and MuSiQue among the paragraphs of all three.
#   bench/retrieved_order.sh --data FOLDER [--half report|choose] [--orders LIST] [--k K]
#                            [--lead-in] [--strategies LIST] [--questions N] [--work FOLDER]
#                            [--quire FILE]
# FOLDER holds hotpotqa_train100, 2wikimultihop_train500 and musique_train100 (.jsonl.gz). `report`
# (default) is the questions of bench/real_text.sh, `choose` those that it chooses with, N of each
# set at most (50, 60 of 2Wiki). LIST has best_first, best_last and shuffled (all of them, separated
# by commas). With --lead-in each document is read behind the fixed lead-in. --work keeps the state,
# so that the same command goes on after an interruption. --quire is a finished program to measure
# with, in place of a new build. Prints {"settings", "rows"}: the rows and details of 'quire
# fidelity', each with its `order`.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=(); half=report; orders=best_first,best_last,shuffled; behind=(); k=4
strategies=recompute,reuse,samkv,prophetkv:r=0.15
while [ $# -gt 0 ]; do
  case "$1" in
    --half) half="${2:?--half needs report or choose}"; shift ;;
    --orders) orders="${2:?--orders needs names}"; shift ;;
    --k) k="${2:?--k needs a number}"; shift ;;
    --strategies) strategies="${2:?--strategies needs a list}"; shift ;;
    --questions) questions=(--questions "${2:?--questions needs a number}"); shift ;;
    --lead-in) behind=(--lead-in) ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
check_names --orders "$orders" best_first best_last shuffled
rank="$(rank_of "$half")"
prepare
calibrate_store
asked="$work/$half.$k"
if [ ! -f "$asked/found.json" ]; then
  mkdir -p "$asked"
  python3 bench/retrieved_order.py "$quire" "$data" "$rank" "$asked" --k "$k" "${questions[@]}" \
    >"$asked/found.json.new"
  mv "$asked/found.json.new" "$asked/found.json"
fi
results=()
for order in ${orders//,/ }; do
  report="$asked/$order$(IFS=; echo "${behind[*]}").json"
  "$quire" fidelity -m "$model" --suite "$asked/$order.jsonl" --limit 0 --work "$work/store" \
    "${behind[@]}" --json "$report" --strategies "$strategies" >&2
  results+=("$order" "$report")
done
settings="$(jq --arg half "$half" '{half: $half, retrieval: .}' "$asked/found.json")"
by_order "$settings" "${results[@]}"
