#!/usr/bin/env bash
# Checks the order of folders in floors.txt: includes point only to earlier lines, every folder has
# a line, and no folder holds more than 30 sources and headers.
#   check_floors.sh <repository root> [floors.txt]
set -uo pipefail
floors="${2:-$(dirname "$(realpath "${BASH_SOURCE[0]}")")/floors.txt}"
cd "$1" || exit 2
most=30
{
  sed -n 's/^\([a-z][^ ]*\)$/floor \1/p' "$floors"
  folders=""
  for top in readers kernels cachestore engine ingest fidelity server base; do
    [ -d "$top" ] && folders+=" $top"
  done
  # shellcheck disable=SC2086
  find $folders -name '*.h' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' |
    sort | sed 's/^/file /'
  # shellcheck disable=SC2086
  grep -rHE '^#include "(readers|kernels|cachestore|engine|ingest|fidelity|server)/' $folders \
    --include='*.h' --include='*.cc' --include='*.cu' --include='*.cuh' |
    sed -E 's/^([^:]*):#include "([^"]*)".*/include \1 \2/'
} | awk -v most="$most" '
  function folder(path) { sub(/\/[^\/]*$/, "", path); return path }
  function complain(what) { print "floors: " what; bad++ }
  $1 == "floor" { rank[$2] = ++floors }
  $1 == "file" { f = folder($2); if (!(f in count)) order[++folders] = f; count[f]++ }
  # The CPU and the reference version of a family of kernels belong to the room of its headers.
  function room(path) {
    path = folder(path)
    if (path ~ /^kernels\/[a-z]+\//) sub(/\/(cpu|reference)$/, "", path)
    return path
  }
  function top(path) { sub(/\/.*$/, "", path); return path }
  $1 == "include" {
    from = room($2); to = room($3)
    if (from != to && top(from) == top(to) && (from in rank) && (to in rank) &&
        rank[to] >= rank[from])
      complain($2 " includes \"" $3 "\", but " to " stands above " from \
               " in tests/support/floors.txt")
  }
  END {
    for (i = 1; i <= folders; i++) {
      f = order[i]
      if (f != "base" && !(room(f "/") in rank))
        complain(f " has no line in tests/support/floors.txt")
      if (count[f] > most)
        complain(f " holds " count[f] " sources and headers; " most " is the most: open a folder")
    }
    exit bad > 0
  }'
