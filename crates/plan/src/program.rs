//! The vocabulary of a plan: ranks, spans, operations and the program that orders them.
//!
//! Invariants: `after` of a [`Step`] names only earlier steps; spans lie inside their buffers (checked by the
//! verifier, not here). Never does IO.

pub use outboard_call::{Buffer, MAX_RANKS, Rank, Span};

/// The number of a step within its rank's program, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// One operation of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sends `span` to `to`. The message is named (source, destination, index) within the collective.
    Send { to: Rank, index: u32, span: Span },
    /// Receives the message `(from, me, index)` into `span`, which has the length of the sent span.
    Recv { from: Rank, index: u32, span: Span },
    /// Sends `span` to all other ranks of the group at once (MC-1). A rank multicasts at most one span per collective.
    /// The engine cuts the span into chunks and spreads the chunks over [`crate::Program::subgroups`] multicast
    /// addresses (MC-10).
    Multicast { span: Span },
    /// Receives the multicast of `root` into `span`, chunk by chunk in any order (MC-2).
    MulticastRecv { root: Rank, span: Span },
    /// Copies within this rank's memory; the spans have equal length and do not overlap.
    Copy { from: Span, to: Span },
    /// Combines `from` into `into`, element by element, by the call's [`crate::Reduction`]: `into = from * into` if
    /// `from_left`, else `into = into * from`. The spans have equal length, whole elements, and do not overlap.
    Reduce { from: Span, into: Span, from_left: bool },
}

impl Op {
    /// The span of this rank's memory that the operation reads and leaves unchanged.
    pub const fn reads(&self) -> Option<Span> {
        match *self {
            Op::Send { span, .. }
            | Op::Multicast { span }
            | Op::Copy { from: span, .. }
            | Op::Reduce { from: span, .. } => Some(span),
            Op::Recv { .. } | Op::MulticastRecv { .. } => None,
        }
    }

    /// The span of this rank's memory that the operation writes; a reduction reads it, too.
    pub const fn writes(&self) -> Option<Span> {
        match *self {
            Op::Recv { span, .. }
            | Op::MulticastRecv { span, .. }
            | Op::Copy { to: span, .. }
            | Op::Reduce { into: span, .. } => Some(span),
            Op::Send { .. } | Op::Multicast { .. } => None,
        }
    }
}

/// An operation and the steps that it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    /// Steps of the same rank that must be complete before this one starts.
    pub after: Vec<OpId>,
}

/// The operations of one rank in one collective.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Program {
    pub rank: Rank,
    pub ranks: u32,
    /// The steps; the index of a step is its [`OpId`].
    pub steps: Vec<Step>,
    /// Bytes of `Input`, 0 when in place.
    pub input_bytes: u64,
    pub output_bytes: u64,
    pub scratch_bytes: u64,
    /// Contiguous parts of a multicast span, each with its own multicast address (MC-10). At least 1.
    pub subgroups: u16,
    /// Roots that multicast at the same time, `M` of MC-8; determines how fast each root may send. At least 1.
    pub chains: u32,
}
