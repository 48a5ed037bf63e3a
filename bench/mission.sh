#!/usr/bin/env bash
# Everything that Quire does with cached documents, switched on one after another, on a pretrained
# model: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2) on questions over whole articles of
# XQuAD. A fifth of the documents' KV is chosen, a part computed again, what is left ranked with a
# draft's look-ahead, and answers decode over a part of that. The model is its own draft, with all
# of its layers or its first ones.
#   bench/mission.sh --data FOLDER [--questions N] [--drafted N] [--others N] [--work FOLDER]
#                    [--quire FILE] [--states FOLDER]
# FOLDER holds xquad_en.json.gz. N questions (60) of every other article are asked over it and N
# others (2); drafts of 20 and 10 layers are asked the first --drafted (60) of them. --work keeps
# the state, so that the same command goes on after an interruption. --quire is a finished program
# to measure with, in place of a new build. --states keeps the measured rows alone, compressed, so
# that the run may go on with another build on another machine; the settings then count rows by
# build.
# Prints {"settings", "rows"}: rows and details of 'quire fidelity', each with `draft_layers` and
# `part`: `answers`, or `spans` for the strategies with a draft of all layers held to 128 tokens of
# recompute's answer, where agreement and KL are of all of them.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=60; drafted=60; others=2; states=
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --drafted) drafted="${2:?--drafted needs a number}"; shift ;;
    --others) others="${2:?--others needs a number}"; shift ;;
    --states) states="$(realpath -m "${2:?--states needs a folder}")"; shift ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
python3 bench/long_questions.py "$data/xquad_en.json.gz" 1 "$questions" --others "$others" \
  >"$work/questions.jsonl"
head -n "$drafted" "$work/questions.jsonl" >"$work/drafted.jsonl"
calibrate_store

# What is ranked is less than what is chosen, and a step sees a part of that.
chosen=samkv:keep_ratio=0.2
again="$chosen,recompute=question"
ranked="$again,compress=speckv,capacity=192"
part=decode_budget=128
stages="recompute,reuse,$chosen,$again,$ranked,drop_mode=drop"
stages+=",$ranked,decode=freekv,$part,decode_dense_layers=0"
stages+=",$ranked,decode=ctkvr,$part,decode_dense_layers=0,$ranked,decode=specontext,$part"
# Without a draft's look-ahead the window alone ranks.
stages+=",$again,compress=snapkv,capacity=192,drop_mode=drop"

# fidelity NAME OPTION...: a report, whose measured rows are kept in $states.
fidelity() {
  local name="$1"; shift
  local kept="$states/$name.jsonl.gz" state="$work/$name.json.state" any=()
  if [ -n "$states" ]; then
    any=(--any-build)
    mkdir -p "$states"
    if [ -e "$kept" ] && [ ! -e "$state" ]; then gzip -dc "$kept" >"$state"; fi
  fi
  local rc=0
  "$quire" fidelity "$@" "${any[@]}" --json "$work/$name.json" >&2 || rc=$?
  # A run that began anew does not replace more rows of another one.
  if [ -n "$states" ] && [ -e "$state" ] &&
    { [ ! -e "$kept" ] || [ "$(wc -l <"$state")" -ge "$(gzip -dc "$kept" | wc -l)" ]; }; then
    gzip -nc "$state" >"$kept"
  fi
  return "$rc"
}

# measure NAME DRAFT_LAYERS QUESTIONS STRATEGIES [OPTION...]: one report.
measure() {
  local name="$1" layers="$2" suite="$3" strategies="$4"; shift 4
  fidelity "$name" -m "$model" --suite "$work/$suite.jsonl" --limit 0 --work "$work/store" \
    --model.draft_path="$model" --model.draft_layers="$layers" --model.draft_wait_ms=60000 \
    --strategies "$strategies" "$@"
}
measure draft30 30 questions "$stages"
measure draft30.spans 30 questions "$stages" --span-tokens 128 --max-tokens 128
drafted="recompute,$ranked,drop_mode=drop,$ranked,decode=specontext,$part"
measure draft20 20 drafted "$drafted"
measure draft10 10 drafted "$drafted"
rows='[$files[] | .layers as $layers | .report | range(.rows | length) as $i
  | {draft_layers: $layers} + .rows[$i] + (.details[$i] | del(.strategy, .task))]'
# collect NAME:LAYERS...
collect() {
  for name in "$@"; do
    jq --argjson layers "${name#*:}" '{layers: $layers, report: .}' "$work/${name%:*}.json"
  done | jq -s .
}
# builds NAME...: how many rows of these reports each build measured.
builds() {
  for name in "$@"; do tail -n +2 "$work/$name.json.state" | jq -r '.build // empty'; done |
    sort | uniq -c | jq -Rn '[inputs | capture("^ *(?<rows>[0-9]+) (?<build>.*)$")
      | {(.build): (.rows | tonumber)}] | add'
}
jq -n --slurpfile a <(collect draft30:30 draft20:20 draft10:10) \
  --slurpfile b <(collect draft30.spans:30) \
  --slurpfile builds <(builds draft30 draft30.spans draft20 draft10) \
  --argjson others "$others" "
  def rows(files): files as \$files | $rows;
  {settings: (\$a[0][0].report | .settings
     + {builds: \$builds[0], model: .model, suite: .suite, others: \$others}),
   rows: ([rows(\$a[0])[] | {part: \"answers\"} + .] + [rows(\$b[0])[] | {part: \"spans\"} + .])}"
