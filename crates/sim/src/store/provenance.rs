//! Where bytes come from, without the bytes: intervals of a buffer, each with its source.
//!
//! Invariants: the intervals of a map are disjoint and no two neighbours could be one; what nobody wrote has no
//! interval. A write that an interval goes on with is put there at once; others are gathered, and merged when they are
//! many or somebody reads, because a receive buffer is written a thousand times for each read.

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

    /// Equal for equal pieces alone.
    pub(super) fn bytes(&self) -> [u8; 24] {
        let name = u64::from(self.origin.instance) << 32 | u64::from(self.origin.group ^ self.origin.rank << 16);
        let words = [self.len, name, self.offset];
        std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8])
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

/// Writes that are gathered at least before they are merged.
const GATHERED: usize = 512;

/// What lies where in one buffer.
#[derive(Debug, Default)]
pub(super) struct IntervalMap {
    /// By where they start.
    merged: Vec<(u64, Piece)>,
    gathered: Vec<(u64, Piece)>,
    /// The interval that grew last: as a rule blocks grow in turn.
    grown: usize,
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
        // What was gathered before would be written over this.
        if self.gathered.is_empty() && self.grow(start, piece) {
            return;
        }
        // A merge moves all intervals: so many writes pay for it.
        if self.gathered.len() >= GATHERED.max(self.merged.len() / 2) {
            self.merge();
        }
        self.gathered.push((start, piece));
    }

    /// Lets the interval that ends at `start` grow by a piece, if it can and reaches no other that it would be one
    /// with.
    fn grow(&mut self, start: u64, piece: Piece) -> bool {
        let ends_there = |(s, before): &(u64, Piece)| s + before.len == start;
        let next = [self.grown + 1, self.grown].into_iter().find(|at| self.merged.get(*at).is_some_and(ends_there));
        let at = next.or_else(|| self.starting_before(start).checked_sub(1)).unwrap_or(0);
        let end = start + piece.len;
        let is_free =
            self.merged.get(at + 1).is_none_or(|(s, after)| end < *s || end == *s && !after.continues(&piece));
        match self.merged.get_mut(at).filter(|before| ends_there(before)) {
            Some((_, before)) if is_free && piece.continues(before) => before.len += piece.len,
            _ => return false,
        }
        self.grown = at;
        true
    }

    /// How many intervals start before `at`.
    fn starting_before(&self, at: u64) -> usize {
        self.merged.partition_point(|(s, _)| *s < at)
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
        let first = self.starting_before(start).saturating_sub(1);
        let mut at = start;
        for (s, piece) in self.merged[first..].iter().take_while(|(s, _)| *s < end) {
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
        let disjoint = (gathered.len() >= GATHERED).then(|| self.with_disjoint(&gathered)).flatten();
        match disjoint {
            Some(merged) => self.merged = merged,
            None => gathered.iter().for_each(|(start, piece)| self.insert(*start, *piece)),
        }
        gathered.clear();
        self.gathered = gathered;
    }

    /// All intervals and what was gathered, if none of it lies over another.
    fn with_disjoint(&self, gathered: &[(u64, Piece)]) -> Option<Vec<(u64, Piece)>> {
        let mut sorted = gathered.to_vec();
        sorted.sort_by_key(|(start, _)| *start);
        let mut all: Vec<(u64, Piece)> = Vec::with_capacity(self.merged.len() + sorted.len());
        let (mut old, mut new) = (self.merged.iter().peekable(), sorted.iter().peekable());
        while let Some((start, piece)) =
            old.next_if(|(s, _)| new.peek().is_none_or(|(n, _)| s < n)).or_else(|| new.next())
        {
            match all.last_mut() {
                Some((s, last)) if *s + last.len > *start => return None,
                Some((s, last)) if *s + last.len == *start && piece.continues(last) => last.len += piece.len,
                _ => all.push((*start, *piece)),
            }
        }
        Some(all)
    }

    fn insert(&mut self, start: u64, piece: Piece) {
        let end = start + piece.len;
        let touched = self.merged.partition_point(|(s, p)| s + p.len < start)..self.starting_before(end + 1);
        let mut new: Vec<(u64, Piece)> = Vec::with_capacity(3);
        let mut push = |start, piece: Piece| match new.last_mut() {
            Some((_, last)) if piece.continues(last) => last.len += piece.len,
            _ => new.push((start, piece)),
        };
        let around = &self.merged[touched.clone()];
        around
            .first()
            .filter(|(s, _)| *s < start)
            .into_iter()
            .for_each(|(s, before)| push(*s, before.part(0, start - s)));
        push(start, piece);
        if let Some((s, after)) = around.last().filter(|(s, after)| s + after.len > end) {
            push(end, after.part(end - s, s + after.len - end));
        }
        self.merged.splice(touched, new);
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
