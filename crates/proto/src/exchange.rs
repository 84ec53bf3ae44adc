//! One all-to-all, gather or scatter at one service process, by pull (SP-5), which all choose but for many small blocks of one
//! size (see [`Collective`](crate::collective::Collective)): the last two are all-to-alls in which all but the
//! root have one block, so that nobody waits for anybody but the root.
//!
//! A rank that calls has its blocks announced to the service processes of their destinations, which ask for them: a bounded
//! number of bytes at a time, so that the receive link stays full and no switch queue overflows. The announcement also asks for
//! the first bytes of what the rank expects: whoever calls later has them asked for already, and its link is busy at once, not
//! when requests for its blocks have made their way behind the bytes of all the others.
//! There is no barrier: ranks exchange as they come. Blocks for a rank that has not called wait announced, in the memory of
//! their sources; when that has lasted too long they are pulled into staging (SP-6), so that no source is held by a rank
//! that stays away. Blocks between local ranks go the same way, but by a copy.
//!
//! | rank | event | next |
//! |---|---|---|
//! | absent | it calls | called: its blocks are announced, what has come is handed over |
//! | called | every block sent is acknowledged, every block expected is here | ended |
//! | absent, called | [`Exchange::fail`] | ended |
//!
//! | block for a local rank | event | next |
//! |---|---|---|
//! | - | announced | announced |
//! | - | its rank calls and there is room | coming, unannounced |
//! | coming, unannounced | announced | coming |
//! | announced | the rank has called and there is room, or it is stood in for | coming (a local one: here) |
//! | coming | there is room, and more of it to ask for | coming |
//! | coming | the last fragment | here, or staged when the rank has not called |
//! | staged | the rank calls | here |
//!
//! Large blocks are asked for piece by piece, first of the sources that have been asked for least: were they asked for whole, as
//! they are announced, some sources would be asked by all at first and others only in the end.
//!
//! No block has more than a part of it under way, or the first to be announced would take all the room: those of a rank that is
//! a little late would come last and alone; nor has an all-to-all more in all than the bytes that leave while a request
//! makes its way, or the last to call would have asked idle sources for more than a switch can queue. Room is used when there is
//! enough of it for several pieces, so that one message asks for them.
//!
//! Invariants: every byte is asked for once; a call completes once and none of its buffers is named after that; at most
//! [`Config::pull_bytes`](crate::Config) are under way, of an all-to-all half as many more, or one piece, and half as many again of
//! what was not announced when it was asked for; less beside small calls (MC-13). Whoever stays away takes no room.
//! Never sees payload.

use std::collections::{BTreeMap, BTreeSet};

use outboard_plan::alltoall::Blocks;
use outboard_plan::{AlltoallAlgorithm, OpId, Rank, Span, alltoall};

use crate::collective::Context;
use crate::error::CollectiveError;
use crate::executor::Run;
use crate::fragments::{Bulk, Sends};
use crate::group::Members;
use crate::ids::{CallId, InstanceId, Instant, SpId};
use crate::interface::{Call, Class, InFlight, MemRef, Moves, Order, Pairs, Region, Signature, Sizes, Step};
use crate::link::{Tag, Tagged};
use crate::outbox::{Completion, Quota, Staging};
use crate::pacing::Quantum;
use crate::wire::{MAX_BLOCKS, Message};

mod announcement;

use announcement::Ahead;

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
    },
    Ended,
}

#[derive(Debug)]
struct Local {
    rank: Rank,
    presence: Presence,
}

/// A block for a local rank.
#[derive(Debug)]
enum Inbound {
    Announced {
        bytes: u64,
    },
    /// `staging` is none where it goes straight to the rank's own buffer.
    Coming {
        bytes: u64,
        /// Its source has told of it, too.
        announced: bool,
        asked: u64,
        got: u64,
        staging: Option<Staging>,
    },
    Staged(Staging),
}

impl Inbound {
    /// Its source has told of it.
    fn is_announced(&self) -> bool {
        match self {
            Inbound::Coming { announced, .. } => *announced,
            Inbound::Announced { .. } | Inbound::Staged(_) => true,
        }
    }
}

/// A block of a local rank that its destination may ask for.
#[derive(Debug)]
struct Offered {
    local: usize,
    op: OpId,
    span: Span,
}

/// Names a block: destination, source.
type Pair = (Rank, Rank);

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
    inbound: BTreeMap<Pair, Inbound>,
    /// Blocks that may be asked for, or for more of, by bytes asked for and distance of the source; but for those that have as
    /// much under way as one may.
    queue: BTreeSet<(u64, u32, Pair)>,
    /// Announced blocks of local ranks that may be copied.
    local_queue: BTreeSet<Pair>,
    /// Bytes asked for, of blocks that are announced, that have not come.
    coming: u64,
    offered: BTreeMap<Pair, Offered>,
    /// Asked for of local ranks that have not called, one entry for each pair at most.
    ahead: BTreeMap<Pair, Ahead>,
    sends: Sends,
    /// Absent ranks are stood in for.
    standing: bool,
    stand_in_at: Option<Instant>,
}

impl Exchange {
    /// An exchange of which `signer`'s call is the first news. Fails when its sizes cannot be.
    pub(crate) fn new(
        cx: &Context<'_>,
        instance: InstanceId,
        signature: Signature,
        signer: Rank,
    ) -> Result<Self, &'static str> {
        if signature.bytes.checked_mul(cx.members.ranks().into()).is_none() {
            return Err("an exchange beyond the address space");
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
            inbound: BTreeMap::new(),
            queue: BTreeSet::new(),
            local_queue: BTreeSet::new(),
            coming: 0,
            offered: BTreeMap::new(),
            ahead: BTreeMap::new(),
            sends: Sends::default(),
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
    pub(crate) fn in_flight_now(&self, now: Instant, members: &Members) -> InFlight {
        let mut absent = Vec::new();
        let mut awaits: BTreeSet<Rank> = self.offered.keys().map(|(destination, _)| *destination).collect();
        for local in &self.locals {
            match &local.presence {
                Presence::Absent { .. } => absent.push(local.rank),
                Presence::Called { run, .. } => awaits.extend(run.awaited().filter(|r| members.local(*r).is_none())),
                Presence::Ended => {}
            }
        }
        InFlight {
            group: members.handle,
            instance: self.instance,
            signature: self.signature,
            age_ns: now.0.saturating_sub(self.since.0),
            absent,
            awaits: awaits.into_iter().collect(),
        }
    }

    /// A local rank calls. The caller has compared the signatures and checked the blocks. An error breaks the group.
    pub(crate) fn handle_call(&mut self, cx: &mut Context<'_>, call: Call) -> Result<(), CollectiveError> {
        let i = cx.members.local(call.rank).expect("the caller checks that the rank is local");
        let blocks = Self::blocks_of(&call, cx.members.ranks()).expect("checked by the caller");
        let ranks = cx.members.ranks();
        let program = alltoall(AlltoallAlgorithm::Pull, ranks, call.rank, &blocks).expect("checked by the caller");
        let (rank, run) = (call.rank, Box::new(Run::new(program)));
        let before = std::mem::replace(&mut self.locals[i].presence, Presence::Called { call, run });
        let Presence::Absent { wanted } = before else { unreachable!("the group counts the calls of a rank") };
        if let Some(wanted) = wanted.filter(|_| self.standing) {
            cx.out.late(cx.members.handle, rank, (self.instance, self.signature.kind), wanted);
        }
        let came: Vec<Rank> =
            self.inbound.range((rank, Rank(0))..=(rank, Rank(u32::MAX))).map(|((_, source), _)| *source).collect();
        for source in came {
            self.hand_over(cx, i, source)?;
        }
        if self.open {
            self.offer(cx, i)?;
        }
        self.advance(cx);
        Ok(())
    }

    /// What was announced or has come for a rank that was absent, now that it has called.
    fn hand_over(&mut self, cx: &mut Context<'_>, i: usize, source: Rank) -> Result<(), CollectiveError> {
        let pair = (self.locals[i].rank, source);
        let bytes = match &self.inbound[&pair] {
            Inbound::Announced { bytes } | Inbound::Coming { bytes, .. } => *bytes,
            Inbound::Staged(staging) => staging.bytes,
        };
        self.expect(pair, bytes, i)?;
        match &self.inbound[&pair] {
            Inbound::Announced { .. } => self.want(cx, pair),
            Inbound::Coming { .. } => {}
            Inbound::Staged(_) => {
                let Some(Inbound::Staged(staging)) = self.inbound.remove(&pair) else { unreachable!("just seen") };
                self.take_staged(cx, i, source, staging);
            }
        }
        Ok(())
    }

    fn take_staged(&mut self, cx: &mut Context<'_>, i: usize, source: Rank, staging: Staging) {
        let Presence::Called { call, run } = &mut self.locals[i].presence else {
            unreachable!("only a rank that has called takes its blocks")
        };
        let receive = run.receive(source, 0).expect("compared with what was announced");
        let (op, span) = (receive.op, receive.span);
        receive.done = true;
        let from = MemRef { region: Region::Staging(staging.id), offset: 0, len: staging.bytes };
        cx.out.copy(from, MemRef { region: Region::Output(call.id), offset: span.offset, len: span.len });
        run.complete(op);
        cx.out.unstage(staging);
    }

    /// Both ends of a block must agree on its bytes; a rank whose call has ended expected none.
    fn expect(&mut self, (destination, source): Pair, sent: u64, i: usize) -> Result<(), CollectiveError> {
        let expected = match &mut self.locals[i].presence {
            Presence::Absent { .. } => return Ok(()),
            Presence::Called { run, .. } => run.receive(source, 0).map_or(0, |r| r.span.len),
            Presence::Ended => 0,
        };
        if expected == sent {
            Ok(())
        } else {
            Err(CollectiveError::Block { source_rank: source, sent, destination, expected })
        }
    }

    /// An announced block may be asked for.
    fn want(&mut self, cx: &Context<'_>, pair: Pair) {
        if cx.members.local(pair.1).is_some() {
            self.local_queue.insert(pair);
        } else {
            self.queue.insert((0, distance(cx, pair), pair));
        }
    }

    /// Moves what can move, and ends what can end.
    fn advance(&mut self, cx: &mut Context<'_>) {
        if self.alive() && self.open {
            for pair in std::mem::take(&mut self.local_queue) {
                let bytes = self.offered[&pair].span.len;
                if let Some(place) = self.place(cx, pair.0, bytes) {
                    self.copy_local(cx, pair, place);
                }
            }
            self.pull(cx);
        }
        self.try_end(cx);
    }

    /// Where a block for `destination` goes: staging while that is absent. None where the quota does not allow it now.
    fn place(&mut self, cx: &mut Context<'_>, destination: Rank, bytes: u64) -> Option<Option<Staging>> {
        let i = cx.members.local(destination).expect("announced for a local rank");
        match self.locals[i].presence {
            Presence::Called { .. } => Some(None),
            Presence::Absent { .. } => {
                let staging = cx.out.stage(Quota::Late, cx.members.owner, bytes);
                if staging.is_none() {
                    // Looked at again at the next chance: staging of another collective may have been given back.
                    self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after * 4);
                }
                staging.map(Some)
            }
            Presence::Ended => unreachable!("a rank whose call has ended expects nothing"),
        }
    }

    /// Bytes that may be under way.
    fn most(&self, quantum: Quantum) -> u64 {
        quantum.under_way(matches!(self.signature.kind.class().moves, Moves::Blocks(Pairs::All)))
    }

    /// Whether so many more bytes may be under way.
    fn has_room(&self, quantum: Quantum, more: u64) -> bool {
        self.coming == 0 || self.coming.saturating_add(more) <= self.most(quantum)
    }

    /// Bytes of each of the blocks that are known of that may be under way.
    fn of_one(&self, quantum: Quantum) -> u64 {
        quantum.of_one(self.most(quantum), self.inbound.len())
    }

    /// Asks for blocks while there is room.
    fn pull(&mut self, cx: &mut Context<'_>) {
        let mut pulls: BTreeMap<SpId, BTreeMap<Pair, u64>> = BTreeMap::new();
        let quantum = cx.quantum();
        if !self.has_room(quantum, quantum.pull_room) {
            return;
        }
        while let Some(&(asked, distance, pair)) = self.queue.first() {
            let (bytes, got) = match self.inbound[&pair] {
                Inbound::Announced { bytes } => (bytes, 0),
                Inbound::Coming { bytes, got, .. } => (bytes, got),
                Inbound::Staged(_) => unreachable!("what is here is not asked for"),
            };
            let piece = (bytes - asked).min(quantum.pull);
            if asked > got && asked + piece - got > self.of_one(quantum) {
                self.queue.remove(&(asked, distance, pair));
                continue;
            }
            if !self.has_room(quantum, piece) {
                break;
            }
            self.queue.remove(&(asked, distance, pair));
            let (destination, source) = pair;
            if asked == 0 {
                let Some(staging) = self.place(cx, destination, bytes) else { continue };
                let coming = Inbound::Coming { bytes, announced: true, asked, got: 0, staging };
                self.inbound.insert(pair, coming);
            }
            let up_to = asked + piece;
            if let Some(Inbound::Coming { asked, .. }) = self.inbound.get_mut(&pair) {
                *asked = up_to;
            }
            self.coming += piece;
            if up_to < bytes {
                self.queue.insert((up_to, distance, pair));
            }
            pulls.entry(cx.members.sp_of(source)).or_default().insert(pair, up_to);
        }
        let (group, instance) = (cx.members.handle, self.instance);
        for (sp, blocks) in pulls {
            let blocks: Vec<_> = blocks.into_iter().map(|((to, from), up_to)| (from, to, up_to)).collect();
            for blocks in blocks.chunks(MAX_BLOCKS) {
                let message = Message::Pull { group, instance, blocks: blocks.to_vec() };
                cx.out.messages.push_back((sp, message));
            }
        }
    }

    /// A block between two local ranks, the source of which has called.
    fn copy_local(&mut self, cx: &mut Context<'_>, pair: Pair, staging: Option<Staging>) {
        let (destination, source) = pair;
        let Offered { local, op, span } = self.offered.remove(&pair).expect("announced by a local rank");
        let Presence::Called { call, run } = &mut self.locals[local].presence else {
            unreachable!("a call stays until its blocks have been taken")
        };
        let from = MemRef { region: Region::Input(call.id), offset: span.offset, len: span.len };
        run.complete(op);
        if let Some(staging) = staging {
            cx.out.copy(from, MemRef { region: Region::Staging(staging.id), offset: 0, len: span.len });
            self.inbound.insert(pair, Inbound::Staged(staging));
            return;
        }
        self.inbound.remove(&pair);
        let i = cx.members.local(destination).expect("a local pair");
        let Presence::Called { call, run } = &mut self.locals[i].presence else {
            unreachable!("what is not staged goes to a rank that has called")
        };
        let receive = run.receive(source, 0).expect("compared with what was announced");
        receive.done = true;
        let (op, to) = (receive.op, receive.span);
        cx.out.copy(from, MemRef { region: Region::Output(call.id), offset: to.offset, len: to.len });
        run.complete(op);
    }

    /// `from` asks for blocks, each named by source and destination. False when it cannot have them.
    pub(crate) fn handle_pull(&mut self, cx: &mut Context<'_>, from: SpId, blocks: &[(Rank, Rank, u64)]) -> bool {
        for &(source, destination, up_to) in blocks {
            if !cx.members.has_rank(destination) || cx.members.sp_of(destination) != from {
                return false;
            }
            let Some(local) = cx.members.local(source) else { return false };
            let known = match self.offered.remove(&(destination, source)) {
                Some(Offered { op, span, .. }) => self.sends.push_asked((local, op), (destination, 0, span), up_to),
                None => self.sends.ask(local, destination, up_to),
            };
            if !known {
                return false;
            }
        }
        true
    }

    /// Whether there is bulk for anybody.
    pub(crate) fn has_bulk(&self) -> bool {
        self.alive() && self.sends.may_leave()
    }

    /// Whom there may be bulk for.
    pub(crate) fn bulk_targets(&self, cx: &Context<'_>) -> Vec<SpId> {
        if self.alive() { self.sends.targets(cx.members) } else { Vec::new() }
    }

    /// The next fragment for `to`, when it has any. Asked while its link has room.
    pub(crate) fn next_bulk(&mut self, cx: &mut Context<'_>, to: SpId) -> Option<Bulk> {
        if !self.alive() {
            return None;
        }
        let fragment = self.sends.next(cx.members, to, cx.quantum().piece)?;
        let Presence::Called { call, .. } = &self.locals[fragment.local].presence else {
            unreachable!("a call stays until its blocks are acknowledged")
        };
        let Span { offset, len, .. } = fragment.piece;
        let payload = MemRef { region: Region::Input(call.id), offset, len };
        Some(fragment.bulk(cx.members, self.instance, self.locals[fragment.local].rank, Some(payload)))
    }

    /// The last fragment of a block has been acknowledged.
    pub(crate) fn handle_acked(&mut self, cx: &mut Context<'_>, tag: Tag) {
        let Tagged::Send { local, op } = tag.what else { return };
        if let (true, Presence::Called { run, .. }) = (self.alive(), &mut self.locals[local as usize].presence) {
            run.complete(op);
            self.try_end(cx);
        }
    }

    /// A fragment. False when no such fragment can come now.
    pub(crate) fn handle_data(
        &mut self,
        cx: &mut Context<'_>,
        (source, destination): (Rank, Rank),
        (total, offset): (u64, u64),
        payload_len: u32,
    ) -> bool {
        let (pair, len) = ((destination, source), u64::from(payload_len));
        let of_one = self.of_one(cx.quantum());
        let Some(i) = cx.members.local(destination) else { return false };
        let Some(Inbound::Coming { bytes, announced: true, asked, got, staging }) = self.inbound.get_mut(&pair) else {
            return false;
        };
        if total != *bytes || offset != *got || len == 0 || len > *asked - offset {
            return false;
        }
        *got += len;
        self.coming -= len;
        if *asked < total && *asked - *got <= of_one / 2 {
            self.queue.insert((*asked, distance(cx, pair), pair));
        }
        let whole = *got == total;
        let (region, start) = match (staging, &mut self.locals[i].presence) {
            (Some(staging), _) => (Region::Staging(staging.id), 0),
            (None, Presence::Called { call, run }) => {
                let receive = run.receive(source, 0).expect("compared with what was announced");
                (receive.got, receive.done) = (*got, whole);
                (Region::Output(call.id), receive.span.offset)
            }
            (None, Presence::Absent { .. } | Presence::Ended) => unreachable!("an absent rank's blocks are staged"),
        };
        cx.out.orders.push_back(Order::Deliver {
            payload: 0,
            offset: 0,
            to: MemRef { region, offset: start + offset, len },
        });
        if whole {
            self.is_here(cx, i, source);
            self.advance(cx);
        } else if !self.queue.is_empty() {
            self.pull(cx);
        }
        true
    }

    /// A block has come whole.
    fn is_here(&mut self, cx: &mut Context<'_>, i: usize, source: Rank) {
        let pair = (self.locals[i].rank, source);
        let Some(Inbound::Coming { staging, .. }) = self.inbound.remove(&pair) else { unreachable!("just seen") };
        match (staging, &mut self.locals[i].presence) {
            (None, Presence::Called { run, .. }) => {
                let op = run.receive(source, 0).expect("compared with what was announced").op;
                run.complete(op);
            }
            (Some(staging), Presence::Called { .. }) => self.take_staged(cx, i, source, staging),
            (Some(staging), Presence::Absent { .. } | Presence::Ended) => {
                self.inbound.insert(pair, Inbound::Staged(staging));
            }
            (None, Presence::Absent { .. } | Presence::Ended) => unreachable!("an absent rank's blocks are staged"),
        }
    }

    /// The window of the group has moved. An error breaks the group.
    pub(crate) fn try_open(&mut self, cx: &mut Context<'_>) -> Result<(), CollectiveError> {
        if self.open || !self.alive() || self.instance.0 > cx.members.window_end {
            return Ok(());
        }
        self.open = true;
        for i in 0..self.locals.len() {
            self.offer(cx, i)?;
        }
        let waits = |l: &Local| matches!(l.presence, Presence::Absent { wanted: Some(_) });
        if self.locals.iter().any(waits) {
            self.stand_in_at = Some(cx.out.now + cx.config.stand_in_after);
        }
        self.advance(cx);
        Ok(())
    }

    /// `gone` takes part in nothing any more, and its own call of this exchange has ended: whatever is still to move between it
    /// and a rank here it does not know of. An error breaks the group.
    pub(crate) fn without(&mut self, gone: Rank) -> Result<(), CollectiveError> {
        let block = |source_rank, sent, destination, expected| {
            Err(CollectiveError::Block { source_rank, sent, destination, expected })
        };
        if let Some(((_, source), offered)) = self.offered.iter().find(|((destination, _), _)| *destination == gone) {
            return block(*source, offered.span.len, gone, 0);
        }
        for local in &mut self.locals {
            if let Presence::Called { run, .. } = &mut local.presence
                && let Some(receive) = run.receive(gone, 0).filter(|r| !r.done)
                && !self.inbound.get(&(local.rank, gone)).is_some_and(Inbound::is_announced)
            {
                return block(gone, 0, local.rank, receive.span.len);
            }
        }
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
        let absent = |rank: Rank| {
            let l = &self.locals[cx.members.local(rank).expect("announced for a local rank")];
            matches!(l.presence, Presence::Absent { .. })
        };
        let waiting = self.inbound.iter().filter(|(_, b)| matches!(b, Inbound::Announced { .. })).map(|(p, _)| *p);
        let waiting: Vec<Pair> = waiting.filter(|(destination, _)| absent(*destination)).collect();
        waiting.into_iter().for_each(|pair| self.want(cx, pair));
        self.advance(cx);
    }

    /// Ends the calls that can end, and the exchange when none is left.
    fn try_end(&mut self, cx: &mut Context<'_>) {
        match &self.phase {
            Phase::Open => {
                for i in 0..self.locals.len() {
                    if matches!(&self.locals[i].presence, Presence::Called { run, .. } if run.finished()) {
                        self.end_local(cx, i, Ok(()));
                    }
                }
                if !self.locals.iter().all(|l| matches!(l.presence, Presence::Ended)) {
                    return;
                }
            }
            Phase::Failed(error) => {
                let error = error.clone();
                (0..self.locals.len()).for_each(|i| self.end_local(cx, i, Err(error.clone())));
                for (_, block) in std::mem::take(&mut self.inbound) {
                    match block {
                        Inbound::Staged(staging) | Inbound::Coming { staging: Some(staging), .. } => {
                            cx.out.unstage(staging);
                        }
                        Inbound::Announced { .. } | Inbound::Coming { staging: None, .. } => {}
                    }
                }
            }
            Phase::Ended { .. } => return,
        }
        assert!(self.inbound.is_empty(), "a block is there for a rank that waits for it");
        self.phase = Phase::Ended { failed: matches!(self.phase, Phase::Failed(_)) };
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
            self.sends.clear();
            self.ahead.clear();
            self.queue.clear();
            self.local_queue.clear();
            self.stand_in_at = None;
            self.try_end(cx);
        }
    }
}

/// By which sources are asked in turn, nearest first: so no two ranks begin with the same.
fn distance(cx: &Context<'_>, (destination, source): Pair) -> u32 {
    let ranks = cx.members.ranks();
    (destination.0 + ranks - source.0) % ranks
}
