# Options and preparation that the benchmarks of SmolLM2-135M-Instruct share; they source this file.
#   --data FOLDER  the questions
#   --work FOLDER  keeps the state, so that the same command goes on after an interruption
#   --quire FILE   a finished program to measure with, in place of a new build
#   --any-build    takes rows of the state that other builds and instruction sets measured; it
#                  stands in `any`, for scripts whose runs are long
# Sets data, work, quire, any and model; the working directory becomes the repository's root.
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
data=; work=; quire=; any=()
model="$ROOT/models/smollm2"

# shared_option OPTION VALUE: the script has no such option of its own.
shared_option() {
  case "$1" in
    --data) data="$(realpath "${2:?--data needs a folder}")" ;;
    --work) work="$(realpath -m "${2:?--work needs a folder}")" ;;
    --quire) quire="$(realpath "${2:?--quire needs a file}")" ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
}

# Once all options are read. Without --data it prints the comment at the script's beginning.
prepare() {
  [ -n "$data" ] || { sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 2; }
  cd "$ROOT"
  if [ -z "$quire" ]; then
    cmake --preset release >/dev/null && cmake --build --preset release --target quire >&2
    quire="$ROOT/build/release/quire"
  fi
  if [ -z "$work" ]; then work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT; fi
  mkdir -p "$work"
}

# calibrate_store [OPTION...]: makes the store in $work with the model's retrieval heads.
calibrate_store() {
  [ -d "$work/store" ] || "$quire" model calibrate -m "$model" --path "$work/store" "$@" >&2
}

# rank_of HALF: 0 for `report`, a set's second question, fourth and so on; 1 for `choose`.
rank_of() {
  case "$1" in
    report) echo 0 ;;
    choose) echo 1 ;;
    *) echo "error: --half is '$1'; use report or choose" >&2; exit 2 ;;
  esac
}

# check_names OPTION LIST NAME...: an error where LIST, separated by commas, has another than these.
check_names() {
  local option="$1" list="$2" name; shift 2
  for name in ${list//,/ }; do
    case " $* " in
      *" $name "*) ;;
      *) echo "error: $option has '$name'; use $(sed 's/ /, /g' <<<"$*")" >&2; exit 2 ;;
    esac
  done
}

# paired STATE NAME...: every strategy's paired differences to those that are named, as a JSON list.
paired() {
  local state="$1" against=() name; shift
  for name in "$@"; do against+=(--against "$name"); done
  python3 bench/paired_differences.py "$state" "${against[@]}" --json
}

# by_order SETTINGS ORDER FILE...: {"settings", "rows", "paired"} of reports of 'quire fidelity',
# each row with its order. SETTINGS is a JSON object. Paired are the rows of each order with `reuse`
# of it, and those of the first order with themselves in the others.
by_order() {
  local settings="$1" first="$2" state="$3.state" pairs; shift
  pairs="$(
    local i
    for ((i = 1; i < $#; i += 2)); do
      local order="${!i}" at=$((i + 1))
      paired "${!at}.state" reuse | jq --arg order "$order" '[.[] + {order: $order}]'
      [ "$order" = "$first" ] ||
        python3 bench/paired_differences.py "$state" --with "${!at}.state" --json |
        jq --arg first "$first" --arg order "$order" '[.[] + {order: $first, other: $order}]'
    done | jq -s add
  )"
  while [ $# -gt 0 ]; do
    jq --arg order "$1" '{order: $order, report: .}' "$2"; shift 2
  done | jq -s --argjson settings "$settings" --argjson paired "$pairs" '{
    paired: $paired,
    settings: (.[0].report | .settings + {model: .model} + $settings),
    rows: [.[] | .order as $order | .report | range(.rows | length) as $i
      | {order: $order} + .rows[$i] + (.details[$i] | del(.strategy, .task))]
  }'
}
