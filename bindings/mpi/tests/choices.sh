# Tests of what the shim offloads and what it leaves to the MPI library, for run.sh, which reads this file.

chooses() { # program, arguments...: passes when the program does with nothing failed or left; leaves the report
  local settings=(OUTBOARD_MPI_REPORT="$work/report.json" OUTBOARD_FAKE_LOG="$work/left" "${settings[@]}")
  rm -f "$work/report.json" "$work/left"
  preload=$preloaded ranks "$built/choices" "$@" >"$work/out" 2>"$work/err" &&
    ! grep -q '"failed":[1-9]' "$work/report.json" && left_nothing && return 0
  quote "$work/out" "$work/err" "$work/report.json" "$work/left"
  return 1
}

row() { # collective, form, way, why: some row of the report says so
  grep -o '"choices":\[[^]]*\]' "$work/report.json" | tr '}' '\n' | grep "\"collective\":\"$1\"" |
    grep "\"form\":\"$2\"" | grep -q "\"way\":\"$3\",\"why\":\"$4\"" && return 0
  quote "$work/report.json"
  return 1
}

chosen() { # collective, form, way, why, program, arguments...
  chooses "${@:5}" && row "${@:1:4}"
}

digests() { # how many different ones the ranks of the latest run had, and then which
  grep -o '"choices_digest":"[^"]*"' "$work/report.json" | sort -u | awk '{ all = all $0 } END { print NR, all }'
}

alike() { # program, arguments...: all ranks go the same ways, call by call, and some calls go each way
  chooses "$@" && case $(digests) in '1 "choices_digest":"0000'*) false ;; '1 '*) true ;; *) false ;; esac &&
    grep -q '"why":"tried"' "$work/report.json" && return 0
  quote "$work/report.json"
  return 1
}

both_try() { # program, arguments...: as alike(), two runs in a row
  alike "$@" && alike "$@"
}

same_each_run() { # program, arguments...: and nothing is tried
  chooses "$@" && local first && first=$(digests) && chooses "$@" && [ "$(digests)" = "$first" ] &&
    ! grep -q '"why":"tried"' "$work/report.json"
}

said_once() { # sentence, program, arguments...: one sentence of ours beside the report's, and the run goes on
  local sentence=$1
  chooses "${@:2}" && [ "$(grep -c "$sentence" "$work/err")" = 1 ] &&
    [ "$(grep '^outboard:' "$work/err" | grep -vc 's in MPI saved')" = 1 ] && return 0
  quote "$work/err"
  return 1
}

remembers() { # what is kept of one run for the next
  local kept=$work/kept
  rm -rf "$work/cache" "$kept"
  settings=(CHOICES_NATIVE_US=20000)
  check "$mpi: offloaded where that was faster" chosen allgather blocking offloaded tried blocking 90
  check "$mpi: the file is the user's alone" [ "$(stat -c %a "$work/cache/outboard/choice/"*.tsv)" = 600 ]
  check "$mpi: so is its folder" [ "$(stat -c %a "$work/cache/outboard/choice")" = 700 ]
  check "$mpi: the next run begins with what was learnt" chosen allgather blocking offloaded remembered blocking 20
  check "$mpi: reading it leaves the program's memory alone" as_natively mapped 8
  check "$mpi: MPI_Init connects no ranks that allreduces do not" over_tcp as_natively connections 200
  choice=fixed
  check "$mpi: and so does a fixed one" chosen allgather blocking offloaded remembered blocking 20
  choice=adaptive
  mkdir -p -m 700 "$kept"
  cp "$work/cache/outboard/choice/"*.tsv "$kept/good.tsv"
  chmod 600 "$kept/good.tsv"
  settings=(OUTBOARD_CHOICE_FILE="$kept/good.tsv")
  check "$mpi: the file may be elsewhere" chosen allgather blocking offloaded remembered blocking 20
  mkdir -p "$work/locales"
  if localedef -i de_DE -f UTF-8 "$work/locales/de_DE.UTF-8" 2>/dev/null; then
    settings+=(LOCPATH="$work/locales" LC_ALL=de_DE.UTF-8)
    check "$mpi: and the program's numbers may have a comma" chosen allgather blocking offloaded remembered blocking 20
    check "$mpi: which those of the report have not" grep -q '"waiting_s":[0-9]*\.' "$work/report.json"
  else
    note skip "$mpi: numbers with a comma" "localedef finds no de_DE"
  fi
  settings=(OUTBOARD_CHOICE_FILE="$kept/bad.tsv")
  sed '1s/\t[0-9a-f]\{16\}\t/\t0123456789abcdef\t/' "$kept/good.tsv" >"$kept/bad.tsv"
  chmod 600 "$kept/bad.tsv"
  check "$mpi: a file of another cluster" said_once 'it is of another cluster' blocking 20
  sed '1s/\t3\t/\t2\t/' "$kept/good.tsv" >"$kept/bad.tsv"
  check "$mpi: a file of another version" said_once 'it is of another version' blocking 20
  { cat "$kept/good.tsv"; echo 'allgather	blocking	13	1	4	-1.0	1.0	1	0	5'; } >"$kept/bad.tsv"
  cp "$kept/bad.tsv" "$kept/before.tsv"
  check "$mpi: a damaged file" said_once 'line 3 is damaged' blocking 20
  check "$mpi: it is left as it was" cmp -s "$kept/bad.tsv" "$kept/before.tsv"
  printf 'outboard-choice' >"$kept/bad.tsv"
  check "$mpi: a file cut short" said_once 'it is damaged' blocking 20
  cp "$kept/good.tsv" "$kept/bad.tsv"
  chmod 620 "$kept/bad.tsv"
  check "$mpi: a file that others may write" said_once 'others may write to the file' blocking 20
  ln -sf good.tsv "$kept/bad.tsv"
  check "$mpi: a link" said_once 'it is a symbolic link' blocking 20
  settings=(OUTBOARD_CHOICE_FILE=/proc/sys/kernel/choice.tsv OUTBOARD_FAKE_DELAY_US=20000 CHOICES_PAUSE_US=5000)
  check "$mpi: a file that cannot be written" said_once 'is not kept in /proc/sys/kernel/choice.tsv' blocking 250
  chmod 777 "$kept"
  settings=(OUTBOARD_CHOICE_FILE="$kept/good.tsv")
  check "$mpi: a folder that others may write" said_once 'others may write to the folder' blocking 20
}

as_natively() { # arguments: rank 0 prints the same as it does natively
  preload= ranks "$built/choices" "$@" >"$work/natively" && chooses "$@" &&
    cmp -s "$work/natively" "$work/out" && return 0
  quote "$work/natively" "$work/out"
  return 1
}

over_tcp() { # command...: with eight ranks, as a tree and exchanges of four connect the same
  local n=8 btl=self,tcp settings=("${settings[@]}" OMPI_MCA_btl_tcp_if_include=lo)
  "$@"
}

launches() { # that have tried the class of the last line of the file to the end, then others where they are asked for
  cut -sf "${1:-8}" "$work/cache/outboard/choice/"*.tsv | tail -1
}

left_unfinished() { # launches: the file says so, of a class of which no trial has ended
  [ "$(launches 8,9)" = "0	$1" ] && return 0
  quote "$work/cache/outboard/choice/"*.tsv
  return 1
}

too_short() { # launches that end within their trial: the fifth one tries nothing
  local launch
  for launch in 1 2 3 4; do
    chosen allgather blocking native built-in blocking 55 && left_unfinished "$launch" || return 1
  done
  chosen allgather blocking native built-in blocking 55 && left_unfinished 4 &&
    grep -q '"allgather_offloaded":0,' "$work/report.json"
}

learnt_by() { # launches: as many have found offloaded calls faster
  local file
  file=$(echo "$work/cache/outboard/choice/"*.tsv)
  awk -F'\t' -v OFS='\t' -v launches="$1" 'NR > 1 { $6 = "1000.0"; $7 = "600.0"; $8 = launches } 1' "$file" \
    >"$work/learnt.tsv"
  cat "$work/learnt.tsv" >"$file"
}

choices() { # natively or offloaded; with the fake alone
  local choice=adaptive
  rm -rf "$work/cache"
  settings=(OUTBOARD_FAKE_DELAY_US=2000000 CHOICES_PAUSE_US=500000)
  check "$mpi: native where offloading was slower" chosen allgather blocking native tried blocking 250
  check "$mpi: nonblocking calls alike" chosen allgather nonblocking native tried nonblocking 250
  settings=(CHOICES_PAUSE_US=5000)
  check "$mpi: reductions are not tried" chosen allreduce blocking native built-in reductions 250
  rm -rf "$work/cache"
  settings=(CHOICES_PAUSE_US=12000)
  check "$mpi: the next run tries the same calls" both_try blocking 150
  check "$mpi: and both count in the mean" [ "$(launches)" = 2 ]
  check "$mpi: a third counts, though its last communicator tries nothing" chooses twice 150
  check "$mpi: the file says so" [ "$(launches)" = 3 ]
  rm -rf "$work/cache"
  check "$mpi: launches too short for a trial stop trying" too_short
  settings=(CHOICES_PAUSE_US=5000)
  choice=learn
  check "$mpi: unless a run is to learn" chosen allreduce blocking native tried reductions 250
  choice=fixed
  check "$mpi: whose word counts from then on" chosen allreduce blocking native remembered reductions 20
  learnt_by 3
  check "$mpi: against the rule not before four launches" chosen allreduce blocking native built-in reductions 20
  learnt_by 4
  check "$mpi: then it does" chosen allreduce blocking offloaded remembered reductions 20
  choice=adaptive
  settings=(CHOICES_RANKS_PER_HOST=2)
  check "$mpi: large ones between hosts are offloaded" chosen allgather nonblocking offloaded built-in large 20
  check "$mpi: on a new communicator from the first blocking call on" \
    grep -q '"iallgather_offloaded":20,"iallgather_native":10,' "$work/report.json"
  rm -rf "$work/cache"
  check "$mpi: ranks delayed at random choose alike" alike mixed 3000
  rm -rf "$work/cache"
  settings=()
  check "$mpi: on one host too" alike mixed 3000
  settings=(CHOICES_RANKS_PER_HOST=2)
  choice=fixed
  rm -rf "$work/cache"
  check "$mpi: a fixed choice is the same in each run" same_each_run mixed 500
  check "$mpi: and leaves no file" [ ! -e "$work/cache" ]
  choice=adaptive
  settings=()
  check "$mpi: 1000 communicators come and go" chooses duplicates 1000
  check "$mpi: they left nothing" [ "$(grep -o '"communicators":1,' "$work/report.json" | wc -l)" = 4 ]
  check "$mpi: they had no groups" grep -q 'collectives=0' "$work/left"
  choice=offload
  check "$mpi: a communicator of MPI_Comm_idup" chooses idup 20
  check "$mpi: has all its calls offloaded" grep -q '"allgather_offloaded":20,"allgather_native":0,' "$work/report.json"
  choice=native
  check "$mpi: everything native" warned_never "$built/choices" blocking 20
  choice=fast
  check "$mpi: an unknown choice" said_once '"fast", not adaptive, learn, fixed, offload or native' blocking 20
  check "$mpi: adaptive is taken" grep -q '"choice":"adaptive"' "$work/report.json"
  choice=adaptive
  check "$mpi: conformance, chosen adaptively" natively_or_not "$built/conformance" native
  remembers
  settings=()
  [ -z "$cost" ] || check "$mpi: passing through costs little" cheap
}

warned_never() { # program...: runs natively, by choice
  local settings=(OUTBOARD_MPI_REPORT="$work/report.json")
  preload=$preloaded ranks "$@" >"$work/out" 2>"$work/err" && ! grep -q '^outboard:' "$work/err" &&
    grep -q '"offloading":false,"native_because":"OUTBOARD_CHOICE=native"' "$work/report.json"
}

natively_or_not() { # program...
  local settings=(OUTBOARD_FAKE_LOG="$work/left" CHOICES_RANKS_PER_HOST=2)
  rm -f "$work/left"
  preload=$preloaded ranks "$@" >"$work/out" 2>"$work/err" && left_nothing && return 0
  quote "$work/out" "$work/err" "$work/left"
  return 1
}

cheap() { # to choose and to pass through takes at most 100 ns more
  local alone below choice=fixed
  alone=$(preload='' ranks "$built/cost" 2>/dev/null) &&
    below=$(preload=$preloaded ranks "$built/cost" 2>/dev/null) || return 1
  echo "# natively: $(echo $alone)"
  echo "# below the shim: $(echo $below)"
  awk -v alone="$alone" -v below="$below" 'BEGIN {
    split(alone, a); split(below, b)
    exit !(a[2] > 0 && b[2] <= a[2] + 100 && a[4] > 0 && b[4] <= a[4] + 100)
  }'
}
