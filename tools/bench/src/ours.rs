//! Outboard's own interfaces: the C interface, and the preloaded shim below an unmodified MPI program. The caller
//! provides functions that start daemons and ranks.

use crate::job::{BenchJob, LaunchError, LoggedProcess, RunningJob, ServiceStats, System};
use crate::peers::InstalledPeer;
use crate::{BenchCall, BenchError, Peer, Toolchain};
use std::fmt;
use std::path::{Path, PathBuf};

/// Variable that says how the MPI shim chooses between the MPI library and the service process.
const CHOICE: &str = "OUTBOARD_CHOICE";
/// Variable that names the file in which the shim keeps what it has learnt.
const CHOICE_FILE: &str = "OUTBOARD_CHOICE_FILE";

/// How the shim chooses, and the file in which it keeps what it learns.
#[derive(Clone, Debug)]
pub struct ShimChoice {
    way: String,
    /// `None`: the file that `OUTBOARD_CHOICE_FILE` names, or else one for this launch alone.
    file: Option<PathBuf>,
}

impl ShimChoice {
    /// The choice that `OUTBOARD_CHOICE` names, or `otherwise`.
    pub fn or(otherwise: &str) -> Self {
        Self { way: std::env::var(CHOICE).unwrap_or_else(|_| otherwise.to_owned()), file: None }
    }

    /// Uses a separate file for this cluster, because emulated clusters with other links have the same host names. The
    /// file lies in `directory`. If `OUTBOARD_CHOICE_FILE` is set, its value with `place` appended names the file
    /// instead.
    #[must_use]
    pub fn on(self, place: &impl fmt::Display, directory: &Path) -> Self {
        let file = match std::env::var_os(CHOICE_FILE) {
            Some(mut file) => {
                file.push(format!("-{place}"));
                file.into()
            }
            None => directory.join(place.to_string()),
        };
        Self { file: Some(file), ..self }
    }

    /// The value of `OUTBOARD_CHOICE`.
    pub fn way(&self) -> &str {
        &self.way
    }

    /// Whether a run leaves results for the next one.
    pub fn learns(&self) -> bool {
        self.way == "adaptive" || self.way == "learn"
    }
}

/// Offloads everything unless `OUTBOARD_CHOICE` is set, because the benchmark measures offloading.
impl Default for ShimChoice {
    fn default() -> Self {
        Self::or("offload")
    }
}

type LaunchFn = dyn Fn(&BenchJob<'_>) -> Result<RunningJob, LaunchError>;

/// One of Outboard's interfaces.
pub struct Outboard {
    name: String,
    algorithm: Box<dyn Fn(&BenchCall) -> String>,
    toolchain: Toolchain,
    learns: bool,
    launch: Box<LaunchFn>,
}

/// Daemons that run beside a job.
#[derive(Debug)]
pub struct Services {
    /// One per host.
    pub processes: Vec<LoggedProcess>,
    /// Environment by which the ranks find the daemon of their host; the same on all hosts.
    pub environment: Vec<(String, String)>,
    /// Reads the daemons' counters.
    pub stats: Option<Box<dyn ServiceStats>>,
}

impl Outboard {
    /// Measures the C interface. `algorithm` names the algorithm of a call. `include` holds `outboard.h`, `lib` holds
    /// `liboutboard.so`. `launch` starts a daemon on every host and the job's ranks, in the environment that
    /// `outboard_group_world` needs.
    pub fn by_c_interface(
        algorithm: impl Fn(&BenchCall) -> String + 'static,
        include: &Path,
        lib: &Path,
        launch: impl Fn(&BenchJob<'_>) -> Result<RunningJob, LaunchError> + 'static,
    ) -> Self {
        Self {
            name: "outboard".to_owned(),
            algorithm: Box::new(algorithm),
            toolchain: Toolchain::outboard(include, lib),
            learns: false,
            launch: Box::new(launch),
        }
    }

    /// Measures the shim below an unmodified MPI program. `algorithm` names the algorithm of a call. `start_services`
    /// starts a daemon on every host; its environment preloads the shim built for `mpi`.
    ///
    /// # Errors
    /// If `mpi` is not an Open MPI.
    pub fn below_mpi(
        algorithm: impl Fn(&BenchCall) -> String + 'static,
        mpi: Peer,
        peers_dir: &Path,
        choosing: &ShimChoice,
        start_services: impl Fn(&BenchJob<'_>) -> Result<Services, LaunchError> + 'static,
    ) -> Result<Self, BenchError> {
        let name = format!("outboard below {}", mpi.name());
        match mpi {
            Peer::OpenMpi | Peer::Debian => {}
            Peer::Mpich | Peer::IntelMpi => {
                let source = LaunchError::new(mpi.name(), "the shim is for Open MPI: use open-mpi or debian");
                return Err(BenchError::Launch { system: name, source });
            }
        }
        let installed = InstalledPeer::new(mpi, peers_dir);
        let toolchain = installed.toolchain();
        let learns = choosing.learns();
        let way = choosing.way.clone();
        let choice_file = choosing.file.clone().or_else(|| std::env::var_os(CHOICE_FILE).map(PathBuf::from));
        let launcher = format!("{name}'s launcher on h1");
        let launch = move |job: &BenchJob<'_>| {
            let mut services = start_services(job)?;
            services.environment.push((CHOICE.to_owned(), way.clone()));
            // The user's own runs must not use what a run learns on an emulated cluster.
            let file = choice_file.clone().unwrap_or_else(|| job.directory.join("choice"));
            services.environment.push((CHOICE_FILE.to_owned(), file.display().to_string()));
            let command = installed.open_mpi_command(job, &services.environment)?;
            let launcher = LoggedProcess::start(launcher.clone(), command, job.directory)?;
            Ok(RunningJob { ranks: vec![launcher], services: services.processes, stats: services.stats })
        };
        Ok(Self { name, algorithm: Box::new(algorithm), toolchain, learns, launch: Box::new(launch) })
    }

    /// Adds `variant` to the name, for systems that differ in one setting.
    #[must_use]
    pub fn with_variant(mut self, variant: Option<&str>) -> Self {
        if let Some(variant) = variant {
            self.name = format!("{}, {variant}", self.name);
        }
        self
    }
}

impl fmt::Debug for Outboard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outboard").field("name", &self.name).finish_non_exhaustive()
    }
}

impl System for Outboard {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn algorithm(&self, call: &BenchCall) -> String {
        (self.algorithm)(call)
    }

    fn toolchain(&self) -> Toolchain {
        self.toolchain.clone()
    }

    fn learns(&self) -> bool {
        self.learns
    }

    fn launch(&self, job: &BenchJob<'_>) -> Result<RunningJob, LaunchError> {
        (self.launch)(job)
    }
}
