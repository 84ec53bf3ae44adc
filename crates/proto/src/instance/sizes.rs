//! An allgatherv or uneven reduce-scatter of which this service process has heard, but not how large the blocks are.
//!
//! A rank that calls brings the sizes along. Where no local rank has called for a while, they are asked of the service
//! process that told of the call, so that this one can stand in (SP-6): a list that every rank knows is not sent around
//! otherwise.
//!
//! | state | event | next |
//! |---|---|---|
//! | heard of | [`Instance::ask_sizes`] when due | asked |
//! | heard of, asked | a local rank calls, or the last of the sizes has come | the instance has its programs |
//!
//! Invariant: steps of the ready barrier are kept until then.

use std::collections::BTreeSet;

use outboard_plan::Extents;

use super::{Context, Instance, Phase, Unplanned};
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{Instant, SpId};
use crate::interface::sizes_digest;
use crate::wire::{InstanceMessage, Message};

#[derive(Debug)]
pub(super) struct Unsized {
    ask_at: Instant,
    /// What has come of the sizes that were asked for.
    asked: Option<Vec<u64>>,
    /// Who knows the sizes: it has sent a step of the barrier.
    knows: Option<SpId>,
    readies: BTreeSet<(u32, u8)>,
}

impl Unsized {
    pub(super) fn new(cx: &Context<'_>) -> Self {
        let ask_at = cx.out.now + cx.config.stand_in_after;
        Unsized { ask_at, asked: None, knows: None, readies: BTreeSet::new() }
    }

    /// When the sizes are to be asked for.
    pub(super) fn ask_at(&self) -> Option<Instant> {
        (self.knows.is_some() && self.asked.is_none()).then_some(self.ask_at)
    }

    /// A step of the ready barrier, kept. False when it cannot come from there.
    pub(super) fn handle_ready(&mut self, members: &Members, (from, step): (u32, u8)) -> bool {
        let sound = Barrier::round_between(members.sps.len() as u32, from, members.me) == Some(step);
        if sound {
            self.knows.get_or_insert(members.sps[from as usize]);
            self.readies.insert((from, step));
        }
        sound
    }
}

impl Instance {
    /// Asks for sizes that nobody here has brought along, when it is time.
    pub(super) fn ask_sizes(&mut self, cx: &mut Context<'_>) {
        if let Phase::Unsized(call) = &mut self.phase
            && call.ask_at().is_some_and(|at| at <= cx.out.now)
            && let Some(knows) = call.knows
        {
            call.asked = Some(Vec::new());
            let ask = Message::instance(cx.members.handle, self.id, InstanceMessage::AskSizes);
            cx.out.messages.push_back((knows, ask));
        }
    }

    /// The next of the sizes that were asked for, from rank `first` on. All of them once all have come, none when a
    /// rank has brought them meanwhile; an error when they cannot be.
    pub(crate) fn handle_sizes(
        &mut self,
        ranks: u32,
        (from, first): (SpId, u32),
        more: &[u64],
    ) -> Result<Option<Extents>, ()> {
        let Phase::Unsized(call) = &mut self.phase else { return Ok(None) };
        let (sizes, ranks) = (call.asked.as_mut().ok_or(())?, ranks as usize);
        if call.knows != Some(from) || first as usize != sizes.len() || more.len() > ranks - sizes.len() {
            return Err(());
        }
        sizes.extend_from_slice(more);
        if sizes.len() < ranks {
            return Ok(None);
        }
        let is_called = self.signature.kind.sizes() == Some(sizes_digest(sizes.iter().copied()));
        let extents = Extents::uneven(sizes.iter().copied()).filter(|extents| extents.total() == self.signature.bytes);
        extents.filter(|_| is_called).map(Some).ok_or(())
    }

    /// The sizes are known now. Nothing is to be done where they were before.
    pub(crate) fn set_sizes(&mut self, cx: &mut Context<'_>, sizes: Extents) -> Result<(), Unplanned> {
        let Phase::Unsized(call) = &mut self.phase else { return Ok(()) };
        let readies = std::mem::take(&mut call.readies);
        self.plan(cx, sizes)?;
        // All choose alike whether there is a barrier.
        readies.into_iter().for_each(|(from, step)| _ = self.handle_ready(cx, from, step));
        Ok(())
    }
}
