//! TCP sockets alone, as the limit of unicast in processor time: what the kernel needs to move the bytes of a call.
//! There is one connection for each pair of ranks, and no library (programs/transport_sockets.c).
//!
//! Never does: calls other than alltoallv and allgather, because others can be done in several ways over sockets.

use crate::job::{BenchJob, LaunchError, LoggedProcess, RunningJob, System};
use crate::{BenchCall, Toolchain};

/// The first rank's port; nothing else listens on hosts of an emulated cluster.
const FIRST_PORT: u32 = 7100;

/// TCP sockets as a system.
#[derive(Clone, Copy, Debug)]
pub struct Sockets;

impl Sockets {
    /// Name in reports.
    pub(crate) const NAME: &str = "sockets alone";
}

impl System for Sockets {
    fn name(&self) -> String {
        Self::NAME.to_owned()
    }

    fn algorithm(&self, _call: &BenchCall) -> String {
        "direct".to_owned()
    }

    fn toolchain(&self) -> Toolchain {
        Toolchain::sockets()
    }

    fn launch(&self, job: &BenchJob<'_>) -> Result<RunningJob, LaunchError> {
        let place = |rank: u32| format!("{}:{}", job.lab.address(job.host_of(rank) as u16), FIRST_PORT + rank);
        let places: Vec<String> = (0..job.ranks).map(place).collect();
        let start = |rank: u32| {
            let (host, name) = (format!("h{}", job.host_of(rank)), format!("rank {rank} over sockets"));
            let mut command =
                job.lab.command(&host, job.program).map_err(|error| LaunchError::new(name.clone(), error))?;
            command.args(job.arguments);
            command.env("OUTBOARD_BENCH_SOCKETS", places.join(",")).env("OUTBOARD_BENCH_RANK", rank.to_string());
            LoggedProcess::start(name, command, job.directory)
        };
        let ranks = (0..job.ranks).map(start).collect::<Result<_, _>>()?;
        Ok(RunningJob { ranks, services: Vec::new(), stats: None })
    }
}
