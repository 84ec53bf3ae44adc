//! The vocabulary of a plan: ranks, spans, operations and the program that orders them.
//!
//! Invariants: `after` of a [`Step`] names only earlier steps; spans lie inside their buffers (checked by the
//! verifier, not here). Never does IO.

use std::fmt;

/// The most ranks a group may have, because the datagram header carries 16 bits of source.
pub const MAX_RANKS: u32 = 65_535;

/// A rank within its group, `0 .. ranks`, where `ranks` is at most [`MAX_RANKS`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rank(pub u32);

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {}", self.0)
    }
}

/// Which buffer of a rank a span lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// What the rank contributes. Absent (length 0) when the call is in place.
    Input,
    /// What the rank receives.
    Output,
    /// Working memory of the engine, not of the program.
    Scratch,
}

/// `len` bytes from `offset` of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    /// The buffer.
    pub buffer: Buffer,
    /// Bytes from the start of the buffer.
    pub offset: u64,
    /// Bytes. May be 0: a message of no bytes is a signal.
    pub len: u64,
}

impl Span {
    /// `len` bytes from `offset` of `Input`.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Input, offset, len }
    }

    /// `len` bytes from `offset` of `Output`.
    pub const fn output(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Output, offset, len }
    }

    /// `len` bytes from `offset` of `Scratch`.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Scratch, offset, len }
    }

    /// The span of a signal: no bytes, of a buffer that every rank has.
    pub const fn signal() -> Self {
        Self::scratch(0, 0)
    }

    /// Whether the span has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset behind the last byte, or `None` where that exceeds 64 bits.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

/// The number of a step within its rank's program, dense from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OpId(pub u32);

/// One operation of one rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Sends `span` to `to`. The message is named (source, destination, index) within the collective.
    Send {
        /// Destination.
        to: Rank,
        /// Distinguishes the messages between the same two ranks.
        index: u32,
        /// What is sent.
        span: Span,
    },
    /// Receives the message `(from, me, index)` into `span`, which has the length of the sent span.
    Recv {
        /// Source.
        from: Rank,
        /// As in the matching send.
        index: u32,
        /// Where it goes.
        span: Span,
    },
    /// Sends `span` to all other ranks of the group at once (MC-1). A rank multicasts at most one span per collective;
    /// the engine cuts it into chunks and, by [`crate::Program::subgroups`], over multicast addresses (MC-10).
    Multicast {
        /// What is sent.
        span: Span,
    },
    /// Receives what `root` multicasts into `span`, chunk by chunk in any order (MC-2).
    MulticastRecv {
        /// Who sends.
        root: Rank,
        /// Where it goes.
        span: Span,
    },
    /// Copies within this rank's memory; the spans have equal length and do not overlap.
    Copy {
        /// Source.
        from: Span,
        /// Destination.
        to: Span,
    },
    /// Combines `from` into `into`, element by element, as the call's [`crate::Reduction`] says; the spans have equal
    /// length, whole elements, and do not overlap.
    Reduce {
        /// The operand that stays.
        from: Span,
        /// The operand that becomes the result.
        into: Span,
        /// `from` is the left operand: `into = from * into`, else `into = into * from`.
        from_left: bool,
    },
}

impl Op {
    /// The span of this rank's memory that the operation reads and leaves as it is.
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

/// An operation and what it follows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// What is done.
    pub op: Op,
    /// Steps of the same rank that must be complete before this one starts.
    pub after: Vec<OpId>,
}

/// What one rank does in one collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Program {
    /// Whose program it is.
    pub rank: Rank,
    /// Ranks in the group.
    pub ranks: u32,
    /// The steps; the index is the [`OpId`].
    pub steps: Vec<Step>,
    /// Bytes of `Input`, 0 when in place.
    pub input_bytes: u64,
    /// Bytes of `Output`.
    pub output_bytes: u64,
    /// Bytes of `Scratch`.
    pub scratch_bytes: u64,
    /// Contiguous parts a multicast span is cut into, each with a multicast address of its own (MC-10). At least 1.
    pub subgroups: u16,
    /// Roots that multicast at the same time, `M` of MC-8; decides how fast each may send. At least 1.
    pub chains: u32,
}
