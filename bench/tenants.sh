#!/usr/bin/env bash
# Whether one tenant can tell from times or counters what another one has stored or asked.
#   bench/tenants.sh [--quick] [--quire FILE] [--pairs N] [--words N] [--seed N]
# In each pair, team-a stores or asks a text; then team-b, or team-a itself as a control, sends this
# text and one that nobody has, in random order. A permutation test compares the pairs. Fails if
# team-b can tell them apart (p < 0.01), if team-a cannot, or if team-b gets a cached token.
# Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
quire=; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) more+=(--pairs 30) ;;
    --quire) quire="$(realpath "${2:?--quire needs a program}")"; shift ;;
    --pairs|--words|--seed) more+=("$1" "${2:?$1 needs a number}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$quire" ]; then
  cmake --preset release -S "$ROOT" >/dev/null
  cmake --build "$ROOT/build/release" --target quire >&2
  quire="$ROOT/build/release/quire"
fi
python3 "$ROOT/bench/tenants.py" --binary "$quire" --model "$ROOT/models/demo" \
  ${more[@]+"${more[@]}"}
