#!/usr/bin/env bash
# Installs what is missing, builds everything and runs all tests.
#   scripts/test.sh [--preset release|debug|asan|tsan] [ctest options, e.g. -R store]
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release
if [ "${1:-}" = --preset ]; then preset="${2:?--preset needs a name}"; shift 2; fi
case "${1:-}" in
  -h|--help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0"; exit 0;;
esac

# For the tests `browser` and `configs`; the product needs none of them.
install_packages chromium chromium-driver nginx-light
make_python_environment
make_s3_server
make_envoy
make_api_tools
fetch_real_models
configure_and_build "$preset"
say "Running the tests (passed ones of less than a second are not shown)"
cd "$ROOT"
ctest --preset "$preset" -j "$(nproc)" "$@" |
  sed -uE '/^ *(Start +[0-9]+: |[0-9]+\/[0-9]+ Test +#[0-9]+: .* Passed +0\.[0-9]+ sec$)/d'
