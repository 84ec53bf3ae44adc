//! Records where the bytes of a buffer come from: intervals of the buffer, each with its source. The bytes themselves
//! are not kept.
//!
//! Invariants: the intervals of a map are disjoint. Adjacent intervals of one source are merged. Unwritten memory has
//! no interval.

use std::collections::BTreeMap;
use std::fmt;

/// A contribution: the send buffer of one rank in one collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContributionId {
    pub(crate) group: u32,
    pub(crate) instance: u32,
    pub(crate) rank: u32,
}

impl ContributionId {
    const UNDEFINED: ContributionId = ContributionId { group: u32::MAX, instance: 0, rank: 0 };

    /// Whether this contribution stands for unwritten memory.
    pub(crate) fn is_undefined(self) -> bool {
        self == Self::UNDEFINED
    }

    /// A number that differs from that of other contributions.
    pub(crate) fn name(self) -> u64 {
        let name = u64::from(self.group) << 48 ^ u64::from(self.instance) << 24 ^ u64::from(self.rank);
        name.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    /// The byte at `offset` of the contribution.
    pub(crate) fn byte(self, offset: u64) -> u8 {
        let word = ((offset / 8) ^ self.name()).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((word ^ (word >> 29)) >> (8 * (offset % 8))) as u8
    }
}

/// `len` bytes from `offset` of a contribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProvenancePiece {
    pub(crate) len: u64,
    pub(crate) origin: ContributionId,
    pub(crate) offset: u64,
}

impl ProvenancePiece {
    fn continues(&self, before: &ProvenancePiece) -> bool {
        self.origin == before.origin && (self.origin.is_undefined() || self.offset == before.offset + before.len)
    }

    /// The encoding of the piece; different pieces have different encodings.
    pub(super) fn bytes(&self) -> [u8; 24] {
        let name = u64::from(self.origin.instance) << 32 | u64::from(self.origin.group ^ self.origin.rank << 16);
        let words = [self.len, name, self.offset];
        std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
    }

    fn part(&self, skip: u64, len: u64) -> ProvenancePiece {
        ProvenancePiece { len, origin: self.origin, offset: self.offset + skip }
    }
}

impl fmt::Display for ProvenancePiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin.is_undefined() {
            return write!(f, "nothing ({} bytes)", self.len);
        }
        let ContributionId { group, instance, rank } = self.origin;
        write!(f, "byte {} of rank {rank}, group {group}, instance {instance} ({} bytes)", self.offset, self.len)
    }
}

/// Calls `f` with each piece of the `len` bytes from `offset` of the concatenated `pieces`.
pub(super) fn for_each_piece(pieces: &[ProvenancePiece], offset: u64, len: u64, mut f: impl FnMut(ProvenancePiece)) {
    let (mut skip, mut left) = (offset, len);
    for piece in pieces {
        if left == 0 {
            return;
        }
        if skip >= piece.len {
            skip -= piece.len;
            continue;
        }
        let n = left.min(piece.len - skip);
        f(piece.part(skip, n));
        left -= n;
        skip = 0;
    }
}

/// The first difference between `pieces` and `len` bytes from `from` of `origin`.
pub(super) fn difference(
    pieces: &[ProvenancePiece],
    len: u64,
    origin: ContributionId,
    from: u64,
) -> Option<(u64, ProvenancePiece)> {
    let mut at = 0;
    for piece in pieces {
        if piece.origin != origin || piece.offset != from + at {
            return Some((at, *piece));
        }
        at += piece.len;
    }
    assert_eq!(at, len, "a read returns as much as was asked for");
    None
}

/// The contents of one buffer, by the starts of the intervals.
#[derive(Debug, Default)]
pub(super) struct IntervalMap(BTreeMap<u64, ProvenancePiece>);

impl IntervalMap {
    pub(super) fn write(&mut self, start: u64, piece: ProvenancePiece) {
        if piece.len == 0 {
            return;
        }
        let end = start + piece.len;
        let is_free = |(at, after): (&u64, &ProvenancePiece)| end < *at || end == *at && !after.continues(&piece);
        if self.0.range(start..).next().is_none_or(is_free)
            && let Some((at, before)) = self.0.range_mut(..start).next_back()
            && at + before.len == start
            && piece.continues(before)
        {
            // The usual case: a write extends the interval before it.
            before.len += piece.len;
            return;
        }
        self.cut(start);
        self.cut(end);
        let covered: Vec<u64> = self.0.range(start..end).map(|(at, _)| *at).collect();
        covered.iter().for_each(|at| _ = self.0.remove(at));
        let (at, written) = match self.0.range_mut(..start).next_back() {
            Some((at, before)) if at + before.len == start && piece.continues(before) => {
                before.len += piece.len;
                (*at, *before)
            }
            _ => {
                self.0.insert(start, piece);
                (start, piece)
            }
        };
        if let Some(after) = self.0.get(&end).copied().filter(|after| after.continues(&written)) {
            self.0.remove(&end);
            self.0.insert(at, ProvenancePiece { len: written.len + after.len, ..written });
        }
    }

    /// Splits an interval that reaches across `at`.
    fn cut(&mut self, at: u64) {
        let Some((start, piece)) = self.0.range_mut(..at).next_back() else { return };
        let (before, end) = (at - start, start + piece.len);
        if end > at {
            let rest = piece.part(before, end - at);
            piece.len = before;
            self.0.insert(at, rest);
        }
    }

    /// The contents of `len` bytes from `start`, holes included.
    pub(super) fn read(&self, start: u64, len: u64) -> Vec<ProvenancePiece> {
        let end = start + len;
        let mut out: Vec<ProvenancePiece> = Vec::with_capacity(1);
        let hole = |len| ProvenancePiece { len, origin: ContributionId::UNDEFINED, offset: 0 };
        let first = self.0.range(..=start).next_back().map_or(start, |(at, _)| *at);
        let mut at = start;
        for (s, piece) in self.0.range(first..end) {
            let piece_end = s + piece.len;
            if piece_end <= at {
                continue;
            }
            if *s > at {
                out.push(hole(s - at));
                at = *s;
            }
            let until = piece_end.min(end);
            out.push(piece.part(at - s, until - at));
            at = until;
        }
        out.extend((at < end).then(|| hole(end - at)));
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::Rng;
    use rand::SeedableRng;
    use rand_chacha::ChaCha8Rng;

    #[test]
    fn agrees_with_an_array_of_origins() {
        let mut rng = ChaCha8Rng::seed_from_u64(7);
        for _ in 0..50 {
            let mut map = IntervalMap::default();
            let mut array = [(ContributionId::UNDEFINED, 0u64); 64];
            for _ in 0..40 {
                let start = rng.random_range(0..64u64);
                let len = rng.random_range(0..=64 - start);
                let origin = ContributionId { group: 0, instance: 0, rank: rng.random_range(0..2) };
                // Half of the writes are aligned like correct ones, so that neighbours merge.
                let offset = if rng.random() { start } else { rng.random_range(0..9) };
                map.write(start, ProvenancePiece { len, origin, offset });
                for i in 0..len {
                    array[(start + i) as usize] = (origin, offset + i);
                }
                let (from, n) = (rng.random_range(0..32u64), rng.random_range(0..=32u64));
                let mut at = from;
                for piece in map.read(from, n) {
                    for i in 0..piece.len {
                        let (origin, offset) = array[at as usize];
                        assert_eq!(piece.origin, origin);
                        assert!(origin.is_undefined() || piece.offset + i == offset);
                        at += 1;
                    }
                }
                assert_eq!(at, from + n);
            }
        }
    }
}
