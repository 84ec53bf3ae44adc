//! The send queue of the machine: frames to the unicast fabric, batches to the multicast sender.
//!
//! Invariants: frames to one peer leave in the machine's order, and frames of one turn leave together. At most one
//! frame to a peer waits for room in the fabric, and the machine gives no other frame for that peer until the frame has
//! left. So a peer that accepts nothing delays no other peer. If [`MOST_WAITING`] frames wait, the next frame is
//! dropped, and its link repairs the loss. A frame's payload is read before memory changes, so a frame that waits
//! beyond a turn holds a copy.

use std::collections::BTreeMap;

use outboard_fabric::{ConnectError, Fabric, PeerId, SendError, SendPayload};
use outboard_proto::{FrameBytes, MemRef, SpId, Transmit};
use outboard_shm::memory::{MappedBytes, ScatterList};
use serde_json::json;

use crate::datapath::{Datapath, SendJob};
use crate::driver::EndpointDriver;
use crate::memory::{MemoryFault, MemoryLocation};
use crate::telemetry::trace::TimelineFile;

/// Most frames that wait for room, at most one for each peer.
const MOST_WAITING: usize = 256;
/// Limits per turn on transmissions and on their bytes, so that arrivals are polled in between.
const TURN: usize = 256;
const TURN_BYTES: u64 = 8 << 20;

#[derive(Debug)]
struct WaitingFrame {
    header: FrameBytes,
    payload: Vec<u8>,
}

/// The unicast fabric, the frames that found no room in the fabric, and the batch that found the multicast sender's
/// queue full.
pub(crate) struct SendQueue {
    fabric: Box<dyn Fabric>,
    /// Peers without room in the fabric, each with its waiting frame; `None` if that frame was dropped. The machine
    /// gives no frames for these peers.
    waiting: BTreeMap<SpId, Option<WaitingFrame>>,
    /// A batch that found the sender's queue full.
    held: Option<SendJob>,
    /// Frames given to the fabric since the start.
    pub(crate) frames_sent: u64,
}

impl SendQueue {
    pub(crate) fn new(fabric: Box<dyn Fabric>) -> Self {
        SendQueue { fabric, waiting: BTreeMap::new(), held: None, frames_sent: 0 }
    }

    pub(crate) fn fabric(&mut self) -> &mut dyn Fabric {
        &mut *self.fabric
    }

    /// Whether the machine may be polled for more transmissions.
    pub(crate) fn has_room(&self) -> bool {
        self.held.is_none()
    }

    /// Whether fabric and sender have accepted everything.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.held.is_none()
    }

    pub(crate) fn connect(&mut self, peer: SpId, address: &[u8]) -> Result<(), ConnectError> {
        self.fabric.connect(PeerId(peer.0), address)
    }

    pub(crate) fn disconnect(&mut self, driver: &mut EndpointDriver, peer: SpId) {
        self.forget(driver, peer);
        self.fabric.disconnect(PeerId(peer.0));
    }

    /// Forgets a peer that is gone, and drops its waiting frame.
    pub(crate) fn forget(&mut self, driver: &mut EndpointDriver, peer: SpId) {
        if self.waiting.remove(&peer).is_some() {
            driver.set_full(peer, false);
        }
    }

    /// Sends the waiting frames and the machine's output, as far as there is room. Returns whether anything was sent.
    pub(crate) fn send_pending(
        &mut self,
        driver: &mut EndpointDriver,
        mut datapath: Option<&mut Datapath>,
        mut trace: Option<&mut TimelineFile>,
    ) -> bool {
        let mut moved = self.flush(driver);
        if let Some(job) = self.held.take() {
            self.held = submit(datapath.as_deref_mut(), job);
            moved |= self.held.is_none();
        }
        let mut bytes = 0;
        for _ in 0..TURN {
            if !self.has_room() || bytes >= TURN_BYTES {
                break;
            }
            match driver.poll_transmit() {
                None => break,
                Some(Transmit::Frame { to, header, payload }) => {
                    let since = trace.as_ref().filter(|_| !payload.is_empty()).map(|_| TimelineFile::now());
                    let length: u64 = payload.iter().map(|piece| piece.len).sum();
                    bytes += length;
                    self.frame(driver, to, header, &payload);
                    if let (Some(trace), Some(since)) = (&mut trace, since) {
                        trace.did("send unicast", since, json!({ "to": to.to_string(), "bytes": length }));
                    }
                }
                Some(Transmit::Multicast(batch)) => match driver.locate(batch.memory) {
                    Ok(location) => {
                        trace.iter_mut().for_each(|trace| trace.multicast(&batch));
                        self.held = submit(datapath.as_deref_mut(), SendJob { batch, location });
                    }
                    Err(fault) => {
                        self.fabric.flush();
                        driver.multicast_done(batch.token, Err(fault));
                    }
                },
            }
            if driver.has_orders() {
                self.fabric.flush();
                driver.transmitted();
            }
            moved = true;
        }
        self.fabric.flush();
        moved
    }

    /// Gives waiting frames to the fabric as far as it has room.
    fn flush(&mut self, driver: &mut EndpointDriver) -> bool {
        let SendQueue { fabric, waiting, frames_sent, .. } = self;
        let before = waiting.len();
        waiting.retain(|&peer, frame| {
            let sent = match frame {
                Some(frame) => send(&mut **fabric, peer, &frame.header, &frame.payload),
                None => fabric.ready(PeerId(peer.0), 0),
            };
            if let Err(SendError::Full(_)) = sent {
                return true;
            }
            log_failed_send(peer, sent);
            *frames_sent += u64::from(frame.is_some());
            driver.set_full(peer, false);
            false
        });
        waiting.len() < before
    }

    fn frame(&mut self, driver: &mut EndpointDriver, to: SpId, header: FrameBytes, payload: &[MemRef]) {
        let peer = PeerId(to.0);
        let pieces = match payload
            .iter()
            .map(|piece| PayloadPiece::find(driver, *piece))
            .collect::<Result<Vec<_>, MemoryFault>>()
        {
            Ok(pieces) => pieces,
            Err(fault) => return self.fault(driver, fault),
        };
        let length = pieces.iter().map(|piece| piece.length).sum();
        let ready = match self.waiting.contains_key(&to) {
            true => Err(SendError::Full(peer)),
            false => self.fabric.ready(peer, length),
        };
        match ready {
            Ok(()) => {}
            Err(SendError::Full(_)) => return self.wait(driver, to, header, &pieces, length),
            Err(error) => return log_failed_send(to, Err(error)),
        }
        let in_place: Option<ScatterList> =
            if self.fabric.reads_in_place() { pieces.iter().map(PayloadPiece::resident).collect() } else { None };
        let payload = match (length, in_place) {
            (0, _) => SendPayload::Empty,
            (_, Some(places)) => SendPayload::Mapped(places),
            (_, None) => match self.fabric.payload_buffer(length) {
                None => return self.wait(driver, to, header, &pieces, length),
                Some(mut buffer) => match read(&pieces, &mut buffer) {
                    Ok(()) => SendPayload::Buffer(buffer),
                    Err(fault) => return self.fault(driver, fault),
                },
            },
        };
        self.frames_sent += 1;
        log_failed_send(to, self.fabric.send(peer, &header, payload));
    }

    /// Reports a fault. The fault may end calls and give their memory to others, so the frames before it leave first.
    fn fault(&mut self, driver: &mut EndpointDriver, fault: MemoryFault) {
        self.fabric.flush();
        driver.report_fault(fault);
    }

    /// Keeps a frame until the fabric has room; the machine gives no other frame for this peer meanwhile. The frame is
    /// dropped if a frame of an earlier link waits, or if too many frames wait.
    fn wait(
        &mut self,
        driver: &mut EndpointDriver,
        to: SpId,
        header: FrameBytes,
        pieces: &[PayloadPiece],
        length: usize,
    ) {
        let mut kept = None;
        if self.waiting.len() < MOST_WAITING && !self.waiting.contains_key(&to) {
            let mut payload = vec![0; length];
            if let Err(fault) = read(pieces, &mut payload) {
                return self.fault(driver, fault);
            }
            kept = Some(WaitingFrame { header, payload });
        }
        self.waiting.entry(to).or_insert(kept);
        driver.set_full(to, true);
    }
}

struct PayloadPiece {
    location: MemoryLocation,
    length: usize,
}

impl PayloadPiece {
    fn find(driver: &mut EndpointDriver, piece: MemRef) -> Result<Self, MemoryFault> {
        let length = usize::try_from(piece.len).expect("fragments lie in memory");
        driver.locate(piece).map(|location| PayloadPiece { location, length })
    }

    /// The bytes of the piece, if the piece lies in memory of this process.
    fn resident(&self) -> Option<MappedBytes> {
        self.location.readable(self.length)
    }
}

/// Reads the pieces one after another into a buffer of their common length.
fn read(pieces: &[PayloadPiece], mut into: &mut [u8]) -> Result<(), MemoryFault> {
    for piece in pieces {
        let (own, rest) = into.split_at_mut(piece.length);
        piece.location.read(own)?;
        into = rest;
    }
    Ok(())
}

fn send(fabric: &mut dyn Fabric, to: SpId, header: &[u8], payload: &[u8]) -> Result<(), SendError> {
    let payload = if payload.is_empty() { SendPayload::Empty } else { SendPayload::Bytes(payload) };
    fabric.send(PeerId(to.0), header, payload)
}

/// Logs a frame that the fabric refuses for good. Either the machine repairs the loss, or the fabric soon reports the
/// peer as lost.
fn log_failed_send(to: SpId, sent: Result<(), SendError>) {
    if let Err(error) = sent {
        tracing::debug!(peer = %to, %error, "a frame was not sent");
    }
}

/// Hands a batch to the sender; returns it if the sender's queue is full.
fn submit(datapath: Option<&mut Datapath>, job: SendJob) -> Option<SendJob> {
    match datapath {
        Some(datapath) => datapath.submit(job),
        None => unreachable!("the settings allow multicast only where there is a datapath"),
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::collections::{HashMap, VecDeque};
    use std::os::fd::BorrowedFd;
    use std::rc::Rc;

    use outboard_fabric::{Armed, FabricEvent, SendBuffer};
    use outboard_plan::Rank;
    use outboard_proto::wire::{FrameHeader, FrameKind, Message};
    use outboard_proto::{Config, Event, GroupHandle, GroupMember, GroupSpec, HostId, OfferId};

    use super::*;

    /// A fabric whose peers accept no more frames while they hold four.
    #[derive(Default, Clone)]
    struct Peers(Rc<RefCell<HashMap<PeerId, VecDeque<Vec<u8>>>>>);

    impl Fabric for Peers {
        fn id(&self) -> PeerId {
            PeerId(1)
        }

        fn local_address(&self) -> &[u8] {
            &[]
        }

        fn connect(&mut self, peer: PeerId, _: &[u8]) -> Result<(), ConnectError> {
            self.0.borrow_mut().insert(peer, VecDeque::new());
            Ok(())
        }

        fn disconnect(&mut self, _: PeerId) {}

        fn payload_buffer(&mut self, _: usize) -> Option<SendBuffer> {
            None
        }

        fn ready(&mut self, peer: PeerId, _: usize) -> Result<(), SendError> {
            if self.0.borrow()[&peer].len() < 4 { Ok(()) } else { Err(SendError::Full(peer)) }
        }

        fn send(&mut self, peer: PeerId, header: &[u8], _: SendPayload<'_>) -> Result<(), SendError> {
            self.ready(peer, 0)?;
            self.0.borrow_mut().entry(peer).or_default().push_back(header.to_vec());
            Ok(())
        }

        fn progress(&mut self, _: &mut dyn FnMut(FabricEvent<'_>)) -> usize {
            0
        }

        fn event_fd(&self) -> BorrowedFd<'_> {
            unreachable!("nothing is waited for")
        }

        fn arm(&mut self) -> Armed {
            Armed::Armed
        }
    }

    impl Peers {
        /// Empties a peer's queue; returns how many messages its last frame acknowledges.
        fn last_acknowledged(&self, peer: u64) -> Option<u32> {
            let last = self.0.borrow_mut().get_mut(&PeerId(peer))?.drain(..).next_back()?;
            Some(FrameHeader::decode(&last, 0).expect("our own frames").0.ack)
        }
    }

    /// A message that requests an acknowledgement without delay.
    fn message(seq: u32) -> Vec<u8> {
        let (kind, ack_now, link, to, ack, payload_len) = (FrameKind::Message, true, 1, 0, 0, 0);
        let (clock, echo, echo_age) = (1, 0, u32::MAX);
        let header = FrameHeader { kind, ack_now, link, to, seq, ack, payload_len, clock, echo, echo_age };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        Message::Void.encode(&mut bytes);
        bytes
    }

    /// One peer keeps sending and accepts nothing in return.
    #[test]
    fn a_peer_that_accepts_no_frame_does_not_delay_other_peers() {
        let peers = Peers::default();
        let (deaf, other) = (2, 3);
        let member = |id: u64| GroupMember {
            sp: SpId(id),
            host: HostId(id),
            address: [].into(),
            sends_from: None,
            link_rate: 1_000_000_000,
            engine: [].into(),
            offer: OfferId(id),
        };
        let members = [1, deaf, other].map(member).into();
        let spec = GroupSpec { handle: GroupHandle(7), key: [3, 4], members };
        let mut driver = EndpointDriver::new(SpId(1), Config::default(), 1, 0);
        let mut send_queue = SendQueue::new(Box::new(peers.clone()));
        driver.create_group(&spec, Rank(0));
        while let Some(event) = driver.poll_event() {
            if let Event::Connect { peer, address } = event {
                send_queue.connect(peer, &address).expect("room");
            }
        }
        let last = 2 * MOST_WAITING as u32;
        for seq in 0..last {
            driver.frame(SpId(deaf), &message(seq), &[]);
            send_queue.send_pending(&mut driver, None, None);
        }
        peers.last_acknowledged(other);
        driver.frame(SpId(other), &message(0), &[]);
        send_queue.send_pending(&mut driver, None, None);
        assert_eq!(peers.last_acknowledged(other), Some(1));
        assert!(!send_queue.is_empty() && peers.last_acknowledged(deaf) < Some(last));
        send_queue.send_pending(&mut driver, None, None);
        assert_eq!((send_queue.is_empty(), peers.last_acknowledged(deaf)), (true, Some(last)), "when it takes some");
    }
}
