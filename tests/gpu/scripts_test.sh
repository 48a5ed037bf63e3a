#!/usr/bin/env bash
# tests/gpu/all without a GPU, and with tools that stand in for a GPU's and of which each call in
# turn fails or hangs: something useful is always left, and exit statuses are the documented ones.
#   scripts_test.sh [all | list]
# list: the suites name every test of the kernels and of the engine on a device.
set -uo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)"
failed=
fail() { echo "$*"; failed=1; }

if [ "${1:-all}" = list ]; then
  lists="$(sed -n '/^foreach(name/,/)/p' "$ROOT/tests/gpu/CMakeLists.txt" | tr -s ' ()\n' '\n')"
  for file in "$ROOT"/tests/unit/kernels/cuda/*_parity_test.cc \
    "$ROOT"/tests/unit/engine/device/*_test.cc "$ROOT"/tests/scenario/device/*_test.cc; do
    name="$(basename "$file" _test.cc)"
    [ "$name" != device_blocks ] || continue  # tests/gpu/CMakeLists.txt says why
    name="${name%_parity}"
    grep -qx "${name#device_}" <<<"$lists" || fail "$file is not in tests/gpu/CMakeLists.txt"
  done
  [ -z "$failed" ]
  exit
fi

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
# What every stand-in does first: it counts its calls, and fails or hangs when its turn has come.
cat >"$work/call.sh" <<'CALL'
call="$(flock "$WORK/calls" bash -c 'n=$(($(cat "$0") + 1)); echo $n >"$0"; echo $n' "$WORK/calls")"
if [ "$call" = "$FAIL_AT" ]; then
  echo "$(basename "$0") fails" >&2
  [ "$FAIL_HOW" != hang ] || { trap '' TERM; sleep 1000; }
  exit 9
fi
CALL
tool() {  # tool NAME: a stand-in with the text of stdin
  { echo '#!/usr/bin/env bash'; echo 'source "$WORK/call.sh"'; cat; } >"$work/bin/$1"
  chmod +x "$work/bin/$1"
}
tool nvidia-smi <<'TOOL'
case "$*" in
  -L) echo "GPU 0: a device";;
  *compute_cap*) echo 9.0;;
  *) echo "a device, 1.2";;
esac
TOOL
tool ninja </dev/null
tool nvcc </dev/null
tool ncu <<'TOOL'
while [ "$1" != --log-file ]; do shift; done
echo "profile" >"$2"
TOOL
tool compute-sanitizer </dev/null
tool python3 <<'TOOL'
case "$*" in
  *peer.py*)
    echo '{"section": "peers", "peer": "torch", "missing": "torch"}' >>"$OUT/bench.jsonl"
    exit 77;;
esac
TOOL
tool cmake <<'TOOL'
echo "cmake $*"
build=; targets=; mode=configure
while [ $# -gt 0 ]; do
  case "$1" in
    -B) build="$2"; shift;;
    --build) mode=build; build="$2"; shift;;
    --target) shift; while [ $# -gt 0 ] && [ "$1" != -- ]; do targets+=" $1"; shift; done;;
  esac
  shift
done
[ $mode = build ] || { touch "$build/CMakeCache.txt" "$build/build.ninja"; exit 0; }
for target in $targets; do cp "$WORK/program" "$build/$target"; done
TOOL
cat >"$work/program" <<'TOOL'
#!/usr/bin/env bash
source "$WORK/call.sh"
case "$(basename "$0")" in
  *suite)
    echo '{"name": "A.Test", "run": "plain", "status": "passed"}' >>"$OUT/tests.jsonl";;
  *bench)
    echo '{"section": "s", "name": "row", "shape": "x", "median_us": 1}' >>"$OUT/bench.jsonl";;
esac
TOOL
chmod +x "$work/program"
export WORK="$work" FAIL_AT=0 FAIL_HOW=fail QUIRE_GPU_BUILD="$work/build" OUT="$work/out"
run_all() {  # run_all COMMAND-PREFIX...: a fresh run of tests/gpu/all; sets status
  rm -rf "$work/build" "$work/out"
  echo 0 >"$work/calls"
  PATH="$work/bin:/usr/bin:/bin" "$@" "$ROOT/tests/gpu/all" >"$work/printed" 2>&1
  status=$?
}
json() {  # json FILE: every line is a JSON value, or the whole is one
  /usr/bin/env python3 - "$1" <<'PYTHON'
import json, sys
text = open(sys.argv[1]).read()
try:
    json.loads(text)
except ValueError:
    [json.loads(line) for line in text.splitlines()]
PYTHON
}
checked() {  # checked WHAT: what is left is sound
  local file
  [ "$(find "$work/out" -type f 2>/dev/null | wc -l)" -le 8 ] || fail "$1: more than eight files"
  for file in run.json tests.jsonl bench.jsonl; do
    [ ! -e "$work/out/$file" ] || json "$work/out/$file" || fail "$1: $file is broken"
  done
}

run_all env
[ $status = 0 ] || { fail "all succeeded but the status is $status"; cat "$work/printed"; }
for file in probe.txt build.log tests.jsonl bench.jsonl run.json ncu.txt log.txt; do
  [ -s "$work/out/$file" ] || fail "$file is missing"
done
for part in probe configure 'build kernels' 'kernel tests' 'kernel bench' 'build engine' \
  'engine tests' 'prefill and decode' ncu questions peers 'sanitizer memcheck'; do
  grep -q "\"part\": \"$part\", \"status\": \(0\|77\)" "$work/out/run.json" || fail "no part $part"
done
grep -q 'tests, plain: .*passed' "$work/printed" || fail "no summary"
checked "a good run"
calls="$(cat "$work/calls")"

export QUIRE_GPU_SECONDS=40
for ((FAIL_AT = 1; FAIL_AT <= calls; ++FAIL_AT)); do
  run_all env
  what="call $FAIL_AT fails"
  grep -q ' fails' "$work/printed" "$work/out"/* 2>/dev/null ||
    [ $status = 77 ] || [ $status = 0 ] || fail "$what: nothing says so"
  checked "$what"
  case $status in
    77) [ "$FAIL_AT" = 1 ] || fail "$what: status 77"; continue;;
    0|1|2) ;;
    *) fail "$what: status $status";;
  esac
  [ -s "$work/out/probe.txt" ] || fail "$what: no probe"
  [ "$(grep -c '"part"' "$work/out/run.json")" -ge 5 ] || fail "$what: few parts"
  [ $status = 2 ] || [ -s "$work/out/tests.jsonl" ] || fail "$what: no test"
  grep -q 'summary' "$work/printed" || fail "$what: no summary"
done

# A call that hangs takes its part alone, or the time of all.
export QUIRE_GPU_SECONDS=4
for ((FAIL_AT = 2; FAIL_AT <= calls; FAIL_AT += 9)); do
  FAIL_HOW=hang run_all timeout -s KILL 60
  what="call $FAIL_AT hangs"
  case $status in
    0|1|2) ;;
    *) fail "$what: status $status";;
  esac
  checked "$what"
  [ -s "$work/out/run.json" ] || fail "$what: nothing was written down"
done

# Whenever it is killed, what was known is there.
export QUIRE_GPU_SECONDS=60
FAIL_AT=0
for seconds in 0.4 0.8 1.5; do
  run_all timeout -s KILL "$seconds"
  checked "killed after $seconds s"
done
# Told to end once it has written something, it still sums up.
rm -rf "$work/build" "$work/out"
echo 0 >"$work/calls"
PATH="$work/bin:/usr/bin:/bin" "$ROOT/tests/gpu/all" >"$work/printed" 2>&1 &
all=$!
while [ ! -s "$work/out/run.json" ] && kill -0 "$all" 2>/dev/null; do sleep 0.05; done
kill -TERM "$all" 2>/dev/null
wait "$all"
status=$?
[ $status = 1 ] || [ $status = 0 ] || fail "ended early: status $status"
grep -q 'summary' "$work/printed" || fail "ended early: no summary"

# Without a GPU, and with wrong options.
tool nvidia-smi <<<'echo "No devices were found"; exit 6'
run_all env
[ $status = 77 ] || fail "no GPU: status $status"
"$ROOT/tests/gpu/all" --no-such 2>/dev/null
[ $? = 2 ] || fail "an unknown option"
PATH="$work/bin:/usr/bin:/bin" "$ROOT/tests/gpu/all" --dry-run >"$work/printed" 2>&1 ||
  fail "a dry run"
grep -q 'engine tests: at most' "$work/printed" || fail "a dry run says nothing"
[ -z "$failed" ]
