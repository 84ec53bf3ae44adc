//! Broadcast plans are proven for every small group and root (MC-1, TH-6, GP-8).

mod support;

use outboard_plan::{BroadcastAlgorithm, Op, Program, Rank, broadcast};
use outboard_plan_tools::contract::broadcast as contract;
use outboard_plan_tools::{VerifyError, verify};
use proptest::prelude::*;

fn program(algorithm: BroadcastAlgorithm, ranks: u32, root: Rank, rank: Rank, bytes: u64) -> Program {
    broadcast(algorithm, ranks, root, rank, bytes).unwrap()
}

fn group(algorithm: BroadcastAlgorithm, ranks: u32, root: Rank, bytes: u64) -> Vec<Program> {
    (0..ranks).map(|rank| program(algorithm, ranks, root, Rank(rank), bytes)).collect()
}

fn prove(algorithm: BroadcastAlgorithm, ranks: u32, root: Rank, bytes: u64) -> Result<(), VerifyError> {
    verify(&group(algorithm, ranks, root, bytes), |rank| contract(root, rank, bytes))
}

/// Each algorithm, those with segments in about `segments` of them.
fn algorithms(bytes: u64, segments: u64) -> [BroadcastAlgorithm; 7] {
    let segment = bytes.div_ceil(segments).max(1);
    [
        BroadcastAlgorithm::Binomial,
        BroadcastAlgorithm::KNomial { radix: 3 },
        BroadcastAlgorithm::KNomial { radix: 4 },
        BroadcastAlgorithm::Chain { segment },
        BroadcastAlgorithm::DoubleTree { segment },
        BroadcastAlgorithm::ScatterAllgather,
        BroadcastAlgorithm::Multicast { subgroups: 3 },
    ]
}

#[test]
fn every_group_up_to_64_and_every_root_is_right() {
    for ranks in 1..=64 {
        for root in (0..ranks).map(Rank) {
            // Now and then less bytes than ranks.
            let bytes = if root.0 % 2 == 0 { 1500 } else { u64::from(ranks / 2) };
            for algorithm in algorithms(bytes, 3) {
                assert_eq!(
                    prove(algorithm, ranks, root, bytes),
                    Ok(()),
                    "{algorithm} of {bytes} B from {root} of {ranks}"
                );
            }
        }
    }
}

#[test]
fn extreme_byte_counts_are_right() {
    for bytes in [0, 1, 2, u64::MAX] {
        for (ranks, algorithm) in [1, 2, 3, 10].into_iter().flat_map(|ranks| algorithms(bytes, 5).map(|a| (ranks, a))) {
            assert_eq!(prove(algorithm, ranks, Rank(ranks - 1), bytes), Ok(()), "{algorithm} of {bytes} B");
        }
    }
}

/// What each rank sends, in bytes, is as documented: at most so much for each byte broadcast.
#[test]
fn bytes_per_rank_are_as_documented() {
    let most_sent = |algorithm| {
        let sent = |program: &Program| {
            let sends = program.steps.iter().map(|step| match step.op {
                Op::Send { span, .. } | Op::Multicast { span } => span.len,
                _ => 0,
            });
            sends.sum::<u64>()
        };
        group(algorithm, 16, Rank(3), 1600).iter().map(sent).max().unwrap()
    };
    assert_eq!(most_sent(BroadcastAlgorithm::Binomial), 4 * 1600);
    assert_eq!(most_sent(BroadcastAlgorithm::KNomial { radix: 4 }), 2 * 3 * 1600);
    assert_eq!(most_sent(BroadcastAlgorithm::Chain { segment: 100 }), 1600);
    assert_eq!(most_sent(BroadcastAlgorithm::DoubleTree { segment: 100 }), 1600);
    assert!(most_sent(BroadcastAlgorithm::ScatterAllgather) < 2 * 1600);
    assert_eq!(most_sent(BroadcastAlgorithm::Multicast { subgroups: 1 }), 1600);
}

/// TH-6, GP-8: a segment is passed on as it arrives, whatever became of the others.
#[test]
fn segments_wait_for_themselves_alone() {
    for algorithm in [BroadcastAlgorithm::Chain { segment: 100 }, BroadcastAlgorithm::DoubleTree { segment: 100 }] {
        for program in group(algorithm, 9, Rank(0), 1000) {
            for step in program.steps.iter().filter(|step| matches!(step.op, Op::Send { .. })) {
                let before: Vec<_> = step.after.iter().map(|id| program.steps[id.0 as usize].op.writes()).collect();
                let expected = if program.rank == Rank(0) { vec![] } else { vec![step.op.reads()] };
                assert_eq!(before, expected, "{algorithm}: {step}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_groups_are_right(
        ranks in 1..=300u32, root: u32, bytes in 0..=u64::MAX, segments in 1..20u64, pick in 0..7usize,
    ) {
        prove(algorithms(bytes, segments)[pick], ranks, Rank(root % ranks), bytes)?;
    }

    /// Whole groups of up to 4,096, where programs are short.
    #[test]
    fn random_trees_are_right(
        ranks in 1..=4096u32, root: u32, bytes in 0..=u64::MAX, segments in 1..5u64, pick in 0..5usize,
    ) {
        prove(algorithms(bytes, segments)[pick], ranks, Rank(root % ranks), bytes)?;
    }

    #[test]
    fn random_ranks_of_large_groups_fit_their_peers(
        ranks in 1..=4096u32, root: u32, rank: u32, bytes in 0..=u64::MAX, segments in 1..20u64, pick in 0..6usize,
    ) {
        let (root, algorithm) = (Rank(root % ranks), algorithms(bytes, segments)[pick]);
        let promised = |rank| if rank == root { 0 } else { bytes };
        support::sampled(|rank| program(algorithm, ranks, root, rank, bytes), &[Rank(rank % ranks)], promised);
    }
}
