//! Large messages of recorded groups from their second call on, at their source: the other end asks for them before they are
//! announced, and their bytes go where they are received without another word (GP-5).
//!
//! | a message is | event | next |
//! |---|---|---|
//! | - | it is sent | held |
//! | - | it is asked for | asked for |
//! | held, asked for | the other event, there is room at the other end | filling |
//! | held, asked for | the other event, there is none | announced, as those of the first call |
//! | filling | its last bytes are in a frame | filled |
//! | filled | the last frame of its call to that end is acknowledged | gone, its step is done |
//!
//! Invariants: a frame has bytes of one call; messages of one call to one end share frames, and the last of these alone asks
//! for its acknowledgement, which is that of all. Never sees payload.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::Span;

use crate::error::CollectiveError;
use crate::fragments::Bulk;
use crate::ids::{GroupHandle, SpId};
use crate::link::{Tag, Tagged};
use crate::wire::{Filled, MAX_FILLED, Message, TaggedMessage};

use super::matching::Name;
use super::outgoing::{Outbound, place};
use super::{MESSAGING, StepOf};

/// What the other end has said of a message.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asked {
    pub(crate) number: u64,
    pub(crate) bytes: u64,
    /// The bytes may come at once.
    pub(crate) room: bool,
}

/// A message that is sent and asked for.
pub(crate) enum Met {
    /// Its bytes are on their way.
    Filling,
    /// It is to be announced.
    Announce(Outbound),
}

#[derive(Debug)]
struct Piecewise {
    number: u64,
    message: Outbound,
    offset: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Filling {
    held: BTreeMap<Name, Outbound>,
    asked: BTreeMap<Name, Asked>,
    queues: BTreeMap<SpId, VecDeque<Piecewise>>,
    /// Whose bytes are in frames, the last of which is yet to come.
    finished: BTreeMap<SpId, Vec<Outbound>>,
    /// By the number of the last frame.
    filled: BTreeMap<u64, Vec<Outbound>>,
}

impl Filling {
    /// The message is sent to a rank at `to`.
    pub(crate) fn send(&mut self, to: SpId, message: Outbound) -> Result<Option<Met>, CollectiveError> {
        match self.asked.remove(&message.name) {
            Some(asked) => self.meet(to, message, asked).map(Some),
            None => {
                self.held.insert(message.name, message);
                Ok(None)
            }
        }
    }

    /// `from` asks for the message of this name.
    pub(crate) fn ask(&mut self, from: SpId, name: Name, asked: Asked) -> Result<Option<Met>, CollectiveError> {
        match self.held.remove(&name) {
            Some(message) => self.meet(from, message, asked).map(Some),
            None => {
                self.asked.insert(name, asked);
                Ok(None)
            }
        }
    }

    fn meet(&mut self, to: SpId, message: Outbound, asked: Asked) -> Result<Met, CollectiveError> {
        let (name, sent) = (message.name, message.span.len);
        if sent != asked.bytes {
            let Name { source: source_rank, destination, tag, .. } = name;
            return Err(CollectiveError::Message { source_rank, destination, tag, sent, expected: asked.bytes });
        }
        if !asked.room {
            return Ok(Met::Announce(message));
        }
        let piecewise = Piecewise { number: asked.number, message, offset: 0 };
        self.queues.entry(to).or_default().push_back(piecewise);
        Ok(Met::Filling)
    }

    /// Whether a message of this name has been asked for and is not sent yet.
    pub(crate) fn has_ask(&self, name: &Name) -> bool {
        self.asked.contains_key(name)
    }

    /// Messages that have been asked for and are not sent yet.
    pub(crate) fn asks(&self) -> usize {
        self.asked.len()
    }

    pub(crate) fn has_bulk(&self) -> bool {
        !self.queues.is_empty()
    }

    /// Whom there are bytes for.
    pub(crate) fn targets(&self) -> impl Iterator<Item = SpId> {
        self.queues.keys().copied()
    }

    /// The next frame for `to`, of `most` bytes at most; `number` is given to what its acknowledgement ends.
    pub(crate) fn next(&mut self, group: GroupHandle, to: SpId, most: u64, number: &mut u64) -> Option<Bulk> {
        let queue = self.queues.get_mut(&to)?;
        let call = queue.front().expect("no queue is empty").message.step.call;
        let of_call = |piecewise: &&Piecewise| piecewise.message.step.call == call;
        let left: u64 = queue.iter().take_while(of_call).map(|p| p.message.span.len - p.offset).sum();
        // In frames of one size, so that none is sent for a little rest.
        let mut room = left.div_ceil(left.div_ceil(most));
        let (mut pieces, mut payload) = (Vec::new(), Vec::new());
        while room > 0
            && pieces.len() < MAX_FILLED
            && let Some(next) = queue.front_mut().filter(|next| next.message.step.call == call)
        {
            let Outbound { step, span, .. } = next.message;
            let len = (span.len - next.offset).min(room);
            pieces.push(Filled { number: next.number, offset: next.offset, bytes: len as u32 });
            payload.push(place(step, Span { offset: span.offset + next.offset, len, ..span }));
            (next.offset, room) = (next.offset + len, room - len);
            if next.offset == span.len {
                self.finished.entry(to).or_default().extend(queue.pop_front().map(|done| done.message));
            }
        }
        let last = queue.front().is_none_or(|next| next.message.step.call != call);
        if queue.is_empty() {
            self.queues.remove(&to);
        }
        let tag = last.then(|| {
            *number += 1;
            self.filled.insert(*number, self.finished.remove(&to).unwrap_or_default());
            Tag { group, instance: MESSAGING, what: Tagged::Message { number: *number } }
        });
        let message = Message::Tagged { group, tagged: TaggedMessage::Fill { pieces } };
        Some(Bulk { message, payload: payload.into(), tag })
    }

    /// The steps that end with this acknowledgement.
    pub(crate) fn acknowledged(&mut self, number: u64) -> impl Iterator<Item = StepOf> + use<> {
        self.filled.remove(&number).unwrap_or_default().into_iter().map(|message| message.step)
    }

    /// Takes out the messages that will not be received any more, or not be sent.
    pub(crate) fn extract(&mut self, gone: impl Fn(&Name) -> bool) -> Vec<Outbound> {
        let names: Vec<Name> = self.held.keys().copied().filter(&gone).collect();
        let mut extracted: Vec<Outbound> = names.iter().filter_map(|name| self.held.remove(name)).collect();
        self.asked.retain(|name, _| !gone(name));
        self.queues.retain(|_, queue| {
            queue.retain(|next| {
                let out = gone(&next.message.name);
                extracted.extend(out.then_some(next.message));
                !out
            });
            !queue.is_empty()
        });
        for messages in self.finished.values_mut().chain(self.filled.values_mut()) {
            messages.retain(|message| {
                let out = gone(&message.name);
                extracted.extend(out.then_some(*message));
                !out
            });
        }
        extracted
    }

    /// Messages whose steps are not done.
    pub(crate) fn messages(&self) -> impl Iterator<Item = &Outbound> {
        let queued = self.queues.values().flatten().map(|next| &next.message);
        let sent = self.finished.values().chain(self.filled.values()).flatten();
        self.held.values().chain(queued).chain(sent)
    }
}
