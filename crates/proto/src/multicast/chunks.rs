//! A set of chunk numbers: one bit per chunk, the only state that grows with a buffer (MC-3).
//!
//! Invariant: `count` is the number of set bits; bits at and beyond `len` are clear.

use std::ops::Range;

/// A set of chunks of `0 .. len`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChunkSet {
    words: BitWords,
    len: u32,
    count: u32,
}

/// Small blocks are frequent, so the bits of a small block are stored without an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
enum BitWords {
    One(u64),
    Many(Box<[u64]>),
}

impl ChunkSet {
    /// The empty set over `len` chunks.
    pub(crate) fn new(len: u64) -> Self {
        let few = u32::try_from(len).expect("a block has fewer than 2^32 chunks");
        let words =
            if len <= 64 { BitWords::One(0) } else { BitWords::Many(vec![0; len.div_ceil(64) as usize].into()) };
        ChunkSet { words, len: few, count: 0 }
    }

    fn word(&self, chunk: u64) -> u64 {
        match &self.words {
            BitWords::One(word) => *word,
            BitWords::Many(words) => words[(chunk / 64) as usize],
        }
    }

    fn word_mut(&mut self, chunk: u64) -> &mut u64 {
        match &mut self.words {
            BitWords::One(word) => word,
            BitWords::Many(words) => &mut words[(chunk / 64) as usize],
        }
    }

    pub(crate) fn count(&self) -> u64 {
        self.count.into()
    }

    /// The number of chunks that the set can have.
    pub(crate) fn len(&self) -> u64 {
        self.len.into()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(crate) fn is_full(&self) -> bool {
        self.count == self.len
    }

    pub(crate) fn contains(&self, chunk: u64) -> bool {
        chunk < self.len() && self.word(chunk) >> (chunk % 64) & 1 == 1
    }

    /// Adds `chunk`; false when it was in the set.
    pub(crate) fn insert(&mut self, chunk: u64) -> bool {
        assert!(chunk < self.len(), "the caller checks the range");
        let (word, bit) = (self.word_mut(chunk), 1u64 << (chunk % 64));
        let new = *word & bit == 0;
        *word |= bit;
        self.count += u32::from(new);
        new
    }

    /// Adds all of `run`, word by word, so that a large request costs little.
    pub(crate) fn insert_run(&mut self, run: Range<u64>) {
        assert!(run.end <= self.len(), "the caller checks the range");
        let mut at = run.start;
        while at < run.end {
            let next = run.end.min((at / 64 + 1) * 64);
            let bits = u64::MAX >> (64 - (next - at)) << (at % 64);
            let word = self.word_mut(at);
            let new = bits & !*word;
            *word |= bits;
            self.count += new.count_ones();
            at = next;
        }
    }

    /// Takes `chunk` out; false when it was not in the set.
    pub(crate) fn remove(&mut self, chunk: u64) -> bool {
        let present = self.contains(chunk);
        if present {
            *self.word_mut(chunk) &= !(1u64 << (chunk % 64));
            self.count -= 1;
        }
        present
    }

    /// The first run of chunks within `range` whose membership is `present`.
    pub(crate) fn next_run(&self, range: Range<u64>, present: bool) -> Option<Range<u64>> {
        let end = range.end.min(self.len());
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
            let word = if present { self.word(at) } else { !self.word(at) };
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
        matches_a_naive_set(300, 7..290);
        matches_a_naive_set(64, 1..63);
    }

    fn matches_a_naive_set(len: u64, range: Range<u64>) {
        let mut set = ChunkSet::new(len);
        let mut naive = vec![false; len as usize];
        let mut x = 12345u64;
        for _ in 0..2000 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let c = (x >> 33) % len;
            if x & 0xff00 == 0 {
                let run = c..len.min(c + (x >> 16) % 150);
                set.insert_run(run.clone());
                run.for_each(|c| naive[c as usize] = true);
                assert_eq!(set.count(), naive.iter().filter(|there| **there).count() as u64);
            } else if x & 1 == 0 {
                assert_eq!(set.insert(c), !naive[c as usize]);
                naive[c as usize] = true;
            } else {
                assert_eq!(set.remove(c), naive[c as usize]);
                naive[c as usize] = false;
            }
        }
        for present in [true, false] {
            let mut covered = vec![false; len as usize];
            let mut end = 0;
            for run in set.runs(range.clone(), present) {
                assert!(run.start >= end && run.start < run.end, "ascending, disjoint, not empty");
                end = run.end + 1;
                run.for_each(|c| covered[c as usize] = true);
            }
            for c in 0..len as usize {
                assert_eq!(covered[c], range.contains(&(c as u64)) && naive[c] == present);
            }
        }
        assert_eq!(set.is_full(), naive.iter().all(|b| *b));
    }

    #[test]
    fn mc_3_bitmap_for_50_gb_at_4_kib_chunks_is_1_5_mb() {
        let set = ChunkSet::new(50_000_000_000u64.div_ceil(4096));
        let BitWords::Many(words) = set.words else { panic!("more than a word") };
        assert_eq!(words.len() * 8 / 1000, 1525);
    }
}
