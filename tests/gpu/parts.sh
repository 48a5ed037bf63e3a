# Shared by tests/gpu/run, bench/gpu/run and tests/gpu/all; sourced, not run. Parts of a command,
# each under a limit: one that fails or hangs does not keep the others from running.
# Set before: OUT, PARTS_SECONDS, what all of them may take together, PARTS_BEGAN (SECONDS then) and
# PARTS_FILE, which is written again after each part.
PART_LINES=()
PART_PID=
PARTS_FAILED=
PARTS_BEGAN=${PARTS_BEGAN:-$SECONDS}

# Prints the seconds left of all.
left() { echo $((PARTS_SECONDS - (SECONDS - PARTS_BEGAN))); }

# add_part NAME STATUS SECONDS LIMIT: writes down what became of it.
add_part() {
  PART_LINES+=("{\"part\": \"$1\", \"status\": $2, \"seconds\": $3, \"limit_s\": $4}")
  [ -z "${PARTS_FILE:-}" ] || write_parts "$PARTS_FILE"
}

# part NAME LIMIT_S COMMAND...: sets PART_STATUS. Output goes to $OUT/log.txt, of a part that failed
# the end also to stderr. With DRY_RUN it only says what it would run.
part() {
  local name="$1" limit="$2" began rest start
  shift 2
  rest="$(left)"
  [ "$limit" -le "$rest" ] || limit="$rest"
  if [ -n "${DRY_RUN:-}" ]; then
    echo "$name: at most $limit s: $*"
    PART_STATUS=0
    add_part "$name" '"not run"' 0 "$limit"
    return
  fi
  began=$SECONDS
  mkdir -p "$OUT"
  echo "=== $name, at most $limit s: $*" >>"$OUT/log.txt"
  start="$(wc -c <"$OUT/log.txt")"
  if [ "$limit" -le 0 ]; then
    PART_STATUS=124
    echo "$name: not begun: $PARTS_SECONDS s are over" >&2
  else
    # In the background, so that a signal to this shell is answered at once.
    timeout --kill-after=10 "$limit" "$@" >>"$OUT/log.txt" 2>&1 &
    PART_PID=$!
    wait "$PART_PID"
    PART_STATUS=$?
    PART_PID=
    echo "$name: status $PART_STATUS after $((SECONDS - began)) s"
    case $PART_STATUS in
      0|77) ;;
      124|137) echo "error: $name took longer than $limit s" >&2;;
      *) tail -c +"$((start + 1))" "$OUT/log.txt" | tail -n 6 | cut -c 1-200 >&2;;
    esac
  fi
  add_part "$name" "$PART_STATUS" "$((SECONDS - began))" "$limit"
}

# A part went wrong.
part_failed() { PARTS_FAILED=1; }

# write_parts FILE: what became of them, and where they ran. The file is replaced as a whole.
write_parts() {
  local i
  PARTS_COMMIT="${PARTS_COMMIT:-$(source_commit)}"
  PARTS_DEVICE="${PARTS_DEVICE:-$(timeout 10 nvidia-smi --query-gpu=name,driver_version \
    --format=csv,noheader 2>/dev/null | head -n 1 | tr -d '"\\')}"
  mkdir -p "$(dirname "$1")"
  {
    printf '{\n  "commit": "%s", "date": "%s", "device": "%s", "failed": %s,\n  "parts": [\n' \
      "$PARTS_COMMIT" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "${PARTS_DEVICE:-none}" \
      "$([ -n "$PARTS_FAILED" ] && echo true || echo false)"
    for ((i = 0; i < ${#PART_LINES[@]}; ++i)); do
      printf '    %s%s\n' "${PART_LINES[$i]}" "$([ $((i + 1)) -lt ${#PART_LINES[@]} ] && echo ,)"
    done
    printf '  ]\n}\n'
  } >"$1.new" && mv "$1.new" "$1" || {
    echo "error: $1 cannot be written" >&2
    PARTS_FAILED=1
  }
}

# The commit of the sources, and whether they were changed.
source_commit() {
  local commit
  commit="$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  [ -z "$(git -C "$ROOT" status --porcelain -- . ':!bench/results' 2>/dev/null)" ] ||
    commit="$commit-dirty"
  echo "$commit"
}
