#!/usr/bin/env bash
# The test programs of tests/gpu: framework_test.sh PROGRAM. Checks what the program prints, writes
# down and returns.
set -uo pipefail
program="$1"; out="$(mktemp -d)"; failed=
trap 'rm -rf "$out"' EXIT
unset OUT
expect() {  # expect TEXT-IN-FILE FILE: an extended regular expression on one line
  grep -Eq -- "$1" "$2" || { echo "missing in $2: $1"; failed=1; }
}
reject() { ! grep -Eq -- "$1" "$2" || { echo "unexpected in $2: $1"; failed=1; }; }
status() { [ "$1" = "$2" ] || { echo "exit status $1, expected $2: $3"; failed=1; }; }

# A sanitizer that finds nothing, but says that it ran.
cat >"$out/sanitizer" <<'SANITIZER'
#!/usr/bin/env bash
echo "sanitizer $*"
while [ "$1" != --one ]; do program="$1"; shift; done
exec "$program" "$@"
SANITIZER
chmod +x "$out/sanitizer"

"$program" --out "$out" --limit 2 --jobs 4 --again --again-limit 2 --last Passes \
  --sanitizer "$out/sanitizer" >"$out/printed" 2>&1
status $? 1 "some failed"
lines="$out/tests.jsonl"
expect '4 of 10 tests passed, 1 of them skipped' "$out/printed"
expect 'failed: Framework.EveryCheckFails' "$out/printed"
reject 'failed: Framework.Passes' "$out/printed"
expect '"name": "Framework.Passes", "run": "plain", "status": "passed", "seconds": 0' "$lines"
expect '"name": "Framework.EveryCheckFails", "run": "plain", "status": "failed"' "$lines"
expect '1 == 2 does not hold: 1 against 2 shown' "$lines"
expect '9 failures before this one' "$lines"
expect 'does not hold: .0. is 1 against 2; 1 of 1 differ' "$lines"
reject 'an assertion goes on|not shown' "$lines"
expect '"name": "Framework.SaysHowFarValuesLie", "run": "plain", "status": "failed"' "$lines"
expect '"first_bad_index": 2, "max_absolute_error": 1, "max_relative_error": 0.33' "$lines"
expect '"nans": 1, "output".*far: .2. is 4, expected 3; 2 of 4 are too far' "$lines"
expect '"name": "Framework.IsSkipped".*"status": "passed".*"skipped": 1' "$lines"
expect '"name": "Ends.ByASignal", "run": "plain", "status": "signal 6".*said before' "$lines"
expect '"name": "Ends.WithAStatus", "run": "plain", "status": "exit 5".*device is gone' "$lines"
expect '"name": "Ends.Never", "run": "plain", "status": "timeout"' "$lines"
expect '"name": "Ends.WellWhenLaunchesBlock", "run": "plain", "status": "failed"' "$lines"
expect '"name": "Ends.WellWhenLaunchesBlock", "run": "blocking", "status": "passed"' "$lines"
expect '"name": "Ends.ByASignal", "run": "memcheck", "status": "signal 6".*sanitizer --tool mem' \
  "$lines"
reject '"name": "Framework.Passes", "run": "memcheck"' "$lines"
python3 -c 'import json, sys; [json.loads(line) for line in open(sys.argv[1])]' "$lines" ||
  { echo "a line is no JSON"; failed=1; }

"$program" --out "$out/none" Passes >"$out/printed" 2>&1
status $? 0 "a file that cannot be written fails no test"
expect 'cannot be written' "$out/printed"
"$program" No.Such >/dev/null; status $? 3 "no test has such a name"
"$program" --no-such 2>/dev/null; status $? 2 "an unknown option"
"$program" --one Framework.Passes >/dev/null; status $? 0 "one test"
"$program" --one Framework.EveryCheckFails >/dev/null; status $? 1 "one test that fails"
rm "$lines"
"$program" --out "$out" --check racecheck --sanitizer "$out/sanitizer" GoesOn >/dev/null
status $? 0 "under a tool"
expect '"run": "racecheck", "status": "passed"' "$lines"
rm "$lines"
"$program" --out "$out" --seconds 0 Framework >/dev/null
status $? 1 "no time"
expect '"name": "Framework.Passes", "run": "plain", "status": "not begun"' "$lines"
"$program" --list Ends >"$out/printed"
status "$(wc -l <"$out/printed")" 4 "names"
[ -z "$failed" ]
