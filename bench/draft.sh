#!/usr/bin/env bash
# Score, times and KV memory of the compressors against their capacity, on the embedded model's questions, through quire fidelity.
#   bench/draft.sh [--quick] [--draft FOLDER] [--per-kind N]
# Rows drop what does not fit the capacity (drop_mode=drop), so that nothing but it is attended to after the first token. --draft: the model that looks
# ahead for speckv and ada_speckv; the default is the embedded model itself, the best draft there can be. Without look-ahead: lookahead=0.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
draft="$ROOT/models/demo"; per_kind=40; capacities="64 128 256 512"
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) per_kind=6; capacities="64 128"; shift;;
    --draft) draft="${2:?--draft needs a folder}"; shift 2;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift 2;;
    *) echo "error: unknown option '$1'" >&2; exit 2;;
  esac
done
QUIRE="$ROOT/build/release/quire"
[ -x "$QUIRE" ] || { echo "error: $QUIRE is missing; build the release preset first" >&2; exit 1; }
[ -d "$draft" ] || { echo "error: no model folder at $draft" >&2; exit 1; }
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT

specs="recompute"
for c in $capacities; do
  for method in streamingllm h2o snapkv pyramidkv adakv speckv ada_speckv; do specs+=",recompute:compress=$method,capacity=$c,drop_mode=drop"; done
  for method in speckv ada_speckv; do specs+=",recompute:compress=$method,capacity=$c,drop_mode=drop,lookahead=0"; done
done
"$QUIRE" fidelity --limit "$per_kind" --strategies "$specs" --json "$work/r.json" --quiet "--model.draft_path=$draft" --model.draft_wait_ms=600000 >&2
kv_bytes="$(jq '.num_hidden_layers * .num_key_value_heads * .head_dim * 2 * 2' "$ROOT/models/demo/config.json")"
jq --argjson kv_bytes "$kv_bytes" --arg draft "${draft#"$ROOT/"}" --argjson per_kind "$per_kind" '
  def setting($name): (capture("[:,]" + $name + "=(?<v>[^,]+)").v) // null;
  (.details | map({key: (.strategy + "/" + .task), value: .}) | from_entries) as $details
  | {settings: {suite: .suite.name, per_kind: $per_kind, draft: $draft, model: "models/demo", kv_bytes_per_token: $kv_bytes},
     rows: [.rows[] | . as $row | $details[.strategy + "/" + .task] as $d
            | {method: (.strategy | setting("compress") // "dense"), capacity: (.strategy | setting("capacity") | if . then tonumber else null end),
               lookahead: (.strategy | setting("lookahead") | if . then tonumber else null end), task: .task, n: .n, em: .em.value, em_low: .em.low, em_high: .em.high,
               kl: .kl.value, agreement: .agreement.value, ttft_ms: .ttft_ms.value, decode_ms: $d.decode_ms.value}
            | . + {kv_bytes_most: (if .capacity then .capacity * $kv_bytes else null end)}]}' "$work/r.json"
