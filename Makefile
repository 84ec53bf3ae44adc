# Everything a person does with Outboard. Works on a fresh Debian 12 machine with rustup, and again after that.
#
#   make demo   build, then run a real MPI program natively and offloaded on an emulated cluster
#   make build  programs and libraries in target/release
#   make install PREFIX=/opt/outboard   build, then install there (DESTDIR for packages); the prefix may be moved
#   make test   all tests
#   make bench  ours beside the peers: the tables of docs/performance and docs/figures.json, and more (takes hours)
#   make soak   long runs: 20,000 simulator seeds, an hour of chaos on an emulated cluster (CHAOS_MINUTES=n), loom,
#               miri, a daemon's long life, the systemd units, fuzzing (10 or 20 minutes per target)
#   make lint   format, lints, documentation
#   make cross  the daemon for the processors of DPUs (aarch64), tried under qemu-user where that is installed
#   make clean  what was built here

SHELL := /bin/bash
CARGO ?= cargo
OUTBOARD := target/release/outboard
PACKAGES := gcc g++ gfortran make pkg-config iproute2 nftables libucx0 libucx-dev openmpi-bin mpich libmpich-dev \
  libfabric1 libfabric-dev libopenmpi-dev python3-mpi4py python3-numpy python3-venv python3-dev libfftw3-dev
# The fuzz targets, the seconds of each (FUZZ_SECONDS=n for all), and its sanitizer: plans and protocol have no unsafe
# code to watch.
FUZZ_TARGETS := hostile_connection hostile_datagrams hostile_rank plan_text goal_import recording_sequences \
  profile_text
hostile_connection_SECONDS := 600
hostile_datagrams_SECONDS := 1200
hostile_rank_SECONDS := 1200
plan_text_SECONDS := 600
goal_import_SECONDS := 600
recording_sequences_SECONDS := 600
profile_text_SECONDS := 600
hostile_connection_SANITIZER := none
hostile_datagrams_SANITIZER := none
hostile_rank_SANITIZER := address
plan_text_SANITIZER := none
goal_import_SANITIZER := none
recording_sequences_SANITIZER := none
profile_text_SANITIZER := none
CHAOS_MINUTES := 60
GRID_LABS := 1x1gbit:4,2x1gbit,4x1gbit,4x1gbit:2,8x1gbit
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo)
MISSING = $(shell for p in $(PACKAGES); do \
  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || echo $$p; done)

PREFIX := /usr/local
# The folder of the build that is installed. `make install BUILT=target/debug` installs that build as it is.
BUILT := target/release

.PHONY: demo test lint bench soak units fuzz miri loom nightly cross clean build install deps
# All but the shared heap, which is off by default: its allocator alone takes two minutes to build. Linking
# each program as one unit would take another half a minute.
demo: export CARGO_PROFILE_RELEASE_LTO := false
demo: deps
	$(CARGO) build --release --workspace --exclude outboard-heap
	$(OUTBOARD) demo

deps:
	@missing="$(MISSING)"; if [ -n "$$missing" ]; then echo "installing $$missing"; \
	  $(SUDO) apt-get update -q && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -yq $$missing; fi

build: deps
	$(CARGO) build --release --workspace
	$(MAKE) -s -C bindings/mpi OUT=$(CURDIR)/target/release

# Under sudo there is often no cargo; then the build must be there.
install: $(if $(filter target/release,$(BUILT)),$(if $(shell command -v $(CARGO)),build))
	packaging/install.sh '$(BUILT)' '$(PREFIX)' '$(DESTDIR)'

# A clean checkout is built without incremental state, which takes a sixth of the time less; others keep what they have.
test: export CARGO_INCREMENTAL ?= $(if $(wildcard target/debug/incremental/*),1,0)
# The tests run programs beside the libraries they were built with, so those are built first. With the tests, since a
# build without them has other features of dependencies, and nearly all would be built again. Cargo alone ignores tests
# that need packages, which `deps` installs, or root.
test: deps
	$(CARGO) build --workspace --lib --bins --tests --examples
	$(MAKE) -s -C bindings/mpi OUT=$(CURDIR)/target/debug
	$(CARGO) test --workspace
	$(CARGO) test --workspace --test ucx -- --ignored
	$(CARGO) test --workspace --lib -- --ignored layouts_equal
	$(if $(SUDO),,$(CARGO) test --workspace --test daemon -- --ignored --skip soak)
	$(if $(SUDO),,$(CARGO) test --workspace --test suite -- --ignored another_user)
	$(CARGO) test --workspace --test suite -- --ignored another_mpi
	$(if $(SUDO),,! command -v slurmctld >/dev/null || $(CARGO) test --workspace --test suite -- --ignored under_srun)
	bindings/mpi/tests/run.sh --install

lint: deps
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace --no-deps
	$(CARGO) fmt --manifest-path fuzz/libfuzzer/Cargo.toml --check
	$(CARGO) clippy --manifest-path fuzz/libfuzzer/Cargo.toml --target-dir target/fuzz --all-targets -- -D warnings
	$(MAKE) -s -C bindings/mpi OUT=$(CURDIR)/target/mpi-lint

# The reports in target/bench are those that the tables of docs/performance are made of.
bench: build
	mkdir -p target/bench
	for c in allgather alltoallv broadcast allreduce reduce reduce-scatter; do $(OUTBOARD) bench $$c --lab 4x1gbit \
	  --sizes 1M,4M --via both --peers open-mpi,mpich,intel-mpi --json target/bench/$$c-4x1gbit.json || exit 1; done
	for c in allgather alltoallv allreduce reduce-scatter; do $(OUTBOARD) bench $$c --lab 8x1gbit \
	  --sizes 1M,4M --peers mpich --json target/bench/$$c-8x1gbit.json || exit 1; done
	for c in alltoallv allgather broadcast allreduce reduce reduce-scatter gather; do $(OUTBOARD) bench $$c \
	  --lab 4x250mbit --comm-core --sizes 256K,1M --peers mpich,intel-mpi --json target/bench/$$c-core.json || exit 1; done
	$(OUTBOARD) bench programs --json target/bench/programs.json
	$(OUTBOARD) bench programs --only cg,panel,pagerank --labs 4x250mbit --json target/bench/programs-250.json
	OUTBOARD_CHOICE=adaptive $(OUTBOARD) bench grid --blocking --learn 3 --labs $(GRID_LABS) --json target/bench/grid.json
	OUTBOARD_CHOICE=adaptive $(OUTBOARD) bench grid --blocking --learn 3 --mpi open-mpi --labs $(GRID_LABS) \
	  --json target/bench/grid-5.json
	OUTBOARD_CHOICE=adaptive $(OUTBOARD) bench grid --learn 4 --labs 1x1gbit:4,2x1gbit,4x1gbit \
	  --json target/bench/igrid.json
	for lab in 2x1gbit 4x1gbit; do $(OUTBOARD) bench barrier --blocking --lab $$lab --peers debian \
	  --json target/bench/small-barrier-$$lab.json || exit 1; \
	  for c in broadcast allgather allreduce reduce; do $(OUTBOARD) bench $$c --blocking --lab $$lab --peers debian \
	  --sizes 8,4K,16K,64K --json target/bench/small-$$c-$$lab.json || exit 1; done; done
	$(OUTBOARD) bench readme --excerpt README.md --chart docs/figures.svg target/bench/*.json
	$(OUTBOARD) bench readme --readme docs/performance/grid.md --json docs/performance/grid.json \
	  target/bench/{grid,grid-5,igrid}.json target/bench/small-*.json
	$(OUTBOARD) bench verdicts --json target/bench-verdicts.json
	$(OUTBOARD) bench readme --readme docs/promise.md --json docs/promise.json target/bench-verdicts.json
	$(OUTBOARD) bench processor-time --lab 4x1gbit --peers open-mpi,mpich,intel-mpi --repetitions 60 \
	  --json target/bench-processor-time.json
	$(OUTBOARD) bench readme --readme docs/performance/processor-time.md --json docs/performance/processor-time.json \
	  target/bench-processor-time.json
	for layout in contiguous strided; do $(OUTBOARD) bench allgather --lab 4x1gbit --ranks-per-host 4 --layout $$layout \
	  --sizes 1M --peers open-mpi,mpich,intel-mpi --json target/bench-$$layout.json || exit 1; done
	for c in "alltoallv 4M" "allgather 8M"; do set -- $$c; $(OUTBOARD) bench $$1 --lab 4x0 --sizes $$2 --rounds 3 \
	  --peers open-mpi,mpich,intel-mpi --json target/bench-$$1-4x0.json || exit 1; done
	$(OUTBOARD) bench ping-pong --lab 2x1gbit --rounds 5 --peers debian,open-mpi,mpich --json target/bench-ping-pong.json
	$(OUTBOARD) bench fft --lab 4x1gbit --grid 128,256 --peers open-mpi,mpich,intel-mpi --json target/bench-fft.json
	$(OUTBOARD) bench radix --lab 4x1gbit --peers open-mpi,mpich,intel-mpi --json target/bench-radix.json
	$(OUTBOARD) bench radix --lab 4x1gbit --digit-bits --peers open-mpi,mpich,intel-mpi --json target/bench-radix-bits.json

soak: build loom miri
	$(OUTBOARD) sim mixed --seeds 20000
	$(OUTBOARD) chaos --minutes $(CHAOS_MINUTES)
	$(OUTBOARD) sim allgather --ranks 64 --loss 0.05 --seeds 200
	$(CARGO) test -p outboard-nic -p outboard-proto -p outboard-sim --release --lib --test suite -- --ignored
	$(CARGO) test -p outboard-lab --release --test lab -- --ignored
	bindings/mpi/tests/run.sh --cost
	$(MAKE) deps PACKAGES="python3-pytest python3-hypothesis lammps lammps-examples"
	$(CARGO) test -p outboard-heap --release --test programs -- --ignored
	$(CARGO) test -p outboardd --release --test daemon -- soak --ignored --test-threads 1
	$(MAKE) units
	$(MAKE) fuzz

# The units on a Debian with systemd, in a container.
units: build
	$(MAKE) deps PACKAGES="debootstrap systemd-container"
	$(SUDO) packaging/systemd/test.sh target/release/outboardd "$$($(CARGO) test -p outboardd --release --test daemon \
	  --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))/\1/p')" || [ $$? = 77 ]

loom:
	RUSTFLAGS="--cfg loom" $(CARGO) test -p outboard-shm --release --target-dir target/loom loom

# Tests that miri cannot run (mappings, other processes) are ignored by name; the rest is checked over several
# schedules.
miri: nightly
	MIRIFLAGS="-Zmiri-many-seeds=0..8" $(CARGO) +nightly miri test -p outboard-shm --lib --target-dir target/miri

# Each target starts from seeds made by code, what earlier runs found worth keeping (fuzz/corpus), and the committed
# inputs (fuzz/seeds), which `make test` plays, too.
fuzz: nightly
	@command -v cargo-fuzz >/dev/null || $(CARGO) +nightly install cargo-fuzz --locked
	@set -e; $(foreach target,$(FUZZ_TARGETS), \
	  $(CARGO) +nightly run -q --manifest-path fuzz/libfuzzer/Cargo.toml --target-dir target/fuzz --example seeds -- \
	    $(target) fuzz/corpus/$(target); \
	  $(CARGO) +nightly fuzz run --fuzz-dir fuzz/libfuzzer --sanitizer $($(target)_SANITIZER) --target-dir target/fuzz \
	    $(target) fuzz/corpus/$(target) fuzz/seeds/$(target) -- \
	    -max_total_time=$(or $(FUZZ_SECONDS),$($(target)_SECONDS)) -max_len=2048 -timeout=60 \
	    -rss_limit_mb=4096 -print_final_stats=1;)

nightly:
	@rustup toolchain list | grep -q ^nightly || rustup toolchain install nightly --profile minimal
	@rustup component list --toolchain nightly | grep -q 'miri.*(installed)' || \
	  rustup component add --toolchain nightly miri rust-src

cross:
	packaging/cross.sh || [ $$? = 77 ]

clean:
	$(CARGO) clean
