//! One end of a connection between relay and dock: whole frames out, from any thread.
//!
//! Invariant: a frame that could not be sent whole ends the connection, so that its reader sees the end too.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::net::sockopt;

use crate::frame::{Decoder, Frame, FrameError};

/// Silence after which the other machine is asked whether it lives, and the time between such questions.
const KEEPALIVE: [Duration; 2] = [Duration::from_secs(2), Duration::from_secs(1)];
/// Questions without an answer after which it does not.
const KEEPALIVE_PROBES: u32 = 3;
/// How long what was sent may stay unacknowledged, in milliseconds.
const UNACKNOWLEDGED: u32 = 20_000;

/// Why no frame comes any more.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    /// The other side ended the connection.
    #[error("it ended the connection")]
    Ended,
    /// The network, or the other machine.
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    /// What came makes no sense.
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// A connection whose frames any thread may send.
#[derive(Debug)]
pub(crate) struct Wire {
    stream: TcpStream,
    /// Held while a frame is written; the bytes of the last one.
    sending: Mutex<Vec<u8>>,
}

impl Wire {
    /// Takes a connection over: small frames go at once, a dead machine is noticed.
    pub(crate) fn new(stream: TcpStream) -> io::Result<Wire> {
        stream.set_nodelay(true)?;
        sockopt::set_socket_keepalive(&stream, true)?;
        sockopt::set_tcp_keepidle(&stream, KEEPALIVE[0])?;
        sockopt::set_tcp_keepintvl(&stream, KEEPALIVE[1])?;
        sockopt::set_tcp_keepcnt(&stream, KEEPALIVE_PROBES)?;
        sockopt::set_tcp_user_timeout(&stream, UNACKNOWLEDGED)?;
        Ok(Wire { stream, sending: Mutex::default() })
    }

    /// For polling.
    pub(crate) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends a frame, waiting for room. A failure ends the connection, which the reader hears.
    pub(crate) fn send(&self, frame: &Frame<'_>) -> io::Result<()> {
        let mut bytes = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        bytes.clear();
        frame.encode(&mut bytes);
        (&self.stream).write_all(&bytes).inspect_err(|_| self.end())
    }

    /// Takes what has come into the decoder, waiting for something.
    pub(crate) fn fill(&self, decoder: &mut Decoder) -> Result<(), WireError> {
        loop {
            match (&self.stream).read(decoder.room()) {
                Ok(0) => return Err(WireError::Ended),
                Ok(count) => {
                    decoder.filled(count);
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Ends the connection, whoever uses it.
    pub(crate) fn end(&self) {
        // One that has ended needs no end.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
