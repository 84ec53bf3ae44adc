//! One relayed rank: its greeting, and its session.

use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex};

use outboard_service::{DockedRank, random_words};
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, ReceivedMessage};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};

use super::delivery::{DockDelivery, DockState};
use super::{DockContext, ServedRelay, refuse, session};
use crate::frame::{Decoder, RelayFrame};
use crate::output::Output;
use crate::proxy_buffer::{ProxyBuffers, START};
use crate::wire::{ANSWER_LIMIT, GREETING_LIMIT, Wire, WireError};

/// An address at which there is no proxy buffer, so reading it fails the call.
pub(super) const UNMAPPED_ADDRESS: u64 = 64;

#[derive(Debug)]
pub(super) enum SessionEnd {
    /// The relay or the service process has ended the connection, so there is no reason to report.
    Over,
    /// The dock ends the connection, and the relay must receive the reason.
    Refused(String),
}

impl From<WireError> for SessionEnd {
    fn from(error: WireError) -> Self {
        match error {
            WireError::Ended | WireError::Broken(_) => SessionEnd::Over,
            WireError::RelayFrame(_) | WireError::ForgedRecord(_) | WireError::Handshake => {
                SessionEnd::Refused(error.to_string())
            }
        }
    }
}

impl From<io::Error> for SessionEnd {
    fn from(_: io::Error) -> Self {
        // A write fails only on a broken connection.
        SessionEnd::Over
    }
}

pub(super) fn refuse_with<T>(text: impl ToString) -> Result<T, SessionEnd> {
    Err(SessionEnd::Refused(text.to_string()))
}

pub(super) fn serve(wire: Wire, from: SocketAddr, relay: &ServedRelay) {
    let context = &*relay.context;
    let mut decoder = Decoder::default();
    let (channel, side, output, proxy_buffers) = match greet(&wire, &mut decoder, context) {
        Ok(greeted) => greeted,
        Err(SessionEnd::Refused(text)) => return refuse(&wire, from, &text),
        Err(SessionEnd::Over) => return,
    };
    output.wake(&side);
    let state = Mutex::new(DockState { posted: HashMap::new(), proxy_buffers, over: false });
    let shared = Arc::new(DockDelivery { side, output, wire, state, changed: Condvar::new() });
    let ended = session::attached(&channel, &shared, &mut decoder, &relay.over);
    // The service process must release the proxy buffers before they are dropped.
    drop(channel);
    if let Err(SessionEnd::Refused(text)) = ended {
        refuse(&shared.wire, from, &text);
    }
    shared.finish();
}

/// A connection to the service process, which the dock has attached for a rank.
type DockedConnection = (AttachChannel, Arc<RankSide>, Arc<Output>, ProxyBuffers);

/// Reads the greeting, which must arrive within a time limit, and attaches the rank.
fn greet(wire: &Wire, decoder: &mut Decoder, context: &DockContext) -> Result<DockedConnection, SessionEnd> {
    let output = Arc::<Output>::default();
    let greeting = wire.first(decoder, GREETING_LIMIT, |frame| match frame {
        RelayFrame::Greeting { pid, seat } => Ok(DockedRank { pid, seat, watch: Arc::<Output>::clone(&output) }),
        _ => Err("the first frame of a rank's connection is its greeting"),
    });
    let docked_rank = match greeting? {
        Ok(greeting) => greeting,
        Err(text) => return refuse_with(text),
    };
    let nonce = match random_words::<2>() {
        Ok(words) => std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]),
        Err(errno) => return refuse_with(format!("the service process cannot draw random numbers: {errno}")),
    };
    context.docked.expect(nonce, docked_rank);
    let attached = attach(context, nonce);
    // The service process has already taken the announced rank, unless it has refused the rank.
    context.docked.take(&nonce);
    let (channel, side, welcome) = attached?;
    let proxy_buffers = ProxyBuffers::new(context.settings.relay_memory.0).or_else(refuse_with)?;
    let register = AttachRequest::RegisterMemory { address: START, bytes: context.settings.relay_memory.0 };
    request(&channel, &register, &[proxy_buffers.region.fd()])?;
    wire.send(&RelayFrame::AttachReply(&welcome.encode(0)))?;
    Ok((channel, Arc::new(side), output, proxy_buffers))
}

/// Attaches like a rank of this machine; the nonce identifies the rank to the service process.
fn attach(context: &DockContext, nonce: [u8; 16]) -> Result<(AttachChannel, RankSide, AttachReply), SessionEnd> {
    let failed =
        |error: &dyn std::fmt::Display| SessionEnd::Refused(format!("the service process does not attach: {error}"));
    let channel = AttachChannel::connect(&context.socket).map_err(|errno| failed(&errno))?;
    let hello = Hello {
        layout_version: LAYOUT_VERSION,
        pid: std::process::id(),
        // No memory of the dock may be accessed except the registered memory, so the probe must fail.
        probe_address: UNMAPPED_ADDRESS,
        nonce,
        descriptor: false,
    };
    let mut welcome = request(&channel, &AttachRequest::Hello(hello), &[])?;
    let (Some(doorbell), Some(region)) = (welcome.descriptors.pop(), welcome.descriptors.pop()) else {
        return refuse_with("the service process answers what was not asked");
    };
    let side = RankSide::attach(region, doorbell).map_err(|error| failed(&error))?;
    Ok((channel, side, welcome.message))
}

/// Sends a request of the dock itself, which precedes the rank's requests, and waits for the reply.
fn request(
    channel: &AttachChannel,
    request: &AttachRequest,
    with: &[BorrowedFd<'_>],
) -> Result<ReceivedMessage<AttachReply>, SessionEnd> {
    let failed = |error: ChannelError| SessionEnd::Refused(format!("the service process does not attach: {error}"));
    channel.send(0, request, with).map_err(failed)?;
    channel.wait(ANSWER_LIMIT).map_err(failed)?;
    match channel.receive::<AttachReply>().map_err(failed)? {
        Some(ReceivedMessage { message: AttachReply::Error { text, .. }, .. }) => refuse_with(text),
        Some(reply) => Ok(reply),
        None => refuse_with("the service process does not answer"),
    }
}
