#!/usr/bin/env bash
# Installs the package with its locked dependencies into a clean virtual environment and runs ruff,
# mypy and all tests with coverage against a real service. Needs Python 3.11 or newer and the quire
# program: build/release/quire of this tree, or QUIRE_BINARY.
#   clients/python/test.sh [pytest options, e.g. -k stream]
#   clients/python/test.sh --environment   only makes the environment; exit status 75: the package
#                                          index did not give all
# The environment lies in build/python-client and is made anew when requirements.lock has changed;
# QUIRE_VENV names another place.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
case "${1:-}" in
  -h|--help) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "${BASH_SOURCE[0]##*/}"; exit 0;;
esac

root="$(cd ../.. && pwd)"
python="${PYTHON:-python3}"
venv="${QUIRE_VENV:-$root/build/python-client}"
stamp="$(cat requirements.lock pyproject.toml | sha256sum | cut -d' ' -f1) $("$python" --version)"
if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  # The lock names everything, so nothing is resolved; and what is never imported need not be
  # compiled.
  pip=("$venv/bin/pip" --quiet --disable-pip-version-check --retries 2 --timeout 30)
  "${pip[@]}" install --no-deps --no-compile --requirement requirements.lock || exit 75
  "${pip[@]}" install --no-deps --no-compile --editable . || exit 75
  "${pip[@]}" check
  echo "$stamp" >"$venv/stamp"
fi
if [ "${1:-}" = --environment ]; then exit 0; fi

export QUIRE_BINARY="${QUIRE_BINARY:-$root/build/release/quire}"
if [ ! -x "$QUIRE_BINARY" ]; then
  echo "there is no quire program at $QUIRE_BINARY:" \
    "build it (scripts/test.sh), or set QUIRE_BINARY" >&2
  exit 1
fi
"$venv/bin/ruff" format --check .
"$venv/bin/ruff" check .
"$venv/bin/mypy" .
# Part of the tests cannot reach the bar that all of them must.
coverage=(--cov --cov-report=term-missing)
[ $# -eq 0 ] || coverage+=(--cov-fail-under=0)
exec "$venv/bin/python" -m pytest "${coverage[@]}" "$@"
