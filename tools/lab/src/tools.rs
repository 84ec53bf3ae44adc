//! Runs `ip`, `tc` and `nft`, which match their kernels better than code here could.

use crate::SetupFailure;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Directories of administrators' tools, searched even if PATH lacks them.
const ADMIN_DIRS: [&str; 3] = ["/usr/sbin", "/sbin", "/usr/local/sbin"];

/// The first executable file `name` in PATH or in the administrators' directories.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(ADMIN_DIRS.map(PathBuf::from))
        .map(|dir| dir.join(name))
        .find(|file| is_executable(file))
}

fn is_executable(file: &Path) -> bool {
    use rustix::fs::{Access, access};
    file.is_file() && access(file, Access::EXEC_OK).is_ok()
}

/// Runs `name` with `args` and feeds it `script`. If the exit code reports failure, standard error is the reason.
pub(crate) fn run(place: &str, name: &str, args: &[&str], script: &str) -> Result<(), SetupFailure> {
    let failure = |reason: String| SetupFailure::new(place, format!("{name} {}", args.join(" ")), reason);
    let program =
        find(name).ok_or_else(|| failure(format!("{name} not found in PATH or {}", ADMIN_DIRS.join(", "))))?;
    let mut child = Command::new(program)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| failure(e.to_string()))?;
    // A tool that stops reading early names the reason on its standard error.
    let fed = child.stdin.take().expect("piped").write_all(script.as_bytes());
    let output = child.wait_with_output().map_err(|e| failure(e.to_string()))?;
    if !output.status.success() {
        return Err(failure(format!("{}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim())));
    }
    fed.map_err(|e| failure(e.to_string()))
}
