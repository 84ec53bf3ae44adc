//! What the verifier proves of a plan holds behind each pass and behind all of them (GP-8, CD-2).

use std::num::NonZeroU32;

use outboard_plan::passes::{fuse_copies, ports};
use outboard_plan::{
    AllgatherAlgorithm, AlltoallAlgorithm, BroadcastAlgorithm, Extents, LeaderExchange, Program, Rank, Topology,
    allgatherv, alltoall, broadcast,
};
use outboard_plan_tools::{Contract, verify};
use proptest::prelude::*;

fn bounded(programs: &[Program], count: u32) -> Vec<Program> {
    let count = NonZeroU32::new(count).unwrap();
    programs.iter().map(|program| ports(program.clone(), count)).collect()
}

fn prove(what: &str, programs: &[Program], count: u32, contract: impl Fn(Rank) -> Contract + Copy) {
    assert_eq!(verify(programs, contract), Ok(()), "{what}");
    let fused: Vec<Program> = programs.iter().cloned().map(fuse_copies).collect();
    let both = bounded(&fused, count);
    for (pass, changed) in [("ports", bounded(programs, count)), ("fuse_copies", fused), ("both", both)] {
        // What is the same is proven.
        if changed != programs {
            assert_eq!(verify(&changed, contract), Ok(()), "{what} behind {pass}, {count} at a time");
        }
    }
}

fn allgathers() -> Vec<AllgatherAlgorithm> {
    let hierarchical = |leaders, between| AllgatherAlgorithm::Hierarchical { leaders, between };
    vec![
        AllgatherAlgorithm::Ring,
        AllgatherAlgorithm::NeighbourExchange,
        AllgatherAlgorithm::StandardExchange { ports: 1 },
        AllgatherAlgorithm::Bruck { ports: 2 },
        hierarchical(1, LeaderExchange::Ring),
        hierarchical(2, LeaderExchange::Bruck { ports: 1 }),
        AllgatherAlgorithm::Multicast { chains: 1, subgroups: 1 },
    ]
}

fn prove_allgather(ranks: u32, sizes: impl Fn(u32) -> u64, count: u32) {
    let extents = Extents::uneven((0..ranks).map(sizes)).unwrap();
    let topology = Topology::of_hosts((0..ranks).map(|rank| rank % ranks.div_ceil(3))).unwrap();
    for algorithm in allgathers() {
        let program = |rank| allgatherv(algorithm, &topology, Rank(rank), &extents, false).unwrap();
        let programs: Vec<Program> = (0..ranks).map(program).collect();
        let contract = |rank| outboard_plan_tools::contract::allgather(&extents, rank, false);
        prove(&format!("{algorithm} of {ranks}"), &programs, count, contract);
    }
}

fn prove_broadcast(ranks: u32, root: Rank, size: u64, count: u32) {
    let algorithms = [
        BroadcastAlgorithm::Binomial,
        BroadcastAlgorithm::KNomial { radix: 3 },
        BroadcastAlgorithm::Chain { segment: 7 },
        BroadcastAlgorithm::DoubleTree { segment: 8 },
        BroadcastAlgorithm::ScatterAllgather,
        BroadcastAlgorithm::Multicast { subgroups: 1 },
    ];
    for algorithm in algorithms {
        let program = |rank| broadcast(algorithm, ranks, root, Rank(rank), size).unwrap();
        let programs: Vec<Program> = (0..ranks).map(program).collect();
        let contract = |rank| outboard_plan_tools::contract::broadcast(root, rank, size);
        prove(&format!("{algorithm} of {ranks}"), &programs, count, contract);
    }
}

fn prove_alltoall(ranks: u32, size: u64, count: u32) {
    let blocks = outboard_plan::alltoall::Blocks::even(ranks, size).unwrap();
    let all = vec![blocks.clone(); ranks as usize];
    let algorithms = [
        AlltoallAlgorithm::Pull,
        AlltoallAlgorithm::Pairwise,
        AlltoallAlgorithm::ScatterDestination { batch: 2 },
        AlltoallAlgorithm::Bruck,
    ];
    for algorithm in algorithms {
        let program = |rank| alltoall(algorithm, ranks, Rank(rank), &blocks).unwrap();
        let programs: Vec<Program> = (0..ranks).map(program).collect();
        let contract = |rank| outboard_plan_tools::contract::alltoall(rank, &all);
        prove(&format!("{algorithm} of {ranks}"), &programs, count, contract);
    }
}

#[test]
fn every_group_up_to_64_stays_right() {
    for ranks in 1..=64 {
        prove_allgather(ranks, |rank| u64::from(rank % 4 * 3), 1 + ranks % 3);
        prove_broadcast(ranks, Rank(ranks / 3), 50, 1 + ranks % 3);
        prove_alltoall(ranks, 7, 1 + ranks % 3);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn random_groups_stay_right(
        ranks in 1..=40u32, seed: u32, size in 0..200u64, count in 1..6u32,
    ) {
        prove_allgather(ranks, |rank| size * u64::from((rank ^ seed) % 3), count);
        prove_broadcast(ranks, Rank(seed % ranks), size, count);
        prove_alltoall(ranks, size, count);
    }
}

/// CD-2: no more sends at a time than ports, counted along every order that the program allows.
#[test]
fn sends_follow_the_one_that_frees_their_port() {
    let program = broadcast(BroadcastAlgorithm::KNomial { radix: 8 }, 8, Rank(0), Rank(0), 8).unwrap();
    let bounded = ports(program, NonZeroU32::new(2).unwrap());
    let after: Vec<Vec<u32>> = bounded.steps.iter().map(|step| step.after.iter().map(|id| id.0).collect()).collect();
    assert_eq!(after, [vec![], vec![], vec![0], vec![1], vec![2], vec![3], vec![4]]);
}
