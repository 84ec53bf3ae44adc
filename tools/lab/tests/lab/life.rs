//! The end of labs: together with their owner, however the owner ends; on request; after their processes were killed.

use crate::{output, shell, start};
use outboard_lab::{Lab, LabError};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("dropping_a_lab_ends_it", dropping_a_lab_ends_it),
    ("nothing_outlives_a_killed_owner", || owner_ends_by(Signal::KILL)),
    ("nothing_outlives_an_interrupted_owner", || owner_ends_by(Signal::INT)),
    ("nothing_outlives_a_killed_switch_process", nothing_outlives_a_killed_switch_process),
    ("a_crashed_host_takes_its_programs_alone", a_crashed_host_takes_its_programs_alone),
    ("detached_labs_live_until_they_are_ended", detached_labs_live_until_they_are_ended),
    ("the_remains_of_a_killed_lab_do_not_disturb", the_remains_of_a_killed_lab_do_not_disturb),
    ("names_of_labs_are_file_names", names_of_labs_are_file_names),
    ("labs_need_no_privileges", labs_need_no_privileges),
    ("a_failed_start_says_what_to_do", a_failed_start_says_what_to_do),
    ("the_probe_agrees_that_labs_work_here", the_probe_agrees_that_labs_work_here),
];

/// Longer than any machine takes to end processes; only a failing test waits so long.
const PATIENCE: Timespec = Timespec { tv_sec: 30, tv_nsec: 0 };

/// Runs the role that the command line names, if any.
pub(crate) fn run_if_requested() {
    match std::env::args().nth(1).as_deref() {
        Some("life-owner") => own(),
        Some("life-failing-owner") => {
            let error = Lab::start(&"1x1gbit".parse().unwrap()).expect_err("no privileges");
            println!("{error}; {}", error.remedy());
        }
        _ => return,
    }
    std::process::exit(0)
}

/// Starts a lab with a program inside, prints its process ids, and lives until killed.
fn own() {
    let lab = start("2x1gbit");
    let mut child = shell(&lab, "h2", "id -u; hostname; exec sleep 1000").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (uid, host) = (lines.next().unwrap().unwrap(), lines.next().unwrap().unwrap());
    let pids: Vec<String> = all_pids(&lab).iter().map(i32::to_string).collect();
    println!("{uid} {host} {} {}", pids.join(","), lab.counters().unwrap().len());
    child.wait().unwrap();
}

fn all_pids(lab: &Lab) -> Vec<i32> {
    std::iter::once(lab.switch_pid()).chain(lab.host_pids().iter().copied()).collect()
}

fn watch(pids: &[i32]) -> Vec<OwnedFd> {
    let open = |pid: &i32| rustix::process::pidfd_open(Pid::from_raw(*pid).unwrap(), PidfdFlags::empty());
    pids.iter().map(|pid| open(pid).expect("the process lives")).collect()
}

fn assert_end(watched: &[OwnedFd]) {
    for pidfd in watched {
        let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
        let ready = rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&PATIENCE))).unwrap();
        assert_eq!(ready, 1, "a process of the lab lives on");
    }
}

fn live(watched: &[OwnedFd]) -> usize {
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    let lives = |pidfd| rustix::event::poll(&mut [PollFd::new(pidfd, PollFlags::IN)], Some(&now)).unwrap() == 0;
    watched.iter().filter(|pidfd| lives(*pidfd)).count()
}

fn dropping_a_lab_ends_it() {
    let lab = start("3x1gbit");
    let watched = watch(&all_pids(&lab));
    let daemon = output(&lab, "h1", "setsid sleep 1000 > /dev/null 2>&1 & echo started");
    assert_eq!(daemon, "started");
    assert_eq!(live(&watched), 4);
    drop(lab);
    assert_eq!(live(&watched), 0, "all gone when drop returns");
}

/// Starts an owner by `command`; returns its printed words and its lab's processes.
fn start_owner(command: &mut Command) -> (Child, Vec<String>, Vec<OwnedFd>) {
    let mut owner = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(owner.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    assert_eq!(words.len(), 4, "{line}");
    let pids: Vec<i32> = words[2].split(',').map(|pid| pid.parse().unwrap()).collect();
    let watched = watch(&pids);
    (owner, words, watched)
}

fn owner_ends_by(signal: Signal) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    // The owner has its own process group. The signal goes to the whole group, as with Ctrl-C on a terminal.
    let (mut owner, words, watched) = start_owner(command.arg("life-owner").process_group(0));
    assert_eq!((words[1].as_str(), watched.len()), ("h2", 3));
    rustix::process::kill_process_group(Pid::from_child(&owner), signal).unwrap();
    owner.wait().unwrap();
    assert_end(&watched);
}

fn nothing_outlives_a_killed_switch_process() {
    let lab = start("2x1gbit");
    let watched = watch(&all_pids(&lab));
    rustix::process::kill_process(Pid::from_raw(lab.switch_pid()).unwrap(), Signal::KILL).unwrap();
    assert_end(&watched);
    assert!(matches!(lab.counters(), Err(LabError::Gone { .. })));
}

fn a_crashed_host_takes_its_programs_alone() {
    let lab = start("3x1gbit");
    let mut child = shell(&lab, "h2", "exec sleep 1000").spawn().unwrap();
    let watched = watch(lab.host_pids());
    lab.crash(2).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(255), "the client says that its host is gone");
    assert_eq!(live(&watched), 2);
    assert_eq!(output(&lab, "h3", "hostname"), "h3");
    assert!(lab.counters().unwrap_err().to_string().contains("h2 is down"));
    assert!(lab.crash(2).unwrap_err().to_string().contains("h2 is down already"));
    assert!(lab.crash(4).unwrap_err().to_string().contains("no host 4"));
}

fn detached_labs_live_until_they_are_ended() {
    let name = Some("detached");
    let lab = Lab::up(name, &"2x1gbit".parse().unwrap()).unwrap();
    let watched = watch(&all_pids(&lab));
    drop(lab);
    assert_eq!(live(&watched), 3);
    match Lab::up(name, &"4x1gbit".parse().unwrap()) {
        Err(LabError::AlreadyUp { spec, .. }) => assert_eq!(spec, "2x1gbit"),
        other => panic!("{other:?}"),
    }
    let labs = outboard_lab::list().unwrap();
    assert!(labs.iter().any(|lab| lab.name == "detached" && lab.spec.hosts() == 2), "{labs:?}");
    let found = Lab::attach(name).unwrap();
    assert_eq!(output(&found, "h2", "hostname"), "h2");
    assert_eq!(found.counters().unwrap().len(), 2);
    Lab::down(name).unwrap();
    assert_eq!(live(&watched), 0, "all gone when down returns");
    assert!(matches!(Lab::attach(name), Err(LabError::NotUp { .. })));
    assert!(matches!(Lab::down(name), Err(LabError::NotUp { .. })));
}

fn the_remains_of_a_killed_lab_do_not_disturb() {
    let name = Some("killed");
    let lab = Lab::up(name, &"2x1gbit".parse().unwrap()).unwrap();
    let watched = watch(&all_pids(&lab));
    rustix::process::kill_process(Pid::from_raw(lab.switch_pid()).unwrap(), Signal::KILL).unwrap();
    assert_end(&watched);
    assert!(outboard_lab::list().unwrap().iter().all(|lab| lab.name != "killed"));
    let again = Lab::up(name, &"3x1gbit".parse().unwrap()).unwrap();
    let watched = watch(&all_pids(&again));
    // The switch process ends when no host is left.
    for pid in again.host_pids() {
        rustix::process::kill_process(Pid::from_raw(*pid).unwrap(), Signal::KILL).unwrap();
    }
    assert_end(&watched);
    let third = Lab::up(name, &"1x1gbit".parse().unwrap()).unwrap();
    assert_eq!(output(&third, "h1", "hostname"), "h1");
    Lab::down(name).unwrap();
}

fn names_of_labs_are_file_names() {
    for name in ["", "../up", "a b", "a/b", ".hidden"] {
        assert!(matches!(Lab::attach(Some(name)), Err(LabError::Name { .. })), "{name}");
    }
}

/// A command that runs this program as a user without privileges.
fn unprivileged(dir: &Path) -> Command {
    let copy = dir.join("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    if !rustix::process::geteuid().is_root() {
        return Command::new(copy);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(copy);
    command
}

fn labs_need_no_privileges() {
    let dir = tempfile::tempdir().unwrap();
    let (mut owner, words, watched) = start_owner(unprivileged(dir.path()).arg("life-owner"));
    assert_eq!(words[..2], ["0", "h2"], "root of its own user namespace");
    assert_eq!(words[3], "2", "counters of both ports");
    owner.kill().unwrap();
    owner.wait().unwrap();
    assert_end(&watched);
}

fn a_failed_start_says_what_to_do() {
    let mut command = Command::new("unshare");
    command.args(["--user", "--map-root-user", "sh", "-c"]);
    command.arg("echo 0 > /proc/sys/user/max_net_namespaces && exec \"$0\" life-failing-owner");
    let output = command.arg(std::env::current_exe().unwrap()).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("unshare") && text.contains("sysctl"), "{output:?}");
}

fn the_probe_agrees_that_labs_work_here() {
    let checks = outboard_lab::probe();
    assert!(checks.len() >= 5);
    for check in checks {
        assert!(check.ok && check.remedy.is_empty(), "{check:?}");
    }
}
