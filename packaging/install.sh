#!/bin/sh
# Installs a build: BUILT is the folder of programs and libraries (target/release), PREFIX the place at which they are
# used, and ROOT is put before PREFIX, as a package needs it. All parts find one another from where they lie, so the
# prefix may be moved. The systemd units alone name PREFIX.
set -eu
built=$1 prefix=$2 to=${3:-}$2
case $prefix in
/*) ;;
*) echo "install: PREFIX is '$prefix'; give an absolute path" >&2 && exit 1 ;;
esac
here=$(cd "$(dirname "$0")/.." && pwd)
for part in outboard outboardd liboutboard.so liboutboard_heap.so liboutboard-mpi.so; do
	[ -e "$built/$part" ] || { echo "install: $built/$part is missing; run make build" >&2 && exit 1; }
done
file() { install -D -m 644 "$@"; }
program() { install -D -m 755 --strip "$@"; }
# A copy of a text in which the given expression is replaced.
edited() { install -d "$(dirname "$3")" && sed "$1" "$2" >"$3" && chmod 644 "$3"; }

program -t "$to/bin" "$built/outboard" "$built/outboardd"
program "$built/liboutboard.so" "$to/lib/liboutboard.so.1"
ln -sf liboutboard.so.1 "$to/lib/liboutboard.so"
program -t "$to/lib" "$built/liboutboard_heap.so" "$built/liboutboard-mpi.so"
file -t "$to/include" "$here/crates/client/include/outboard.h"
version=$(sed -n '/^\[workspace.package\]/,/^\[/ s/^version = "\(.*\)"/\1/p' "$here/Cargo.toml")
edited "s/@VERSION@/$version/" "$here/packaging/outboard.pc.in" "$to/lib/pkgconfig/outboard.pc"

# The programs of `outboard bench` that need no MPI library.
programs=$(mktemp -d)
trap 'rm -rf "$programs"' EXIT
"$built/outboard" __bench-programs "$programs"
program -t "$to/libexec/outboard" "$programs"/*

for unit in outboardd.socket outboardd.service; do
	edited "s|/usr/|$prefix/|" "$here/packaging/systemd/$unit" "$to/lib/systemd/user/$unit"
done
for unit in outboardd-dock.socket outboardd-dock@.service; do
	edited "s|/usr/|$prefix/|" "$here/packaging/systemd/$unit" "$to/lib/systemd/system/$unit"
done

doc=$to/share/doc/outboard
file -t "$doc" "$here/LICENSE" "$here/README.md" "$here/CHANGELOG.md"
file -t "$doc/docs" "$here"/docs/*.md "$here"/docs/*.svg
file -t "$doc/docs/guide" "$here"/docs/guide/*.md
file -t "$doc/docs/performance" "$here"/docs/performance/*.md
file -t "$doc/bindings/mpi" "$here/bindings/mpi/README.md"
file -t "$doc/examples" "$here"/examples/*
