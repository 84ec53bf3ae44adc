//! One end of a connection between relay and dock: a handshake, then encrypted frames, which any thread may send.
//!
//! All holders of the relay key derive the dock's key pair from it. So a relay needs no other secret to authenticate
//! the dock to which it connects. Relays generate a new key pair for each connection.
//!
//! Invariants: after the handshake every byte is encrypted and authenticated. If a frame cannot be sent as a whole, the
//! connection ends, and the reading thread notices the end too.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use outboard_fabric::secured::{
    ForgedRecord, Handshake, HandshakeError, HandshakeStep, HandshakeTerms, Keys, RecordReader, Sealer,
};
use outboard_fabric::{Identity, SharedKey};
use rustix::net::sockopt;

use crate::frame::{Decoder, FrameError, READ, RelayFrame};

const PURPOSE: &[u8] = b"outboard relay 1";
/// Time in which either end must prove the key. A relay then has this time again to send its greeting, whatever else it
/// sends.
pub(crate) const GREETING_LIMIT: Duration = Duration::from_secs(5);
/// Time limit for an answer of the service process.
pub(crate) const ANSWER_LIMIT: Duration = Duration::from_secs(20);
/// Silence after which a TCP keepalive probe is sent, and the interval of further probes.
const KEEPALIVE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(1)];
/// Unanswered TCP keepalive probes after which the other machine counts as dead.
const KEEPALIVE_PROBES: u32 = 3;
/// Time for which sent bytes may stay unacknowledged, in milliseconds.
const UNACKNOWLEDGED: u32 = 20_000;

#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("it ended the connection")]
    Ended,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error(transparent)]
    RelayFrame(#[from] FrameError),
    #[error(transparent)]
    ForgedRecord(#[from] ForgedRecord),
    #[error("the handshake fails; give relay and daemon the same --relay-key (OUTBOARD_RELAY_KEY), of one release")]
    Handshake,
}

impl From<HandshakeError> for WireError {
    fn from(_: HandshakeError) -> Self {
        WireError::Handshake
    }
}

/// A connection on which any thread may send frames.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    sending: Mutex<WireSender>,
    receiving: Mutex<WireReceiver>,
}

#[derive(Debug)]
struct WireSender {
    sealer: Sealer,
    /// The bytes of the last frame, before and after encryption.
    plain: Vec<u8>,
    gathered: Vec<u8>,
    sealed: Vec<u8>,
}

#[derive(Debug)]
struct WireReceiver {
    record_reader: RecordReader,
    bytes: Box<[u8]>,
}

fn terms<'a>(own: &'a Identity, shared: &'a SharedKey) -> HandshakeTerms<'a> {
    HandshakeTerms { own, shared, purpose: PURPOSE, encrypts: true }
}

impl Wire {
    pub(crate) fn dial(stream: TcpStream, key: &SharedKey) -> Result<Wire, WireError> {
        let own = Identity::generate();
        let (handshake, hello) = Handshake::dial(&terms(&own, key), Identity::of(key).public())?;
        (&stream).write_all(&hello)?;
        match shake(&stream, handshake) {
            Ok(HandshakeStep::Welcome(keys)) => Ok(Wire::new(stream, keys)?),
            // A dock with another key does not answer, so the handshake has failed.
            Ok(_) | Err(WireError::Ended | WireError::Handshake) => Err(WireError::Handshake),
            Err(error) => Err(error),
        }
    }

    /// Performs the dock's part of the handshake.
    pub(crate) fn accept(stream: TcpStream, key: &SharedKey) -> Result<Wire, WireError> {
        match shake(&stream, Handshake::listen(&terms(&Identity::of(key), key))?)? {
            HandshakeStep::Proven { welcome, keys, .. } => {
                (&stream).write_all(&welcome)?;
                Ok(Wire::new(stream, keys)?)
            }
            HandshakeStep::Wait(_) | HandshakeStep::Send(..) | HandshakeStep::Welcome(_) => Err(WireError::Handshake),
        }
    }

    /// Sets up the connection: small frames are sent at once, and a dead machine is noticed.
    fn new(stream: TcpStream, keys: Keys) -> io::Result<Wire> {
        stream.set_read_timeout(None)?;
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE[0])?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE[1])?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED)?;
        let (plain, gathered, sealed) = (Vec::new(), Vec::new(), Vec::new());
        let sending = Mutex::new(WireSender { sealer: keys.sealer, plain, gathered, sealed });
        let bytes = vec![0; READ].into_boxed_slice();
        let receiving = Mutex::new(WireReceiver { record_reader: RecordReader::new(keys.opener), bytes });
        Ok(Wire { stream, sending, receiving })
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a frame; waits until the socket has room. If the send fails, the connection ends, and the reader notices
    /// the end.
    pub(crate) fn send(&self, frame: &RelayFrame<'_>) -> io::Result<()> {
        let mut sending = lock(&self.sending);
        let WireSender { sealer, plain, gathered, sealed } = &mut *sending;
        plain.clear();
        sealed.clear();
        frame.encode(plain);
        sealer.seal([&plain[..]], gathered, sealed);
        (&self.stream).write_all(sealed).inspect_err(|_| self.end())
    }

    /// Waits for bytes and passes them to the decoder.
    pub(crate) fn fill(&self, decoder: &mut Decoder) -> Result<(), WireError> {
        let mut receiving = lock(&self.receiving);
        let WireReceiver { record_reader, bytes } = &mut *receiving;
        loop {
            match (&self.stream).read(bytes) {
                Ok(0) => return Err(WireError::Ended),
                Ok(count) => return record_reader.take(&bytes[..count], |sealed| Ok(decoder.take(sealed)?)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Decodes the first frame with `take`. The whole frame must arrive within `limit`.
    pub(crate) fn first<T>(
        &self,
        decoder: &mut Decoder,
        limit: Duration,
        take: impl FnOnce(RelayFrame<'_>) -> T,
    ) -> Result<T, WireError> {
        let until = Instant::now() + limit;
        loop {
            if let Some(frame) = decoder.next()? {
                let taken = take(frame);
                self.stream.set_read_timeout(None)?;
                return Ok(taken);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(io::Error::from(ErrorKind::TimedOut).into());
            }
            self.stream.set_read_timeout(Some(left))?;
            self.fill(decoder)?;
        }
    }

    pub(crate) fn end(&self) {
        // The call fails only if the connection has already ended.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Locks `mutex`, even if it is poisoned: no thread panics while it changes a state, so every state is consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Performs the handshake within a time limit.
fn shake(mut stream: &TcpStream, mut handshake: Handshake) -> Result<HandshakeStep, WireError> {
    let until = Instant::now() + GREETING_LIMIT;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::Error::from(ErrorKind::TimedOut).into());
        }
        stream.set_read_timeout(Some(left))?;
        let taken = match stream.read(handshake.room()) {
            Ok(0) => return Err(WireError::Ended),
            Ok(taken) => taken,
            Err(error) if [ErrorKind::Interrupted, ErrorKind::WouldBlock].contains(&error.kind()) => 0,
            Err(error) => return Err(error.into()),
        };
        handshake = match handshake.advance(taken)? {
            HandshakeStep::Wait(handshake) => handshake,
            HandshakeStep::Send(handshake, message) => {
                stream.write_all(&message)?;
                handshake
            }
            done @ (HandshakeStep::Proven { .. } | HandshakeStep::Welcome(_)) => return Ok(done),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// Both ends of a connection between a relay and a dock with these keys.
    fn ends(relay: SharedKey, dock: SharedKey) -> [Result<Wire, WireError>; 2] {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let at = listener.local_addr().expect("an address");
        let dialling = std::thread::spawn(move || Wire::dial(TcpStream::connect(at).expect("it listens"), &relay));
        let accepted = Wire::accept(listener.accept().expect("a relay").0, &dock);
        [dialling.join().expect("no panic"), accepted]
    }

    #[test]
    fn frames_cross_between_holders_of_one_key() {
        for key in [SharedKey::default(), SharedKey::of(b"ours")] {
            let [relay, dock] = ends(key, key).map(|end| end.expect("the same key"));
            let bytes: Vec<u8> = (0..crate::frame::DATA_BYTES).map(|at| at as u8).collect();
            for (from, to) in [(&relay, &dock), (&dock, &relay)] {
                std::thread::scope(|scope| {
                    scope.spawn(|| {
                        for slot in 0..20 {
                            from.send(&RelayFrame::Data { slot, offset: 7, bytes: &bytes }).expect("it is read");
                            from.send(&RelayFrame::Unreadable { slot }).expect("it is read");
                        }
                    });
                    let mut decoder = Decoder::default();
                    let mut seen = 0;
                    while seen < 40 {
                        let slot = seen / 2;
                        match decoder.next().expect("frames") {
                            None => {
                                to.fill(&mut decoder).expect("it goes on");
                                continue;
                            }
                            Some(frame) if seen % 2 == 0 => {
                                assert!(frame == RelayFrame::Data { slot, offset: 7, bytes: &bytes }, "frame {seen}");
                            }
                            Some(frame) => assert_eq!(frame, RelayFrame::Unreadable { slot }),
                        }
                        seen += 1;
                    }
                });
            }
        }
    }

    #[test]
    fn another_key_is_refused_on_both_sides() {
        for (relay, dock) in [(b"ours", b"they"), (b"they", b"ours")] {
            let [relay, dock] = ends(SharedKey::of(relay), SharedKey::of(dock));
            assert!(relay.is_err_and(|error| error.to_string().contains("OUTBOARD_RELAY_KEY")) && dock.is_err());
        }
        assert!(ends(SharedKey::default(), SharedKey::of(b"ours")).iter().all(Result::is_err));
    }

    #[test]
    fn a_frame_in_the_clear_ends_the_connection() {
        let [relay, dock] = ends(SharedKey::default(), SharedKey::default()).map(|end| end.expect("the same key"));
        let mut plain = Vec::new();
        RelayFrame::Unreadable { slot: 1 }.encode(&mut plain);
        plain.resize(1 << 16, 0);
        (&relay.stream).write_all(&plain).expect("room");
        let mut decoder = Decoder::default();
        let ended = std::iter::repeat_with(|| dock.fill(&mut decoder)).find_map(Result::err);
        assert!(matches!(ended, Some(WireError::ForgedRecord(_))), "{ended:?}");
        assert_eq!(decoder.next(), Ok(None));
    }
}
