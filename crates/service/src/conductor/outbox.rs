//! What the machine wants sent: frames to the unicast fabric, batches to the multicast sender.
//!
//! Invariants: frames to one peer leave in the order in which the machine gave them, those of a turn together; at most
//! [`MOST_WAITING`] frames wait for room in the fabric, then the machine is not asked for more. A frame's payload is
//! read before anything is done to memory, so what waits beyond a turn holds a copy.

use std::collections::{BTreeMap, VecDeque};

use outboard_fabric::{ConnectError, Fabric, Payload, PeerId, SendError};
use outboard_proto::{FrameBytes, MemRef, SpId, Transmit};
use outboard_shm::memory::{Resident, Residents};
use serde_json::json;

use crate::conductor::engine::Engine;
use crate::datapath::{Datapath, SendJob};
use crate::memory::{Fault, Place};
use crate::telemetry::trace::Trace;

/// Frames that wait for room, all peers together.
const MOST_WAITING: usize = 256;
/// Transmissions per turn, and bytes of them, so that arrivals are looked at in between.
const TURN: usize = 256;
const TURN_BYTES: u64 = 8 << 20;

#[derive(Debug)]
struct Frame {
    header: FrameBytes,
    payload: Vec<u8>,
}

/// The unicast fabric, and what has not found room in it or in the queue of the multicast sender.
pub(crate) struct Outbox {
    fabric: Box<dyn Fabric>,
    waiting: BTreeMap<SpId, VecDeque<Frame>>,
    frames: usize,
    /// A batch that found the sender's queue full.
    held: Option<SendJob>,
    /// Given to the fabric since the start.
    pub(crate) frames_sent: u64,
}

impl Outbox {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Self {
        Outbox { fabric, waiting: BTreeMap::new(), frames: 0, held: None, frames_sent: 0 }
    }

    pub(crate) fn fabric(&mut self) -> &mut dyn Fabric {
        &mut *self.fabric
    }

    /// Whether the machine may be asked for more.
    pub(crate) fn has_room(&self) -> bool {
        self.held.is_none() && self.frames < MOST_WAITING
    }

    /// Whether everything that was given out has been accepted by fabric and sender.
    pub(crate) fn is_empty(&self) -> bool {
        self.frames == 0 && self.held.is_none()
    }

    pub(crate) fn connect(&mut self, peer: SpId, address: &[u8]) -> Result<(), ConnectError> {
        self.fabric.connect(PeerId(peer.0), address)
    }

    pub(crate) fn disconnect(&mut self, peer: SpId) {
        self.forget(peer);
        self.fabric.disconnect(PeerId(peer.0));
    }

    /// Frames that wait for a peer that is gone are gone too.
    pub(crate) fn forget(&mut self, peer: SpId) {
        self.frames -= self.waiting.remove(&peer).map_or(0, |queue| queue.len());
    }

    /// Sends what waits and what the machine has, as far as there is room; returns whether anything moved.
    pub(crate) fn pump(
        &mut self,
        engine: &mut Engine,
        mut datapath: Option<&mut Datapath>,
        mut trace: Option<&mut Trace>,
    ) -> bool {
        let mut moved = self.flush();
        if let Some(job) = self.held.take() {
            self.held = submit(datapath.as_deref_mut(), job);
            moved |= self.held.is_none();
        }
        let mut bytes = 0;
        for _ in 0..TURN {
            if !self.has_room() || bytes >= TURN_BYTES {
                break;
            }
            match engine.poll_transmit() {
                None => break,
                Some(Transmit::Frame { to, header, payload }) => {
                    let since = trace.as_ref().filter(|_| !payload.is_empty()).map(|_| Trace::now());
                    let length: u64 = payload.iter().map(|piece| piece.len).sum();
                    bytes += length;
                    self.frame(engine, to, header, &payload);
                    if let (Some(trace), Some(since)) = (&mut trace, since) {
                        trace.did("send unicast", since, json!({ "to": to.to_string(), "bytes": length }));
                    }
                }
                Some(Transmit::Multicast(batch)) => match engine.place(batch.memory) {
                    Ok(place) => {
                        trace.iter_mut().for_each(|trace| trace.multicast(&batch));
                        self.held = submit(datapath.as_deref_mut(), SendJob { batch, place });
                    }
                    Err(fault) => {
                        self.fabric.flush();
                        engine.multicast_done(batch.token, Err(fault));
                    }
                },
            }
            if engine.has_orders() {
                self.fabric.flush();
                engine.transmitted();
            }
            moved = true;
        }
        self.fabric.flush();
        moved
    }

    /// Gives waiting frames to the fabric as far as it takes them.
    fn flush(&mut self) -> bool {
        let mut moved = false;
        let fabric = &mut *self.fabric;
        self.waiting.retain(|&peer, queue| {
            while let Some(frame) = queue.front() {
                if let Err(SendError::Full(_)) = fabric.ready(PeerId(peer.0), frame.payload.len()) {
                    break;
                }
                if let Err(error @ SendError::Full(_)) = send(fabric, peer, &frame.header, &frame.payload) {
                    tracing::trace!(%error, "no room after all");
                    break;
                }
                queue.pop_front();
                self.frames -= 1;
                self.frames_sent += 1;
                moved = true;
            }
            !queue.is_empty()
        });
        moved
    }

    fn frame(&mut self, engine: &mut Engine, to: SpId, header: FrameBytes, payload: &[MemRef]) {
        let peer = PeerId(to.0);
        let pieces = match payload.iter().map(|piece| Piece::find(engine, *piece)).collect::<Result<Vec<_>, Fault>>() {
            Ok(pieces) => pieces,
            Err(fault) => return self.fault(engine, fault),
        };
        let length = pieces.iter().map(|piece| piece.length).sum();
        let ready = match self.waiting.contains_key(&to) {
            true => Err(SendError::Full(peer)),
            false => self.fabric.ready(peer, length),
        };
        match ready {
            Ok(()) => {}
            Err(SendError::Full(_)) => return self.wait(engine, to, header, &pieces, length),
            Err(error) => return note(to, Err(error)),
        }
        let in_place: Option<Residents> =
            if self.fabric.reads_in_place() { pieces.iter().map(Piece::resident).collect() } else { None };
        let payload = match (length, in_place) {
            (0, _) => Payload::Empty,
            (_, Some(places)) => Payload::Resident(places),
            (_, None) => match self.fabric.payload_buffer(length) {
                None => return self.wait(engine, to, header, &pieces, length),
                Some(mut buffer) => match read(&pieces, &mut buffer) {
                    Ok(()) => Payload::Buffer(buffer),
                    Err(fault) => return self.fault(engine, fault),
                },
            },
        };
        self.frames_sent += 1;
        note(to, self.fabric.send(peer, &header, payload));
    }

    /// A fault may end calls, and give their memory to others.
    fn fault(&mut self, engine: &mut Engine, fault: Fault) {
        self.fabric.flush();
        engine.fault(fault);
    }

    /// Keeps a frame until the fabric has room.
    fn wait(&mut self, engine: &mut Engine, to: SpId, header: FrameBytes, pieces: &[Piece], length: usize) {
        let mut payload = vec![0; length];
        if let Err(fault) = read(pieces, &mut payload) {
            return self.fault(engine, fault);
        }
        self.waiting.entry(to).or_default().push_back(Frame { header, payload });
        self.frames += 1;
    }
}

/// A piece of a frame's payload.
struct Piece {
    place: Place,
    length: usize,
}

impl Piece {
    fn find(engine: &mut Engine, piece: MemRef) -> Result<Self, Fault> {
        let length = usize::try_from(piece.len).expect("fragments lie in memory");
        engine.place(piece).map(|place| Piece { place, length })
    }

    /// Where it lies in this process, if it does.
    fn resident(&self) -> Option<Resident> {
        self.place.readable(self.length)
    }
}

/// Piece after piece into a buffer of their common length.
fn read(pieces: &[Piece], mut into: &mut [u8]) -> Result<(), Fault> {
    for piece in pieces {
        let (own, rest) = into.split_at_mut(piece.length);
        piece.place.read(own)?;
        into = rest;
    }
    Ok(())
}

fn send(fabric: &mut dyn Fabric, to: SpId, header: &[u8], payload: &[u8]) -> Result<(), SendError> {
    let payload = if payload.is_empty() { Payload::Empty } else { Payload::Bytes(payload) };
    fabric.send(PeerId(to.0), header, payload)
}

/// A frame that the fabric refuses for good is lost; the machine copes, or learns of the lost peer in a moment.
fn note(to: SpId, sent: Result<(), SendError>) {
    if let Err(error) = sent {
        tracing::debug!(peer = %to, %error, "a frame was not sent");
    }
}

/// Hands a batch to the sender; gives it back when its queue is full.
fn submit(datapath: Option<&mut Datapath>, job: SendJob) -> Option<SendJob> {
    match datapath {
        Some(datapath) => datapath.submit(job),
        None => unreachable!("the settings allow multicast only where there is a datapath"),
    }
}
