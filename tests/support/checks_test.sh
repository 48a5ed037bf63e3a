#!/usr/bin/env bash
# Makes small trees that break the order of folders or have long lines, and expects check_floors.sh
# and check_lines.sh to say so.
set -uo pipefail
here="$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
failed=0
expect() {  # expect <pass|fail> <what> <text that the output must hold> [check]
  local out rc=0
  out="$("$here/${4:-check_floors.sh}" "$tree" "$tree/floors.txt" 2>&1)" || rc=1
  if { [ "$1" = pass ] && [ $rc != 0 ]; } || { [ "$1" = fail ] && [ $rc = 0 ]; } ||
    [[ "$out" != *"$3"* ]]; then
    echo "$2: expected $1 with '$3', got rc $rc: $out"
    failed=1
  fi
}
mkdir -p "$tree"/{base,engine/low,engine/high,server}
printf 'engine/low\nengine/high\nengine\nserver\n' >"$tree/floors.txt"
echo '#include "engine/low/a.h"' >"$tree/engine/high/b.h"
touch "$tree/engine/low/a.h"
expect pass "an ordered tree" ""
echo '#include "engine/high/b.h"' >"$tree/engine/low/a.h"
expect fail "a circle" "engine/high stands above engine/low"
: >"$tree/engine/low/a.h"
for i in $(seq 31); do touch "$tree/engine/high/f$i.h"; done
expect fail "a crowded folder" "engine/high holds 32"
rm "$tree"/engine/high/f*.h
mkdir "$tree/engine/new" && touch "$tree/engine/new/c.h"
expect fail "an unknown folder" "engine/new has no line"

hundred="$(printf 'x %.0s' {1..50})"
printf '%s\n' "$hundred" "${hundred//x/é}" "# https://${hundred// /x}" >"$tree/server/d.h"
printf '%s\n' "$hundred z" >"$tree/server/d.txt"
expect pass "lines of 100 columns" "" check_lines.sh
for file in d.h CMakeLists.txt d.py; do
  printf '%s\n' "$hundred" "$hundred z" >"$tree/server/$file"
  expect fail "a line of 102 columns" "server/$file:2 is longer than 100" check_lines.sh
  rm "$tree/server/$file"
done
printf '%s\n' '#!/usr/bin/env bash' "$hundred z" >"$tree/server/run"
expect fail "a long line of a script" "server/run:2 is longer than 100" check_lines.sh
mkdir "$tree/server/data" && mv "$tree/server/run" "$tree/server/data/d.py"
expect pass "a long line of data" "" check_lines.sh
[ $failed = 0 ] && echo "the checks of structure find what they should"
exit $failed
