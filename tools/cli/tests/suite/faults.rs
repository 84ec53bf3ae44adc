//! Short runs of `outboard bench verdicts` and `outboard chaos`: real daemons and ranks fail on emulated clusters. All
//! survivors receive the same error, and nothing is left.
//!
//! Needs the daemon beside the command: `cargo build --workspace` first.

use crate::program::outboard;

/// This test does not judge the time of a verdict: the bench measures the time, on an otherwise idle machine.
#[test]
fn survivors_receive_the_same_verdict() {
    let directory = tempfile::tempdir().expect("a directory");
    let json = directory.path().join("verdicts.json");
    let faults = "killed-rank,killed-daemon,dead-before,dead-during,dead-after,refused-member,one-way-cut";
    let path = json.display().to_string();
    let words = ["bench", "verdicts", "--lab", "3x1gbit", "--repetitions", "1", "--only", faults, "--json", &path];
    let output = outboard(&words);
    let text = std::fs::read_to_string(&json).unwrap_or_else(|_| panic!("{output:?}"));
    let report: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let rows = report["rows"].as_array().expect("rows");
    assert_eq!(rows.len(), faults.split(',').count(), "{output:?}");
    for row in rows {
        assert_eq!(row["alike"], 1, "{row}");
    }
}

#[test]
fn chaos_leaves_nothing_and_every_verdict_is_right() {
    let words = ["chaos", "--hosts", "6", "--minutes", "0.25", "--seed", "1"];
    let output = outboard(&words);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("leftovers 0, breaches 0"), "{output:?}");
    assert!(!said.contains(" 0 calls ended well"), "{said}");
    // Only root can start programs of other users.
    let users = if rustix::process::geteuid().is_root() { 4 } else { 1 };
    assert!(said.contains(&format!(" jobs of {users} users on 6 hosts")), "{said}");
}
