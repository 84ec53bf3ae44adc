//! Runs programs with the preload library: the programs of `programs/`, which exercise an allocator, and Debian's,
//! whose output must not change (SP-4).
//!
//! Needs the library in the target folder: run `cargo build --workspace` first.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs");
const SHIM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../bindings/mpi");

/// The library, in cargo's target folder.
fn library() -> PathBuf {
    let program = std::env::current_exe().expect("this program");
    let home = program.ancestors().nth(2).expect("target/PROFILE/deps/PROGRAM");
    let library = home.join("liboutboard_heap.so");
    assert!(library.exists(), "{} is missing: cargo build --workspace", library.display());
    library
}

/// Runs a command, which must succeed.
fn run(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

/// Compiles a program of `programs/`.
fn compiled(compiler: &str, source: &str, name: &str) -> PathBuf {
    linked(compiler, source, name, &[])
}

/// Compiles and links a program with these libraries.
fn linked(compiler: &str, source: &str, name: &str, libraries: &[&str]) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("heap-{name}"));
    run(Command::new(compiler)
        .args(["-O1", "-g", "-Wall", "-Wextra", "-Werror", "-pthread"])
        .arg(Path::new(SOURCES).join(source))
        .arg("-o")
        .arg(&program)
        .args(libraries));
    program
}

/// The command with the heap preloaded.
fn on_heap(mut command: Command) -> Command {
    command.env("LD_PRELOAD", library()).env("OUTBOARD_HEAP", "shared").env_remove("OUTBOARD_HEAP_BYTES");
    command
}

/// Runs part `part` of `heap.c`; the compiled program has the part's name.
fn heap(part: &str) -> Command {
    let program = compiled("gcc", "heap.c", part);
    let mut command = on_heap(Command::new(program));
    command.arg(part);
    command
}

/// Runs a part, which must print nothing.
fn silent(part: &str) {
    let output = run(&mut heap(part));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

macro_rules! silent {
    ($($test:ident: $part:literal,)+) => {
        $(#[test]
        fn $test() {
            silent($part);
        })+
    };
}

silent! {
    sizes_alignments_and_chains_follow_the_c_standard: "sizes",
    threads_free_allocations_of_other_threads: "threads",
    threads_that_end_allocate_and_free: "ends",
    child_sees_memory_as_of_the_fork_while_threads_allocate: "forks",
    spawned_programs_copy_no_memory: "spawns",
    freed_memory_goes_back_to_the_system: "given-back",
    core_dump_contains_allocated_pages_alone: "dumps",
}

/// A growing allocation does not wait for a lock of the loader while the loader is busy.
#[test]
fn growing_allocation_does_not_wait_for_the_loader() {
    let library = linked("gcc", "grows.c", "grows.so", &["-shared", "-fPIC"]);
    let output = run(heap("loads").arg(library));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

#[test]
#[ignore = "minutes: make soak"]
fn threads_free_allocations_of_other_threads_for_minutes() {
    let output = run(heap("threads").arg("1000000"));
    assert!(output.stdout.is_empty() && output.stderr.is_empty(), "{output:?}");
}

/// As many tests fail as on plain memory: none, or the tests that fail on this machine anyway.
#[test]
#[ignore = "minutes: make soak; needs python3-pytest and python3-hypothesis"]
fn numpy_test_suite_fails_as_on_plain_memory() {
    let verdict = |mut command: Command| {
        // Skips tests that need more memory. One module of Debian's package cannot be loaded.
        command.env("NPY_AVAILABLE_MEM", "2GB").env("OPENBLAS_NUM_THREADS", "1");
        let arguments = "-m pytest -q -p no:cacheprovider --tb=no --continue-on-collection-errors --pyargs numpy";
        command.args(arguments.split(' '));
        let printed = text(&command.output().expect("python3 starts").stdout);
        let tests = printed.lines().filter(|line| line.starts_with("FAILED") || line.starts_with("ERROR"));
        let failed: Vec<String> = tests.map(|line| line.split(" - ").next().unwrap_or(line).to_owned()).collect();
        assert!(printed.contains(" passed"), "{printed}");
        failed
    };
    let python = || Command::new("/usr/bin/python3");
    assert_eq!(verdict(on_heap(python())), verdict(python()));
}

#[test]
fn eighth_fork_closes_the_heap() {
    let output = run(&mut heap("often"));
    let expected = "outboard: the program has forked 8 times; its new memory is not shared, its old is still copied\n";
    assert_eq!(text(&output.stderr), expected);
}

#[test]
fn closed_descriptor_is_reported_at_the_fork() {
    let printed = text(&run(&mut heap("closes")).stderr);
    assert!(
        printed.contains("the program has closed the heap's descriptor") && printed.lines().count() == 1,
        "{printed}"
    );
}

#[test]
fn child_without_room_for_the_copy_runs_on_plain_memory() {
    let printed = text(&run(&mut heap("starves")).stderr);
    assert!(printed.contains("has none of its parent's shared memory") && printed.lines().count() == 1, "{printed}");
}

#[test]
fn child_of_locked_memory_copies_used_pages_alone() {
    let output = run(heap("locked").env("OUTBOARD_HEAP_BYTES", "1G"));
    assert!(output.stderr.is_empty(), "{output:?}");
}

#[test]
fn fork_on_a_heap_stack_is_rejected_with_its_reason() {
    let output = heap("stack").output().expect("it starts");
    assert!(!output.status.success(), "{output:?}");
    assert!(text(&output.stderr).contains("fork() on a stack that malloc gave"), "{output:?}");
}

/// An invalid setting is reported once, and the program runs on plain memory.
#[test]
fn invalid_setting_is_reported_once() {
    let program = compiled("gcc", "heap.c", "which");
    let which = |settings: &[(&str, &str)]| {
        let output =
            run(Command::new(&program).arg("which").env("LD_PRELOAD", library()).envs(settings.iter().copied()));
        (text(&output.stdout).trim().to_owned(), text(&output.stderr))
    };
    let shared = ("OUTBOARD_HEAP", "shared");
    for (settings, expected, named) in [
        (&[("OUTBOARD_HEAP", "off")][..], "plain", ""),
        (&[("OUTBOARD_HEAP", "")], "plain", ""),
        (&[shared], "shared", ""),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "64M")], "shared", ""),
        (&[("OUTBOARD_HEAP", "foo")], "plain", "OUTBOARD_HEAP is `foo`; set it to off or shared"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "-1")], "plain", "OUTBOARD_HEAP_BYTES is wrong: `-1`"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "0")], "plain", "OUTBOARD_HEAP_BYTES is 0"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "many")], "plain", "OUTBOARD_HEAP_BYTES is wrong: `many`"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "99999999999999999999")], "plain", "OUTBOARD_HEAP_BYTES is wrong"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "9000000000G")], "plain", "OUTBOARD_HEAP_BYTES is"),
        (&[shared, ("OUTBOARD_HEAP_BYTES", "1000000G")], "plain", "lower OUTBOARD_HEAP_BYTES"),
    ] {
        let (found, printed) = which(settings);
        assert_eq!(found, expected, "{settings:?}: {printed}");
        assert!(
            printed.contains(named) && printed.lines().count() == usize::from(!named.is_empty()),
            "{settings:?}: {printed}"
        );
    }
}

/// If the range would exceed a resource limit, the heap stays closed. When the heap is full, libc serves further
/// allocations.
#[test]
fn resource_limits_keep_the_heap_closed() {
    let program = compiled("gcc", "heap.c", "limits");
    let limited = |limit: &str| {
        let mut shell = on_heap(Command::new("sh"));
        let output = run(shell.arg("-c").arg(format!("{limit}; exec \"$0\" which")).arg(&program));
        (text(&output.stdout).trim().to_owned(), text(&output.stderr))
    };
    let (found, printed) = limited("ulimit -f 100");
    assert!(found == "plain" && printed.contains("`ulimit -f`"), "{found}: {printed}");
    let (found, printed) = limited("ulimit -v 1000000");
    assert!(found == "plain" && printed.contains("`ulimit -v`"), "{found}: {printed}");
    // Enough addresses for the range, but not for a fork's copy and plain memory as well.
    let (found, printed) = limited("export OUTBOARD_HEAP_BYTES=1G; ulimit -v 2000000");
    assert!(found == "plain" && printed.contains("`ulimit -v`") && printed.lines().count() == 1, "{found}: {printed}");
    let (found, printed) = limited("export OUTBOARD_HEAP_BYTES=1G; ulimit -d 1000000");
    assert!(found == "plain" && printed.contains("`ulimit -d`") && printed.lines().count() == 1, "{found}: {printed}");
    assert_eq!(limited("export OUTBOARD_HEAP_BYTES=1G; ulimit -v 4000000; ulimit -d 2000000").0, "shared");
    assert_eq!(limited("ulimit -n 16").0, "shared");
    assert_eq!(limited("OUTBOARD_HEAP_BYTES=1M").0, "shared");
    run(on_heap(Command::new("python3")).env("OUTBOARD_HEAP_BYTES", "1M").args([
        "-c",
        "kept = [bytes([at]) * (1 << 20) for at in range(64)]; assert all(len(set(one)) == 1 for one in kept)",
    ]));
}

/// The output of a command is the same on the heap and on plain memory.
fn assert_same_output(command: impl Fn() -> Command) {
    let (plain, shared) = (run(&mut command()), run(&mut on_heap(command())));
    assert!(!plain.stdout.is_empty(), "{:?} says something", command());
    assert_eq!(text(&shared.stdout), text(&plain.stdout), "{:?}", command());
    assert_eq!(text(&shared.stderr), text(&plain.stderr), "{:?}", command());
}

fn shell(script: &str, argument: &Path) -> Command {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).arg("sh").arg(argument);
    command
}

#[test]
fn cpp_and_fortran_results_match_plain_memory() {
    let (containers, arrays) =
        (compiled("g++", "containers.cpp", "containers"), compiled("gfortran", "arrays.f90", "arrays"));
    assert_same_output(|| Command::new(&containers));
    assert_same_output(|| Command::new(&arrays));
}

#[test]
fn fftw_results_match_plain_memory() {
    let fft = linked("gcc", "fftw.c", "fftw", &["-lfftw3", "-lm"]);
    assert_same_output(|| Command::new(&fft));
}

/// LAMMPS' times differ between runs, so only the rows of numbers are compared.
#[test]
#[ignore = "seconds: make soak; needs lammps and lammps-examples"]
fn lammps_results_match_plain_memory() {
    let numbers = |mut command: Command| {
        let input = "/usr/share/lammps/examples/melt/in.melt";
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        let printed = text(&run(command.args(["-log", "none", "-in", input])).stdout);
        let is_row =
            |line: &&str| line.contains('.') && line.split_whitespace().all(|field| field.parse::<f64>().is_ok());
        printed.lines().filter(is_row).map(str::to_owned).collect::<Vec<_>>()
    };
    let plain = numbers(Command::new("lmp"));
    assert!(plain.len() > 5, "{plain:?}");
    assert_eq!(numbers(on_heap(Command::new("lmp"))), plain);
}

/// The shell has large memory in use at every fork, so a message reports that the shell's new memory is not shared.
#[test]
fn forking_script_output_matches_plain_memory() {
    let script = "big=$(seq 1 40000); for at in $(seq 1 40); do (echo \"$big\" | cksum; echo $at) & wait; done; \
                  echo $(echo \"$big\" | tail -n 1)";
    let bash = || {
        let mut bash = Command::new("bash");
        bash.args(["-ec", script]);
        bash
    };
    let (plain, shared) = (run(&mut bash()), run(&mut on_heap(bash())));
    assert_eq!(text(&shared.stdout), text(&plain.stdout));
    let printed = text(&shared.stderr);
    assert!(printed.lines().all(|line| line.contains("the program has forked 8 times")), "{printed}");
}

/// Python creates children by fork, spawn and pool.
#[test]
fn numpy_results_match_plain_memory() {
    assert_same_output(|| {
        let mut python = Command::new("/usr/bin/python3");
        python.arg(Path::new(SOURCES).join("numeric.py")).env("OPENBLAS_NUM_THREADS", "1");
        python
    });
}

#[test]
fn system_program_output_matches_plain_memory() {
    let directory = tempfile::tempdir().expect("a directory");
    let lines = "seq 1 300000 | awk '{ print ($1 * 7919) % 300007 }'";
    assert_same_output(|| {
        shell(
            &format!("{lines} | sort | sha256sum; {lines} | sort -n --parallel=2 -S 2M | sha256sum"),
            directory.path(),
        )
    });
    let made = "cd \"$1\" && rm -rf made && git init -q made && cd made && seq 1 100000 > file && git add file && \
                git -c user.name=a -c user.email=a@b commit -q -m one --date '2020-01-01 00:00:00 +0000' && \
                seq 1 2 200000 > file && git diff --stat && git write-tree && \
                git fsck 2>&1 && git gc -q && git ls-files -s";
    assert_same_output(|| shell(made, directory.path()));
    let compiled = "for source in \"$1\"/src/[a-f]*.c; do mpicc.openmpi -O2 -S -I\"$1\"/../../crates/client/include \
                    -o - \"$source\" | sha256sum; done";
    assert_same_output(|| shell(compiled, Path::new(SHIM)));
}
