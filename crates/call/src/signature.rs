//! The part of a call on which all ranks must agree.

use std::fmt;
use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::codec::{DecodeError, Reader, Writer};
use crate::kind::{BlockSizes, CallCodes, CallKind, CallMovement, ExchangePairs, TaggedCall};

/// The fingerprint of the block sizes, by rank.
#[must_use]
pub fn sizes_digest(sizes: impl Iterator<Item = u64>) -> u64 {
    let mut h = SipHasher13::new_with_keys(0x626c_6f63, 0x6b73_697a);
    sizes.for_each(|bytes| h.write_u64(bytes));
    h.finish()
}

/// The values on which all ranks of a call must agree. The first control message of an instance carries them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Signature {
    pub kind: CallKind,
    /// Bytes, by kind. Allgather, reduce, allreduce, scan: contribution of each rank. Broadcast: contribution of the
    /// root. Alltoall, gather, scatter, even reduce-scatter: each block. Allgatherv, uneven reduce-scatter: all blocks
    /// together. Alltoallv, gatherv, scatterv, barrier: 0. Single message: bytes of the message. Recording: bytes of
    /// all recorded memory.
    pub bytes: u64,
}

impl Signature {
    /// Appends the signature to a message. Only collectives send signatures: tagged messages are no instances of a
    /// group.
    pub fn encode(&self, w: &mut Writer<'_>) {
        let codes = self.kind.codes();
        let (rooted, combined, agreed) = CallCodes::fields(codes.kind);
        w.u8(codes.kind).u64(self.bytes);
        if rooted {
            w.u32(codes.rank);
        }
        if combined {
            w.u16(codes.reduction);
        }
        if agreed {
            w.u64(self.kind.sizes().unwrap_or(0));
        }
    }

    /// Reads a signature that [`Self::encode`] has written.
    pub fn decode(r: &mut Reader<'_>) -> Result<Signature, DecodeError> {
        let (kind, bytes) = (r.u8()?, r.u64()?);
        let (rooted, combined, agreed) = CallCodes::fields(kind);
        let rank = if rooted { r.u32()? } else { 0 };
        let reduction = if combined { r.u16()? } else { 0 };
        let sizes = if agreed { r.u64()? } else { 0 };
        let kind = CallKind::from_codes(CallCodes { kind, rank, tag: 0, reduction }, sizes)?;
        let class = kind.class();
        match (class.moves, class.sizes) {
            (CallMovement::Messages(_), _) => Err(DecodeError::Value("call kind")),
            (CallMovement::Nothing, _) | (_, BlockSizes::Paired) if bytes != 0 => Err(DecodeError::Value("call kind")),
            _ => Ok(Signature { kind, bytes }),
        }
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Signature { kind, bytes } = self;
        f.write_str(kind.name())?;
        if let Some(reduction) = kind.reduction() {
            write!(f, " ({reduction})")?;
        }
        let class = kind.class();
        match (class.sizes, class.moves) {
            (BlockSizes::Paired, _)
            | (_, CallMovement::Nothing | CallMovement::Messages(TaggedCall::Recorded { .. })) => {}
            (BlockSizes::Whole, _) => write!(f, " of {bytes} bytes")?,
            (BlockSizes::Even, CallMovement::Blocks(ExchangePairs::All)) => write!(f, " of {bytes} bytes per pair")?,
            (BlockSizes::Even, _) => write!(f, " of {bytes} bytes per rank")?,
            (BlockSizes::Agreed(sizes), _) => write!(f, " of {bytes} bytes in blocks of sizes {sizes:016x}")?,
        }
        match (kind, kind.root()) {
            (CallKind::Gather { .. } | CallKind::Gatherv { .. }, Some(root)) => write!(f, " at {root}"),
            (CallKind::Reduce { .. }, Some(root)) => write!(f, " to {root}"),
            (_, Some(root)) => write!(f, " from {root}"),
            (CallKind::Tagged(TaggedCall::Recorded { recording }), None) => write!(f, " {recording}"),
            (CallKind::Tagged(TaggedCall::Send { to, tag }), None) => write!(f, " to {to} with tag {tag}"),
            (CallKind::Tagged(TaggedCall::Receive { from, tag }), None) => write!(f, " from {from} with tag {tag}"),
            (_, None) => Ok(()),
        }
    }
}
