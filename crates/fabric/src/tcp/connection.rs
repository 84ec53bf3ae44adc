//! One TCP connection: the identity of its other end, as far as proven, and the bytes in both directions.
//!
//! | stage | on | goes to |
//! |---|---|---|
//! | dialing | the kernel has connected | greeting, hello sent |
//! | greeting (dialer or listener) | messages of the handshake | greeting, then open |
//! | greeting (listener) | the dialer is proven, and this end's own dial to it has priority | giving way |
//! | giving way | this end's own dial failed | open |
//! | giving way | end of stream | ended |
//! | any but open | `until` expired, end of stream, a bad message | ended |
//! | open | end of stream, reset, a bad frame | ended |
//!
//! Invariants: no byte after the handshake is read before the handshake has ended; sockets never block. Machines
//! without sockets interpret the bytes ([`Greeting`], [`Incoming`], [`Sealing`]). Never dials again and never decides
//! which of two connections stays: the fabric does.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Instant;

use outboard_shm::memory::Gathered;
use rustix::io::Errno;
use rustix::net::sockopt;

use crate::secured::{Greeting, HandshakeError, Keys, Step};
use crate::tcp::address::Address;
use crate::tcp::door::Socket;
use crate::tcp::frames::Sink;
use crate::tcp::incoming::{Buffers, Incoming, Malformed};
use crate::tcp::outgoing::{Outgoing, Sealing, Spare};
use crate::{PeerId, PeerLoss, Receiver};

/// Reads of one connection per turn, so that other connections get their turns.
const READS: usize = 8;
/// Frames and bytes read per turn from all connections; one more read may exceed them. A frame costs some microseconds.
const FRAMES: usize = 4096;
const BYTES: usize = 8 << 20;
/// Messages passed to the kernel at once.
pub(super) const TOGETHER: usize = 16;

/// The frames and bytes that may still be read in this turn.
pub(super) struct Share {
    frames: usize,
    bytes: usize,
}

impl Share {
    pub(super) const WHOLE: Share = Share { frames: FRAMES, bytes: BYTES };

    pub(super) fn is_used_up(&self) -> bool {
        self.frames == 0 || self.bytes == 0
    }

    fn take(&mut self, frames: usize, bytes: usize) {
        self.frames = self.frames.saturating_sub(frames);
        self.bytes = self.bytes.saturating_sub(bytes);
    }
}

pub(super) enum Stage {
    Dialing {
        until: Instant,
    },
    Greeting {
        greeting: Greeting,
        until: Instant,
    },
    /// Frames go both ways; on an encrypted connection they travel in records.
    Open {
        incoming: Incoming,
        sealing: Option<Sealing>,
        fruitful: bool,
    },
    /// The dialer is proven, but this end's own dial to it has priority. The peer closes this connection once the other
    /// is open. If the own dial fails, the bytes in `welcome` are sent.
    GivingWay {
        until: Instant,
        welcome: Vec<u8>,
        keys: Keys,
    },
    Ended,
}

pub(super) enum Heard {
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
pub(super) enum Broken {
    #[error("it was closed")]
    Closed,
    #[error(transparent)]
    Kernel(#[from] Errno),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    #[error(transparent)]
    Malformed(#[from] Malformed),
    #[error("the handshake took too long")]
    Slow,
}

impl From<Broken> for PeerLoss {
    fn from(broken: Broken) -> Self {
        match broken {
            Broken::Closed | Broken::Kernel(Errno::CONNRESET | Errno::PIPE) => PeerLoss::Reset,
            Broken::Kernel(Errno::CONNREFUSED | Errno::HOSTUNREACH | Errno::NETUNREACH) => PeerLoss::Unreachable,
            Broken::Slow | Broken::Kernel(Errno::TIMEDOUT) => PeerLoss::TimedOut,
            Broken::Kernel(Errno::MFILE | Errno::NFILE) => PeerLoss::Descriptors,
            Broken::Kernel(errno) => PeerLoss::Transport(errno.to_string()),
            Broken::Handshake(error) => PeerLoss::Handshake(error.to_string()),
            Broken::Malformed(error) => PeerLoss::Protocol(error.to_string()),
        }
    }
}

pub(super) struct Connection {
    socket: Socket,
    /// The peer that was dialled; on a listener's connection known once it is open.
    pub(super) peer: Option<PeerId>,
    pub(super) stage: Stage,
    /// Whether the poller reports room to write.
    pub(super) awaits_room: bool,
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Connection {
    pub(super) fn dialled(peer: PeerId, socket: Socket, until: Instant) -> Self {
        Connection { socket, peer: Some(peer), stage: Stage::Dialing { until }, awaits_room: true }
    }

    pub(super) fn accepted(socket: Socket, greeting: Greeting, until: Instant) -> Self {
        Connection { socket, peer: None, stage: Stage::Greeting { greeting, until }, awaits_room: false }
    }

    pub(super) fn from(&self) -> String {
        self.socket.from()
    }

    /// Whether the other end has sent a hello, which requires knowledge of this end's key.
    pub(super) fn was_greeted(&self) -> bool {
        match &self.stage {
            Stage::Greeting { greeting, .. } => greeting.was_greeted(),
            Stage::GivingWay { .. } => true,
            Stage::Dialing { .. } | Stage::Open { .. } | Stage::Ended => false,
        }
    }

    pub(super) fn was_fruitful(&self) -> bool {
        matches!(self.stage, Stage::Open { fruitful: true, .. })
    }

    pub(super) fn until(&self) -> Option<Instant> {
        match self.stage {
            Stage::Dialing { until } | Stage::Greeting { until, .. } | Stage::GivingWay { until, .. } => Some(until),
            Stage::Open { .. } | Stage::Ended => None,
        }
    }

    /// The kernel has connected or failed to connect. Sends the hello.
    pub(super) fn greet(&mut self, greeting: Greeting, hello: &[u8], until: Instant) -> Result<(), Broken> {
        sockopt::socket_error(&self.socket)??;
        self.stage = Stage::Greeting { greeting, until };
        self.say(hello)
    }

    /// Time until which the peer may be dialled again after the connection broke with `why`. A peer that did not refuse
    /// the hello was only out of room at that moment.
    pub(super) fn may_try_until(&self, why: &Broken) -> Option<Instant> {
        let refusal = match (why, &self.stage) {
            (Broken::Kernel(Errno::CONNRESET | Errno::PIPE), _) => false,
            (Broken::Closed, Stage::Greeting { greeting, .. }) => !greeting.was_answered(),
            (Broken::Closed | Broken::Kernel(_) | Broken::Handshake(_) | Broken::Malformed(_) | Broken::Slow, _) => {
                true
            }
        };
        self.until().filter(|until| !refusal && Instant::now() < *until)
    }

    /// Closes the connection in a way that the dialer does not take for a refusal.
    pub(super) fn pass_by(&self) {
        // If the reset fails, the peer sees an ordinary end and does not dial again.
        let _ = self.socket.reset();
    }

    /// From now on carries frames of `peer`; with `keys`, in records.
    pub(super) fn open(&mut self, peer: PeerId, keys: Option<Keys>) {
        self.peer = Some(peer);
        let (sealer, opener) = keys.map(|keys| (keys.sealer, keys.opener)).unzip();
        let (incoming, sealing) = (Incoming::new(opener), sealer.map(Sealing::new));
        self.stage = Stage::Open { incoming, sealing, fruitful: false };
    }

    /// Whether sealed bytes wait for room in the kernel.
    pub(super) fn waits(&self) -> bool {
        matches!(&self.stage, Stage::Open { sealing: Some(sealing), .. } if !sealing.rest().is_empty())
    }

    /// Waits until the peer closes or is welcomed after all.
    pub(super) fn give_way(&mut self, until: Instant, welcome: Vec<u8>, keys: Keys) {
        self.stage = Stage::GivingWay { until, welcome, keys };
    }

    /// Welcomes the peer after all, unless the peer has gone.
    pub(super) fn welcome(&mut self) -> Option<Keys> {
        self.stays().ok()?;
        let Stage::GivingWay { welcome, keys, .. } = std::mem::replace(&mut self.stage, Stage::Ended) else {
            return None;
        };
        self.say(&welcome).ok().map(|()| keys)
    }

    /// Whether the other end, which must send nothing now, is still there.
    pub(super) fn stays(&self) -> Result<(), Broken> {
        match rustix::io::read(&self.socket, &mut [0; 1]) {
            Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            Ok(_) => Err(Broken::Closed),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Sends a message of the handshake, for which an empty socket buffer always has room.
    pub(super) fn say(&self, message: &[u8]) -> Result<(), Broken> {
        match write_bytes(&self.socket, message)? {
            written if written == message.len() => Ok(()),
            _ => Err(Broken::Closed),
        }
    }

    /// Reads the bytes that wait, within bounds. Whole frames go to `receiver`.
    pub(super) fn read(
        &mut self,
        buffers: &mut Buffers,
        share: &mut Share,
        receiver: &mut dyn Receiver,
    ) -> Result<Heard, Broken> {
        match std::mem::replace(&mut self.stage, Stage::Ended) {
            Stage::Greeting { greeting, until } => self.read_greeting(greeting, until),
            Stage::Open { mut incoming, sealing, fruitful } => {
                let from = self.peer.expect("frames come when it is proven whose they are");
                let taken = read_frames(&self.socket, &mut incoming, buffers, share, &mut Sink { from, receiver });
                let taken = taken.and_then(|frames| {
                    self.socket.await_bytes(incoming.awaits())?;
                    Ok(frames)
                });
                let fruitful = fruitful || matches!(taken, Ok(1..));
                self.stage = Stage::Open { incoming, sealing, fruitful };
                taken.map(Heard::Frames)
            }
            stage @ (Stage::Dialing { .. } | Stage::GivingWay { .. } | Stage::Ended) => {
                self.stage = stage;
                Ok(Heard::Nothing)
            }
        }
    }

    /// Memory was withdrawn: a payload that is read straight into place may have lost its place.
    pub(super) fn review(&mut self, buffers: &mut Buffers, receiver: &mut dyn Receiver) {
        if let (Stage::Open { incoming, .. }, Some(from)) = (&mut self.stage, self.peer)
            && incoming.lands()
        {
            // `incoming` keeps the answer.
            let _ = incoming.landing(buffers, &mut Sink { from, receiver });
        }
    }

    /// Reads at most one message of the handshake, and no byte after it.
    fn read_greeting(&mut self, mut greeting: Greeting, until: Instant) -> Result<Heard, Broken> {
        let read = match rustix::io::read(&self.socket, greeting.room()) {
            Ok(0) => Err(greeting.disagreement().map_or(Broken::Closed, Broken::Handshake)),
            Ok(taken) => Ok(taken),
            Err(Errno::AGAIN | Errno::INTR) => Ok(0),
            Err(errno) => Err(errno.into()),
        };
        let taken = match read {
            Ok(taken) => taken,
            Err(broken) => {
                self.stage = Stage::Greeting { greeting, until };
                return Err(broken);
            }
        };
        match greeting.advance(taken)? {
            Step::Wait(greeting) => self.stage = Stage::Greeting { greeting, until },
            Step::Say(greeting, message) => {
                self.stage = Stage::Greeting { greeting, until };
                self.say(&message)?;
            }
            Step::Proven { key, at, welcome, keys } => {
                return Ok(Heard::Proven { address: Address { socket: at, key }, welcome, keys });
            }
            Step::Welcome(keys) => return Ok(Heard::Welcome(keys)),
        }
        Ok(Heard::Nothing)
    }

    /// Passes to the kernel as much as it accepts; returns how many messages have left. Awaits room for the rest.
    pub(super) fn flush(
        &mut self,
        queue: &mut VecDeque<Outgoing>,
        spare: &mut Spare,
        mut left: impl FnMut(Outgoing),
    ) -> Result<usize, Broken> {
        let mut messages = 0;
        if let Stage::Open { sealing: Some(sealing), .. } = &mut self.stage {
            loop {
                if !flush_sealed(&self.socket, sealing, spare)? || queue.is_empty() {
                    return Ok(messages);
                }
                messages += sealing.seal_queue(queue, spare, &mut left);
            }
        }
        while !queue.is_empty() {
            let (offered, written) = {
                let mut gathered = Gathered::default();
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
fn write(socket: &Socket, gathered: &Gathered<'_>) -> Result<usize, Broken> {
    match gathered.send(socket) {
        Ok(written) => Ok(written),
        Err(Errno::AGAIN | Errno::INTR) => Ok(0),
        Err(errno) => Err(errno.into()),
    }
}

fn write_bytes(socket: &Socket, bytes: &[u8]) -> Result<usize, Broken> {
    let mut gathered = Gathered::default();
    gathered.push(bytes);
    write(socket, &gathered)
}

/// Writes sealed bytes as far as the kernel accepts them; returns whether all have left.
fn flush_sealed(socket: &Socket, sealing: &mut Sealing, spare: &mut Spare) -> Result<bool, Broken> {
    let rest = sealing.rest();
    if rest.is_empty() {
        return Ok(true);
    }
    let written = write_bytes(socket, rest)?;
    sealing.advance(written, spare);
    Ok(sealing.rest().is_empty())
}

/// Reads until the socket is empty or this turn's share is used up; returns how many frames arrived. The rest of a long
/// frame is read straight into place, or at least into the frame's buffer.
fn read_frames(
    socket: &Socket,
    incoming: &mut Incoming,
    buffers: &mut Buffers,
    share: &mut Share,
    sink: &mut Sink<'_>,
) -> Result<usize, Broken> {
    let mut frames = 0;
    for _ in 0..READS {
        if share.is_used_up() {
            break;
        }
        let landing = incoming
            .landing(buffers, sink)
            .map(|(landing, at, beyond)| (landing.bytes() - at + beyond.len(), landing.receive(socket, at, beyond)));
        let lands = landing.is_some();
        let (asked, read) = landing.unwrap_or_else(|| {
            let room = incoming.room(buffers);
            (room.len(), rustix::io::read(socket, room))
        });
        let taken = match read {
            Ok(0) => return Err(Broken::Closed),
            Ok(taken) => taken,
            Err(Errno::AGAIN | Errno::INTR) => break,
            Err(errno) => return Err(errno.into()),
        };
        let whole = match lands {
            true => incoming.advance_landing(taken, buffers, sink)?,
            false => incoming.advance(taken, buffers, sink)?,
        };
        share.take(whole, taken);
        frames += whole;
        if taken < asked {
            break;
        }
    }
    Ok(frames)
}
