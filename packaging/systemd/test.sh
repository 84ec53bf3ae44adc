#!/bin/bash
# Tries the units on a Debian 12 with systemd, in a container: OUTBOARDD and RANKS are the daemon and the tests of whole
# daemons (target/release/outboardd, and what `cargo test -p outboardd --test daemon` runs). Root only; needs debootstrap
# and systemd-container. Debian is kept in target/systemd for the next time.
set -euo pipefail
outboardd=$(realpath "$1") ranks=$(realpath "$2")
units=$(realpath "$(dirname "$0")")
place=${3:-$units/../../target/systemd}/debian
if [ "$(id -u)" != 0 ] || ! command -v debootstrap systemd-nspawn > /dev/null; then
  echo "skipped: the units are tried by root alone, with debootstrap and systemd-container installed"
  exit 77
fi
if [ ! -e "$place/outboard-ready" ]; then
  rm -rf "$place" && mkdir -p "$place"
  debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,dbus-user-session,libpam-systemd,procps bookworm "$place"
  touch "$place/outboard-ready"
fi
install "$outboardd" "$place/usr/bin/outboardd"
install "$ranks" "$place/usr/bin/ranks"
install -d "$place/usr/lib/systemd/user" "$place/etc/outboard"
install -m 644 "$units"/outboardd.{socket,service} "$place/usr/lib/systemd/user/"
install -m 644 "$units"/outboardd-dock.socket "$units"/outboardd-dock@.service "$place/usr/lib/systemd/system/"
head -c 32 /dev/urandom > "$place/etc/outboard/relay-key" && chmod 600 "$place/etc/outboard/relay-key"
cat > "$place/etc/systemd/system/try.service" << 'END'
[Service]
Type=oneshot
ExecStart=/usr/bin/timeout 120 /usr/bin/try
ExecStopPost=/usr/bin/systemctl --no-block poweroff
StandardOutput=file:/try.log
StandardError=inherit
[Install]
WantedBy=multi-user.target
END
cat > "$place/usr/bin/try" << 'END'
#!/bin/bash
set -eEuo pipefail
trap 'echo "failed at line $LINENO: $BASH_COMMAND"; journalctl --no-pager -n 60' ERR
as() { runuser -u "$1" -- env XDG_RUNTIME_DIR="/run/user/$(id -u "$1")" OUTBOARD_DAEMON=off "${@:2}"; }
# A rank of a user: number, scenario, and then more of its environment. It waits for a line in a pipe of its own.
rank() {
  mkfifo "/tmp/in-$1-$2"
  as "$1" env OUTBOARD_TEST_SCENARIO="$3" OUTBOARD_RENDEZVOUS=127.0.0.1:7000 OUTBOARD_TOKEN=tried \
    OUTBOARD_RANK="$2" OUTBOARD_WORLD_SIZE=2 "${@:4}" ranks --exact another_process --nocapture \
    < "/tmp/in-$1-$2" > "/tmp/out-$1-$2" 2>&1 &
  eval "exec {in_$1_$2}> /tmp/in-$1-$2"
}
go_on() { local at="in_$1_$2"; echo >&"${!at}"; }
says() { await grep -q "@$3" "/tmp/out-$1-$2"; }
# Until a command succeeds, within 20 s.
await() { for _ in $(seq 200); do "$@" && return; sleep 0.1; done; return 1; }
not_active() { [ "$(state one outboardd.service)" != active ]; }
no_docks() { ! pgrep -f 'outboardd --dock passed' > /dev/null; }
state() { as "$1" systemctl --user is-active "$2" || true; }
rm -f /tmp/in-* /tmp/out-*
for user in one two; do
  id $user > /dev/null 2>&1 || useradd -m $user
  loginctl enable-linger $user
done
for user in one two; do
  await test -S "/run/user/$(id -u $user)/bus"
  as $user systemctl --user enable --now outboardd.socket
  [ "$(state $user outboardd.service)" = inactive ]
done
echo "two users at once: each daemon starts with the first rank"
for user in one two; do rank $user 0 alone; done
for user in one two; do says $user 0 ready; done
for user in one two; do
  [ "$(state $user outboardd.service)" = active ]
  [ "$(pgrep -c -u $user -x outboardd)" = 1 ]
  go_on $user 0
done
wait
echo "restart: the next rank finds the next daemon"
before=$(pgrep -u one -x outboardd)
as one systemctl --user restart outboardd.service
rm /tmp/in-one-0 && rank one 0 alone
says one 0 ready
[ "$(pgrep -u one -x outboardd)" != "$before" ]
go_on one 0 && wait
echo "stop: calls in flight end right"
rm /tmp/in-one-0 && rank one 0 drained && rank one 1 drained
says one 0 posted && says one 1 ready
as one systemctl --user stop outboardd.socket outboardd.service &
await not_active
go_on one 1
wait
grep -q "test result: ok" /tmp/out-one-0
grep -q "test result: ok" /tmp/out-one-1
[ ! -e "/run/user/$(id -u one)/outboard/outboardd.sock" ]
echo "dock: each relay has a process of its own, closed to the others, which ends with it"
systemctl start outboardd-dock.socket
for user in one two; do
  key=/home/$user/relay-key
  install -m 600 -o $user /etc/outboard/relay-key $key
  as $user outboardd --relay 127.0.0.1:4791 --relay-key $key --socket "/run/user/$(id -u $user)/relay" &
  await test -S "/run/user/$(id -u $user)/relay"
  rm -f /tmp/in-$user-0 && rank $user 0 alone OUTBOARD_SOCKET="/run/user/$(id -u $user)/relay"
  says $user 0 ready
done
[ "$(pgrep -f -c 'outboardd --dock passed')" = 2 ]
for dock in $(pgrep -f 'outboardd --dock passed'); do
  [ "$(ps -o uid= -p "$dock" | tr -d ' ')" != 0 ] && [ "$(stat -c %u "/proc/$dock/mem")" = 0 ]
done
for user in one two; do go_on $user 0; pkill -u $user -f 'outboardd --relay'; done
wait
await no_docks
echo "all is well"
END
chmod +x "$place/usr/bin/try"
ln -sf /etc/systemd/system/try.service "$place/etc/systemd/system/multi-user.target.wants/try.service"
rm -f "$place/try.log"
timeout 240 systemd-nspawn -q -b -D "$place" --private-network --register=no --keep-unit < /dev/null > "$place.log" 2>&1 || true
cat "$place/try.log"
grep -qx "all is well" "$place/try.log"
