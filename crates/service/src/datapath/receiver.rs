//! Receiving multicast, by threads or by the conductor, in whole batches (MC-2, MC-11). A thread passes filled batches
//! to the conductor, which returns them empty.
//!
//! The receiver hashes each payload by the key of the group that the payload's header names. So a conductor with
//! threads only checks the tag, at the cost of a few bytes. A thread without a batch waits for one, and the kernel's
//! socket buffer absorbs datagrams meanwhile.
//!
//! Socket errors are reported to the conductor and do not end the thread, which tries again after a pause. The thread
//! ends by the conductor's command, or by its own panic, which it also reports.

use std::collections::HashMap;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::panic::AssertUnwindSafe;
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_fabric::multicast::{Datagram, MulticastReceiver, MulticastSettings, ReceiveBatch, Waker};
use outboard_proto::GroupHandle;
use outboard_proto::wire::{DatagramHeader, MulticastKey, PayloadHash, PayloadHasher};

use super::{DatapathReport, split};
use crate::datapath::mailbox::Poster;

/// Room for commands in the queue, in addition to returned batches.
const COMMANDS: usize = 16;
/// Time that the conductor waits for a membership change; a working thread answers within a batch.
const MEMBERSHIP_LIMIT: Duration = Duration::from_secs(5);
/// Pause after a socket error, doubled with each further error.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Datagrams that were received together, and the hashes of their payloads.
#[derive(Debug)]
pub(crate) struct DatagramBatch {
    received: ReceiveBatch,
    hashes: Vec<PayloadHash>,
}

impl DatagramBatch {
    /// A batch with room for this many bursts.
    pub(super) fn new(bursts: usize) -> DatagramBatch {
        DatagramBatch { received: ReceiveBatch::new(bursts), hashes: Vec::new() }
    }

    /// Each datagram with the hash of its payload.
    pub(crate) fn datagrams(&self) -> impl Iterator<Item = (Datagram<'_>, PayloadHash)> {
        self.received.datagrams().zip(self.hashes.iter().copied())
    }
}

/// Request of a group to a receiver.
#[derive(Debug)]
pub(super) enum Interest {
    /// The receiver hashes the group's payloads by this key, and joins the address `join`.
    Begins { group: GroupHandle, key: MulticastKey, join: Option<Ipv4Addr> },
    /// Ends one `Begins` of the group; after the last one the receiver drops the key. The receiver leaves the address
    /// `leave`.
    Ends { group: GroupHandle, leave: Option<Ipv4Addr> },
}

#[derive(Debug)]
enum ReceiverCommand {
    Return(DatagramBatch),
    Interest { interest: Interest, answer: SyncSender<io::Result<()>> },
    Stop,
}

/// The conductor's handle on one receiving thread. Dropping the handle ends the thread.
#[derive(Debug)]
pub(super) struct ReceiverThread {
    commands: SyncSender<ReceiverCommand>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl ReceiverThread {
    /// Starts thread `number` with `batches` batches of `bursts` bursts.
    pub(super) fn start(
        settings: &MulticastSettings,
        number: usize,
        batches: usize,
        bursts: usize,
        poster: Poster<DatapathReport>,
        last_words: Poster<DatapathReport>,
    ) -> io::Result<Self> {
        let intake = MulticastIntake::new(settings, number)?;
        let waker = intake.socket.waker();
        let (commands, queue) = sync_channel(batches + COMMANDS);
        let free = (0..batches).map(|_| DatagramBatch::new(bursts)).collect();
        let worker = ReceiveWorker { intake, number, free, queue, poster };
        let run = move || {
            // The closure is unwind-safe: a panic drops the worker with all its state.
            let panicked = std::panic::catch_unwind(AssertUnwindSafe(|| worker.run())).is_err();
            if panicked {
                // At shutdown the conductor does not read the report.
                let _ = last_words.post(DatapathReport::Gone { receiver: number });
            }
        };
        let thread = std::thread::Builder::new().name(format!("multicast-recv{number}")).spawn(run)?;
        Ok(ReceiverThread { commands, waker, thread: Some(thread) })
    }

    pub(super) fn give_back(&self, batch: DatagramBatch) {
        // The send fails only if the thread has ended, and an ended thread needs no batch.
        let _ = self.commands.send(ReceiverCommand::Return(batch));
    }

    /// Applies a request of a group; the request has taken effect on return.
    pub(super) fn apply_interest(&self, interest: Interest) -> io::Result<()> {
        let ended = || io::Error::other("the receiving thread has ended");
        let (answer, answered) = sync_channel(1);
        self.commands.send(ReceiverCommand::Interest { interest, answer }).map_err(|_| ended())?;
        self.waker.wake();
        answered.recv_timeout(MEMBERSHIP_LIMIT).map_err(|_| ended())?
    }
}

impl Drop for ReceiverThread {
    fn drop(&mut self) {
        // The send fails only if the thread has ended.
        let _ = self.commands.send(ReceiverCommand::Stop);
        self.waker.wake();
        if let Some(thread) = self.thread.take() {
            // A panicked thread has already reported its panic.
            let _ = thread.join();
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WorkerFlow {
    GoOn,
    End,
}

/// A socket, and the keys for hashing its payloads.
#[derive(Debug)]
pub(super) struct MulticastIntake {
    socket: MulticastReceiver,
    /// The hasher of each group, and the number of the group's `Begins` that have not ended.
    keys: HashMap<GroupHandle, (PayloadHasher, u32)>,
    /// Pause after the next error.
    pause: Duration,
}

impl MulticastIntake {
    pub(super) fn new(settings: &MulticastSettings, number: usize) -> io::Result<Self> {
        let socket = MulticastReceiver::new(settings)?;
        tracing::info!(number, buffer_bytes = socket.buffer_bytes(), "receiving multicast");
        Ok(MulticastIntake { socket, keys: HashMap::new(), pause: FIRST_PAUSE })
    }

    /// Becomes readable when datagrams wait.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.socket.event_fd()
    }

    pub(super) fn apply_interest(&mut self, interest: Interest) -> io::Result<()> {
        match interest {
            Interest::Begins { group, key, join } => {
                join.map_or(Ok(()), |address| self.socket.join(address))?;
                self.keys.entry(group).or_insert_with(|| (key.hasher(), 0)).1 += 1;
                Ok(())
            }
            Interest::Ends { group, leave } => {
                if let Some((_, wanted)) = self.keys.get_mut(&group) {
                    *wanted -= 1;
                    if *wanted == 0 {
                        self.keys.remove(&group);
                    }
                }
                leave.map_or(Ok(()), |address| self.socket.leave(address))
            }
        }
    }

    /// Replaces the content of `batch` by the waiting datagrams. Returns how many bursts the socket had no room for, or
    /// `None` if no datagram waits.
    ///
    /// # Errors
    /// The kernel's error, and the pause before the next try.
    pub(super) fn receive(&mut self, batch: &mut DatagramBatch) -> Result<Option<u64>, (io::Error, Duration)> {
        let received = self.socket.receive(&mut batch.received).map_err(|error| (error, self.longer_pause()))?;
        if received.bursts == 0 {
            return Ok(None);
        }
        self.pause = FIRST_PAUSE;
        let hash = |datagram: Datagram<'_>| {
            let (header, payload) = split(datagram.bytes);
            let hasher = DatagramHeader::parse(header).ok().and_then(|header| self.keys.get(&header.group));
            // If the header names no group of this host, the payload is refused whatever its hash is.
            hasher.map_or(PayloadHash::default(), |(hasher, _)| hasher.hash(payload))
        };
        batch.hashes.clear();
        batch.hashes.extend(batch.received.datagrams().map(hash));
        Ok(Some(u64::from(received.overflowed)))
    }

    fn longer_pause(&mut self) -> Duration {
        let longer = (self.pause * 2).min(LONGEST_PAUSE);
        std::mem::replace(&mut self.pause, longer)
    }
}

struct ReceiveWorker {
    intake: MulticastIntake,
    number: usize,
    free: Vec<DatagramBatch>,
    queue: mpsc::Receiver<ReceiverCommand>,
    poster: Poster<DatapathReport>,
}

impl ReceiveWorker {
    fn run(mut self) {
        loop {
            let command = match self.free.is_empty() {
                // The conductor holds all batches, so the thread waits until the conductor gives one back.
                true => self.queue.recv().ok(),
                false => self.queue.try_recv().ok(),
            };
            let next = match command {
                Some(command) => self.handle_command(command),
                None if self.free.is_empty() => WorkerFlow::End,
                None => self.receive(),
            };
            if next == WorkerFlow::End {
                return;
            }
        }
    }

    fn handle_command(&mut self, command: ReceiverCommand) -> WorkerFlow {
        match command {
            ReceiverCommand::Return(batch) => self.free.push(batch),
            ReceiverCommand::Interest { interest, answer } => {
                // Fails if the conductor has stopped waiting.
                let _ = answer.send(self.intake.apply_interest(interest));
            }
            ReceiverCommand::Stop => return WorkerFlow::End,
        }
        WorkerFlow::GoOn
    }

    fn receive(&mut self) -> WorkerFlow {
        let Some(mut batch) = self.free.pop() else { return WorkerFlow::GoOn };
        match self.intake.receive(&mut batch) {
            Ok(Some(overflowed)) => {
                let report = DatapathReport::Received { receiver: self.number, batch, overflowed };
                return if self.poster.post(report) { WorkerFlow::GoOn } else { WorkerFlow::End };
            }
            Ok(None) => {}
            Err((error, pause)) => return self.pause(batch, error, pause),
        }
        match self.intake.socket.wait(None) {
            Ok(_) => self.free.push(batch),
            Err(error) => {
                let pause = self.intake.longer_pause();
                return self.pause(batch, error, pause);
            }
        }
        WorkerFlow::GoOn
    }

    /// Reports that the kernel refuses to receive, then pauses the thread. The report carries a batch, so the number of
    /// reports under way is bounded.
    fn pause(&mut self, batch: DatagramBatch, error: io::Error, pause: Duration) -> WorkerFlow {
        if !self.poster.post(DatapathReport::Failed { receiver: self.number, batch, error }) {
            return WorkerFlow::End;
        }
        match self.queue.recv_timeout(pause) {
            Ok(command) => self.handle_command(command),
            Err(RecvTimeoutError::Timeout) => WorkerFlow::GoOn,
            Err(RecvTimeoutError::Disconnected) => WorkerFlow::End,
        }
    }
}
