//! Errors of the verifier, with their places.

use std::fmt;

use thiserror::Error;

use super::ContributionFault;
use outboard_plan::{Buffer, Op, OpId, Program, Rank, Span};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StepLocation {
    pub rank: Rank,
    pub step: OpId,
    pub op: Op,
}

impl StepLocation {
    pub(crate) fn new(program: &Program, step: OpId) -> Self {
        Self { rank: program.rank, step, op: program.steps[step.0 as usize].op }
    }

    /// Boxes the place, to keep errors small.
    pub(crate) fn boxed(self) -> Box<Self> {
        Box::new(self)
    }
}

impl fmt::Display for StepLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({})", self.rank, self.step, self.op)
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum VerifyError {
    #[error("program {position} of {programs} is that of {rank} of {ranks}: pass one program per rank, in order")]
    Group { position: usize, programs: usize, rank: Rank, ranks: u32 },
    #[error(
        "{rank} has (chains, subgroups) {layout:?}, rank 0 {agreed:?}: they are equal on all ranks, \
         chains 1 to {ranks} and subgroups at least 1"
    )]
    Layout { rank: Rank, layout: (u32, u16), agreed: (u32, u16), ranks: u32 },
    #[error("{rank} has {bytes} B of {buffer}, its contract says {expected} B")]
    BufferSize { rank: Rank, buffer: Buffer, bytes: u64, expected: u64 },
    #[error("{at} follows {on}, which is not before it")]
    Dependency { at: Box<StepLocation>, on: OpId },
    #[error("{at} names a peer that is not another of the {ranks} ranks")]
    Peer { at: Box<StepLocation>, ranks: u32 },
    #[error("{at}: {span} exceeds the buffer of {bytes} B")]
    SpanOutside { at: Box<StepLocation>, span: Span, bytes: u64 },
    #[error("{at} writes to the input, which is only read")]
    WritesInput { at: Box<StepLocation> },
    #[error("{at}: the spans of a copy have equal length and do not overlap")]
    Copy { at: Box<StepLocation> },
    #[error("{at}: the spans of a reduction have equal length and do not overlap")]
    Reduce { at: Box<StepLocation> },
    #[error("{at} combines byte {left} of some vectors with byte {right} of others")]
    Elements { at: Box<StepLocation>, left: u64, right: u64 },
    #[error("{at} cuts an element of {bytes} B")]
    CutsElement { at: Box<StepLocation>, bytes: u64 },
    #[error("{at} combines contributions, of which its contract knows nothing")]
    Combines { at: Box<StepLocation> },
    /// A receive of message data is not posted at once (MC-4).
    #[error("{at} waits for other steps: receives of data are posted at once")]
    Waits { at: Box<StepLocation> },
    #[error("{at} has the name of {other}: give one of them another index")]
    SameName { at: Box<StepLocation>, other: Box<StepLocation> },
    #[error("{at} has no counterpart on the other rank")]
    Unmatched { at: Box<StepLocation> },
    #[error("{at} is not received by {by}")]
    MulticastMissed { at: Box<StepLocation>, by: Rank },
    #[error("{at} and {other} differ in length")]
    Lengths { at: Box<StepLocation>, other: Box<StepLocation> },
    #[error("{at} never completes: it waits, directly or through others, for {other}, which waits for it")]
    Deadlock { at: Box<StepLocation>, other: Box<StepLocation> },
    #[error("{at} and {other} touch {shared} in no certain order: let one follow the other")]
    Conflict { at: Box<StepLocation>, other: Box<StepLocation>, shared: Span },
    /// More roots may multicast at once than the program allows (MC-8).
    #[error("{at} may run beside {chains} other multicasts, and {chains} chains allow no more at once")]
    Roots { at: Box<StepLocation>, chains: u32 },
    #[error("{at} reads byte {offset}, to which nothing was written")]
    ReadsNothing { at: Box<StepLocation>, offset: u64 },
    #[error("{rank} ends with nothing at byte {offset} of its output")]
    Missing { rank: Rank, offset: u64 },
    #[error(
        "{rank} ends with byte {found} of the vectors at byte {offset} of its output, where byte {expected} belongs"
    )]
    WrongElement { rank: Rank, offset: u64, found: u64, expected: u64 },
    #[error("at byte {offset} of the output of {rank}, {fault}")]
    Contribution { rank: Rank, offset: u64, fault: ContributionFault },
    #[error("at byte {offset} of the result, {rank} and {other} combine the same in different pairs")]
    Differs { rank: Rank, other: Rank, offset: u64 },
    #[error("{rank} ends with something at byte {offset} of its output, where its contract says nothing")]
    Stray { rank: Rank, offset: u64 },
}
