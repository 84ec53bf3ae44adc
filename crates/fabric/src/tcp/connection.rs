//! One TCP connection: the identity of its other end, as far as proven, and the bytes in both directions.
//!
//! | stage | on | goes to |
//! |---|---|---|
//! | dialing | the kernel has connected | greeting, hello sent |
//! | greeting (dialer or listener) | messages of the handshake | greeting, then open |
//! | greeting (listener) | the dialer is proven, and this end's own dial to the dialer has priority | giving way |
//! | giving way | this end's own dial failed | open |
//! | giving way | end of stream | ended |
//! | any but open | `until` expired, end of stream, a bad message | ended |
//! | open | end of stream, reset, a bad frame | ended |
//!
//! Invariants: no byte after the handshake is read before the handshake has ended; sockets never block. Machines
//! without sockets interpret the bytes ([`Handshake`], [`FrameReader`], [`RecordWriter`]). Never dials again and never
//! decides which of two connections stays: the fabric does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use outboard_shm::memory::GatherList;
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::secured::{Handshake, HandshakeError, HandshakeStep, Keys};
use crate::tcp::address::Address;
use crate::tcp::frame_reader::{FrameReader, MalformedStream, ReadBuffers};
use crate::tcp::frames::FrameSink;
use crate::tcp::listener::StreamSocket;
use crate::tcp::outgoing::{QueuedMessage, RecordWriter, SpareBuffers};
use crate::{MessageReceiver, PeerId, PeerLoss};

/// Reads of one connection per turn, so that other connections get their turns.
const READS: usize = 8;
/// Frames and bytes that one turn reads from all connections. The last read may exceed them. A frame costs some
/// microseconds.
const FRAMES: usize = 4096;
const BYTES: usize = 8 << 20;
/// Messages passed to the kernel at once.
pub(super) const TOGETHER: usize = 16;

/// The frames and bytes that may still be read in this turn.
pub(super) struct ReadBudget {
    frames: usize,
    bytes: usize,
}

impl ReadBudget {
    pub(super) const FULL: ReadBudget = ReadBudget { frames: FRAMES, bytes: BYTES };

    pub(super) fn is_used_up(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }

    fn spend(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_sub(frames);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

pub(super) enum ConnectionStage {
    Dialing {
        until: Instant,
    },
    Handshake {
        handshake: Handshake,
        until: Instant,
    },
    /// Frames go both ways; on an encrypted connection they travel in records.
    Open {
        frame_reader: FrameReader,
        writer: Option<RecordWriter>,
        carried_frames: bool,
    },
    /// The dialer is proven, but this end's own dial to the dialer has priority. The peer closes this connection once
    /// this end's own connection is open. If the own dial fails, this end sends the bytes in `welcome`.
    GivingWay {
        until: Instant,
        welcome: Vec<u8>,
        keys: Keys,
    },
    Ended,
}

pub(super) enum ReadOutcome {
    Frames(usize),
    Nothing,
    /// Listener: the dialer has proven its key and its address. The bytes in `welcome` complete the handshake.
    Proven {
        address: Address,
        welcome: Vec<u8>,
        keys: Keys,
    },
    /// Dialer: the connection to the peer is open.
    Welcome(Keys),
}

#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum ConnectionError {
    #[error("it was closed")]
    Closed,
    #[error(transparent)]
    Kernel(#[from] Errno),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Malformed(#[from] MalformedStream),
    #[error("the handshake took too long")]
    Slow,
}

impl From<ConnectionError> for PeerLoss {
    fn from(broken: ConnectionError) -> Self {
        match broken {
            ConnectionError::Closed | ConnectionError::Kernel(Errno::CONNRESET | Errno::PIPE) => PeerLoss::Reset,
            ConnectionError::Kernel(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => {
                PeerLoss::Unreachable
            }
            ConnectionError::Slow | ConnectionError::Kernel(Errno::TIMEDOUT) => PeerLoss::TimedOut,
            ConnectionError::Kernel(Errno::MFILE | Errno::NFILE) => PeerLoss::Descriptors,
            ConnectionError::Kernel(errno) => PeerLoss::Transport(errno.to_string()),
            ConnectionError::Handshake(error) => PeerLoss::Handshake(error.to_string()),
            ConnectionError::Malformed(error) => PeerLoss::Protocol(error.to_string()),
        }
    }
}

pub(super) struct TcpConnection {
    socket: StreamSocket,
    /// The peer that was dialled. On an accepted connection the peer is known once the connection is open.
    pub(super) peer: Option<PeerId>,
    pub(super) stage: ConnectionStage,
    /// Whether the poller reports room to write.
    pub(super) awaits_room: bool,
}

impl AsFd for TcpConnection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl TcpConnection {
    pub(super) fn dialled(peer: PeerId, socket: StreamSocket, until: Instant) -> Self {
        TcpConnection { socket, peer: Some(peer), stage: ConnectionStage::Dialing { until }, awaits_room: true }
    }

    pub(super) fn accepted(socket: StreamSocket, handshake: Handshake, until: Instant) -> Self {
        TcpConnection { socket, peer: None, stage: ConnectionStage::Handshake { handshake, until }, awaits_room: false }
    }

    pub(super) fn from(&self) -> String {
        self.socket.from()
    }

    /// Whether the other end has sent a hello, which requires knowledge of this end's key.
    pub(super) fn was_greeted(&self) -> bool {
        match &self.stage {
            ConnectionStage::Handshake { handshake, .. } => handshake.was_greeted(),
            ConnectionStage::GivingWay { .. } => true,
            ConnectionStage::Dialing { .. } | ConnectionStage::Open { .. } | ConnectionStage::Ended => false,
        }
    }

    pub(super) fn has_carried_frames(&self) -> bool {
        matches!(self.stage, ConnectionStage::Open { carried_frames: true, .. })
    }

    pub(super) fn until(&self) -> Option<Instant> {
        match self.stage {
            ConnectionStage::Dialing { until }
            | ConnectionStage::Handshake { until, .. }
            | ConnectionStage::GivingWay { until, .. } => Some(until),
            ConnectionStage::Open { .. } | ConnectionStage::Ended => None,
        }
    }

    /// Sends the hello once the kernel has connected. Returns the kernel's error if connecting failed.
    pub(super) fn greet(&mut self, handshake: Handshake, hello: &[u8], until: Instant) -> Result<(), ConnectionError> {
        sockopt::socket_error(&self.socket)??;
        self.stage = ConnectionStage::Handshake { handshake, until };
        self.send_handshake(hello)
    }

    /// Time until which the peer may be dialled again after the connection broke with `why`. A peer that did not refuse
    /// the hello was only out of room at that moment.
    pub(super) fn retry_until(&self, why: &ConnectionError) -> Option<Instant> {
        let refusal = match (why, &self.stage) {
            (ConnectionError::Kernel(Errno::CONNRESET | Errno::PIPE), _) => false,
            (ConnectionError::Closed, ConnectionStage::Handshake { handshake, .. }) => !handshake.was_answered(),
            (
                ConnectionError::Closed
                | ConnectionError::Kernel(_)
                | ConnectionError::Handshake(_)
                | ConnectionError::Malformed(_)
                | ConnectionError::Slow,
                _,
            ) => true,
        };
        self.until().filter(|until| !refusal && Instant::now() < *until)
    }

    /// Closes the connection with a reset, which the dialer does not take for a refusal.
    pub(super) fn close_with_reset(&self) {
        // If the reset fails, the peer sees an ordinary end and does not dial again.
        let _ = self.socket.reset();
    }

    /// Opens the connection for frames of `peer`. With `keys`, the frames travel in records.
    pub(super) fn open(&mut self, peer: PeerId, keys: Option<Keys>) {
        self.peer = Some(peer);
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        let (frame_reader, writer) = (FrameReader::new(opener), sealer.map(RecordWriter::new));
        self.stage = ConnectionStage::Open { frame_reader, writer, carried_frames: false };
    }

    /// Whether sealed bytes wait for room in the kernel.
    pub(super) fn has_unsent(&self) -> bool {
        matches!(&self.stage, ConnectionStage::Open { writer: Some(writer), .. } if !writer.rest().is_empty())
    }

    /// Makes the connection wait until the peer closes it or this end sends the welcome after all.
    pub(super) fn give_way(&mut self, until: Instant, welcome: Vec<u8>, keys: Keys) {
        self.stage = ConnectionStage::GivingWay { until, welcome, keys };
    }

    /// Sends the welcome after all, unless the peer has gone.
    pub(super) fn welcome(&mut self) -> Option<Keys> {
        self.check_open().ok()?;
        let ConnectionStage::GivingWay { welcome, keys, .. } =
            std::mem::replace(&mut self.stage, ConnectionStage::Ended)
        else {
            return None;
        };
        self.send_handshake(&welcome).ok().map(|()| keys)
    }

    /// Whether the other end, which must send nothing now, is still there.
    pub(super) fn check_open(&self) -> Result<(), ConnectionError> {
        match rustix::io::read(&self.socket, &mut [0; 1]) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok(_) => Err(ConnectionError::Closed),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a message of the handshake. An empty socket buffer always has room for one.
    pub(super) fn send_handshake(&self, message: &[u8]) -> Result<(), ConnectionError> {
        match write_bytes(&self.socket, message)? {
            written if written == message.len() => Ok(()),
            _ => Err(ConnectionError::Closed),
        }
    }

    /// Reads the bytes that wait, within bounds. Whole frames go to `receiver`.
    pub(super) fn read(
        &mut self,
        buffers: &mut ReadBuffers,
        budget: &mut ReadBudget,
        receiver: &mut dyn MessageReceiver,
    ) -> Result<ReadOutcome, ConnectionError> {
        match std::mem::replace(&mut self.stage, ConnectionStage::Ended) {
            ConnectionStage::Handshake { handshake, until } => self.read_handshake(handshake, until),
            ConnectionStage::Open { mut frame_reader, writer, carried_frames } => {
                let from = self.peer.expect("frames come when it is proven whose they are");
                let taken =
                    read_frames(&self.socket, &mut frame_reader, buffers, budget, &mut FrameSink { from, receiver });
                let taken = taken.and_then(|frames| {
                    self.socket.await_bytes(frame_reader.awaits())?;
                    Ok(frames)
                });
                let carried_frames = carried_frames || matches!(taken, Ok(1..));
                self.stage = ConnectionStage::Open { frame_reader, writer, carried_frames };
                taken.map(ReadOutcome::Frames)
            }
            stage @ (ConnectionStage::Dialing { .. } | ConnectionStage::GivingWay { .. } | ConnectionStage::Ended) => {
                self.stage = stage;
                Ok(ReadOutcome::Nothing)
            }
        }
    }

    /// Requests the place of an arriving payload again, after memory was withdrawn.
    pub(super) fn recheck_placements(&mut self, buffers: &mut ReadBuffers, receiver: &mut dyn MessageReceiver) {
        if let (ConnectionStage::Open { frame_reader, .. }, Some(from)) = (&mut self.stage, self.peer)
            && frame_reader.is_placing()
        {
            // `frame_reader` keeps the place.
            let _ = frame_reader.placement(buffers, &mut FrameSink { from, receiver });
        }
    }

    /// Reads at most one message of the handshake, and no byte after it.
    fn read_handshake(&mut self, mut handshake: Handshake, until: Instant) -> Result<ReadOutcome, ConnectionError> {
        let read = match rustix::io::read(&self.socket, handshake.room()) {
            Ok(0) => Err(handshake.disagreement().map_or(ConnectionError::Closed, ConnectionError::Handshake)),
            Ok(taken) => Ok(taken),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        };
        let taken = match read {
            Ok(taken) => taken,
            Err(broken) => {
                self.stage = ConnectionStage::Handshake { handshake, until };
                return Err(broken);
            }
        };
        match handshake.advance(taken)? {
            HandshakeStep::Wait(handshake) => self.stage = ConnectionStage::Handshake { handshake, until },
            HandshakeStep::Send(handshake, message) => {
                self.stage = ConnectionStage::Handshake { handshake, until };
                self.send_handshake(&message)?;
            }
            HandshakeStep::Proven { key, at, welcome, keys } => {
                return Ok(ReadOutcome::Proven { address: Address { socket: at, key }, welcome, keys });
            }
            HandshakeStep::Welcome(keys) => return Ok(ReadOutcome::Welcome(keys)),
        }
        Ok(ReadOutcome::Nothing)
    }

    /// Passes messages to the kernel until the kernel accepts no more; returns how many have left. Awaits room for the
    /// rest.
    pub(super) fn flush(
        &mut self,
        queue: &mut VecDeque<QueuedMessage>,
        spare: &mut SpareBuffers,
        mut left: impl FnMut(QueuedMessage),
    ) -> Result<usize, ConnectionError> {
        let mut messages = 0;
        if let ConnectionStage::Open { writer: Some(writer), .. } = &mut self.stage {
            loop {
                if !flush_sealed(&self.socket, writer, spare)? || queue.is_empty() {
                    return Ok(messages);
                }
                messages += writer.seal_queue(queue, spare, &mut left);
            }
        }
        while !queue.is_empty() {
            let (offered, written) = {
                let mut gathered = GatherList::default();
                queue.iter().take(TOGETHER).for_each(|message| message.gather(&mut gathered));
                (gathered.bytes(), write(&self.socket, &gathered)?)
            };
            let mut rest = written;
            while let Some(first) = queue.front_mut() {
                let missing = first.length() - first.written;
                if missing > rest {
                    first.written += rest;
                    break;
                }
                rest -= missing;
                left(queue.pop_front().expect("it is the first"));
                messages += 1;
                if rest == 0 {
                    break;
                }
            }
            if written < offered {
                break;
            }
        }
        Ok(messages)
    }
}

/// Bytes that the kernel accepted; an error if the connection is broken.
fn write(socket: &StreamSocket, gathered: &GatherList<'_>) -> Result<usize, ConnectionError> {
    match gathered.send(socket) {
        Ok(written) => Ok(written),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

fn write_bytes(socket: &StreamSocket, bytes: &[u8]) -> Result<usize, ConnectionError> {
    let mut gathered = GatherList::default();
    gathered.push(bytes);
    write(socket, &gathered)
}

/// Writes sealed bytes as far as the kernel accepts them; returns whether all have left.
fn flush_sealed(
    socket: &StreamSocket,
    writer: &mut RecordWriter,
    spare: &mut SpareBuffers,
) -> Result<bool, ConnectionError> {
    let rest = writer.rest();
    if rest.is_empty() {
        return Ok(true);
    }
    let written = write_bytes(socket, rest)?;
    writer.advance(written, spare);
    Ok(writer.rest().is_empty())
}

/// Reads until the socket is empty or this turn's share is used up; returns how many frames arrived. The rest of a long
/// frame is read straight into place, or at least into the frame's buffer.
fn read_frames(
    socket: &StreamSocket,
    frame_reader: &mut FrameReader,
    buffers: &mut ReadBuffers,
    budget: &mut ReadBudget,
    sink: &mut FrameSink<'_>,
) -> Result<usize, ConnectionError> {
    let mut frames = 0;
    for _ in 0..READS {
        if budget.is_used_up() {
            break;
        }
        let placement = frame_reader.placement(buffers, sink).map(|(placement, at, beyond)| {
            (placement.bytes() - at + beyond.len(), placement.receive(socket, at, beyond))
        });
        let is_placing = placement.is_some();
        let (asked, read) = placement.unwrap_or_else(|| {
            let room = frame_reader.room(buffers);
            (room.len(), rustix::io::read(socket, room))
        });
        let taken = match read {
            Ok(0) => return Err(ConnectionError::Closed),
            Ok(taken) => taken,
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(errno) => return Err(errno.into()),
        };
        let whole = match is_placing {
            true => frame_reader.advance_placed(taken, buffers, sink)?,
            false => frame_reader.advance(taken, buffers, sink)?,
        };
        budget.spend(whole, taken);
        frames += whole;
        if taken < asked {
            break;
        }
    }
    Ok(frames)
}
