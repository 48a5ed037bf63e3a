#!/usr/bin/env bash
# What it is worth that a document's chunks see those before them: SmolLM2-135M-Instruct
# (scripts/get_model.sh smollm2) on questions over whole articles of XQuAD.
#   bench/long_text.sh --data FOLDER [--questions N] [--work FOLDER] [--quire FILE]
#                      [--choices] [--lead-in]
# FOLDER holds xquad_en.json.gz. N questions (60) of every other article are asked over it and two
# others, cut into chunks of 512 tokens: once with the chunks read behind each other
# (context_tokens 4096), once with each alone. With --choices the chunks are read behind each other
# only, and what is kept is compared: a fifth and 16 % by 'samkv', by its published score and by
# chance, beside 'epic' and 'cacheblend' over all of it. With --lead-in the chunks are read behind
# each other only, and each document behind the fixed lead-in. --work keeps the state, so that the
# same command goes on after an interruption. Prints {"settings", "rows"}: the rows and details of
# 'quire fidelity', each with its context_tokens.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=60; contexts="4096 0"; lead_in=()
strategies=recompute,reuse,reuse:positions=naive,prophetkv:r=0.15,samkv
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --lead-in) lead_in=(--lead-in); contexts=4096 ;;
    --choices)
      contexts=4096
      keys=samkv:score=keys,anchors=none,keep_ratio=0.2,recompute=none
      strategies="recompute,reuse,samkv,samkv:keep_ratio=0.16,$keys,random:keep_ratio=0.2"
      strategies+=,epic:recompute_ratio=0.15,cacheblend:recompute_ratio=0.15 ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
prepare
python3 bench/long_questions.py "$data/xquad_en.json.gz" 1 "$questions" >"$work/questions.jsonl"
calibrate_store
results=()
for context in $contexts; do
  results+=("$work/$context.json")
  [ -d "$work/store.$context" ] || cp -r "$work/store" "$work/store.$context"
  "$quire" fidelity -m "$model" --suite "$work/questions.jsonl" --limit 0 \
    --work "$work/store.$context" --context-tokens "$context" "${lead_in[@]}" \
    --strategies "$strategies" \
    --json "$work/$context.json" >&2
done
jq -s '{
  settings: (.[0].settings + {model: .[0].model, suite: .[0].suite} | del(.context_tokens)),
  rows: [.[] | .settings.context_tokens as $context | range(.rows | length) as $i
    | {context_tokens: $context} + .rows[$i] + (.details[$i] | del(.strategy, .task))]
}' "${results[@]}"
