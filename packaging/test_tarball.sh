#!/usr/bin/env bash
# Unpacks an archive in a fresh Debian 12 that has curl and nothing else, and tries it:
# packaging/test_tarball.sh ARCHIVE [MIRROR]. Needs root and debootstrap.
set -euo pipefail
[ -f "${1:-}" ] || { sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 2; }
archive="$(realpath "$1")"
root="$(mktemp -d)"
chmod 755 "$root"  # the service's user reads the new root as well
trap 'umount -q "$root/proc" 2>/dev/null || true; rm -rf "$root"' EXIT
debootstrap --variant=minbase --include=curl bookworm "$root" ${2:+"$2"} >&2
mount -t proc proc "$root/proc"
mkdir "$root/opt/quire"
tar -C "$root/opt/quire" --strip-components=1 -xf "$archive"
cp "$(dirname "${BASH_SOURCE[0]}")/try_service.sh" "$root/try_service.sh"
chroot "$root" sh -euc '
  for file in /opt/quire/bin/quire /opt/quire/libexec/quire/quire-reader /opt/quire/lib/*; do
    ! ldd "$file" | grep "not found"
  done
  sh /try_service.sh nobody /opt/quire/bin/quire --config /opt/quire/etc/quire.toml
  test -s /opt/quire/share/man/man1/quire.1
'
echo "the archive works in a fresh Debian 12"
