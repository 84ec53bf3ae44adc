//! `outboard compare`: which runs it makes, in which order, and what it prints. No time is asserted.

use std::process::Command;

use crate::program::OUTBOARD;

/// A program for which mpirun needs no MPI: it notes how it was started, and leaves a choice file as the shim does.
const NOTES: &str = r#"case "$LD_PRELOAD" in *outboard-mpi*) way=$OUTBOARD_CHOICE ;; *) way=native ;; esac
before=no; [ -e "$OUTBOARD_CHOICE_FILE" ] && before=yes
[ "$way" = native ] || echo learnt >> "$OUTBOARD_CHOICE_FILE"
echo "$way $before" >> "$NOTES"
[ -z "$FAIL" ] || { echo "no such matrix" >&2; exit 3; }"#;

struct Compared {
    success: bool,
    output: String,
    errors: String,
    runs: Vec<String>,
}

fn compare(directory: &std::path::Path, options: &[&str], fails: bool) -> Compared {
    let notes = directory.join("notes");
    std::fs::write(&notes, "").expect("written");
    let mut command = Command::new(OUTBOARD);
    command.arg("compare").args(options).args(["-n", "1", "--kind", "mpi", "--", "/bin/sh", "-c", NOTES]);
    command.env("NOTES", &notes).env("TMPDIR", directory).env("FAIL", if fails { "1" } else { "" });
    for name in ["OUTBOARD_HOME", "OUTBOARD_SOCKET", "OUTBOARD_CHOICE", "OUTBOARD_CHOICE_FILE", "OUTBOARD_MPI"] {
        command.env_remove(name);
    }
    let output = command.output().expect("the command starts");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let runs = std::fs::read_to_string(notes).expect("there").lines().map(str::to_owned).collect();
    Compared { success: output.status.success(), output: text(&output.stdout), errors: text(&output.stderr), runs }
}

/// First the run that learns; then each round, forwards and backwards. A run by default finds nothing learnt.
#[test]
fn ways_are_run_in_turn_and_only_one_finds_what_was_learnt() {
    let directory = tempfile::tempdir().expect("a directory");
    let kept = directory.path().join("kept.tsv");
    let options = ["--rounds", "2", "--keep", kept.to_str().expect("ASCII")];
    let compared = compare(directory.path(), &options, false);
    assert!(compared.success, "{}", compared.errors);
    let [native, default, learnt] = ["native no", "adaptive no", "adaptive yes"];
    assert_eq!(compared.runs, ["learn no", native, default, learnt, learnt, default, native]);
    let lines: Vec<&str> = compared.output.lines().collect();
    assert_eq!(lines.len(), 5, "{}", compared.output);
    for (line, way) in lines[1..4].iter().zip(["natively ", "by default ", "learnt "]) {
        assert!(line.starts_with(way) && line.ends_with(" 2"), "{}", compared.output);
    }
    assert!(lines[4].contains("spread up to") && lines[4].contains(": keep "), "{}", compared.output);
    assert_eq!(std::fs::read_to_string(kept).expect("kept").lines().count(), 3, "the learning run and two rounds");
    let left = directory.path().read_dir().expect("there").flatten().filter(|entry| entry.path().is_dir());
    assert_eq!(left.count(), 0, "the cache was temporary");
}

#[test]
fn a_run_that_fails_ends_the_comparison_with_the_program_s_words() {
    let directory = tempfile::tempdir().expect("a directory");
    let compared = compare(directory.path(), &[], true);
    assert!(!compared.success && compared.output.is_empty(), "{}", compared.output);
    assert_eq!(compared.runs, ["learn no"], "no further run");
    assert!(compared.errors.contains("no such matrix") && compared.errors.contains("OUTBOARD_CHOICE=learn"));
}

#[test]
fn an_option_that_each_run_sets_is_refused() {
    let directory = tempfile::tempdir().expect("a directory");
    let compared = compare(directory.path(), &["--native"], false);
    assert!(!compared.success && compared.runs.is_empty());
    assert!(compared.errors.contains("--native: `outboard compare` sets it"), "{}", compared.errors);
}
