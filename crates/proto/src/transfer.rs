//! Messages from rank to rank of one group at one service process, for collectives and tagged calls (GP-1, GP-2).
//!
//! Every send and receive step of a program is passed in here, whatever runs the program. A message travels in one of
//! four ways, all over the links between service processes:
//!
//! | way | when | on the wire |
//! |---|---|---|
//! | expected | behind a ready barrier: the receive is posted, both know the bytes (MC-4) | bytes under its name |
//! | eager | small tagged messages | RTS with the bytes |
//! | rendezvous | all others (SP-5) | RTS, CTS for pieces as credit allows, bytes |
//! | early rendezvous | the receiver knows the bytes: groups called again (GP-5), collectives | early CTS, bytes |
//!
//! A message for a rank that has not called, or not posted the receive, is unexpected. Small tagged messages are staged
//! at once, messages of collectives when the rank gets a stand-in (SP-6); the others wait in the memory of their
//! source. Between local ranks a message is a copy.
//!
//! Invariants: a step ends once, and its memory is not used after that; at most [`MAX_WAITING`] messages wait for their
//! receives. Never sees payload; knows nothing of programs.

use std::collections::{BTreeSet, VecDeque};

use outboard_plan::{OpId, Rank};

use crate::config::Config;
use crate::effects::{Effects, Quota};
use crate::error::{CollectiveError, Rejection};
use crate::group::members::Members;
use crate::ids::{CallId, InstanceId, SpId};
use crate::interface::MemRef;
use crate::multicast::pacing::Quantum;
use crate::wire::{DataPiece, Fragment, MessageNumber, OfferOrigin, Scope, TransferMessage};

mod incoming;
mod matching;
mod offering;
mod outgoing;
mod queues;

use incoming::{IncomingMessages, Unexpected};
pub(crate) use matching::MessageName;
use offering::Offerer;
pub(crate) use outgoing::{Bulk, Target};
use outgoing::{EAGER, OutgoingMessages};

/// Messages that may wait for their receives at one service process. A peer that sends more misbehaves.
const MAX_WAITING: usize = 1 << 20;

/// The violation of bytes without a place.
const UNEXPECTED: &str = "bytes that no receive expects";

/// The owner of the program that a step belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StepOwner {
    /// A local rank's part in a collective; `local` is its position among the local ranks.
    Instance {
        instance: InstanceId,
        local: usize,
    },
    Call(CallId),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StepOf {
    pub(crate) owner: StepOwner,
    pub(crate) op: OpId,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Outbound {
    pub(crate) step: StepOf,
    pub(crate) name: MessageName,
    pub(crate) from: MemRef,
    /// The message has no memory to wait for: its step is done when the message leaves.
    pub(crate) signal: bool,
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct PostedReceive {
    pub(crate) step: StepOf,
    pub(crate) to: MemRef,
}

/// A step that has ended, with its result.
pub(crate) type EndedStep = (StepOf, Result<(), CollectiveError>);

pub(crate) struct Site<'a> {
    pub(crate) config: &'a Config,
    pub(crate) members: &'a Members,
    pub(crate) out: &'a mut Effects,
}

impl Site<'_> {
    fn quantum(&self) -> Quantum {
        Quantum::new(self.config, self.out.contention)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Transfer {
    outgoing: OutgoingMessages,
    incoming: IncomingMessages,
    ended: VecDeque<EndedStep>,
    /// Lost ranks: no tagged message comes from them or goes to them any more.
    lost: BTreeSet<Rank>,
}

impl Transfer {
    pub(crate) fn poll_ended(&mut self) -> Option<EndedStep> {
        self.ended.pop_front()
    }

    fn end(&mut self, step: StepOf, result: Result<(), CollectiveError>) {
        self.ended.push_back((step, result));
    }

    /// Behind a ready barrier: sends a message that its destination expects.
    pub(crate) fn send_expected(&mut self, site: &mut Site<'_>, message: Outbound) {
        let name = message.name;
        if site.members.local(name.destination).is_none() {
            return self.outgoing.push_expected(site.members.sp_of(name.destination), message);
        }
        match self.incoming.take_expected(&name) {
            Some(posting) => self.copy(site, message, posting),
            None => self.incoming.matching.keep_message(name, Unexpected::Local(message)),
        }
    }

    /// Behind a ready barrier: receives a message that its source sends without an RTS.
    pub(crate) fn expect(&mut self, site: &mut Site<'_>, name: MessageName, posting: PostedReceive) {
        match self.incoming.matching.message_for(&name) {
            Some(Unexpected::Local(message)) => self.copy(site, message, posting),
            Some(_) | None => self.incoming.expect(name, posting),
        }
    }

    /// Redirects the message to `to`. Returns how many of its bytes have come to the former place.
    pub(crate) fn move_receive(&mut self, name: &MessageName, to: MemRef) -> u64 {
        self.incoming.move_receive(name, to)
    }

    fn copy(&mut self, site: &mut Site<'_>, message: Outbound, posting: PostedReceive) {
        site.out.copy(message.from, posting.to);
        self.end(message.step, Ok(()));
        self.end(posting.step, Ok(()));
    }

    pub(crate) fn send_tagged(&mut self, site: &mut Site<'_>, message: Outbound) {
        let name = message.name;
        if self.lost.contains(&name.destination) {
            self.end(message.step, Err(CollectiveError::RankLost(name.destination)));
        } else if site.members.local(name.destination).is_some() {
            let staged = match self.incoming.matching.has_receive(&name) {
                true => Unexpected::Local(message),
                false => self.stage_if_eager(site, message),
            };
            self.match_arrival(site, name, staged);
        } else if let Err(error) = self.outgoing.push_tagged(site.members.sp_of(name.destination), message) {
            self.end(message.step, Err(error));
        }
    }

    /// A small message does not block its source, whatever the host of its receiver.
    fn stage_if_eager(&mut self, site: &mut Site<'_>, message: Outbound) -> Unexpected {
        if message.from.len <= EAGER { self.stage_local(site, message) } else { Unexpected::Local(message) }
    }

    /// Copies a message between local ranks to staging, if there is room. The source of a staged message is done.
    fn stage_local(&mut self, site: &mut Site<'_>, message: Outbound) -> Unexpected {
        // Empty messages are staged, too: a kept message whose source is done must count to the quota.
        match site.out.stage(Quota::Late, site.members.handle, message.from.len) {
            None => Unexpected::Local(message),
            Some(staging) => {
                site.out.copy(message.from, staging.whole());
                self.end(message.step, Ok(()));
                Unexpected::Staged(Some(staging))
            }
        }
    }

    pub(crate) fn receive_tagged(&mut self, site: &mut Site<'_>, name: MessageName, posting: PostedReceive) {
        if self.incoming.matching.has_message(&name) {
            self.receive(site, name, posting);
        } else if self.lost.contains(&name.source) {
            self.end(posting.step, Err(CollectiveError::RankLost(name.source)));
        } else {
            self.receive(site, name, posting);
            if site.members.local(name.source).is_none() && name.awaits_early_cts(posting.to.len) {
                self.incoming.queue_early_cts(site.members.sp_of(name.source), name, posting.to.len);
            }
        }
    }

    fn receive(&mut self, site: &mut Site<'_>, name: MessageName, posting: PostedReceive) {
        match self.incoming.matching.message_for(&name) {
            Some(message) => self.match_pair(site, name, message, posting),
            None => self.incoming.matching.keep_receive(name, posting),
        }
    }

    fn match_arrival(&mut self, site: &mut Site<'_>, name: MessageName, message: Unexpected) {
        match self.incoming.matching.receive_for(&name) {
            Some(posting) => self.match_pair(site, name, message, posting),
            None => self.incoming.matching.keep_message(name, message),
        }
    }

    /// The receive with the message's size, or an error. A single receive may expect more bytes than are sent (GP-1).
    fn fit(name: &MessageName, sent: u64, posting: PostedReceive) -> Result<PostedReceive, CollectiveError> {
        let fits = if name.scope == Scope::Single { sent <= posting.to.len } else { sent == posting.to.len };
        let to = MemRef { len: sent, ..posting.to };
        if fits { Ok(PostedReceive { to, ..posting }) } else { Err(name.mismatch(sent, posting.to.len)) }
    }

    fn match_pair(&mut self, site: &mut Site<'_>, name: MessageName, message: Unexpected, posting: PostedReceive) {
        let posting = match Self::fit(&name, message.bytes(), posting) {
            Ok(posting) => posting,
            Err(error) => {
                self.discard(site, &name, message);
                return self.end(posting.step, Err(error));
            }
        };
        match message {
            Unexpected::Local(message) => self.copy(site, message, posting),
            Unexpected::Announced { key, bytes } => self.incoming.queue_request(site, name, key, bytes, Some(posting)),
            Unexpected::Inbound { key, .. } => {
                if let Some(inbound) = self.incoming.inbound.get_mut(&key) {
                    inbound.receive = Some(posting);
                }
            }
            Unexpected::Staged(staging) => {
                if let Some(staging) = staging {
                    site.out.copy(staging.whole(), posting.to);
                    site.out.unstage(staging);
                }
                self.end(posting.step, Ok(()));
            }
        }
    }

    /// The message has no receiver any more: the source is done with the message.
    fn discard(&mut self, site: &mut Site<'_>, name: &MessageName, message: Unexpected) {
        match message {
            Unexpected::Local(message) => self.end(message.step, Ok(())),
            Unexpected::Announced { key, .. } => self.incoming.finish_rts(site, name.scope, key),
            Unexpected::Inbound { key, .. } => {
                let inbound = self.incoming.remove_inbound(key);
                inbound.and_then(|inbound| inbound.staging).into_iter().for_each(|staging| site.out.unstage(staging));
            }
            Unexpected::Staged(staging) => staging.into_iter().for_each(|staging| site.out.unstage(staging)),
        }
    }

    pub(crate) fn set_all_to_all(&mut self, instance: InstanceId) {
        self.incoming.set_all_to_all(instance);
    }

    /// A local rank sends a message of a small call, whose bytes travel with its RTS (MC-9).
    pub(crate) fn send_eager(&mut self, site: &mut Site<'_>, origin: OfferOrigin, message: Outbound) {
        let to = message.name.destination;
        if site.members.local(to).is_some() {
            self.match_arrival(site, message.name, Unexpected::Local(message));
        } else {
            self.outgoing.push_offer(site.members.sp_of(to), origin, message);
        }
    }

    /// A local rank, or its stand-in, receives a message of a small call.
    pub(crate) fn receive_eager(&mut self, site: &mut Site<'_>, name: MessageName, posting: PostedReceive) {
        self.receive(site, name, posting);
        self.grant_credit(site, name.scope);
    }

    /// Whether a message of a collective has come without a posted receive.
    pub(crate) fn has_unexpected(&self, instance: InstanceId) -> bool {
        self.incoming.matching.messages_of(Scope::Instance(instance)).next().is_some()
    }

    /// Grants the credit that is free for a collective.
    fn grant_credit(&mut self, site: &mut Site<'_>, scope: Scope) {
        if let Scope::Instance(instance) = scope {
            self.incoming.grant(site, Some(instance));
        }
    }

    /// Stages messages of a collective that wait for late ranks, within the quota (SP-6). True when some still wait.
    pub(crate) fn stand_in(&mut self, site: &mut Site<'_>, instance: InstanceId) -> bool {
        let scope = Scope::Instance(instance);
        let of_scope = self.incoming.matching.messages_of(scope);
        let waiting: Vec<MessageName> =
            of_scope.filter(|(_, message)| message.waits()).map(|(name, _)| *name).collect();
        for name in waiting {
            let message = match self.incoming.matching.message_for(&name) {
                Some(Unexpected::Local(message)) => self.stage_local(site, message),
                Some(Unexpected::Announced { key, bytes }) => {
                    self.incoming.queue_request(site, name, key, bytes, None);
                    Unexpected::Inbound { key, bytes }
                }
                Some(message) => message,
                None => continue,
            };
            self.incoming.matching.keep_message(name, message);
        }
        self.grant_credit(site, scope);
        self.incoming.matching.messages_of(scope).any(|(_, message)| message.waits())
    }

    /// The place of a fragment's bytes, as [`Self::handle`] orders it.
    pub(crate) fn place_of_fragment(&self, fragment: &Fragment, payload_len: u32) -> Option<MemRef> {
        self.incoming.place_of_fragment(&MessageName::of(fragment), fragment, payload_len.into())
    }

    /// The places of the pieces' bytes; `None` if one has no place, or a message has several pieces.
    pub(crate) fn places_of_data(&self, from: SpId, pieces: &[DataPiece], payload_len: u32) -> Option<Vec<MemRef>> {
        let numbers: BTreeSet<MessageNumber> = pieces.iter().map(|piece| piece.number).collect();
        let all: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        let place = |piece: &DataPiece| self.incoming.place_of_bytes(from, piece);
        let sound = numbers.len() == pieces.len() && all == payload_len.into();
        pieces.iter().map(place).collect::<Option<_>>().filter(|_| sound)
    }

    /// Handles a message of another service process.
    pub(crate) fn handle(
        &mut self,
        site: &mut Site<'_>,
        from: SpId,
        message: TransferMessage,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        let handled = match message {
            TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early } => {
                let offerer = Offerer { from, scope: origin.scope(), rank };
                let ready = self.handle_ready(site, offerer, first_ready, &ready, payload_len);
                ready.and_then(|()| self.handle_early(site, offerer, first_early, &early))
            }
            TransferMessage::Cts(all) => all.into_iter().try_for_each(|cts| self.outgoing.handle_cts(from, cts)),
            TransferMessage::Data(pieces) => self.handle_data(site, from, &pieces, payload_len),
            TransferMessage::Expected(fragment) => self.handle_fragment(site, from, fragment, payload_len),
            TransferMessage::Done(numbers) => numbers.into_iter().try_for_each(|number| {
                let step = self.outgoing.handle_done(from, number).ok_or("the end of a message that was not sent")?;
                self.end(step, Ok(()));
                Ok(())
            }),
        };
        match handled {
            // After the loss of a rank, messages that were under way have no receiver.
            Err(Rejection::Violation(_)) if !self.lost.is_empty() => Ok(()),
            handled => handled,
        }
    }

    fn handle_fragment(
        &mut self,
        site: &mut Site<'_>,
        from: SpId,
        fragment: Fragment,
        payload_len: u32,
    ) -> Result<(), Rejection> {
        let name = MessageName::of(&fragment);
        let is_source = site.members.sp_of_member(fragment.source) == Some(from);
        Rejection::unless(is_source, "bytes of a rank that their sender does not serve")?;
        let handled = self.incoming.handle_fragment(site, &name, fragment, payload_len.into());
        self.ended.extend(handled.iter().flatten().cloned());
        Rejection::unless(handled.is_some(), UNEXPECTED)
    }

    fn handle_data(
        &mut self,
        site: &mut Site<'_>,
        from: SpId,
        pieces: &[DataPiece],
        payload_len: u32,
    ) -> Result<(), Rejection> {
        let carried = pieces.iter().map(|piece| u64::from(piece.bytes)).sum::<u64>();
        Rejection::unless(carried == u64::from(payload_len), "a payload of another length than its pieces")?;
        let (mut at, mut sound) = (0, true);
        for piece in pieces {
            let handled = self.incoming.handle_bytes(site, from, piece, at);
            sound &= handled.is_some();
            self.ended.extend(handled.flatten());
            at += piece.bytes;
        }
        Rejection::unless(sound, UNEXPECTED)
    }

    pub(crate) fn handle_acked(&mut self, number: u64) {
        for message in self.outgoing.acknowledged(number) {
            self.end(message.step, Ok(()));
        }
    }

    pub(crate) fn has_bulk(&self) -> bool {
        self.outgoing.has_bulk()
    }

    /// Peers that there may be bulk for; a peer may come twice.
    pub(crate) fn bulk_targets(&self) -> impl Iterator<Item = Target> + '_ {
        self.outgoing.targets()
    }

    /// The next frame for the service process `to`, if `links` peers have bulk. Called while the link has room.
    pub(crate) fn next_bulk(&mut self, site: &Site<'_>, to: SpId, links: usize) -> Option<Bulk> {
        let (bulk, signal) = self.outgoing.next(site.members.handle, to, links, site.quantum())?;
        signal.into_iter().for_each(|step| self.end(step, Ok(())));
        Some(bulk)
    }

    /// After every input: requests what credit allows, and notifies sources of finished messages.
    pub(crate) fn progress(&mut self, site: &mut Site<'_>) {
        self.incoming.grant(site, None);
        self.incoming.send_done(site);
        self.incoming.send_early_cts(site);
    }

    /// `rank` takes part in no tagged message any more: everything that needs the rank fails.
    pub(crate) fn cancel_rank(&mut self, site: &mut Site<'_>, rank: Rank) {
        self.lost.insert(rank);
        let tagged = |name: &MessageName| !matches!(name.scope, Scope::Instance(_));
        let gone = |name: &MessageName| tagged(name) && (name.source == rank || name.destination == rank);
        let mut overtaken = None;
        let messages = self.incoming.matching.extract_messages(|name, message| {
            // A staged message can still be received, but not in place of an earlier message of its name that is lost.
            let stays = matches!(message, Unexpected::Staged(_)) && overtaken != Some(*name);
            let lost = gone(name) && (name.destination == rank || !stays);
            overtaken = if lost { Some(*name) } else { overtaken };
            lost
        });
        let mut steps = self.forget(site, gone);
        for (_, message) in messages {
            match message {
                Unexpected::Local(message) => steps.push(message.step),
                Unexpected::Announced { .. } | Unexpected::Inbound { .. } => {}
                Unexpected::Staged(staging) => staging.into_iter().for_each(|staging| site.out.unstage(staging)),
            }
        }
        steps.into_iter().for_each(|step| self.end(step, Err(CollectiveError::RankLost(rank))));
    }

    /// Cancels all messages of a collective.
    pub(crate) fn cancel(&mut self, site: &mut Site<'_>, instance: InstanceId) {
        self.cancel_all(site, |name| name.scope == Scope::Instance(instance));
    }

    /// The group is broken: cancels all tagged messages.
    pub(crate) fn cancel_tagged(&mut self, site: &mut Site<'_>) {
        self.cancel_all(site, |name| !matches!(name.scope, Scope::Instance(_)));
    }

    fn cancel_all(&mut self, site: &mut Site<'_>, gone: impl Fn(&MessageName) -> bool) {
        self.forget(site, &gone);
        for (_, message) in self.incoming.matching.extract_messages(|name, _| gone(name)) {
            if let Unexpected::Staged(Some(staging)) = message {
                site.out.unstage(staging);
            }
        }
    }

    /// Removes everything but unexpected messages. Returns the steps of the removed sends and receives.
    fn forget(&mut self, site: &mut Site<'_>, gone: impl Fn(&MessageName) -> bool) -> Vec<StepOf> {
        let received = self.incoming.matching.extract_receives(|name, _| gone(name));
        let mut steps: Vec<StepOf> = received.into_iter().map(|(_, posting)| posting.step).collect();
        self.incoming.forget_expected(&gone);
        let inbound = self.incoming.inbound.iter().filter(|(_, inbound)| gone(&inbound.name));
        for key in inbound.map(|(key, _)| *key).collect::<Vec<_>>() {
            let Some(inbound) = self.incoming.remove_inbound(key) else { continue };
            steps.extend(inbound.receive.map(|receive| receive.step));
            inbound.staging.into_iter().for_each(|staging| site.out.unstage(staging));
        }
        steps.extend(self.outgoing.extract(gone).into_iter().map(|message| message.step));
        steps
    }

    /// A collective has ended. Frees its staged messages, which have no receive.
    pub(crate) fn forget_instance(&mut self, site: &mut Site<'_>, instance: InstanceId) {
        self.incoming.end(instance).for_each(|staging| site.out.unstage(staging));
    }

    /// Whether `destination` has posted the receive of this message, and its source has not announced it.
    pub(crate) fn waits_for(&self, name: &MessageName) -> bool {
        self.incoming.matching.has_receive(name) || self.incoming.is_cleared_early(name)
    }

    /// The error for a message of a collective that `rank` does not send or receive, though the message's other end
    /// expects it. The answer is valid after `rank` has passed on all its sends and receives.
    pub(crate) fn unmatched(&self, instance: InstanceId, rank: Rank) -> Option<CollectiveError> {
        let scope = Scope::Instance(instance);
        let block =
            |(destination, expected)| CollectiveError::Block { source_rank: rank, sent: 0, destination, expected };
        let unsent = self.outgoing.cleared_of(scope, rank).map(block);
        unsent.or_else(|| self.incoming.unreceived(scope, rank))
    }

    /// Sources of the messages that receives wait for, in scopes that satisfy `of`.
    pub(crate) fn sources(&self, of: impl Fn(Scope) -> bool) -> impl Iterator<Item = Rank> {
        self.incoming.awaited().filter(move |name| of(name.scope)).map(|name| name.source)
    }

    /// Destinations of the messages that are not done, in scopes that satisfy `of`.
    pub(crate) fn destinations(&self, of: impl Fn(Scope) -> bool) -> impl Iterator<Item = Rank> {
        self.outgoing.names().filter(move |name| of(name.scope)).map(|name| name.destination)
    }
}
