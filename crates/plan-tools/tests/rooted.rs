//! Gather(v), Scatter(v) and Barrier are proven for every small group and root, any counts with zeros among them.

mod support;

use std::num::NonZeroU32;

use outboard_plan::passes::{fuse_copies, ports};
use outboard_plan::{
    Algorithm, BarrierAlgorithm, BarrierError, Op, Program, Rank, RootedAlgorithm, RootedError, Share, Span, Step,
    barrier, gather, gatherv, scatter, scatterv,
};
use outboard_plan_tools::contract;
use outboard_plan_tools::verify;
use proptest::prelude::*;

/// A plan, and the same behind every pass, is what `contract` says.
fn prove(what: &str, programs: &[Program], contract: impl Fn(Rank) -> outboard_plan_tools::Contract + Copy) {
    assert_eq!(verify(programs, contract), Ok(()), "{what}");
    let changed = |program: &Program| ports(fuse_copies(program.clone()), NonZeroU32::new(2).unwrap());
    let changed: Vec<Program> = programs.iter().map(changed).collect();
    assert_eq!(verify(&changed, contract), Ok(()), "{what} behind all passes");
}

fn prove_gather(algorithm: RootedAlgorithm, ranks: u32, root: Rank, bytes: u64) {
    let programs: Vec<Program> =
        (0..ranks).map(|rank| gather(algorithm, ranks, root, Rank(rank), bytes).unwrap()).collect();
    let blocks = gather::blocks(ranks, bytes).unwrap();
    let what = format!("{algorithm} gather of {bytes} B to {root} of {ranks}");
    prove(&what, &programs, |rank| contract::gather(root, rank, &blocks));
}

fn prove_scatter(algorithm: RootedAlgorithm, ranks: u32, root: Rank, bytes: u64) {
    let programs: Vec<Program> =
        (0..ranks).map(|rank| scatter(algorithm, ranks, root, Rank(rank), bytes).unwrap()).collect();
    let blocks = scatter::blocks(ranks, bytes).unwrap();
    let what = format!("{algorithm} scatter of {bytes} B from {root} of {ranks}");
    prove(&what, &programs, |rank| contract::scatter(root, rank, &blocks));
}

#[test]
fn every_group_up_to_64_and_every_root_is_right() {
    for ranks in 1..=64 {
        for root in (0..ranks).map(Rank) {
            let bytes = u64::from((ranks + root.0) % 10);
            for algorithm in RootedAlgorithm::ALL {
                prove_gather(*algorithm, ranks, root, bytes);
                prove_scatter(*algorithm, ranks, root, bytes);
            }
        }
    }
}

/// Blocks of these sizes in order of ranks, with `gap` bytes between them.
fn blocks(sizes: &[u64], gap: u64, span: fn(u64, u64) -> Span) -> Vec<Span> {
    let mut at = 0;
    sizes.iter().map(|len| (span(at, *len), at += len + gap).0).collect()
}

fn share(root: Rank, rank: Rank, blocks: &[Span]) -> Share<'_> {
    if rank == root { Share::Root(blocks) } else { Share::Block(blocks[rank.0 as usize].len) }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn any_counts_are_right(
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 0..1u64 << 5], 1..80), root: u32, gap in 0..3u64,
    ) {
        let ranks = sizes.len() as u32;
        let root = Rank(root % ranks);
        let (ends, starts) = (blocks(&sizes, gap, Span::output), blocks(&sizes, gap, Span::input));
        let gathers: Vec<Program> = (0..ranks)
            .map(Rank)
            .map(|rank| gatherv(ranks, root, rank, share(root, rank, &ends)).unwrap())
            .collect();
        prove("gatherv", &gathers, |rank| contract::gather(root, rank, &ends));
        let scatters: Vec<Program> = (0..ranks)
            .map(Rank)
            .map(|rank| scatterv(ranks, root, rank, share(root, rank, &starts)).unwrap())
            .collect();
        prove("scatterv", &scatters, |rank| contract::scatter(root, rank, &starts));
    }

    #[test]
    fn random_groups_are_right(ranks in 1..=1000u32, root: u32, bytes in 0..9u64, ports in 1..9u32) {
        let root = Rank(root % ranks);
        prove_gather(RootedAlgorithm::Binomial, ranks, root, bytes);
        prove_scatter(RootedAlgorithm::Binomial, ranks, root, bytes);
        let algorithm = BarrierAlgorithm::Dissemination { ports };
        let programs: Vec<Program> = (0..ranks).map(|rank| barrier(algorithm, ranks, Rank(rank)).unwrap()).collect();
        prove("barrier", &programs, |_| contract::barrier());
    }

    #[test]
    fn random_ranks_of_large_groups_fit_their_peers(
        ranks in 1..=4096u32, root: u32, rank: u32, bytes in 1..=u64::MAX / 4096, linear: bool,
    ) {
        let (root, sample) = (Rank(root % ranks), [Rank(rank % ranks)]);
        let algorithm = if linear { RootedAlgorithm::Linear } else { RootedAlgorithm::Binomial };
        let gathered = |rank| if rank == root { u64::from(ranks) * bytes } else { 0 };
        support::sampled(|rank| gather(algorithm, ranks, root, rank, bytes).unwrap(), &sample, gathered);
        support::sampled(|rank| scatter(algorithm, ranks, root, rank, bytes).unwrap(), &sample, |_| bytes);
    }
}

/// For each rank, whose call it has learnt of when its program is complete: by passing on what is known along messages
/// until nothing changes.
fn known_at_the_end(programs: &[Program]) -> Vec<Vec<bool>> {
    let ranks = programs.len();
    // By rank and step, whose calls are known when it is complete.
    let mut known: Vec<Vec<Vec<bool>>> =
        programs.iter().map(|program| vec![vec![false; ranks]; program.steps.len()]).collect();
    loop {
        let before = known.clone();
        for (me, program) in programs.iter().enumerate() {
            for (id, step) in program.steps.iter().enumerate() {
                let mut learnt: Vec<&Vec<bool>> = step.after.iter().map(|id| &before[me][id.0 as usize]).collect();
                if let Op::Recv { from, index, .. } = step.op {
                    let name = (me, index);
                    let sent =
                        |step: &Step| matches!(step.op, Op::Send { to, index, .. } if (to.0 as usize, index) == name);
                    let sender = from.0 as usize;
                    learnt.push(&before[sender][programs[sender].steps.iter().position(sent).unwrap()]);
                }
                for rank in 0..ranks {
                    known[me][id][rank] |= learnt.iter().any(|learnt| learnt[rank]);
                }
                // Only an empty span of input says that the rank has called.
                known[me][id][me] |= step.op.reads() == Some(Span::input(0, 0));
            }
        }
        if known == before {
            let all = |steps: Vec<Vec<bool>>| (0..ranks).map(|rank| steps.iter().any(|step| step[rank])).collect();
            return known.into_iter().map(all).collect();
        }
    }
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for ranks in 1..=64 {
        for algorithm in [1, 2, 3, u32::MAX].map(|ports| BarrierAlgorithm::Dissemination { ports }) {
            let programs: Vec<Program> =
                (0..ranks).map(|rank| barrier(algorithm, ranks, Rank(rank)).unwrap()).collect();
            prove(&format!("{algorithm} of {ranks}"), &programs, |_| contract::barrier());
            // All ranks do the same, shifted.
            if ranks > 24 {
                continue;
            }
            for (rank, known) in known_at_the_end(&programs).into_iter().enumerate() {
                assert!(
                    ranks == 1 || known.iter().all(|known| *known),
                    "{algorithm} of {ranks}: rank {rank} knows {known:?}"
                );
            }
        }
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let linear = RootedAlgorithm::Linear;
    assert_eq!(gather(linear, 0, Rank(0), Rank(0), 1), Err(RootedError::Ranks { ranks: 0 }));
    let stranger = RootedError::Rank { rank: Rank(0), root: Rank(3), ranks: 3 };
    assert_eq!(scatter(RootedAlgorithm::Binomial, 3, Rank(3), Rank(0), 1), Err(stranger));
    assert_eq!(gather(linear, 3, Rank(0), Rank(1), u64::MAX), Err(RootedError::Bytes { ranks: 3 }));
    let two = gather::blocks(2, 8).unwrap();
    let share = |rank| RootedError::Share { rank: Rank(rank), root: Rank(0), ranks: 3 };
    assert_eq!(gatherv(3, Rank(0), Rank(0), Share::Root(&two)), Err(share(0)));
    assert_eq!(gatherv(3, Rank(0), Rank(1), Share::Root(&two)), Err(share(1)));
    assert_eq!(scatterv(3, Rank(0), Rank(0), Share::Block(1)), Err(share(0)));
    assert_eq!(scatterv(2, Rank(0), Rank(0), Share::Root(&two)), Err(RootedError::Block { span: two[0] }));
    assert_eq!(barrier(BarrierAlgorithm::Dissemination { ports: 0 }, 2, Rank(0)), Err(BarrierError::Ports));
    let error = barrier(BarrierAlgorithm::ALL[0], 2, Rank(2)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "a barrier of rank 2 among 2 ranks: a group has 1 to 65535 ranks, which count from 0"
    );
}
