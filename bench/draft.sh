#!/usr/bin/env bash
# What a draft leads, and its competitors: score, times and KV memory against their capacity,
# through quire fidelity.
#   bench/draft.sh [--quick] [--model FOLDER] [--draft FOLDER] [--early FOLDER] [--suites LIST]
#                  [--parts LIST] [--per-kind N] [--per-task N] [--state FOLDER]
# --draft: the model that looks ahead and reads prompts; the default is the one in the target's
# folder, else the target itself, the best draft there can be. --suites: of quire fidelity, with
# commas: encyclopedia (the default), ruler@4096, ruler@8192 where the target's window holds them.
# --per-kind, --per-task: questions of each kind of the encyclopedia (12) and of each of RULER's
# tasks (2; of ruler@8192 half as many). --parts, with commas, all by default:
#   kv         compressors of KV over capacities, every suite
#   prompt     compressors of prompts over capacities and at half of the prompt, alone and before
#              speckv, every suite
#   lookahead  its length, at the smallest capacity, first suite
#   drafts     the draft, --early (a checkpoint of it from early training) where it is given, and
#              the target itself; first suite
#   reading    what SpecPC's band, look-ahead and layers leave out of the draft's reading, longest
#              suite
#   sparse     sparse prefill of plain prompts, longest suite
#   samkv      speckv and snapkv over what samkv_words chose of 16 cached chunks
# Rows drop what does not fit the capacity (drop_mode=drop), so that nothing but it is attended to
# after the first token. --state keeps finished rows: the same command goes on after an
# interruption; with all three suites it takes about 20 minutes on two cores.
# Prints {"settings", "rows"}; writes bench/results/draft-SUITE-capacity.svg and
# draft-SUITE-prompts.svg, and draft-lookahead.svg.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
model="$ROOT/models/demo"; draft=; early=; suites=encyclopedia; per_kind=12; per_task=2; state=
parts=kv,prompt,lookahead,drafts,reading,sparse,samkv
kv_capacities="64 128 256 512 1024"; prompt_capacities="256 512 1024"
lookaheads="0 1 2 4 8 12 16 64"; hot_rows="216 432"
while [ $# -gt 0 ]; do
  case "$1" in
    --quick)
      per_kind=2; per_task=1
      kv_capacities="64 128"; prompt_capacities="256"; lookaheads="0 16" ;;
    --draft) draft="${2:?--draft needs a folder}"; shift ;;
    --early) early="${2:?--early needs a folder}"; shift ;;
    --model) model="${2:?--model needs a folder}"; shift ;;
    --suite|--suites) suites="${2:?--suites needs names}"; shift ;;
    --parts) parts="${2:?--parts needs names}"; shift ;;
    --per-kind) per_kind="${2:?--per-kind needs a number}"; shift ;;
    --per-task) per_task="${2:?--per-task needs a number}"; shift ;;
    --state) state="$(realpath -m "${2:?--state needs a folder}")"; shift ;;
    *) echo "error: unknown option '$1'" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$draft" ] || { draft="$model/draft"; [ -d "$draft" ] || draft="$model"; }
for folder in "$model" "$draft" ${early:+"$early"}; do
  [ -s "$folder/model.safetensors" ] ||
    { echo "error: no model folder at $folder" >&2; exit 1; }
done
cd "$ROOT"; cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
# Rows are of these weights: others have a folder of their own.
weights="$(cat "$model/model.safetensors" "$draft/model.safetensors" | sha256sum | head -c 8)"
state="${state:-$work/state}/$weights"; mkdir -p "$state" bench/results
wants() { [[ ",$parts," == *",$1,"* ]]; }
IFS=, read -ra suite_list <<<"$suites"
longest="${suite_list[-1]}"; smallest="${kv_capacities%% *}"

specs=
add() { specs+=",recompute:$1"; }
# What is asked: PART DRAFT SUITE, of the strategies in specs.
measure() {
  local part="$1" with="$2" suite="$3" tasks="$per_task" file
  file="$state/$part-$(basename "$with")-$(basename "$suite" .jsonl).json"
  [ "$suite" != ruler@8192 ] || tasks=$(((per_task + 1) / 2))
  local limit="$per_kind"; [ -z "${4:-}" ] || limit="$4"
  build/release/quire fidelity --model "$model" --suite "$suite" --limit "$limit" \
    --per-task "$tasks" --source models/demo/encyclopedia.jsonl --chunk-tokens 512 \
    --strategies "recompute$specs" --json "$file" --quiet \
    "--model.draft_path=$with" --model.draft_wait_ms=600000 --model.draft_document_kv=true >&2
  jq --arg part "$part" --arg draft "$(basename "$with")" \
    '{part: $part, draft: $draft, fidelity: .}' "$file" >>"$work/measured.json"
  specs=
}
kv_specs() {
  for c in $kv_capacities; do
    for method in streamingllm h2o snapkv pyramidkv adakv speckv ada_speckv; do
      add "compress=$method,capacity=$c,drop_mode=drop"
    done
  done
}
prompt_specs() {
  local cut
  for c in $prompt_capacities; do
    for method in specpc surprisal; do
      add "prompt_compression=$method,prompt_compression.capacity=$c"
    done
    # The cascade: one reading cuts the prompt and writes the look-ahead.
    cut="prompt_compression=specpc,prompt_compression.capacity=$c"
    add "$cut,compress=speckv,capacity=128,drop_mode=drop"
  done
  for method in specpc surprisal; do
    add "prompt_compression=$method,prompt_compression.keep_ratio=0.5"
  done
}
for suite in "${suite_list[@]}"; do
  if wants kv; then kv_specs; measure kv "$draft" "$suite"; fi
  if wants prompt; then prompt_specs; measure prompt "$draft" "$suite"; fi
done
if wants lookahead; then
  for n in $lookaheads; do
    for method in speckv ada_speckv; do
      add "compress=$method,capacity=$smallest,drop_mode=drop,lookahead=$n"
    done
  done
  measure lookahead "$draft" "${suite_list[0]}"
fi
if wants drafts; then
  for with in "$draft" ${early:+"$early"} "$model"; do
    for c in "$smallest" 128; do add "compress=speckv,capacity=$c,drop_mode=drop"; done
    for c in 256 512; do add "prompt_compression=specpc,prompt_compression.capacity=$c"; done
    measure drafts "$with" "${suite_list[0]}"
  done
fi
if wants reading; then
  specpc=prompt_compression=specpc,prompt_compression.capacity=1024
  for setting in band=0 band=64 band=128 band=256 band=512 band=0,lookahead=1 \
    lookahead=1,layers=3,skip_layers=2; do
    add "$specpc,prompt_compression.${setting//,/,prompt_compression.}"
  done
  measure reading "$draft" "$longest"
fi
if wants sparse; then
  for keys in 256 512 1024 2048; do
    band="prefill=sparse,prefill_band=$keys,prefill_columns=$keys"
    add "compress=speckv,$band,lookahead=0,capacity=1000000"
  done
  measure sparse "$draft" "$longest"
fi
if wants samkv; then
  # The chunks of multi_context.sh.
  suite="$state/chunks.jsonl"
  if [ ! -s "$suite" ]; then
    for kind in single continuation alias two_hop comparison needle; do
      python3 models/generate.py --seed 77 --documents 16 --document-tokens 300:500 \
        --kinds "$kind" --questions "$per_kind" --per-world 5 --split test \
        --out "$work/part.jsonl" >&2
      cat "$work/part.jsonl"
    done >"$suite.part"
    mv "$suite.part" "$suite"
  fi
  # Anchors come on top of keep_ratio: 0.15 stays below 0.16 of the documents.
  specs=",reuse,samkv_words,samkv_words:keep_ratio=0.15"
  for rows in $hot_rows; do
    for method in snapkv speckv speckv,kernel=15; do
      specs+=",samkv_words:keep_ratio=0.15,compress=$method,capacity=$rows,drop_mode=drop"
    done
  done
  measure samkv "$draft" "$suite" 0
fi

kv_bytes="$(jq '.num_hidden_layers * .num_key_value_heads * .head_dim * 2 * 2' \
  "$model/config.json")"
jq -s --argjson kv_bytes "$kv_bytes" --arg draft "${draft#"$ROOT/"}" \
  --arg model "${model#"$ROOT/"}" --argjson per_kind "$per_kind" --argjson per_task "$per_task" '
  def setting($name): (capture("[:,]" + $name + "=(?<v>[^,]+)").v) // null;
  def count($name): setting($name) | if . then tonumber else null end;
  {settings: {suites: ([.[].fidelity.suite.name] | unique), per_kind: $per_kind,
              per_task: $per_task, draft: $draft, model: $model, kv_bytes_per_token: $kv_bytes},
   rows: [.[] | . as $m | .fidelity | . as $f
          # reuse loads the documents once and whole.
          | ([.rows[] | select(.strategy == "reuse" and .task == "all")
              | .bytes_loaded.value / $kv_bytes] | first // null) as $document_tokens
          | range(.rows | length) as $i | .rows[$i] as $row | .details[$i] as $d
          | {part: $m.part, suite: $f.suite.name, draft: $m.draft, strategy: $row.strategy,
             method: ($row.strategy | setting("compress") // "dense"),
             capacity: ($row.strategy | count("capacity")),
             lookahead: ($row.strategy | count("lookahead")),
             prompt_method: ($row.strategy | setting("prompt_compression") // "none"),
             prompt_capacity: ($row.strategy | count("prompt_compression\\.capacity")),
             prompt_share: ($row.strategy | count("prompt_compression\\.keep_ratio")),
             band: ($row.strategy | count("prompt_compression\\.band") // count("prefill_band")),
             task: $row.task, n: $row.n,
             em: $row.em.value, em_low: $row.em.low, em_high: $row.em.high, kl: $row.kl.value,
             agreement: $row.agreement.value, sequence_ratio: $row.sequence_ratio.value,
             ttft_ms: $row.ttft_ms.value, decode_ms: $d.decode_ms.value}
          | . + {kv_bytes_most: ([.capacity, .prompt_capacity] | map(select(. != null)) | min
                                 | if . then . * $kv_bytes else null end)}
          | . + (if $document_tokens and .capacity
                 then {hot_kv: (.capacity / $document_tokens)} else {} end)]}' \
  "$work/measured.json" >"$work/rows.json"
plot() { python3 bench/line_plot.py "$work/rows.json" --y em --where task=all "$@" >&2; }
for suite in "${suite_list[@]}"; do
  name="$(jq -r '.settings.suites[]' "$work/rows.json" | grep -F "${suite##*/}" | head -1 || true)"
  name="${name:-$suite}"
  ! wants kv || plot --x capacity --series method --where part=kv --where "suite=$name" \
    --title "$name: exact match against KV rows a head" \
    --out "bench/results/draft-${suite/@/-}-capacity.svg"
  ! wants prompt || plot --x prompt_capacity --series prompt_method,method --where part=prompt \
    --where "suite=$name" --title "$name: exact match against tokens of the prompt" \
    --out "bench/results/draft-${suite/@/-}-prompts.svg"
done
! wants lookahead || plot --x lookahead --series method --where part=lookahead \
  --title "Exact match against tokens of look-ahead, $smallest rows a head" \
  --out bench/results/draft-lookahead.svg
cat "$work/rows.json"
