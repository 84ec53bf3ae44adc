//! Outboard's own ways in: the C interface, and an unmodified MPI program below the preloaded shim. How daemons and ranks
//! are started is told by the caller.

use crate::job::{Job, LaunchError, Process, Running, ServiceStats, System};
use crate::peers::{InstalledPeer, ProgressThread};
use crate::{BenchError, Call, Peer, Toolchain, install};
use std::fmt;
use std::path::{Path, PathBuf};

type NameAlgorithm = Box<dyn Fn(&Call) -> String>;
type LaunchRanks = Box<dyn Fn(&Job<'_>) -> Result<Running, LaunchError>>;
type StartServices = Box<dyn Fn(&Job<'_>) -> Result<Services, LaunchError>>;

/// Outboard through its C interface.
pub struct Outboard {
    variant: Option<String>,
    algorithm: NameAlgorithm,
    include: PathBuf,
    lib: PathBuf,
    launch: LaunchRanks,
}

impl Outboard {
    /// `algorithm` names the one that carries out a call. `include` holds `outboard.h`, `lib` holds `liboutboard.so`. `launch` starts a daemon on every host and the job's
    /// program as its ranks, in the environment that `outboard_group_world` needs.
    pub fn new(
        algorithm: impl Fn(&Call) -> String + 'static,
        include: &Path,
        lib: &Path,
        launch: impl Fn(&Job<'_>) -> Result<Running, LaunchError> + 'static,
    ) -> Self {
        Self {
            variant: None,
            algorithm: Box::new(algorithm),
            include: include.to_owned(),
            lib: lib.to_owned(),
            launch: Box::new(launch),
        }
    }

    /// Says in the report what tells it from others of its kind.
    #[must_use]
    pub fn with_variant(mut self, variant: Option<String>) -> Self {
        self.variant = variant;
        self
    }
}

fn name(plain: &str, variant: Option<&str>) -> String {
    variant.map_or_else(|| plain.to_owned(), |variant| format!("{plain}, {variant}"))
}

impl fmt::Debug for Outboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outboard").field("variant", &self.variant).finish_non_exhaustive()
    }
}

impl System for Outboard {
    fn name(&self) -> String {
        name("outboard", self.variant.as_deref())
    }

    fn algorithm(&self, call: &Call) -> String {
        (self.algorithm)(call)
    }

    fn toolchain(&self) -> Toolchain {
        Toolchain::outboard(&self.include, &self.lib)
    }

    fn progress_core(&self) -> Option<u32> {
        // The ranks have no progress threads; the daemons are bound by who starts them.
        None
    }

    fn launch(&self, job: &Job<'_>) -> Result<Running, LaunchError> {
        (self.launch)(job)
    }
}

/// Daemons that run beside a job.
#[derive(Debug)]
pub struct Services {
    /// One per host.
    pub processes: Vec<Process>,
    /// What the ranks need in their environment to find the daemon of their host, the same on all hosts.
    pub environment: Vec<(String, String)>,
    /// Where the daemons' counters are read.
    pub stats: Option<Box<dyn ServiceStats>>,
}

/// Outboard below an unmodified MPI program, by `LD_PRELOAD`.
pub struct OutboardBelowMpi {
    variant: Option<String>,
    algorithm: NameAlgorithm,
    mpi: Peer,
    installed: InstalledPeer,
    shim: PathBuf,
    start_services: StartServices,
}

impl OutboardBelowMpi {
    /// `algorithm` names the one that carries out a call. `shim` is the preloaded library built for `mpi`, which is installed if need be. `start_services` starts a daemon on
    /// every host.
    ///
    /// # Errors
    /// If `mpi` is no Open MPI, or cannot be installed.
    pub fn new(
        algorithm: impl Fn(&Call) -> String + 'static,
        mpi: Peer,
        peers_dir: &Path,
        shim: &Path,
        start_services: impl Fn(&Job<'_>) -> Result<Services, LaunchError> + 'static,
    ) -> Result<Self, BenchError> {
        match mpi {
            Peer::OpenMpi | Peer::Debian => {}
            Peer::Mpich | Peer::IntelMpi => {
                let source = LaunchError::new(mpi.name(), "the shim is for Open MPI: use open-mpi or debian");
                return Err(BenchError::Launch { system: below(mpi), source });
            }
        }
        install::ensure(mpi, peers_dir)?;
        Ok(Self {
            variant: None,
            algorithm: Box::new(algorithm),
            mpi,
            installed: InstalledPeer::new(mpi, peers_dir),
            shim: shim.to_owned(),
            start_services: Box::new(start_services),
        })
    }

    /// Says in the report what tells it from others of its kind.
    #[must_use]
    pub fn with_variant(mut self, variant: Option<String>) -> Self {
        self.variant = variant;
        self
    }
}

fn below(mpi: Peer) -> String {
    format!("outboard below {}", mpi.name())
}

impl fmt::Debug for OutboardBelowMpi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OutboardBelowMpi").field("mpi", &self.mpi).field("shim", &self.shim).finish_non_exhaustive()
    }
}

impl System for OutboardBelowMpi {
    fn name(&self) -> String {
        name(&below(self.mpi), self.variant.as_deref())
    }

    fn algorithm(&self, call: &Call) -> String {
        (self.algorithm)(call)
    }

    fn toolchain(&self) -> Toolchain {
        self.installed.toolchain()
    }

    fn progress_core(&self) -> Option<u32> {
        // Open MPI's event threads are idle while we carry the data, and stay where they are.
        None
    }

    fn launch(&self, job: &Job<'_>) -> Result<Running, LaunchError> {
        let services = (self.start_services)(job)?;
        let mut environment = services.environment;
        environment.push(("LD_PRELOAD".to_owned(), self.shim.display().to_string()));
        let command = self.installed.open_mpi_command(job, ProgressThread::No, &environment)?;
        let launcher = Process::start(format!("{}'s launcher on h1", self.name()), command, job.directory)?;
        Ok(Running { ranks: vec![launcher], services: services.processes, stats: services.stats })
    }
}
