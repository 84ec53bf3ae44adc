//! What the verifier found wrong, and where.

use std::fmt;

use thiserror::Error;

use super::Fault;
use outboard_plan::{Buffer, Op, OpId, Program, Rank, Span};

/// A step of a rank's program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct At {
    /// Whose program.
    pub rank: Rank,
    /// Which step.
    pub step: OpId,
    /// What the step does.
    pub op: Op,
}

impl At {
    pub(crate) fn new(program: &Program, step: OpId) -> Self {
        Self { rank: program.rank, step, op: program.steps[step.0 as usize].op }
    }

    /// Boxed, to keep the error small.
    pub(crate) fn boxed(self) -> Box<Self> {
        Box::new(self)
    }
}

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.rank, self.step, self.op)
    }
}

/// Why a plan is not proven.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VerifyError {
    /// The programs are not those of ranks 0 to n - 1 of a group of n.
    #[error("program {position} of {programs} is that of {rank} of {ranks}: pass one program per rank, in order")]
    Group {
        /// Which of the programs.
        position: usize,
        /// How many there are.
        programs: usize,
        /// Whose program it says it is.
        rank: Rank,
        /// How many ranks it says there are.
        ranks: u32,
    },
    /// (chains, subgroups) differ from those of rank 0 or are out of range.
    #[error(
        "{rank} has (chains, subgroups) {layout:?}, rank 0 {agreed:?}: they are equal on all ranks, \
         chains 1 to {ranks} and subgroups at least 1"
    )]
    Layout {
        /// Whose.
        rank: Rank,
        /// Its chains and subgroups.
        layout: (u32, u16),
        /// Those of rank 0.
        agreed: (u32, u16),
        /// Ranks in the group.
        ranks: u32,
    },
    /// A buffer has not the bytes that the contract says.
    #[error("{rank} has {bytes} B of {buffer}, its contract says {expected} B")]
    BufferSize {
        /// Whose.
        rank: Rank,
        /// Which buffer.
        buffer: Buffer,
        /// Its bytes as of the program.
        bytes: u64,
        /// Its bytes as of the contract.
        expected: u64,
    },
    /// A dependency that does not point backwards.
    #[error("{at} follows {on}, which is not before it")]
    Dependency {
        /// The step.
        at: Box<At>,
        /// What it follows.
        on: OpId,
    },
    /// A peer that is the rank itself or no rank of the group.
    #[error("{at} names a peer that is not another of the {ranks} ranks")]
    Peer {
        /// The step.
        at: Box<At>,
        /// Ranks in the group.
        ranks: u32,
    },
    /// A span beyond its buffer.
    #[error("{at}: {span} exceeds the buffer of {bytes} B")]
    SpanOutside {
        /// The step.
        at: Box<At>,
        /// The span.
        span: Span,
        /// Bytes of the buffer.
        bytes: u64,
    },
    /// The caller's input is written to.
    #[error("{at} writes to the input, which is only read")]
    WritesInput {
        /// The step.
        at: Box<At>,
    },
    /// A copy between spans of different lengths, or that overlap.
    #[error("{at}: the spans of a copy have equal length and do not overlap")]
    Copy {
        /// The step.
        at: Box<At>,
    },
    /// A reduction of spans of different lengths, or that overlap.
    #[error("{at}: the spans of a reduction have equal length and do not overlap")]
    Reduce {
        /// The step.
        at: Box<At>,
    },
    /// A reduction of different elements of the vectors.
    #[error("{at} combines byte {left} of some vectors with byte {right} of others")]
    Elements {
        /// The step.
        at: Box<At>,
        /// The byte of its left operand.
        left: u64,
        /// The byte of its right operand.
        right: u64,
    },
    /// A reduction of a part of an element.
    #[error("{at} cuts an element of {bytes} B")]
    CutsElement {
        /// The step.
        at: Box<At>,
        /// Bytes of an element.
        bytes: u64,
    },
    /// A reduction in a collective that only moves data.
    #[error("{at} combines contributions, of which its contract knows nothing")]
    Combines {
        /// The step.
        at: Box<At>,
    },
    /// A receive of message data that is not posted at once (MC-4).
    #[error("{at} waits for other steps: receives of data are posted at once")]
    Waits {
        /// The step.
        at: Box<At>,
    },
    /// Two sends or two receives of one name; two multicasts of one rank count, too.
    #[error("{at} has the name of {other}: give one of them another index")]
    SameName {
        /// The later step.
        at: Box<At>,
        /// The earlier step.
        other: Box<At>,
    },
    /// A send without receive, or a receive without send.
    #[error("{at} has no counterpart on the other rank")]
    Unmatched {
        /// The step.
        at: Box<At>,
    },
    /// A multicast that a rank does not receive.
    #[error("{at} is not received by {by}")]
    MulticastMissed {
        /// The multicast.
        at: Box<At>,
        /// Who lacks a receive.
        by: Rank,
    },
    /// The two ends of a message differ in length.
    #[error("{at} and {other} differ in length")]
    Lengths {
        /// The send.
        at: Box<At>,
        /// The receive.
        other: Box<At>,
    },
    /// Steps that wait for each other in a circle.
    #[error("{at} never completes: it waits, directly or through others, for {other}, which waits for it")]
    Deadlock {
        /// A step of the circle.
        at: Box<At>,
        /// Another one.
        other: Box<At>,
    },
    /// Two unordered steps, at least one of which writes.
    #[error("{at} and {other} touch {shared} in no certain order: let one follow the other")]
    Conflict {
        /// One step.
        at: Box<At>,
        /// The other.
        other: Box<At>,
        /// What both touch.
        shared: Span,
    },
    /// More roots may multicast at once than the program says (MC-8).
    #[error("{at} may run beside {chains} other multicasts, and {chains} chains allow no more at once")]
    Roots {
        /// A multicast that is one too many.
        at: Box<At>,
        /// Roots that may multicast at once.
        chains: u32,
    },
    /// A step reads what nothing was written to.
    #[error("{at} reads byte {offset}, to which nothing was written")]
    ReadsNothing {
        /// The step.
        at: Box<At>,
        /// Offset in the buffer that it reads.
        offset: u64,
    },
    /// Output that should hold something holds nothing.
    #[error("{rank} ends with nothing at byte {offset} of its output")]
    Missing {
        /// Whose output.
        rank: Rank,
        /// The first such byte.
        offset: u64,
    },
    /// Output that holds another element of the vectors than promised.
    #[error(
        "{rank} ends with byte {found} of the vectors at byte {offset} of its output, where byte {expected} belongs"
    )]
    WrongElement {
        /// Whose output.
        rank: Rank,
        /// Where.
        offset: u64,
        /// The byte of the vectors that is there.
        found: u64,
        /// The one that should be.
        expected: u64,
    },
    /// Output that combines other contributions than promised, or in another order.
    #[error("at byte {offset} of the output of {rank}, {fault}")]
    Contribution {
        /// Whose output.
        rank: Rank,
        /// The first such byte.
        offset: u64,
        /// What is wrong.
        fault: Fault,
    },
    /// Two ranks combine the same contributions, but in different pairs, which rounding shows.
    #[error("at byte {offset} of the result, {rank} and {other} combine the same in different pairs")]
    Differs {
        /// One rank.
        rank: Rank,
        /// The other.
        other: Rank,
        /// The first such byte, counted over what the contracts promise.
        offset: u64,
    },
    /// Output that the contract leaves alone was written to.
    #[error("{rank} ends with something at byte {offset} of its output, where its contract says nothing")]
    Stray {
        /// Whose output.
        rank: Rank,
        /// The first such byte.
        offset: u64,
    },
}
