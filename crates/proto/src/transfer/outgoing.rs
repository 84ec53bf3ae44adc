//! Messages of local ranks on their way out.
//!
//! | a message is | event | next |
//! |---|---|---|
//! | - | it is sent behind a ready barrier | queued, whole |
//! | - | it is sent, its early CTS has come | queued up to the CTS's limit, or to be offered if the limit is 0 |
//! | - | it is sent, of a recording whose early CTS is awaited | held |
//! | - | it is sent | to be offered |
//! | held | its early CTS | queued, or to be offered |
//! | to be offered | an offer leaves with its RTS, and its bytes if they are few | offered |
//! | offered | its destination has accepted the eager bytes | done |
//! | offered | its CTS, or an early CTS that has crossed the RTS | queued |
//! | queued | all granted bytes are in frames | waiting for a CTS, or sent |
//! | waiting for a CTS | its CTS | queued |
//! | sent | the frame with its last bytes is acknowledged | done |
//!
//! Invariants: a frame has bytes of calls of one owner, so that the frame can be voided with the owner's memory.
//! Messages of one owner to one peer share frames, and only the last frame requests acknowledgement without delay.
//! Never sees payload.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use outboard_plan::Rank;
use smallvec::SmallVec;

use super::matching::MessageName;
use super::queues::Queues;
use super::{Outbound, StepOf};
use crate::error::{CollectiveError, Rejection};
use crate::ids::{GroupHandle, InstanceId, SpId, TAGGED};
use crate::interface::{FramePayload, MemRef};
use crate::link::{AckTag, AckedKind};
use crate::multicast::pacing::Quantum;
use crate::wire::{
    Cts, DataPiece, EarlyCts, Few, Fragment, MAX_PIECES_OF_DATA, Message, MessageNumber, OfferOrigin, Rts, Scope,
    TransferMessage,
};

/// Largest single message whose bytes travel with its RTS.
pub(super) const EAGER: u64 = 8 << 10;
/// Largest message of a recording or a small call whose bytes travel with its RTS. All ranks make these calls alike, so
/// receives already wait for most of the messages. Then the bytes need no staging, and a request would take longer than
/// the bytes.
const EAGER_KNOWN: u64 = 32 << 10;

/// A message is much shorter than another message that has more than this many times its bytes.
const MUCH_SHORTER: u64 = 4;

/// A frame with payload, for a link.
pub(crate) struct Bulk {
    /// The collective whose end makes the frame void, or [`TAGGED`].
    pub(crate) instance: InstanceId,
    pub(crate) message: Message,
    pub(crate) payload: FramePayload,
    pub(crate) tag: Option<AckTag>,
}

impl MessageName {
    /// Largest message of this name whose bytes travel with its RTS.
    fn eager(&self) -> u64 {
        match self.scope {
            Scope::Single => EAGER,
            Scope::Recorded { .. } | Scope::Instance(_) => EAGER_KNOWN,
        }
    }

    /// The origin under which a tagged message is offered.
    fn origin(&self) -> OfferOrigin {
        match self.scope {
            Scope::Recorded { recording, call } => OfferOrigin::Recorded { recording, call },
            Scope::Single | Scope::Instance(_) => OfferOrigin::Single,
        }
    }

    /// Whether a message of `bytes` is cleared before it is offered (GP-5): an earlier call has compared the recordings
    /// of both ends, and the message is too large for an eager RTS.
    pub(super) fn awaits_early_cts(&self, bytes: u64) -> bool {
        matches!(self.scope, Scope::Recorded { call: 2.., .. }) && bytes > self.eager()
    }

    /// The [`Bulk::instance`] of a frame with bytes of this message.
    fn instance(&self) -> InstanceId {
        match self.scope {
            Scope::Instance(instance) => instance,
            Scope::Single | Scope::Recorded { .. } => TAGGED,
        }
    }
}

impl Outbound {
    /// Whether this message leaves before `other`, which goes to the same service process (SP-5).
    ///
    /// If two calls share a link, both end late. If the calls go one after the other, the first ends in half the time
    /// and the second no later. So messages leave in the order of their calls, which is the order in which a program
    /// waits for them. Only a much shorter message overtakes a message of an earlier call.
    fn goes_before(&self, other: &Outbound) -> bool {
        let (Scope::Instance(call), Scope::Instance(others)) = (self.name.scope, other.name.scope) else {
            return false;
        };
        let [bytes, others_bytes] = [self, other].map(|message| message.from.len);
        let is_much_shorter = |bytes: u64, than: u64| bytes.saturating_mul(MUCH_SHORTER) < than;
        match call.cmp(&others) {
            Ordering::Less => !is_much_shorter(others_bytes, bytes),
            Ordering::Equal => false,
            Ordering::Greater => is_much_shorter(bytes, others_bytes),
        }
    }
}

/// A peer that there may be bulk for.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target {
    pub(crate) to: SpId,
    /// Bytes of the next message.
    pub(crate) bytes: u64,
    /// The receiver does not request the message piece by piece, because it travels behind a ready barrier.
    pub(crate) is_whole: bool,
}

impl Target {
    /// The target of an offer or a repair, which has a frame and no message.
    pub(crate) fn of_frame(to: SpId) -> Self {
        Target { to, bytes: 0, is_whole: false }
    }
}

/// The early CTS of a message that is not sent yet.
#[derive(Debug, Clone, Copy)]
struct Cleared {
    from: SpId,
    number: u64,
    bytes: u64,
    up_to: u64,
}

/// A message that has been offered, or of which bytes may leave.
#[derive(Debug)]
struct MessageFlow {
    to: SpId,
    message: Outbound,
    /// `None` behind a ready barrier: the message travels by its name.
    number: Option<MessageNumber>,
    /// `offset`: bytes that are in frames. `granted`: bytes that may be in frames.
    offset: u64,
    granted: u64,
    queued: bool,
}

/// Messages whose last bytes are in one frame; mostly one message.
type SentMessages = SmallVec<[Outbound; 1]>;

#[derive(Debug, Default)]
pub(crate) struct OutgoingMessages {
    offers: Queues<SpId, (OfferOrigin, Outbound)>,
    /// Offered, queued or waiting for a CTS. The number of an RTS is the number of its flow.
    flows: BTreeMap<u64, MessageFlow>,
    /// Flows by the number of their early CTS.
    early: BTreeMap<(SpId, u64), u64>,
    /// Offered messages of collectives, whose RTS an early CTS may cross.
    crossing: BTreeMap<MessageName, u64>,
    held: BTreeMap<MessageName, Outbound>,
    cleared: BTreeMap<MessageName, Cleared>,
    queues: Queues<SpId, u64>,
    /// Sent messages, by the number under which the frame with their last bytes is acknowledged.
    unacknowledged: BTreeMap<u64, SentMessages>,
    last_number: u64,
    /// The last early CTS number of each service process.
    last_early: BTreeMap<SpId, u64>,
}

impl OutgoingMessages {
    /// Queues a message behind a ready barrier.
    pub(super) fn push_expected(&mut self, to: SpId, message: Outbound) {
        let bytes = message.from.len;
        let id = self.insert(to, message, None);
        self.grant(id, bytes);
    }

    /// Queues a message to be offered with the origin of its source's call.
    pub(super) fn push_offer(&mut self, to: SpId, origin: OfferOrigin, message: Outbound) {
        self.offers.push(to, (origin, message));
    }

    /// Queues or holds a tagged message (GP-1, GP-2).
    pub(super) fn push_tagged(&mut self, to: SpId, message: Outbound) -> Result<(), CollectiveError> {
        if !message.name.awaits_early_cts(message.from.len) {
            self.push_offer(to, message.name.origin(), message);
        } else if let Some(cleared) = self.cleared.remove(&message.name) {
            self.send_cleared(message, cleared)?;
        } else {
            self.held.insert(message.name, message);
        }
        Ok(())
    }

    /// Offers a message of a collective. Returns the message's number, which follows the previous number, and its RTS.
    /// A message whose early CTS has come is offered, too, so that more is requested before its first bytes arrive.
    pub(super) fn offer(&mut self, to: SpId, message: Outbound) -> (u64, Rts) {
        let (MessageName { destination, tag, occurrence, .. }, bytes) = (message.name, message.from.len);
        let cleared = self.cleared.remove(&message.name);
        let id = self.insert(to, message, None);
        match cleared {
            Some(cleared) => self.clear(id, cleared),
            None => {
                self.number(id, MessageNumber::Rts(id));
                self.crossing.insert(message.name, id);
            }
        }
        (id, Rts { destination, tag, occurrence, bytes, eager: false })
    }

    /// The bytes in the early CTS of this message, if the CTS has come.
    pub(super) fn cleared_bytes(&self, name: &MessageName) -> Option<u64> {
        self.cleared.get(name).map(|cleared| cleared.bytes)
    }

    fn number(&mut self, id: u64, number: MessageNumber) {
        if let Some(flow) = self.flows.get_mut(&id) {
            flow.number = Some(number);
        }
    }

    /// An early CTS lets a flow leave under the number of the CTS.
    fn clear(&mut self, id: u64, Cleared { from, number, up_to, .. }: Cleared) {
        self.number(id, MessageNumber::Early(number));
        self.early.insert((from, number), id);
        self.grant(id, up_to);
    }

    fn insert(&mut self, to: SpId, message: Outbound, number: Option<MessageNumber>) -> u64 {
        self.last_number += 1;
        self.flows.insert(self.last_number, MessageFlow { to, message, number, offset: 0, granted: 0, queued: false });
        self.last_number
    }

    /// Lets a flow send up to byte `up_to`. Flows leave in the order of [`Outbound::goes_before`].
    fn grant(&mut self, id: u64, up_to: u64) {
        let Some(flow) = self.flows.get_mut(&id) else { return };
        flow.granted = up_to;
        let (to, message) = (flow.to, flow.message);
        if !std::mem::replace(&mut flow.queued, true) {
            let flows = &self.flows;
            self.queues.insert(to, id, |other| message.goes_before(&flows[other].message));
        }
    }

    /// The message and its early CTS are both known: compares their bytes and queues the message.
    fn send_cleared(&mut self, message: Outbound, cleared: Cleared) -> Result<(), CollectiveError> {
        if message.from.len != cleared.bytes {
            return Err(message.name.mismatch(message.from.len, cleared.bytes));
        }
        if cleared.up_to == 0 {
            self.push_offer(cleared.from, message.name.origin(), message);
        } else {
            let id = self.insert(cleared.from, message, None);
            self.clear(id, cleared);
        }
        Ok(())
    }

    /// Checks that `from` numbers `count` early CTS from `first` on. False when `from` has used these numbers before.
    pub(super) fn accept_numbers(&mut self, from: SpId, first: u64, count: usize) -> bool {
        advance_number(self.last_early.entry(from).or_insert(0), first, count)
    }

    /// An early CTS of `from`.
    pub(super) fn handle_early(
        &mut self,
        from: SpId,
        name: MessageName,
        number: u64,
        cts: EarlyCts,
    ) -> Result<(), Rejection> {
        let EarlyCts { bytes, up_to, .. } = cts;
        let cleared = Cleared { from, number, bytes, up_to };
        if let Some(id) = self.crossing.remove(&name) {
            let flow = self.flows.get(&id).ok_or("an early CTS for a message that has left")?;
            if flow.message.from.len != bytes {
                return Err(name.mismatch(flow.message.from.len, bytes).into());
            }
            self.clear(id, cleared);
            return Ok(());
        }
        match self.held.remove(&name) {
            Some(message) => Ok(self.send_cleared(message, cleared)?),
            None => Rejection::unless(self.cleared.insert(name, cleared).is_none(), "an early CTS that came before"),
        }
    }

    pub(super) fn cleared(&self) -> usize {
        self.cleared.len()
    }

    /// The destination and bytes of an early CTS in a scope for a message of `source` that is not sent yet.
    pub(super) fn cleared_of(&self, scope: Scope, source: Rank) -> Option<(Rank, u64)> {
        let mut of_scope = self.cleared.range(MessageName::all_of(scope));
        of_scope.find(|(name, _)| name.source == source).map(|(name, cleared)| (name.destination, cleared.bytes))
    }

    /// `from` grants more bytes of a message.
    pub(super) fn handle_cts(&mut self, from: SpId, Cts { number, up_to }: Cts) -> Result<(), Rejection> {
        const NOTHING: &str = "a CTS that grants nothing";
        let id = match number {
            MessageNumber::Rts(number) => number,
            MessageNumber::Early(number) => *self.early.get(&(from, number)).ok_or(NOTHING)?,
        };
        let allows = |flow: &&MessageFlow| {
            flow.to == from && flow.number == Some(number) && up_to > flow.granted && up_to <= flow.message.from.len
        };
        let flow = self.flows.get(&id).filter(allows).ok_or(NOTHING)?;
        self.crossing.remove(&flow.message.name);
        self.grant(id, up_to);
        Ok(())
    }

    /// The message that is done because `from` has accepted its eager bytes.
    pub(super) fn handle_done(&mut self, from: SpId, number: u64) -> Option<StepOf> {
        let taken = |flow: &&MessageFlow| flow.to == from && flow.number == Some(MessageNumber::Rts(number));
        self.flows.get(&number).filter(taken)?;
        let flow = self.flows.remove(&number)?;
        self.crossing.remove(&flow.message.name);
        if flow.queued {
            self.queues.remove(&flow.to, |queued| *queued == number);
        }
        Some(flow.message.step)
    }

    /// The messages that are done because this number has been acknowledged.
    pub(super) fn acknowledged(&mut self, number: u64) -> SentMessages {
        self.unacknowledged.remove(&number).unwrap_or_default()
    }

    pub(super) fn has_bulk(&self) -> bool {
        !self.offers.is_empty() || !self.queues.is_empty()
    }

    /// Peers that there may be bulk for; a peer may come twice.
    pub(super) fn targets(&self) -> impl Iterator<Item = Target> + '_ {
        let offers = self.offers.keys().map(|to| Target::of_frame(*to));
        offers.chain(self.queues.firsts().map(|(to, id)| {
            let MessageFlow { message, number, .. } = &self.flows[id];
            Target { to: *to, bytes: message.from.len, is_whole: number.is_none() }
        }))
    }

    /// The next frame for `to`, if `links` peers have bulk. Also the step of a signal that this frame completes.
    pub(super) fn next(
        &mut self,
        group: GroupHandle,
        to: SpId,
        links: usize,
        quantum: Quantum,
    ) -> Option<(Bulk, Option<StepOf>)> {
        if let Some(bulk) = self.next_offer(group, to, quantum.piece) {
            return Some((bulk, None));
        }
        let MessageFlow { number, message, .. } = self.flows[self.queues.first(&to)?];
        let most = quantum.piece_on(links, message.from.len);
        match number {
            Some(_) => Some((self.next_data(group, to, &message, most), None)),
            None => self.next_expected(group, to, most),
        }
    }

    /// Offers as many messages of one call as one frame takes.
    fn next_offer(&mut self, group: GroupHandle, to: SpId, most: u64) -> Option<Bulk> {
        let (origin, head) = *self.offers.first(&to)?;
        let first_ready = self.last_number + 1;
        let (mut ready, mut payload, mut room) = (Few::new(), SmallVec::<[MemRef; 1]>::new(), most);
        while let Some((_, next)) =
            self.offers.first(&to).copied().filter(|(_, next)| next.step.owner == head.step.owner)
            && origin.fits(ready.len() + 1, 0)
        {
            let (MessageName { destination, tag, occurrence, .. }, bytes) = (next.name, next.from.len);
            let eager = bytes <= next.name.eager().min(most);
            if eager && bytes > room {
                break;
            }
            if eager && bytes > 0 {
                room -= bytes;
                payload.push(next.from);
            }
            ready.push(Rts { destination, tag, occurrence, bytes, eager });
            let number = MessageNumber::Rts(self.last_number + 1);
            self.insert(to, next, Some(number));
            self.offers.pop(&to);
        }
        let rank = head.name.source;
        let offer = TransferMessage::Offer { origin, rank, first_ready, ready, first_early: 0, early: Vec::new() };
        Some(Bulk {
            instance: head.name.instance(),
            message: Message::transfer(group, offer),
            payload: payload[..].into(),
            tag: None,
        })
    }

    /// Pieces of the messages of one owner. Tagged messages are cut into equal frames, so that no small rest remains.
    fn next_data(&mut self, group: GroupHandle, to: SpId, head: &Outbound, most: u64) -> Bulk {
        let (owner, instance) = (head.step.owner, head.name.instance());
        let of_owner = |flow: &&MessageFlow| flow.message.step.owner == owner && flow.number.is_some();
        let flows = self.queues.of(&to).take(MAX_PIECES_OF_DATA).map(|id| &self.flows[id]);
        let left: u64 = flows.take_while(of_owner).map(|flow| flow.granted - flow.offset).sum();
        let mut room = if instance == TAGGED { left.div_ceil(left.div_ceil(most).max(1)) } else { left.min(most) };
        let (mut pieces, mut payload, mut sent) = (Vec::new(), SmallVec::<[MemRef; 1]>::new(), SentMessages::new());
        while room > 0
            && pieces.len() < MAX_PIECES_OF_DATA
            && let Some(&id) = self.queues.first(&to)
            && let Some(flow) = self.flows.get_mut(&id).filter(|flow| flow.message.step.owner == owner)
            && let Some(number) = flow.number
        {
            let len = (flow.granted - flow.offset).min(room);
            pieces.push(DataPiece { number, offset: flow.offset, bytes: len as u32 });
            payload.push(MemRef { offset: flow.message.from.offset + flow.offset, len, ..flow.message.from });
            (flow.offset, room) = (flow.offset + len, room - len);
            if flow.offset == flow.granted {
                self.queues.pop(&to);
                flow.queued = false;
                if flow.offset == flow.message.from.len
                    && let Some(flow) = self.flows.remove(&id)
                {
                    if let MessageNumber::Early(number) = number {
                        self.early.remove(&(to, number));
                    }
                    sent.push(flow.message);
                }
            }
        }
        let more = self.queues.first(&to).and_then(|id| self.flows.get(id)).is_some_and(|flow| of_owner(&flow));
        let tag = self.await_acknowledgement(group, sent, !more);
        let message = Message::transfer(group, TransferMessage::Data(pieces));
        Bulk { instance, message, payload: payload[..].into(), tag }
    }

    /// The next fragment of a message behind a ready barrier.
    fn next_expected(&mut self, group: GroupHandle, to: SpId, most: u64) -> Option<(Bulk, Option<StepOf>)> {
        let id = *self.queues.first(&to)?;
        let flow = self.flows.get_mut(&id)?;
        let (message, offset) = (flow.message, flow.offset);
        let MessageName { source, destination, tag: index, .. } = message.name;
        let (total, instance) = (message.from.len, message.name.instance());
        let len = (total - offset).min(most);
        flow.offset += len;
        let last = flow.offset == total;
        if last {
            self.queues.pop(&to);
            self.flows.remove(&id);
        }
        let fragment = Fragment { instance, source, destination, index, total, offset };
        let piece = MemRef { offset: message.from.offset + offset, len, ..message.from };
        let payload = if len > 0 { FramePayload::Piece(piece) } else { FramePayload::Empty };
        let sent = (last && !message.signal).then_some(message).into_iter().collect();
        let tag = self.await_acknowledgement(group, sent, true);
        let message_ = Message::transfer(group, TransferMessage::Expected(fragment));
        Some((Bulk { instance, message: message_, payload, tag }, message.signal.then_some(message.step)))
    }

    fn await_acknowledgement(&mut self, group: GroupHandle, sent: SentMessages, urgent: bool) -> Option<AckTag> {
        if sent.is_empty() {
            return None;
        }
        self.last_number += 1;
        self.unacknowledged.insert(self.last_number, sent);
        Some(AckTag { group, instance: TAGGED, kind: AckedKind::Message { number: self.last_number }, urgent })
    }

    fn remove_flows(&mut self, mut gone: impl FnMut(u64, &MessageFlow) -> bool) -> Vec<Outbound> {
        let mut removed = Vec::new();
        self.flows.retain(|id, flow| {
            let out = gone(*id, flow);
            removed.extend(out.then_some((*id, flow.queued, flow.to, flow.number, flow.message)));
            !out
        });
        for (id, queued, to, number, _) in &removed {
            if *queued {
                self.queues.remove(to, |queued| queued == id);
            }
            if let Some(MessageNumber::Early(number)) = number {
                self.early.remove(&(*to, *number));
            }
        }
        removed.into_iter().map(|(.., message)| message).collect()
    }

    /// Removes the messages that will not be received or sent any more.
    pub(super) fn extract(&mut self, gone: impl Fn(&MessageName) -> bool) -> Vec<Outbound> {
        let mut extracted = self.remove_flows(|_, flow| gone(&flow.message.name));
        let offers = self.offers.extract(|_, (_, message)| gone(&message.name));
        extracted.extend(offers.into_iter().map(|(_, (_, message))| message));
        let mut stays = |message: &Outbound| {
            let out = gone(&message.name);
            extracted.extend(out.then_some(*message));
            !out
        };
        self.held.retain(|_, message| stays(message));
        self.unacknowledged.values_mut().for_each(|messages| messages.retain(|message| stays(message)));
        self.cleared.retain(|name, _| !gone(name));
        self.crossing.retain(|name, _| !gone(name));
        extracted
    }

    /// Names of the messages that are not done.
    pub(super) fn names(&self) -> impl Iterator<Item = &MessageName> {
        let sent = self.unacknowledged.values().flatten();
        let waiting = self.offers.iter().map(|(_, (_, message))| message).chain(self.held.values()).chain(sent);
        waiting.chain(self.flows.values().map(|flow| &flow.message)).map(|message| &message.name)
    }

    /// The messages of a collective whose RTS the destinations have not answered.
    pub(super) fn offered(&self, scope: Scope) -> impl Iterator<Item = (&MessageName, u64)> {
        let waits = |flow: &&MessageFlow| matches!(flow.number, Some(MessageNumber::Rts(_))) && flow.granted == 0;
        let offered = self.flows.values().filter(waits).map(|flow| &flow.message);
        let offered = offered.chain(self.offers.iter().map(|(_, (_, message))| message));
        offered.filter(move |message| message.name.scope == scope).map(|message| (&message.name, message.from.len))
    }
}

/// Whether numbers from `first` on are new after `last`; updates `last`.
pub(super) fn advance_number(last: &mut u64, first: u64, count: usize) -> bool {
    let advance_number = first > *last;
    if advance_number && count > 0 {
        *last = first + (count as u64 - 1);
    }
    advance_number || count == 0
}
