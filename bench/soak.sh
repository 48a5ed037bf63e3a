#!/usr/bin/env bash
# A service in use for hours, by all kinds of traffic at once: whether anything is wrong or grows.
#   bench/soak.sh [--quick] [--minutes N | --hours N] [--looks N] [--seed N] [--model FOLDER]
#                 [--keep FOLDER] [--only KINDS]
# See tests/soak/soak.py. 24 hours by default; --quick is two minutes. Fails where an answer or a
# document is wrong, a request ends as it should not, or memory, files, threads or the store grow.
# Writes a line at each look to standard error. Ctrl-C ends it early, with what was seen.
# Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
minutes=1440; model="$ROOT/models/demo"; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) minutes=2 ;;
    --minutes) minutes="${2:?--minutes needs a number}"; shift ;;
    --hours) minutes="$(awk -v h="${2:?--hours needs a number}" 'BEGIN {print h * 60}')"; shift ;;
    --model) model="$(realpath "${2:?--model needs a folder}")"; shift ;;
    --looks|--seed|--keep|--only) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire >&2
python3 "$ROOT/tests/soak/soak.py" --binary "$ROOT/build/release/quire" --model "$model" \
  --minutes "$minutes" --json ${more[@]+"${more[@]}"}
