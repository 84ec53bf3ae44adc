//! An allgatherv or uneven reduce-scatter of which this service process has heard, but not how large the blocks are.
//!
//! A rank that calls brings the sizes along. Where no local rank has called for a while, they are asked of the service process
//! that told of the call, so that this one can stand in (SP-6): a list that every rank knows is not sent around otherwise.
//!
//! | state | event | next |
//! |---|---|---|
//! | heard of | [`Unsized::handle_timeout`] | asked |
//! | heard of, asked | a local rank calls, or the last of the sizes has come | a [`Collective`](crate::collective) takes over |
//! | heard of, asked | [`Unsized::fail`] | ended |
//!
//! Invariant: steps of the ready barrier are kept for the collective. Never sees payload.

use std::collections::BTreeSet;

use outboard_plan::{Extents, Rank};

use crate::error::CollectiveError;
use crate::group::members::Members;
use crate::ids::{InstanceId, Instant, SpId};
use crate::instance::Context;
use crate::interface::{InFlight, Signature, sizes_digest};
use crate::wire::{InstanceMessage, Message};

/// Steps of the ready barrier that can come before this service process has entered it: one for each power of two.
const MAX_READIES: usize = 64;

#[derive(Debug)]
enum Phase {
    HeardOf { ask_at: Instant },
    Asked { sizes: Vec<u64> },
    Ended,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Unsized {
    instance: InstanceId,
    signature: Signature,
    signer: Rank,
    since: Instant,
    phase: Phase,
    /// Who knows the sizes: it has sent a step of the barrier.
    knows: Option<SpId>,
    readies: BTreeSet<(u32, u8)>,
}

/// What a collective that takes over has to make good.
#[derive(Debug)]
pub(crate) struct Heard {
    pub(crate) since: Instant,
    pub(crate) readies: BTreeSet<(u32, u8)>,
}

impl Unsized {
    /// A call of which `signer`'s is the first news.
    pub(crate) fn new(cx: &Context<'_>, instance: InstanceId, signature: Signature, signer: Rank) -> Self {
        let phase = Phase::HeardOf { ask_at: cx.out.now + cx.config.stand_in_after };
        Unsized { instance, signature, signer, since: cx.out.now, phase, knows: None, readies: BTreeSet::new() }
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended)
    }

    pub(crate) fn alive(&self) -> bool {
        !self.ended()
    }

    pub(crate) fn signature(&self) -> (Rank, Signature) {
        (self.signer, self.signature)
    }

    /// Nobody here has called.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members) -> InFlight {
        InFlight {
            group: members.handle,
            instance: self.instance,
            signature: self.signature,
            age_ns: now.0.saturating_sub(self.since.0),
            absent: members.locals.clone(),
            awaits: Vec::new(),
        }
    }

    /// A step of the ready barrier, kept. False when there cannot be so many.
    pub(crate) fn handle_ready(&mut self, from: SpId, step: (u32, u8)) -> bool {
        self.knows.get_or_insert(from);
        self.readies.len() < MAX_READIES && self.readies.insert(step)
    }

    /// The next of the sizes, from rank `first` on. Gives the extents when all have come; an error when they cannot be.
    pub(crate) fn handle_sizes(
        &mut self,
        members: &Members,
        (from, first): (SpId, u32),
        more: &[u64],
    ) -> Result<Option<Extents>, &'static str> {
        let Phase::Asked { sizes } = &mut self.phase else { return Err("sizes that nobody asked for") };
        let ranks = members.ranks() as usize;
        if self.knows != Some(from) || first as usize != sizes.len() || more.len() > ranks - sizes.len() {
            return Err("sizes that do not follow");
        }
        sizes.extend_from_slice(more);
        if sizes.len() < ranks {
            return Ok(None);
        }
        let digest = sizes_digest(sizes.iter().copied());
        let extents = Extents::uneven(sizes.iter().copied()).filter(|extents| extents.total() == self.signature.bytes);
        match extents {
            Some(extents) if self.signature.kind.sizes() == Some(digest) => Ok(Some(extents)),
            Some(_) | None => Err("sizes other than those that were called"),
        }
    }

    /// A collective takes over.
    pub(crate) fn take_heard(&mut self) -> Heard {
        Heard { since: self.since, readies: std::mem::take(&mut self.readies) }
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        match self.phase {
            Phase::HeardOf { ask_at } if self.knows.is_some() => Some(ask_at),
            Phase::HeardOf { .. } | Phase::Asked { .. } | Phase::Ended => None,
        }
    }

    /// Time has passed.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if let (Some(ask_at), Some(knows)) = (self.poll_timeout(), self.knows)
            && ask_at <= cx.out.now
        {
            self.phase = Phase::Asked { sizes: Vec::new() };
            let ask = Message::instance(cx.members.handle, self.instance, InstanceMessage::AskSizes);
            cx.out.messages.push_back((knows, ask));
        }
    }

    /// Ends with an error, of which nobody here need be told.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, _error: CollectiveError) {
        if self.alive() {
            self.phase = Phase::Ended;
            cx.out.forgotten.push((cx.members.handle, self.instance));
        }
    }
}
