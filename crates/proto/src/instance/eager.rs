//! Small calls (MC-9): no barrier before the call and no handshake behind it. A message carries its bytes and the
//! signature, so it may be the first news of the call. A message whose receiver has not called is staged, or stays with
//! its source when there is no room. The source is done with the message when the window of the receiver has reached
//! the call.
//!
//! Scratch is taken when all local ranks have called or have a stand-in: only steps that need scratch wait for it.

use outboard_plan::Rank;

use super::{Context, Instance, InstancePhase, NO_OFFER};
use crate::error::{CollectiveError, Rejection};
use crate::ids::SpId;
use crate::interface::{BlockSizes, Milestone};
use crate::wire::{Rts, TransferMessage};

impl Instance {
    /// The window of the group is open: continues the call. An error breaks the group.
    pub(super) fn advance_eager(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if !self.is_anyone_missing() {
            // Missing scratch is requested again later.
            let _ = self.allocate_own_scratch(cx)?;
        }
        if matches!(self.phase, InstancePhase::Gathering) {
            self.phase = InstancePhase::Running;
            cx.out.step(cx.members.handle, self.id, Milestone::Ready);
            if cx.transfer.has_unexpected(self.id) {
                self.start_stand_in_timer(cx);
            }
            self.retry_blocked(cx);
        }
        self.advance(cx);
        Ok(())
    }

    /// The error if a message has no other end because `gone` has left. The error names the bytes of the signature,
    /// since a message may have several blocks, or a part of one block.
    pub(super) fn unmatched_eager(&self, cx: &Context<'_>, gone: Rank) -> Option<CollectiveError> {
        let mut error = cx.transfer.unanswered(self.id, gone)?;
        if let CollectiveError::Block { sent, expected, .. } = &mut error
            && matches!(self.signature.kind.class().sizes, BlockSizes::Whole | BlockSizes::Even)
        {
            [sent, expected].into_iter().filter(|bytes| **bytes > 0).for_each(|bytes| *bytes = self.signature.bytes);
        }
        Some(error)
    }

    /// Handles messages of `rank`, whose signature the caller has compared.
    pub(super) fn handle_eager_offer(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        offer: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        let TransferMessage::Offer { rank, ready, early, .. } = &offer else { return Err(NO_OFFER.into()) };
        let awaited = |rts: &Rts| {
            let Some(local) = cx.members.local(rts.destination).map(|i| &self.locals[i]) else { return false };
            let open =
                |op| local.unposted.contains(&op) || cx.transfer.waits_for(&self.name(*rank, local.rank, rts.tag));
            let mut receives = local.run.receives();
            let sent = receives.find(|(_, (source, index, _))| (source, index) == (rank, &rts.tag));
            sent.is_some_and(|(op, (.., span))| span.len == rts.bytes && open(op))
        };
        let expected = early.is_empty() && ready.iter().all(awaited);
        Rejection::unless(expected, "messages that a small call does not receive, or has received")?;
        // A rank without a stand-in bounds how far others get ahead.
        if self.running() {
            self.start_stand_in_timer(cx);
        }
        let (transfer, mut site) = cx.transfer();
        transfer.handle(&mut site, from, offer, payload_len)
    }
}
