//! A rank's recording: a program whose messages are named by tag and occurrence (GP-2).
//!
//! The index of a send or receive is its tag. The n-th message of a call with the same pair and tag has occurrence n on
//! both ends. So the ends agree on names without communication, if they record the same messages of each tag in the
//! same order. All spans lie in `Output`: one buffer that stands for all memory that the rank has recorded. Invariant:
//! a [`Recording`] in the machine has passed [`Recording::check`].

use std::collections::HashMap;
use std::sync::Arc;

use outboard_plan::{Buffer, Op, Program, Rank, Reduction, Span};

/// Most steps that one rank may have recorded on one group at once, in all recordings together.
pub(crate) const MAX_HELD_STEPS: usize = 1 << 20;
/// Most steps of one recording. A recording is decoded, called and freed at once, while others wait.
pub const MAX_STEPS: usize = 1 << 16;
/// Most recordings that one rank may have on one group at once.
pub(crate) const MAX_RECORDINGS: usize = 4096;
/// Dependencies that a step may have on average.
const MAX_FOLLOWED: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recording {
    /// The steps and their order. The index of a send or receive is its tag; every span lies in `Output`.
    pub program: Arc<Program>,
    /// Operator and element of each reduction, in the order of the steps that reduce.
    pub reductions: Vec<Reduction>,
}

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RecordError {
    #[error("step {step} of the recording {problem}")]
    Step {
        /// Number of the step, from 0.
        step: usize,
        problem: &'static str,
    },
    #[error("the recording {0}")]
    Whole(&'static str),
    #[error("the recording has {steps} steps, and one has {MAX_STEPS} at most; record less at once")]
    Size { steps: usize },
    /// The rank would exceed a limit.
    #[error(
        "{held} {what} recorded on one group exceed the limit of {limit}; free recordings that are not used any more"
    )]
    Limit {
        what: &'static str,
        /// The number, this recording included.
        held: usize,
        /// The most that are allowed.
        limit: usize,
    },
    /// The tables of groups and recordings have reached the memory limit of the service process.
    #[error(
        "the service process has no memory left for groups and recordings; free some of them, or raise --tables-quota \
         of outboardd"
    )]
    Quota,
    /// The group is not made, or the rank is not in the group.
    #[error("the group is not one of this rank's; record on a group between its creation and its destruction")]
    Group,
    /// Recordings are numbered upwards, so that a number means the same on all ranks.
    #[error(
        "recording {found} came after recording {last}; a rank's recordings on a group are numbered upwards from 1"
    )]
    Number { found: u32, last: u32 },
}

impl Recording {
    /// Whether rank `rank` of `ranks` can have recorded this. The rank itself must ensure that unordered operations do
    /// not touch each other's bytes, and that every message has a receive.
    pub fn check(&self, rank: Rank, ranks: u32) -> Result<(), RecordError> {
        let program = &self.program;
        if (program.rank, program.ranks) != (rank, ranks) {
            return Err(RecordError::Whole("is of another rank or group"));
        }
        if (program.input_bytes, program.scratch_bytes) != (0, 0) || program.output_bytes > i64::MAX as u64 {
            return Err(RecordError::Whole("has buffers beside the memory that was recorded"));
        }
        if program.steps.len() > MAX_STEPS {
            return Err(RecordError::Size { steps: program.steps.len() });
        }
        if program.steps.iter().map(|step| step.after.len()).sum::<usize>() > MAX_FOLLOWED * MAX_STEPS {
            return Err(RecordError::Whole("has too many dependencies between its steps"));
        }
        let mut reductions = self.reductions.iter();
        for (i, step) in program.steps.iter().enumerate() {
            let wrong = |problem| Err(RecordError::Step { step: i, problem });
            if step.after.iter().any(|after| after.0 as usize >= i) {
                return wrong("follows a step that does not precede it");
            }
            let spans = [step.op.reads(), step.op.writes()];
            if spans.iter().flatten().any(|span| !lies_in(span, program.output_bytes)) {
                return wrong("names memory beyond what was recorded");
            }
            match step.op {
                Op::Send { to: peer, .. } | Op::Recv { from: peer, .. } if peer.0 >= ranks => {
                    return wrong("names a rank that is not in the group");
                }
                Op::Send { .. } | Op::Recv { .. } => {}
                Op::Copy { from, to } if !apart(from, to) => {
                    return wrong("copies between pieces that overlap or differ in length");
                }
                Op::Copy { .. } => {}
                Op::Reduce { from, into, .. } => {
                    let Some(reduction) = reductions.next() else { return wrong("has no operator") };
                    if !apart(from, into) || !from.len.is_multiple_of(reduction.element().bytes()) {
                        return wrong("reduces pieces that overlap, differ in length or end within an element");
                    }
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } => return wrong("multicasts; recorded groups do not"),
            }
        }
        if reductions.next().is_some() {
            return Err(RecordError::Whole("has more operators than reductions"));
        }
        Ok(())
    }
}

fn lies_in(span: &Span, bytes: u64) -> bool {
    span.buffer == Buffer::Output && span.end().is_some_and(|end| end <= bytes)
}

/// Whether two spans of one buffer, checked before, are disjoint and equally long.
fn apart(one: Span, other: Span) -> bool {
    let disjoint = one.offset + one.len <= other.offset || other.offset + other.len <= one.offset;
    one.len == other.len && (disjoint || one.len == 0)
}

/// By step: for a send or receive, its occurrence with this peer and tag; for a reduction, its number; else 0.
pub(crate) fn ordinals(program: &Program) -> Vec<u32> {
    let messages = program.steps.iter().filter(|step| matches!(step.op, Op::Send { .. } | Op::Recv { .. }));
    let mut counts: HashMap<(bool, Rank, u32), u32> = HashMap::with_capacity(messages.count());
    let mut next = |sends, peer, tag| {
        let count = counts.entry((sends, peer, tag)).or_insert(0);
        *count += 1;
        *count - 1
    };
    let mut reductions = 0..;
    let ordinal = |op: Op| match op {
        Op::Send { to, index, .. } => next(true, to, index),
        Op::Recv { from, index, .. } => next(false, from, index),
        Op::Reduce { .. } => reductions.next().unwrap_or_default(),
        Op::Copy { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => 0,
    };
    program.steps.iter().map(|step| step.op).map(ordinal).collect()
}
