#!/usr/bin/env bash
# Builds a Debian package of the service: packaging/build_deb.sh [FOLDER]. It stands in FOLDER
# (build/packages) afterwards, and its name is printed last. Needs what scripts/demo.sh installs.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
case "${1:-}" in -h | --help) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
out="$(realpath -m "${1:-$ROOT/build/packages}")"
command -v dpkg-shlibdeps >/dev/null || install_packages dpkg-dev
cd "$ROOT"
cmake -S . -B build/package -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_PACKAGE=ON \
  -DQUIRE_TESTS=OFF -DQUIRE_BENCH=OFF >/dev/null
cmake --build build/package >&2
mkdir -p "$out"
(cd build/package && cpack -B "$out" >&2)
rm -rf "$out/_CPack_Packages"
ls -t "$out"/*.deb | head -n 1
