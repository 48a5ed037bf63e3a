#!/usr/bin/env bash
# What strategies lose on a pretrained model and public questions: SmolLM2-135M-Instruct
# (scripts/get_model.sh smollm2) on HotpotQA, 2WikiMultihopQA and MuSiQue.
#   bench/real_text.sh --data FOLDER [--questions N] [--work FOLDER] [--quire FILE] [--labelled]
#                      [--certify] [--strategies LIST] [--lead-in] [--related-tokens N]
#                      [--any-build]
# FOLDER holds hotpotqa_train100, 2wikimultihop_train500 and musique_train100 (.jsonl.gz). Questions
# of odd rank are reported, N of each set at most (50, 60 of 2Wiki). Heads are chosen by sentences
# that 'quire model calibrate' hides in the bundled sample; with --labelled by the questions of even
# rank. --certify measures what 'auto' may take instead, with heads chosen by the questions of even
# rank, and leaves the certificates in the store. --lead-in and --related-tokens say what documents
# are read behind, as for 'quire fidelity'. --work keeps the state, so that the same command goes on
# after an interruption. --quire is a finished program to measure with, in place of a new build.
# Prints {"settings", "rows", "paired"}: the rows and details of 'quire fidelity' for each kind and
# all, and paired differences of all questions.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=; labelled=no; certify=no; chosen=; behind=()
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --strategies) chosen="${2:?--strategies needs a list}"; shift ;;
    --lead-in) behind+=(--lead-in) ;;
    --related-tokens) behind+=(--related-tokens "${2:?--related-tokens needs a number}"); shift ;;
    --any-build) any=(--any-build) ;;
    --labelled) labelled=yes ;;
    --certify) certify=yes; labelled=yes ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
# half RANK FILE MOST: every second line from that rank on.
# The whole file is read: under pipefail a reader that stops early fails its writer.
half() { gzip -dc "$data/$2" | awk -v rank="$1" -v most="$3" 'NR % 2 == rank && n++ < most'; }
for set in hotpotqa_train100:50 2wikimultihop_train500:60 musique_train100:50; do
  name="${set%:*}.jsonl.gz"
  half 0 "$name" "${questions:-${set#*:}}" >>"$work/report.new"
  half 1 "$name" 50 >>"$work/choose.new"
done
mv "$work/report.new" "$work/report.jsonl"; mv "$work/choose.new" "$work/choose.jsonl"
labels=()
[ "$labelled" = no ] || labels=(--questions "$work/choose.jsonl")
calibrate_store "${labels[@]}"
list=(
  recompute reuse reuse:positions=naive
  # a fifth of the KV, nothing computed again
  samkv samkv:links=0 samkv:score=heads samkv:unit=16 random:keep_ratio=0.2
  samkv:score=keys,anchors=none,keep_ratio=0.2,recompute=none
  samkv:score=matches,recompute=none
  # all KV, 15 % computed again
  prophetkv:r=0.15 prophetkv:layers=3,r=0.15 cacheblend:recompute_ratio=0.15
  cacheblend:deviation=kv,recompute_ratio=0.15 epic:recompute_ratio=0.15
  samkv:keep_ratio=1,recompute=overwrite
  # a fifth of the KV, some of it computed again
  samkv:recompute=question,r=0.05 samkv:recompute=cacheblend,r=0.05 samkv:recompute=epic,k=32
  samkv:recompute=overwrite samkv:recompute=overwrite,rows=kept
  # as published, with shares of their own
  samkv:score=keys samkv_words
)
strategies="$(IFS=,; echo "${list[*]}")"
measure=("$quire" fidelity -m "$model" --suite "$work/report.jsonl" --limit 0)
measure+=("${behind[@]}" "${any[@]}")
report="$work/real_text$(IFS=; echo "${behind[*]}").json"  # each has rows of its own
if [ "$certify" = yes ]; then
  strategies=reuse,samkv,prophetkv:r=0.15,prophetkv:r=0.4
  strategies+=,samkv:score=keys,anchors=none,keep_ratio=0.2,recompute=none,random:keep_ratio=0.2
  measure+=(--store "$work/store" --certify)  # a folder of --work would hide the calibration
else
  measure+=(--work "$work/store")
fi
"${measure[@]}" --strategies "${chosen:-$strategies}" --json "$report" >&2
pairs="$(paired "$report.state" reuse samkv random:keep_ratio=0.2 2>/dev/null ||
  paired "$report.state" recompute)"
jq --arg labelled "$labelled" --argjson paired "$pairs" '{
  paired: $paired,
  settings: (.settings + {labelled: $labelled, model: .model, suite: .suite}),
  rows: [range(.rows | length) as $i | .rows[$i] + (.details[$i] | del(.strategy, .task))]
}' "$report"
