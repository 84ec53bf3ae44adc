//! Where payload belongs that is still on its way: the same that the handlers order when all of it has come.

use std::collections::BTreeSet;

use super::Transfer;
use super::incoming::Key;
use super::matching::Name;
use crate::ids::SpId;
use crate::interface::MemRef;
use crate::wire::{Fragment, Number, Piece};

impl Transfer {
    /// Where the bytes of a fragment belong, as [`Self::handle`] orders it.
    pub(crate) fn place_of_fragment(&self, fragment: &Fragment, payload_len: u32) -> Option<MemRef> {
        self.incoming.place_of_fragment(&Name::of(fragment), fragment, payload_len.into())
    }

    /// Where the bytes of each piece belong, as [`Self::handle`] orders it; none if one has no place, or several
    /// are of one message.
    pub(crate) fn places_of_data(&self, from: SpId, pieces: &[Piece], payload_len: u32) -> Option<Vec<MemRef>> {
        let numbers: BTreeSet<Number> = pieces.iter().map(|piece| piece.number).collect();
        let all: u64 = pieces.iter().map(|piece| u64::from(piece.bytes)).sum();
        let place = |piece: &Piece| {
            let key = Key { from, number: piece.number };
            self.incoming.place_of_bytes(key, (piece.offset, piece.bytes.into()))
        };
        let sound = numbers.len() == pieces.len() && all == payload_len.into();
        pieces.iter().map(place).collect::<Option<_>>().filter(|_| sound)
    }
}
