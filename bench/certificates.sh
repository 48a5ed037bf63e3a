#!/usr/bin/env bash
# What `auto` may take on a pretrained model: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2)
# on questions over three paragraphs of XQuAD each, and on the same kind of questions over
# paragraphs that do not answer them, which must certify nothing.
#   bench/certificates.sh --data FOLDER [--questions N] [--strategies LIST] [--lead-in]
#                         [--work FOLDER] [--quire FILE]
# FOLDER holds xquad_en.json.gz and the question sets of bench/real_text.sh, by whose questions of
# even rank the heads are chosen. N questions (1,190, all there are) are asked under each strategy
# of LIST (prophetkv:r=0.6), and 160 that cannot be answered under reuse; with --lead-in over
# documents that are read behind the lead-in. --work keeps the state, so that the same command goes
# on after an interruption, and the store, from which 'quire model card' makes a card. --quire is a
# finished program to measure with, in place of a new build.
# Prints {"settings", "rows", "certificates"}: rows and details of 'quire fidelity', each with
# `suite`, and what the program says of each strategy.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=1190; strategies=prophetkv:r=0.6; lead_in=()
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --strategies) strategies="${2:?--strategies needs a list}"; shift ;;
    --lead-in) lead_in=(--lead-in) ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
for set in hotpotqa_train100 2wikimultihop_train500 musique_train100; do
  gzip -dc "$data/$set.jsonl.gz" | awk 'NR % 2 == 1' | sed -n 1,50p
done >"$work/choose.jsonl"
python3 bench/short_questions.py "$data/xquad_en.json.gz" "$questions" 3 --each 8 \
  >"$work/short.jsonl"
python3 bench/short_questions.py "$data/xquad_en.json.gz" 160 2 --unanswerable \
  >"$work/unanswerable.jsonl"
calibrate_store --questions "$work/choose.jsonl"
[ -d "$work/store.unanswerable" ] || cp -r "$work/store" "$work/store.unanswerable"
instruction="Answer the question from the given passages. Give only the answer, in as few words as"
instruction+=" possible."
# measure SUITE STORE STRATEGIES. No --work: the calibration of --store counts without it alone.
measure() {
  "$quire" fidelity -m "$model" --suite "$work/$1.jsonl" --limit 0 --store "$work/$2" \
    --certify "${lead_in[@]}" --instruction "$instruction" --strategies "$3" \
    --json "$work/$1.json" |
    tee "$work/$1.report" >&2
}
measure short store "$strategies"
measure unanswerable store.unanswerable reuse
for suite in short unanswerable; do
  grep '^certificate for' "$work/$suite.report" | jq -R . |
    jq -s --arg suite "$suite" --slurpfile report "$work/$suite.json" '{
      settings: ($report[0].settings + {model: $report[0].model} | del(.strategies)),
      rows: [$report[0] | range(.rows | length) as $i
        | {suite: $suite} + .rows[$i] + (.details[$i] | del(.strategy, .task))],
      certificates: map({suite: $suite, verdict: .})}'
done | jq -s '{settings: .[0].settings, rows: map(.rows) | add,
               certificates: map(.certificates) | add}'
