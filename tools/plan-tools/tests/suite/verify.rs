//! The verifier on small hand-made plans: each defect is found, named and placed; sound orders are accepted.

use outboard_plan::{Op, OpId, Program, ProgramBuilder, Rank, Span};
use outboard_plan_tools::{Contract, ContributionFault, ContributionSpan, PromisedSpan, VerifyError, verify};

const OURS: Span = Span::output(0, 8);
const OURS_HALF: Span = Span::output(0, 4);
const THEIRS: Span = Span::output(8, 8);

/// Two ranks with 16 B of output and scratch each; `build` fills the program of each rank, given the other rank.
fn pair(build: impl Fn(&mut ProgramBuilder, u32, Rank)) -> Vec<Program> {
    let program = |rank: u32| {
        let mut builder = ProgramBuilder::new(Rank(rank), 2);
        builder.buffers(8, 16, 16).multicast_layout(2, 1);
        build(&mut builder, rank, Rank(1 - rank));
        builder.build()
    };
    (0..2).map(program).collect()
}

/// Each rank contributes its input; its output ends with its own bytes, then the bytes of the other rank.
fn exchange(rank: Rank) -> Contract {
    let ends = |span, source| PromisedSpan::of_one(span, source, 0);
    Contract {
        element_bytes: None,
        input_bytes: 8,
        output_bytes: 16,
        before: vec![ContributionSpan { span: Span::input(0, 8), source: rank, from: 0 }],
        after: vec![ends(OURS, rank), ends(THEIRS, Rank(1 - rank.0))],
    }
}

/// Like [`exchange`], but without promises.
fn nothing(rank: Rank) -> Contract {
    Contract { after: Vec::new(), ..exchange(rank) }
}

fn refused(programs: &[Program], contract: fn(Rank) -> Contract) -> VerifyError {
    verify(programs, contract).unwrap_err()
}

#[test]
fn exchange_is_accepted() {
    let programs = pair(|builder, _, other| {
        builder.recv(other, 0, THEIRS, &[]);
        builder.send(other, 0, Span::input(0, 8), &[]);
        builder.copy(Span::input(0, 8), OURS, &[]);
    });
    assert_eq!(verify(&programs, exchange), Ok(()));
}

/// Bytes may travel in parts through scratch, and be joined from parts.
#[test]
fn staged_exchange_in_parts_is_accepted() {
    let programs = pair(|builder, _, other| {
        let first = builder.recv(other, 0, Span::scratch(3, 3), &[]);
        let second = builder.recv(other, 1, Span::scratch(6, 5), &[]);
        builder.send(other, 0, Span::input(0, 3), &[]);
        builder.send(other, 1, Span::input(3, 5), &[]);
        builder.copy(Span::scratch(3, 8), THEIRS, &[first, second]);
        builder.copy(Span::input(0, 8), OURS, &[]);
    });
    assert_eq!(verify(&programs, exchange), Ok(()));
}

#[test]
fn wrong_missing_and_stray_output_are_told_apart() {
    let wrong = pair(|builder, _, other| {
        builder.recv(other, 0, OURS, &[]);
        builder.send(other, 0, Span::input(0, 8), &[]);
        builder.copy(Span::input(0, 8), THEIRS, &[]);
    });
    let fault = ContributionFault::Stranger(Rank(1));
    assert_eq!(refused(&wrong, exchange), VerifyError::Contribution { rank: Rank(0), offset: 0, fault });
    let missing = pair(|builder, _, _| {
        builder.copy(Span::input(0, 5), Span::output(0, 5), &[]);
    });
    assert!(matches!(refused(&missing, exchange), VerifyError::Missing { rank: Rank(0), offset: 5 }));
    assert!(matches!(refused(&missing, nothing), VerifyError::Stray { rank: Rank(0), offset: 0 }));
    let shifted = pair(|builder, _, other| {
        builder.recv(other, 0, THEIRS, &[]);
        builder.send(other, 0, Span::input(0, 8), &[]);
        builder.copy(Span::input(0, 4), Span::output(0, 4), &[]);
        builder.copy(Span::input(3, 4), Span::output(4, 4), &[]);
    });
    let wrong = VerifyError::WrongElement { rank: Rank(0), offset: 4, found: 3, expected: 4 };
    assert_eq!(refused(&shifted, exchange), wrong);
}

#[test]
fn reading_what_nobody_wrote_is_refused() {
    let programs = pair(|builder, _, _| {
        builder.copy(Span::scratch(0, 8), OURS, &[]);
    });
    assert!(matches!(refused(&programs, nothing), VerifyError::ReadsNothing { offset: 0, .. }));
}

#[test]
fn circle_of_signals_is_a_deadlock() {
    let programs = pair(|builder, _, other| {
        let told = builder.recv(other, 0, Span::signal(), &[]);
        builder.send(other, 0, Span::signal(), &[told]);
    });
    let VerifyError::Deadlock { at, other } = refused(&programs, nothing) else { panic!("not a deadlock") };
    assert_ne!((at.rank, at.step), (other.rank, other.step));
}

/// Both ranks send first and receive afterwards, which works only on a transport that buffers.
#[test]
fn sends_that_wait_for_late_receives_are_a_deadlock() {
    let programs = pair(|builder, _, other| {
        let sent = builder.send(other, 0, Span::signal(), &[]);
        builder.recv(other, 0, Span::signal(), &[sent]);
    });
    assert!(matches!(refused(&programs, nothing), VerifyError::Deadlock { .. }));
}

/// Rank 1 sends its block and a signal, and receives the answer into the same memory.
fn answer_into_sent_memory(follow_own_send: bool) -> Vec<Program> {
    pair(|builder, rank, other| {
        if rank == 0 {
            builder.recv(other, 0, Span::scratch(0, 8), &[]);
            let ready = builder.recv(other, 1, Span::signal(), &[]);
            builder.send(other, 2, Span::input(0, 8), &[ready]);
        } else {
            let filled = builder.copy(Span::input(0, 8), Span::scratch(0, 8), &[]);
            let sent = builder.send(other, 0, Span::scratch(0, 8), &[filled]);
            let after = if follow_own_send { vec![sent] } else { vec![filled] };
            builder.send(other, 1, Span::signal(), &after);
            builder.recv(other, 2, Span::scratch(0, 8), &[]);
        }
    })
}

/// An order that follows from messages through another rank counts.
#[test]
fn order_through_another_rank_is_accepted() {
    assert_eq!(verify(&answer_into_sent_memory(true), nothing), Ok(()));
}

#[test]
fn memory_reused_before_the_own_send_completes_is_refused() {
    let error = refused(&answer_into_sent_memory(false), nothing);
    let VerifyError::Conflict { at, other, shared } = &error else { panic!("{error}") };
    assert_eq!((at.rank, other.rank, *shared), (Rank(1), Rank(1), Span::scratch(0, 8)));
    assert!([at.op, other.op].iter().any(|op| matches!(op, Op::Send { index: 0, .. })), "{error}");
}

#[test]
fn unordered_writes_are_refused_and_unordered_reads_are_not() {
    let half = |offset| Span::input(offset, 4);
    let programs = pair(|builder, _, _| {
        builder.copy(half(0), Span::scratch(0, 4), &[]);
        builder.copy(half(2), Span::scratch(4, 4), &[]);
    });
    assert_eq!(verify(&programs, nothing), Ok(()));
    let programs = pair(|builder, _, _| {
        builder.copy(half(0), Span::scratch(0, 4), &[]);
        builder.copy(half(4), Span::scratch(3, 4), &[]);
    });
    let VerifyError::Conflict { shared, .. } = refused(&programs, nothing) else { panic!("no conflict") };
    assert_eq!(shared, Span::scratch(3, 1));
}

/// Accesses conflict if they share one byte, but not if they only adjoin.
#[test]
fn unordered_read_and_write_conflict_from_one_shared_byte() {
    let read_then_write_at = |offset| {
        pair(move |builder, _, _| {
            let filled = builder.copy(Span::input(0, 8), Span::scratch(0, 8), &[]);
            builder.copy(Span::scratch(0, 4), OURS_HALF, &[filled]);
            builder.copy(Span::input(0, 4), Span::scratch(offset, 4), &[filled]);
        })
    };
    let half = |rank| Contract { after: vec![PromisedSpan::of_one(OURS_HALF, rank, 0)], ..exchange(rank) };
    assert_eq!(verify(&read_then_write_at(4), half), Ok(()));
    let VerifyError::Conflict { shared, .. } = refused(&read_then_write_at(3), half) else { panic!("no conflict") };
    assert_eq!(shared, Span::scratch(3, 1));
}

/// MC-4: data could arrive before its receive is posted.
#[test]
fn receive_of_data_that_waits_is_refused() {
    let programs = pair(|builder, _, other| {
        let sent = builder.send(other, 0, Span::input(0, 8), &[]);
        builder.recv(other, 0, THEIRS, &[sent]);
    });
    let VerifyError::Waits { at } = refused(&programs, nothing) else { panic!("accepted a late receive") };
    assert_eq!((at.rank, at.step), (Rank(0), OpId(1)));
}

#[test]
fn messages_that_do_not_match_are_refused() {
    let lost = pair(|builder, rank, other| {
        if rank == 0 {
            builder.send(other, 7, Span::input(0, 8), &[]);
        }
    });
    assert_eq!(
        refused(&lost, nothing).to_string(),
        "rank 0 step 0 (send input[0..8] to rank 1 as message 7) has no counterpart on the other rank"
    );
    let twice = pair(|builder, rank, other| {
        for _ in 0..2 {
            if rank == 0 {
                builder.send(other, 0, Span::signal(), &[]);
            } else {
                builder.recv(other, 0, Span::signal(), &[]);
            }
        }
    });
    assert!(matches!(refused(&twice, nothing), VerifyError::SameName { .. }));
    let short = pair(|builder, rank, other| {
        if rank == 0 {
            builder.send(other, 0, Span::input(0, 8), &[]);
        } else {
            builder.recv(other, 0, Span::scratch(0, 7), &[]);
        }
    });
    assert!(matches!(refused(&short, nothing), VerifyError::Lengths { .. }));
}

/// MC-1: a multicast goes to all other ranks, once per rank.
#[test]
fn multicasts_that_do_not_match_are_refused() {
    let missed = pair(|builder, rank, _| {
        if rank == 0 {
            builder.multicast(Span::input(0, 8), &[]);
        }
    });
    assert!(matches!(refused(&missed, nothing), VerifyError::MulticastMissed { by: Rank(1), .. }));
    let unsent = pair(|builder, rank, other| {
        if rank == 0 {
            builder.multicast_recv(other, THEIRS);
        }
    });
    assert!(matches!(refused(&unsent, nothing), VerifyError::Unmatched { .. }));
    let twice = pair(|builder, rank, other| {
        for _ in 0..2 {
            if rank == 0 {
                builder.multicast(Span::input(0, 8), &[]);
            } else {
                builder.multicast_recv(other, Span::scratch(0, 8));
            }
        }
    });
    assert!(matches!(refused(&twice, nothing), VerifyError::SameName { .. }));
}

#[test]
fn malformed_steps_are_refused() {
    let one = |op| {
        pair(move |builder, _, _| {
            builder.push(op, &[]);
        })
    };
    let outside = [Span::output(9, 8), Span::scratch(u64::MAX, 2), Span::input(0, 9)];
    for span in outside {
        let programs = one(Op::Multicast { span });
        assert!(matches!(refused(&programs, nothing), VerifyError::SpanOutside { span: s, .. } if s == span));
    }
    let writes_input = one(Op::Copy { from: OURS, to: Span::input(0, 8) });
    assert!(matches!(refused(&writes_input, nothing), VerifyError::WritesInput { .. }));
    for to in [Span::output(4, 8), Span::scratch(0, 7)] {
        assert!(matches!(refused(&one(Op::Copy { from: OURS, to }), nothing), VerifyError::Copy { .. }));
    }
    for into in [Span::output(4, 8), Span::scratch(0, 7)] {
        let reduce = Op::Reduce { from: OURS, into, from_left: true };
        assert!(matches!(refused(&one(reduce), nothing), VerifyError::Reduce { .. }));
    }
    for to in [Rank(0), Rank(2)] {
        let programs = one(Op::Send { to, index: 0, span: Span::signal() });
        assert!(matches!(refused(&programs, nothing), VerifyError::Peer { ranks: 2, .. }));
    }
    let mut forward = one(Op::Copy { from: Span::input(0, 8), to: OURS });
    forward[1].steps[0].after.push(OpId(0));
    assert!(matches!(refused(&forward, nothing), VerifyError::Dependency { on: OpId(0), .. }));
}

#[test]
fn programs_that_are_no_group_are_refused() {
    let programs = pair(|_, _, _| {});
    assert_eq!(verify(&programs, nothing), Ok(()));
    let swapped = [programs[1].clone(), programs[0].clone()];
    assert!(matches!(refused(&swapped, nothing), VerifyError::Group { position: 0, rank: Rank(1), .. }));
    assert!(matches!(refused(&programs[..1], nothing), VerifyError::Group { programs: 1, ranks: 2, .. }));
    for (chains, subgroups) in [(0, 1), (3, 1), (1, 0)] {
        let layout: Vec<_> = programs.iter().map(|program| Program { chains, subgroups, ..program.clone() }).collect();
        assert!(matches!(refused(&layout, nothing), VerifyError::Layout { rank: Rank(0), .. }));
    }
}
