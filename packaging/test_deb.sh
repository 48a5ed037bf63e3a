#!/usr/bin/env bash
# Installs a package in a fresh Debian 12 and tries it: packaging/test_deb.sh PACKAGE [MIRROR].
# Needs root and debootstrap. Checks that the service starts as its own user, that the page opens,
# that a document is stored, asked about and found again after a restart, and what purging leaves;
# where systemd-analyze is, that the unit's exposure is under 3.
set -euo pipefail
[ -f "${1:-}" ] || { sed -n '2,5s/^# \{0,1\}//p' "$0"; exit 2; }
package="$(realpath "$1")"
root="$(mktemp -d)"
chmod 755 "$root"  # the service's user reads the new root as well
trap 'umount -q "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
if command -v systemd-analyze >/dev/null; then
  dpkg-deb --fsys-tarfile "$package" | tar -xO ./lib/systemd/system/quire.service \
    >"$root/quire.service"
  systemd-analyze security --offline=true --threshold=29 "$root/quire.service" | tail -n 1
  rm "$root/quire.service"
fi
debootstrap --variant=minbase --include=ca-certificates,curl bookworm "$root" ${2:+"$2"} >&2
mount -t proc proc "$root/proc"
cp "$package" "$root/quire.deb"
cp "$(dirname "${BASH_SOURCE[0]}")/try_service.sh" "$root/try_service.sh"
chroot "$root" sh -euc '
  apt-get install -y -qq --no-install-recommends /quire.deb >/dev/null
  test "$(stat -c %U /etc/quire/quire.toml)" = root
  getent passwd quire >/dev/null
  sh /try_service.sh quire quire --config /etc/quire/quire.toml
  man=/usr/share/man/man1/quire.1; test -s $man || test -s $man.gz
  apt-get purge -y -qq quire >/dev/null
  test ! -e /var/lib/quire; test ! -e /etc/quire/quire.toml
'
echo "the package works in a fresh Debian 12"
