//! Sets of numbers, stored as ranges; used for written, sent or free bytes.

use std::collections::BTreeMap;

/// Ranges that neither overlap nor touch: maps each start to its end.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Spans(BTreeMap<u64, u64>);

impl Spans {
    /// Adds a range; returns the length of the span that then contains the range.
    pub(crate) fn insert(&mut self, mut start: u64, mut end: u64) -> u64 {
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

    /// Removes a range; returns the parts of the range that were in the set.
    pub(crate) fn remove(&mut self, start: u64, end: u64) -> Vec<(u64, u64)> {
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

    /// The parts of a range that are not in the set, in order.
    pub(crate) fn missing(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        let mut rest = Spans::default();
        rest.insert(start, end);
        let among = self.0.range(..end).rev().take_while(|(_, to)| **to > start);
        among.for_each(|(from, to)| drop(rest.remove(*from, *to)));
        rest.0.into_iter().collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|(start, end)| (*start, *end))
    }

    /// The first span whose length is at least `least`.
    pub(crate) fn first_of(&self, least: u64) -> Option<(u64, u64)> {
        self.0.iter().find(|(start, end)| *end - *start >= least).map(|(start, end)| (*start, *end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Compares [`Spans`] with a set of single numbers.
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
}
