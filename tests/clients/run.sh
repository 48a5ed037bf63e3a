#!/usr/bin/env bash
# run.sh <python> [argument...]: runs it, or says what is missing, which ctest shows as a skipped test.
if [ ! -x "$1" ]; then echo "skipped: no Python at '$1' (scripts/test.sh makes it)"; exit 0; fi
exec "$@"
