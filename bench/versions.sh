#!/usr/bin/env bash
# Whether a build of quire is slower than an earlier one: both serve side by side with the default
# store, and each request goes to one and then to the other, in random order.
#   bench/versions.sh --before FILE [--after FILE] [--quick] [--model PATH] [--rounds N]
#                     [--starts N] [--words N] [--dram BYTES] [--seed N]
# FILE is a program quire; --after is this tree's release build without it. --dram is small enough
# for questions that read from the disk. Prints {"settings", "rows"}: medians, and their ratio with
# the interval that holds 95 % of resampled rounds.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
before=; after=; model="$ROOT/models/demo"; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) more+=(--rounds 12 --starts 2) ;;
    --before) before="$(realpath "${2:?--before needs a program}")"; shift ;;
    --after) after="$(realpath "${2:?--after needs a program}")"; shift ;;
    --model) model="$(realpath "${2:?--model needs a path}")"; shift ;;
    --rounds|--starts|--words|--dram|--seed) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
[ -n "$before" ] || { echo "error: --before needs the earlier program" >&2; exit 2; }
if [ -z "$after" ]; then
  cmake --preset release -S "$ROOT" >/dev/null
  cmake --build "$ROOT/build/release" --target quire >&2
  after="$ROOT/build/release/quire"
fi
python3 "$ROOT/bench/versions.py" --before "$before" --after "$after" --model "$model" \
  ${more[@]+"${more[@]}"}
