//! The datapath: one thread that sends multicast and several that receive it, apart from the conductor (MC-9, MC-10).
//! On slow links, where a wake-up costs more than the datagrams, the conductor itself sends and receives ([`inline`]).
//!
//! ```text
//! conductor -- SendJob, bounded --> sender     conductor -- Command, bounded --> receiver
//!           <-- Report, mailbox --                       <-- Report, mailbox --
//! ```
//!
//! Invariants: the mailbox has room for all reports that can be under way (send jobs and batches are counted). So a
//! datapath thread never waits for a conductor that waits for that thread. Each address is received by one thread only,
//! for as long as a group needs the address. No header is trusted: a receiver hashes a payload by the key of the group
//! that the header names, and the machine checks the tag.

mod inline;
pub(crate) mod mailbox;
mod receiver;
mod sender;

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{SyncSender, TrySendError};
use std::thread::JoinHandle;
use std::time::Instant;

use outboard_fabric::multicast::{MulticastSettings, channel_address};
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, MulticastKey};
use outboard_proto::{GroupHandle, MulticastBatch, MulticastChannel};

use crate::datapath::inline::InlineDatapath;
use crate::datapath::mailbox::Mailbox;
use crate::memory::{MemoryFault, MemoryLocation};
pub(crate) use receiver::DatagramBatch;
use receiver::{Interest, ReceiverThread};

/// Most send jobs in the sender's queue.
const SEND_JOBS: usize = 64;
/// Batches of each receiver, held by the receiver or by the conductor.
const BATCHES: usize = 8;
/// Bursts of one batch, 64 KiB each: a batch fits the second-level cache.
const BURSTS: usize = 4;

/// A batch to be sent, and the location of its memory.
#[derive(Debug)]
pub(crate) struct SendJob {
    pub(crate) batch: MulticastBatch,
    pub(crate) location: MemoryLocation,
}

/// Outcome of sending or receiving.
#[derive(Debug)]
pub(crate) enum DatapathReport {
    /// The job of this batch is done, and its memory is not read any more. `read` is the result of reading the memory.
    /// The kernel accepted `datagrams` datagrams with `bytes` bytes. It refused `failures` datagrams, which recovery
    /// repairs.
    Sent { token: u64, read: Result<(), MemoryFault>, datagrams: u64, bytes: u64, failures: u64 },
    /// Datagrams have arrived in `batch`, which must be given back to this receiver. The socket buffer had no room for
    /// `overflowed` bursts.
    Received { receiver: usize, batch: DatagramBatch, overflowed: u64 },
    /// The kernel refuses to receive, and the receiver will try again. `batch` must be given back.
    Failed { receiver: usize, batch: DatagramBatch, error: io::Error },
    /// The receiver has panicked and receives nothing any more.
    Gone { receiver: usize },
}

#[derive(Debug)]
enum DatapathMode {
    /// Separate threads (MC-9), for links whose datagrams keep more than one processor busy.
    Threads { jobs: SyncSender<SendJob>, sender: JoinHandle<()>, receivers: Vec<ReceiverThread> },
    /// The conductor sends and receives without waking another thread.
    Conductor(Box<InlineDatapath>),
}

/// The conductor's handle on the datapath. Dropping it ends the threads.
#[derive(Debug)]
pub(crate) struct Datapath {
    /// `None` only during the drop.
    mode: Option<DatapathMode>,
    /// Groups that need each address. A group is listed once for each of its channels on the address.
    joined: HashMap<Ipv4Addr, Vec<GroupHandle>>,
}

impl Datapath {
    /// A mailbox with room for every report of the threads that can be under way.
    pub(crate) fn mailbox(receivers: usize) -> io::Result<Mailbox<DatapathReport>> {
        // The sender holds one job beyond the queue, and each receiver may report its panic.
        Mailbox::new(SEND_JOBS + 1 + receivers * (BATCHES + 1))
    }

    /// Starts one thread that sends and `receivers` threads that receive; without receivers the conductor sends and
    /// receives. Fails if a socket option is refused or no thread can be started.
    pub(crate) fn start(
        settings: &MulticastSettings,
        receivers: usize,
        mailbox: &Mailbox<DatapathReport>,
    ) -> io::Result<Self> {
        let mode = if receivers == 0 {
            DatapathMode::Conductor(Box::new(InlineDatapath::new(settings)?))
        } else {
            let (jobs, sender) = sender::start(settings, SEND_JOBS, mailbox.poster())?;
            let receiver =
                |number| ReceiverThread::start(settings, number, BATCHES, BURSTS, mailbox.poster(), mailbox.poster());
            let receivers = (0..receivers).map(receiver).collect::<io::Result<_>>()?;
            DatapathMode::Threads { jobs, sender, receivers }
        };
        Ok(Datapath { mode: Some(mode), joined: HashMap::new() })
    }

    fn mode(&mut self) -> &mut DatapathMode {
        self.mode.as_mut().expect("there until dropped")
    }

    /// The descriptor that the conductor must watch, if it receives multicast itself.
    pub(crate) fn event_fd(&self) -> Option<BorrowedFd<'_>> {
        match &self.mode {
            Some(DatapathMode::Conductor(inline)) => Some(inline.event_fd()),
            Some(DatapathMode::Threads { .. }) | None => None,
        }
    }

    /// Notes that the descriptor has become readable.
    pub(crate) fn note_readable(&mut self) {
        if let DatapathMode::Conductor(inline) = self.mode() {
            inline.note_readable();
        }
    }

    /// Does the conductor's part of the work and returns its outcome, or `None` if no work is due.
    pub(crate) fn report(&mut self, now: Instant) -> Option<DatapathReport> {
        match self.mode() {
            DatapathMode::Conductor(inline) => inline.report(now),
            DatapathMode::Threads { .. } => None,
        }
    }

    /// Time at which [`Self::report`] must be called although no descriptor wakes the conductor.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        match &self.mode {
            Some(DatapathMode::Conductor(inline)) => inline.due(now),
            Some(DatapathMode::Threads { .. }) | None => None,
        }
    }

    /// Submits a job, or returns the job if there is no room. A sending thread ends early only by its own panic.
    pub(crate) fn submit(&mut self, job: SendJob) -> Option<SendJob> {
        match self.mode() {
            DatapathMode::Conductor(inline) => inline.submit(job),
            DatapathMode::Threads { jobs, .. } => match jobs.try_send(job) {
                Ok(()) => None,
                Err(TrySendError::Full(job)) => Some(job),
                Err(TrySendError::Disconnected(_)) => panic!("the multicast sender has ended"),
            },
        }
    }

    /// Starts receiving a channel for a group with this key; the channel is received on return. Fails if the kernel
    /// refuses, for instance because of too many memberships.
    pub(crate) fn join(&mut self, channel: MulticastChannel, group: GroupHandle, key: MulticastKey) -> io::Result<()> {
        let address = channel_address(channel.0);
        let first = self.joined.get(&address).is_none_or(Vec::is_empty);
        self.apply_interest(address, Interest::Begins { group, key, join: first.then_some(address) })?;
        self.joined.entry(address).or_default().push(group);
        Ok(())
    }

    /// Stops receiving a channel for a group.
    pub(crate) fn leave(&mut self, channel: MulticastChannel, group: GroupHandle) -> io::Result<()> {
        let address = channel_address(channel.0);
        let Some(groups) = self.joined.get_mut(&address) else { return Ok(()) };
        let Some(at) = groups.iter().position(|known| *known == group) else { return Ok(()) };
        groups.swap_remove(at);
        let last = groups.is_empty();
        if last {
            self.joined.remove(&address);
        }
        self.apply_interest(address, Interest::Ends { group, leave: last.then_some(address) })
    }

    pub(crate) fn give_back(&mut self, receiver: usize, batch: DatagramBatch) {
        match self.mode() {
            DatapathMode::Conductor(inline) => inline.give_back(batch),
            DatapathMode::Threads { receivers, .. } => receivers[receiver].give_back(batch),
        }
    }

    /// Applies `interest` at the address's receiver. The lowest bits of an address select the receiver, since these
    /// bits are mixed already.
    fn apply_interest(&mut self, address: Ipv4Addr, interest: Interest) -> io::Result<()> {
        match self.mode() {
            DatapathMode::Conductor(inline) => inline.apply_interest(interest),
            DatapathMode::Threads { receivers, .. } => {
                receivers[address.to_bits() as usize % receivers.len()].apply_interest(interest)
            }
        }
    }
}

pub(crate) fn split(datagram: &[u8]) -> (&[u8], &[u8]) {
    datagram.split_at(datagram.len().min(DATAGRAM_HEADER_BYTES))
}

impl Drop for Datapath {
    fn drop(&mut self) {
        if let Some(DatapathMode::Threads { jobs, sender, .. }) = self.mode.take() {
            drop(jobs);
            if sender.join().is_err() {
                tracing::error!("the multicast sender panicked");
            }
        }
    }
}
