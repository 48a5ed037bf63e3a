#!/usr/bin/env bash
# What decoding over a part of the context loses: models/demo (--model) on contexts of about 7,100
# tokens, several budgets (--budgets), every layer within them (no dense layers). Questions: a
# hidden number (needle), a fact whose passage does not name its subject (continuation), and hidden
# numbers asked one after the other in one conversation (multi_turn; the first of each conversation
# is left out, it is a needle).
#   bench/decode_accuracy.sh [--quick] [--model FOLDER] [--per-kind N] [--limit N]
#                            [--budgets N,N,...] [--retrievers LIST] [--ruler N,N,...]
#                            [--per-task N] [--state FOLDER]
# --ruler: RULER's tasks at these lengths, too (4096,8192 with a window of 8,192), each at a budget
# of an eighth of it, --per-task questions of each (2), by its own score. --limit: ask N of each
# kind only. LIST: retrievers, or retriever,option=value,...; separated by spaces. Several budgets
# are drawn, too (bench/results/decode_accuracy-*.svg). --state keeps suite and finished rows: the
# same command goes on after an interruption, and another LIST measures only what is missing. Prints
# {"settings", "rows"}: the columns of docs/fidelity.md, retriever and budget, and of its details
# em_difference (paired with dense decoding), moved (share of what steps want that is not on the
# device yet: one less the overlap of a step's choice with the one before) and corrected (share of
# KV heads that chose anew first): retrievers with slots have no layer stay on the device.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
per_kind=100; limit=0; budgets=256,512,1024; ruler=; per_task=2; quick=; state=; model=models/demo
retrievers="freekv specontext ctkvr flat quest shadowkv arkvale raas"
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) per_kind=2; quick=yes ;;
    --model) model="${2:?--model needs a folder}"; shift ;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift ;;
    --limit) limit="${2:?--limit needs a number}"; shift ;;
    --budgets) budgets="${2:?--budgets needs numbers of tokens}"; shift ;;
    --ruler) ruler="${2:?--ruler needs lengths}"; shift ;;
    --per-task) per_task="${2:?--per-task needs a number}"; shift ;;
    --retrievers) retrievers="${2:?--retrievers needs a list}"; shift ;;
    --state) state="$(realpath -m "${2:?--state needs a folder}")"; shift ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
cd "$ROOT"; cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
state="${state:-$work/state}"; mkdir -p "$state"

suite="$state/suite.jsonl"
if [ ! -s "$suite" ]; then
  for kind in needle continuation; do
    python3 models/generate.py --seed 83 --context-tokens 8300 --document-tokens 300:500 \
      --kinds "$kind" --questions "$per_kind" --per-world 4 --split test --out "$work/$kind.jsonl"
  done
  # Half of what is asked opens a conversation: twice as many, and what goes beyond --per-kind is
  # not asked.
  python3 models/generate.py --seed 84 --context-tokens 8200 --document-tokens 300:500 \
    --kinds needle --questions $((per_kind * 2)) --per-world 5 --split test \
    --out "$work/asked.jsonl"
  jq -nc --argjson most "$per_kind" '
    [[inputs] | group_by(.documents)[] | . as $all | range(1; length) | . as $i
     | $all[$i] + {kind: "multi_turn", turns: [$all[:$i][] | {question, answer: .answers[0]}]}]
    | .[:$most][]' "$work/asked.jsonl" >"$work/multi_turn.jsonl"
  cat "$work"/{needle,continuation,multi_turn}.jsonl >"$suite.part"
  mv "$suite.part" "$suite"
fi

# Every retriever at every budget of a list.
strategies_of() {
  local out=recompute tokens retriever name options dense
  for tokens in ${1//,/ }; do
    for retriever in $retrievers; do
      name="${retriever%%,*}"; options="${retriever#"$name"}"
      case "$name" in specontext) dense= ;; *) dense=,decode_dense_layers=0 ;; esac
      case "$name" in freekv|specontext|arkvale) dense+=,decode_resident=none ;; esac
      out+=",recompute:decode=$name,decode_budget=$tokens$dense$options"
    done
  done
  echo "$out"
}
head=none; [ ! -d "$model/head" ] || head="$model/head"
# Rows of one suite: what `quire fidelity` says, and which retriever and budget it was.
measure() {
  local name="$1" strategies; strategies="$(strategies_of "$2")"; shift 2
  build/release/quire fidelity -m "$model" --model.retrieval_head_path="$head" \
    --strategies "$strategies" --json "$state/$name.json" "$@" >&2
  jq --arg suite "$name" '
    def choice: {decode: (capture("decode=(?<name>[a-z]+)").name // "dense"),
                 budget: (capture("decode_budget=(?<tokens>[0-9]+)").tokens | tonumber)}
                // {decode: "dense", budget: null};
    . as $r
    | {settings: ($r.settings + {model: $r.model.name, commit: $r.commit,
                                 skipped: ($r.skipped | length)}),
       rows: [range($r.rows | length) | . as $i
              | {suite: $suite} + $r.rows[$i] + ($r.rows[$i].strategy | choice)
                + ($r.details[$i] | {em_difference, moved, corrected})]}' \
    "$state/$name.json" >"$work/$name.part"
  parts+=("$work/$name.part")
}
parts=()
measure accuracy "$budgets" --suite "$suite" --limit "$limit"
for length in ${ruler//,/ }; do
  measure "ruler@$length" "$((length / 8))" --suite "ruler@$length" --per-task "$per_task" \
    --source models/demo/encyclopedia.jsonl
done
jq -s '{settings: .[0].settings, rows: (map(.rows) | add)}' "${parts[@]}" >"$work/all.json"
if [ -z "$quick" ] && [ "$budgets" != "${budgets/,/}" ]; then
  python3 bench/line_plot.py "$work/all.json" --where suite=accuracy --where task=all \
    --x budget --y em --series decode \
    --title "Exact match against the budget, contexts of 7,100 tokens" \
    --out bench/results/decode_accuracy-em.svg
  python3 bench/line_plot.py "$work/all.json" --where suite=accuracy --where task=all \
    --x budget --y kl --series decode \
    --title "KL to dense decoding against the budget, nats" \
    --out bench/results/decode_accuracy-kl.svg
fi
cat "$work/all.json"
