#!/usr/bin/env bash
# Makes small trees that break the order of folders, and expects check_floors.sh to say so.
set -uo pipefail
here="$(dirname "$(realpath "${BASH_SOURCE[0]}")")"
tree="$(mktemp -d)"
trap 'rm -rf "$tree"' EXIT
failed=0
expect() {  # expect <pass|fail> <what> <text that the output must hold>
  local out rc=0
  out="$("$here/check_floors.sh" "$tree" "$tree/floors.txt" 2>&1)" || rc=1
  if { [ "$1" = pass ] && [ $rc != 0 ]; } || { [ "$1" = fail ] && [ $rc = 0 ]; } || [[ "$out" != *"$3"* ]]; then
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
[ $failed = 0 ] && echo "floors: the check finds what it should"
exit $failed
