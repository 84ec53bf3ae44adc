//! Installs the peers' packages into a directory of the user, once.
//!
//! A package is a virtual environment in `PEERS_DIR/NAME-VERSION`; a file inside marks it as complete. Concurrent runs
//! take turns by a lock file. Nothing outside that directory changes, except for a Debian program that apt installs.

use crate::job::run_tool;
use crate::{BenchError, Peer};
use rustix::fs::FlockOperation;
use rustix::time::Timespec;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

const COMPLETE: &str = ".outboard-complete";
const VENV_LIMIT: Timespec = Timespec { tv_sec: 300, tv_nsec: 0 };
/// The largest peer is 100 MB.
const DOWNLOAD_LIMIT: Timespec = Timespec { tv_sec: 1800, tv_nsec: 0 };
const PIP_REMEDY: &str = "python3 with venv and pip are needed (apt-get install python3-venv) and a way to a Python package \
                          index (pip's own settings and proxies apply); or leave this peer out of --peers";
const DEBIAN_REMEDY: &str = "apt-get install openmpi-bin libopenmpi-dev; or leave this peer out of --peers";

/// The compiler wrapper of Debian's Open MPI, by the name that it keeps if another MPI library is installed, too.
pub(crate) const DEBIAN_MPICC: &str = "/usr/bin/mpicc.openmpi";
pub(crate) const DEBIAN_MPIRUN: &str = "/usr/bin/mpirun.openmpi";
pub(crate) const DEBIAN_LAMMPS: &str = "/usr/bin/lmp";

/// Makes sure that programs can be run by `peer`. A peer that can be downloaded is installed for this user.
///
/// # Errors
/// [`BenchError::Install`], with what to do.
pub fn ensure(peer: Peer, peers_dir: &Path) -> Result<(), BenchError> {
    let prefix = prefix(peer, peers_dir);
    let failed =
        |reason: String, remedy| BenchError::Install { peer: peer.name(), directory: prefix.clone(), reason, remedy };
    let packages = peer.packages();
    if packages.is_empty() {
        return debian_has(peer, DEBIAN_MPIRUN);
    }
    // The lock is held as long as the file is open.
    let _lock = lock(peers_dir).map_err(|error| failed(error.to_string(), "choose another directory"))?;
    if prefix.join(COMPLETE).exists() {
        return Ok(());
    }
    install(&prefix, packages).map_err(|reason| failed(reason, PIP_REMEDY))
}

/// Makes sure that programs can be compiled for `peer` and run by it, as [`ensure`] does.
///
/// # Errors
/// [`BenchError::Install`], with what to do.
pub fn ensure_compiler(peer: Peer, peers_dir: &Path) -> Result<(), BenchError> {
    ensure(peer, peers_dir)?;
    if peer.packages().is_empty() { debian_has(peer, DEBIAN_MPICC) } else { Ok(()) }
}

fn debian_has(peer: Peer, program: &str) -> Result<(), BenchError> {
    if Path::new(program).exists() {
        return Ok(());
    }
    let (directory, reason) = ("/usr".into(), format!("{program} is missing"));
    Err(BenchError::Install { peer: peer.name(), directory, reason, remedy: DEBIAN_REMEDY })
}

/// Makes sure that Debian's LAMMPS is there, which is linked to Debian's Open MPI.
pub(crate) fn ensure_lammps() -> Result<(), BenchError> {
    if Path::new(DEBIAN_LAMMPS).exists() {
        return Ok(());
    }
    let mut apt = Command::new("apt-get");
    apt.args(["install", "--yes", "--no-install-recommends", "lammps"]).env("DEBIAN_FRONTEND", "noninteractive");
    run_tool(apt, &DOWNLOAD_LIMIT).map_err(|reason| BenchError::Install {
        peer: "lammps",
        directory: "/usr".into(),
        reason,
        remedy: "as root: apt-get update && apt-get install lammps; or leave the program out with --only",
    })
}

/// The directory in which the packages of `peer` are or will be installed.
pub(crate) fn prefix(peer: Peer, peers_dir: &Path) -> PathBuf {
    match peer.packages().first().and_then(|package| package.split_once("==")) {
        Some((_, version)) => peers_dir.join(format!("{}-{version}", peer.name())),
        None => PathBuf::from("/usr"),
    }
}

fn lock(peers_dir: &Path) -> io::Result<File> {
    fs::create_dir_all(peers_dir)?;
    let file = File::create(peers_dir.join("lock"))?;
    rustix::io::retry_on_intr(|| rustix::fs::flock(&file, FlockOperation::LockExclusive))?;
    Ok(file)
}

fn install(prefix: &Path, packages: &[&str]) -> Result<(), String> {
    let to_text = |error: io::Error| error.to_string();
    if prefix.exists() {
        // An interrupted installation has left this directory.
        fs::remove_dir_all(prefix).map_err(to_text)?;
    }
    let mut venv = Command::new("python3");
    venv.args(["-m", "venv"]).arg(prefix);
    run_tool(venv, &VENV_LIMIT)?;
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--timeout", "30"];
    let mut install = Command::new(prefix.join("bin/python3"));
    install.args(pip).args(["--only-binary", ":all:"]).args(packages);
    run_tool(install, &DOWNLOAD_LIMIT)?;
    fs::write(prefix.join(COMPLETE), packages.join("\n")).map_err(to_text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_installation_that_fails_says_what_and_is_not_complete() {
        let directory = tempfile::tempdir().unwrap();
        let prefix = directory.path().join("peer-1.0");
        let missing = directory.path().join("nowhere").display().to_string();
        let error = install(&prefix, &[&missing]).unwrap_err();
        assert!(error.contains("nowhere") || error.contains("venv"), "{error}");
        assert!(!prefix.join(COMPLETE).exists());
    }

    #[test]
    fn what_is_complete_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let prefix = prefix(Peer::Mpich, directory.path());
        fs::create_dir_all(&prefix).unwrap();
        fs::write(prefix.join(COMPLETE), "").unwrap();
        ensure(Peer::Mpich, directory.path()).unwrap();
        assert_eq!(fs::read_dir(&prefix).unwrap().count(), 1);
    }
}
