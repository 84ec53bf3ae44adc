//! Messages for local ranks: those that wait, those that are asked for, and what their sources are to be told.
//!
//! As of an all-to-all, a bounded number of bytes is asked for at a time (SP-5). Large messages of a recording's further
//! calls are asked for before they are announced (GP-5): the sizes are known, and whatever its source waits for, the first
//! word on a message is then the last. What would be too much at once is to be announced. Invariant: a message is asked for
//! once, so that nothing that its source cannot send yet keeps those from coming that are announced.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::Rank;

use crate::collective::Context;
use crate::ids::SpId;
use crate::interface::MemRef;
use crate::wire::{MAX_NUMBERS, MAX_POSTED, Message, TaggedMessage, Wanted};

use super::matching::{Matching, Name};
use super::{Inbound, StepOf};

/// So many times what is pulled at once is asked for unannounced: not all of it can come at the same time, as sources have
/// other destinations, too.
const ASKED_AHEAD: u64 = 8;

/// A message of another service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Number {
    /// As that one has posted it.
    Posted(SpId, u64),
    /// As it was asked for unannounced.
    Asked(SpId, u64),
}

/// Whose receives are asked for together: the service process, who receives, the recording, its call.
type Asking = (SpId, Rank, u32, u64);

/// A message that goes to where it is received.
#[derive(Debug)]
struct Coming {
    step: StepOf,
    to: MemRef,
    got: u64,
    /// Asked for.
    pulled: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Incoming {
    pub(crate) matching: Matching<Inbound, StepOf>,
    /// Wanted or coming.
    coming: BTreeMap<Number, Coming>,
    wanted: VecDeque<Number>,
    coming_bytes: u64,
    /// To be asked for.
    asking: BTreeMap<Asking, Vec<Wanted>>,
    /// Asked for, nothing of them has come.
    asked: BTreeMap<(SpId, u64), (Name, u64)>,
    /// Of those, and of those of them that are coming.
    asked_bytes: u64,
    last_asked: u64,
    taken: BTreeMap<SpId, Vec<u64>>,
    /// The last number that each service process has given.
    last: BTreeMap<SpId, u64>,
}

impl Incoming {
    /// Names of the messages that receives wait for.
    pub(crate) fn awaited(&self) -> impl Iterator<Item = &Name> {
        self.matching.receives().map(|(name, _)| name)
    }

    /// `from` numbers `count` messages from `first` on. False when it has given these numbers before.
    pub(crate) fn numbered(&mut self, from: SpId, first: u64, count: usize) -> bool {
        let last = self.last.entry(from).or_insert(0);
        let fresh = first > *last;
        if fresh {
            *last = first + (count as u64 - 1);
        }
        fresh
    }

    /// The receive of this message waits, which `from` is to send unannounced.
    pub(crate) fn ask(&mut self, from: SpId, name: Name, bytes: u64) {
        let Name { destination, source, recording, call, tag, occurrence } = name;
        let wanted = Wanted { source, tag, occurrence, bytes, room: false };
        self.asking.entry((from, destination, recording, call)).or_default().push(wanted);
    }

    /// A message that is announced has met its receive.
    pub(crate) fn want(&mut self, number: (SpId, u64), bytes: u64, (step, to): (StepOf, MemRef)) {
        assert_eq!(to.len, bytes, "as much is received as was sent");
        let number = Number::Posted(number.0, number.1);
        self.coming.insert(number, Coming { step, to, got: 0, pulled: false });
        self.wanted.push_back(number);
    }

    /// Asks for messages while there is room.
    pub(crate) fn pull(&mut self, cx: &mut Context<'_>) {
        let most = cx.quantum().pulled;
        let mut pulls: BTreeMap<SpId, Vec<u64>> = BTreeMap::new();
        while let Some(number) = self.wanted.front() {
            let coming = self.coming.get_mut(number).expect("forgotten together");
            if self.coming_bytes > 0 && self.coming_bytes.saturating_add(coming.to.len) > most {
                break;
            }
            coming.pulled = true;
            self.coming_bytes += coming.to.len;
            let Number::Posted(from, number) = *number else { unreachable!("the others have been asked for") };
            pulls.entry(from).or_default().push(number);
            self.wanted.pop_front();
        }
        tell(cx, pulls, |numbers| TaggedMessage::Pull { numbers });
    }

    /// Asks for messages that are not announced, as far as there is room.
    pub(crate) fn tell_asked(&mut self, cx: &mut Context<'_>) {
        let most = cx.quantum().pulled.saturating_mul(ASKED_AHEAD);
        for ((to, destination, recording, call), mut wanted) in std::mem::take(&mut self.asking) {
            for messages in wanted.chunks_mut(MAX_POSTED) {
                let first = self.last_asked + 1;
                for message in &mut *messages {
                    self.last_asked += 1;
                    let Wanted { source, tag, occurrence, bytes, .. } = *message;
                    message.room = self.asked_bytes.saturating_add(bytes) <= most;
                    if message.room {
                        self.asked_bytes += bytes;
                        let name = Name { destination, source, recording, call, tag, occurrence };
                        self.asked.insert((to, self.last_asked), (name, bytes));
                    }
                }
                let messages = messages.to_vec();
                let tagged = TaggedMessage::Ask { destination, recording, call, first, messages };
                cx.out.messages.push_back((to, Message::Tagged { group: cx.members.handle, tagged }));
            }
        }
    }

    /// The first bytes of a message have come that was asked for unannounced, if these are: `receive` finds its receive.
    /// False when there is none any more.
    pub(crate) fn begin(
        &mut self,
        (from, number): (SpId, u64),
        receive: impl FnOnce(&mut Matching<Inbound, StepOf>, &Name) -> Option<(StepOf, MemRef)>,
    ) -> bool {
        let Some((name, bytes)) = self.asked.remove(&(from, number)) else { return true };
        let received = receive(&mut self.matching, &name);
        match received {
            Some((step, to)) => {
                let coming = Coming { step, to, got: 0, pulled: true };
                self.coming.insert(Number::Asked(from, number), coming);
            }
            None => self.no_more(Number::Asked(from, number), bytes),
        }
        received.is_some()
    }

    /// The source of this message is to be told that it is done.
    pub(crate) fn taken(&mut self, from: SpId, number: u64) {
        self.taken.entry(from).or_default().push(number);
    }

    /// Tells it.
    pub(crate) fn tell_taken(&mut self, cx: &mut Context<'_>) {
        tell(cx, std::mem::take(&mut self.taken), |numbers| TaggedMessage::Took { numbers });
    }

    /// Where the next bytes of a message go, and the step that they complete. None when no such bytes can come.
    pub(crate) fn part(&mut self, number: Number, (offset, len): (u64, u64)) -> Option<(MemRef, Option<StepOf>)> {
        let coming = self.coming.get_mut(&number).filter(|coming| coming.pulled)?;
        if offset != coming.got || len == 0 || len > coming.to.len - offset {
            return None;
        }
        coming.got += len;
        let to = MemRef { offset: coming.to.offset + offset, len, ..coming.to };
        let done = (coming.got == coming.to.len).then_some(coming.step);
        if done.is_some() {
            let bytes = coming.to.len;
            self.coming.remove(&number);
            self.no_more(number, bytes);
        }
        Some((to, done))
    }

    /// Takes out what will not come: the steps that have waited for it.
    pub(crate) fn forget(&mut self, gone: impl Fn(StepOf) -> bool) -> Vec<StepOf> {
        let (forgotten, coming): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.coming).into_iter().partition(|(_, coming)| gone(coming.step));
        self.coming = coming;
        for (number, coming) in forgotten.iter().filter(|(_, coming)| coming.pulled) {
            self.no_more(*number, coming.to.len);
        }
        self.wanted.retain(|number| self.coming.contains_key(number));
        forgotten.into_values().map(|coming| coming.step).collect()
    }

    /// Nothing more comes of what was asked for.
    fn no_more(&mut self, number: Number, bytes: u64) {
        match number {
            Number::Posted(..) => self.coming_bytes -= bytes,
            Number::Asked(..) => self.asked_bytes -= bytes,
        }
    }

    /// What was asked for will not be sent, or not be received.
    pub(crate) fn forget_asked(&mut self, gone: impl Fn(&Name) -> bool) {
        self.asked.retain(|_, (name, bytes)| {
            let out = gone(name);
            self.asked_bytes -= if out { *bytes } else { 0 };
            !out
        });
    }
}

fn tell(cx: &mut Context<'_>, all: BTreeMap<SpId, Vec<u64>>, what: impl Fn(Vec<u64>) -> TaggedMessage) {
    let group = cx.members.handle;
    for (to, numbers) in all {
        for numbers in numbers.chunks(MAX_NUMBERS) {
            cx.out.messages.push_back((to, Message::Tagged { group, tagged: what(numbers.to_vec()) }));
        }
    }
}
