#!/usr/bin/env bash
# Checks that code has lines of at most 100 columns: characters, not bytes. Code is C++, CUDA,
# Python, shell and CMake that git tracks, in a copy without its history whatever lies there. Data
# for tests (folders data/) is left out, and so are lines with a word of more than 80 characters,
# such as an address or a digest, that nothing can break.
#   check_lines.sh <repository root>
set -uo pipefail
cd "$1" || exit 2
most=100

files() {
  if [ "$(git rev-parse --show-prefix 2>/dev/null)" = "" ] && git ls-files 2>/dev/null; then
    return
  fi
  find . \( -name '.?*' -o -name build \) -prune -o -type f -printf '%P\n'
}

# Those that are code by their name, and programs of the shell without one.
code() {
  while read -r file; do
    case "/$file" in */data/*) continue ;; esac
    case "${file##*/}" in
      *.cc|*.h|*.cu|*.cuh|*.py|*.sh|*.cmake|CMakeLists.txt) echo "$file" ;;
      *.*) ;;
      *) grep -qsIm 1 '^#!.*sh$' "$file" && echo "$file" ;;
    esac
  done
}

long="$(files | code | tr '\n' '\0' |
  LC_ALL=C.UTF-8 xargs -0 grep -nHsE ".{$((most + 1))}" |
  LC_ALL=C.UTF-8 grep -vE '[^[:space:]]{81}')"
[ -n "$long" ] || exit 0
cut -c 1-160 <<<"$long" | sed 's/^\([^:]*:[0-9]*\):/lines: \1 is longer than '"$most"' columns:/'
exit 1
