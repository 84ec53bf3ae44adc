//! Gathers and scatters in the submission ring: one rank has a block of every rank, the others have one.

use super::BadEntry;
use crate::ring::Words;

const KIND_GATHER: u64 = 32;
const KIND_GATHERV: u64 = 33;
const KIND_SCATTER: u64 = 34;
const KIND_SCATTERV: u64 = 35;
/// Beside the root in its word.
const FLAG_IN_PLACE: u64 = 1 << 32;
const FLAG_TABLE: u64 = 1 << 33;

/// A gather(v) or scatter(v) as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RootedEntry {
    /// As of [`AllgatherEntry`](super::AllgatherEntry).
    pub group: u64,
    /// As of [`AllgatherEntry`](super::AllgatherEntry).
    pub instance: u64,
    /// As of [`AllgatherEntry`](super::AllgatherEntry).
    pub slot: u32,
    /// Whether blocks go to the root or come from it.
    pub direction: Direction,
    /// The rank that has the blocks of all.
    pub root: u32,
    /// The root's own block stays where it is among the blocks of all.
    pub in_place: bool,
    /// Address in the rank of what it sends, where it sends anything.
    pub send: u64,
    /// Address in the rank of where it receives, where it does.
    pub receive: u64,
    /// How large the blocks are and where.
    pub blocks: RootedBlocks,
}

/// Which way the blocks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// To the root.
    Gather,
    /// From the root.
    Scatter,
}

/// The sizes of the blocks of a gather or scatter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RootedBlocks {
    /// All of so many bytes, at the root in the order of ranks.
    Even {
        /// Bytes of a block.
        bytes: u64,
    },
    /// Of different sizes; that of a rank that is not the root.
    Own {
        /// Its bytes.
        bytes: u64,
    },
    /// Of different sizes, as a table at this address in the root says, read when the entry is taken: two lists of one u64
    /// per rank, the bytes of the blocks and their offsets.
    Table {
        /// Its address.
        address: u64,
    },
}

/// What the word of the kind says.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kind {
    direction: Direction,
    even: bool,
}

impl Kind {
    pub(super) fn of(word: u64) -> Option<Kind> {
        let (direction, even) = match word {
            KIND_GATHER => (Direction::Gather, true),
            KIND_GATHERV => (Direction::Gather, false),
            KIND_SCATTER => (Direction::Scatter, true),
            KIND_SCATTERV => (Direction::Scatter, false),
            _ => return None,
        };
        Some(Kind { direction, even })
    }
}

impl RootedEntry {
    /// Writes what not all entries have; the caller writes the rest.
    pub(super) fn encode(&self, words: &mut Words) {
        let even = matches!(self.blocks, RootedBlocks::Even { .. });
        words[0] = match (self.direction, even) {
            (Direction::Gather, true) => KIND_GATHER,
            (Direction::Gather, false) => KIND_GATHERV,
            (Direction::Scatter, true) => KIND_SCATTER,
            (Direction::Scatter, false) => KIND_SCATTERV,
        };
        words[4] = u64::from(self.root) | if self.in_place { FLAG_IN_PLACE } else { 0 };
        words[5] = self.send;
        words[6] = self.receive;
        words[7] = match self.blocks {
            RootedBlocks::Even { bytes } | RootedBlocks::Own { bytes } => bytes,
            RootedBlocks::Table { address } => {
                words[4] |= FLAG_TABLE;
                address
            }
        };
    }

    /// The entry in `words`, of which the caller has checked what all entries have.
    pub(super) fn decode(words: &Words, kind: Kind) -> Result<RootedEntry, BadEntry> {
        let table = words[4] & FLAG_TABLE != 0;
        if words[4] >= FLAG_TABLE << 1 || (table && kind.even) {
            return Err(BadEntry { field: "flags", value: words[4] });
        }
        let blocks = match (kind.even, table) {
            (true, _) => RootedBlocks::Even { bytes: words[7] },
            (false, false) => RootedBlocks::Own { bytes: words[7] },
            (false, true) => RootedBlocks::Table { address: words[7] },
        };
        Ok(RootedEntry {
            group: words[1],
            instance: words[2],
            slot: words[3] as u32,
            direction: kind.direction,
            root: words[4] as u32,
            in_place: words[4] & FLAG_IN_PLACE != 0,
            send: words[5],
            receive: words[6],
            blocks,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Entry;
    use super::*;
    use crate::ring::ENTRY_WORDS;

    #[test]
    fn gathers_and_scatters_survive_the_ring_and_bad_flags_are_named() {
        let sizes =
            [RootedBlocks::Even { bytes: 9 }, RootedBlocks::Own { bytes: 9 }, RootedBlocks::Table { address: 0x7000 }];
        for (direction, blocks) in sizes
            .map(|blocks| (Direction::Gather, blocks))
            .into_iter()
            .chain(sizes.map(|blocks| (Direction::Scatter, blocks)))
        {
            for in_place in [false, true] {
                let (send, receive, root) = (0x5000, 0x6000, u32::MAX);
                let entry =
                    RootedEntry { group: 3, instance: 1, slot: 2, direction, root, in_place, send, receive, blocks };
                let words = Entry::Rooted(entry).encode();
                assert_eq!(Entry::decode(&words, 10), Ok(Entry::Rooted(entry)));
                let mut bad = words;
                bad[4] |= 1 << 34;
                assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field: "flags", value: bad[4] }));
            }
        }
        let mut words = [0; ENTRY_WORDS];
        (words[0], words[2], words[4]) = (KIND_GATHER, 1, FLAG_TABLE);
        assert_eq!(Entry::decode(&words, 10).unwrap_err().field, "flags");
    }
}
