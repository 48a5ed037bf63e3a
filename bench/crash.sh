#!/usr/bin/env bash
# Crashes of a service that works: killed, without power, on a disk whose calls fail, and on one
# whose writes go astray.
#   bench/crash.sh [--minutes N] [--seed N] [--keep FOLDER]
# See tests/power/power_rounds.py. Each of the four has a quarter of the minutes (10 by default),
# and ends at its first document that is lost or wrong, or answer that differs. Where writes go
# astray, documents may be lost, but not without a word. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
minutes=10; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) minutes=1 ;;
    --minutes) minutes="${2:?--minutes needs a number}"; shift ;;
    --seed|--keep) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire quire_unsynced_layer >&2
each="$(awk -v all="$minutes" 'BEGIN { print all / 4 }')"
for die in kill power fail misdirect; do
  python3 "$ROOT/tests/power/power_rounds.py" --binary "$ROOT/build/release/quire" \
    --layer "$ROOT/build/release/tests/power/libquire_unsynced_layer.so" \
    --model "$ROOT/models/demo" --rounds 1000000 --minutes "$each" --die "$die" --json \
    ${more[@]+"${more[@]}"}
done | jq -s '{settings: .[0].settings, rows: map(.rows[])}'
