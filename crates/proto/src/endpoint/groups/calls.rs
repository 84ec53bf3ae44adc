//! The instances of a group: calls and messages find theirs, or bring it about.
//!
//! What disagrees with what is known of an instance breaks the group. Never moves payload.

use outboard_plan::{Extents, Rank, Span};

use super::State;
use crate::endpoint::Endpoint;
use crate::error::CollectiveError;
use crate::group::lateness::Watch;
use crate::ids::{CallId, GroupHandle, InstanceId, SpId};
use crate::instance::Instance;
use crate::instance::tagged::TAGGED;
use crate::instance::{Collective, Context};
use crate::interface::{Call, Class, Moves, Pairs, Signature, Sizes, Step, sizes_digest};
use crate::outbox::Completion;
use crate::transfer::{Owner, Site, StepOf};
use crate::wire::{EarlyCts, Origin, Rts, TransferMessage};

impl Endpoint {
    /// Lets an instance handle something, if it is there still.
    pub(in crate::endpoint) fn with_instance<T>(
        &mut self,
        group: GroupHandle,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let (mut cx, instance) = self.groups.get_mut(&group)?.parts((&self.config, &mut self.out), id);
        let done = f(instance?, &mut cx);
        self.run_steps(group);
        Some(done)
    }

    /// What has become of messages goes to the programs whose steps they are, until nothing more follows from it.
    pub(in crate::endpoint) fn run_steps(&mut self, handle: GroupHandle) {
        while let Some(g) = self.groups.get_mut(&handle)
            && let Some((StepOf { owner, op }, result)) = g.transfer.poll_ended()
        {
            if let Owner::Instance { instance, .. } = owner {
                self.out.touch(handle, instance);
            }
            let cx = &mut Context {
                config: &self.config,
                members: &mut g.members,
                out: &mut self.out,
                transfer: &mut g.transfer,
            };
            let carried = match owner {
                Owner::Call(call) => g.tagged.complete(cx, (call, op), result),
                Owner::Instance { instance, local } => match g.instances.get_mut(&instance) {
                    Some(i) => result.map(|()| i.complete(cx, local, op)),
                    None => Ok(()),
                },
            };
            g.tagged.advance(cx);
            if let Err(error) = carried {
                self.break_group(handle, error, true);
            }
        }
        if let Some(g) = self.groups.get_mut(&handle) {
            let mut site = Site { config: &self.config, members: &g.members, out: &mut self.out };
            g.transfer.settle(&mut site);
            self.turns.note_transfer(handle, g.transfer.has_bulk());
        }
        self.mind_turns(handle);
    }

    /// As [`Self::with_instance`], for what may show that the group cannot go on, which breaks it.
    pub(in crate::endpoint) fn with_instance_or_break(
        &mut self,
        group: GroupHandle,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> Result<(), CollectiveError>,
    ) {
        if let Some(Err(error)) = self.with_instance(group, id, f) {
            self.break_group(group, error, true);
        }
    }

    pub(in crate::endpoint) fn route_call(&mut self, call: Call) {
        let tried = match call.signature.kind.class().moves {
            Moves::Messages(_) => self.try_tagged_call(&call),
            Moves::ToAll | Moves::Blocks(_) | Moves::Combined(_) | Moves::Nothing => self.try_call(&call),
        };
        let Err(error) = tried else { return };
        if let Some(g) = self.groups.get_mut(&call.group) {
            g.failed = true;
        }
        let completion = Completion { call: call.id, group: call.group, instance: call.instance, rank: call.rank };
        self.out.complete(completion, Err(error));
    }

    fn try_call(&mut self, call: &Call) -> Result<(), CollectiveError> {
        let protocol = CollectiveError::Protocol(self.id);
        let g = self.groups.get_mut(&call.group).ok_or(protocol.clone())?;
        let local = g.members.local(call.rank).ok_or(protocol.clone())?;
        let ranks = g.members.ranks();
        if call.instance.0 != g.calls[local].0 + 1 || g.left.contains(&call.rank) || !sound(call, ranks) {
            return Err(protocol);
        }
        g.calls[local] = (call.instance.0, Some(call.signature));
        if let Some(doom) = g.doom(call.instance) {
            return Err(doom);
        }
        if matches!(g.state, State::Creating { .. }) {
            return Err(protocol);
        }
        self.know_instance(call.group, call.instance, call.signature, call.rank, extents_of(call))?;
        self.note_load(call, ranks);
        self.set_deadline(call);
        let owned = call.clone();
        self.with_instance_or_break(call.group, call.instance, |i, cx| i.handle_call(cx, owned));
        self.compare_with_left(call.group, call.instance);
        Ok(())
    }

    /// Makes the instance known, or compares its signature with what is known.
    pub(super) fn know_instance(
        &mut self,
        group: GroupHandle,
        instance: InstanceId,
        signature: Signature,
        rank: Rank,
        sizes: Option<Extents>,
    ) -> Result<(), CollectiveError> {
        let g = self.groups.get_mut(&group).expect("the caller has found it");
        if let Some(c) = g.instances.get(&instance) {
            let (a_rank, a) = c.signature();
            if a == signature {
                return sizes.map_or(Ok(()), |sizes| self.size_instance(group, instance, sizes));
            }
            let error = CollectiveError::Mismatch { a_rank, a, b_rank: rank, b: signature };
            self.break_group(group, error.clone(), true);
            return Err(error);
        }
        let (mut cx, _) = g.parts((&self.config, &mut self.out), instance);
        match Instance::new(&mut cx, instance, signature, rank, sizes) {
            Ok(i) => {
                g.instances.insert(instance, i);
                g.watches.insert(instance, Watch::new(self.out.now, self.config.watchdog));
                let someone_left = !g.lost.is_empty();
                self.begin(group, instance);
                self.out.step(group, instance, Step::Known(signature));
                if someone_left {
                    // Whoever has left may owe us something for it.
                    self.mind_peers(group);
                }
                Ok(())
            }
            Err(what) => {
                self.out.violation(None, what);
                let error = CollectiveError::Protocol(self.id);
                self.break_group(group, error.clone(), true);
                Err(error)
            }
        }
    }

    pub(super) fn handle_ready(
        &mut self,
        handle: GroupHandle,
        instance: InstanceId,
        (from, step): (u32, u8),
        (signature, rank): (Signature, Rank),
    ) -> bool {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        if !g.members.has_rank(rank) || !g.may_open(instance) {
            return false;
        }
        if g.doom(instance).is_some() {
            return true;
        }
        if g.has_ended(instance) {
            self.compare_with_ended(handle, instance, signature, rank);
            return true;
        }
        if self.know_instance(handle, instance, signature, rank, None).is_err() {
            return true;
        }
        let known = self.with_instance(handle, instance, |i, cx| match i {
            Instance::Collective(c) if c.alive() => {
                c.heard_of(cx, cx.out.now);
                c.handle_ready(cx, from, step)
            }
            Instance::Unsized(call) if call.alive() => call.handle_ready(cx.members.sps[from as usize], (from, step)),
            // All choose alike whether there is a barrier.
            Instance::Exchange(exchange) => !exchange.alive(),
            Instance::Collective(_) | Instance::Unsized(_) => true,
        });
        known.unwrap_or(true)
    }

    /// What is said of messages from rank to rank. False when it cannot be said now.
    pub(super) fn handle_transfer(
        &mut self,
        handle: GroupHandle,
        from: SpId,
        message: TransferMessage,
        payload_len: u32,
    ) -> bool {
        match &message {
            &TransferMessage::Offer { origin: Origin::Instance { instance, signature }, rank, .. } => {
                return self.handle_offer(handle, instance, (from, signature, rank), message, payload_len);
            }
            TransferMessage::Expected(fragment) => {
                let Some(g) = self.groups.get(&handle) else { return false };
                if g.has_ended(fragment.instance) || g.doom(fragment.instance).is_some() {
                    return true;
                }
            }
            TransferMessage::Offer { .. }
            | TransferMessage::Cts(_)
            | TransferMessage::Data(_)
            | TransferMessage::Done(_) => {}
        }
        let Some(g) = self.groups.get_mut(&handle).filter(|g| g.broken().is_none()) else { return true };
        // What one call of a collective that has failed still has under way comes to nobody.
        let failed = !g.lost.is_empty();
        let mut site = Site { config: &self.config, members: &g.members, out: &mut self.out };
        match g.transfer.handle(&mut site, from, message, payload_len) {
            Ok(sound) => sound || failed,
            Err(error) => {
                self.break_group(handle, error, true);
                true
            }
        }
    }

    /// A rank has called what has no barrier: its blocks for ranks here, and what may come of theirs.
    fn handle_offer(
        &mut self,
        handle: GroupHandle,
        instance: InstanceId,
        (from, signature, rank): (SpId, Signature, Rank),
        offer: TransferMessage,
        payload_len: u32,
    ) -> bool {
        let g = self.groups.get_mut(&handle).expect("the caller has found it");
        if !g.members.has_rank(rank) || g.members.sp_of(rank) != from || !g.may_open(instance) {
            return false;
        }
        if g.doom(instance).is_some() {
            return true;
        }
        if g.has_ended(instance) {
            self.compare_with_ended(handle, instance, signature, rank);
            if let Some(error) = unmet(&offer) {
                self.break_group(handle, error, true);
            }
            return true;
        }
        if self.know_instance(handle, instance, signature, rank, None).is_err() {
            return true;
        }
        let offered = self.with_instance(handle, instance, |i, cx| match i.exchange() {
            Some(e) if e.alive() => e.handle_offer(cx, from, offer, payload_len),
            Some(_) => Ok(true),
            // All choose alike whether there is anything to offer.
            None => Ok(!i.alive()),
        });
        offered.unwrap_or(Ok(true)).unwrap_or_else(|error| {
            self.break_group(handle, error, true);
            true
        })
    }

    /// Somebody calls an instance that has ended here: well, if it was the same. Only exchanges end without all ranks.
    fn compare_with_ended(&mut self, handle: GroupHandle, instance: InstanceId, b: Signature, b_rank: Rank) {
        let g = self.groups.get(&handle).expect("the caller has found it");
        let ended = g.exchanged.iter().find(|(ended, ..)| *ended == instance);
        if let Some(&(_, a_rank, a)) = ended.filter(|(_, _, a)| *a != b) {
            self.break_group(handle, CollectiveError::Mismatch { a_rank, a, b_rank, b }, true);
        }
    }

    /// Lets a collective handle what only one with a barrier is sent. False when there can be none.
    pub(super) fn with_collective(
        &mut self,
        handle: GroupHandle,
        instance: InstanceId,
        f: impl FnOnce(&mut Collective, &mut Context<'_>) -> bool,
    ) -> bool {
        let Some(g) = self.groups.get(&handle) else { return false };
        if g.instance(instance).is_none_or(|i| !i.alive()) {
            // Behind the barrier all concerned know the instance: what is not known any more has ended.
            return g.has_ended(instance) || g.doom(instance).is_some();
        }
        self.with_instance(handle, instance, |i, cx| i.collective().is_some_and(|c| f(c, cx))).unwrap_or(false)
    }

    /// Whoever has left after its calls ended well is owed nothing and owes nothing: an exchange that still needs something of
    /// it disagrees with it.
    pub(super) fn compare_with_left(&mut self, handle: GroupHandle, instance: InstanceId) {
        let Some(g) = self.groups.get_mut(&handle) else { return };
        if g.instances.get_mut(&instance).and_then(Instance::exchange).is_none_or(|e| !e.alive()) {
            return;
        }
        let mut left = g.lost.iter().filter(|(_, lost)| lost.well && lost.after >= instance).map(|(rank, _)| *rank);
        if let Some(error) = left.find_map(|rank| g.transfer.unanswered(instance, rank)) {
            self.break_group(handle, error, true);
        }
    }

    pub(in crate::endpoint) fn route_fault(&mut self, call: CallId, error: fn(Rank) -> CollectiveError) {
        let found = self.groups.iter().find_map(|(h, g)| {
            let mut alive = g.instances.iter().filter(|(_, c)| c.alive());
            let message = || g.tagged.has_call(call).map(|rank| (*h, TAGGED, rank));
            alive.find_map(|(i, c)| c.has_call(call).map(|rank| (*h, *i, rank))).or_else(message)
        });
        let ending = || self.out.ending(call).map(|ending| (ending.group, ending.instance, ending.rank));
        let Some((handle, instance, rank)) = found.or_else(ending) else { return };
        let error = error(rank);
        self.out.fail_ending(handle, instance, &error);
        if let Some(g) = self.groups.get_mut(&handle) {
            g.failed = true;
        }
        if self.groups.contains_key(&handle) {
            self.break_group(handle, error, true);
        }
    }
}

/// Why an offer to ranks whose calls have ended cannot be met.
fn unmet(offer: &TransferMessage) -> Option<CollectiveError> {
    let TransferMessage::Offer { rank, ready, early, .. } = offer else { return None };
    let sent = |rts: &Rts| CollectiveError::Block {
        source_rank: *rank,
        sent: rts.bytes,
        destination: rts.destination,
        expected: 0,
    };
    let expected = |cts: &EarlyCts| CollectiveError::Block {
        source_rank: cts.source,
        sent: 0,
        destination: *rank,
        expected: cts.bytes,
    };
    ready.first().map(sent).or_else(|| early.first().map(expected))
}

/// The sizes that a call brings along.
fn extents_of(call: &Call) -> Option<Extents> {
    let blocks = call.signature.kind.sizes().and(call.blocks.as_ref())?;
    let scattered = call.signature.kind.reduction().is_some();
    let spans = if scattered { &blocks.send } else { &blocks.receive };
    Extents::uneven(spans.iter().map(|span| span.len))
}

/// Whether the blocks of a call can be; those of calls without blocks of their own are as even as the signature.
fn sound(call: &Call, ranks: u32) -> bool {
    let Class { moves, sizes } = call.signature.kind.class();
    let bytes = call.signature.bytes;
    match (moves, sizes, &call.blocks) {
        // No instance of a group.
        (Moves::Messages(_), ..) => false,
        (_, Sizes::Whole | Sizes::Even, Some(_)) | (_, Sizes::Agreed(_) | Sizes::Paired, None) => false,
        (Moves::Nothing, _, None) => bytes == 0,
        (Moves::Blocks(pairs), _, None) => {
            let has_root = match pairs {
                Pairs::All => true,
                Pairs::To(root) | Pairs::From(root) => root.0 < ranks && (call.rank == root || !call.in_place),
            };
            has_root && bytes.checked_mul(ranks.into()).is_some()
        }
        (Moves::ToAll | Moves::Combined(_), _, None) => true,
        (Moves::Blocks(pairs), _, Some(blocks)) => {
            blocks.check(ranks, call.rank).is_ok()
                && match pairs {
                    Pairs::All => true,
                    Pairs::To(root) => root.0 < ranks && blocks.are_gathered(root, call.rank),
                    Pairs::From(root) => root.0 < ranks && blocks.are_scattered(root, call.rank),
                }
        }
        (Moves::Combined(_), _, Some(blocks)) => agreed(&blocks.send, call, ranks),
        (Moves::ToAll, _, Some(blocks)) => {
            agreed(&blocks.receive, call, ranks)
                && blocks.receive.iter().chain(&blocks.send).all(|span| span.end().is_some())
                && blocks.send.len() == 1
                && blocks.send[0].len == blocks.receive[call.rank.0 as usize].len
        }
        (Moves::Nothing, _, Some(_)) => false,
    }
}

/// Whether the sizes of these, by rank, are those that the signature of `call` names.
fn agreed(spans: &[Span], call: &Call, ranks: u32) -> bool {
    let lengths = || spans.iter().map(|span| span.len);
    spans.len() == ranks as usize
        && Extents::uneven(lengths()).is_some_and(|extents| extents.total() == call.signature.bytes)
        && call.signature.kind.sizes() == Some(sizes_digest(lengths()))
}
