//! Checks of each program alone: the program is well formed and names nothing outside its rank's reach.
//!
//! After these checks, every rank, dependency and span of the group's programs is in range.

use super::{StepLocation, VerifyError};
use outboard_plan::{Buffer, Op, OpId, Program, Rank, Span};

/// The end of a span that has passed the checks.
pub(super) fn end_of(span: Span) -> u64 {
    span.end().expect("a checked span ends within its buffer")
}

/// Checks that there is one program per rank, in order, and that all agree on the layout.
pub(super) fn group(programs: &[Program]) -> Result<(), VerifyError> {
    for (position, program) in programs.iter().enumerate() {
        let Program { rank, ranks, chains, subgroups, .. } = *program;
        if rank.0 as usize != position || ranks as usize != programs.len() {
            return Err(VerifyError::Group { position, programs: programs.len(), rank, ranks });
        }
        let agreed = (programs[0].chains, programs[0].subgroups);
        if (chains, subgroups) != agreed || chains == 0 || chains > ranks || subgroups == 0 {
            return Err(VerifyError::Layout { rank, layout: (chains, subgroups), agreed, ranks });
        }
    }
    Ok(())
}

/// Checks every step of `program`, and the sizes of its buffers against the bytes of a contract.
pub(super) fn program(program: &Program, (input, output): (u64, u64)) -> Result<(), VerifyError> {
    let rank = program.rank;
    for (buffer, expected) in [(Buffer::Input, input), (Buffer::Output, output)] {
        let bytes = bytes_of(program, buffer);
        if bytes != expected {
            return Err(VerifyError::BufferSize { rank, buffer, bytes, expected });
        }
    }
    steps(program)
}

pub(super) fn steps(program: &Program) -> Result<(), VerifyError> {
    for id in 0..program.steps.len() {
        step(program, OpId(u32::try_from(id).expect("a program has at most 2^32 steps")))?;
    }
    Ok(())
}

fn step(program: &Program, id: OpId) -> Result<(), VerifyError> {
    let step = &program.steps[id.0 as usize];
    let at = || StepLocation::new(program, id).boxed();
    if let Some(on) = step.after.iter().find(|on| **on >= id) {
        return Err(VerifyError::Dependency { at: at(), on: *on });
    }
    for span in step.op.reads().into_iter().chain(step.op.writes()) {
        if !lies_within(program, span) {
            let bytes = bytes_of(program, span.buffer);
            return Err(VerifyError::SpanOutside { at: at(), span, bytes });
        }
    }
    if step.op.writes().is_some_and(|span| span.buffer == Buffer::Input && !span.is_empty()) {
        return Err(VerifyError::WritesInput { at: at() });
    }
    let peer = |peer: Rank| {
        let other = peer.0 < program.ranks && peer != program.rank;
        if other { Ok(()) } else { Err(VerifyError::Peer { at: at(), ranks: program.ranks }) }
    };
    let posted_at_once = || {
        if step.after.is_empty() { Ok(()) } else { Err(VerifyError::Waits { at: at() }) }
    };
    match step.op {
        Op::Send { to, .. } => peer(to),
        Op::Recv { from, span, .. } if span.is_empty() => peer(from),
        Op::Recv { from: other, .. } | Op::MulticastRecv { root: other, .. } => {
            peer(other)?;
            posted_at_once()
        }
        Op::Multicast { .. } => Ok(()),
        Op::Copy { from, to } if from.len != to.len || overlap(from, to) => Err(VerifyError::Copy { at: at() }),
        Op::Reduce { from, into, .. } if from.len != into.len || overlap(from, into) => {
            Err(VerifyError::Reduce { at: at() })
        }
        Op::Copy { .. } | Op::Reduce { .. } => Ok(()),
    }
}

fn overlap(a: Span, b: Span) -> bool {
    a.buffer == b.buffer && a.offset < end_of(b) && b.offset < end_of(a)
}

pub(super) fn lies_within(program: &Program, span: Span) -> bool {
    span.end().is_some_and(|end| end <= bytes_of(program, span.buffer))
}

fn bytes_of(program: &Program, buffer: Buffer) -> u64 {
    match buffer {
        Buffer::Input => program.input_bytes,
        Buffer::Output => program.output_bytes,
        Buffer::Scratch => program.scratch_bytes,
    }
}
