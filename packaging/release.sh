#!/usr/bin/env bash
# Makes a release, in two steps:
#   packaging/release.sh prepare VERSION           writes the version into the sources and dates the
#                                                  changelog, for one commit to look at
#   packaging/release.sh build [FOLDER] [MIRROR]   from a clean checkout of that commit: package,
#                                                  archive and SHA256SUMS in FOLDER
#                                                  (build/packages), both tried in a fresh Debian
#                                                  12; names the tag to set
# `build` needs root and debootstrap for the trials. QUIRE_SKIP_TRIALS=1 leaves them out.
source "$(dirname "${BASH_SOURCE[0]}")/../scripts/common.sh"
usage() { sed -n '2,9s/^# \{0,1\}//p' "$0"; exit "$1"; }
cd "$ROOT"
current="$(sed -n 's/^project(quire VERSION \([0-9.]*\) .*/\1/p' CMakeLists.txt)"

prepare() {
  [[ "${1:-}" =~ ^[0-9]+\.[0-9]+\.[0-9]+$ ]] || fail "'${1:-}' is no version; write it like 0.2.0"
  [ "$(printf '%s\n' "$current" "$1" | sort -V | tail -n 1)" = "$1" ] && [ "$1" != "$current" ] ||
    fail "$1 does not come after $current"
  [ -n "$(sed -n '/^## Unreleased$/,/^## [0-9]/{/^- /p}' CHANGELOG.md)" ] ||
    fail "CHANGELOG.md lists nothing under Unreleased"
  sed -i "s/^project(quire VERSION $current /project(quire VERSION $1 /" CMakeLists.txt
  sed -i "s/^__version__ = .*/__version__ = \"$1\"/" clients/python/quire_client/version.py
  sed -i "s/^## Unreleased$/## Unreleased\n\n## $1 - $(date -u +%F)/" CHANGELOG.md
  git --no-pager diff --stat
  say "Look at it, then: git commit -am 'release: $1' && packaging/release.sh build"
}

build() {
  local out="${1:-$ROOT/build/packages}" mirror="${2:-}"
  [ -z "$(git status --porcelain)" ] || fail "the checkout has changes; release what is committed"
  grep -q "^__version__ = \"$current\"$" clients/python/quire_client/version.py ||
    fail "the Python client has another version than $current: run 'prepare'"
  grep -q "^## $current\( \|$\)" CHANGELOG.md ||
    fail "CHANGELOG.md has no section for $current: run 'prepare'"
  git rev-parse -q --verify "refs/tags/v$current" >/dev/null &&
    fail "the tag v$current is there already: run 'prepare' with the next version"
  local package archive
  package="$(packaging/build_deb.sh "$out" | tail -n 1)"
  archive="$(packaging/build_tarball.sh "$out" | tail -n 1)"
  if [ "${QUIRE_SKIP_TRIALS:-0}" = 1 ]; then
    say "Not tried in a fresh system (QUIRE_SKIP_TRIALS)"
  else
    packaging/test_deb.sh "$package" ${mirror:+"$mirror"}
    packaging/test_tarball.sh "$archive" ${mirror:+"$mirror"}
  fi
  (cd "$(dirname "$package")" && sha256sum "${package##*/}" "${archive##*/}" | tee SHA256SUMS)
  say "Then: git tag -a v$current -m 'Quire $current' && git push origin v$current"
}

case "${1:-}" in
  prepare) prepare "${2:-}" ;;
  build) shift; build "$@" ;;
  -h | --help) usage 0 ;;
  *) usage 2 >&2 ;;
esac
