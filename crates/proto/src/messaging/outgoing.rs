//! Messages of local ranks on their way to other service processes.
//!
//! | a message is | event | next |
//! |---|---|---|
//! | queued | its link has room | posted: told, with its bytes if it is eager |
//! | posted | taken ([`TaggedMessage::Took`]) | gone, its step is done |
//! | posted | pulled | sending |
//! | sending | its last part is acknowledged | gone, its step is done |
//!
//! Small messages are eager: their bytes go along, and stay where they are until the other end has taken them, so that it
//! may refuse what it has no room for by pulling it later. What the other end asks for unannounced goes by [`Filling`].
//!
//! Invariants: messages to one service process are posted in the order in which they were sent, and heard of in that order:
//! what is posted stays announced when its call ends in an error, else a later message would take its receive. One frame
//! holds messages of one call, so that the end of another call takes no bytes from them. Never sees payload.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::Span;

use crate::fragments::Bulk;
use crate::ids::{GroupHandle, SpId};
use crate::interface::{MemRef, Region};
use crate::link::{Tag, Tagged};
use crate::wire::{MAX_POSTED, Message, Posted, TaggedMessage};

use super::filling::Filling;
use super::matching::Name;
use super::{MESSAGING, StepOf};

/// Largest message whose bytes go along with its announcement.
pub(crate) const EAGER: u64 = 8 << 10;
/// The same of a recording, which all ranks call alike, so that receives wait for most of its messages: their bytes need no
/// staging, and asking for them first would take longer than they do.
const EAGER_RECORDED: u64 = 32 << 10;

/// A message of a local rank.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Outbound {
    pub(crate) step: StepOf,
    pub(crate) name: Name,
    pub(crate) span: Span,
}

impl Name {
    /// Largest message of this name whose bytes go along with its announcement.
    fn eager(&self) -> u64 {
        if self.recording == 0 { EAGER } else { EAGER_RECORDED }
    }

    /// Whether a message of so many bytes is asked for before it is announced (GP-5): a call before has compared what both
    /// ends have recorded, and its bytes do not go along with an announcement.
    pub(crate) fn is_asked_for(&self, bytes: u64) -> bool {
        self.call >= 2 && bytes > self.eager()
    }
}

#[derive(Debug)]
struct Sending {
    number: u64,
    offset: u64,
}

#[derive(Debug)]
struct Waiting {
    to: SpId,
    message: Outbound,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Outgoing {
    queued: BTreeMap<SpId, VecDeque<Outbound>>,
    /// Posted or sending, by number.
    waiting: BTreeMap<u64, Waiting>,
    sending: BTreeMap<SpId, VecDeque<Sending>>,
    pub(crate) filling: Filling,
    last_number: u64,
    /// The last number that each service process has given to what it asks for.
    last_asked: BTreeMap<SpId, u64>,
}

impl Outgoing {
    pub(crate) fn push(&mut self, to: SpId, message: Outbound) {
        self.queued.entry(to).or_default().push_back(message);
    }

    pub(crate) fn has_bulk(&self) -> bool {
        !self.queued.is_empty() || !self.sending.is_empty() || self.filling.has_bulk()
    }

    /// Whom there may be bulk for.
    pub(crate) fn targets(&self) -> Vec<SpId> {
        let announced = self.queued.keys().chain(self.sending.keys()).copied();
        let mut targets: Vec<SpId> = announced.chain(self.filling.targets()).collect();
        targets.sort_unstable();
        targets.dedup();
        targets
    }

    /// The next thing for `to`, with pieces of `most` bytes at most.
    pub(crate) fn next(&mut self, group: GroupHandle, to: SpId, most: u64) -> Option<Bulk> {
        self.next_post(group, to, most)
            .or_else(|| self.filling.next(group, to, most, &mut self.last_number))
            .or_else(|| self.next_part(group, to, most))
    }

    /// `from` numbers `count` messages that it asks for from `first` on. False when it has given these numbers before.
    pub(crate) fn numbered(&mut self, from: SpId, first: u64, count: usize) -> bool {
        let last = self.last_asked.entry(from).or_insert(0);
        let fresh = first > *last;
        if fresh {
            *last = first + (count as u64 - 1);
        }
        fresh
    }

    /// As many messages of one call as one frame takes.
    fn next_post(&mut self, group: GroupHandle, to: SpId, most: u64) -> Option<Bulk> {
        let queue = self.queued.get_mut(&to)?;
        let head = *queue.front().expect("no queue is empty");
        let first = self.last_number + 1;
        let (mut messages, mut payload, mut room) = (Vec::new(), Vec::new(), most);
        while let Some(next) = queue.front().filter(|next| next.step.call == head.step.call)
            && messages.len() < MAX_POSTED
        {
            let Outbound { step, name, span } = *next;
            let eager = span.len <= name.eager().min(most);
            if eager && span.len > room {
                break;
            }
            if eager && span.len > 0 {
                room -= span.len;
                payload.push(place(step, span));
            }
            let Name { destination, tag, occurrence, .. } = name;
            messages.push(Posted { destination, tag, occurrence, bytes: span.len, eager });
            self.last_number += 1;
            self.waiting.insert(self.last_number, Waiting { to, message: *next });
            queue.pop_front();
        }
        if queue.is_empty() {
            self.queued.remove(&to);
        }
        let Name { source, recording, call, .. } = head.name;
        let tagged = TaggedMessage::Post { source, recording, call, first, messages };
        Some(Bulk { message: Message::Tagged { group, tagged }, payload: payload.into(), tag: None })
    }

    fn next_part(&mut self, group: GroupHandle, to: SpId, most: u64) -> Option<Bulk> {
        let queue = self.sending.get_mut(&to)?;
        let Sending { number, offset } = queue.front_mut().expect("no queue is empty");
        let (number, start) = (*number, *offset);
        let Outbound { step, span, .. } = self.waiting[&number].message;
        let len = (span.len - start).min(most);
        *offset += len;
        let last = *offset == span.len;
        if last {
            queue.pop_front();
            if queue.is_empty() {
                self.sending.remove(&to);
            }
        }
        let piece = Span { offset: span.offset + start, len, ..span };
        let message = Message::Tagged { group, tagged: TaggedMessage::Part { number, offset: start } };
        let tag = last.then_some(Tag { group, instance: MESSAGING, what: Tagged::Message { number } });
        Some(Bulk { message, payload: place(step, piece).into(), tag })
    }

    /// `from` wants the bytes of a message. False when it cannot have them.
    pub(crate) fn pulled(&mut self, from: SpId, number: u64) -> bool {
        let posted = self.waiting.get(&number).is_some_and(|w| w.to == from && w.message.span.len > 0);
        let queue = self.sending.entry(from).or_default();
        let fresh = posted && !queue.iter().any(|sending| sending.number == number);
        if fresh {
            queue.push_back(Sending { number, offset: 0 });
        } else if queue.is_empty() {
            self.sending.remove(&from);
        }
        fresh
    }

    /// The steps that are done because this number has been acknowledged.
    pub(crate) fn acknowledged(&mut self, number: u64) -> impl Iterator<Item = StepOf> + use<> {
        self.done(None, number).into_iter().chain(self.filling.acknowledged(number))
    }

    /// The step that is done because `from` has taken its message, or because its last part has been acknowledged.
    pub(crate) fn done(&mut self, from: Option<SpId>, number: u64) -> Option<StepOf> {
        let is = |waiting: &Waiting| from.is_none_or(|from| from == waiting.to);
        self.waiting.get(&number).filter(|waiting| is(waiting))?;
        self.forget_sending(|sent| sent == number);
        self.waiting.remove(&number).map(|waiting| waiting.message.step)
    }

    /// Takes out the messages that will not be received any more, or not be sent.
    pub(crate) fn extract(&mut self, gone: impl Fn(&Name) -> bool) -> Vec<Outbound> {
        let mut extracted = Vec::new();
        self.queued.retain(|_, queue| {
            queue.retain(|message| {
                let out = gone(&message.name);
                extracted.extend(out.then_some(*message));
                !out
            });
            !queue.is_empty()
        });
        let numbers: Vec<u64> = self.waiting.iter().filter(|(_, w)| gone(&w.message.name)).map(|(n, _)| *n).collect();
        for number in &numbers {
            extracted.extend(self.waiting.remove(number).map(|waiting| waiting.message));
        }
        self.forget_sending(|number| numbers.contains(&number));
        extracted.extend(self.filling.extract(gone));
        extracted
    }

    fn forget_sending(&mut self, gone: impl Fn(u64) -> bool) {
        self.sending.retain(|_, queue| {
            queue.retain(|sending| !gone(sending.number));
            !queue.is_empty()
        });
    }

    /// Messages that have not been taken.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Outbound> {
        let announced = self.queued.values().flatten().chain(self.waiting.values().map(|waiting| &waiting.message));
        announced.chain(self.filling.messages())
    }
}

/// Where a piece lies: in the one buffer of its call.
pub(super) fn place(step: StepOf, span: Span) -> MemRef {
    MemRef { region: Region::Output(step.call), offset: span.offset, len: span.len }
}
