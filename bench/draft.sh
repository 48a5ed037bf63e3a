#!/usr/bin/env bash
# Score, times and KV memory of what a draft leads, and of its competitors, against their capacity: compressors of KV, compressors of prompts, the two together
# and the length of the look-ahead, through quire fidelity.
# Writes bench/results/draft-capacity.svg and draft-prompts.svg.
#   bench/draft.sh [--quick] [--draft FOLDER] [--model FOLDER] [--suite NAME] [--per-kind N]
# Rows drop what does not fit the capacity (drop_mode=drop), so that nothing but it is attended to after the first token. --draft: the model that looks
# ahead and reads prompts; the default is the one in the target's folder, else the target itself, the best draft there can be. --model: the target, the embedded model by default. --suite: of
# quire fidelity, encyclopedia by default, or ruler@4096, ruler@8192 where the target's window holds them. Drafts are compared by running it once for each.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model="$ROOT/models/demo"; draft=; suite=encyclopedia; per_kind=40
kv_capacities="64 128 256 512 1024"; prompt_capacities="256 512 1024"; lookaheads="0 1 2 4 8 64"
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) per_kind=6; kv_capacities="64 128"; prompt_capacities="256"; lookaheads="0 16"; shift;;
    --draft) draft="${2:?--draft needs a folder}"; shift 2;;
    --model) model="${2:?--model needs a folder}"; shift 2;;
    --suite) suite="${2:?--suite needs a name}"; shift 2;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift 2;;
    *) echo "error: unknown option '$1'" >&2; exit 2;;
  esac
done
[ -n "$draft" ] || { draft="$model/draft"; [ -d "$draft" ] || draft="$model"; }
QUIRE="$ROOT/build/release/quire"
[ -x "$QUIRE" ] || { echo "error: $QUIRE is missing; build the release preset first" >&2; exit 1; }
for folder in "$model" "$draft"; do [ -d "$folder" ] || { echo "error: no model folder at $folder" >&2; exit 1; }; done
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT

specs="recompute"
add() { specs+=",recompute:$1"; }
for c in $kv_capacities; do
  for method in streamingllm h2o snapkv pyramidkv adakv speckv ada_speckv; do add "compress=$method,capacity=$c,drop_mode=drop"; done
done
smallest="${kv_capacities%% *}"
for n in $lookaheads; do
  for method in speckv ada_speckv; do add "compress=$method,capacity=$smallest,drop_mode=drop,lookahead=$n"; done
done
for c in $prompt_capacities; do
  for method in specpc surprisal; do add "prompt_compression=$method,prompt_compression.capacity=$c"; done
  # The cascade: one reading cuts the prompt and writes the look-ahead.
  add "prompt_compression=specpc,prompt_compression.capacity=$c,compress=speckv,capacity=128,drop_mode=drop"
done

"$QUIRE" fidelity --model "$model" --suite "$suite" --limit "$per_kind" --strategies "$specs" --json "$work/r.json" --quiet "--model.draft_path=$draft" --model.draft_wait_ms=600000 >&2
kv_bytes="$(jq '.num_hidden_layers * .num_key_value_heads * .head_dim * 2 * 2' "$model/config.json")"
jq --argjson kv_bytes "$kv_bytes" --arg draft "${draft#"$ROOT/"}" --arg model "${model#"$ROOT/"}" --argjson per_kind "$per_kind" '
  def setting($name): (capture("[:,]" + $name + "=(?<v>[^,]+)").v) // null;
  def count($name): setting($name) | if . then tonumber else null end;
  (.details | map({key: (.strategy + "/" + .task), value: .}) | from_entries) as $details
  | {settings: {suite: .suite.name, per_kind: $per_kind, draft: $draft, model: $model, kv_bytes_per_token: $kv_bytes},
     rows: [.rows[] | . as $row | $details[.strategy + "/" + .task] as $d
            | {method: (.strategy | setting("compress") // "dense"), capacity: (.strategy | count("capacity")), lookahead: (.strategy | count("lookahead")),
               prompt_method: (.strategy | setting("prompt_compression") // "none"),
               prompt_capacity: (.strategy | count("prompt_compression\\.capacity")), task: .task, n: .n, em: .em.value, em_low: .em.low, em_high: .em.high,
               kl: .kl.value, agreement: .agreement.value, ttft_ms: .ttft_ms.value, decode_ms: $d.decode_ms.value}
            | . + {kv_bytes_most: ([.capacity, .prompt_capacity] | map(select(. != null)) | min | if . then . * $kv_bytes else null end)}]}' "$work/r.json" >"$work/rows.json"
mkdir -p "$ROOT/bench/results"
plot() { python3 "$ROOT/bench/line_plot.py" "$work/rows.json" --y em --where task=all "$@" >&2; }
plot --x capacity --series method --where lookahead=None --where prompt_method=none --title "Exact match against KV rows a head" --out "$ROOT/bench/results/draft-capacity.svg"
plot --x prompt_capacity --series prompt_method,method --title "Exact match against tokens of the prompt" --out "$ROOT/bench/results/draft-prompts.svg"
cat "$work/rows.json"
