//! One rank's call and its numbers.

use crate::codec::DecodeError;
use crate::kind::{CallCodes, CallKind};

pub const CALL_WORDS: usize = 6;

const IN_PLACE: u64 = 1;

/// A request of one rank for a collective or a message. Addresses lie in the rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The kind of the call, with root, operator and element where the kind has them.
    pub kind: CallKind,
    /// `MPI_IN_PLACE`. Allgather, gather root: the contribution lies in its own slot of `receive`. Reduction: the
    /// contribution lies at the start of `receive`. Scatter root: the root's own block stays in `send`.
    pub in_place: bool,
    /// Bytes of the vector, of the message, or of each block if all blocks have one size. With blocks of different
    /// sizes: bytes of the one block that a rank exchanges with the root of a gather or scatter; ignored in other
    /// calls.
    pub bytes: u64,
    /// Address of the bytes to send; ignored in place.
    pub send: u64,
    /// Address of the received bytes.
    pub receive: u64,
    /// Address of a table, if blocks have different sizes and this rank sends or receives the blocks of all ranks. For
    /// each side with all blocks, the send side first, the table has two lists: bytes and offsets of the blocks. Each
    /// list has one u64 per rank. Blocks of a reduce-scatter lie one after another, whatever their offsets.
    pub table: u64,
}

impl Call {
    /// A call of this kind without buffers.
    #[must_use]
    pub const fn new(kind: CallKind) -> Call {
        Call { kind, in_place: false, bytes: 0, send: 0, receive: 0, table: 0 }
    }

    /// The words of the call in shared memory and between relays.
    #[must_use]
    pub fn encode(&self) -> [u64; CALL_WORDS] {
        let CallCodes { kind, rank, tag, reduction } = self.kind.codes();
        let flags = if self.in_place { IN_PLACE } else { 0 };
        let head = u64::from(kind) | flags << 8 | u64::from(reduction) << 16 | u64::from(rank) << 32;
        [head, tag.into(), self.bytes, self.send, self.receive, self.table]
    }

    /// Decodes `words`; the inverse of [`Self::encode`].
    ///
    /// # Errors
    /// [`DecodeError::Value`] with the first field that has an invalid value.
    pub fn decode(words: [u64; CALL_WORDS]) -> Result<Call, DecodeError> {
        let [head, tag, bytes, send, receive, table] = words;
        let tag = u32::try_from(tag).map_err(|_| DecodeError::Value("tag"))?;
        let codes = CallCodes { kind: head as u8, rank: (head >> 32) as u32, tag, reduction: (head >> 16) as u16 };
        let flags = head >> 8 & 0xff;
        if flags & !IN_PLACE != 0 {
            return Err(DecodeError::Value("flags"));
        }
        let kind = CallKind::from_codes(codes, 0)?;
        Ok(Call { kind, in_place: flags != 0, bytes, send, receive, table })
    }
}
