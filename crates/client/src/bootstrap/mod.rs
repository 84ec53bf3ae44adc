//! How the ranks of a job find one another: everybody's small blob to everybody (SP-1).
//!
//! | implementation | ranks know their place by | blobs go |
//! |---|---|---|
//! | [`Alone`] | a world of one | nowhere |
//! | [`Tcp`] | `OUTBOARD_RANK` and `OUTBOARD_WORLD_SIZE`, else Slurm, Open MPI, PMI, PyTorch | over [`rendezvous`] |
//! | [`Pmix`] | the PMIx server of mpirun or srun | through that server |
//!
//! Over TCP ranks know one another by the job's [`Token`], which the environment says or the user's files hold; PMIx
//! and MPI bring only the ranks of the job together.
//!
//! [`rendezvous`]: crate::rendezvous
//!
//! MPI programs below the shim need none of these: it exchanges over MPI itself. `OUTBOARD_BOOTSTRAP` (`auto`, `tcp`,
//! `pmix`) chooses; by default a set `OUTBOARD_` variable means TCP, else PMIx where its server is, else TCP.
//!
//! Invariant: every wait ends, with an error that names who did not come where that can be known.

pub(crate) mod environment;
mod pmix;
mod tcp;

pub use pmix::{Pmix, PmixError};
pub use tcp::Tcp;

use crate::error::Error;
use crate::rendezvous::{MOST_BYTES, Token};
use environment::{Lookup, RANK, RENDEZVOUS, WORLD_SIZE};

const CHOICE: &str = "OUTBOARD_BOOTSTRAP";

/// The ranks of a job, as one of them reaches the others.
pub trait Bootstrap: std::fmt::Debug {
    /// This rank, from 0.
    fn rank(&self) -> u32;

    /// All ranks.
    fn ranks(&self) -> u32;

    /// Brings `blob` to all ranks and all ranks' blobs here, in rank order. Collective; may be repeated.
    ///
    /// # Errors
    /// [`Error::Argument`] for more than [`MOST_BYTES`], before anybody is waited for; [`Error::Bootstrap`].
    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, Error>;
}

/// The bootstrap that the environment asks for.
///
/// # Errors
/// [`Error::Environment`] names the variable that is missing or wrong; [`Error::Bootstrap`] when PMIx refuses.
pub fn from_environment() -> Result<Box<dyn Bootstrap>, Error> {
    let lookup: Lookup<'_> = &environment::process;
    let pmix = || Pmix::new().map(|pmix| Box::new(pmix) as Box<dyn Bootstrap>);
    match lookup(CHOICE).as_deref() {
        None | Some("auto") => {
            let told = [RANK, WORLD_SIZE, RENDEZVOUS].iter().any(|name| lookup(name).is_some());
            if told || lookup("PMIX_RANK").is_none() {
                return tcp(lookup);
            }
            match pmix() {
                // Where the launcher speaks PMIx and this host lacks the library, ranks may still meet over TCP.
                Err(missing @ PmixError::Library(_)) => tcp(lookup).map_err(|_| missing.into()),
                made => Ok(made?),
            }
        }
        Some("tcp") => tcp(lookup),
        Some("pmix") => Ok(pmix()?),
        Some(other) => {
            let problem = format!("is `{other}`; set it to auto, tcp or pmix");
            Err(Error::Environment { variable: CHOICE.to_owned(), problem })
        }
    }
}

fn tcp(lookup: Lookup<'_>) -> Result<Box<dyn Bootstrap>, Error> {
    let place = environment::place(lookup)?;
    // An address that was given is gone to even alone: whoever serves there counts its ranks.
    if place.ranks == 1 && lookup(RENDEZVOUS).is_none() {
        return Ok(Box::new(Alone));
    }
    let (address, job) = environment::meeting(lookup, place)?;
    Ok(Box::new(Tcp::new(place.rank, place.ranks, &address, Token::find(lookup, &job)?)?))
}

/// Refuses what one of the implementations could not carry.
fn check(blob: &[u8]) -> Result<(), Error> {
    if blob.len() <= MOST_BYTES as usize {
        return Ok(());
    }
    Err(Error::argument("blob", format!("has {} bytes; at most {MOST_BYTES} can be exchanged", blob.len())))
}

/// A world of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alone;

impl Bootstrap for Alone {
    fn rank(&self) -> u32 {
        0
    }

    fn ranks(&self) -> u32 {
        1
    }

    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        check(blob)?;
        Ok(vec![blob.to_vec()])
    }
}
