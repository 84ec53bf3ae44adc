//! Exchange of a small blob between all ranks of a job, by which the ranks find one another (SP-1).
//!
//! | implementation | source of rank and size | blobs go |
//! |---|---|---|
//! | [`SingleRank`] | a world of one | nowhere |
//! | [`TcpBootstrap`] | `OUTBOARD_RANK`, `OUTBOARD_WORLD_SIZE`, else Slurm, Open MPI, PMI, PyTorch | by [`tcp_server`] |
//! | [`PmixBootstrap`] | the PMIx server of mpirun or srun | through that server |
//!
//! Over TCP ranks authenticate one another by the job's [`JobToken`], from the environment or the user's files. PMIx
//! and MPI connect only the ranks of the job.
//!
//! MPI programs below the shim need no bootstrap: the shim exchanges over MPI. `OUTBOARD_BOOTSTRAP` (`auto`, `tcp`,
//! `pmix`) chooses. By default TCP is used if an `OUTBOARD_` variable is set, else PMIx if its server is found, else
//! TCP.
//!
//! Invariant: every wait ends, if possible with an error that names the missing ranks.

pub(crate) mod environment;
mod pmix;
mod tcp;
pub mod tcp_server;

pub use environment::EnvironmentError;
pub use pmix::{PmixBootstrap, PmixError};
pub use tcp::TcpBootstrap;

use environment::{Lookup, RANK, RENDEZVOUS, WORLD_SIZE};
use outboard_shm::status::Status;
use tcp_server::{JobToken, MAX_BLOB_BYTES, TcpBootstrapError};

const CHOICE: &str = "OUTBOARD_BOOTSTRAP";

/// Reasons for which the ranks of a job do not find one another.
#[allow(missing_docs, reason = "the messages are the documentation")]
#[derive(Debug, thiserror::Error)]
pub enum BootstrapError {
    #[error("argument `blob` {0}")]
    Blob(String),
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    #[error(transparent)]
    Tcp(#[from] TcpBootstrapError),
    #[error(transparent)]
    Pmix(#[from] PmixError),
}

impl BootstrapError {
    /// The kind of failure.
    pub fn status(&self) -> Status {
        match self {
            BootstrapError::Blob(_) | BootstrapError::Environment(_) => Status::Argument,
            BootstrapError::Tcp(error) => error.status(),
            BootstrapError::Pmix(error) => error.status(),
        }
    }
}

/// The ranks of a job, as seen from one of them.
pub trait Bootstrap: std::fmt::Debug {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn ranks(&self) -> u32;

    /// Sends `blob` to all ranks and returns the blobs of all ranks, in rank order. Collective; may be repeated.
    ///
    /// # Errors
    /// [`BootstrapError::Blob`] at once for more than [`MAX_BLOB_BYTES`]; other errors of the way in which ranks meet.
    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError>;
}

/// The bootstrap that the environment selects.
///
/// # Errors
/// [`BootstrapError::Environment`] names the missing or wrong variable; [`BootstrapError::Pmix`] if PMIx fails.
pub fn from_environment() -> Result<Box<dyn Bootstrap>, BootstrapError> {
    let lookup: Lookup<'_> = &environment::process;
    let pmix = || PmixBootstrap::new().map(|pmix| Box::new(pmix) as Box<dyn Bootstrap>);
    match lookup(CHOICE).as_deref() {
        None | Some("auto") => {
            let own_variable_set = [RANK, WORLD_SIZE, RENDEZVOUS].iter().any(|name| lookup(name).is_some());
            if own_variable_set || lookup("PMIX_RANK").is_none() {
                return tcp(lookup);
            }
            match pmix() {
                // If the launcher has PMIx and this host lacks the library, ranks may still meet over TCP.
                Err(missing @ PmixError::Library(_)) => tcp(lookup).map_err(|_| missing.into()),
                made => Ok(made?),
            }
        }
        Some("tcp") => tcp(lookup),
        Some("pmix") => Ok(pmix()?),
        Some(other) => {
            let problem = format!("is `{other}`; set it to auto, tcp or pmix");
            Err(EnvironmentError { variable: CHOICE.to_owned(), problem }.into())
        }
    }
}

fn tcp(lookup: Lookup<'_>) -> Result<Box<dyn Bootstrap>, BootstrapError> {
    let world_rank = environment::world_rank(lookup)?;
    // A single rank, too, connects to a given address, because the server there waits for this rank.
    if world_rank.ranks == 1 && lookup(RENDEZVOUS).is_none() {
        return Ok(Box::new(SingleRank));
    }
    let (address, job) = environment::server_address(lookup, world_rank)?;
    Ok(Box::new(TcpBootstrap::new(world_rank.rank, world_rank.ranks, &address, JobToken::find(lookup, &job)?)?))
}

/// Rejects blobs that one of the implementations could not carry.
fn check(blob: &[u8]) -> Result<(), BootstrapError> {
    if blob.len() <= MAX_BLOB_BYTES as usize {
        return Ok(());
    }
    Err(BootstrapError::Blob(format!("has {} bytes; at most {MAX_BLOB_BYTES} can be exchanged", blob.len())))
}

/// A world of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SingleRank;

impl Bootstrap for SingleRank {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check(blob)?;
        Ok(vec![blob.to_vec()])
    }
}
