//! The instances of a group: calls and messages find theirs, or bring it about.
//!
//! What disagrees with what is known of an instance breaks the group. Never moves payload.

use outboard_plan::{Extents, Rank, Span};

use super::{Group, State};
use crate::collective::Context;
use crate::config::Config;
use crate::error::CollectiveError;
use crate::ids::{CallId, GroupHandle, InstanceId, SpId};
use crate::instance::Instance;
use crate::interface::{Call, Class, Moves, Pairs, Signature, Sizes, Step, sizes_digest};
use crate::messaging::MESSAGING;
use crate::outbox::{Completion, Outbox};
use crate::overdue::Watch;
use crate::service_process::ServiceProcess;
use crate::wire::{Message, Terms};

impl Group {
    /// A message for an instance. False when it cannot come now.
    pub(super) fn route_to_instance(
        &mut self,
        parts: (&Config, &mut Outbox),
        instance: InstanceId,
        from: SpId,
        message: &Message,
        payload_len: u32,
    ) -> bool {
        let ended = self.has_ended(instance) || self.doom(instance).is_some();
        let (mut cx, found) = self.parts(parts, instance);
        let Some(found) = found.filter(|i| i.alive()) else {
            // Behind the barrier, and behind an announcement, all concerned know the instance: what is not known any more
            // has ended.
            return ended;
        };
        if let Message::Data { source, destination, index, total, offset, .. } = message {
            return cx.members.has_rank(*source)
                && cx.members.sp_of(*source) == from
                && found.handle_data(&mut cx, (*source, *destination, *index), (*total, *offset), payload_len);
        }
        if let Message::Pull { blocks, .. } = message {
            return found.exchange().is_some_and(|e| e.handle_pull(&mut cx, from, blocks));
        }
        let Some(c) = found.collective() else { return false };
        match message {
            Message::Want { source, ranges, .. } => c.handle_want(&mut cx, from, *source, ranges),
            Message::Miss { source, ranges, .. } => c.handle_miss(&mut cx, *source, ranges),
            Message::Repair { source, ranges, .. } => {
                cx.members.left() == from && c.handle_repair(&mut cx, *source, ranges, payload_len)
            }
            Message::Have { sources, .. } => c.handle_have(&mut cx, from, sources),
            Message::Complete { .. } => c.handle_complete(&mut cx, from),
            Message::AskSizes { .. } => {
                c.tell_sizes(&mut cx, from);
                true
            }
            Message::Void
            | Message::Create { .. }
            | Message::Ready { .. }
            | Message::Data { .. }
            | Message::Announce { .. }
            | Message::Pull { .. }
            | Message::Sizes { .. }
            | Message::Lost { .. }
            | Message::Inquire { .. }
            | Message::Absent { .. }
            | Message::Tagged { .. }
            | Message::Abort { .. } => unreachable!("routed by the caller"),
        }
    }
}

impl ServiceProcess {
    /// Lets an instance handle something, if it is there still.
    pub(in crate::service_process) fn with_instance<T>(
        &mut self,
        group: GroupHandle,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let (mut cx, instance) = self.groups.get_mut(&group)?.parts((&self.config, &mut self.out), id);
        Some(f(instance?, &mut cx))
    }

    /// As [`Self::with_instance`], for what may show that the group cannot go on, which breaks it.
    pub(in crate::service_process) fn with_instance_or_break(
        &mut self,
        group: GroupHandle,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> Result<(), CollectiveError>,
    ) {
        if let Some(Err(error)) = self.with_instance(group, id, f) {
            self.break_group(group, error, true);
        }
    }

    pub(in crate::service_process) fn route_call(&mut self, call: Call) {
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
        let mut cx = Context { config: &self.config, members: &mut g.members, out: &mut self.out };
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

    pub(super) fn handle_announce(
        &mut self,
        handle: GroupHandle,
        instance: InstanceId,
        (from, signature): (SpId, Signature),
        rank: Rank,
        terms: &[Terms],
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
            let terms = terms.first().expect("decoding refuses none");
            self.break_group(handle, terms.unmet(rank), true);
            return true;
        }
        if self.know_instance(handle, instance, signature, rank, None).is_err() {
            return true;
        }
        let announced = self.with_instance(handle, instance, |i, cx| match i.exchange() {
            Some(e) if e.alive() => e.handle_announce(cx, rank, terms),
            Some(_) => Ok(true),
            // All choose alike whether there is anything to announce.
            None => Ok(!i.alive()),
        });
        announced.unwrap_or(Ok(true)).unwrap_or_else(|error| {
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

    /// Whoever has left after its calls ended well is owed nothing and owes nothing: an exchange that still needs something of
    /// it disagrees with it.
    pub(super) fn compare_with_left(&mut self, handle: GroupHandle, instance: InstanceId) {
        let Some(g) = self.groups.get_mut(&handle) else { return };
        let Some(exchange) = g.instances.get_mut(&instance).and_then(Instance::exchange).filter(|e| e.alive()) else {
            return;
        };
        let mut left = g.lost.iter().filter(|(_, lost)| lost.well && lost.after >= instance).map(|(rank, _)| *rank);
        if let Err(error) = left.try_for_each(|rank| exchange.without(rank)) {
            self.break_group(handle, error, true);
        }
    }

    pub(in crate::service_process) fn route_fault(&mut self, call: CallId, error: fn(Rank) -> CollectiveError) {
        let found = self.groups.iter().find_map(|(h, g)| {
            let mut alive = g.instances.iter().filter(|(_, c)| c.alive());
            let message = || g.messaging.has_call(call).map(|rank| (*h, MESSAGING, rank));
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
