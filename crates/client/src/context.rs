//! The handle by which a program attaches, makes groups and allocates shared memory.

use crate::allocations::{Allocation, SharedAllocation};
use crate::attachment::{Attachment, AttachmentParts};
use crate::bootstrap::{self, environment};
use crate::connection::ServiceConnection;
use crate::error::Error;
use crate::group::{Group, deadline_of_environment};
use crate::job_daemon;
use crate::lock::lock;
use crate::service_processes;
use outboard_shm::attach::{self, AttachReply, AttachRequest, OFFER_BYTES};
use outboard_shm::memory::Tier;
use outboard_shm::plain::PlainMemory;
use outboard_shm::region::seal_bytes;
use outboard_shm::status::Status;
use outboard_shm::variables::unknown as unknown_variables;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Once};

/// An attachment, shared by its clones. Each [`Context::attach`] is a separate rank for the service process.
#[derive(Debug, Clone)]
pub struct Context(pub(crate) Arc<Attachment>);

/// Stands before the reason for which a rank has no offer. An offer has other first bytes.
const NOT_ATTACHED: &[u8] = b"not attached: ";
/// The most letters of that reason.
const MOST_REASON: usize = 500;

/// Variable: set by `outboard run`, which has printed the unknown variables.
const LAUNCHED: &str = "OUTBOARD_LAUNCHED";

/// The socket named by the argument, else by the environment.
fn named_socket(socket: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os(attach::SOCKET_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    socket.map(Path::to_owned).or_else(variable)
}

/// Prints the unknown variables of Outboard, once in a job: on rank 0, unless the launcher has printed them.
fn warn_of_unknown_variables() {
    static PRINTED: Once = Once::new();
    PRINTED.call_once(|| {
        if environment::process(LAUNCHED).is_none() && environment::is_first_rank(&environment::process) {
            unknown_variables().iter().for_each(|warning| eprintln!("outboard: {warning}"));
        }
    });
}

impl Context {
    /// Attaches to the service process at `socket`, else at `OUTBOARD_SOCKET`. From several sockets separated by colons
    /// the rank's index on the host selects one (GP-3, [`service_processes`]). If neither names a socket, the rank
    /// tries the job's own, then the user's, then starts a service process for the job. With `OUTBOARD_DAEMON=off` it
    /// tries only the user's (SP-3).
    ///
    /// # Errors
    /// [`Error::NoService`], [`Error::NotPermitted`], [`Error::NoInterface`], [`Error::JobDaemon`],
    /// [`Error::Environment`] if the index on the host is needed but unknown, [`Error::Version`], [`Error::Resource`];
    /// a failure leaves nothing behind.
    pub fn attach(socket: Option<&Path>) -> Result<Context, Error> {
        warn_of_unknown_variables();
        if let Some(named) = named_socket(socket) {
            return Context::attach_at(&service_processes::choose_socket(&named)?);
        }
        if job_daemon::is_enabled()? {
            job_daemon::attach(Context::attach_at)
        } else {
            Context::attach_at(&attach::user_socket())
        }
    }

    fn attach_at(path: &Path) -> Result<Context, Error> {
        Ok(Context(Arc::new(Attachment::new(ServiceConnection::open(path)?)?)))
    }

    /// Ends the attachment of all clones.
    ///
    /// # Errors
    /// [`Error::Busy`] while groups exist, and nothing happens; [`Error::Forked`].
    pub fn detach(self) -> Result<(), Error> {
        self.check_detachable()?;
        match self.0.parts()?.connection.execute(&AttachRequest::Detach, &[]) {
            // The service process is gone, so the attachment has ended.
            Err(Error::ServiceLost { .. }) => Ok(()),
            other => other,
        }
    }

    /// Whether this process is the one that attached.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        self.0.parts().map(drop)
    }

    /// Fails if [`detach`](Self::detach) would fail.
    pub(crate) fn check_detachable(&self) -> Result<(), Error> {
        match *lock(&self.0.parts()?.groups) {
            0 => Ok(()),
            count => Err(Error::Busy { action: "detach", count, what: "groups still exist; destroy them first" }),
        }
    }

    /// This rank's offer for making a group. The program sends it to all members, in rank order.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`], or the error that the service process reports.
    pub fn offer(&self) -> Result<Box<[u8; OFFER_BYTES]>, Error> {
        match self.0.parts()?.connection.call(&AttachRequest::Offer, &[], None)?.message {
            AttachReply::Offer(offer) => Ok(offer),
            other => Err(ServiceConnection::unexpected_reply(&other)),
        }
    }

    /// Makes a group with `ranks` members, of which this is `rank`, from all members' offers in rank order. Collective:
    /// returns when the service processes of all members agree.
    ///
    /// # Errors
    /// [`Error::Argument`]; [`Error::Service`] with [`Status::Mismatch`](crate::Status::Mismatch) when configurations
    /// differ, among others.
    pub fn create_group(&self, offers: &[u8], ranks: u32, rank: u32) -> Result<Group, Error> {
        let parts = self.0.parts()?;
        if ranks == 0 || rank >= ranks {
            return Err(Error::argument("rank", format!("is {rank} in a group of {ranks}")));
        }
        if offers.len() != ranks as usize * OFFER_BYTES {
            let problem = format!("has {} bytes instead of {OFFER_BYTES} for each of {ranks} ranks", offers.len());
            return Err(Error::argument("offers", problem));
        }
        let default_deadline = deadline_of_environment()?;
        let sealed = seal_bytes("outboard-offers", offers)?;
        // The group counts before it is made, so that no other thread detaches meanwhile.
        *lock(&parts.groups) += 1;
        let made = parts.connection.call(&AttachRequest::CreateGroup { ranks, rank }, &[sealed.as_fd()], None);
        let failure = match made {
            Ok(reply) => match reply.message {
                AttachReply::GroupReady(ready) => {
                    parts.trace.iter().for_each(|trace| trace.name(rank, ready.handle));
                    let group = Group::new(self.0.clone(), ready, ranks, rank);
                    return if default_deadline.is_some() {
                        group.set_deadline(default_deadline).map(|()| group)
                    } else {
                        Ok(group)
                    };
                }
                other => ServiceConnection::unexpected_reply(&other),
            },
            Err(error) => error,
        };
        *lock(&parts.groups) -= 1;
        Err(failure)
    }

    /// Makes the group of all ranks of the job, as described by its launcher or the `OUTBOARD_` variables
    /// ([`bootstrap::from_environment`]). Collective.
    ///
    /// # Errors
    /// [`Error::Environment`] for a missing variable, [`Error::Bootstrap`], and as for
    /// [`create_group`](Self::create_group).
    pub fn world(&self) -> Result<Group, Error> {
        let mut job = bootstrap::from_environment()?;
        let offers = job.exchange(&self.offer()?[..])?;
        for (rank, offer) in offers.iter().enumerate() {
            if let Some(reason) = offer.strip_prefix(NOT_ATTACHED) {
                let text = format!("rank {rank} cannot attach: {}", String::from_utf8_lossy(reason));
                return Err(Error::Bootstrap { status: Status::NoService, text });
            }
        }
        self.create_group(&offers.concat(), job.ranks(), job.rank())
    }

    /// Reports to all ranks of the job that this rank cannot attach, so that the others need not wait for it. Returns
    /// the error.
    pub(crate) fn report_not_attached(error: Error) -> Error {
        // A rank that knows no other ranks has nobody to report to, and the first error is the one to return.
        if let Ok(mut job) = bootstrap::from_environment()
            && job.ranks() > 1
        {
            let sentence: String = error.to_string().chars().take(MOST_REASON).collect();
            let _ = job.exchange(&[NOT_ATTACHED, sentence.as_bytes()].concat());
        }
        error
    }

    /// Attaches, to the socket of `OUTBOARD_SOCKET` or the default one, and makes the group of all ranks. Collective.
    ///
    /// # Errors
    /// As for [`attach`](Self::attach) and [`world`](Self::world); a failure leaves nothing behind.
    pub fn init() -> Result<(Context, Group), Error> {
        let context = Context::attach(None).map_err(Context::report_not_attached)?;
        let world = context.world()?;
        Ok((context, world))
    }

    /// Memory that the service process maps too: the fastest buffers. Page-aligned, of undefined content. A forked
    /// child has a private copy. Memory that is not given back stays mapped when the attachment ends. If a limit of the
    /// program on files, descriptors or addresses leaves no room for shared memory, the memory is plain: as good, and
    /// not as fast.
    ///
    /// # Errors
    /// [`Error::Argument`] for no bytes, [`Error::Resource`], or the error that the service process reports.
    pub fn allocate(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let parts = self.0.parts()?;
        if bytes == 0 {
            return Err(Error::argument("bytes", "is 0"));
        }
        let region = lock(&parts.staging).segments.allocate(&parts.connection, bytes)?;
        let allocation = match region.map(SharedAllocation::new) {
            Some(Ok(shared)) => Allocation::Shared(shared),
            without => {
                if let Some(Err(region)) = without {
                    lock(&parts.staging).segments.release(&parts.connection, region)?;
                }
                let no_memory = |errno| Error::Resource(format!("no memory for {bytes} bytes: {errno}"));
                Allocation::Plain(PlainMemory::new(bytes).map_err(no_memory)?)
            }
        };
        let start = allocation.start();
        lock(&parts.allocations).insert(start.as_ptr() as usize, allocation);
        Ok(start)
    }

    /// Gives memory from [`allocate`](Self::allocate) back.
    ///
    /// # Errors
    /// [`Error::Argument`] when no allocation starts there.
    ///
    /// # Safety
    /// The memory is not used any more, also not by requests in flight.
    pub unsafe fn deallocate(&self, memory: *const u8) -> Result<(), Error> {
        let parts = self.0.parts()?;
        match lock(&parts.allocations).remove(&(memory as usize)) {
            None => Err(Error::argument("memory", format!("{memory:p} does not come from outboard_alloc"))),
            Some(Allocation::Shared(shared)) => {
                lock(&parts.staging).segments.release(&parts.connection, shared.into_region())
            }
            Some(Allocation::Plain(_)) => Ok(()),
        }
    }

    /// The way in which the service process now accesses buffers that do not come from [`allocate`](Self::allocate).
    pub fn memory_tier(&self) -> Tier {
        self.0.parts().map_or(Tier::Staging, AttachmentParts::tier)
    }

    /// Digest of the service process's configuration.
    pub fn config_digest(&self) -> Result<u64, Error> {
        self.0.parts().map(|parts| parts.config_digest)
    }

    /// The rate of the service process's link, in bit/s.
    pub fn link_rate(&self) -> Result<u64, Error> {
        self.0.parts().map(|parts| parts.link_rate)
    }
}
