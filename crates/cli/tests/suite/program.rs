//! The command, and the C program of the ranks.
//!
//! Needs the daemon and the C library beside the command: `cargo build --workspace` first.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The command.
pub(crate) const OUTBOARD: &str = env!("CARGO_BIN_EXE_outboard");

/// Where the command, the daemon and the C library lie.
pub(crate) fn home() -> &'static Path {
    Path::new(OUTBOARD).parent().expect("a directory")
}

/// `programs/ranks.c`, compiled once.
pub(crate) fn ranks_program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let home = home();
        for part in ["outboardd", "liboutboard.so"] {
            assert!(home.join(part).exists(), "{part} is not in {}: cargo build --workspace", home.display());
        }
        let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("ranks");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR"));
        let output = Command::new("gcc")
            .args(["-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Werror", "-I"])
            .arg(sources.join("../client/include"))
            .arg(sources.join("tests/programs/ranks.c"))
            .arg("-o")
            .arg(&program)
            .arg("-L")
            .arg(home)
            .arg("-loutboard")
            .output()
            .expect("gcc is installed");
        assert!(output.status.success(), "gcc: {}", String::from_utf8_lossy(&output.stderr));
        program
    })
}
