//! Output of relayed calls as the service process writes it, so that it can leave before the call ends (GP-9).
//!
//! The conductor's writes are noted, in spans of addresses; the thread that delivers takes those that are worth a frame. What
//! was noted only decides when bytes leave: the end of a call sends whatever has not left. Never blocks the conductor for
//! longer than a look at the spans.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use outboard_shm::control::RankSide;
use outboard_shm::memory::{Watch, WritePiece};

/// Bytes in a row that are sent before the call has ended.
const WORTH_A_FRAME: u64 = 128 << 10;

/// Ranges of numbers that neither overlap nor touch: end by start.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds a range; returns the length of the span that it is part of then.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        while let Some((&from, &to)) = self.0.range(..=end).next_back().filter(|(_, to)| **to >= start) {
            self.0.remove(&from);
            (start, end) = (start.min(from), end.max(to));
        }
        self.0.insert(start, end);
        end - start
    }

    /// Takes a range out; returns the parts of it that were there.
    pub(super) fn remove(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        if start >= end {
            return found;
        }
        while let Some((&from, &to)) = self.0.range(..end).next_back().filter(|(_, to)| **to > start) {
            self.0.remove(&from);
            if from < start {
                self.0.insert(from, start);
            }
            if to > end {
                self.0.insert(end, to);
            }
            found.push((from.max(start), to.min(end)));
        }
        found
    }

    /// What a range has beside these, in order.
    pub(super) fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut rest = Spans::default();
        rest.insert(start, end);
        let among = self.0.range(..end).rev().take_while(|(_, to)| **to > start);
        among.for_each(|(from, to)| drop(rest.remove(*from, *to)));
        rest.0.into_iter().collect()
    }

    /// All of them, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    fn first_of(&self, least: u64) -> Option<(u64, u64)> {
        self.0.iter().find(|(start, end)| *end - *start >= least).map(|(start, end)| (*start, *end))
    }
}

/// What has been written to one rank's shadows and has not left.
#[derive(Debug, Default)]
pub(crate) struct Output {
    written: Mutex<Spans>,
    /// Wakes the thread that delivers.
    side: OnceLock<Arc<RankSide>>,
}

impl Output {
    fn written(&self) -> MutexGuard<'_, Spans> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the thread that waits there hears of output.
    pub(super) fn wake(&self, side: &Arc<RankSide>) {
        // Set once for each rank.
        let _ = self.side.set(Arc::clone(side));
    }

    /// Whether some is worth a frame.
    pub(super) fn is_worth_a_frame(&self) -> bool {
        self.written().first_of(WORTH_A_FRAME).is_some()
    }

    /// Takes a span that is worth a frame.
    pub(super) fn take(&self) -> Option<(u64, u64)> {
        let mut written = self.written();
        let (start, end) = written.first_of(WORTH_A_FRAME)?;
        written.remove(start, end);
        Some((start, end))
    }

    /// Takes all that lies between two addresses.
    pub(super) fn take_between(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        self.written().remove(start, end)
    }
}

impl Watch for Output {
    fn written(&self, batch: &[WritePiece<'_>]) {
        let mut spans = Output::written(self);
        let longest = batch.iter().map(|piece| {
            let end = piece.address.saturating_add(piece.local.len() as u64);
            spans.insert(piece.address, end)
        });
        let longest = longest.max();
        drop(spans);
        if longest >= Some(WORTH_A_FRAME)
            && let Some(side) = self.side.get()
        {
            side.nudge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Against a set of numbers.
        #[test]
        fn spans_are_sets(steps in proptest::collection::vec((any::<bool>(), 0u64..64, 0u64..16), 0..40)) {
            let (mut spans, mut model) = (Spans::default(), std::collections::BTreeSet::new());
            for (add, start, length) in steps {
                let range = start..start + length;
                if add {
                    spans.insert(start, start + length);
                    model.extend(range);
                } else {
                    let taken: u64 = spans.remove(start, start + length).iter().map(|(from, to)| to - from).sum();
                    prop_assert_eq!(taken, range.filter(|number| model.remove(number)).count() as u64);
                }
                let numbers: Vec<u64> = spans.0.iter().flat_map(|(from, to)| *from..*to).collect();
                prop_assert!(numbers.iter().eq(&model));
                let touching = spans.0.iter().zip(spans.0.iter().skip(1)).any(|(one, next)| one.1 >= next.0);
                prop_assert!(!touching && spans.0.iter().all(|(from, to)| from < to));
                let missing: Vec<u64> = spans.missing(0, 80).iter().flat_map(|(from, to)| *from..*to).collect();
                prop_assert_eq!(missing, (0..80).filter(|number| !model.contains(number)).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn what_is_worth_a_frame_is_taken_once() {
        let output = Output::default();
        let half = vec![1; WORTH_A_FRAME as usize / 2];
        output.take_between(0, 1);
        Watch::written(&output, &[WritePiece { local: &half, address: 1000 }]);
        assert!(!output.is_worth_a_frame() && output.take().is_none());
        Watch::written(&output, &[WritePiece { local: &half, address: 1000 + half.len() as u64 }]);
        assert_eq!(output.take(), Some((1000, 1000 + WORTH_A_FRAME)));
        assert_eq!(output.take_between(0, u64::MAX), []);
    }
}
