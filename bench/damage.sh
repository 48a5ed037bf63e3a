#!/usr/bin/env bash
# Stores whose files are damaged: what clients find afterwards.
#   bench/damage.sh [--quick] [--rounds N] [--first N] [--seed N] [--failures N] [--keep FOLDER]
# See tests/damage/damage_rounds.py. Fails at the first answer or text that is wrong, document that
# is gone without a word, or start that damage outside the record prevents. 1,000 rounds take about
# half an hour. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
rounds=1000; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) rounds=50 ;;
    --rounds) rounds="${2:?--rounds needs a number}"; shift ;;
    --first|--seed|--failures|--keep) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire quire_unsynced_layer >&2
python3 "$ROOT/tests/damage/damage_rounds.py" --binary "$ROOT/build/release/quire" \
  --layer "$ROOT/build/release/tests/power/libquire_unsynced_layer.so" \
  --model "$ROOT/models/demo" --rounds "$rounds" --json ${more[@]+"${more[@]}"}
