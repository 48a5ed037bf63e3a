#!/usr/bin/env bash
# How well `quire plan-capacity` predicts what replicas do: before each run, rates are measured on
# some documents, then questions over others are asked at 1, 2 or 4 replicas of this machine.
#   bench/capacity.sh [--quick] [--quire FILE] [--model PATH] [--replicas 1,2,4] [--requests N]
#                     [--documents N] [--words N] [--repeats N] [--seed N] [--state FILE] [--runs N]
# Needs redis-server, whose Redis is the tier that the replicas share. With --state, rates and runs
# that are complete are kept in that file, and a further call goes on; --runs ends a call after so
# many. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
quire=; model="$ROOT/models/demo"; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) more+=(--requests 60 --replicas "1,2" --repeats 1) ;;
    --quire) quire="$(realpath "${2:?--quire needs a program}")"; shift ;;
    --model) model="$(realpath "${2:?--model needs a path}")"; shift ;;
    --replicas|--requests|--documents|--words|--repeats|--seed|--state|--runs)
      more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
command -v redis-server >/dev/null ||
  { echo "error: there is no redis-server; install the package of that name" >&2; exit 1; }
if [ -z "$quire" ]; then
  cmake --preset release -S "$ROOT" >/dev/null
  cmake --build "$ROOT/build/release" --target quire >&2
  quire="$ROOT/build/release/quire"
fi
python3 "$ROOT/bench/capacity.py" --binary "$quire" --model "$model" ${more[@]+"${more[@]}"}
