#!/bin/sh
# Tries an installed service in a bare system: try_service.sh USER COMMAND [ARGUMENT...], where
# COMMAND is `quire` or its path, and the arguments are those of `quire serve`. Checks that it runs
# as USER, that the page opens, that files are stored, asked about and found again after a restart.
# Needs curl. Run by test_deb.sh and test_tarball.sh.
set -eu
user="$1"; group="$(id -gn "$1")"; quire="$2"; shift 2
start() {
  setpriv --reuid="$user" --regid="$group" --clear-groups --no-new-privs \
    env QUIRE_DISK__PATH=/var/lib/quire/data "$quire" serve "$@" >>/tmp/log 2>&1 & service=$!
  for _ in $(seq 300); do
    curl -sf -o /dev/null http://127.0.0.1:8080/readyz && return
    kill -0 "$service" || { cat /tmp/log; exit 1; }
    sleep 0.1
  done
  cat /tmp/log
  exit 1
}
stop() { kill "$service"; wait "$service"; }
install -d -o "$user" -g "$group" -m 700 /var/lib/quire
start "$@"
curl -sf http://127.0.0.1:8080/ | grep -q "<title>"
mkdir -p /tmp/files
echo "The bridge of Alba was built by Ann Lee." >/tmp/files/bridge.txt
echo "<html><h1>Towers</h1><p>The tower of Varo is red.</p></html>" >/tmp/files/tower.html
"$quire" ingest /tmp/files
"$quire" query "Who built the bridge of Alba?"
stop
start "$@"
"$quire" documents list | grep -q bridge.txt
"$quire" documents list | grep -q tower.html
stop
