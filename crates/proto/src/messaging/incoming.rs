//! Messages for local ranks: those that wait, those that are asked for, and what their sources are to be told.
//!
//! As of an all-to-all, a bounded number of bytes is asked for at a time (SP-5). Invariant: a message is asked for once.

use std::collections::{BTreeMap, VecDeque};

use crate::collective::Context;
use crate::ids::SpId;
use crate::interface::MemRef;
use crate::wire::{MAX_NUMBERS, Message, TaggedMessage};

use super::matching::{Matching, Name};
use super::{Inbound, StepOf};

/// A message by the number that its service process has given it.
type Number = (SpId, u64);

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

    /// A message that is announced has met its receive.
    pub(crate) fn want(&mut self, number: Number, bytes: u64, (step, to): (StepOf, MemRef)) {
        assert_eq!(to.len, bytes, "as much is received as was sent");
        self.coming.insert(number, Coming { step, to, got: 0, pulled: false });
        self.wanted.push_back(number);
    }

    /// Asks for messages while there is room.
    pub(crate) fn pull(&mut self, cx: &mut Context<'_>) {
        let most = cx.portion().pulled;
        let mut pulls: BTreeMap<SpId, Vec<u64>> = BTreeMap::new();
        while let Some(number) = self.wanted.front() {
            let coming = self.coming.get_mut(number).expect("forgotten together");
            if self.coming_bytes > 0 && self.coming_bytes.saturating_add(coming.to.len) > most {
                break;
            }
            coming.pulled = true;
            self.coming_bytes += coming.to.len;
            pulls.entry(number.0).or_default().push(number.1);
            self.wanted.pop_front();
        }
        tell(cx, pulls, |numbers| TaggedMessage::Pull { numbers });
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
            self.coming_bytes -= coming.to.len;
            self.coming.remove(&number);
        }
        Some((to, done))
    }

    /// Takes out what will not come: the steps that have waited for it.
    pub(crate) fn forget(&mut self, gone: impl Fn(StepOf) -> bool) -> Vec<StepOf> {
        let (forgotten, coming): (BTreeMap<_, _>, _) =
            std::mem::take(&mut self.coming).into_iter().partition(|(_, coming)| gone(coming.step));
        self.coming = coming;
        self.coming_bytes -= forgotten.values().filter(|c| c.pulled).map(|c| c.to.len).sum::<u64>();
        self.wanted.retain(|number| self.coming.contains_key(number));
        forgotten.into_values().map(|coming| coming.step).collect()
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
