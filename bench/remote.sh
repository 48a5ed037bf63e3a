#!/usr/bin/env bash
# How fast contexts come from a Redis cluster, beside what redis-benchmark reads from the same nodes
# in the same run.
#   bench/remote.sh [--quick] [--rounds N]
# Three primaries with a replica each run on this machine, and so does the reader: both share its
# cores. In turns, quire_remote_bench reads contexts of 96 values and checks every byte, and
# redis-benchmark at each primary reads as many values of the same size, and throws them away.
# Prints {"settings", "rows"}: a row per value size with both medians, their spread and the ratio.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
rounds=7
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) rounds=3 ;;
    --rounds) rounds="${2:?--rounds needs a number}"; shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire_remote_bench >&2
exec python3 "$ROOT/bench/remote.py" "$ROOT/build/release/bench/quire_remote_bench" "$rounds"
