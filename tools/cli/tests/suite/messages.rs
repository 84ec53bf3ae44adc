//! Common rules of all commands: paths of output, quantities, unknown variables, pipes, interrupts, sentences.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::job::Job;
use crate::program::{OUTBOARD, home, outboard, ranks_program};

/// The longest time until a process is seen in a state.
const LIMIT: Duration = Duration::from_secs(60);

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Every command that writes a file, with a path that cannot be written. The directory for temporary files shows that
/// no work was begun.
#[test]
fn a_path_that_cannot_be_written_is_refused_before_any_work() {
    let temporary = tempfile::tempdir().expect("a directory");
    for path in ["/nonexistent/file", "/proc"] {
        for words in [
            format!("run --trace {path} -- /bin/true"),
            format!("compare --keep {path} -- /bin/true"),
            format!("bench allgather --json {path}"),
            format!("bench grid --json {path}"),
            format!("bench grid --markdown {path}"),
            format!("bench programs --json {path}"),
            format!("bench verdicts --json {path}"),
            format!("bench readme --json {path} x.json"),
            format!("bench readme --excerpt {path} x.json"),
            format!("sim allgather --engine triggered --profile cluster-a --trace {path}"),
            format!("sim allreduce --profile tianhe --trace {path}"),
            format!("tune --lab 2x1gbit --output {path}"),
            format!("trace {path} /dev/null"),
            format!("explain settings --page {path}"),
        ] {
            let mut command = Command::new(OUTBOARD);
            command.args(words.split(' ')).env("TMPDIR", temporary.path());
            let refused = command.output().expect("the command starts");
            let said = errors(&refused);
            assert!(!refused.status.success() && said.contains(path), "{words}: {said}");
            assert!(said.contains("there is no directory") || said.contains("it is a directory"), "{words}: {said}");
            let begun = temporary.path().read_dir().expect("there").count();
            assert_eq!((begun, refused.stdout.len()), (0, 0), "{words} began: {said}");
        }
    }
    let report = Command::new(OUTBOARD)
        .args(["run", "--", "/bin/true"])
        .env("OUTBOARD_MPI_REPORT", "/nonexistent/report")
        .env("TMPDIR", temporary.path())
        .output()
        .expect("the command starts");
    assert!(!report.status.success() && errors(&report).contains("OUTBOARD_MPI_REPORT names"), "{report:?}");
    assert_eq!(temporary.path().read_dir().expect("there").count(), 0, "{report:?}");
}

#[test]
fn a_loss_has_the_same_forms_in_labs_and_simulations() {
    let played = |loss: &str| {
        let output = outboard(&["sim", "allgather", "--ranks", "4", "--seeds", "3", "--loss", loss]);
        assert!(output.status.success(), "{loss}: {}", errors(&output));
        String::from_utf8(output.stdout).expect("text")
    };
    assert_eq!(played("20%"), played("0.2"));
    assert_ne!(played("20%"), played("0.2%"));
    for words in
        [&["sim", "allgather", "--loss", "much"][..], &["run", "--lab", "2x1gbit", "--loss", "much", "--", "true"]]
    {
        let said = errors(&outboard(words));
        assert!(said.contains("`5%`") && said.contains("`0.05`"), "{words:?}: {said}");
    }
}

/// One quantity of each kind in each command that reads it, with the start of the sentence that shows the forms.
#[test]
fn a_wrong_quantity_is_answered_with_its_forms_in_every_command() {
    let (size, time, rate) = ["such as `64K`", "such as `12.5 us`", "such as `2.5gbit`"].into();
    for (words, forms) in [
        ("sim allgather --size much", size),
        ("sim allreduce --eager-bytes much", size),
        ("explain allgather --size much", size),
        ("explain allreduce --element-bytes much", size),
        ("explain choice allgather --ranks 4 --size much", size),
        ("bench allgather --sizes much", size),
        ("bench recorded --sizes much", size),
        ("bench radix --keys much", size),
        ("tune --lab 2x1gbit --sizes much", size),
        ("lab up 2x1gbit --mtu much", size),
        ("top --interval much", time),
        ("chaos --minutes much", time),
        ("run --watchdog much -- true", time),
        ("sim allgather --engine host --tests-every much", time),
        ("chaos --rate much", rate),
        ("explain choice allgather --ranks 4 --link-rate much", rate),
        ("run --lab 2x1gbit+dpu --pcie much -- true", rate),
    ] {
        let refused = outboard(&words.split(' ').collect::<Vec<_>>());
        let said = errors(&refused);
        assert!(!refused.status.success() && said.contains("`much` is no"), "{words}: {said}");
        assert!(said.contains(forms), "{words}: {said}");
    }
}

#[test]
fn output_to_a_pipe_has_no_escape_codes() {
    for words in [
        &["--help"][..],
        &["run", "--help"],
        &["run", "--no-such-option"],
        &["sim", "mixed", "--seeds", "1"],
        &["top", "--once", "/nonexistent/socket"],
        &["explain", "choice", "allgather", "--ranks", "4"],
    ] {
        let output = outboard(words);
        let escape = |bytes: &[u8]| bytes.contains(&0x1b);
        assert!(!escape(&output.stdout) && !escape(&output.stderr), "{words:?}: {output:?}");
        assert!(!output.stdout.is_empty() || !output.stderr.is_empty(), "{words:?}");
    }
}

#[test]
fn an_unknown_variable_is_reported_once_in_a_job() {
    let program = ranks_program().to_str().expect("a path of text");
    let settings = [("OUTBOARD_CHIOCE", "learn"), ("OUTBOARD_TEST_JOBS", "1")];
    let outcome = Job::start_with(&settings, &["-n", "3"], &[program, "verify"]).finish();
    outcome.assert_success();
    let said = "outboard: OUTBOARD_CHIOCE has no effect, no program reads it; did you mean OUTBOARD_CHOICE?";
    assert_eq!(outcome.complaints(said), 1, "{outcome:?}");
    assert_eq!(outcome.complaints("OUTBOARD_TEST_JOBS has no effect"), 1, "{outcome:?}");
    assert_eq!(outcome.complaints("has no effect"), 2, "variables of `outboard run` itself are known: {outcome:?}");
}

/// Whether the process has a handler for SIGINT.
fn handles_interrupts(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("it lives");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("procfs");
    u64::from_str_radix(caught.trim(), 16).expect("a mask") & 2 != 0
}

/// Interrupts a command once it has its handler, and returns its exit status.
fn interrupt(words: &[&str], temporary: &std::path::Path) -> Option<i32> {
    // Below nohup commands ignore signals that end them.
    let mut command = Command::new("env");
    command.args(["--default-signal=HUP", OUTBOARD]).args(words).env("TMPDIR", temporary);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the command starts");
    let deadline = Instant::now() + LIMIT;
    while !handles_interrupts(child.id()) {
        assert!(Instant::now() < deadline && child.try_wait().expect("ours").is_none(), "{words:?} takes no signals");
        std::thread::yield_now();
    }
    kill_process(Pid::from_child(&child), Signal::INT).expect("it lives");
    child.wait().expect("ours").code()
}

#[test]
fn an_interrupt_ends_every_command_with_130() {
    let mut job = Job::start(2, &[], "idle");
    (0..2).for_each(|_| job.await_line("@going"));
    for words in [
        &["top"][..],
        &["sim", "mixed", "--seeds", "100000000"],
        &["sim", "allreduce", "--engine", "ordered", "--seeds", "100000000"],
        &["bench", "allgather", "--lab", "2x1gbit", "--repetitions", "100000"],
    ] {
        assert_eq!(interrupt(words, job.temporary()), Some(130), "{words:?}");
    }
    job.signal(Signal::INT);
    assert_eq!(job.reap().code(), Some(130));
}

/// Ranks without `outboard run` start a daemon of their own. Its line begins with the host, also in a pipe.
#[test]
fn top_finds_a_job_s_own_daemon_and_shows_one_line_with_the_host_first() {
    let temporary = tempfile::tempdir().expect("a directory");
    let mut rank = Command::new(ranks_program())
        .arg("idle")
        .env("TMPDIR", temporary.path())
        .env("XDG_RUNTIME_DIR", temporary.path())
        .env("LD_LIBRARY_PATH", home())
        .env("OUTBOARD_RANK", "0")
        .env("OUTBOARD_WORLD_SIZE", "1")
        .env_remove("OUTBOARD_SOCKET")
        .stdout(Stdio::piped())
        .spawn()
        .expect("the program starts");
    let mut line = String::new();
    BufReader::new(rank.stdout.take().expect("piped")).read_line(&mut line).expect("text");
    let top = |words: &[&str]| {
        let mut command = Command::new(OUTBOARD);
        command.arg("top").args(words).env("TMPDIR", temporary.path()).env("XDG_RUNTIME_DIR", temporary.path());
        command.output().expect("the command starts")
    };
    let (table, json) = (top(&["--once"]), top(&["--once", "--json"]));
    rank.kill().expect("it lives");
    rank.wait().expect("ours");
    assert_eq!(line, "@going rank 0\n");
    let table = String::from_utf8(table.stdout).expect("text");
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let lines: Vec<&str> = table.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("host ") && lines[1].starts_with(&format!("{host} ")), "{table}");
    let json = String::from_utf8(json.stdout).expect("text");
    assert!(json.lines().count() == 1 && json.starts_with(&format!("{{\"host\":\"{host}\"")), "{json}");
}

#[test]
fn a_missing_interface_is_one_sentence_that_names_it() {
    let refused = outboard(&["doctor", "--interface", "nonexistent0"]);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{refused:?}");
    let said = errors(&refused);
    assert!(said.starts_with("outboard: there is no network interface nonexistent0 ("), "{said}");
    assert_eq!((said.lines().count(), said.matches("nonexistent0").count()), (1, 1), "{said}");
}
