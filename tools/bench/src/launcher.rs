//! Launchers of MPI libraries that users have installed: which library a launcher starts, where a library's launcher
//! lies, and its options for ranks on this machine.
//!
//! Never runs a program of the job; a candidate is asked for its version.

use crate::BenchError;
use crate::install;
use crate::peers::{InstalledPeer, Peer};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Names of launchers that belong to one library each, beside the names that Debian's alternatives give to any library.
const OWN_NAMES: [&str; 3] = ["mpirun.openmpi", "mpiexec.hydra", "mpiexec.mpich"];
/// The names by which users start jobs.
const COMMON_NAMES: [&str; 2] = ["mpirun", "mpiexec"];

/// The kind of an MPI library: launchers of one kind start programs of this kind alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MpiFamily {
    /// Open MPI.
    OpenMpi,
    /// MPICH and libraries with its binary interface, such as Intel MPI.
    Mpich,
}

impl Peer {
    /// The kind of the library.
    pub fn family(self) -> MpiFamily {
        match self {
            Self::OpenMpi | Self::Debian => MpiFamily::OpenMpi,
            Self::Mpich | Self::IntelMpi => MpiFamily::Mpich,
        }
    }
}

impl InstalledPeer {
    /// The peer in `peers_dir`, which is downloaded if need be.
    ///
    /// # Errors
    /// [`BenchError::Install`], with what to do.
    pub fn ensure(peer: Peer, peers_dir: &Path) -> Result<Self, BenchError> {
        install::ensure(peer, peers_dir)?;
        Ok(Self::new(peer, peers_dir))
    }

    /// The installation whose launcher is at `launcher`, if that is a launcher of a library with the peers' options.
    pub fn at(launcher: &Path) -> Option<Self> {
        if !launcher.is_file() {
            return None;
        }
        let answer = Command::new(launcher).arg("--version").env_remove("LD_PRELOAD").stdin(Stdio::null()).output();
        let peer = peer_of_version(&String::from_utf8_lossy(&answer.ok()?.stdout))?;
        let prefix = launcher.parent()?.parent()?.to_owned();
        Some(Self { peer, prefix, launcher: launcher.to_owned() })
    }

    /// The first launcher in `directories`; with `family`, of a library of this kind. Without `family`, the names by
    /// which users start jobs come first.
    pub fn find(directories: impl IntoIterator<Item = PathBuf>, family: Option<MpiFamily>) -> Option<Self> {
        let fits = |found: &Self| family.is_none_or(|family| found.peer.family() == family);
        let names = match family {
            Some(_) => [&OWN_NAMES[..], &COMMON_NAMES],
            None => [&COMMON_NAMES[..], &OWN_NAMES],
        };
        let names: Vec<&str> = names.concat();
        // Open MPI's prefix is the parent of its launcher's directory, which must not be that of a link `/bin`.
        let directories = directories.into_iter().filter_map(|directory| directory.canonicalize().ok());
        let candidates =
            directories.flat_map(|directory| names.iter().map(|name| directory.join(name)).collect::<Vec<_>>());
        candidates.filter_map(|launcher| Self::at(&launcher)).find(fits)
    }

    /// The peer whose options this installation has.
    pub fn peer(&self) -> Peer {
        self.peer
    }

    /// The program that starts jobs.
    pub fn launcher(&self) -> &Path {
        &self.launcher
    }

    /// Adds to `command`, which runs the launcher, the options for `ranks` ranks on this machine; `environment` reaches
    /// every rank. The program and its arguments follow.
    pub fn add_local_options(&self, command: &mut Command, ranks: u32, environment: &[(String, String)]) {
        let count = ranks.to_string();
        match self.peer.family() {
            MpiFamily::OpenMpi => {
                command.args(["--allow-run-as-root", "--oversubscribe", "-n", &count]);
                for (name, value) in environment {
                    command.arg("-x").arg(format!("{name}={value}"));
                }
            }
            MpiFamily::Mpich => {
                let intel = self.peer == Peer::IntelMpi;
                if intel {
                    command.envs(self.intel_environment());
                }
                let behind = intel.then(|| self.behind_own_libraries(environment));
                for (name, value) in behind.as_deref().unwrap_or(environment) {
                    command.args(["-genv", name, value]);
                }
                command.args(["-n", &count]);
            }
        }
    }

    /// The variables by which Intel's programs find their parts.
    pub(crate) fn intel_environment(&self) -> [(&'static str, PathBuf); 3] {
        let libraries = self.prefix.join("lib");
        [("I_MPI_ROOT", self.prefix.clone()), ("LD_LIBRARY_PATH", libraries.clone()), ("FI_PROVIDER_PATH", libraries)]
    }

    /// `environment`, in which a search path for libraries ends with the library's own directory.
    pub(crate) fn behind_own_libraries(&self, environment: &[(String, String)]) -> Vec<(String, String)> {
        let mut environment = environment.to_vec();
        for (_, path) in environment.iter_mut().filter(|(name, _)| name == "LD_LIBRARY_PATH") {
            *path = format!("{path}:{}", self.prefix.join("lib").display());
        }
        environment
    }
}

/// The peer whose launcher prints this as its version.
fn peer_of_version(text: &str) -> Option<Peer> {
    if text.contains("Intel(R) MPI") {
        return Some(Peer::IntelMpi);
    }
    if text.contains("HYDRA") {
        return Some(Peer::Mpich);
    }
    let (_, version) = ["(Open MPI) ", "(OpenRTE) "].iter().find_map(|name| text.split_once(name))?;
    let major: u32 = version.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()?;
    Some(if major < 5 { Peer::Debian } else { Peer::OpenMpi })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_launcher_s_version_names_its_library() {
        let of = |text| peer_of_version(text).map(Peer::name);
        assert_eq!(of("mpirun (Open MPI) 5.0.11\n\nReport bugs to"), Some("open-mpi"));
        assert_eq!(of("mpirun.openmpi (OpenRTE) 4.1.4\n"), Some("debian"));
        assert_eq!(of("HYDRA build details:\n    Version:     4.0.2\n"), Some("mpich"));
        assert_eq!(of("Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 2026"), Some("intel-mpi"));
        assert_eq!(of("mpirun: command not found"), None);
    }

    /// Directory of a launcher that prints this version.
    fn directory_of_launcher(version: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let launcher = directory.path().join("mpiexec");
        fs::write(&launcher, format!("#!/bin/sh\necho '{version}'\n")).unwrap();
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o755)).unwrap();
        directory
    }

    #[test]
    fn a_launcher_of_another_kind_is_passed_over() {
        let [mpich, open_mpi] = ["HYDRA build details:", "mpirun (Open MPI) 5.0.11"].map(directory_of_launcher);
        let [mpich, open_mpi] = [&mpich, &open_mpi].map(|directory| directory.path().canonicalize().unwrap());
        let found = |family| InstalledPeer::find([mpich.clone(), open_mpi.clone()], family).unwrap().launcher;
        assert_eq!(found(None), mpich.join("mpiexec"));
        assert_eq!(found(Some(MpiFamily::OpenMpi)), open_mpi.join("mpiexec"));
    }

    #[test]
    fn variables_reach_the_ranks_of_every_launcher() {
        let words = |peer| {
            let mut command = Command::new("launcher");
            let environment = [("LD_LIBRARY_PATH".to_owned(), "/ours".to_owned())];
            InstalledPeer::new(peer, Path::new("/peers")).add_local_options(&mut command, 3, &environment);
            command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect::<Vec<_>>().join(" ")
        };
        assert!(words(Peer::Debian).ends_with("-n 3 -x LD_LIBRARY_PATH=/ours"));
        assert_eq!(words(Peer::Mpich), "-genv LD_LIBRARY_PATH /ours -n 3");
        let intel = words(Peer::IntelMpi);
        assert!(intel.starts_with("-genv LD_LIBRARY_PATH /ours:/peers/intel-mpi-"), "{intel}");
    }
}
