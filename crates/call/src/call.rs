//! One rank's call and its numbers.

use crate::codec::DecodeError;
use crate::kind::{CallKind, Codes};

pub const CALL_WORDS: usize = 6;

const IN_PLACE: u64 = 1;

/// What one rank asks for. Addresses are those of the rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// What is called, with root, operator and element where the kind has them.
    pub kind: CallKind,
    /// The contribution lies in the receive buffer: of an allgather or a gather's root in its place, of a reduction at
    /// the start. Of a scatter's root: its own block stays in the send buffer.
    pub in_place: bool,
    /// Bytes of the vector, of the message, of each block where all have one size; where sizes differ, of the one block
    /// that a rank has with the root of a gather or scatter. Counts for nothing elsewhere.
    pub bytes: u64,
    /// Address of what is sent; counts for nothing in place.
    pub send: u64,
    /// Address of what is received.
    pub receive: u64,
    /// Address of a table, where blocks have different sizes and this rank has those of all: for each side with all
    /// blocks, sent ones first, two lists of one u64 per rank, the bytes of the blocks and their offsets. Blocks of a
    /// reduce-scatter lie one after another, whatever their offsets.
    pub table: u64,
}

impl Call {
    /// A call of this kind without buffers.
    #[must_use]
    pub const fn new(kind: CallKind) -> Call {
        Call { kind, in_place: false, bytes: 0, send: 0, receive: 0, table: 0 }
    }

    /// The call as shared memory and relays carry it.
    #[must_use]
    pub fn encode(&self) -> [u64; CALL_WORDS] {
        let Codes { kind, rank, tag, reduction } = self.kind.codes();
        let flags = if self.in_place { IN_PLACE } else { 0 };
        let head = u64::from(kind) | flags << 8 | u64::from(reduction) << 16 | u64::from(rank) << 32;
        [head, tag.into(), self.bytes, self.send, self.receive, self.table]
    }

    /// The call in `words`, the inverse of [`Self::encode`].
    ///
    /// # Errors
    /// [`DecodeError::Value`] with the field that cannot be.
    pub fn decode(words: [u64; CALL_WORDS]) -> Result<Call, DecodeError> {
        let [head, tag, bytes, send, receive, table] = words;
        let tag = u32::try_from(tag).map_err(|_| DecodeError::Value("tag"))?;
        let codes = Codes { kind: head as u8, rank: (head >> 32) as u32, tag, reduction: (head >> 16) as u16 };
        let flags = head >> 8 & 0xff;
        if flags & !IN_PLACE != 0 {
            return Err(DecodeError::Value("flags"));
        }
        let kind = CallKind::from_codes(codes, 0)?;
        Ok(Call { kind, in_place: flags != 0, bytes, send, receive, table })
    }
}
