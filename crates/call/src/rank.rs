//! Ranks of a group.

use std::fmt;

/// The most ranks a group may have, because the datagram header carries 16 bits of source.
pub const MAX_RANKS: u32 = 65_535;

/// A rank within its group, `0 .. ranks`, where `ranks` is at most [`MAX_RANKS`].
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}
