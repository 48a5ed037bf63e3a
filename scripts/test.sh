#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests.
#   scripts/test.sh [--preset release|debug|asan|tsan] [ctest options, e.g. -R store]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release
if [ "${1:-}" = --preset ]; then preset="${2:?--preset needs a name}"; shift 2; fi
if [ "${1:-}" = --help ] || [ "${1:-}" = -h ]; then sed -n '2,3p' "$0" | sed 's/^# \{0,1\}//'; exit 0; fi

install_packages
make_python_environment
fetch_real_model
configure_and_build "$preset"
say "Running the tests"
cd "$ROOT"
ctest --preset "$preset" -j "$(nproc)" "$@"
