//! A set of chunk numbers: one bit per chunk, the only state that grows with a buffer (MC-3).
//!
//! Invariant: `count` is the number of set bits; bits at and beyond `len` are clear.

use std::ops::Range;

/// Which chunks of `0 .. len` are in the set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkSet {
    words: Vec<u64>,
    len: u64,
    count: u64,
}

impl ChunkSet {
    /// The empty set over `len` chunks.
    #[must_use]
    pub(crate) fn new(len: u64) -> Self {
        ChunkSet { words: vec![0; len.div_ceil(64) as usize], len, count: 0 }
    }

    /// Chunks the set ranges over.
    #[must_use]
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// Whether no chunk is in the set.
    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether every chunk is in the set.
    #[must_use]
    pub(crate) fn is_full(&self) -> bool {
        self.count == self.len
    }

    /// Whether `chunk` is in the set.
    #[must_use]
    pub(crate) fn contains(&self, chunk: u64) -> bool {
        chunk < self.len && self.words[(chunk / 64) as usize] >> (chunk % 64) & 1 == 1
    }

    /// Adds `chunk`; false when it was in the set.
    pub(crate) fn insert(&mut self, chunk: u64) -> bool {
        assert!(chunk < self.len, "the caller checks the range");
        let (word, bit) = ((chunk / 64) as usize, 1u64 << (chunk % 64));
        let new = self.words[word] & bit == 0;
        self.words[word] |= bit;
        self.count += u64::from(new);
        new
    }

    /// Takes `chunk` out; false when it was not in the set.
    pub(crate) fn remove(&mut self, chunk: u64) -> bool {
        let present = self.contains(chunk);
        if present {
            self.words[(chunk / 64) as usize] &= !(1u64 << (chunk % 64));
            self.count -= 1;
        }
        present
    }

    /// The first run of chunks within `range` whose membership is `present`.
    #[must_use]
    pub(crate) fn next_run(&self, range: Range<u64>, present: bool) -> Option<Range<u64>> {
        let end = range.end.min(self.len);
        let first = self.find(range.start, end, present)?;
        let last = self.find(first, end, !present).unwrap_or(end);
        Some(first..last)
    }

    /// All runs within `range` whose membership is `present`, ascending.
    pub(crate) fn runs(&self, range: Range<u64>, present: bool) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = range.start;
        std::iter::from_fn(move || {
            let run = self.next_run(at..range.end, present)?;
            at = run.end;
            Some(run)
        })
    }

    fn find(&self, from: u64, end: u64, present: bool) -> Option<u64> {
        let mut at = from;
        while at < end {
            let word = self.words[(at / 64) as usize];
            let word = if present { word } else { !word };
            let rest = word >> (at % 64);
            if rest != 0 {
                let found = at + u64::from(rest.trailing_zeros());
                return (found < end).then_some(found);
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mc_3_runs_match_a_naive_set() {
        let mut set = ChunkSet::new(300);
        let mut naive = vec![false; 300];
        let mut x = 12345u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let c = (x >> 33) % 300;
            if x & 1 == 0 {
                assert_eq!(set.insert(c), !naive[c as usize]);
                naive[c as usize] = true;
            } else {
                assert_eq!(set.remove(c), naive[c as usize]);
                naive[c as usize] = false;
            }
        }
        for present in [true, false] {
            let mut covered = vec![false; 300];
            let mut end = 0;
            for run in set.runs(7..290, present) {
                assert!(run.start >= end && run.start < run.end, "ascending, disjoint, not empty");
                end = run.end + 1;
                run.for_each(|c| covered[c as usize] = true);
            }
            for c in 0..300 {
                assert_eq!(covered[c], (7..290).contains(&c) && naive[c] == present);
            }
        }
        assert_eq!(set.is_full(), naive.iter().all(|b| *b));
    }

    #[test]
    fn mc_3_bitmap_for_50_gb_at_4_kib_chunks_is_1_5_mb() {
        let set = ChunkSet::new(50_000_000_000u64.div_ceil(4096));
        assert_eq!(set.words.len() * 8 / 1000, 1525);
    }
}
