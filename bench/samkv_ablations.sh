#!/usr/bin/env bash
# SamKV as published (strategy samkv, score=keys) and every option of it, on a pretrained model and
# public questions: the ablations of the paper's tables 3 and 4, and a second group in which all
# choose freely at an equal budget.
#   bench/samkv_ablations.sh --data FOLDER [--questions N] [--work FOLDER] [--quire FILE] [--light]
# FOLDER holds the question sets of bench/real_text.sh; the questions that it reports are asked, N
# of each set at most (50, 60 of 2Wiki). --work keeps the state, so that the same command goes on
# after an interruption. --quire is a finished program to measure with, in place of a new build.
# --light leaves out what computes tokens again.
# Prints {"settings", "rows"}: the rows and details of 'quire fidelity' for each kind and all.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=; part=all
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --light) part=light ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
rm -f "$work/report.new"
for set in hotpotqa_train100:50 2wikimultihop_train500:60 musique_train100:50; do
  gzip -dc "$data/${set%:*}.jsonl.gz" | awk 'NR % 2 == 0' |
    sed -n "1,${questions:-${set#*:}}p" >>"$work/report.new"
done
mv "$work/report.new" "$work/report.jsonl"
# The stable layers N* are calibrated too; without this the last four of 30 would be taken.
calibrate_store

keys=samkv:score=keys
free="$keys,anchors=none,keep_ratio=0.2,recompute=none"
# In the order of what they cost: each group is whole before the next begins.
first=(
  recompute reuse
  # 20 % of the tokens, nothing forced, nothing computed again
  "$free" "$free,bias=off" "$free,bias_frame=rotated" random:keep_ratio=0.2
  # the published ablations without recomputation
  "$keys,select=off,recompute=none" "$keys,recompute=none" "$keys,bias=off,recompute=none"
)
light=(
  "$free,bias_cos=head" "$free,score_frame=raw" "$free,layer_mode=shared"
  # chance at the published share of the KV, and readings of the paper that keep other numbers
  random:keep_ratio=0.37
  "$keys,extremes=question,recompute=none" "$keys,keep_rule=total_over_D,recompute=none"
  "$keys,anchors=by_length,recompute=none"
)
heavy=(
  # the published ablations with recomputation, and the paper's rivals
  "$keys,recompute=overwrite" "$keys" "$keys,select=off" "$keys,bias=off"
  "$keys,layer_mode=shared" "$keys,recompute=overwrite,rows=kept"
  epic:recompute_ratio=0.15 cacheblend:recompute_ratio=0.15
)
# measure STRATEGY...: rows that the state holds are not measured again.
measure() {
  "$quire" fidelity -m "$model" --suite "$work/report.jsonl" --limit 0 --work "$work/store" \
    --strategies "$(IFS=,; echo "$*")" --json "$work/samkv_ablations.json" >&2
}
measure "${first[@]}"
measure "${first[@]}" "${light[@]}"
[ "$part" = light ] || measure "${first[@]}" "${light[@]}" "${heavy[@]}"
jq '{
  settings: (.settings + {model: .model, suite: .suite}),
  rows: [range(.rows | length) as $i | .rows[$i] + (.details[$i] | del(.strategy, .task))]
}' "$work/samkv_ablations.json"
