//! The instances of a group: calls and messages find their instance, or create it.
//!
//! A call or message that contradicts a known instance breaks the group. Never moves payload.

use outboard_plan::{Extents, Rank};

use super::losses::UNKNOWN_RANK;
use super::{Group, GroupState};
use crate::effects::CallCompletion;
use crate::endpoint::turns::CallLoad;
use crate::endpoint::{Endpoint, NodeState};
use crate::error::{CollectiveError, Rejection};
use crate::group::lateness::LatenessWatch;
use crate::ids::{CallId, InstanceId, SpId, TAGGED};
use crate::instance::{Context, FirstCall, Instance};
use crate::interface::{BlockSizes, CallClass, CallMovement, ExchangePairs, Milestone, OffloadedCall, RankCall};
use crate::transfer::{StepOf, StepOwner};
use crate::wire::{EarlyCts, OfferOrigin, Rts, TransferMessage};

impl Endpoint {
    pub(in crate::endpoint) fn route_call(&mut self, call: RankCall) {
        let completion = CallCompletion { call: call.id, group: call.group, instance: call.instance, rank: call.rank };
        let tried = match self.groups.get_mut(&call.group) {
            Some(g) => g.handle_call(&mut self.node, call),
            None => Err(CollectiveError::Protocol(self.node.id)),
        };
        if let Err(error) = tried {
            self.node.out.complete(completion, Err(error));
        }
    }

    pub(in crate::endpoint) fn route_offloaded(&mut self, call: OffloadedCall, carried_out: bool) {
        let OffloadedCall { group, instance, call } = call;
        let Some(g) = self.groups.get_mut(&group) else { return };
        // If there is no such instance or list, the call has ended with an error before.
        let Some(local) = g.instance(instance).and_then(|i| i.offloaded(call)) else { return };
        if carried_out {
            g.with_instance(&mut self.node, instance, |i, cx| i.handle_offloaded(cx, local));
        } else {
            let error = CollectiveError::Engine(g.members.locals[local]);
            g.break_up(&mut self.node, error, true);
        }
    }

    pub(in crate::endpoint) fn route_fault(&mut self, call: CallId, error: fn(Rank) -> CollectiveError) {
        let found = self.groups.iter().find_map(|(h, g)| {
            let mut is_active = g.instances.iter().filter(|(_, c)| c.is_active());
            let message = || g.tagged.has_call(call).map(|rank| (*h, TAGGED, rank));
            is_active.find_map(|(i, c)| c.has_call(call).map(|rank| (*h, i, rank))).or_else(message)
        });
        let ending = || self.node.out.ending(call).map(|ending| (ending.group, ending.instance, ending.rank));
        // A call that has been reported as ended has no buffers any more.
        let Some((handle, instance, rank)) = found.or_else(ending) else { return };
        let error = error(rank);
        self.node.out.fail_ending(handle, instance, &error);
        if let Some(g) = self.groups.get_mut(&handle) {
            g.break_up(&mut self.node, error, true);
        }
    }
}

impl Group {
    /// A local rank calls. An error means that the call cannot succeed.
    fn handle_call(&mut self, node: &mut NodeState, call: RankCall) -> Result<(), CollectiveError> {
        match call.signature.kind.class().moves {
            CallMovement::Messages(_) => self.try_tagged_call(node, call),
            CallMovement::ToAll | CallMovement::Blocks(_) | CallMovement::Combined(_) | CallMovement::Nothing => {
                self.try_call(node, call)
            }
        }
    }

    fn try_call(&mut self, node: &mut NodeState, call: RankCall) -> Result<(), CollectiveError> {
        let protocol = CollectiveError::Protocol(node.id);
        let RankCall { instance, signature, rank, .. } = call;
        let local = self.members.local(rank).ok_or(protocol.clone())?;
        let ranks = self.members.ranks();
        let may_call = !matches!(self.state, GroupState::Creating { .. }) && !self.ranks.has_left(rank);
        if !may_call || instance != self.ranks.next_instance(local) || !has_valid_blocks(&call, ranks) {
            return Err(protocol);
        }
        self.ranks.note_call(local, instance, signature);
        if let Some(failure) = self.failure_of(instance) {
            return Err(failure);
        }
        let sizes = call.blocks.as_ref().and_then(|blocks| signature.kind.extents(blocks));
        self.find_or_create_instance(node, node.id, instance, FirstCall { rank, signature }, sizes)?;
        node.note_load(self.members.handle, instance, CallLoad::of(&call, ranks));
        if let (Some(watch), Some(after)) = (self.instances.watch_mut(instance), call.deadline) {
            watch.set_deadline(node.out.now, after);
        }
        // Compare before the call, which may enter the barrier, and after the call, which may need a departed rank.
        self.check_against_departed(node, instance);
        if let Some(failure) = self.failure_of(instance) {
            return Err(failure);
        }
        self.with_instance_or_break(node, instance, |i, cx| i.handle_call(cx, call));
        self.check_against_departed(node, instance);
        Ok(())
    }

    /// Runs `f` on an instance, if it still exists.
    pub(in crate::endpoint) fn with_instance<T>(
        &mut self,
        node: &mut NodeState,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> T,
    ) -> Option<T> {
        let (mut cx, instance) = self.parts(&node.config, &mut node.out, id);
        let done = f(instance?, &mut cx);
        self.run_steps(node);
        Some(done)
    }

    /// Passes ended messages to the programs of their steps, until no further step follows.
    pub(in crate::endpoint) fn run_steps(&mut self, node: &mut NodeState) {
        while let Some((StepOf { owner, op }, result)) = self.transfer.poll_ended() {
            if let StepOwner::Instance { instance, .. } = owner {
                node.out.mark_changed(self.members.handle, instance);
            }
            let (mut cx, instances, tagged) = self.all(&node.config, &mut node.out);
            let carried = match owner {
                StepOwner::Call(call) => tagged.complete(&mut cx, call, op, result),
                StepOwner::Instance { instance, local } => match instances.get_mut(instance) {
                    Some(i) => result.map(|()| i.complete(&mut cx, local, op)),
                    None => Ok(()),
                },
            };
            tagged.advance(&mut cx);
            if let Err(error) = carried {
                self.break_up(node, error, true);
            }
        }
        let (transfer, mut site) = self.transfer(node);
        transfer.progress(&mut site);
        node.turns.note_transfer(self.members.handle, self.transfer.has_bulk());
        self.update_turns(node);
    }

    /// Like [`Self::with_instance`]. An error shows that the group cannot go on, and breaks it.
    pub(in crate::endpoint) fn with_instance_or_break(
        &mut self,
        node: &mut NodeState,
        id: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> Result<(), CollectiveError>,
    ) {
        if let Some(Err(error)) = self.with_instance(node, id, f) {
            self.break_up(node, error, true);
        }
    }

    /// Creates the instance, or compares its signature with the known one. `reporter` is the source of the news.
    pub(super) fn find_or_create_instance(
        &mut self,
        node: &mut NodeState,
        reporter: SpId,
        instance: InstanceId,
        call: FirstCall,
        sizes: Option<Extents>,
    ) -> Result<(), CollectiveError> {
        self.compare_with_known(node, instance, call)?;
        if self.instance(instance).is_some() {
            return sizes.map_or(Ok(()), |sizes| self.size_instance(node, reporter, instance, sizes));
        }
        let (mut cx, _) = self.parts(&node.config, &mut node.out, instance);
        match Instance::new(&mut cx, instance, call, sizes) {
            Ok(i) => {
                let watch = LatenessWatch::new(node.out.now, node.config.watchdog);
                self.instances.insert(instance, i, watch);
                node.begin(self.members.handle, instance);
                node.out.step(self.members.handle, instance, Milestone::Known(call.signature));
                if !self.losses.is_empty() {
                    // A rank that has left may owe us something for the instance.
                    self.rearm_watches(node);
                }
                Ok(())
            }
            Err(why) => Err(self.reject_instance(node, reporter, why)),
        }
    }

    /// `reporter` has sent the sizes of an instance. An error means that the group is broken.
    fn size_instance(
        &mut self,
        node: &mut NodeState,
        reporter: SpId,
        id: InstanceId,
        sizes: Extents,
    ) -> Result<(), CollectiveError> {
        let (mut cx, Some(instance)) = self.parts(&node.config, &mut node.out, id) else { return Ok(()) };
        match instance.set_sizes(&mut cx, sizes) {
            Ok(()) => Ok(()),
            Err(why) => Err(self.reject_instance(node, reporter, why)),
        }
    }

    /// Handles requested sizes.
    pub(super) fn handle_sizes(
        &mut self,
        node: &mut NodeState,
        id: InstanceId,
        from: SpId,
        first: u32,
        sizes: &[u64],
    ) -> Result<(), Rejection> {
        let (cx, instance) = self.parts(&node.config, &mut node.out, id);
        // A local rank may have called in the meantime, and the instance may have ended.
        let Some(instance) = instance else { return Ok(()) };
        let whole = instance.handle_sizes(cx.members.ranks(), from, first, sizes)?;
        // An error needs no handling: all members have been notified of it, and no local rank has called.
        whole.into_iter().for_each(|sizes| _ = self.size_instance(node, from, id, sizes));
        Ok(())
    }

    /// An instance from `reporter` cannot be executed: the group breaks.
    fn reject_instance(&mut self, node: &mut NodeState, reporter: SpId, why: Rejection) -> CollectiveError {
        let error = match why {
            Rejection::Violation(what) => {
                node.out.violation(Some(reporter), what);
                CollectiveError::Protocol(reporter)
            }
            Rejection::Error(error) => error,
        };
        self.break_up(node, error.clone(), true);
        error
    }

    pub(super) fn handle_ready(
        &mut self,
        node: &mut NodeState,
        instance: InstanceId,
        from: u32,
        step: u8,
        call: FirstCall,
    ) -> Result<(), Rejection> {
        Rejection::unless(self.members.has_rank(call.rank), UNKNOWN_RANK)?;
        if self.failure_of(instance).is_some() {
            return Ok(());
        }
        if self.has_ended(instance) {
            // A mismatch has been sent to all members already.
            drop(self.compare_with_known(node, instance, call));
            return Ok(());
        }
        self.check_room(instance)?;
        if self.find_or_create_instance(node, self.members.sps[from as usize], instance, call, None).is_err() {
            return Ok(());
        }
        let handled = self.with_instance(node, instance, |i, cx| i.handle_ready(cx, from, step));
        self.check_against_departed(node, instance);
        handled.unwrap_or(Ok(()))
    }

    /// Handles a message about messages from rank to rank.
    pub(super) fn handle_transfer(
        &mut self,
        node: &mut NodeState,
        from: SpId,
        message: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        match &message {
            &TransferMessage::Offer {
                origin: OfferOrigin::Instance { instance, signature, first_caller },
                rank,
                ..
            } => {
                self.check_served(rank, from)?;
                let call = FirstCall { rank: first_caller, signature };
                return self.handle_offer(node, instance, from, call, message, payload_len);
            }
            TransferMessage::Expected(fragment) => {
                if self.has_ended(fragment.instance) || self.failure_of(fragment.instance).is_some() {
                    return Ok(());
                }
                // No peer passes the barrier before this service process has entered it (MC-4).
                let entered = self.instance(fragment.instance).is_some_and(|i| !i.is_active() || i.has_entered());
                Rejection::unless(entered, "bytes before the ready barrier")?;
            }
            TransferMessage::Offer { .. }
            | TransferMessage::Cts(_)
            | TransferMessage::Data(_)
            | TransferMessage::Done(_) => {}
        }
        if self.broken().is_some() {
            return Ok(());
        }
        let failed = self.losses.failing().is_some();
        let (transfer, mut site) = self.transfer(node);
        match transfer.handle(&mut site, from, message, payload_len) {
            // After a failure, messages of the failed calls may still come and have no receiver.
            Err(Rejection::Violation(_)) if failed => Ok(()),
            handled => handled,
        }
    }

    /// Handles an offer of a collective without a barrier: blocks of `rank` for local ranks, and early CTS for blocks
    /// of local ranks.
    fn handle_offer(
        &mut self,
        node: &mut NodeState,
        instance: InstanceId,
        from: SpId,
        call: FirstCall,
        offer: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        Rejection::unless(self.members.has_rank(call.rank), UNKNOWN_RANK)?;
        if self.failure_of(instance).is_some() {
            return Ok(());
        }
        if self.has_ended(instance) {
            // A mismatch has been sent to all members already.
            drop(self.compare_with_known(node, instance, call));
            return mismatched_offer(&offer).map_or(Ok(()), |error| Err(error.into()));
        }
        self.check_room(instance)?;
        if self.find_or_create_instance(node, from, instance, call, None).is_err() {
            return Ok(());
        }
        let offered = self.with_instance(node, instance, |i, cx| i.handle_offer(cx, from, offer, payload_len));
        offered.unwrap_or(Ok(()))
    }

    /// Checks that one more instance may be open.
    fn check_room(&self, instance: InstanceId) -> Result<(), Rejection> {
        Rejection::unless(
            self.instances.may_open(instance, self.members.ranks()),
            "more open calls than ranks can have",
        )
    }

    /// Compares a call with a known or ended instance. Only exchanges can end without all ranks.
    pub(super) fn compare_with_known(
        &mut self,
        node: &mut NodeState,
        instance: InstanceId,
        FirstCall { rank: b_rank, signature: b }: FirstCall,
    ) -> Result<(), CollectiveError> {
        let known = self.instances.known_call(instance).filter(|known| known.signature != b);
        let Some(FirstCall { rank: a_rank, signature: a }) = known else { return Ok(()) };
        let error = CollectiveError::Mismatch { a_rank, a, b_rank, b };
        self.break_up(node, error.clone(), true);
        Err(error)
    }

    /// Runs `f` on an instance for a message sent behind its barrier.
    pub(super) fn with_known_instance(
        &mut self,
        node: &mut NodeState,
        instance: InstanceId,
        f: impl FnOnce(&mut Instance, &mut Context<'_>) -> Result<(), Rejection>,
    ) -> Result<(), Rejection> {
        match self.instance(instance) {
            Some(i) if i.is_active() => self.with_instance(node, instance, f).unwrap_or(Ok(())),
            // The acknowledgement in the same frame may have ended the instance, which is not removed yet.
            Some(_) => Ok(()),
            // Behind the barrier all concerned know the instance, so an unknown one has ended.
            None => {
                let over = self.has_ended(instance) || self.failure_of(instance).is_some();
                Rejection::unless(over, "a message of a call that is not known here")
            }
        }
    }

    /// A rank that has left owes nothing. If an instance still needs something of such a rank, the calls do not match.
    pub(super) fn check_against_departed(&mut self, node: &mut NodeState, id: InstanceId) {
        let left = self.losses.departed(id);
        if left.is_empty() {
            return;
        }
        let (cx, Some(instance)) = self.parts(&node.config, &mut node.out, id) else { return };
        let found = left.into_iter().find_map(|rank| Some((rank, instance.mismatch_with_departed(&cx, rank)?)));
        if let Some((rank, error)) = found {
            // The rank may have sent what it owes over a link that was lost.
            let error = if self.links.is_renewed(self.members.sp_of(rank)) {
                self.members.loss_of(self.members.of_rank[rank.0 as usize])
            } else {
                error
            };
            self.break_up(node, error, true);
        }
    }
}

/// The error for an offer to ranks whose calls have ended.
fn mismatched_offer(offer: &TransferMessage) -> Option<CollectiveError> {
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

/// Whether the blocks of a call are valid. A call without a list of blocks has the even blocks of its signature.
fn has_valid_blocks(call: &RankCall, ranks: u32) -> bool {
    let CallClass { moves, sizes } = call.signature.kind.class();
    let bytes = call.signature.bytes;
    match (moves, sizes, &call.blocks) {
        // A message is no instance of a group.
        (CallMovement::Messages(_), ..) => false,
        (_, BlockSizes::Whole | BlockSizes::Even, Some(_)) | (_, BlockSizes::Agreed(_) | BlockSizes::Paired, None) => {
            false
        }
        (CallMovement::Nothing, _, None) => bytes == 0,
        (CallMovement::Blocks(pairs), _, None) => {
            let has_root = match pairs {
                ExchangePairs::All => true,
                ExchangePairs::To(root) | ExchangePairs::From(root) => {
                    root.0 < ranks && (call.rank == root || !call.in_place)
                }
            };
            has_root && bytes.checked_mul(ranks.into()).is_some()
        }
        (CallMovement::ToAll | CallMovement::Combined(_), _, None) => true,
        (CallMovement::Blocks(pairs), _, Some(blocks)) => {
            blocks.check(ranks, call.rank).is_ok()
                && match pairs {
                    ExchangePairs::All => true,
                    ExchangePairs::To(root) => root.0 < ranks && blocks.fit_gather(root, call.rank),
                    ExchangePairs::From(root) => root.0 < ranks && blocks.fit_scatter(root, call.rank),
                }
        }
        (CallMovement::Combined(_), _, Some(blocks)) => {
            blocks.send.len() == ranks as usize && call.signature.kind.signature_of(blocks) == Some(call.signature)
        }
        (CallMovement::ToAll, _, Some(blocks)) => {
            blocks.receive.len() == ranks as usize
                && call.signature.kind.signature_of(blocks) == Some(call.signature)
                && blocks.receive.iter().chain(&blocks.send).all(|span| span.end().is_some())
                && blocks.send.len() == 1
                && blocks.send[0].len == blocks.receive[call.rank.0 as usize].len
        }
        (CallMovement::Nothing, _, Some(_)) => false,
    }
}
