//! One relayed rank: its greeting, and its session.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};

use outboard_service::{DockedRank, random};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, ReceivedMessage};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};

use super::delivery::{Books, Shared};
use super::{Relayed, Terms, refuse, session};
use crate::frame::{Decoder, Frame};
use crate::output::Output;
use crate::shadow::{START, Shadows};
use crate::wire::{ANSWER_LIMIT, GREETING_LIMIT, Wire, WireError};

/// An address without a shadow: reading it fails the call.
pub(super) const NOWHERE: u64 = 64;

#[derive(Debug)]
pub(super) enum End {
    /// The relay or the service process has ended the connection.
    Over,
    /// The relay has caused the end, or must receive the reason.
    Refused(String),
}

impl From<WireError> for End {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Ended | WireError::Broken(_) => End::Over,
            WireError::Frame(_) | WireError::ForgedRecord(_) | WireError::Handshake => End::Refused(error.to_string()),
        }
    }
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        // A failed write means a broken connection.
        End::Over
    }
}

pub(super) fn refused<T>(text: impl ToString) -> Result<T, End> {
    Err(End::Refused(text.to_string()))
}

pub(super) fn serve(wire: Wire, from: SocketAddr, relay: &Relayed) {
    let terms = &*relay.terms;
    let mut decoder = Decoder::default();
    let (channel, side, output, shadows) = match greet(&wire, &mut decoder, terms) {
        Ok(greeted) => greeted,
        Err(End::Refused(text)) => return refuse(&wire, from, &text),
        Err(End::Over) => return,
    };
    output.wake(&side);
    let books = Mutex::new(Books { posted: HashMap::new(), shadows, over: false });
    let shared = Arc::new(Shared { side, output, wire, books, changed: Condvar::new() });
    let ended = session::attached(&channel, &shared, &mut decoder, &relay.over);
    // The service process releases the shadows first.
    drop(channel);
    if let Err(End::Refused(text)) = ended {
        refuse(&shared.wire, from, &text);
    }
    shared.finish();
}

/// A rank's connection to the service process, attached for the rank.
type Greeted = (AttachChannel, Arc<RankSide>, Arc<Output>, Shadows);

/// Reads the greeting within a time limit and attaches the rank.
fn greet(wire: &Wire, decoder: &mut Decoder, terms: &Terms) -> Result<Greeted, End> {
    let output = Arc::<Output>::default();
    let greeting = wire.first(decoder, GREETING_LIMIT, |frame| match frame {
        Frame::Greeting { pid, seat } => Ok(DockedRank { pid, seat, watch: Arc::<Output>::clone(&output) }),
        _ => Err("the first frame of a rank's connection is its greeting"),
    });
    let docked_rank = match greeting? {
        Ok(greeting) => greeting,
        Err(text) => return refused(text),
    };
    let nonce = match random::<2>() {
        Ok(words) => std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]),
        Err(errno) => return refused(format!("the service process cannot draw random numbers: {errno}")),
    };
    terms.docked.expect(nonce, docked_rank);
    let attached = attach(terms, nonce);
    // The service process has taken it already, unless it has refused the rank.
    terms.docked.take(&nonce);
    let (channel, side, welcome) = attached?;
    let shadows = Shadows::new(terms.settings.relay_memory.0).or_else(refused)?;
    let register = AttachRequest::RegisterMemory { address: START, bytes: terms.settings.relay_memory.0 };
    request(&channel, &register, &[shadows.region.fd()])?;
    wire.send(&Frame::AttachReply(&welcome.encode(0)))?;
    Ok((channel, Arc::new(side), output, shadows))
}

/// Attaches as a rank of this machine does; the nonce identifies the rank to the service process.
fn attach(terms: &Terms, nonce: [u8; 16]) -> Result<(AttachChannel, RankSide, AttachReply), End> {
    let failed = |error: &dyn std::fmt::Display| End::Refused(format!("the service process does not attach: {error}"));
    let channel = AttachChannel::connect(&terms.socket).map_err(|errno| failed(&errno))?;
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        // No memory of the dock may be accessed except the registered memory.
        probe_address: NOWHERE,
        nonce,
        descriptor: false,
    };
    let mut welcome = request(&channel, &AttachRequest::Hello(hello), &[])?;
    let (Some(doorbell), Some(region)) = (welcome.descriptors.pop(), welcome.descriptors.pop()) else {
        return refused("the service process answers what was not asked");
    };
    let side = RankSide::attach(region, doorbell).map_err(|error| failed(&error))?;
    Ok((channel, side, welcome.message))
}

/// Sends a request of the dock itself, before the rank's requests, and waits for the reply.
fn request(
    channel: &AttachChannel,
    request: &AttachRequest,
    with: &[BorrowedFd<'_>],
) -> Result<ReceivedMessage<AttachReply>, End> {
    let failed = |error: ChannelError| End::Refused(format!("the service process does not attach: {error}"));
    channel.send(0, request, with).map_err(failed)?;
    channel.wait(ANSWER_LIMIT).map_err(failed)?;
    match channel.receive::<AttachReply>().map_err(failed)? {
        Some(ReceivedMessage { message: AttachReply::Error { text, .. }, .. }) => refused(text),
        Some(reply) => Ok(reply),
        None => refused("the service process does not answer"),
    }
}
