//! Alltoall(v), proven by the verifier for every small group and for random counts, including zeros (GP-8).

use outboard_plan::algorithm::WHOLE;
use outboard_plan::alltoall::Blocks;
use outboard_plan::{Algorithm, BlocksError, Op, PlanError, Program, Rank, Span, alltoall};
use outboard_plan_tools::{exchange, verify};
use proptest::prelude::*;

use crate::support;

const BRUCK: Algorithm = Algorithm::Bruck { ports: 1 };
const PAIRWISE: Algorithm = Algorithm::Pairwise { segment: WHOLE };

/// Algorithms for blocks of any size.
const BY_PAIRS: [Algorithm; 4] =
    [Algorithm::Pull, PAIRWISE, Algorithm::ScatterDestination { batch: 1 }, Algorithm::ScatterDestination { batch: 4 }];

fn group(algorithm: Algorithm, all: &[Blocks]) -> Vec<Program> {
    let ranks = all.len() as u32;
    (0..ranks).map(|r| alltoall(algorithm, ranks, Rank(r), &all[r as usize]).unwrap()).collect()
}

fn proven(algorithm: Algorithm, all: &[Blocks]) {
    assert_eq!(verify(&group(algorithm, all), |rank| exchange(rank, all)), Ok(()), "{algorithm:?}");
}

/// Blocks with these counts (by source, then destination), with a gap of `gap` bytes after each.
fn with_counts(counts: &[Vec<u64>], gap: u64) -> Vec<Blocks> {
    let spans = |lens: Vec<u64>, span: fn(u64, u64) -> Span| {
        let mut at = 0;
        lens.into_iter().map(|len| (span(at, len), at += len + gap).0).collect()
    };
    let columns = |rank: usize| counts.iter().map(|row| row[rank]).collect();
    let blocks = |rank: usize| Blocks {
        send: spans(counts[rank].clone(), Span::input),
        receive: spans(columns(rank), Span::output),
    };
    (0..counts.len()).map(blocks).collect()
}

#[test]
fn every_group_up_to_24_gathers_at_and_scatters_from_every_root_in_place_and_not() {
    for ranks in 1..=24 {
        for root in (0..ranks).map(Rank) {
            for own in [true, false] {
                let of = |rank| Blocks::gather(ranks, root, Rank(rank), 5, own).unwrap();
                proven(Algorithm::Pull, &(0..ranks).map(of).collect::<Vec<_>>());
                assert!((0..ranks).all(|rank| of(rank).fit_gather(root, Rank(rank))));
                let of = |rank| Blocks::scatter(ranks, root, Rank(rank), 5, own).unwrap();
                proven(Algorithm::Pull, &(0..ranks).map(of).collect::<Vec<_>>());
                assert!((0..ranks).all(|rank| of(rank).fit_scatter(root, Rank(rank))));
                let other = Rank((root.0 + 1) % ranks);
                assert!(ranks == 1 || !of(root.0).fit_gather(root, root) && !of(root.0).fit_scatter(root, other));
            }
        }
    }
    assert_eq!(Blocks::gather(3, Rank(0), Rank(1), u64::MAX / 2, true), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_counts_are_exchanged(
        counts in (1usize..9).prop_flat_map(|n| {
            let count = prop_oneof![Just(0u64), 1u64..50];
            prop::collection::vec(prop::collection::vec(count, n), n)
        }),
        gap in 0u64..3,
    ) {
        for algorithm in BY_PAIRS {
            proven(algorithm, &with_counts(&counts, gap));
        }
    }

    #[test]
    fn blocks_of_one_size_lie_anywhere(ranks in 1usize..100, bytes in 1..u64::from(u32::MAX), gap in 0u64..3) {
        proven(BRUCK, &with_counts(&vec![vec![bytes; ranks]; ranks], gap));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Programs of single ranks of large groups match the programs of all their peers; Bruck has few peers.
    #[test]
    fn random_ranks_of_large_groups_fit_their_peers(
        ranks in 1..=4096u32, rank: u32, bytes in 1..1u64 << 40, pick in 0..4usize,
    ) {
        let bruck = (BRUCK, ranks);
        for (algorithm, ranks) in [bruck, (BY_PAIRS[pick], 1 + ranks % 500)] {
            let blocks = Blocks::even(ranks, bytes).unwrap();
            let program = |rank| alltoall(algorithm, ranks, rank, &blocks).unwrap();
            support::sampled(program, &[Rank(rank % ranks)], |_| bytes * u64::from(ranks));
        }
    }
}

/// GP-8: at most `batch` sends of a rank are in flight; with pairwise, a round waits for the previous one.
#[test]
fn sends_wait_for_each_other_as_documented() {
    let even = vec![Blocks::even(8, 5).unwrap(); 8];
    let sends = |program: &Program| -> Vec<usize> {
        (0..program.steps.len()).filter(|id| matches!(program.steps[*id].op, Op::Send { .. })).collect()
    };
    for program in group(Algorithm::ScatterDestination { batch: 3 }, &even) {
        let sends = sends(&program);
        for (position, id) in sends.iter().enumerate() {
            let after: Vec<usize> = program.steps[*id].after.iter().map(|id| id.0 as usize).collect();
            assert_eq!(after, if position < 3 { vec![] } else { vec![sends[position - 3]] });
        }
    }
    for program in group(PAIRWISE, &even) {
        for pair in sends(&program).windows(2) {
            let after = &program.steps[pair[1]].after;
            assert_eq!((after.len(), after[0].0 as usize), (2, pair[0]));
        }
    }
}

/// Bruck: each rank sends `ceil(log2 P)` messages, each with at most half of the blocks.
#[test]
fn bruck_sends_few_messages() {
    for ranks in [2u32, 7, 8, 9, 64, 100] {
        let even = vec![Blocks::even(ranks, 16).unwrap(); ranks as usize];
        let rounds = ranks.next_power_of_two().trailing_zeros();
        for program in group(BRUCK, &even) {
            let sent: Vec<u64> = program
                .steps
                .iter()
                .filter_map(|step| match step.op {
                    Op::Send { span, .. } => Some(span.len),
                    _ => None,
                })
                .collect();
            assert_eq!(sent.len(), rounds as usize);
            assert!(sent.iter().all(|bytes| *bytes <= u64::from(ranks.div_ceil(2)) * 16), "{sent:?} of {ranks}");
        }
    }
}

#[test]
fn algorithms_refuse_what_does_not_fit_them() {
    let even = Blocks::even(3, 4).unwrap();
    let refused = |algorithm, blocks| alltoall(algorithm, 3, Rank(0), blocks).unwrap_err();
    let mut uneven = even.clone();
    uneven.receive[1].len = 3;
    assert_eq!(refused(BRUCK, &uneven), PlanError::Uneven { bytes: 4, other: 3 });
    let large = Blocks::even(3, u64::MAX / 3).unwrap();
    assert_eq!(refused(BRUCK, &large), PlanError::Scratch);
}

#[test]
fn nonsense_is_refused_by_name() {
    let even = Blocks::even(3, 4).unwrap();
    assert_eq!(even.check(4, Rank(0)), Err(BlocksError::Count { send: 3, receive: 3, ranks: 4 }));
    assert_eq!(even.check(3, Rank(3)), Err(BlocksError::Ranks { rank: Rank(3), ranks: 3 }));
    assert_eq!(Blocks::even(3, u64::MAX / 2), None);
    let mut own = even.clone();
    own.receive[1].len = 3;
    let error = own.check(3, Rank(1)).unwrap_err();
    assert_eq!(error.to_string(), "rank 1 sends itself 4 bytes and receives 3 from itself: make both equal");
    let mut far = even;
    far.send[2].offset = u64::MAX;
    assert_eq!(far.check(3, Rank(0)), Err(BlocksError::Range { offset: u64::MAX, len: 4 }));
}
