# Shared by tests/gpu/run, bench/gpu/run and tests/gpu/all; sourced, not run. Parts of a command,
# each under a limit: one that fails or hangs does not keep the others from running.
# Set before: PARTS_SECONDS, what all of them may take together.
PART_LINES=()
PARTS_FAILED=
PARTS_BEGAN=$SECONDS

# part NAME LIMIT_S COMMAND...: sets PART_STATUS. With DRY_RUN it only says what it would run.
part() {
  local name="$1" limit="$2" began left
  shift 2
  left=$((PARTS_SECONDS - (SECONDS - PARTS_BEGAN)))
  [ "$limit" -le "$left" ] || limit="$left"
  if [ -n "${DRY_RUN:-}" ]; then
    echo "$name: at most $limit s: $*"
    PART_STATUS=0
    PART_LINES+=("{\"part\": \"$name\", \"status\": \"not run\", \"limit_s\": $limit}")
    return
  fi
  began=$SECONDS
  if [ "$limit" -le 0 ]; then
    PART_STATUS=124
    echo "error: $name was not begun: $PARTS_SECONDS s are over" >&2
  else
    timeout --kill-after=10 "$limit" "$@"
    PART_STATUS=$?
    [ $PART_STATUS != 124 ] && [ $PART_STATUS != 137 ] ||
      echo "error: $name took longer than $limit s" >&2
  fi
  local seconds=$((SECONDS - began)) line
  line="{\"part\": \"$name\", \"status\": $PART_STATUS, \"seconds\": $seconds, \"limit_s\": $limit}"
  PART_LINES+=("$line")
}

# A part went wrong.
part_failed() { PARTS_FAILED=1; }

# write_parts FILE: what became of them, and where they ran.
write_parts() {
  local commit device i
  commit="$(source_commit)"
  device="$(nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
    head -n 1 | tr -d '"\\')"
  mkdir -p "$(dirname "$1")"
  {
    printf '{\n  "commit": "%s", "date": "%s", "device": "%s", "failed": %s,\n  "parts": [\n' \
      "$commit" "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$device" \
      "$([ -n "$PARTS_FAILED" ] && echo true || echo false)"
    for ((i = 0; i < ${#PART_LINES[@]}; ++i)); do
      printf '    %s%s\n' "${PART_LINES[$i]}" "$([ $((i + 1)) -lt ${#PART_LINES[@]} ] && echo ,)"
    done
    printf '  ]\n}\n'
  } >"$1" || { echo "error: $1 cannot be written" >&2; PARTS_FAILED=1; }
}

# The commit of the sources, and whether they were changed.
source_commit() {
  local commit
  commit="$(git -C "$ROOT" rev-parse --short HEAD 2>/dev/null || echo unknown)"
  [ -z "$(git -C "$ROOT" status --porcelain -- . ':!bench/results' 2>/dev/null)" ] ||
    commit="$commit-dirty"
  echo "$commit"
}
