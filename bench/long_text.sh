#!/usr/bin/env bash
# What reuse and a choice keep of long documents, and what it is worth that a document's chunks see
# those before them: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2) on questions over whole
# articles of XQuAD.
#   bench/long_text.sh --data FOLDER [--questions N] [--work FOLDER] [--quire FILE]
#                      [--lead-in | --joined] [--contexts LIST] [--any-build]
# FOLDER holds xquad_en.json.gz. N questions (150) of every other article are asked over it and two
# others, cut into chunks of 512 tokens. The chunks are read behind each other (context_tokens 4096)
# for all strategies: a fifth and 16 % of the KV chosen by 'samkv', a fifth by its published score
# and by chance, and all of it with and without recomputation. Six strategies are asked again over
# chunks that were read alone; --contexts "4096" leaves them out. With --lead-in the chunks are read
# behind each other only, each document behind the fixed lead-in, for five strategies. With --joined
# the three articles are one document of 2,600 tokens on average. --work keeps the state, so the
# same command goes on after an interruption. Prints {"settings", "rows", "paired"}: the rows and
# details of 'quire fidelity', each with its context_tokens, and paired differences.
set -euo pipefail
source "$(dirname "${BASH_SOURCE[0]}")/on_smollm2.sh"
questions=150; contexts="4096 0"; lead_in=(); joined=()
both=recompute,reuse,prophetkv:r=0.15,samkv
blends=epic:recompute_ratio=0.15,cacheblend:recompute_ratio=0.15
while [ $# -gt 0 ]; do
  case "$1" in
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --lead-in) lead_in=(--lead-in); contexts=4096 ;;
    --any-build) any=(--any-build) ;;
    --joined) joined=(--joined); contexts=4096 ;;
    --contexts) contexts="${2:?--contexts needs numbers}"; shift ;;
    *) shared_option "$1" "${2:-}"; shift ;;
  esac
  shift
done
# strategies_of CONTEXT
strategies_of() {
  if [ "$1" = 0 ]; then echo "$both,$blends"; return; fi
  local more=reuse:positions=naive
  [ ${#joined[@]} = 0 ] || more=samkv:keep_ratio=0.16,random:keep_ratio=0.2,$blends
  if [ ${#lead_in[@]} = 0 ] && [ ${#joined[@]} = 0 ]; then
    more+=,samkv:keep_ratio=0.16,samkv:score=keys,anchors=none,keep_ratio=0.2,recompute=none
    more+=,random:keep_ratio=0.2,samkv_words,$blends
  fi
  echo "$both,$more"
}
prepare
python3 bench/long_questions.py "$data/xquad_en.json.gz" 1 "$questions" "${joined[@]}" \
  >"$work/questions.jsonl"
calibrate_store
results=()
for context in $contexts; do
  results+=("$work/$context.json")
  [ -d "$work/store.$context" ] || cp -r "$work/store" "$work/store.$context"
  "$quire" fidelity -m "$model" --suite "$work/questions.jsonl" --limit 0 \
    --work "$work/store.$context" --context-tokens "$context" "${lead_in[@]}" "${any[@]}" \
    --strategies "$(strategies_of "$context")" \
    --json "$work/$context.json" >&2
done
pairs="$(paired "$work/${contexts%% *}.json.state" reuse samkv)"
if [ "$contexts" != "${contexts%% *}" ]; then
  other="$(python3 bench/paired_differences.py "$work/4096.json.state" --with "$work/0.json.state" \
    --json)"
  pairs="$(jq -s '.[0] + [.[1][] + {context_tokens: 4096, other: 0}]' <<<"$pairs $other")"
fi
jq -s --argjson paired "$pairs" '{
  paired: $paired,
  settings: (.[0].settings + {model: .[0].model, suite: .[0].suite} | del(.context_tokens)),
  rows: [.[] | .settings.context_tokens as $context | range(.rows | length) as $i
    | {context_tokens: $context} + .rows[$i] + (.details[$i] | del(.strategy, .task))]
}' "${results[@]}"
