#!/usr/bin/env bash
# run.sh <python> <command...>: runs the command, or says that there is no such Python, which ctest
# shows as a skipped test.
if [ ! -x "$1" ]; then echo "skipped: no Python at '$1' (scripts/test.sh makes it)"; exit 0; fi
shift
exec "$@"
