//! A local rank in an instance: whether it has called, its program, and the places of its memory.

use outboard_plan::{Buffer, Extents, OpId, Program, Rank, Span};

use super::offloaded::OffloadedList;
use super::run::ProgramRun;
use crate::effects::Staging;
use crate::ids::{Instant, StagingId};
use crate::interface::{CallMovement, ExchangePairs, MemRef, MemRegion, RankCall};

#[derive(Debug)]
pub(super) enum Presence {
    Absent {
        /// When the first block for the rank was known; the block does not keep the rank from calling (SP-5).
        wanted: Option<Instant>,
    },
    StoodIn(Staging),
    /// Staging from before the call is kept, since frames may still use it.
    Called(RankCall, Option<Staging>),
    Ended,
}

#[derive(Debug)]
pub(super) struct Local {
    pub(super) rank: Rank,
    pub(super) presence: Presence,
    pub(super) run: ProgramRun,
    /// Steps that wait for this rank's own call, for another local rank, or for the barrier.
    pub(super) blocked: Vec<OpId>,
    /// Receives that wait for memory.
    pub(super) unposted: Vec<OpId>,
    /// The rank's list, while the engine has it.
    pub(super) offloaded_list: Option<OffloadedList>,
    /// Start of the rank's scratch, once taken.
    pub(super) scratch: Option<(StagingId, u64)>,
}

impl Local {
    /// A rank that has not called and has no program yet.
    pub(super) fn new(rank: Rank) -> Self {
        let (presence, run) = (Presence::Absent { wanted: None }, ProgramRun::default());
        Local { rank, presence, run, blocked: Vec::new(), unposted: Vec::new(), offloaded_list: None, scratch: None }
    }

    pub(super) fn set_program(&mut self, program: Program) {
        self.run = ProgramRun::new(program);
    }

    pub(super) fn call(&self) -> Option<&RankCall> {
        match &self.presence {
            Presence::Called(call, _) => Some(call),
            Presence::Absent { .. } | Presence::StoodIn(_) | Presence::Ended => None,
        }
    }

    /// The rank has not called.
    pub(super) fn is_absent(&self) -> bool {
        matches!(self.presence, Presence::Absent { .. } | Presence::StoodIn(_))
    }

    /// The rank has not called and has no stand-in.
    pub(super) fn is_missing(&self) -> bool {
        matches!(self.presence, Presence::Absent { .. })
    }

    /// The memory of a span of this rank, if the memory can be used now. A span of the output lies within one block of
    /// the extents. Without extents, where pairs agree on the sizes, the program has the offsets of the call itself.
    pub(super) fn memory(&self, extents: Option<&Extents>, span: Span) -> Option<MemRef> {
        let Span { buffer, offset, len } = span;
        let Some(extents) = extents else {
            let call = self.call()?.id;
            let region = if buffer == Buffer::Input { MemRegion::Input(call) } else { MemRegion::Output(call) };
            return Some(MemRef { region, offset, len });
        };
        if len == 0 {
            // No memory is needed for an empty span. But an empty input counts as usable only once the rank has called.
            let is_there = buffer != Buffer::Input || self.call().is_some();
            return is_there.then_some(MemRef { region: MemRegion::Staging(StagingId(0)), offset: 0, len: 0 });
        }
        let (region, offset) = match (&self.presence, buffer) {
            // The service refuses such an in-place call where the kind of call does not allow it.
            (Presence::Called(call, _), Buffer::Output) if call.in_place && keeps_input(call) => {
                (MemRegion::Input(call.id), extents.block(self.rank).offset + offset)
            }
            (Presence::Called(call, _), Buffer::Input) if call.in_place && !keeps_input(call) => {
                let start = call.signature.kind.reduction().map_or_else(|| extents.block(self.rank).offset, |_| 0);
                (MemRegion::Output(call.id), placed(call, extents, start + offset))
            }
            (Presence::Called(call, _), Buffer::Input) => (MemRegion::Input(call.id), offset),
            (Presence::Called(call, _), Buffer::Output) => (MemRegion::Output(call.id), placed(call, extents, offset)),
            (Presence::StoodIn(staging), Buffer::Output) => (MemRegion::Staging(staging.id), offset),
            (Presence::Called(..) | Presence::StoodIn(_), Buffer::Scratch) => {
                let (staging, start) = self.scratch?;
                (MemRegion::Staging(staging), start + offset)
            }
            // An absent rank has no memory; a rank with a stand-in has no input.
            (Presence::Absent { .. } | Presence::Ended, _) | (Presence::StoodIn(_), Buffer::Input) => return None,
        };
        Some(MemRef { region, offset, len })
    }

    pub(super) fn has_block_of(&self, source: Rank) -> bool {
        self.run.multicast_receive(source).is_none_or(|(op, _)| self.run.is_done(op))
    }
}

/// Whether a call in place leaves the rank's own block in its input, as the root of a scatter does.
fn keeps_input(call: &RankCall) -> bool {
    matches!(call.signature.kind.class().moves, CallMovement::Blocks(ExchangePairs::From(_)))
}

/// The offset in the call's output of byte `offset` in the plan's output; the call's blocks may lie anywhere.
fn placed(call: &RankCall, extents: &Extents, offset: u64) -> u64 {
    let Some(blocks) = call.blocks.as_ref().filter(|_| call.signature.kind.reduction().is_none()) else {
        return offset;
    };
    let rank = extents.rank_at(offset);
    blocks.receive[rank.0 as usize].offset + (offset - extents.block(rank).offset)
}
