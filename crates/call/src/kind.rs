//! The kinds of calls, their common properties, and their codes.

use crate::codec::DecodeError;
use crate::rank::Rank;
use crate::reduction::Reduction;
#[cfg(doc)]
use crate::signature::sizes_digest;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// Every rank contributes a block and receives all blocks.
    Allgather,
    /// One rank contributes, all others receive. The root has no receive buffer, the others no send buffer.
    Broadcast { root: Rank },
    /// Every rank contributes a block of its own size, which all know, and receives all blocks.
    Allgatherv {
        /// Fingerprint of the sizes, [`sizes_digest`]; 0 in a [`Call`](crate::Call), whose table has them.
        sizes: u64,
    },
    /// Every rank has a block of the same size for every rank.
    Alltoall,
    /// Every rank has a block for every rank. Only sender and receiver know the size of a block.
    Alltoallv,
    /// Every rank has a block of the same size for the root.
    Gather { root: Rank },
    /// Every rank has a block for the root. Only the rank and the root know the size of the block.
    Gatherv { root: Rank },
    /// The root has a block of the same size for every rank.
    Scatter { root: Rank },
    /// The root has a block for every rank. Only the root and the rank know the size of the block.
    Scatterv { root: Rank },
    /// Nothing moves; no rank completes before all have called.
    Barrier,
    /// The vectors of all ranks are combined, element by element; the root receives the result.
    Reduce { root: Rank, reduction: Reduction },
    /// The vectors of all ranks are combined, element by element; every rank receives the result.
    Allreduce { reduction: Reduction },
    /// The vectors of all ranks are combined; every rank receives a block of the result. All ranks know all sizes.
    ReduceScatter {
        reduction: Reduction,
        /// Fingerprint of the sizes, [`sizes_digest`]; 0 in a [`Call`](crate::Call), whose table has them.
        sizes: u64,
    },
    /// Like [`Self::ReduceScatter`], but all blocks have one size.
    ReduceScatterBlock { reduction: Reduction },
    /// Every rank receives the combined vectors of all ranks before it. An inclusive scan adds the rank's own vector.
    /// The first rank of an exclusive scan (exscan) receives nothing.
    Scan {
        reduction: Reduction,
        /// Whether a rank's own vector is part of its result.
        inclusive: bool,
    },
    /// Tagged messages between pairs of ranks, in which the other ranks take no part (GP-1, GP-2).
    Tagged(TaggedCall),
}

/// The properties by which kinds of calls are treated alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CallClass {
    pub moves: CallMovement,
    pub sizes: BlockSizes,
}

/// The movement of data in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallMovement {
    /// The contribution of every rank, or of the root, goes unchanged to all others.
    ToAll,
    Blocks(ExchangePairs),
    Combined(Reduction),
    Nothing,
    /// The messages of this tagged call.
    Messages(TaggedCall),
}

/// The pairs of ranks that exchange a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExchangePairs {
    All,
    To(Rank),
    From(Rank),
}

/// The sizes of the blocks of a call, and who knows them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSizes {
    /// One block, which has the signature's bytes, or no block.
    Whole,
    /// One block for each rank, each of the signature's bytes.
    Even,
    /// One block for each rank. All ranks know and pass all sizes. The value is the fingerprint of the sizes.
    Agreed(u64),
    /// Only sender and receiver of a block know its size.
    Paired,
}

/// A call of tagged messages. Such a call is not counted among the instances of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaggedCall {
    /// The messages that the rank has recorded on the group under this number (GP-2).
    Recorded { recording: u32 },
    /// A single message (GP-1).
    Send {
        to: Rank,
        /// A receive must name this tag.
        tag: u32,
    },
    /// Receives the next message with this tag from a rank (GP-1).
    Receive {
        from: Rank,
        /// The tag of the send.
        tag: u32,
    },
}

impl CallKind {
    /// Code, name in reports, and class of each kind: the only table of the differences between kinds.
    fn properties(self) -> (u8, &'static str, CallMovement, BlockSizes) {
        use BlockSizes::{Agreed, Even, Paired, Whole};
        use CallMovement::{Blocks, Combined, Messages, Nothing, ToAll};
        match self {
            CallKind::Allgather => (1, "allgather", ToAll, Even),
            CallKind::Broadcast { .. } => (2, "broadcast", ToAll, Whole),
            CallKind::Alltoall => (3, "alltoall", Blocks(ExchangePairs::All), Even),
            CallKind::Alltoallv => (4, "alltoallv", Blocks(ExchangePairs::All), Paired),
            CallKind::Allgatherv { sizes } => (5, "allgatherv", ToAll, Agreed(sizes)),
            CallKind::Barrier => (16, "barrier", Nothing, Whole),
            CallKind::Reduce { reduction, .. } => (17, "reduce", Combined(reduction), Whole),
            CallKind::Allreduce { reduction } => (18, "allreduce", Combined(reduction), Whole),
            CallKind::ReduceScatter { reduction, sizes } => (19, "reduce-scatter", Combined(reduction), Agreed(sizes)),
            CallKind::ReduceScatterBlock { reduction } => {
                (20, "reduce-scatter of even blocks", Combined(reduction), Even)
            }
            CallKind::Scan { reduction, inclusive: true } => (21, "scan", Combined(reduction), Whole),
            CallKind::Scan { reduction, inclusive: false } => (22, "exscan", Combined(reduction), Whole),
            CallKind::Gather { root } => (32, "gather", Blocks(ExchangePairs::To(root)), Even),
            CallKind::Gatherv { root } => (33, "gatherv", Blocks(ExchangePairs::To(root)), Paired),
            CallKind::Scatter { root } => (34, "scatter", Blocks(ExchangePairs::From(root)), Even),
            CallKind::Scatterv { root } => (35, "scatterv", Blocks(ExchangePairs::From(root)), Paired),
            CallKind::Tagged(call @ TaggedCall::Recorded { .. }) => (48, "recorded group", Messages(call), Whole),
            CallKind::Tagged(call @ TaggedCall::Send { .. }) => (49, "send", Messages(call), Whole),
            CallKind::Tagged(call @ TaggedCall::Receive { .. }) => (50, "receive", Messages(call), Whole),
        }
    }

    /// The class of the kind.
    #[must_use]
    pub fn class(self) -> CallClass {
        let (_, _, moves, sizes) = self.properties();
        CallClass { moves, sizes }
    }

    /// Whether pairs of ranks exchange blocks. Such blocks may be announced and pulled (SP-5).
    #[must_use]
    pub fn is_exchange(self) -> bool {
        matches!(self.class().moves, CallMovement::Blocks(_))
    }

    /// The reduction, if the call combines vectors.
    #[must_use]
    pub fn reduction(self) -> Option<Reduction> {
        if let CallMovement::Combined(reduction) = self.class().moves { Some(reduction) } else { None }
    }

    /// The fingerprint of the block sizes, if the call passes sizes that all ranks know.
    #[must_use]
    pub fn sizes(self) -> Option<u64> {
        if let BlockSizes::Agreed(sizes) = self.class().sizes { Some(sizes) } else { None }
    }

    /// The rank that a rooted collective names.
    #[must_use]
    pub fn root(self) -> Option<Rank> {
        match (self, self.class().moves) {
            (CallKind::Broadcast { root } | CallKind::Reduce { root, .. }, _) => Some(root),
            (_, CallMovement::Blocks(ExchangePairs::To(root) | ExchangePairs::From(root))) => Some(root),
            _ => None,
        }
    }

    #[must_use]
    pub fn codes(self) -> CallCodes {
        let (kind, _, moves, _) = self.properties();
        let (rank, tag) = match moves {
            CallMovement::Messages(TaggedCall::Recorded { recording }) => (recording, 0),
            CallMovement::Messages(TaggedCall::Send { to: peer, tag } | TaggedCall::Receive { from: peer, tag }) => {
                (peer.0, tag)
            }
            _ => (self.root().map_or(0, |root| root.0), 0),
        };
        CallCodes { kind, rank, tag, reduction: self.reduction().map_or(0, Reduction::code) }
    }

    /// The kind of these codes; the inverse of [`Self::codes`]. `sizes` is the fingerprint of the sizes.
    ///
    /// # Errors
    /// [`DecodeError::Value`] with the first invalid field; a field that the kind lacks must be 0.
    pub fn from_codes(codes: CallCodes, sizes: u64) -> Result<CallKind, DecodeError> {
        let (root, tag) = (Rank(codes.rank), codes.tag);
        let reduction = || Reduction::from_code(codes.reduction).map_err(|_| DecodeError::Value("reduction"));
        let kind = match codes.kind {
            1 => CallKind::Allgather,
            2 => CallKind::Broadcast { root },
            3 => CallKind::Alltoall,
            4 => CallKind::Alltoallv,
            5 => CallKind::Allgatherv { sizes },
            16 => CallKind::Barrier,
            17 => CallKind::Reduce { root, reduction: reduction()? },
            18 => CallKind::Allreduce { reduction: reduction()? },
            19 => CallKind::ReduceScatter { reduction: reduction()?, sizes },
            20 => CallKind::ReduceScatterBlock { reduction: reduction()? },
            21 | 22 => CallKind::Scan { reduction: reduction()?, inclusive: codes.kind == 21 },
            32 => CallKind::Gather { root },
            33 => CallKind::Gatherv { root },
            34 => CallKind::Scatter { root },
            35 => CallKind::Scatterv { root },
            48 => CallKind::Tagged(TaggedCall::Recorded { recording: codes.rank }),
            49 => CallKind::Tagged(TaggedCall::Send { to: root, tag }),
            50 => CallKind::Tagged(TaggedCall::Receive { from: root, tag }),
            _ => return Err(DecodeError::Value("call kind")),
        };
        if kind.codes() == codes { Ok(kind) } else { Err(DecodeError::Value("spare field of a call")) }
    }

    #[must_use]
    pub fn name(self) -> &'static str {
        self.properties().1
    }
}

/// A kind of call as numbers that never change meaning; fields that a kind lacks are 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CallCodes {
    pub kind: u8,
    /// The root, the other end of a message, or the number of a recording.
    pub rank: u32,
    pub tag: u32,
    /// [`Reduction::code`].
    pub reduction: u16,
}

impl CallCodes {
    /// Whether a kind with this code names a root, combines vectors, and has block sizes on which all ranks agree.
    pub(crate) fn fields(kind: u8) -> (bool, bool, bool) {
        (matches!(kind, 2 | 17 | 32..=35), matches!(kind, 17..=22), matches!(kind, 5 | 19))
    }
}
