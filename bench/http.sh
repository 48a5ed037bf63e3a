#!/usr/bin/env bash
# Requests per second and latency of the HTTP service on this machine, load generator (wrk)
# included: GET /livez and document reads.
#   bench/http.sh [--quick]      goal: 5,000 requests/s with p99 under 20 ms on 2 cores
set -euo pipefail
ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
seconds=10; [ "${1:-}" = --quick ] && seconds=3
command -v wrk >/dev/null ||
  { echo "error: this benchmark needs wrk (apt-get install wrk)" >&2; exit 1; }
QUIRE="$ROOT/build/release/quire"
[ -x "$QUIRE" ] || { echo "error: $QUIRE is missing; build the release preset first" >&2; exit 1; }
data="$(mktemp -d)"; port=18080
while (exec 3<>"/dev/tcp/127.0.0.1/$port") 2>/dev/null; do port=$((port + 1)); done
url="http://127.0.0.1:$port"
"$QUIRE" serve --server.port="$port" --disk.path="$data/store" --log.level=warning \
  --policy.evidence=false \
  >"$data/log" 2>&1 &
server=$!
trap 'kill -TERM $server 2>/dev/null; wait $server 2>/dev/null || true; rm -rf "$data"' EXIT
for _ in $(seq 1 300); do curl -fsS "$url/readyz" >/dev/null 2>&1 && break; sleep 0.1; done
head -1 "$ROOT/models/demo/sample/corpus.jsonl" |
  curl -fsS -X POST "$url/v1/documents?wait=true" -H 'Content-Type: application/x-ndjson' \
    --data-binary @- >/dev/null
id="$(head -1 "$ROOT/models/demo/sample/corpus.jsonl" | jq -r .id)"

rows=()
measure() {  # name path connections
  local text
  wrk -t1 -c"$3" -d1 "$url$2" >/dev/null
  text="$(wrk -t1 -c"$3" -d"$seconds" --latency "$url$2")"
  rows+=("$(awk -v name="$1" -v connections="$3" '
    function ms(v) { return v ~ /us$/ ? v / 1000 : v ~ /ms$/ ? v + 0 : v * 1000 }
    $1 == "50%" {p50 = ms($2)} $1 == "99%" {p99 = ms($2)} /Requests\/sec/ {rps = $2}
    /Non-2xx/ {bad = $NF} /Socket errors/ {bad = 1}
    END {
      printf "{\"name\": \"%s\", \"connections\": %d, \"requests_per_second\": %.0f, ",
        name, connections, rps
      printf "\"p50_ms\": %.3f, \"p99_ms\": %.3f, \"errors\": %d}", p50, p99, bad
    }' <<<"$text")")
}
for connections in 16 64 256; do
  measure livez /livez "$connections"
  measure document "/v1/documents/$id" "$connections"
done
printf '%s\n' "${rows[@]}" | jq -s --argjson seconds "$seconds" '
  {settings: {seconds: $seconds, generator: "wrk, 1 thread, closed loop, same machine"}, rows: .}'
