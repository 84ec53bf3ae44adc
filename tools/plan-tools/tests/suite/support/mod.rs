//! Helpers that the tests of algorithms share.
#![allow(dead_code, reason = "each test uses some of it")]

use std::collections::HashMap;

use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Buffer, Op, Program, Rank, Span, program};
use outboard_plan_tools::{VerifyError, contract, verify};

/// The algorithm of a collective with the name `text`.
pub(crate) fn choice(collective: Collective, text: &str) -> Choice {
    Choice::read(collective, text).unwrap()
}

/// The programs of all ranks.
pub(crate) fn group(choice: Choice, arguments: &Arguments<'_>) -> Vec<Program> {
    let of = |rank| program(choice, arguments, Rank(rank)).unwrap();
    (0..arguments.topology.ranks()).map(of).collect()
}

/// The result of verifying `programs` against the contract of the call.
pub(crate) fn verdict(programs: &[Program], choice: Choice, arguments: &Arguments<'_>) -> Result<(), VerifyError> {
    verify(programs, |rank| contract(choice, arguments, rank).unwrap())
}

/// Asserts that the programs of all ranks fulfil the contract of the call.
pub(crate) fn prove(choice: Choice, arguments: &Arguments<'_>) {
    let verdict = verdict(&group(choice, arguments), choice, arguments);
    assert_eq!(verdict, Ok(()), "{} by {choice} of {arguments:?}", choice.collective());
}

/// Bytes of the messages of a rank that `counts` selects; a multicast counts once.
pub(crate) fn sent(program: &Program, counts: impl Fn(Option<Rank>) -> bool) -> u64 {
    let bytes = |op: Op| match op {
        Op::Send { to, span, .. } if counts(Some(to)) => span.len,
        Op::Multicast { span } if counts(None) => span.len,
        _ => 0,
    };
    program.steps.iter().map(|step| bytes(step.op)).sum()
}

/// Checks single ranks of a group that is too large to build as a whole. Each message of `sample` has a counterpart of
/// the same length in its peer's program. The program's writes to `Output` cover `promised` bytes once.
pub(crate) fn sampled(program: impl Fn(Rank) -> Program, sample: &[Rank], promised: impl Fn(Rank) -> u64) {
    let mut programs: HashMap<Rank, Program> = HashMap::new();
    for rank in sample {
        let own = program(*rank);
        for step in &own.steps {
            let (peer, counterpart) = match step.op {
                Op::Send { to, index, span } => (to, (true, index, span.len)),
                Op::Recv { from, index, span } => (from, (false, index, span.len)),
                Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => continue,
            };
            let other = programs.entry(peer).or_insert_with(|| program(peer));
            let found = other.steps.iter().any(|step| match step.op {
                Op::Recv { from, index, span } => from == *rank && (true, index, span.len) == counterpart,
                Op::Send { to, index, span } => to == *rank && (false, index, span.len) == counterpart,
                _ => false,
            });
            assert!(found, "{rank}: {step} has no counterpart on {peer}");
        }
        assert_eq!(written_once(&own), promised(*rank), "bytes of output of {rank}");
    }
}

/// Number of written bytes of `Output`; fails if a byte is written twice.
fn written_once(program: &Program) -> u64 {
    let written = program.steps.iter().filter_map(|step| step.op.writes());
    let mut spans: Vec<Span> = written.filter(|span| span.buffer == Buffer::Output && !span.is_empty()).collect();
    spans.sort_by_key(|span| span.offset);
    for pair in spans.windows(2) {
        assert!(pair[0].offset + pair[0].len <= pair[1].offset, "{} writes twice to {}", program.rank, pair[1]);
    }
    spans.iter().map(|span| span.len).sum()
}
