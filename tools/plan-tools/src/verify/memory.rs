//! Contents of a rank's memory by provenance: runs of contributed bytes stand for the bytes themselves.
//!
//! Invariants: runs of a [`SymbolicBuffer`] do not overlap and are not empty. Memory use grows with the number of runs,
//! never with bytes. Callers pass only spans that end within 64 bits.

use std::collections::BTreeMap;
use std::ops::Range;

use super::values::TreeId;

/// `len` bytes of `value`, from its byte `from` on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ValueRun {
    pub(super) value: TreeId,
    pub(super) from: u64,
    pub(super) len: u64,
}

impl ValueRun {
    /// The run without its first `skip` bytes, cut to at most `len` bytes.
    pub(super) fn part(self, skip: u64, len: u64) -> ValueRun {
        ValueRun { value: self.value, from: self.from + skip, len: (self.len - skip).min(len) }
    }

    fn continues_with(self, next: ValueRun) -> bool {
        self.value == next.value && self.from + self.len == next.from
    }
}

/// The contents of one buffer, by offset.
#[derive(Debug, Clone, Default)]
pub(super) struct SymbolicBuffer {
    runs: BTreeMap<u64, ValueRun>,
}

impl SymbolicBuffer {
    /// The contents of `range` with adjoining runs joined; the error is the offset of the first unwritten byte.
    pub(super) fn read(&self, range: Range<u64>) -> Result<Vec<ValueRun>, u64> {
        let mut found: Vec<ValueRun> = Vec::new();
        let mut next = range.start;
        while next < range.end {
            let (offset, run) = self.runs.range(..=next).next_back().ok_or(next)?;
            if offset + run.len <= next {
                return Err(next);
            }
            let part = run.part(next - offset, range.end - next);
            next += part.len;
            match found.last_mut() {
                Some(last) if last.continues_with(part) => last.len += part.len,
                _ => found.push(part),
            }
        }
        Ok(found)
    }

    pub(super) fn erase(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let reaching = self.runs.range(..range.start).next_back().map(|(offset, run)| (*offset, *run));
        if let Some((offset, run)) = reaching
            && offset + run.len > range.start
        {
            self.runs.insert(offset, run.part(0, range.start - offset));
            if offset + run.len > range.end {
                self.runs.insert(range.end, run.part(range.end - offset, u64::MAX));
            }
        }
        while let Some((offset, run)) = self.runs.range(range.clone()).next().map(|(offset, run)| (*offset, *run)) {
            self.runs.remove(&offset);
            if offset + run.len > range.end {
                self.runs.insert(range.end, run.part(range.end - offset, u64::MAX));
            }
        }
    }

    /// Writes `runs` one after the other from `offset` on.
    pub(super) fn write(&mut self, offset: u64, runs: &[ValueRun]) {
        let mut next = offset;
        for run in runs {
            self.erase(next..next + run.len);
            self.runs.insert(next, *run);
            next += run.len;
        }
    }

    /// The offset of the first written byte.
    pub(super) fn first(&self) -> Option<u64> {
        self.runs.keys().next().copied()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use outboard_plan::Rank;

    #[derive(Debug, Clone)]
    enum Action {
        Write { offset: u64, run: ValueRun },
        Erase(Range<u64>),
    }

    fn action() -> impl Strategy<Value = Action> {
        let write = (0..40u64, 0..3u32, 0..40u64, 1..12u64).prop_map(|(offset, source, from, len)| Action::Write {
            offset,
            run: ValueRun { value: TreeId::of(Rank(source)), from, len },
        });
        let erase = (0..50u64, 0..20u64).prop_map(|(start, len)| Action::Erase(start..start + len));
        prop_oneof![3 => write, 1 => erase]
    }

    proptest! {
        /// Memory behaves like an array of bytes that each carry their origin.
        #[test]
        fn behaves_like_bytes(actions in prop::collection::vec(action(), 1..30), start in 0..60u64, len in 0..30u64) {
            let mut memory = SymbolicBuffer::default();
            let mut bytes: Vec<Option<(TreeId, u64)>> = vec![None; 100];
            for action in actions {
                match action {
                    Action::Write { offset, run } => {
                        memory.write(offset, &[run]);
                        for i in 0..run.len {
                            bytes[(offset + i) as usize] = Some((run.value, run.from + i));
                        }
                    }
                    Action::Erase(range) => {
                        memory.erase(range.clone());
                        bytes[range.start as usize..range.end as usize].fill(None);
                    }
                }
            }
            prop_assert_eq!(memory.first(), bytes.iter().position(Option::is_some).map(|at| at as u64));
            let expected = &bytes[start as usize..(start + len) as usize];
            match memory.read(start..start + len) {
                Err(offset) => {
                    let hole = expected.iter().position(Option::is_none);
                    prop_assert_eq!(Some(offset), hole.map(|at| start + at as u64));
                }
                Ok(runs) => {
                    prop_assert!(runs.windows(2).all(|pair| !pair[0].continues_with(pair[1])));
                    let read = runs.iter().flat_map(|run| (0..run.len).map(|i| Some((run.value, run.from + i))));
                    prop_assert_eq!(&read.collect::<Vec<_>>(), expected);
                }
            }
        }
    }
}
