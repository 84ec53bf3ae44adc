//! What is called: the kinds of calls, what they have in common, and their codes.

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
    /// Every rank has a block for every rank; how large, only the two know.
    Alltoallv,
    /// Every rank has a block of the same size for the root.
    Gather { root: Rank },
    /// Every rank has a block for the root; how large, only the two know.
    Gatherv { root: Rank },
    /// The root has a block of the same size for every rank.
    Scatter { root: Rank },
    /// The root has a block for every rank; how large, only the two know.
    Scatterv { root: Rank },
    /// Nothing moves; nobody ends before all have called.
    Barrier,
    /// The vectors of all ranks are combined, element by element; the root receives the result.
    Reduce { root: Rank, reduction: Reduction },
    /// The same; every rank receives the result.
    Allreduce { reduction: Reduction },
    /// The same; every rank receives a block of the result, of a size of its own, which all know.
    ReduceScatter {
        reduction: Reduction,
        /// Fingerprint of the sizes, [`sizes_digest`]; 0 in a [`Call`](crate::Call), whose table has them.
        sizes: u64,
    },
    /// The same; the blocks have one size.
    ReduceScatterBlock { reduction: Reduction },
    /// Every rank receives the combined vectors of all before it and, of an inclusive scan, its own among them. The
    /// first rank of an exclusive scan (exscan) receives nothing.
    Scan {
        reduction: Reduction,
        /// A rank's own vector is part of what it receives.
        inclusive: bool,
    },
    /// Tagged messages between pairs of ranks, which are no concern of the others (GP-1, GP-2).
    Tagged(TaggedCall),
}

/// What a kind of call is, apart from who receives what of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Class {
    pub moves: Moves,
    pub sizes: Sizes,
}

/// What goes where in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moves {
    /// What every rank, or the root, contributes goes to all others as it is.
    ToAll,
    Blocks(Pairs),
    Combined(Reduction),
    Nothing,
    /// What the call says of messages.
    Messages(TaggedCall),
}

/// Which ranks have a block for each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pairs {
    All,
    To(Rank),
    From(Rank),
}

/// How large the blocks of a call are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sizes {
    /// There is one, or none, of the signature's bytes.
    Whole,
    /// One for each rank, each of the signature's bytes.
    Even,
    /// One for each rank, which brings along what all know; the fingerprint.
    Agreed(u64),
    /// What the two ranks of a block alone know.
    Paired,
}

/// A call of tagged messages. Counts by itself: it is no instance of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TaggedCall {
    /// What the rank has recorded on the group under this number (GP-2).
    Recorded { recording: u32 },
    /// A single message (GP-1).
    Send {
        to: Rank,
        /// What a receive must name.
        tag: u32,
    },
    /// The next message of this tag from a rank (GP-1).
    Receive {
        from: Rank,
        /// What its send has named.
        tag: u32,
    },
}

impl CallKind {
    /// Its code, its name in reports, and what it is: the one place where all kinds are told apart by what they do.
    fn row(self) -> (u8, &'static str, Moves, Sizes) {
        use Moves::{Blocks, Combined, Messages, Nothing, ToAll};
        use Sizes::{Agreed, Even, Paired, Whole};
        match self {
            CallKind::Allgather => (1, "allgather", ToAll, Even),
            CallKind::Broadcast { .. } => (2, "broadcast", ToAll, Whole),
            CallKind::Alltoall => (3, "alltoall", Blocks(Pairs::All), Even),
            CallKind::Alltoallv => (4, "alltoallv", Blocks(Pairs::All), Paired),
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
            CallKind::Gather { root } => (32, "gather", Blocks(Pairs::To(root)), Even),
            CallKind::Gatherv { root } => (33, "gatherv", Blocks(Pairs::To(root)), Paired),
            CallKind::Scatter { root } => (34, "scatter", Blocks(Pairs::From(root)), Even),
            CallKind::Scatterv { root } => (35, "scatterv", Blocks(Pairs::From(root)), Paired),
            CallKind::Tagged(call @ TaggedCall::Recorded { .. }) => (48, "recorded group", Messages(call), Whole),
            CallKind::Tagged(call @ TaggedCall::Send { .. }) => (49, "send", Messages(call), Whole),
            CallKind::Tagged(call @ TaggedCall::Receive { .. }) => (50, "receive", Messages(call), Whole),
        }
    }

    /// What it is to those who treat kinds alike.
    #[must_use]
    pub fn class(self) -> Class {
        let (_, _, moves, sizes) = self.row();
        Class { moves, sizes }
    }

    /// Whether pairs of ranks have a block for each other, which may be announced and pulled (SP-5).
    #[must_use]
    pub fn is_exchange(self) -> bool {
        matches!(self.class().moves, Moves::Blocks(_))
    }

    /// How the vectors are combined, where they are.
    #[must_use]
    pub fn reduction(self) -> Option<Reduction> {
        if let Moves::Combined(reduction) = self.class().moves { Some(reduction) } else { None }
    }

    /// The fingerprint of the sizes of its blocks, where a call brings sizes along that all ranks know.
    #[must_use]
    pub fn sizes(self) -> Option<u64> {
        if let Sizes::Agreed(sizes) = self.class().sizes { Some(sizes) } else { None }
    }

    /// The rank that a rooted collective names.
    #[must_use]
    pub fn root(self) -> Option<Rank> {
        match (self, self.class().moves) {
            (CallKind::Broadcast { root } | CallKind::Reduce { root, .. }, _) => Some(root),
            (_, Moves::Blocks(Pairs::To(root) | Pairs::From(root))) => Some(root),
            _ => None,
        }
    }

    #[must_use]
    pub fn codes(self) -> Codes {
        let (kind, _, moves, _) = self.row();
        let (rank, tag) = match moves {
            Moves::Messages(TaggedCall::Recorded { recording }) => (recording, 0),
            Moves::Messages(TaggedCall::Send { to: peer, tag } | TaggedCall::Receive { from: peer, tag }) => {
                (peer.0, tag)
            }
            _ => (self.root().map_or(0, |root| root.0), 0),
        };
        Codes { kind, rank, tag, reduction: self.reduction().map_or(0, Reduction::code) }
    }

    /// The kind of these numbers, the inverse of [`Self::codes`]; the fingerprint of sizes is `sizes`.
    ///
    /// # Errors
    /// [`DecodeError::Value`] with the field that cannot be; what the kind does not have is 0.
    pub fn from_codes(codes: Codes, sizes: u64) -> Result<CallKind, DecodeError> {
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
        self.row().1
    }
}

/// A kind of call in numbers that never change meaning; what a kind does not have is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Codes {
    pub kind: u8,
    /// The root, the other end of a message, or the number of a recording.
    pub rank: u32,
    pub tag: u32,
    /// [`Reduction::code`].
    pub reduction: u16,
}

impl Codes {
    /// Whether a kind with this code names a root, combines vectors, has sizes of blocks on which all ranks agree.
    pub(crate) fn fields(kind: u8) -> (bool, bool, bool) {
        (matches!(kind, 2 | 17 | 32..=35), matches!(kind, 17..=22), matches!(kind, 5 | 19))
    }
}
