//! An allgatherv or uneven reduce-scatter that this service process knows without the sizes of the blocks.
//!
//! A local call brings the sizes. If no local rank calls for a while, the sizes are requested so that this service
//! process can stand in (SP-6). The request goes to the service process that sent the news of the call. Without a
//! request the list of sizes is not sent, since every rank knows it.
//!
//! | state | event | next |
//! |---|---|---|
//! | known | [`Instance::request_sizes`] when due | requested |
//! | known, requested | a local rank calls, or the last of the sizes has come | the instance has its programs |
//!
//! Invariant: steps of the ready barrier are kept until the sizes are known.

use std::collections::BTreeSet;

use outboard_plan::Extents;

use super::barrier::OTHER_STEP;
use super::{Context, Instance, InstancePhase};
use crate::error::Rejection;
use crate::group::barrier::Barrier;
use crate::group::members::Members;
use crate::ids::{Instant, SpId};
use crate::interface::sizes_digest;
use crate::wire::{InstanceMessage, Message};

#[derive(Debug)]
pub(super) struct AwaitingSizes {
    request_at: Instant,
    /// The requested sizes that have come.
    received_sizes: Option<Vec<u64>>,
    /// A service process that knows the sizes: it has sent a step of the barrier.
    source: Option<SpId>,
    pending_steps: BTreeSet<(u32, u8)>,
}

impl AwaitingSizes {
    pub(super) fn new(cx: &Context<'_>) -> Self {
        let request_at = cx.out.now + cx.config.stand_in_after;
        AwaitingSizes { request_at, received_sizes: None, source: None, pending_steps: BTreeSet::new() }
    }

    /// When to request the sizes.
    pub(super) fn request_at(&self) -> Option<Instant> {
        (self.source.is_some() && self.received_sizes.is_none()).then_some(self.request_at)
    }

    /// Keeps a step of the ready barrier.
    pub(super) fn handle_ready(&mut self, members: &Members, from: u32, step: u8) -> Result<(), Rejection> {
        let round = Barrier::round_between(members.sps.len() as u32, from, members.me);
        Rejection::unless(round == Some(step), OTHER_STEP)?;
        self.source.get_or_insert(members.sps[from as usize]);
        self.pending_steps.insert((from, step));
        Ok(())
    }
}

impl Instance {
    /// Requests sizes that no local rank has brought, when due.
    pub(super) fn request_sizes(&mut self, cx: &mut Context<'_>) {
        if let InstancePhase::AwaitingSizes(call) = &mut self.phase
            && call.request_at().is_some_and(|at| at <= cx.out.now)
            && let Some(source) = call.source
        {
            call.received_sizes = Some(Vec::new());
            let request = Message::instance(cx.members.handle, self.id, InstanceMessage::RequestSizes);
            cx.out.messages.push_back((source, request));
        }
    }

    /// Handles the next requested sizes, from rank `first` on. Returns all sizes once all have come, else `None`. Also
    /// `None` when a local rank has brought the sizes in the meantime. Invalid sizes are an error.
    pub(crate) fn handle_sizes(
        &mut self,
        ranks: u32,
        from: SpId,
        first: u32,
        more: &[u64],
    ) -> Result<Option<Extents>, Rejection> {
        let InstancePhase::AwaitingSizes(call) = &mut self.phase else { return Ok(None) };
        let (sizes, ranks) = (call.received_sizes.as_mut().ok_or("sizes without a request")?, ranks as usize);
        let next = call.source == Some(from) && first as usize == sizes.len() && more.len() <= ranks - sizes.len();
        Rejection::unless(next, "sizes that were not requested")?;
        sizes.extend_from_slice(more);
        if sizes.len() < ranks {
            return Ok(None);
        }
        let is_called = self.signature.kind.sizes() == Some(sizes_digest(sizes.iter().copied()));
        let extents = Extents::uneven(sizes.iter().copied()).filter(|extents| extents.total() == self.signature.bytes);
        extents.filter(|_| is_called).map(Some).ok_or(Rejection::Violation("sizes that differ from their call"))
    }

    /// The sizes are known now. Does nothing if they were known before.
    pub(crate) fn set_sizes(&mut self, cx: &mut Context<'_>, sizes: Extents) -> Result<(), Rejection> {
        let InstancePhase::AwaitingSizes(call) = &mut self.phase else { return Ok(()) };
        let pending_steps = std::mem::take(&mut call.pending_steps);
        self.plan(cx, sizes)?;
        // All members agree on whether there is a barrier.
        pending_steps.into_iter().for_each(|(from, step)| _ = self.handle_ready(cx, from, step));
        Ok(())
    }
}
