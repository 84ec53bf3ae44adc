//! Messages for local ranks on their way in.
//!
//! | a message is | event | next |
//! |---|---|---|
//! | - | its receive is posted behind a ready barrier | expected |
//! | - | its receive is posted, its bytes are known, there is room | cleared early |
//! | - | its RTS, with or without its bytes | unexpected: announced, or staged with its bytes |
//! | cleared early | its RTS, or its first bytes | coming |
//! | unexpected, announced | its receive, or its rank gets a stand-in | wanted |
//! | wanted | there is credit, and memory if it has no receive | coming |
//! | coming | there is credit, and more bytes to request | coming |
//! | coming, expected | its last bytes | received; staged when it has no receive |
//! | unexpected, staged | its receive | received |
//!
//! Credit counts requested bytes that have not come (SP-5). Large messages are requested piece by piece, first from the
//! sources with the fewest requested bytes. If messages were requested whole when announced, all receivers would use
//! some sources first and others only at the end. No message of a collective has more than a part of the credit.
//! Otherwise the first announced message would take all credit, and messages of a slightly late rank would come last
//! and alone. In an all-to-all of two ranks only one message can come, so that message may have all credit. Credit is
//! granted when it suffices for several pieces, so that one CTS requests several pieces.
//!
//! Invariants: every byte is requested once. Each collective, and all tagged messages together, have at most
//! [`Config::pull_bytes`](crate::Config) or one piece under way; an all-to-all may have 3/4 more. Bytes cleared early
//! do not count. Never sees payload.

use std::collections::{BTreeMap, BTreeSet};

use outboard_plan::Rank;

use super::matching::{Matching, MessageName};
use super::outgoing::advance_number;
use super::queues::Queues;
use super::{EndedStep, Outbound, PostedReceive, Site};
use crate::effects::{Quota, Staging};
use crate::error::CollectiveError;
use crate::ids::{InstanceId, SpId};
use crate::interface::{MemRef, MemRegion, Order};
use crate::multicast::pacing::{Pull, Quantum};
use crate::wire::{
    Cts, DataPiece, EarlyCts, Few, Fragment, MAX_CTS, MAX_DONE, Message, MessageNumber, OfferOrigin, Scope,
    TransferMessage,
};

/// Recorded groups clear this many times the usual outstanding bytes early. Not all of these bytes can come at the same
/// time, as sources have other destinations, too.
const CLEARED_EARLY: u64 = 8;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct InboundKey {
    pub(super) from: SpId,
    pub(super) number: MessageNumber,
}

#[derive(Debug)]
pub(super) enum Unexpected {
    /// A message of another local rank, in that rank's memory.
    Local(Outbound),
    /// The message's bytes are at the source.
    Announced { key: InboundKey, bytes: u64 },
    /// Wanted or coming, into staging.
    Inbound { key: InboundKey, bytes: u64 },
    /// The message's bytes are here; `None` for a message without bytes.
    Staged(Option<Staging>),
}

impl Unexpected {
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Unexpected::Local(message) => message.from.len,
            Unexpected::Announced { bytes, .. } | Unexpected::Inbound { bytes, .. } => *bytes,
            Unexpected::Staged(staging) => staging.as_ref().map_or(0, |staging| staging.bytes),
        }
    }

    /// The message is not here, and no bytes of it are on their way.
    pub(super) fn waits(&self) -> bool {
        matches!(self, Unexpected::Local(_) | Unexpected::Announced { .. })
    }
}

/// A message that is cleared early, wanted or coming.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) name: MessageName,
    bytes: u64,
    granted: u64,
    got: u64,
    /// The source has announced the message: the granted bytes count against the credit of a collective.
    announced: bool,
    pub(super) receive: Option<PostedReceive>,
    /// The destination of a message that had no receive when it was granted.
    pub(super) staging: Option<Staging>,
}

impl Inbound {
    /// The place of the message's next bytes. `None` when such bytes cannot come.
    fn place(&self, offset: u64, len: u64) -> Option<MemRef> {
        if offset != self.got || len > self.granted - self.got {
            return None;
        }
        let to = match (&self.staging, self.receive) {
            (Some(staging), _) => staging.whole(),
            (None, Some(receive)) => receive.to,
            (None, None) => return None,
        };
        Some(MemRef { offset: to.offset + offset, len, ..to })
    }
}

/// The outstanding bytes of one collective, or of all tagged messages of the group.
#[derive(Debug, Default)]
struct Credit {
    under_way: u64,
    /// Messages that may get more, by granted bytes and order; without messages that have their full share under way.
    queue: BTreeSet<(u64, u64, InboundKey)>,
    /// Messages cleared early, wanted or coming.
    messages: usize,
    /// All ranks send to all.
    all_to_all: bool,
}

/// The credit that a message uses: a collective's, or `None` for tagged messages.
type Account = Option<InstanceId>;

fn account(name: &MessageName) -> Account {
    match name.scope {
        Scope::Instance(instance) => Some(instance),
        Scope::Single | Scope::Recorded { .. } => None,
    }
}

/// The order of requests to sources, nearest first: so no two ranks begin with the same source.
pub(super) fn distance(ranks: u32, name: &MessageName) -> u64 {
    u64::from((name.destination.0 + ranks - name.source.0) % ranks)
}

/// Whether bytes of a message come behind a gap: `got` bytes of the message are here, and bytes up to `end` may come.
/// Links lose nothing, so the source has given up the message with all bytes under way, and will report that.
fn is_behind_a_gap(got: u64, offset: u64, len: u64, end: u64) -> bool {
    offset > got && offset.checked_add(len).is_some_and(|until| until <= end)
}

impl Credit {
    /// Most bytes that may be under way.
    fn most(&self, quantum: Quantum) -> u64 {
        quantum.under_way(self.all_to_all)
    }

    /// Whether `more` bytes may be under way in addition.
    fn has_room(&self, quantum: Quantum, more: u64) -> bool {
        self.under_way == 0 || self.under_way.saturating_add(more) <= self.most(quantum)
    }

    /// The requests for a message of `bytes` in a group of `ranks`. Tagged messages are requested whole, since their
    /// receiver waits for all of the message.
    fn pull(&self, account: Account, quantum: Quantum, ranks: u32, bytes: u64) -> Pull {
        let the_only = self.all_to_all && ranks == 2;
        match account {
            Some(_) => quantum.pull_of(self.most(quantum), self.messages, the_only, bytes),
            None => Pull::WHOLE,
        }
    }
}

#[derive(Debug)]
struct ExpectedMessage {
    posting: PostedReceive,
    got: u64,
}

/// Receives that are cleared together: service process, receiving rank, recording, call.
type EarlyCtsKey = (SpId, Rank, u32, u64);

#[derive(Debug, Default)]
pub(super) struct IncomingMessages {
    pub(super) matching: Matching<Unexpected, PostedReceive>,
    expected: BTreeMap<MessageName, ExpectedMessage>,
    pub(super) inbound: BTreeMap<InboundKey, Inbound>,
    credits: BTreeMap<Account, Credit>,
    /// Messages cleared early without any news of them.
    early: BTreeMap<MessageName, InboundKey>,
    /// Bytes of messages of recorded groups that were cleared early and are not complete.
    early_bytes: u64,
    /// Receives of recorded groups that wait to be cleared early.
    queued_early_cts: BTreeMap<EarlyCtsKey, Vec<(EarlyCts, MessageName)>>,
    last_early: u64,
    /// Order among tagged messages that are wanted.
    wanted: u64,
    /// Finished RTS whose sources must be notified.
    done: Queues<SpId, u64>,
    /// Finished RTS of collectives that the window has not reached.
    done_beyond_window: BTreeMap<InstanceId, Vec<(SpId, u64)>>,
    /// The last RTS number of each service process.
    last: BTreeMap<SpId, u64>,
}

impl IncomingMessages {
    /// Checks that `from` numbers `count` RTS from `first` on. False when `from` has used these numbers before.
    pub(super) fn accept_numbers(&mut self, from: SpId, first: u64, count: usize) -> bool {
        advance_number(self.last.entry(from).or_insert(0), first, count)
    }

    pub(super) fn expect(&mut self, name: MessageName, posting: PostedReceive) {
        self.expected.insert(name, ExpectedMessage { posting, got: 0 });
    }

    /// Removes and returns the receive of this name behind a ready barrier.
    pub(super) fn take_expected(&mut self, name: &MessageName) -> Option<PostedReceive> {
        self.expected.remove(name).map(|expected| expected.posting)
    }

    /// Redirects the message to `to`. Returns how many of its bytes have come to the former place.
    pub(super) fn move_receive(&mut self, name: &MessageName, to: MemRef) -> u64 {
        if let Some(expected) = self.expected.get_mut(name) {
            expected.posting.to = to;
            return expected.got;
        }
        if let Some(waiting) = self.matching.waiting_receive(name) {
            waiting.to = to;
            return 0;
        }
        let inbound = self.inbound.values_mut().find(|inbound| inbound.name == *name);
        let Some(Inbound { receive: Some(receive), staging, got, .. }) = inbound else { return 0 };
        receive.to = to;
        // A staged message is copied to its receive when it is complete.
        if staging.is_none() { *got } else { 0 }
    }

    /// The place of a fragment's bytes. `None` when such a fragment cannot come now.
    pub(super) fn place_of_fragment(&self, name: &MessageName, fragment: &Fragment, len: u64) -> Option<MemRef> {
        let &Fragment { total, offset, .. } = fragment;
        let ExpectedMessage { posting: PostedReceive { to, .. }, got } = self.expected.get(name)?;
        let sound = total == to.len && offset == *got && len <= total - offset;
        sound.then(|| MemRef { offset: to.offset + offset, len, ..*to })
    }

    /// A fragment of an expected message, dropped behind a gap. `None` when such a fragment cannot come now.
    pub(super) fn handle_fragment(
        &mut self,
        site: &mut Site<'_>,
        name: &MessageName,
        fragment: Fragment,
        len: u64,
    ) -> Option<Option<EndedStep>> {
        let to = self.place_of_fragment(name, &fragment, len);
        let expected = self.expected.get_mut(name)?;
        let Some(to) = to else {
            let Fragment { total, offset, .. } = fragment;
            return (total == expected.posting.to.len && is_behind_a_gap(expected.got, offset, len, total))
                .then_some(None);
        };
        if len > 0 {
            site.out.orders.push_back(Order::Deliver { payload: 0, offset: 0, to });
        }
        expected.got += len;
        let (step, whole) = (expected.posting.step, expected.got == fragment.total);
        if whole {
            self.expected.remove(name);
        }
        Some(whole.then_some((step, Ok(()))))
    }

    /// Notes a receive of a recording whose message must be cleared early.
    pub(super) fn queue_early_cts(&mut self, from: SpId, name: MessageName, bytes: u64) {
        if let MessageName { scope: Scope::Recorded { recording, call }, destination, source, tag, occurrence } = name {
            let cts = EarlyCts { source, tag, occurrence, bytes, up_to: 0 };
            self.queued_early_cts.entry((from, destination, recording, call)).or_default().push((cts, name));
        }
    }

    /// Clears noted messages of recordings early, as far as there is room.
    pub(super) fn send_early_cts(&mut self, site: &mut Site<'_>) {
        let most = site.quantum().pulled.saturating_mul(CLEARED_EARLY);
        while let Some(((from, rank, recording, call), wanted)) = self.queued_early_cts.pop_first() {
            let origin = OfferOrigin::Recorded { recording, call };
            let mut wanted = wanted.into_iter().peekable();
            while wanted.peek().is_some() {
                let (first_early, mut early) = (self.last_early + 1, Vec::new());
                while let Some((mut cts, name)) = wanted.next_if(|_| origin.fits(0, early.len() + 1)) {
                    if self.early_bytes.saturating_add(cts.bytes) <= most
                        && let Some(receive) = self.matching.receive_for(&name)
                    {
                        cts.up_to = cts.bytes;
                        self.early_bytes += cts.bytes;
                        self.clear(from, name, receive, cts.up_to);
                    } else {
                        self.last_early += 1;
                    }
                    early.push(cts);
                }
                let offer =
                    TransferMessage::Offer { origin, rank, first_ready: 0, ready: Few::new(), first_early, early };
                site.out.messages.push_back((from, Message::transfer(site.members.handle, offer)));
            }
        }
    }

    /// Clears the message of this receive up to byte `up_to`, before its RTS. Returns the number of the early CTS.
    pub(super) fn clear(&mut self, from: SpId, name: MessageName, receive: PostedReceive, up_to: u64) -> u64 {
        self.last_early += 1;
        let key = InboundKey { from, number: MessageNumber::Early(self.last_early) };
        let bytes = receive.to.len;
        let inbound =
            Inbound { name, bytes, granted: up_to, got: 0, announced: false, receive: Some(receive), staging: None };
        self.inbound.insert(key, inbound);
        self.credits.entry(account(&name)).or_default().messages += 1;
        self.early.insert(name, key);
        self.last_early
    }

    /// Whether a message was cleared early and has not been announced.
    pub(super) fn is_cleared_early(&self, name: &MessageName) -> bool {
        self.early.contains_key(name)
    }

    /// The first news of a message that was cleared early. Returns its receive.
    pub(super) fn note_announced(&mut self, site: &Site<'_>, name: &MessageName) -> Option<PostedReceive> {
        let key = self.early.remove(name)?;
        let inbound = self.inbound.get_mut(&key)?;
        inbound.announced = true;
        if account(name).is_some() {
            let credit = self.credits.entry(account(name)).or_default();
            credit.under_way += inbound.granted - inbound.got;
            if inbound.granted < inbound.bytes {
                credit.queue.insert((inbound.granted, distance(site.members.ranks(), name), key));
            }
        }
        inbound.receive
    }

    /// Queues the request of an announced message, for its receive, or for the stand-in of its rank.
    pub(super) fn queue_request(
        &mut self,
        site: &Site<'_>,
        name: MessageName,
        key: InboundKey,
        bytes: u64,
        receive: Option<PostedReceive>,
    ) {
        let order = if account(&name).is_some() { distance(site.members.ranks(), &name) } else { self.wanted };
        self.wanted += 1;
        let inbound = Inbound { name, bytes, granted: 0, got: 0, announced: true, receive, staging: None };
        self.inbound.insert(key, inbound);
        let credit = self.credits.entry(account(&name)).or_default();
        credit.messages += 1;
        credit.queue.insert((0, order, key));
    }

    pub(super) fn set_all_to_all(&mut self, instance: InstanceId) {
        self.credits.entry(Some(instance)).or_default().all_to_all = true;
    }

    /// Grants as many bytes as there is credit for.
    pub(super) fn grant(&mut self, site: &mut Site<'_>, account: Account) {
        let Some(credit) = self.credits.get_mut(&account) else { return };
        let quantum = site.quantum();
        let mut granted_now: BTreeMap<SpId, BTreeMap<MessageNumber, u64>> = BTreeMap::new();
        while let Some(&(granted, order, key)) = credit.queue.first() {
            let Some(inbound) = self.inbound.get_mut(&key) else { unreachable!("forgotten together") };
            let pull = credit.pull(account, quantum, site.members.ranks(), inbound.bytes);
            let piece = (inbound.bytes - granted).min(pull.at_once);
            if granted > inbound.got && granted + piece - inbound.got > pull.under_way {
                // The message returns to the queue when some of its bytes have come.
                credit.queue.remove(&(granted, order, key));
                continue;
            }
            let least = if granted_now.is_empty() { pull.room.max(piece) } else { piece };
            if !credit.has_room(quantum, least) {
                break;
            }
            credit.queue.remove(&(granted, order, key));
            if granted == 0 && inbound.receive.is_none() {
                let Some(staging) = site.out.stage(Quota::Late, site.members.handle, inbound.bytes) else {
                    // The message stays announced: its rank may still call, or staging may be freed.
                    let (name, bytes) = (inbound.name, inbound.bytes);
                    self.inbound.remove(&key);
                    credit.messages -= 1;
                    self.matching.replace_message(&name, Unexpected::Announced { key, bytes });
                    continue;
                };
                inbound.staging = Some(staging);
            }
            inbound.granted += piece;
            credit.under_way += piece;
            if inbound.granted < inbound.bytes {
                credit.queue.insert((inbound.granted, order, key));
            }
            granted_now.entry(key.from).or_default().insert(key.number, inbound.granted);
        }
        for (to, grants) in granted_now {
            let grants: Vec<Cts> = grants.into_iter().map(|(number, up_to)| Cts { number, up_to }).collect();
            for grants in grants.chunks(MAX_CTS) {
                let cts = TransferMessage::Cts(grants.to_vec());
                site.out.messages.push_back((to, Message::transfer(site.members.handle, cts)));
            }
        }
    }

    /// The place of a message's bytes. `None` when such bytes cannot come.
    pub(super) fn place_of_bytes(&self, from: SpId, piece: &DataPiece) -> Option<MemRef> {
        self.inbound.get(&InboundKey { from, number: piece.number })?.place(piece.offset, piece.bytes.into())
    }

    /// Handles bytes of a message, which lie at `at` of the payload. Bytes behind a gap are dropped. Returns the step
    /// if it has ended; outer `None` if the bytes are invalid.
    pub(super) fn handle_bytes(
        &mut self,
        site: &mut Site<'_>,
        from: SpId,
        piece: &DataPiece,
        at: u32,
    ) -> Option<Option<EndedStep>> {
        let (key, offset, len) = (InboundKey { from, number: piece.number }, piece.offset, piece.bytes.into());
        let name = self.inbound.get(&key)?.name;
        self.note_announced(site, &name);
        let account = account(&name);
        let inbound = self.inbound.get_mut(&key)?;
        let Some(to) = inbound.place(offset, len) else {
            return is_behind_a_gap(inbound.got, offset, len, inbound.granted).then_some(None);
        };
        site.out.orders.push_back(Order::Deliver { payload: 0, offset: at, to });
        inbound.got += len;
        let credit = self.credits.entry(account).or_default();
        if account.is_some() || matches!(key.number, MessageNumber::Rts(_)) {
            credit.under_way -= len;
        }
        let (whole, has_more) = (inbound.got == inbound.bytes, inbound.granted < inbound.bytes);
        if has_more {
            let pull = credit.pull(account, site.quantum(), site.members.ranks(), inbound.bytes);
            if inbound.granted - inbound.got <= pull.again {
                credit.queue.insert((inbound.granted, distance(site.members.ranks(), &name), key));
            }
        }
        let ended = if whole { self.complete_inbound(site, key) } else { None };
        if whole || self.credits.get(&account).is_some_and(|credit| !credit.queue.is_empty()) {
            self.grant(site, account);
        }
        Some(ended)
    }

    fn complete_inbound(&mut self, site: &mut Site<'_>, key: InboundKey) -> Option<EndedStep> {
        let inbound = self.remove_inbound(key)?;
        match (inbound.staging, inbound.receive) {
            (None, receive) => receive.map(|receive| (receive.step, Ok(()))),
            (Some(staging), Some(receive)) => {
                site.out.copy(staging.whole(), receive.to);
                site.out.unstage(staging);
                Some((receive.step, Ok(())))
            }
            (Some(staging), None) => {
                self.matching.replace_message(&inbound.name, Unexpected::Staged(Some(staging)));
                None
            }
        }
    }

    pub(super) fn remove_inbound(&mut self, key: InboundKey) -> Option<Inbound> {
        let inbound = self.inbound.remove(&key)?;
        self.early.remove(&inbound.name);
        let account = account(&inbound.name);
        let credit = self.credits.entry(account).or_default();
        credit.messages -= 1;
        if inbound.granted < inbound.bytes {
            credit.queue.retain(|(_, _, queued)| *queued != key);
        }
        match (account, key.number) {
            (None, MessageNumber::Early(_)) => self.early_bytes -= inbound.bytes,
            (_, _) if inbound.announced => credit.under_way -= inbound.granted - inbound.got,
            (_, _) => {}
        }
        Some(inbound)
    }

    /// The RTS of this number is settled. The source is notified only when the window has reached the collective. So
    /// the window bounds how far the source gets ahead of local ranks that have not called.
    pub(super) fn finish_rts(&mut self, site: &Site<'_>, scope: Scope, key: InboundKey) {
        match (key.number, scope) {
            (MessageNumber::Rts(number), Scope::Instance(instance)) if instance.0 > site.members.window_end => {
                self.done_beyond_window.entry(instance).or_default().push((key.from, number));
            }
            (MessageNumber::Rts(number), _) => self.done.push(key.from, number),
            (MessageNumber::Early(_), _) => {}
        }
    }

    /// Notifies the sources of finished RTS.
    pub(super) fn send_done(&mut self, site: &mut Site<'_>) {
        while let Some(reached) =
            self.done_beyond_window.first_entry().filter(|first| first.key().0 <= site.members.window_end)
        {
            reached.remove().into_iter().for_each(|(from, number)| self.done.push(from, number));
        }
        while let Some(to) = self.done.first_key() {
            let numbers = std::iter::from_fn(|| self.done.pop(&to)).take(MAX_DONE).collect();
            site.out.messages.push_back((to, Message::transfer(site.members.handle, TransferMessage::Done(numbers))));
        }
    }

    /// Receives of a collective whose messages no source has announced, and their bytes.
    pub(super) fn unannounced(&self, scope: Scope) -> impl Iterator<Item = (&MessageName, u64)> {
        let early = self.early.range(MessageName::all_of(scope)).map(|(name, key)| (name, self.inbound[key].bytes));
        early.chain(self.matching.receives_of(scope).map(|(name, receive)| (name, receive.to.len)))
    }

    /// The error for a message of a scope for which `rank` has no receive.
    pub(super) fn unreceived(&self, scope: Scope, rank: Rank) -> Option<CollectiveError> {
        let (name, message) = self.matching.messages_of(scope).find(|(name, _)| name.destination == rank)?;
        Some(name.mismatch(message.bytes(), 0))
    }

    /// Names of the messages that receives wait for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = &MessageName> {
        let inbound = self.inbound.values().filter(|inbound| inbound.receive.is_some()).map(|inbound| &inbound.name);
        self.matching.receives().map(|(name, _)| name).chain(inbound).chain(self.expected.keys())
    }

    /// Removes a collective without messages on their way. Returns the staging of messages without a receive.
    pub(super) fn end(&mut self, instance: InstanceId) -> impl Iterator<Item = Staging> + use<> {
        let staged = |name: &MessageName, message: &Unexpected| {
            name.scope == Scope::Instance(instance) && matches!(message, Unexpected::Staged(_))
        };
        self.done_beyond_window.remove(&instance);
        let left = self.matching.extract_messages(staged);
        if let Some(credit) = self.credits.remove(&Some(instance)) {
            assert!(credit.messages == 0 && credit.under_way == 0, "a message comes for a rank that waits for it");
        }
        left.into_iter()
            .filter_map(|(_, message)| if let Unexpected::Staged(staging) = message { staging } else { None })
    }

    /// Removes receives behind a ready barrier, and receives cleared early, if their messages will not come.
    pub(super) fn forget_expected(&mut self, gone: impl Fn(&MessageName) -> bool) {
        self.expected.retain(|name, _| !gone(name));
        self.queued_early_cts.retain(|_, wanted| {
            wanted.retain(|(_, name)| !gone(name));
            !wanted.is_empty()
        });
    }
}

/// Memory for a message without a receive; `None` where there is no room, `Some(None)` for an empty message.
pub(super) fn stage(site: &mut Site<'_>, bytes: u64) -> Option<Option<Staging>> {
    if bytes == 0 { Some(None) } else { site.out.stage(Quota::Late, site.members.handle, bytes).map(Some) }
}

impl Staging {
    pub(crate) fn whole(&self) -> MemRef {
        MemRef { region: MemRegion::Staging(self.id), offset: 0, len: self.bytes }
    }
}
