#!/bin/sh
# Builds outboardd for aarch64 Linux, the processors of DPUs, and tries it where this machine can run it (qemu-user).
# Builds the MPI shim for aarch64, too.
# Exits with 77 where the cross linker is missing, having said what to install.
set -eu

target=aarch64-unknown-linux-gnu
linker=aarch64-linux-gnu-gcc
root=$(cd "$(dirname "$0")/.." && pwd)
cd "$root"

if ! command -v "$linker" >/dev/null; then
	echo "cross: skipped: $linker is missing; apt install gcc-aarch64-linux-gnu" >&2
	exit 77
fi
if ! rustup target list --installed | grep -qx "$target"; then
	rustup target add "$target"
fi

# A folder of its own, so that it neither waits for other builds nor evicts them.
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$root/target}/cross"
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER="$linker"
"${CARGO:-cargo}" build --profile "${PROFILE:-release}" -p outboardd --target "$target"
case ${PROFILE:-release} in dev) folder=debug ;; *) folder=${PROFILE:-release} ;; esac
daemon=$CARGO_TARGET_DIR/$target/$folder/outboardd
echo "cross: built $daemon"
make -s -C bindings/mpi CC="$linker" OBJCOPY=aarch64-linux-gnu-objcopy OUT="$CARGO_TARGET_DIR"
echo "cross: built $CARGO_TARGET_DIR/liboutboard-mpi.so"

if ! command -v qemu-aarch64 >/dev/null; then
	echo "cross: not tried: qemu-aarch64 is missing; apt install qemu-user"
	exit 0
fi
run() { qemu-aarch64 -L /usr/aarch64-linux-gnu "$daemon" "$@"; }
run --version
run --print-settings --chains 2 | grep -qx 'chains = 2 (flag)'

# The daemon serves under emulation: it gets ready, and ends when told to.
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
mkfifo "$folder/ready"
qemu-aarch64 -L /usr/aarch64-linux-gnu "$daemon" --log error --socket "$folder/sock" --ready-fd 3 3>"$folder/ready" &
pid=$!
if [ "$(timeout 60 head -c 1 "$folder/ready")" != 1 ]; then
	kill -KILL "$pid" 2>/dev/null || true
	echo "cross: the daemon did not get ready under qemu-aarch64" >&2
	exit 1
fi
kill -TERM "$pid"
wait "$pid"
echo "cross: it starts, serves and ends under qemu-aarch64"
