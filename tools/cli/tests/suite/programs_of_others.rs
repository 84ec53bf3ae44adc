//! The launcher is transparent: programs that others wrote behave below `outboard run` as below mpirun. Their sources
//! are in `tests/cases`; the first line of each says what is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use rustix::process::Signal;

use crate::job::{Job, Outcome};
use crate::program::{compiled, home, outboard, ranks_program};

const MPICC: &str = "mpicc.openmpi";
const MPIRUN: &str = "mpirun.openmpi";
/// Everything is offloaded, so that nothing is right only because it stayed native.
const OFFLOAD: (&str, &str) = ("OUTBOARD_CHOICE", "offload");

fn cases() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")
}

/// A program of the cases, compiled with these options.
fn case(name: &str, options: &[&str]) -> String {
    text(&compiled(MPICC, &format!("tests/cases/{name}.c"), options))
}

fn hello() -> &'static str {
    static PROGRAM: OnceLock<String> = OnceLock::new();
    PROGRAM.get_or_init(|| case("hello", &[]))
}

/// A library of the cases, which gets the name `output`.
fn library(compiler: &str, name: &str, output: &str) -> PathBuf {
    library_with(compiler, name, output, &[])
}

fn library_with(compiler: &str, name: &str, output: &str, options: &[&str]) -> PathBuf {
    let library = Path::new(env!("CARGO_TARGET_TMPDIR")).join(output);
    let source = cases().join(format!("{name}.c"));
    let mut command = Command::new(compiler);
    let done = command.args(["-shared", "-fPIC", "-o"]).args([&library, &source]).args(options).output();
    let done = done.unwrap_or_else(|error| panic!("{compiler} is installed: {error}"));
    assert!(done.status.success(), "{compiler}: {}", String::from_utf8_lossy(&done.stderr));
    library
}

fn text(path: &Path) -> String {
    path.to_str().expect("a path of text").to_owned()
}

fn run(settings: &[(&str, &str)], options: &[&str], command: &[&str]) -> Outcome {
    let options = [&["-n", "2"], options].concat();
    Job::start_with(settings, &options, command).finish()
}

/// The job had two ranks that know one another, and each found everything right.
fn assert_passes(outcome: &Outcome) {
    outcome.assert_success();
    for rank in 0..2 {
        assert!(outcome.says(&format!("PASS rank {rank} of 2")), "{outcome:?}");
    }
}

/// One job of N ranks, not N jobs of one rank.
#[test]
fn an_mpi_program_behind_a_wrapper_is_one_job() {
    let script = text(&cases().join("wrapper.sh"));
    let line = format!("{} && true", hello());
    for command in [&[script.as_str()][..], &["env", "X=1", hello()], &["bash", "-c", &line], &["nice", hello()]] {
        assert_passes(&run(&[("PROGRAM", hello())], &[], command));
    }
    assert_passes(&run(&[("PROGRAM", hello())], &["--lab", "2x1gbit"], &[&script]));
}

#[test]
fn a_program_that_reaches_mpi_through_its_own_library_is_one_job() {
    let solver = library(MPICC, "solver", "libsolver.so");
    let directory = text(solver.parent().expect("a directory"));
    let path = format!("-Wl,-rpath,{directory}");
    let program = text(&compiled("gcc", "tests/cases/indirect.c", &["-L", &directory, "-lsolver", &path]));
    assert_passes(&run(&[OFFLOAD], &[], &[&program]));
}

/// A module, and a script whose own module imports mpi4py.
#[test]
fn python_programs_that_import_mpi4py_indirectly_are_one_job() {
    let cases = text(&cases());
    let script = format!("{cases}/indirect.py");
    for command in [&["/usr/bin/python3", "-m", "package"][..], &["/usr/bin/python3", &script]] {
        assert_passes(&run(&[("PYTHONPATH", &cases), ("PYTHONDONTWRITEBYTECODE", "1")], &[], command));
    }
}

/// The interpreter of a virtual environment is a link to the base interpreter.
#[test]
fn an_interpreter_stays_in_its_virtual_environment() {
    let directory = tempfile::tempdir().expect("a directory");
    let environment = text(&directory.path().canonicalize().expect("there"));
    let mut make = Command::new("/usr/bin/python3");
    make.args(["-m", "venv", "--without-pip", "--system-site-packages", &environment]);
    assert!(make.status().expect("Python").success());
    let (python, script) = (format!("{environment}/bin/python3"), text(&cases().join("indirect.py")));
    let outcome = run(&[("PYTHONDONTWRITEBYTECODE", "1")], &[], &[&python, &script]);
    assert_passes(&outcome);
    assert!(outcome.says(&format!("prefix {environment}")), "{outcome:?}");
}

#[test]
fn a_program_sees_the_word_by_which_the_user_named_it() {
    let directory = tempfile::tempdir().expect("a directory");
    let link = directory.path().join("another-name");
    std::os::unix::fs::symlink(hello(), &link).expect("fresh");
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").expect("set"));
    for (word, settings) in [(text(&link), &[][..]), ("another-name".to_owned(), &[("PATH", path.as_str())])] {
        let outcome = run(settings, &[], &[&word]);
        assert_passes(&outcome);
        assert!(outcome.prints(&format!(" as {word}")), "{outcome:?}");
    }
}

#[test]
fn libraries_that_the_user_preloads_stay() {
    let users = text(&library("gcc", "user_library", "libuser.so"));
    let program = case("preload", &["-ldl"]);
    for options in [&[][..], &["--native"], &["--lab", "2x1gbit"]] {
        assert_passes(&run(&[("LD_PRELOAD", &users), OFFLOAD], options, &[&program]));
    }
}

/// The run-time library of the sanitizer must be the first of a process.
#[test]
fn a_sanitized_program_runs_with_and_without_the_user_s_own_preload() {
    let program = case("sanitized", &["-fsanitize=address"]);
    // Open MPI's own memory stays allocated at the end.
    let settings = [("ASAN_OPTIONS", "detect_leaks=0"), OFFLOAD];
    let outcome = run(&settings, &["--report"], &[&program]);
    assert_passes(&outcome);
    assert!(outcome.counted("collectives completed") > 0, "{outcome:?}");
    let users = text(&library("gcc", "user_library", "libuser.so"));
    assert_passes(&run(&[settings[0], settings[1], ("LD_PRELOAD", &users)], &[], &[&program]));
}

/// Deaths of ranks are natively tried, because a rank that lives on may abort for the loss before mpirun sees it.
#[test]
fn the_exit_status_is_that_of_mpirun() {
    let program = case("ends", &[]);
    let natively = [("exit", 3), ("_exit", 4), ("segv", 139), ("kill", 137), ("abort", 134), ("inflight-exit", 6)];
    for (how, status) in natively {
        let outcome = run(&[], &["--native"], &[&program, how]);
        assert_eq!(outcome.exit_code(), Some(status), "{how}: {outcome:?}");
        assert!(outcome.says("rank 1 was here"), "{how}: {outcome:?}");
    }
    for (how, status) in [("mabort", 7), ("finalize-exit", 5), ("ok", 0), ("kill", 137), ("segv", 139)] {
        let outcome = run(&[OFFLOAD], &["--lab", "2x1gbit"], &[&program, how]);
        assert_eq!(outcome.exit_code(), Some(status), "{how}: {outcome:?}");
    }
}

/// Starts the program of `tests/cases/signals.c`, and waits until both ranks are up.
fn waiting_for_signals(options: &[&str]) -> Job {
    let program = case("signals", &[]);
    let mut job = Job::start_command(&[&["-n", "2"], options].concat(), &[&program]);
    for _ in 0..2 {
        job.await_line("up ");
    }
    job
}

#[test]
fn a_user_signal_reaches_every_rank_and_the_job_goes_on() {
    for options in [&[][..], &["--lab", "2x1gbit"]] {
        let job = waiting_for_signals(options);
        job.signal(Signal::USR1);
        assert_passes(&job.finish());
    }
}

#[test]
fn a_signal_that_ends_a_job_is_the_exit_status() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let job = waiting_for_signals(&[]);
        job.signal(signal);
        assert_eq!(job.finish().exit_code(), Some(status));
        let mut plain = Job::start(2, &[], "idle");
        for _ in 0..2 {
            plain.await_line("@going");
        }
        plain.signal(signal);
        assert_eq!(plain.finish().exit_code(), Some(status));
    }
}

/// A user signal ends ranks that do not handle it; the launcher lives and reports that.
#[test]
fn a_user_signal_reaches_the_ranks_of_a_plain_program() {
    let mut job = Job::start(2, &[], "idle");
    for _ in 0..2 {
        job.await_line("@going");
    }
    job.signal(Signal::USR2);
    let outcome = job.finish();
    assert_eq!(outcome.exit_code(), Some(128 + 12), "{outcome:?}");
    assert!(outcome.complains("on this machine: signal: 12"), "{outcome:?}");
}

#[test]
fn a_long_or_missing_directory_for_temporary_files_is_no_reason_to_fail() {
    let program = case("surroundings", &[]);
    let parent = tempfile::tempdir().expect("a directory");
    let long = parent.path().join("x".repeat(100));
    fs::create_dir(&long).expect("fresh");
    let missing = text(&parent.path().join("missing"));
    for temporary in [&text(&long), &missing] {
        let settings = [("TMPDIR", temporary.as_str()), ("HOME", &missing), OFFLOAD];
        let outcome = run(&settings, &["--report"], &[&program]);
        assert_passes(&outcome);
        assert!(outcome.counted("collectives completed") > 0, "{outcome:?}");
        // A plain job needs files of its own for the rendezvous, too.
        let plain = Job::start_with(&settings[..1], &["-n", "2"], &[&text(ranks_program()), "verify"]).finish();
        plain.assert_success();
    }
    let left = fs::read_dir(&long).expect("there").flatten().map(|entry| entry.file_name());
    let ours: Vec<_> = left.filter(|name| name.to_string_lossy().starts_with("outboard")).collect();
    assert!(ours.is_empty(), "{ours:?}");
}

/// The libraries that `outboard run` preloads into the ranks of MPI programs.
fn preloaded() -> String {
    let outcome = run(&[], &[], &["bash", "-c", "echo preloaded $LD_PRELOAD"]);
    let line = outcome.line_after("preloaded ").unwrap_or_else(|| panic!("a shell says it: {outcome:?}"));
    assert!(line.contains("liboutboard-mpi.so"), "{line}");
    line
}

/// A job below mpirun whose ranks find no service process, and start the job's own.
fn below_mpirun(settings: &[(&str, &str)], command: &[&str]) -> (String, bool) {
    let mut mpirun = Command::new(MPIRUN);
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]).env_remove("OUTBOARD_SOCKET");
    let library = text(&home().join("liboutboard.so"));
    let (shim, ours) = (preloaded(), ("OUTBOARD_LIBRARY", library.as_str()));
    for (name, value) in settings.iter().chain([&OFFLOAD, &ours, &("LD_PRELOAD", &shim)]) {
        mpirun.arg("-x").arg(format!("{name}={value}"));
    }
    let output = mpirun.args(command).output().expect("Open MPI");
    let said = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (said, output.status.success())
}

/// A rank starts the job's daemon.
#[test]
fn a_program_notices_nothing_of_the_daemon_that_its_rank_starts() {
    let program = case("children", &[]);
    for how in ["default", "handle", "ignore", "block"] {
        let temporary = tempfile::tempdir().expect("a directory");
        let (said, right) = below_mpirun(&[("TMPDIR", &text(temporary.path()))], &[&program, how]);
        assert!(right && said.contains("PASS rank 0 of 2") && said.contains("PASS rank 1 of 2"), "{how}: {said}");
        assert!(!said.contains("runs natively"), "{how}: {said}");
    }
}

/// The job's own daemon uses a directory with a short path.
#[test]
fn a_job_below_mpirun_starts_its_daemon_whatever_the_directory_for_temporary_files() {
    let program = case("surroundings", &[]);
    let parent = tempfile::tempdir().expect("a directory");
    let long = parent.path().join("x".repeat(100));
    fs::create_dir(&long).expect("fresh");
    for temporary in [&long, &parent.path().join("missing")] {
        let (said, right) = below_mpirun(&[("TMPDIR", &text(temporary))], &[&program]);
        assert!(right && said.contains("PASS rank 0 of 2") && said.contains("PASS rank 1 of 2"), "{said}");
        assert!(!said.contains("outboard:"), "{said}");
    }
}

#[test]
fn a_program_of_outboard_h_has_no_native_way() {
    let program = text(ranks_program());
    let output = outboard(&["run", "--native", "-n", "2", "--", &program, "verify"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success());
    assert_eq!(said, format!("outboard: {program} uses outboard.h, which has no native way: leave --native out\n"));
}

/// Without any launcher, a wrapper starts directly, and the user reads how to choose.
#[test]
fn a_wrapper_without_mpirun_starts_as_a_plain_program_with_one_sentence() {
    let directory = tempfile::tempdir().expect("a directory");
    for tool in ["setpriv", "sh", "ldd", "bash"] {
        std::os::unix::fs::symlink(format!("/usr/bin/{tool}"), directory.path().join(tool)).expect("fresh");
    }
    let path = text(directory.path());
    let outcome = run(&[("PATH", &path)], &[], &["sh", "-c", "echo started"]);
    outcome.assert_success();
    assert!(outcome.says("started") && outcome.complains("sh starts as a plain program"), "{outcome:?}");
    assert!(outcome.complains("--kind mpi"), "{outcome:?}");
}

/// The programs that every MPI library runs right natively, and the shim, too.
const ALIKE: [&str; 3] = ["outstanding", "served", "refused"];

#[test]
fn posting_waits_for_nobody_messages_are_served_and_wrong_arguments_refused() {
    for name in ALIKE {
        assert_passes(&run(&[OFFLOAD], &["--lab", "2x0"], &[&case(name, &[])]));
    }
}

#[test]
fn a_tool_that_wraps_one_function_of_a_pair_changes_nothing() {
    let program = case("below_a_tool", &[]);
    for wraps in ["1", "2", "3", "4", "5"] {
        let tool = text(&library_with(MPICC, "tool", &format!("libtool{wraps}.so"), &[&format!("-DWRAPS={wraps}")]));
        let outcome = run(&[OFFLOAD, ("LD_PRELOAD", &tool)], &["--lab", "2x0"], &[&program]);
        assert_passes(&outcome);
        assert!(outcome.says("the tool saw calls"), "{wraps}: {outcome:?}");
    }
}

/// A program of the cases for MPICH.
fn case_of_mpich(name: &str) -> String {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-mpich"));
    let source = cases().join(format!("{name}.c"));
    let made = Command::new("mpicc.mpich").args(["-w", "-o"]).args([&program, &source]).status();
    assert!(made.expect("MPICH").success());
    text(&program)
}

#[test]
#[ignore = "needs mpich and libmpich-dev"]
fn on_another_mpi_posting_waits_for_nobody_messages_are_served_and_wrong_arguments_refused() {
    for name in ALIKE {
        // Debian's MPICH does not end on emulated hosts, natively either.
        let outcome = run(&[OFFLOAD], &[], &[&case_of_mpich(name)]);
        assert_passes(&outcome);
        assert!(outcome.complains("broadcast") || outcome.complains("allgather"), "offloaded: {outcome:?}");
    }
}

/// The launcher follows from the library that the program needs, whatever `mpirun` names.
#[test]
#[ignore = "needs mpich and libmpich-dev"]
fn a_program_of_another_mpi_starts_below_its_own_launcher() {
    let program = case_of_mpich("hello");
    let wrapped = ["env", "X=1", &program];
    for command in [&[program.as_str()][..], &wrapped] {
        assert_passes(&run(&[], &[], command));
    }
}
