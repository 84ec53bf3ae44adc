//! Instances without a barrier (SP-5): all-to-alls, gathers and scatters. A gather or scatter is an all-to-all in which
//! every rank but the root has one block, so that ranks wait for the root only.
//!
//! Ranks exchange as they come: a calling rank passes its sends and receives to the [transfers](crate::transfer) of the
//! group. Blocks for a rank that has not called wait in the memory of their sources. After too long a wait they are
//! staged (SP-6), so that an absent rank does not block its sources.

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Algorithm, Op, Program, Rank, alltoall};

use super::{Context, Instance, InstancePhase, NO_OFFER, Presence};
use crate::error::{CollectiveError, Rejection};
use crate::ids::SpId;
use crate::interface::{BlockSizes, CallClass, CallMovement, ExchangePairs, Milestone, RankCall, Signature};
use crate::transfer::MessageName;
use crate::wire::{EarlyCts, Rts, Scope, TransferMessage};

/// The caller's program. The blocks of the call have been checked. Blocks are even unless the call describes them.
pub(super) fn program(call: &RankCall, ranks: u32) -> Program {
    let blocks = call.blocks.clone().or_else(|| even_blocks(call, ranks).map(Arc::new));
    let program = blocks.and_then(|blocks| alltoall(Algorithm::Pull, ranks, call.rank, &blocks).ok());
    program.expect("the blocks of calls are checked")
}

fn even_blocks(call: &RankCall, ranks: u32) -> Option<Blocks> {
    let Signature { kind, bytes } = call.signature;
    match kind.class() {
        CallClass { moves: CallMovement::Blocks(pairs), sizes: BlockSizes::Even } => match pairs {
            ExchangePairs::All => Blocks::even(ranks, bytes),
            ExchangePairs::To(root) => Blocks::gather(ranks, root, call.rank, bytes, !call.in_place),
            ExchangePairs::From(root) => Blocks::scatter(ranks, root, call.rank, bytes, !call.in_place),
        },
        CallClass { .. } => None,
    }
}

impl Instance {
    /// The window is open: passes on the messages of all callers. An error breaks the group.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        self.phase = InstancePhase::Running;
        for i in (0..self.locals.len()).filter(|i| self.locals[*i].call().is_some()).collect::<Vec<_>>() {
            self.begin_local(cx, i)?;
        }
        self.stage_for_absent(cx);
        self.advance(cx);
        Ok(())
    }

    /// Passes on the messages of a caller, once.
    fn begin_local(&mut self, cx: &mut Context<'_>, i: usize) -> Result<(), CollectiveError> {
        let rank = self.locals[i].rank;
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        while let Some(op) = self.locals[i].run.next_ready() {
            match self.locals[i].run.op(op) {
                Op::Send { to, .. } => {
                    self.note_waiting_block(cx, to);
                    sends.extend(self.outbound(i, op));
                }
                Op::Recv { .. } => receives.extend(self.receive(i, op)),
                Op::Copy { .. } | Op::Reduce { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => {
                    let started = self.start(cx, i, op);
                    assert!(started, "a rank that has called has its memory");
                }
            }
        }
        let origin = self.origin();
        let (transfer, mut site) = cx.transfer();
        transfer.exchange(&mut site, origin, rank, sends, receives);
        transfer.unmatched(self.id, rank).map_or(Ok(()), Err)
    }

    /// Notes that a block for a rank is waiting.
    fn note_waiting_block(&mut self, cx: &Context<'_>, rank: Rank) {
        if let Some(i) = cx.members.local(rank)
            && let Presence::Absent { wanted } = &mut self.locals[i].presence
        {
            wanted.get_or_insert(cx.out.now);
        }
    }

    /// Stages blocks for absent ranks, or schedules the staging.
    fn stage_for_absent(&mut self, cx: &mut Context<'_>) {
        if !self.running() {
            return;
        }
        let again = if self.stand_ins.have_begun() {
            let (transfer, mut site) = cx.transfer();
            // Retried at the next chance: another instance may have freed staging.
            transfer.stand_in(&mut site, self.id).then_some(cx.config.stand_in_after * 4)
        } else {
            self.wanted().next().map(|_| cx.config.stand_in_after)
        };
        if let Some(after) = again {
            self.stand_ins.start_timer(cx.out.now + after);
        }
    }

    /// Absent ranks with a waiting block.
    fn wanted(&self) -> impl Iterator<Item = Rank> {
        let wanted = |local: &&super::Local| matches!(local.presence, Presence::Absent { wanted: Some(_) });
        self.locals.iter().filter(wanted).map(|local| local.rank)
    }

    /// The wait for absent ranks is over: absent ranks have a stand-in from now on.
    pub(super) fn stand_in_pairs(&mut self, cx: &mut Context<'_>) {
        if self.stand_ins.begin() {
            self.wanted().for_each(|rank| cx.out.step(cx.members.handle, self.id, Milestone::StoodIn(rank)));
        }
        self.stage_for_absent(cx);
        self.advance(cx);
    }

    /// Handles an offer of `rank` for local ranks.
    pub(super) fn handle_pairs_offer(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        offer: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        const ELSEWHERE: &str = "an offer for a rank that is not served here, or with a tag";
        let TransferMessage::Offer { rank, ready, early, .. } = &offer else { return Err(NO_OFFER.into()) };
        let (rank, asked): (Rank, Vec<Rank>) = (*rank, early.iter().map(|cts| cts.source).collect());
        for &Rts { destination, tag, bytes, eager, .. } in ready {
            let i = cx.members.local(destination).filter(|_| tag == 0 && !eager).ok_or(ELSEWHERE)?;
            let name = MessageName { scope: Scope::Instance(self.id), destination, source: rank, tag, occurrence: 0 };
            match &self.locals[i].presence {
                Presence::Absent { .. } | Presence::StoodIn(_) => self.note_waiting_block(cx, destination),
                Presence::Called(..) if !self.running() => {}
                Presence::Called(..) if self.receives_from(i, rank) => {
                    Rejection::unless(cx.transfer.waits_for(&name), "a block that has been offered before")?;
                }
                Presence::Called(..) | Presence::Ended => return Err(name.mismatch(bytes, 0).into()),
            }
        }
        for &EarlyCts { source, tag, bytes: expected, .. } in early {
            let i = cx.members.local(source).filter(|_| tag == 0).ok_or(ELSEWHERE)?;
            if matches!(self.locals[i].presence, Presence::Ended) {
                return Err(CollectiveError::Block { source_rank: source, sent: 0, destination: rank, expected }.into());
            }
        }
        let (transfer, mut site) = cx.transfer();
        let handled = match transfer.handle(&mut site, from, offer, payload_len) {
            Err(Rejection::Error(error)) => return Err(error.into()),
            handled => handled,
        };
        let called = |source: &Rank| cx.members.local(*source).is_some_and(|i| self.locals[i].call().is_some());
        let unmatched = |source| cx.transfer.unmatched(self.id, source);
        if self.running()
            && let Some(error) = asked.into_iter().filter(called).find_map(unmatched)
        {
            return Err(error.into());
        }
        self.stage_for_absent(cx);
        self.advance(cx);
        handled
    }

    fn receives_from(&self, i: usize, rank: Rank) -> bool {
        self.locals[i].run.receives().any(|(_, (source, ..))| source == rank)
    }
}
