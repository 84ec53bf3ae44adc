//! One all-to-all, gather or scatter at one service process, without a barrier (SP-5), which all choose but for many small blocks
//! of one size (see [`Collective`](crate::instance::Collective)): the last two are all-to-alls in which all but the root have
//! one block, so that nobody waits for anybody but the root.
//!
//! Ranks exchange as they come: whoever calls hands its sends and receives to the [transfers](crate::transfer) of the group.
//! Blocks for a rank that has not called wait in the memory of their sources; when that has lasted too long they are staged
//! (SP-6), so that no source is held by a rank that stays away.
//!
//! | rank | event | next |
//! |---|---|---|
//! | absent | it calls | called |
//! | called | the group's window reaches the instance | begun: its messages are offered |
//! | begun | every block sent is acknowledged, every block expected is here | ended |
//! | absent, called, begun | [`Exchange::fail`] | ended |
//!
//! Invariants: a call completes once and none of its buffers is named after that. Never sees payload.

use std::collections::BTreeSet;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Algorithm, Op, OpId, Rank, Span, alltoall};

use crate::error::CollectiveError;
use crate::group::members::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::instance::Context;
use crate::instance::run::Run;
use crate::interface::{Call, Class, InFlight, MemRef, Moves, Pairs, Region, Signature, Sizes, Step};
use crate::outbox::Completion;
use crate::transfer::{Name, Outbound, Owner, Posting, StepOf, Transfer};
use crate::wire::{EarlyCts, Origin, Rts, Scope, TransferMessage};

#[derive(Debug)]
enum Phase {
    Open,
    Failed(CollectiveError),
    /// Whether with an error.
    Ended {
        failed: bool,
    },
}

#[derive(Debug)]
enum Presence {
    /// Since when somebody has had a block for it.
    Absent {
        wanted: Option<Instant>,
    },
    Called {
        call: Call,
        run: Box<Run>,
        begun: bool,
    },
    Ended,
}

#[derive(Debug)]
struct Local {
    rank: Rank,
    presence: Presence,
}

/// One exchange at one service process.
#[derive(Debug)]
pub(crate) struct Exchange {
    instance: InstanceId,
    signature: Signature,
    /// Somebody who called it so.
    signer: Rank,
    since: Instant,
    phase: Phase,
    /// The group's window has reached it: blocks may move.
    open: bool,
    locals: Vec<Local>,
    /// Absent ranks are stood in for.
    standing: bool,
    stand_in_at: Option<Instant>,
}

impl Exchange {
    /// An exchange of which `signer`'s call is the first news. Fails when its sizes cannot be.
    pub(crate) fn new(
        cx: &mut Context<'_>,
        instance: InstanceId,
        signature: Signature,
        signer: Rank,
    ) -> Result<Self, &'static str> {
        if signature.bytes.checked_mul(cx.members.ranks().into()).is_none() {
            return Err("an exchange beyond the address space");
        }
        if matches!(signature.kind.class().moves, Moves::Blocks(Pairs::All)) {
            cx.transfer.is_all_to_all(instance);
        }
        let absent = |rank: &Rank| Local { rank: *rank, presence: Presence::Absent { wanted: None } };
        Ok(Exchange {
            instance,
            signature,
            signer,
            since: cx.out.now,
            phase: Phase::Open,
            open: instance.0 <= cx.members.window_end,
            locals: cx.members.locals.iter().map(absent).collect(),
            standing: false,
            stand_in_at: None,
        })
    }

    /// What the caller exchanges: every block alike, or as it says.
    fn blocks_of(call: &Call, ranks: u32) -> Option<std::sync::Arc<Blocks>> {
        match &call.blocks {
            Some(blocks) => Some(blocks.clone()),
            None => Self::even_blocks(call, ranks).map(Into::into),
        }
    }

    fn even_blocks(call: &Call, ranks: u32) -> Option<Blocks> {
        let Signature { kind, bytes } = call.signature;
        match kind.class() {
            Class { moves: Moves::Blocks(pairs), sizes: Sizes::Even } => match pairs {
                Pairs::All => Blocks::even(ranks, bytes),
                Pairs::To(root) => Blocks::gather((ranks, root), call.rank, bytes, !call.in_place),
                Pairs::From(root) => Blocks::scatter((ranks, root), call.rank, bytes, !call.in_place),
            },
            Class { .. } => None,
        }
    }

    pub(crate) fn ended(&self) -> bool {
        matches!(self.phase, Phase::Ended { .. })
    }

    /// Ended with an error.
    pub(crate) fn failed(&self) -> bool {
        matches!(self.phase, Phase::Ended { failed: true })
    }

    pub(crate) fn alive(&self) -> bool {
        matches!(self.phase, Phase::Open)
    }

    pub(crate) fn signature(&self) -> (Rank, Signature) {
        (self.signer, self.signature)
    }

    pub(crate) fn in_flight(&self, rank: Rank) -> bool {
        self.locals.iter().any(|l| l.rank == rank && matches!(l.presence, Presence::Called { .. }))
    }

    pub(crate) fn has_call(&self, id: CallId) -> Option<Rank> {
        let is = |l: &&Local| matches!(&l.presence, Presence::Called { call, .. } if call.id == id);
        self.locals.iter().find(is).map(|l| l.rank)
    }

    /// What is waited for, as of `now`.
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members, transfer: &Transfer) -> InFlight {
        let absent = self.locals.iter().filter(|local| matches!(local.presence, Presence::Absent { .. }));
        let here = |scope| scope == Scope::Instance(self.instance);
        let awaits = transfer.sources(here).chain(transfer.destinations(here));
        let awaits: BTreeSet<Rank> = awaits.filter(|rank| members.local(*rank).is_none()).collect();
        InFlight {
            group: members.handle,
            instance: self.instance,
            signature: self.signature,
            age_ns: now.0.saturating_sub(self.since.0),
            absent: absent.map(|local| local.rank).collect(),
            awaits: awaits.into_iter().collect(),
        }
    }

    /// A local rank calls. The caller has compared the signatures and checked the blocks. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        let i = cx.members.local(call.rank).expect("the caller checks that the rank is local");
        let ranks = cx.members.ranks();
        let blocks = Self::blocks_of(&call, ranks).expect("checked by the caller");
        let program = alltoall(Algorithm::Pull, ranks, call.rank, &blocks).expect("checked by the caller");
        let (rank, run) = (call.rank, Box::new(Run::new(program)));
        let called = Presence::Called { call, run, begun: false };
        let before = std::mem::replace(&mut self.locals[i].presence, called);
        if let Presence::Absent { wanted: Some(wanted) } = before
            && self.standing
        {
            cx.out.late(cx.members.handle, rank, (self.instance, self.signature.kind), wanted);
        }
        if self.open {
            self.begin(cx, i)?;
        }
        self.advance(cx);
        Ok(())
    }

    /// Hands over the messages of a rank that has called.
    fn begin(&mut self, cx: &mut Context<'_>, i: usize) -> Result<(), CollectiveError> {
        let Local { rank, presence: Presence::Called { call, run, begun } } = &mut self.locals[i] else {
            return Ok(());
        };
        let (rank, scope) = (*rank, Scope::Instance(self.instance));
        *begun = true;
        let piece = |region, span: Span| MemRef { region, offset: span.offset, len: span.len };
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        while let Some(op) = run.next_ready() {
            let step = StepOf { owner: Owner::Instance { instance: self.instance, local: i }, op };
            let name = |source, destination, tag| Name { scope, destination, source, tag, occurrence: 0 };
            match run.op(op) {
                Op::Recv { from, index, span } => {
                    let to = piece(Region::Output(call.id), span);
                    receives.push((name(from, rank, index), Posting { step, to }));
                }
                Op::Send { to, index, span } => {
                    let from = piece(Region::Input(call.id), span);
                    sends.push(Outbound { step, name: name(rank, to, index), from, signal: false });
                }
                Op::Copy { from, to } => {
                    cx.out.copy(piece(Region::Input(call.id), from), piece(Region::Output(call.id), to));
                    run.complete(op);
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Reduce { .. } => {
                    unreachable!("plans without a barrier move blocks between pairs")
                }
            }
        }
        for message in &sends {
            self.want(cx, message.name.destination);
        }
        let origin = Origin::Instance { instance: self.instance, signature: self.signature };
        let (transfer, mut site) = cx.transfer();
        transfer.exchange(&mut site, (origin, rank), sends, receives);
        transfer.unsent(self.instance, rank).map_or(Ok(()), Err)
    }

    /// Somebody has a block for a rank.
    fn want(&mut self, cx: &Context<'_>, rank: Rank) {
        if let Some(i) = cx.members.local(rank)
            && let Presence::Absent { wanted } = &mut self.locals[i].presence
        {
            wanted.get_or_insert(cx.out.now);
        }
    }

    /// Moves what can move for absent ranks, and ends what can end.
    fn advance(&mut self, cx: &mut Context<'_>) {
        if self.alive() && self.open {
            let waits = |local: &Local| matches!(local.presence, Presence::Absent { wanted: Some(_) });
            if self.standing {
                let (transfer, mut site) = cx.transfer();
                if transfer.stand_in(&mut site, self.instance) && self.stand_in_at.is_none() {
                    // Looked at again at the next chance: staging of another collective may have been given back.
                    self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after * 4);
                }
            } else if self.stand_in_at.is_none() && self.locals.iter().any(waits) {
                self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after);
            }
        }
        self.try_end(cx);
    }

    /// `rank` has called: its blocks for local ranks, and what may come of theirs. False when they cannot be; an error breaks
    /// the group.
    pub(crate) fn handle_offer(
        &mut self,
        cx: &mut Context<'_>,
        from: SpId,
        offer: TransferMessage,
        payload_len: u32,
    ) -> Result<bool, CollectiveError> {
        let TransferMessage::Offer { rank, ready, early, .. } = &offer else { return Ok(false) };
        let (rank, asked): (Rank, Vec<Rank>) = (*rank, early.iter().map(|cts| cts.source).collect());
        for &Rts { destination, tag, bytes, .. } in ready {
            let Some(i) = cx.members.local(destination) else { return Ok(false) };
            let name = Name { scope: Scope::Instance(self.instance), destination, source: rank, tag, occurrence: 0 };
            match &self.locals[i].presence {
                Presence::Absent { .. } => self.want(cx, destination),
                Presence::Called { begun: false, .. } => {}
                Presence::Called { run, .. } if run.receives().any(|(_, (source, ..))| source == rank) => {
                    if !cx.transfer.waits_for(&name) {
                        return Ok(false);
                    }
                }
                Presence::Called { .. } | Presence::Ended => return Err(name.mismatch(bytes, 0)),
            }
        }
        for &EarlyCts { source, bytes: expected, .. } in early {
            let Some(i) = cx.members.local(source) else { return Ok(false) };
            if matches!(self.locals[i].presence, Presence::Ended) {
                return Err(CollectiveError::Block { source_rank: source, sent: 0, destination: rank, expected });
            }
        }
        let (transfer, mut site) = cx.transfer();
        let sound = transfer.handle(&mut site, from, offer, payload_len)?;
        for source in asked {
            let begun = |local: &Local| matches!(local.presence, Presence::Called { begun: true, .. });
            if cx.members.local(source).is_some_and(|i| begun(&self.locals[i]))
                && let Some(error) = cx.transfer.unsent(self.instance, source)
            {
                return Err(error);
            }
        }
        self.advance(cx);
        Ok(sound)
    }

    /// A step that sends or receives is done.
    pub(crate) fn complete(&mut self, cx: &mut Context<'_>, local: usize, op: OpId) {
        if let (true, Presence::Called { run, .. }) = (self.alive(), &mut self.locals[local].presence) {
            run.complete(op);
            self.try_end(cx);
        }
    }

    /// The window of the group has moved. An error breaks the group.
    pub(crate) fn try_open(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if self.open || !self.alive() || self.instance.0 > cx.members.window_end {
            return Ok(());
        }
        self.open = true;
        for i in 0..self.locals.len() {
            self.begin(cx, i)?;
        }
        self.advance(cx);
        Ok(())
    }

    /// When [`Self::handle_timeout`] is due.
    pub(crate) fn poll_timeout(&self) -> Option<Instant> {
        self.stand_in_at
    }

    /// Time has passed: absent ranks are stood in for.
    pub(crate) fn handle_timeout(&mut self, cx: &mut Context<'_>) {
        if self.stand_in_at.is_none_or(|t| t > cx.out.now) {
            return;
        }
        self.stand_in_at = None;
        if !std::mem::replace(&mut self.standing, true) {
            let wanted = |l: &&Local| matches!(l.presence, Presence::Absent { wanted: Some(_) });
            for local in self.locals.iter().filter(wanted) {
                cx.out.step(cx.members.handle, self.instance, Step::StoodIn(local.rank));
            }
        }
        self.advance(cx);
    }

    /// Ends the calls that can end, and the exchange when none is left.
    fn try_end(&mut self, cx: &mut Context<'_>) {
        let failed = match &self.phase {
            Phase::Open => {
                for i in 0..self.locals.len() {
                    if matches!(&self.locals[i].presence, Presence::Called { run, .. } if run.finished()) {
                        self.end_local(cx, i, Ok(()));
                    }
                }
                if !self.locals.iter().all(|l| matches!(l.presence, Presence::Ended)) {
                    return;
                }
                false
            }
            Phase::Failed(error) => {
                let error = error.clone();
                (0..self.locals.len()).for_each(|i| self.end_local(cx, i, Err(error.clone())));
                true
            }
            Phase::Ended { .. } => return,
        };
        self.phase = Phase::Ended { failed };
        cx.transfer.forget_instance(self.instance);
        cx.out.forgotten.push((cx.members.handle, self.instance));
    }

    /// Nothing of this rank is named any more.
    fn end_local(&mut self, cx: &mut Context<'_>, i: usize, result: Result<(), CollectiveError>) {
        match std::mem::replace(&mut self.locals[i].presence, Presence::Ended) {
            Presence::Absent { .. } | Presence::Ended => {}
            Presence::Called { call: Call { id, group, instance, rank, .. }, .. } => {
                cx.out.complete(Completion { call: id, group, instance, rank }, result);
            }
        }
    }

    /// Ends the exchange with an error.
    pub(crate) fn fail(&mut self, cx: &mut Context<'_>, error: CollectiveError) {
        if self.alive() {
            self.phase = Phase::Failed(error);
            self.stand_in_at = None;
            let (transfer, mut site) = cx.transfer();
            transfer.cancel(&mut site, self.instance);
            self.try_end(cx);
        }
    }
}
