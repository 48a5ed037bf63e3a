#!/usr/bin/env bash
# What decoding over a part of the context loses behind long answers: models/demo (--model), an
# answer of thousands of tokens behind documents, together as long as the model's window (--shapes),
# several budgets (--budgets), every layer within them (no dense layers). The answer's text is drawn
# from dense decoding (--temperature, past everything that would end it), and each retriever is held
# to it.
#   bench/long_answers.sh [--quick] [--model FOLDER] [--shapes DOCUMENTS+ANSWER,...]
#                         [--questions N] [--budgets N,N,...] [--retrievers LIST] [--span N]
#                         [--temperature T] [--state FOLDER]
# LIST: retrievers, or retriever,option=value,...; separated by spaces. --state keeps suites and
# finished rows: the same command goes on after an interruption.
# Prints {"settings", "rows"}: shape, retriever, budget and options; agreement of the likeliest
# token with dense decoding's, and KL, of the whole answer and in `spans` of every --span tokens;
# moved, overlap (1 - moved: the share of what steps want that was on the device already) and
# corrected (docs/fidelity.md). Retrievers with slots have no layer stay on the device.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
shapes=4096+4000,1024+7000; questions=2; budgets=256,512; span=1000; temperature=0.8
state=; model=models/demo
# Some besides their defaults: going by the step before alone, choosing anew in every step, among
# the keys of all pages; without the answer's last tokens beside the budget; by embeddings alone.
retrievers="freekv freekv,decode_reuse=1 freekv,decode_reuse=1,decode_tau=0.9"
retrievers+=" freekv,decode_tau=1.1,decode_reuse=1 freekv,decode_rerank=64"
retrievers+=" ctkvr ctkvr,decode_generated=512 ctkvr,decode_generated=0"
retrievers+=" specontext specontext,decode_head=embed"
retrievers+=" flat flat,decode_generated=512 flat,decode_generated=0"
retrievers+=" quest shadowkv arkvale raas magicpig"
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) shapes=1024+300; questions=1; budgets=256; span=100 ;;
    --model) model="${2:?--model needs a folder}"; shift ;;
    --shapes) shapes="${2:?--shapes needs DOCUMENTS+ANSWER in tokens}"; shift ;;
    --questions) questions="${2:?--questions needs a number}"; shift ;;
    --budgets) budgets="${2:?--budgets needs numbers of tokens}"; shift ;;
    --retrievers) retrievers="${2:?--retrievers needs a list}"; shift ;;
    --span) span="${2:?--span needs a number of tokens}"; shift ;;
    --temperature) temperature="${2:?--temperature needs a number}"; shift ;;
    --state) state="$(realpath -m "${2:?--state needs a folder}")"; shift ;;
    *) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2; exit 2 ;;
  esac
  shift
done
cd "$ROOT"; cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
state="${state:-$work/state}"; mkdir -p "$state"

strategies=recompute
for tokens in ${budgets//,/ }; do
  for retriever in $retrievers; do
    name="${retriever%%,*}"; options="${retriever#"$name"}"; given=
    case "$name" in specontext) ;; *) given=,decode_dense_layers=0 ;; esac
    case "$name" in
      magicpig) [ "$tokens" = "${budgets%%,*}" ] || continue ;;  # it has no budget
      *) given+=",decode_budget=$tokens" ;;
    esac
    case "$name" in freekv|specontext|arkvale) given+=,decode_resident=none ;; esac
    strategies+=",recompute:decode=$name$given$options"
  done
done
head=none; [ ! -d "$model/head" ] || head="$model/head"
parts=()
for shape in ${shapes//,/ }; do
  documents="${shape%+*}"; answer="${shape#*+}"
  suite="$state/$shape.jsonl"
  if [ ! -s "$suite" ]; then
    python3 models/generate.py --seed 85 --context-tokens "$documents" --document-tokens 300:500 \
      --kinds list --questions "$questions" --per-world 1 --split test --out "$suite.part"
    mv "$suite.part" "$suite"
  fi
  build/release/quire fidelity -m "$model" --model.retrieval_head_path="$head" --suite "$suite" \
    --limit 0 --strategies "$strategies" --json "$state/$shape.json" \
    --max-tokens "$answer" --span-tokens "$span" --temperature "$temperature" >&2
  jq --arg shape "$shape" '
    def choice: {decode: ((capture("decode=(?<name>[a-z]+)").name) // "dense"),
                 budget: ((capture("decode_budget=(?<tokens>[0-9]+)").tokens | tonumber) // null)};
    def options: [scan("decode_(?:generated|tau|reuse|rerank|head|page|probes)=[^,]+")] | join(",");
    . as $r
    | {settings: ($r.settings + {model: $r.model.name, commit: $r.commit, skipped: $r.skipped}),
       rows: [range($r.rows | length) | . as $i | $r.rows[$i] as $row | $r.details[$i] as $detail
              | select($row.task == "all")
              | {shape: $shape, strategy: $row.strategy} + ($row.strategy | choice)
                + {options: ($row.strategy | options), n: $row.n, agreement: $row.agreement,
                   kl: $row.kl, moved: $detail.moved,
                   overlap: (if $detail.moved then 1 - $detail.moved.value else null end),
                   corrected: $detail.corrected, spans: $detail.spans}]}' \
    "$state/$shape.json" >"$work/$shape.part"
  parts+=("$work/$shape.part")
done
jq -s '{settings: .[0].settings, rows: (map(.rows) | add)}' "${parts[@]}"
