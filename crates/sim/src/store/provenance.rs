//! Where bytes come from, without the bytes: intervals of a buffer, each with its source.
//!
//! Invariants: the intervals of a map are disjoint and no two neighbours could be one; what nobody wrote has no
//! interval. Writes are gathered and merged only when somebody reads, because a receive buffer is written a thousand
//! times for each read.

use std::collections::BTreeMap;
use std::fmt;

/// A contribution: the send buffer of one rank in one collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Origin {
    pub(crate) group: u32,
    pub(crate) instance: u32,
    pub(crate) rank: u32,
}

impl Origin {
    const UNDEFINED: Origin = Origin { group: u32::MAX, instance: 0, rank: 0 };

    /// Whether nobody wrote what this stands for.
    pub(crate) fn is_undefined(self) -> bool {
        self == Self::UNDEFINED
    }

    /// A number of its own.
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
pub(crate) struct Piece {
    pub(crate) len: u64,
    pub(crate) origin: Origin,
    pub(crate) offset: u64,
}

impl Piece {
    fn continues(&self, before: &Piece) -> bool {
        self.origin == before.origin && (self.origin.is_undefined() || self.offset == before.offset + before.len)
    }

    fn part(&self, skip: u64, len: u64) -> Piece {
        Piece { len, origin: self.origin, offset: self.offset + skip }
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.origin.is_undefined() {
            return write!(f, "nothing ({} bytes)", self.len);
        }
        let Origin { group, instance, rank } = self.origin;
        write!(f, "byte {} of rank {rank}, group {group}, instance {instance} ({} bytes)", self.offset, self.len)
    }
}

/// Calls `f` with what `len` bytes from `offset` of the concatenated `pieces` are.
pub(super) fn for_each_piece(pieces: &[Piece], offset: u64, len: u64, mut f: impl FnMut(Piece)) {
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

/// Where `pieces` stop being `len` bytes from `from` of `origin`.
pub(super) fn difference(pieces: &[Piece], len: u64, origin: Origin, from: u64) -> Option<(u64, Piece)> {
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

/// Writes gathered before they are merged.
const GATHERED: usize = 512;

/// What lies where in one buffer.
#[derive(Debug, Default)]
pub(super) struct IntervalMap {
    merged: BTreeMap<u64, Piece>,
    gathered: Vec<(u64, Piece)>,
}

impl IntervalMap {
    pub(super) fn write(&mut self, start: u64, piece: Piece) {
        if piece.len == 0 {
            return;
        }
        if let Some((last_start, last)) = self.gathered.last_mut()
            && *last_start + last.len == start
            && piece.continues(last)
        {
            last.len += piece.len;
            return;
        }
        if self.gathered.len() == GATHERED {
            self.merge();
        }
        self.gathered.push((start, piece));
    }

    /// What lies in `len` bytes from `start`, holes included.
    pub(super) fn read(&mut self, start: u64, len: u64) -> Vec<Piece> {
        self.merge();
        let end = start + len;
        let mut out: Vec<Piece> = Vec::with_capacity(1);
        let mut push = |piece: Piece| match out.last_mut() {
            Some(last) if piece.continues(last) => last.len += piece.len,
            _ => out.push(piece),
        };
        let first = self.merged.range(..=start).next_back().map_or(start, |(s, _)| *s);
        let mut at = start;
        for (s, piece) in self.merged.range(first..end) {
            let piece_end = s + piece.len;
            if piece_end <= at {
                continue;
            }
            if *s > at {
                push(Piece { len: s - at, origin: Origin::UNDEFINED, offset: 0 });
                at = *s;
            }
            let until = piece_end.min(end);
            push(piece.part(at - s, until - at));
            at = until;
        }
        if at < end {
            push(Piece { len: end - at, origin: Origin::UNDEFINED, offset: 0 });
        }
        out
    }

    fn merge(&mut self) {
        let mut gathered = std::mem::take(&mut self.gathered);
        for (start, piece) in gathered.drain(..) {
            self.insert(start, piece);
        }
        self.gathered = gathered;
    }

    fn insert(&mut self, start: u64, piece: Piece) {
        let end = start + piece.len;
        // As a rule a block grows at its end, and what begins last up to there is what it grows from.
        if let Some((s, before)) = self.merged.range_mut(..=end).next_back()
            && s + before.len == start
            && piece.continues(before)
        {
            before.len += piece.len;
            return;
        }
        self.cut_at(start);
        self.cut_at(end);
        while let Some((s, _)) = self.merged.range(start..end).next() {
            let s = *s;
            self.merged.remove(&s);
        }
        let (mut start, mut piece) = (start, piece);
        if let Some(next) = self.merged.get(&end)
            && next.continues(&piece)
        {
            piece.len += next.len;
            self.merged.remove(&end);
        }
        if let Some((s, before)) = self.merged.range(..start).next_back()
            && s + before.len == start
            && piece.continues(before)
        {
            start = *s;
            piece = Piece { len: before.len + piece.len, ..*before };
        }
        self.merged.insert(start, piece);
    }

    /// Makes `at` a boundary between intervals.
    fn cut_at(&mut self, at: u64) {
        if let Some((s, piece)) = self.merged.range_mut(..at).next_back()
            && s + piece.len > at
        {
            let head = at - s;
            let tail = piece.part(head, piece.len - head);
            piece.len = head;
            self.merged.insert(at, tail);
        }
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
            let mut array = [(Origin::UNDEFINED, 0u64); 64];
            for _ in 0..40 {
                let start = rng.random_range(0..64u64);
                let len = rng.random_range(0..=64 - start);
                let origin = Origin { group: 0, instance: 0, rank: rng.random_range(0..2) };
                // Half of the writes are aligned like right ones, so that neighbours merge.
                let offset = if rng.random() { start } else { rng.random_range(0..9) };
                map.write(start, Piece { len, origin, offset });
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
