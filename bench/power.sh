#!/usr/bin/env bash
# Power failures under a service that works: what its clients find afterwards.
#   bench/power.sh [--quick] [--rounds N] [--first N] [--seed N] [--die power|kill|fail|misdirect]
#                  [--keep FOLDER] [--replay FOLDER | --sweep [--step N]]
# See tests/power/power_rounds.py. Fails at the first document that is lost or wrong, or answer that
# differs. 300 rounds take about 20 minutes. --replay looks again at one round that --keep stored.
# --sweep fails each call of a script in turn, which takes about 10 minutes. Prints {"settings",
# "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
rounds=; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) rounds=20 ;;
    --rounds) rounds="${2:?--rounds needs a number}"; shift ;;
    --sweep) more+=(--sweep); rounds="${rounds:-1000000}" ;;  # until no call fails
    --first|--step|--seed|--die|--keep|--replay) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire quire_unsynced_layer >&2
python3 "$ROOT/tests/power/power_rounds.py" --binary "$ROOT/build/release/quire" \
  --layer "$ROOT/build/release/tests/power/libquire_unsynced_layer.so" \
  --model "$ROOT/models/demo" --rounds "${rounds:-300}" --json ${more[@]+"${more[@]}"}
