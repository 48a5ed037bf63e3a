#!/usr/bin/env bash
# Three services over PostgreSQL, a six-node Redis cluster and S3, with faults: what clients find
# afterwards.
#   bench/cluster.sh [--quick] [--rounds N] [--first N] [--seed N] [--seconds S] [--keep FOLDER]
#                    [--faults TEXT,TEXT...]
# See tests/cluster/cluster_rounds.py. Fails at the first document that is lost, wrong or not alike
# at all services, answer that differs, job that does not end, or repeated request that does not get
# its first reply. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
rounds=200; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) rounds=10 ;;
    --rounds) rounds="${2:?--rounds needs a number}"; shift ;;
    --first|--seed|--seconds|--keep|--faults) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
cmake --preset release -S "$ROOT" >/dev/null
cmake --build "$ROOT/build/release" --target quire >&2
python3 "$ROOT/tests/cluster/cluster_rounds.py" --binary "$ROOT/build/release/quire" \
  --model "$ROOT/models/demo" --s3 "$ROOT/build/s3-server/bin/moto_server" --rounds "$rounds" \
  --json ${more[@]+"${more[@]}"}
