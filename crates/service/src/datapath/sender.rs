//! Sending multicast, by a thread or by the conductor: reads rank memory, puts a header with a tag before each chunk,
//! and hands bursts to the kernel (MC-1). After [`MOST_CONGESTED`] full queues the rest of a batch is left to recovery.

use std::io;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_fabric::limited;
use outboard_fabric::multicast::{MulticastSender, MulticastSettings, channel_address};
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader};

use super::{DatapathReport, SendJob};
use crate::datapath::mailbox::Poster;
use crate::memory::MemoryFault;

/// After this many full interface queues the rest of a batch is left to recovery.
const MOST_CONGESTED: u32 = 20;
/// Pause in which a full interface queue may drain.
const CONGESTED_PAUSE: Duration = Duration::from_micros(500);

/// Starts the thread, which ends when the sending end of its queue is dropped.
pub(super) fn start(
    settings: &MulticastSettings,
    jobs: usize,
    poster: Poster<DatapathReport>,
) -> io::Result<(SyncSender<SendJob>, JoinHandle<()>)> {
    let mut worker = SendWorker::new(settings)?;
    let (sender, receiver) = sync_channel(jobs);
    let run = move || {
        while let Ok(job) = receiver.recv() {
            worker.begin(job);
            while let Some(pause) = worker.continue_sending() {
                std::thread::sleep(pause);
            }
            if !worker.report().is_some_and(|report| poster.post(report)) {
                return;
            }
        }
    };
    let thread = std::thread::Builder::new().name("multicast-send".into()).spawn(run)?;
    Ok((sender, thread))
}

#[derive(Debug)]
struct CurrentJob {
    job: SendJob,
    read: Result<(), MemoryFault>,
    length: usize,
    /// Number of datagrams sent; `congested` is the number of full queues met.
    sent: usize,
    congested: u32,
}

/// Carries out one job after another: [`Self::begin`], [`Self::continue_sending`] until it returns no pause,
/// [`Self::report`].
#[derive(Debug)]
pub(super) struct SendWorker {
    socket: MulticastSender,
    current: Option<CurrentJob>,
    /// The buffers are reused for every job.
    payload: Vec<u8>,
    headers: Vec<[u8; DATAGRAM_HEADER_BYTES]>,
}

impl SendWorker {
    pub(super) fn new(settings: &MulticastSettings) -> io::Result<Self> {
        let socket = MulticastSender::new(settings)?;
        Ok(SendWorker { socket, current: None, payload: Vec::new(), headers: Vec::new() })
    }

    /// Begins a job and reads its payload; no other job may be under way.
    pub(super) fn begin(&mut self, job: SendJob) {
        let SendJob { batch, location } = &job;
        let length = usize::try_from(batch.memory.len).expect("a batch lies in memory");
        // The buffer grows only once, to the size of the largest batch.
        if self.payload.len() < length {
            self.payload.resize(length, 0);
        }
        let read = location.read(&mut self.payload[..length]);
        self.headers.clear();
        if read.is_ok() {
            let hasher = batch.key.hasher();
            let chunks = (0..batch.chunks).zip(self.payload[..length].chunks(batch.chunk_bytes as usize));
            self.headers.extend(chunks.map(|(at, payload)| {
                let header = DatagramHeader { chunk: batch.header.chunk.wrapping_add(at), ..batch.header };
                header.encode(&batch.key, batch.instance, hasher.hash(payload))
            }));
        }
        if let Err(error) = self.socket.set_reach(batch.reach) {
            limited!(warn, %error, reach = ?batch.reach, "multicast may not reach all; unicast repairs the rest");
        }
        let before = self.current.replace(CurrentJob { job, read, length, sent: 0, congested: 0 });
        assert!(before.is_none(), "one job at a time");
    }

    /// Sends the rest of the job. Returns the pause before the next try if a queue is full.
    pub(super) fn continue_sending(&mut self) -> Option<Duration> {
        let CurrentJob { job, length, sent, congested, .. } = self.current.as_mut()?;
        let (to, chunk) = (channel_address(job.batch.channel.0), job.batch.chunk_bytes as usize);
        while *sent < self.headers.len() && *congested < MOST_CONGESTED {
            let payload = &self.payload[*sent * chunk..*length];
            match self.socket.send(to, chunk, &self.headers[*sent..], payload) {
                Ok(outcome) => {
                    *sent += outcome.datagrams;
                    if outcome.congested {
                        *congested += 1;
                        return Some(CONGESTED_PAUSE);
                    }
                }
                Err(error) => {
                    limited!(warn, %error, %to, "multicast datagrams cannot be sent; unicast repairs them");
                    return None;
                }
            }
        }
        None
    }

    /// Ends the job and returns its outcome.
    pub(super) fn report(&mut self) -> Option<DatapathReport> {
        let CurrentJob { job, read, length, sent, .. } = self.current.take()?;
        let bytes = (sent * job.batch.chunk_bytes as usize).min(length) + sent * DATAGRAM_HEADER_BYTES;
        let failures = u64::from(job.batch.chunks).saturating_sub(sent as u64);
        Some(DatapathReport::Sent {
            token: job.batch.token,
            read,
            datagrams: sent as u64,
            bytes: bytes as u64,
            failures,
        })
    }
}
