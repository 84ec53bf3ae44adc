//! Programs inside hosts: they run as if started here, and hosts behave as separate machines.

use crate::{output, shell, start};
use outboard_lab::{Lab, LabError};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("programs_run_as_if_started_here", programs_run_as_if_started_here),
    ("signals_reach_the_program", signals_reach_the_program),
    ("a_killed_client_takes_its_program_along", a_killed_client_takes_its_program_along),
    ("programs_that_cannot_run_are_named", programs_that_cannot_run_are_named),
    ("a_remote_shell_leads_from_host_to_host", a_remote_shell_leads_from_host_to_host),
    ("hosts_share_neither_memory_nor_processes", hosts_share_neither_memory_nor_processes),
    ("temporary_files_are_of_one_host", temporary_files_are_of_one_host),
    ("hosts_know_each_other_by_name", hosts_know_each_other_by_name),
];

fn programs_run_as_if_started_here() {
    let lab = start("2x1gbit");
    let mut command = shell(&lab, "h2", "hostname; pwd; echo $GREETING; cat; echo on-stderr >&2; exit 7");
    command.current_dir("/usr").env("GREETING", "hello there").stdin(Stdio::piped());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"typed\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "h2\n/usr\nhello there\ntyped\n");
    assert_eq!(String::from_utf8_lossy(&output.stderr), "on-stderr\n");
    assert_eq!(output.status.code(), Some(7));
    let by_signal = shell(&lab, "h1", "kill -9 $$").status().unwrap();
    assert_eq!(by_signal.signal(), Some(libc::SIGKILL));
    let by_address = lab.command("10.77.0.2", "hostname").unwrap().output().unwrap();
    assert_eq!(by_address.stdout, b"h2\n");
}

fn signal(child: &Child, signal: i32) {
    let pid = i32::try_from(child.id()).unwrap();
    // SAFETY: kill touches no memory; the child has not been waited for, so its id is not reused.
    assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
}

/// Starts `line`, whose first line of output is `ready`.
fn start_ready(lab: &Lab, line: &str) -> (Child, BufReader<std::process::ChildStdout>) {
    let mut child = shell(lab, "h1", line).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdout = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    stdout.read_line(&mut first).unwrap();
    assert_eq!(first, "ready\n");
    (child, stdout)
}

fn signals_reach_the_program() {
    let lab = start("1x1gbit");
    for (number, name) in [(libc::SIGTERM, "TERM"), (libc::SIGINT, "INT"), (libc::SIGHUP, "HUP")] {
        let line = format!("trap 'exit 9' {name}; echo ready; while :; do sleep 0.01; done");
        let (mut child, _stdout) = start_ready(&lab, &line);
        signal(&child, number);
        assert_eq!(child.wait().unwrap().code(), Some(9), "{name}");
    }
}

fn a_killed_client_takes_its_program_along() {
    let lab = start("1x1gbit");
    // The program ignores signals and has a child, so only SIGKILL for the whole session helps.
    let (mut child, mut stdout) =
        start_ready(&lab, "trap '' TERM INT HUP; sh -c 'echo ready; sleep 1000' & wait; sleep 1000");
    signal(&child, libc::SIGKILL);
    child.wait().unwrap();
    // The pipe ends when the last process that holds it has ended.
    let mut rest = String::new();
    stdout.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "");
}

fn programs_that_cannot_run_are_named() {
    let lab = start("2x1gbit");
    let output = lab.command("h2", "no-such-program").unwrap().output().unwrap();
    let stderr = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(255));
    assert!(stderr.contains("h2 cannot run 'no-such-program'"), "{stderr}");
    match lab.command("h3", "true") {
        Err(LabError::NoSuchHost { host, hosts }) => assert_eq!((host.as_str(), hosts), ("h3", 2)),
        other => panic!("{other:?}"),
    }
}

fn a_remote_shell_leads_from_host_to_host() {
    let lab = start("3x1gbit");
    let words = lab.remote_shell().unwrap().map(|word| word.into_string().unwrap());
    let agent = words.join(" ");
    // MPI launchers call ssh this way: options first, then a command line in words that the remote shell parses.
    let line =
        format!("{agent} -x -l someone h2 hostname ';' 'echo $((40 + 2))'; echo $?; {agent} me@h3 exit 5; echo $?");
    assert_eq!(output(&lab, "h1", &line), "h2\n42\n0\n5");
}

fn hosts_share_neither_memory_nor_processes() {
    let lab = start("2x1gbit");
    output(&lab, "h1", "echo secret > /dev/shm/secret; echo secret > /run/outboard/secret");
    assert_eq!(output(&lab, "h1", "cat /dev/shm/secret /run/outboard/secret"), "secret\nsecret");
    assert_eq!(output(&lab, "h2", "ls /dev/shm /run/outboard"), "/dev/shm:\n\n/run/outboard:\nboot_id");
    let (mut sleeper, _stdout) = start_ready(&lab, "echo ready; exec sleep 4711");
    let count = "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 471[1]' || true";
    assert_eq!(output(&lab, "h1", count), "1");
    assert_eq!(output(&lab, "h2", count), "0");
    let namespaces = "for n in net pid mnt ipc uts; do readlink /proc/self/ns/$n; done";
    let (one, two) = (output(&lab, "h1", namespaces), output(&lab, "h2", namespaces));
    assert_eq!(one.lines().count(), 5);
    assert!(one.lines().zip(two.lines()).all(|(one, two)| one != two), "{one} {two}");
    let boot_id = "cat /proc/sys/kernel/random/boot_id";
    assert_ne!(output(&lab, "h1", boot_id), output(&lab, "h2", boot_id));
    assert_eq!(output(&lab, "h2", "ls /sys/class/net"), "eth0\nlo");
    signal(&sleeper, libc::SIGKILL);
    sleeper.wait().unwrap();
}

/// Daemons of launchers name directories by process ids. Hosts that start alike have equal process ids.
fn temporary_files_are_of_one_host() {
    let lab = start("2x1gbit");
    let shared = tempfile::tempdir().unwrap();
    let agent = lab.remote_shell().unwrap().map(|word| word.into_string().unwrap()).join(" ");
    let in_host = |host, line: &str| {
        let said = shell(&lab, host, line).env("TMPDIR", shared.path()).output().unwrap();
        assert!(said.status.success(), "{line} in {host}: {said:?}");
        String::from_utf8(said.stdout).unwrap()
    };
    // The first programs of both hosts have equal ids, and neither finds the other's file.
    let session = "me=$TMPDIR/daemon.$$; ls $TMPDIR; echo of $(hostname) > $me; echo $me";
    let (one, two) = (in_host("h1", session), in_host("h2", session));
    assert_eq!(one, two, "one name, and no file before");
    assert_eq!(one.lines().count(), 1, "{one}");
    // A program uses its host's directory, however the program was started there.
    let read = format!("cat {}", one.trim_end());
    assert_eq!(in_host("h1", &format!("{read}; {agent} h2 '{read}; echo $TMPDIR'; echo $TMPDIR")), {
        let directory = Path::new(one.trim_end()).parent().unwrap().display();
        format!("of h1\nof h2\n{directory}\n{directory}\n")
    });
    assert_eq!(in_host("h2", "stat -c %a $TMPDIR"), "1777\n");
    // All other directories are shared.
    in_host("h1", &format!("echo from h1 > {}/file", shared.path().display()));
    assert_eq!(in_host("h2", &format!("cat {}/file", shared.path().display())), "from h1\n");
    assert_eq!(std::fs::read_dir(shared.path()).unwrap().count(), 1, "nothing but that file");
}

fn hosts_know_each_other_by_name() {
    let lab = start("3x1gbit");
    for host in 1..=3 {
        let line = format!("getent hosts h{host} | cut -d ' ' -f 1");
        assert_eq!(output(&lab, "h1", &line), lab.address(host).to_string());
    }
}
