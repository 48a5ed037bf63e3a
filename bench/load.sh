#!/usr/bin/env bash
# The service under load, with the embedded model: capacity, half load, 200 streams, more than it
# can do, and 2,000 clients that misbehave.
#   bench/load.sh [--quick]
# Goals: no error, RSS flat within 5 %, nobody starves; past capacity 503 with Retry-After, and p99
# between tokens, as the service hands them out, at most twice that at half load. The long form
# takes about 16 minutes, ten of them 200 streams; --quick about one.
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
QUIRE="${QUIRE:-$ROOT/build/release/quire}"
fail() { echo "error: $*" >&2; exit 1; }
[ -x "$QUIRE" ] ||
  fail "$QUIRE is missing; build the release preset first, or name another with QUIRE"
cmake --preset release -S "$ROOT" >/dev/null &&
  cmake --build "$ROOT/build/release" --target quire_load_generator >&2
ulimit -n "$(ulimit -Hn)" 2>/dev/null || true
[ "$(ulimit -n)" -ge 4096 ] ||
  fail "this benchmark opens thousands of sockets; raise 'ulimit -n' to 4096 or more"
data="$(mktemp -d)"
server=
stop() {
  [ -z "$server" ] || { kill -TERM $server 2>/dev/null; wait $server 2>/dev/null || true; }
  rm -rf "$data"
}
trap stop EXIT
# Small budgets, so that caches are full, and resident memory settled, long before ten minutes are
# over.
"$QUIRE" serve --server.port=0 --model.working_cache_bytes=268435456 --disk.path="$data/store" \
  --log.level=info --cache.dram_bytes=268435456 --policy.evidence=false >"$data/log" 2>&1 &
server=$!
for _ in $(seq 1 300); do
  grep -q '"ready"' "$data/log" && break
  kill -0 $server 2>/dev/null || { cat "$data/log" >&2; exit 1; }
  sleep 0.1
done
port="$(sed -n 's/.*"msg":"listening".*"port":\([0-9]*\).*/\1/p' "$data/log")"
"$ROOT/build/release/bench/quire_load_generator" --port "$port" --pid "$server" \
  --corpus "$ROOT/models/demo/sample/corpus.jsonl" "$@"
