#!/usr/bin/env bash
# Everything that Quire does with cached documents, switched on one after another, on a pretrained
# model: SmolLM2-135M-Instruct (scripts/get_model.sh smollm2) on questions over whole articles of
# XQuAD. A fifth of the documents' KV is chosen, a part computed again, what is left ranked with a
# draft's look-ahead, and answers decode over a part of that. The model is its own draft, with all
# of its layers or its first ones.
#   bench/mission.sh --data FOLDER [--questions N] [--others N] [--work FOLDER]
# FOLDER holds xquad_en.json.gz. N questions (60) of every other article are asked over it and N
# others (5). --work keeps the state, so that the same command goes on after an interruption.
# Prints {"settings", "rows"}: rows and details of 'quire fidelity', each with `draft_layers` (0: no
# draft) and `part`: `answers`, or `spans` for the same strategies held to 128 tokens of recompute's
# answer, where agreement and KL are of all of them.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
data=; questions=60; others=5; work=
while [ $# -gt 0 ]; do
  case "$1" in
    --data) data="$(realpath "${2:?--data needs a folder}")"; shift ;;
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --others) others="${2:?--others needs a number}"; shift ;;
    --work) work="$(realpath -m "${2:?--work needs a folder}")"; shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$data" ] || { sed -n '2,14s/^# \{0,1\}//p' "$0"; exit 2; }
cd "$ROOT"
cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
if [ -z "$work" ]; then work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT; fi
mkdir -p "$work"
quire="$ROOT/build/release/quire"; model="$ROOT/models/smollm2"
python3 bench/long_questions.py "$data/xquad_en.json.gz" 1 "$questions" "$others" \
  >"$work/questions.jsonl"
[ -d "$work/store" ] || "$quire" model calibrate -m "$model" --path "$work/store" >&2

chosen=samkv:keep_ratio=0.2
again="$chosen,recompute=question"
ranked="$again,compress=speckv,capacity=512"
part=,decode_budget=256,decode_dense_layers=0
stages="recompute,reuse,$chosen,$again"
drafted="$ranked,$ranked,decode=freekv$part,$ranked,decode=ctkvr$part"
drafted+=",$ranked,decode=specontext,decode_budget=256"

# measure NAME DRAFT_LAYERS STRATEGIES: both kinds of report; 0 layers: no draft.
measure() {
  local draft=(--model.draft_path=none)
  [ "$2" = 0 ] || draft=(--model.draft_path="$model" --model.draft_layers="$2")
  local common=(fidelity -m "$model" --suite "$work/questions.jsonl" --limit 0
    --work "$work/store" "${draft[@]}" --model.draft_wait_ms=60000 --strategies "$3")
  "$quire" "${common[@]}" --json "$work/$1.json" >&2
  "$quire" "${common[@]}" --span-tokens 128 --max-tokens 128 --json "$work/$1.spans.json" >&2
}
measure stages 0 "$stages,$again,compress=snapkv,capacity=512"
measure draft30 30 "$drafted"
measure draft20 20 "recompute,$ranked"
measure draft10 10 "recompute,$ranked"
rows='[$files[] | .layers as $layers | .report | range(.rows | length) as $i
  | {draft_layers: $layers} + .rows[$i] + (.details[$i] | del(.strategy, .task))]'
collect() {
  for name in stages:0 draft30:30 draft20:20 draft10:10; do
    jq --argjson layers "${name#*:}" '{layers: $layers, report: .}' "$work/${name%:*}$1"
  done | jq -s .
}
jq -n --slurpfile a <(collect .json) --slurpfile b <(collect .spans.json) \
  --argjson others "$others" "
  def rows(files): files as \$files | $rows;
  {settings: (\$a[0][0].report | .settings + {model: .model, suite: .suite, others: \$others}),
   rows: ([rows(\$a[0])[] | {part: \"answers\"} + .] + [rows(\$b[0])[] | {part: \"spans\"} + .])}"
