//! Outboard's own ways in: the C interface, and an unmodified MPI program below the preloaded shim. The caller says how
//! daemons and ranks are started.

use crate::job::{Job, LaunchError, Process, Running, ServiceStats, System};
use crate::peers::InstalledPeer;
use crate::{BenchError, Call, Peer, Toolchain};
use std::fmt;
use std::path::{Path, PathBuf};

/// How the MPI shim chooses between the MPI library and the service process.
const CHOICE: &str = "OUTBOARD_CHOICE";
/// Where it keeps what it has learnt.
const CHOICE_FILE: &str = "OUTBOARD_CHOICE_FILE";

/// How the shim chooses, and where it keeps what it learns.
#[derive(Clone, Debug)]
pub struct Choosing {
    way: String,
    /// `None` for where `OUTBOARD_CHOICE_FILE` says, or for the launch alone.
    file: Option<PathBuf>,
}

impl Choosing {
    /// As `OUTBOARD_CHOICE` says, or `otherwise`.
    pub fn or(otherwise: &str) -> Self {
        Self { way: std::env::var(CHOICE).unwrap_or_else(|_| otherwise.to_owned()), file: None }
    }

    /// With a file of its own on this cluster, in a directory unless `OUTBOARD_CHOICE_FILE` says where: emulated
    /// clusters of other links have the same hosts.
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

    /// The way that `OUTBOARD_CHOICE` names.
    pub fn way(&self) -> &str {
        &self.way
    }

    /// Whether a run leaves something for the next one.
    pub fn learns(&self) -> bool {
        self.way == "adaptive" || self.way == "learn"
    }
}

/// What is measured is offloading, unless whoever measures wants to know what is chosen.
impl Default for Choosing {
    fn default() -> Self {
        Self::or("offload")
    }
}

type Launch = dyn Fn(&Job<'_>) -> Result<Running, LaunchError>;

/// One of Outboard's ways in.
pub struct Outboard {
    name: String,
    algorithm: Box<dyn Fn(&Call) -> String>,
    toolchain: Toolchain,
    learns: bool,
    launch: Box<Launch>,
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

impl Outboard {
    /// By the C interface. `algorithm` names the one that carries out a call. `include` holds `outboard.h`, `lib` holds
    /// `liboutboard.so`. `launch` starts a daemon on every host and the job's program as its ranks, in the environment
    /// that `outboard_group_world` needs.
    pub fn by_c_interface(
        algorithm: impl Fn(&Call) -> String + 'static,
        include: &Path,
        lib: &Path,
        launch: impl Fn(&Job<'_>) -> Result<Running, LaunchError> + 'static,
    ) -> Self {
        Self {
            name: "outboard".to_owned(),
            algorithm: Box::new(algorithm),
            toolchain: Toolchain::outboard(include, lib),
            learns: false,
            launch: Box::new(launch),
        }
    }

    /// Below an unmodified MPI program, by `LD_PRELOAD`. `algorithm` names the one that carries out a call. `shim` is
    /// the preloaded library built for `mpi`. `start_services` starts a daemon on every host.
    ///
    /// # Errors
    /// If `mpi` is no Open MPI.
    pub fn below_mpi(
        algorithm: impl Fn(&Call) -> String + 'static,
        mpi: Peer,
        peers_dir: &Path,
        shim: &Path,
        choosing: &Choosing,
        start_services: impl Fn(&Job<'_>) -> Result<Services, LaunchError> + 'static,
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
        let below =
            vec![("LD_PRELOAD".to_owned(), shim.display().to_string()), (CHOICE.to_owned(), choosing.way.clone())];
        let told = choosing.file.clone().or_else(|| std::env::var_os(CHOICE_FILE).map(PathBuf::from));
        let launcher = format!("{name}'s launcher on h1");
        let launch = move |job: &Job<'_>| {
            let mut services = start_services(job)?;
            services.environment.extend(below.clone());
            // What a run learns of an emulated cluster is not for the user's own runs.
            let file = told.clone().unwrap_or_else(|| job.directory.join("choice"));
            services.environment.push((CHOICE_FILE.to_owned(), file.display().to_string()));
            let command = installed.open_mpi_command(job, &services.environment)?;
            let launcher = Process::start(launcher.clone(), command, job.directory)?;
            Ok(Running { ranks: vec![launcher], services: services.processes, stats: services.stats })
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

    fn algorithm(&self, call: &Call) -> String {
        (self.algorithm)(call)
    }

    fn toolchain(&self) -> Toolchain {
        self.toolchain.clone()
    }

    fn learns(&self) -> bool {
        self.learns
    }

    fn launch(&self, job: &Job<'_>) -> Result<Running, LaunchError> {
        (self.launch)(job)
    }
}
