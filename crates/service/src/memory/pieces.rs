//! Pieces of memory that form one buffer, one after another (GP-5).

/// Pieces of memory, addressed by the offset in the buffer that they form.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MemoryPieces {
    /// For each piece that is not empty: its offset in the buffer, its address and its bytes.
    pieces: Vec<(u64, u64, u64)>,
    total: u64,
}

impl MemoryPieces {
    /// `pieces` holds address and bytes of each piece. The sum of the bytes must fit 64 bits.
    pub fn new(pieces: impl IntoIterator<Item = (u64, u64)>) -> MemoryPieces {
        let mut placed = MemoryPieces::default();
        for (address, bytes) in pieces.into_iter().filter(|(_, bytes)| *bytes > 0) {
            placed.pieces.push((placed.total, address, bytes));
            placed.total += bytes;
        }
        placed
    }

    /// Bytes of all pieces.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Address and bytes of each piece.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64)> {
        self.pieces.iter().map(|(_, address, bytes)| (*address, *bytes))
    }

    /// Address and bytes of each contiguous part of the buffer within `bytes` bytes from `offset` on.
    pub fn places(&self, offset: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        let end = offset.saturating_add(bytes);
        let first = self.pieces.partition_point(|(start, _, length)| start + length <= offset);
        let within = self.pieces[first..].iter().take_while(move |(start, ..)| *start < end);
        within.map(move |(start, address, length)| {
            let (from, to) = (offset.max(*start), end.min(start + length));
            (address.wrapping_add(from - start), to - from)
        })
    }

    /// Ranges of offsets (start and end) in the buffer whose bytes lie between two addresses. The addresses of the
    /// pieces must ascend.
    pub fn offsets(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> {
        let first = self.pieces.partition_point(|(_, address, length)| address + length <= start);
        let within = self.pieces[first..].iter().take_while(move |(_, address, _)| *address < end);
        within.map(move |(offset, address, length)| {
            let (from, to) = (start.max(*address), end.min(address + length));
            (offset + (from - address), offset + (to - address))
        })
    }

    /// Address of the byte at `offset`.
    ///
    /// # Panics
    /// If no piece contains `offset`.
    #[must_use]
    pub fn address(&self, offset: u64) -> u64 {
        self.places(offset, 1).next().expect("a byte of one of the pieces").0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// `places` and `offsets` are inverse to each other, byte by byte.
        #[test]
        fn ordered_pieces_are_found_by_offset_and_by_address(gaps in proptest::collection::vec((0u64..5, 0u64..9), 0..9), cut in 0u64..80) {
            let mut end = 0;
            let list: Vec<(u64, u64)> = gaps.into_iter().map(|(gap, bytes)| {
                let at = end + gap;
                end = at + bytes;
                (at, bytes)
            }).collect();
            let pieces = MemoryPieces::new(list.clone());
            let bytes: Vec<u64> = list.iter().flat_map(|(at, bytes)| *at..at + bytes).collect();
            let all = |places: &mut dyn Iterator<Item = (u64, u64)>| -> Vec<u64> {
                places.flat_map(|(at, count)| at..at + count).collect()
            };
            prop_assert_eq!(pieces.total(), bytes.len() as u64);
            let from = (cut as usize).min(bytes.len());
            let to = (from + 7).min(bytes.len());
            prop_assert_eq!(all(&mut pieces.places(cut, 7)), &bytes[from..to]);
            let offsets: Vec<u64> = pieces.offsets(cut, cut + 7).flat_map(|(from, to)| from..to).collect();
            let expected = (0..).zip(&bytes).filter(|(_, at)| (cut..cut + 7).contains(*at)).map(|(offset, _)| offset);
            prop_assert_eq!(offsets, expected.collect::<Vec<u64>>());
        }
    }
}
