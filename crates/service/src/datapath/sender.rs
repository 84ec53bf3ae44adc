//! The thread that sends multicast: reads rank memory, puts headers with their tags before chunks, hands bursts to the
//! kernel (MC-1).

use std::io;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use outboard_fabric::multicast::{MulticastSender, MulticastSettings, channel_address};
use outboard_proto::MulticastBatch;
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader};

use super::{Report, SendJob};
use crate::datapath::mailbox::Poster;

/// Times that a batch meets a full interface queue before its rest is left to recovery.
const MOST_CONGESTED: u32 = 20;
/// How long a full interface queue is given to drain.
const CONGESTED_PAUSE: Duration = Duration::from_micros(500);

/// Starts the thread; it ends when the queue's other end is dropped.
pub(super) fn start(
    settings: &MulticastSettings,
    jobs: usize,
    poster: Poster<Report>,
) -> io::Result<(SyncSender<SendJob>, JoinHandle<()>)> {
    let socket = MulticastSender::new(settings)?;
    let (sender, receiver) = sync_channel(jobs);
    let thread = std::thread::Builder::new()
        .name("multicast-send".into())
        .spawn(move || Worker { socket, payload: Vec::new(), headers: Vec::new() }.run(&receiver, &poster))?;
    Ok((sender, thread))
}

struct Worker {
    socket: MulticastSender,
    /// Reused from job to job.
    payload: Vec<u8>,
    headers: Vec<[u8; DATAGRAM_HEADER_BYTES]>,
}

impl Worker {
    fn run(mut self, jobs: &Receiver<SendJob>, poster: &Poster<Report>) {
        while let Ok(job) = jobs.recv() {
            if !poster.post(self.carry_out(&job)) {
                return;
            }
        }
    }

    fn carry_out(&mut self, SendJob { batch, place }: &SendJob) -> Report {
        let length = usize::try_from(batch.memory.len).expect("a batch lies in memory");
        // Grows to the largest batch once.
        if self.payload.len() < length {
            self.payload.resize(length, 0);
        }
        let read = place.read(&mut self.payload[..length]);
        let (datagrams, bytes, failures) = match read {
            Ok(()) => self.send(batch, length),
            Err(_) => (0, 0, u64::from(batch.chunks)),
        };
        Report::Sent { token: batch.token, read, datagrams, bytes, failures }
    }

    /// Returns datagrams sent, their bytes, datagrams given up.
    fn send(&mut self, batch: &MulticastBatch, length: usize) -> (u64, u64, u64) {
        let chunk = batch.chunk_bytes as usize;
        let hasher = batch.key.hasher();
        self.headers.clear();
        self.headers.extend((0..batch.chunks).zip(self.payload[..length].chunks(chunk)).map(|(at, payload)| {
            let header = DatagramHeader { chunk: batch.header.chunk.wrapping_add(at), ..batch.header };
            header.encode(&batch.key, batch.instance, hasher.hash(payload))
        }));
        let to = channel_address(batch.channel.0);
        if let Err(error) = self.socket.set_reach(batch.reach) {
            tracing::warn!(%error, reach = ?batch.reach, "multicast may not reach all; unicast repairs the rest");
        }
        let (mut sent, mut congested) = (0, 0);
        while sent < self.headers.len() && congested < MOST_CONGESTED {
            let payload = &self.payload[sent * chunk..length];
            match self.socket.send(to, chunk, &self.headers[sent..], payload) {
                Ok(outcome) => {
                    sent += outcome.datagrams;
                    if outcome.congested {
                        congested += 1;
                        std::thread::sleep(CONGESTED_PAUSE);
                    }
                }
                Err(error) => {
                    tracing::warn!(%error, %to, "multicast datagrams cannot be sent; unicast repairs them");
                    break;
                }
            }
        }
        let bytes = (sent * chunk).min(length) + sent * DATAGRAM_HEADER_BYTES;
        (sent as u64, bytes as u64, (self.headers.len() - sent) as u64)
    }
}
