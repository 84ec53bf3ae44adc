//! The command, and the C program of the ranks.
//!
//! Needs the daemon and the C library beside the command: `cargo build --workspace` first.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The path of `outboard`.
pub(crate) const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");

/// The directory of the command, the daemon and the C library.
pub(crate) fn home() -> &'static Path {
    Path::new(OUTBOARD).parent().expect("a directory")
}

/// Runs the command with these words to its end, without Outboard's variables of the caller's environment.
pub(crate) fn outboard(words: &[&str]) -> Output {
    let mut command = Command::new(OUTBOARD);
    for name in ["OUTBOARD_HOME", "OUTBOARD_SOCKET", "OUTBOARD_TUNING", "OUTBOARD_CHOICE"] {
        command.env_remove(name);
    }
    command.args(words).output().expect("the command starts")
}

/// A program from a source beside these tests, built with outboard.h and these libraries.
pub(crate) fn compiled(compiler: &str, source: &str, libraries: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
    let source = sources.join(source);
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(source.file_stem().expect("a file"));
    let output = Command::new(compiler)
        .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(sources.join("../../crates/client/include"))
        .args([Path::new("-o"), &program, &source, Path::new("-L"), home()])
        .args(libraries)
        .output()
        .unwrap_or_else(|error| panic!("{compiler} is installed: {error}"));
    assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    program
}

/// `programs/ranks.c`, compiled once.
pub(crate) fn ranks_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        for part in ["outboardd", "liboutboard.so"] {
            assert!(home().join(part).exists(), "{part} is not in {}: cargo build --workspace", home().display());
        }
        compiled("gcc", "tests/programs/ranks.c", &["-loutboard"])
    })
}
