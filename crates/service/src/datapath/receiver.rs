//! Threads that receive multicast: whole batches go to the conductor and come back empty (MC-2, MC-11).
//!
//! A thread without a batch waits for one, and the kernel's socket buffer absorbs meanwhile.

use std::io;
use std::net::Ipv4Addr;
use std::sync::mpsc::{self, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_fabric::multicast::{MulticastReceiver, MulticastSettings, ReceiveBatch, Waker};

use super::Report;
use crate::datapath::mailbox::Poster;

/// Commands that may wait beside batches on their way back.
const COMMANDS: usize = 16;
/// How long the conductor waits for a membership; a thread that works answers within a batch.
const PATIENCE: Duration = Duration::from_secs(5);

/// What the conductor tells a receiver.
#[derive(Debug)]
enum Command {
    /// A batch comes back.
    Return(ReceiveBatch),
    /// Receive this address, or stop receiving it; answered.
    Membership { address: Ipv4Addr, join: bool, answer: SyncSender<io::Result<()>> },
    /// End.
    Stop,
}

/// The conductor's handle on one receiving thread; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Receiver {
    commands: SyncSender<Command>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Receiver {
    /// Starts thread `number` with `batches` batches of `bursts` bursts.
    pub(super) fn start(
        settings: &MulticastSettings,
        number: usize,
        (batches, bursts): (usize, usize),
        poster: Poster<Report>,
    ) -> io::Result<Self> {
        let socket = MulticastReceiver::new(settings)?;
        tracing::info!(number, buffer_bytes = socket.buffer_bytes(), "receiving multicast");
        let waker = socket.waker();
        let (commands, queue) = sync_channel(batches + COMMANDS);
        let free = (0..batches).map(|_| ReceiveBatch::new(bursts)).collect();
        let worker = Worker { socket, number, free, queue, poster };
        let thread = std::thread::Builder::new().name(format!("multicast-recv{number}")).spawn(move || worker.run())?;
        Ok(Receiver { commands, waker, thread: Some(thread) })
    }

    pub(super) fn give_back(&self, batch: ReceiveBatch) {
        // Refused only by a thread that has ended, and then nobody needs the batch.
        let _ = self.commands.send(Command::Return(batch));
    }

    /// Receives an address from now on, or no more.
    pub(super) fn membership(&self, address: Ipv4Addr, join: bool) -> io::Result<()> {
        let ended = || io::Error::other("the receiving thread has ended");
        let (answer, answered) = sync_channel(1);
        self.commands.send(Command::Membership { address, join, answer }).map_err(|_| ended())?;
        self.waker.wake();
        answered.recv_timeout(PATIENCE).map_err(|_| ended())?
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        // Refused only by a thread that has ended.
        let _ = self.commands.send(Command::Stop);
        self.waker.wake();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("a multicast receiver panicked");
        }
    }
}

/// Whether a thread goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Next {
    GoOn,
    End,
}

struct Worker {
    socket: MulticastReceiver,
    number: usize,
    free: Vec<ReceiveBatch>,
    queue: mpsc::Receiver<Command>,
    poster: Poster<Report>,
}

impl Worker {
    fn run(mut self) {
        loop {
            let command = match self.free.is_empty() {
                // The conductor is behind: nothing can be received until it gives a batch back.
                true => self.queue.recv().ok(),
                false => self.queue.try_recv().ok(),
            };
            let next = match command {
                Some(command) => self.obey(command),
                None if self.free.is_empty() => Next::End,
                None => self.receive(),
            };
            if next == Next::End {
                return;
            }
        }
    }

    fn obey(&mut self, command: Command) -> Next {
        match command {
            Command::Return(batch) => self.free.push(batch),
            Command::Membership { address, join, answer } => {
                let done = if join { self.socket.join(address) } else { self.socket.leave(address) };
                // Nobody listens any more when the conductor lost patience.
                let _ = answer.send(done);
            }
            Command::Stop => return Next::End,
        }
        Next::GoOn
    }

    fn receive(&mut self) -> Next {
        let Some(mut batch) = self.free.pop() else { return Next::GoOn };
        let received = match self.socket.receive(&mut batch) {
            Ok(received) => received,
            Err(error) => {
                tracing::error!(%error, "multicast cannot be received; unicast repairs it");
                return Next::End;
            }
        };
        if received.datagrams > 0 {
            let overflowed = u64::from(received.overflowed);
            let report = Report::Received { receiver: self.number, batch, overflowed };
            return if self.poster.post(report) { Next::GoOn } else { Next::End };
        }
        self.free.push(batch);
        match self.socket.wait(None) {
            Ok(_) => Next::GoOn,
            Err(error) => {
                tracing::error!(%error, "a multicast receiver cannot wait");
                Next::End
            }
        }
    }
}
