//! `outboard tune`: real daemons and ranks measure a cluster and write a file, which `outboard explain choice` reads.
//!
//! Needs the daemon and the C library beside the command: `cargo build --workspace` first.

use std::fs;
use std::path::Path;

use outboard_plan::selection::{Collective, Tuning};

use crate::program::{OUTBOARD, outboard};

fn read(path: &Path) -> Tuning {
    fs::read_to_string(path).expect("a file").parse().unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn a_cluster_is_measured_and_choices_by_hand_are_kept() {
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("tuning.toml");
    let path = file.to_str().expect("ASCII");
    let by_hand = "[cost]\nlatency = \"1 s\"\n[[choice.allreduce]]\nup-to = \"4 KiB\"\nalgorithm = \"rabenseifner\"\n";
    fs::write(&file, by_hand).expect("written");
    let cluster = ["tune", "--lab", "2x1gbit", "--ranks-per-host", "1,2", "--sizes", "64,64K", "--repetitions", "2"];
    let measured = outboard(&[&cluster[..], &["--output", path]].concat());
    let (said, complained) = (String::from_utf8_lossy(&measured.stdout), String::from_utf8_lossy(&measured.stderr));
    assert!(measured.status.success(), "{complained}");
    let tuning = read(&file);
    assert!(tuning.cost.latency.in_nanoseconds() < 500_000_000, "a link of a lab has no latency of a second: {said}");
    assert_eq!(tuning.rules[&Collective::Allreduce].len(), 1);
    assert!(said.contains("2 ranks on 2 hosts, 4 ranks on 2 hosts"), "{said}");
    assert!(said.contains("latency                 1 s"), "{said}");
    assert!(said.contains(&format!("digest {:08x}, with 1 choices by hand kept", tuning.digest())), "{said}");

    let call = ["explain", "choice", "allreduce", "--ranks", "4", "--hosts", "2", "--tuning", path];
    let small = outboard(&[&call[..], &["--size", "4K"]].concat());
    assert!(
        String::from_utf8_lossy(&small.stdout).contains("chosen  rabenseifner\nbecause [[choice.allreduce]] number 1")
    );
}

/// A rank whose daemon has another tuning would attribute its samples to wrong algorithms.
#[test]
fn a_rank_whose_daemon_chooses_otherwise_measures_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (theirs, output) = (directory.path().join("daemons.toml"), directory.path().join("out.toml"));
    fs::write(&theirs, "[cost]\nlatency = \"1 ms\"\n").expect("written");
    let (theirs, output) = (theirs.to_str().expect("ASCII"), output.to_str().expect("ASCII"));
    let refused =
        outboard(&["run", "-n", "2", "--tuning", theirs, "--quiet", OUTBOARD, "tune", "--rank", "--output", output]);
    assert!(!refused.status.success());
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(said.contains("chooses by a tuning of digest") && said.contains("OUTBOARD_TUNING"), "{said}");
    assert!(!Path::new(output).exists());
}

/// On real hosts any launcher starts the ranks.
#[test]
fn ranks_that_a_launcher_started_write_the_file() {
    let directory = tempfile::tempdir().expect("a directory");
    let output = directory.path().join("tuning.toml");
    let path = output.to_str().expect("ASCII");
    let rank = [OUTBOARD, "tune", "--rank", "--sizes", "64,4K", "--repetitions", "3", "--output", path];
    let measured = outboard(&[&["run", "-n", "2", "--quiet"], &rank[..]].concat());
    assert!(measured.status.success(), "{}", String::from_utf8_lossy(&measured.stderr));
    let tuning = read(&output);
    assert!(String::from_utf8_lossy(&measured.stdout).contains(&format!("digest {:08x}", tuning.digest())));
}
