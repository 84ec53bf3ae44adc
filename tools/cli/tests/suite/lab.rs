//! `outboard lab`: clusters that stay up between commands.

use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use crate::program::OUTBOARD;

/// Longer than any machine takes to start a cluster; a test waits this long only if it fails.
const PATIENCE: Duration = Duration::from_secs(60);

fn lab(words: &[&str], state: &std::path::Path) -> Output {
    let mut command = Command::new(OUTBOARD);
    command.arg("lab").args(words).env("XDG_RUNTIME_DIR", state);
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the command starts");
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || done.send(child.wait_with_output()));
    let output = ended.recv_timeout(PATIENCE).unwrap_or_else(|_| panic!("{words:?} keeps its caller's output open"));
    output.expect("the command's output")
}

/// A cluster in the background must not hold the pipes of the command that started it, or `outboard lab up | tail`
/// would wait.
#[test]
fn a_cluster_in_the_background_leaves_its_callers_output_and_is_listed() {
    let state = tempfile::tempdir().expect("a directory");
    let up = lab(&["up", "2x500mbit+dpu", "--name", "listed"], state.path());
    assert!(up.status.success(), "{up:?}");
    let listed = lab(&["list"], state.path());
    let down = lab(&["down", "--name", "listed"], state.path());
    assert!(down.status.success(), "{down:?}");
    let table = String::from_utf8(listed.stdout).expect("text");
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["name", "hosts", "shape", "process"], "{table}");
    assert_eq!(rows[1][..3], ["listed", "2", "2x500mbit+dpu"], "{table}");
    assert!(rows[1][3].parse::<u32>().is_ok() && rows.len() == 2, "{table}");
    let again = lab(&["down", "--name", "listed"], state.path());
    assert!(String::from_utf8_lossy(&again.stderr).contains("outboard lab up 4x1gbit --name listed"), "{again:?}");
}
