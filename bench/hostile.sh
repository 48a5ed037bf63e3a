#!/usr/bin/env bash
# What one request of a hostile client costs, without a key and with one.
#   bench/hostile.sh [--quick] [--quire FILE] [--model FOLDER] [--most-ms N] [--only TEXT]
#                    [--log FILE]
# One request at a time: texts of 60 MB, keys whose hashes are equal, deep and wide JSON, schemas
# and patterns that explode, packs and GGUF files with lying sizes, long headers, chunks of a byte.
# Each goes on sending after a refusal, until the service closes. Fails where a request without a
# key costs more than N ms (100) of one thread, where memory stays (64 MiB above what it was, one
# second later), where there is no reply, or where the service ends.
# --quick sends texts of 6 MB, --only takes the cases whose names have TEXT, --log keeps the
# service's log. Prints {"settings", "rows"}.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
quire=; model="$ROOT/models/demo"; more=()
while [ $# -gt 0 ]; do
  case "$1" in
    --quick) more+=(--text-mb 6) ;;
    --quire) quire="$(realpath "${2:?--quire needs a program}")"; shift ;;
    --model) model="$(realpath "${2:?--model needs a folder}")"; shift ;;
    --most-ms|--only|--log) more+=("$1" "${2:?$1 needs a value}"); shift ;;
    *) echo "error: unknown option $1" >&2; exit 2 ;;
  esac
  shift
done
if [ -z "$quire" ]; then
  cmake --preset release -S "$ROOT" >/dev/null
  cmake --build "$ROOT/build/release" --target quire >&2
  quire="$ROOT/build/release/quire"
fi
python3 "$ROOT/bench/hostile.py" --binary "$quire" --model "$model" ${more[@]+"${more[@]}"}
