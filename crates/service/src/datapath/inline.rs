//! The inline datapath: a turn of the conductor sends the machine's batches and receives the waiting datagrams.
//!
//! On a link of 1 Gbit/s a batch of 32 datagrams takes 0.4 ms. Waking a thread for the batch, and then the conductor,
//! costs more than sending or receiving the batch.
//!
//! | a job is | on | goes to |
//! |---|---|---|
//! | - | `submit` | sent and reported, or under way if a queue is full |
//! | under way | `report` after the job's pause | sent and reported, or under way |
//!
//! Invariants: one job is under way at most, and one batch is filled at a time. Nothing blocks: sockets are
//! non-blocking, and pauses are timers of the conductor.

use std::collections::VecDeque;
use std::io;
use std::os::fd::BorrowedFd;
use std::time::Instant;

use outboard_fabric::multicast::MulticastSettings;

use super::receiver::{DatagramBatch, Interest, MulticastIntake};
use super::{BURSTS, DatapathReport, SEND_JOBS, SendJob, sender};

#[derive(Debug)]
pub(super) struct InlineDatapath {
    sender: sender::SendWorker,
    /// Time at which the job under way continues.
    sends_at: Option<Instant>,
    reports: VecDeque<DatapathReport>,
    intake: MulticastIntake,
    /// `None` while the conductor holds the batch.
    batch: Option<DatagramBatch>,
    /// Time from which waiting datagrams may be read; `None` if no datagram is known to wait. A refusal by the kernel
    /// postpones the time.
    readable: Option<Instant>,
}

impl InlineDatapath {
    pub(super) fn new(settings: &MulticastSettings) -> io::Result<Self> {
        let settings = MulticastSettings { waits: false, ..settings.clone() };
        let (sender, intake) = (sender::SendWorker::new(&settings)?, MulticastIntake::new(&settings, 0)?);
        let batch = Some(DatagramBatch::new(BURSTS));
        Ok(InlineDatapath { sender, sends_at: None, reports: VecDeque::new(), intake, batch, readable: None })
    }

    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        self.intake.event_fd()
    }

    pub(super) fn note_readable(&mut self) {
        self.readable.get_or_insert_with(Instant::now);
    }

    pub(super) fn due(&self, now: Instant) -> Option<Instant> {
        let report_due = self.reports.front().map(|_| now);
        self.sends_at.into_iter().chain(self.readable).chain(report_due).min()
    }

    pub(super) fn apply_interest(&mut self, interest: Interest) -> io::Result<()> {
        self.intake.apply_interest(interest)
    }

    pub(super) fn give_back(&mut self, batch: DatagramBatch) {
        self.batch = Some(batch);
    }

    pub(super) fn submit(&mut self, job: SendJob) -> Option<SendJob> {
        if self.sends_at.is_some() || self.reports.len() == SEND_JOBS {
            return Some(job);
        }
        self.sender.begin(job);
        self.continue_sending();
        None
    }

    fn continue_sending(&mut self) {
        self.sends_at = self.sender.continue_sending().map(|pause| Instant::now() + pause);
        if self.sends_at.is_none() {
            self.reports.extend(self.sender.report());
        }
    }

    pub(super) fn report(&mut self, now: Instant) -> Option<DatapathReport> {
        if self.sends_at.is_some_and(|at| at <= now) {
            self.continue_sending();
        }
        if let Some(report) = self.reports.pop_front() {
            return Some(report);
        }
        self.readable.filter(|at| *at <= now)?;
        let mut batch = self.batch.take()?;
        match self.intake.receive(&mut batch) {
            Ok(Some(overflowed)) => Some(DatapathReport::Received { receiver: 0, batch, overflowed }),
            Ok(None) => {
                (self.readable, self.batch) = (None, Some(batch));
                None
            }
            Err((error, pause)) => {
                self.readable = Some(now + pause);
                Some(DatapathReport::Failed { receiver: 0, batch, error })
            }
        }
    }
}
