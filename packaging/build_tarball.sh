#!/usr/bin/env bash
# Packs the service for any Linux with glibc 2.36 or newer: packaging/build_tarball.sh [FOLDER].
# The archive holds the programs, the model that is part of them, and every library beyond glibc
# with its licence, so nothing else needs to be installed. It stands in FOLDER (build/packages)
# afterwards, and its name is printed last. Needs what scripts/demo.sh installs.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
case "${1:-}" in -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 0 ;; esac
out="$(realpath -m "${1:-$ROOT/build/packages}")"
command -v patchelf >/dev/null || install_packages patchelf >&2
cd "$ROOT"
cmake -S . -B build/package -G Ninja -DCMAKE_BUILD_TYPE=Release -DQUIRE_PACKAGE=ON \
  -DQUIRE_TESTS=OFF -DQUIRE_BENCH=OFF >/dev/null
cmake --build build/package >&2
version="$(sed -n 's/^CMAKE_PROJECT_VERSION:STATIC=//p' build/package/CMakeCache.txt)"
name="quire-$version-linux-$(uname -m)"
work="$(mktemp -d)"; trap 'rm -rf "$work"' EXIT
tree="$work/$name"
mkdir -p "$tree"/{bin,lib,libexec/quire,etc,share/man/man1,share/bash-completion/completions} \
  "$tree/share/doc/quire/licenses" "$out"
cp build/package/quire "$tree/bin/"
cp build/package/quire-reader "$tree/libexec/quire/"
cp build/package/packaging/quire.1 "$tree/share/man/man1/"
cp build/package/packaging/quire "$tree/share/bash-completion/completions/"
cp configs/quire.toml configs/quire.service "$tree/etc/"
cp README.md LICENSE THIRD_PARTY_NOTICES.md CHANGELOG.md "$tree/"

# The host's glibc stays: it belongs to the host's kernel, names and locales.
glibc='^(linux-vdso|ld-linux.*|libc|libm|libdl|librt|libpthread|libresolv|libutil|libmvec)\.so'
for program in "$tree/bin/quire" "$tree/libexec/quire/quire-reader"; do
  ldd "$program" | awk '/not found/ {print; bad = 1} END {exit bad}' >&2 ||
    fail "$program lacks a library"
  ldd "$program" | awk '$2 == "=>" {print $1, $3}'
done | sort -u | while read -r soname path; do
  [[ "$soname" =~ $glibc ]] && continue
  cp -L "$path" "$tree/lib/$soname"
  chmod 644 "$tree/lib/$soname"
  package="$(dpkg-query -S "$path" 2>/dev/null || dpkg-query -S "$(realpath "$path")" 2>/dev/null ||
    dpkg-query -S "/usr$path")" || fail "no package owns $path, so its licence is not known"
  package="${package%%:*}"
  cp -L "/usr/share/doc/$package/copyright" "$tree/share/doc/quire/licenses/$package"
done
strip --strip-unneeded "$tree"/bin/quire "$tree"/libexec/quire/quire-reader "$tree"/lib/*
patchelf --set-rpath '$ORIGIN/../lib' "$tree/bin/quire"
patchelf --set-rpath '$ORIGIN/../../lib' "$tree/libexec/quire/quire-reader"
for library in "$tree"/lib/*; do patchelf --set-rpath '$ORIGIN' "$library"; done

# Equal trees give equal archives: names in order, no owner, the time of the commit.
time="$(git log -1 --format=%ct 2>/dev/null || date +%s)"
tar -C "$work" --sort=name --owner=0 --group=0 --numeric-owner --mtime="@$time" -cf - "$name" |
  xz -6 -T0 >"$out/$name.tar.xz"
echo "$out/$name.tar.xz"
