#!/usr/bin/env bash
# Installs a Debian package in a new root and starts it there by systemd:
# tests/package.sh PACKAGE.deb [DIRECTORY]. Needs root, debootstrap and systemd-container, some
# minutes, and 500 MiB below DIRECTORY or TMPDIR. The root has no network but its own loopback.
set -euo pipefail
package=$(realpath "$1")
dir=${2:-$(mktemp -d)}
root=$dir/root

if [ ! -e "$root/etc/debian_version" ]; then
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,adduser,curl,man-db \
    "${SUITE:-bookworm}" "$root" http://deb.debian.org/debian
fi
# The root stays as it is: all changes are in memory, and outcomes in this directory.
shared=$dir/shared
rm -rf "$shared"
mkdir "$shared"
cp "$package" "$shared/"
name=$(basename "$package")

cat >"$shared/check" <<END
#!/bin/bash
set -euxo pipefail
cd /shared
# A command that fails; \`!\` alone would not end the script.
refused() { if "\$@"; then exit 1; fi; }
apt-get install -y ./$name
END
cat >>"$shared/check" <<'END'
: "installed, and neither enabled nor started"
refused systemctl is-enabled flotilla
refused systemctl is-active flotilla
[ "$(stat -c '%U %a' /var/lib/flotilla)" = "flotilla 700" ]
[ "$(stat -c '%U:%G %a' /etc/flotilla)" = "root:flotilla 750" ]
: "without settings it does not start"
refused systemctl start flotilla
refused systemctl is-active flotilla
: "systemd finds no fault with the unit, whose manual is there"
systemd-analyze verify flotilla.service
systemd-analyze security --threshold=20 --no-pager flotilla.service | tail -1
man -P cat flotilla-serve | grep -q initial-cluster
: "the first put"
began=$(date +%s%N)
cat >/etc/flotilla/flotilla.toml <<SETTINGS
name = "s1"
data_dir = "/var/lib/flotilla"
initial_cluster = "s1=127.0.0.1:20160"
SETTINGS
flotilla config check /etc/flotilla/flotilla.toml
systemctl enable --now flotilla
flotilla ctl --timeout 60s put ship Vasa
echo "first put after $((($(date +%s%N) - began) / 1000000)) ms"
: "as the unit has it"
id=$(systemctl show -P MainPID flotilla)
[ "$(stat -c %U "/proc/$id")" = flotilla ]
# A container may have less, by the limits of the machine around it.
[ "$(systemctl show -P LimitNOFILE flotilla)" = 1048576 ]
grep -q 'NoNewPrivs:.*1' "/proc/$id/status"
grep -q 'CapEff:.*0000000000000000' "/proc/$id/status"
curl -sf http://127.0.0.1:20160/ready
systemctl reload flotilla
: "another installation restarts nothing"
apt-get install -y --reinstall "./$(ls | grep -m1 '^flotilla_.*deb$')"
[ "$(systemctl show -P MainPID flotilla)" = "$id" ]
: "a stop in good order, and a start on the same data"
began=$(date +%s%N)
systemctl stop flotilla
echo "stopped after $((($(date +%s%N) - began) / 1000000)) ms"
[ "$(systemctl show -P Result flotilla)" = success ]
systemctl start flotilla
[ "$(flotilla ctl --timeout 60s get ship)" = Vasa ]
: "a store that is killed starts again, and one that is refused does not"
kill -9 "$(systemctl show -P MainPID flotilla)"
[ "$(flotilla ctl --timeout 60s get ship)" = Vasa ]
systemctl stop flotilla
sed -i 's/"s1"/"s9"/' /etc/flotilla/flotilla.toml
systemctl start flotilla || true
until [ "$(systemctl show -P ActiveState flotilla)" = failed ]; do sleep 0.1; done
[ "$(systemctl show -P ExecMainStatus flotilla)" = 1 ]
journalctl -u flotilla -n 6 --no-pager
flotilla debug bundle --timeout 5s --output /shared/bundle.tar.gz
: "the data outlive the package"
apt-get purge -y flotilla
[ -e /var/lib/flotilla/pages ]
[ ! -e /usr/bin/flotilla ]
echo "all is well"
END
chmod +x "$shared/check"
cat >"$root/etc/systemd/system/check.service" <<END
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=/bin/bash -c '/shared/check >/shared/said 2>&1; systemctl poweroff'
END
mkdir -p "$root/etc/systemd/system/default.target.wants"
ln -sf ../check.service "$root/etc/systemd/system/default.target.wants/check.service"

# Without a network there is nothing to wait for.
ln -sf /dev/null "$root/etc/systemd/system/systemd-networkd-wait-online.service"

timeout "${LIMIT:-300}" systemd-nspawn --directory "$root" --volatile=overlay --register=no \
  --keep-unit --private-network --bind "$shared:/shared" --boot >"$dir/boot.log" 2>&1 || true
cat "$shared/said"
tail -1 "$shared/said" | grep -qx "all is well"
