//! Plans of reductions are proven: every contribution once, in the promised order, the same pairs on all ranks that share a
//! result (TH-2, TH-6), in place and not.

mod damage;

use outboard_plan::{
    Algorithm, AllreduceAlgorithm, Extents, LeaderAllreduce, LeaderReduce, LeaderReduceScatter, Program, Rank,
    ReduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm, Topology, Vector, allreduce, exscan, reduce,
    reduce_scatter, scan,
};
use outboard_plan_tools::contract;
use outboard_plan_tools::{ReductionContract, verify_reduction};
use proptest::prelude::*;
use proptest::sample::select;

/// Chains in segments of several elements, with a shorter one among them, and of less than one.
const REDUCE: [ReduceAlgorithm; 5] = [
    ReduceAlgorithm::Binomial,
    ReduceAlgorithm::Halving,
    ReduceAlgorithm::Chain { segment: 44 },
    ReduceAlgorithm::Chain { segment: 1 << 40 },
    ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: 100 } },
];

const REDUCE_BY_HOSTS: [ReduceAlgorithm; 4] = [
    ReduceAlgorithm::Chain { segment: 100 },
    ReduceAlgorithm::Hierarchical { between: LeaderReduce::Binomial },
    ReduceAlgorithm::Hierarchical { between: LeaderReduce::Halving },
    ReduceAlgorithm::Hierarchical { between: LeaderReduce::Chain { segment: 40 } },
];

const BY_HOSTS: [AllreduceAlgorithm; 4] = [
    AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::RecursiveDoubling },
    AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment: 48 } },
    AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment: 1 << 40 } },
    AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Rabenseifner },
];

/// Of blocks in one segment and in several.
const ALLREDUCE: [AllreduceAlgorithm; 8] = [
    AllreduceAlgorithm::RecursiveDoubling,
    AllreduceAlgorithm::Ring { segment: 16 },
    AllreduceAlgorithm::Ring { segment: 1 << 40 },
    AllreduceAlgorithm::Rabenseifner,
    AllreduceAlgorithm::Hierarchical { between: LeaderAllreduce::Ring { segment: 1 << 40 } },
    AllreduceAlgorithm::ReduceMulticast { subgroups: 2 },
    AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 3, segment: 16 },
    AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 3, segment: 1 << 40 },
];

/// Of blocks in one segment and in several.
const REDUCE_SCATTER: [ReduceScatterAlgorithm; 6] = [
    ReduceScatterAlgorithm::Ring { segment: 16 },
    ReduceScatterAlgorithm::Ring { segment: 1 << 40 },
    ReduceScatterAlgorithm::RecursiveHalving,
    ReduceScatterAlgorithm::Pairwise { segment: 16 },
    ReduceScatterAlgorithm::Pairwise { segment: 1 << 40 },
    ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Ring { segment: 1 << 40 } },
];

const REDUCE_SCATTER_BY_HOSTS: [ReduceScatterAlgorithm; 4] = [
    ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Ring { segment: 48 } },
    ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::RecursiveHalving },
    ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Pairwise { segment: 48 } },
    ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::Pairwise { segment: 1 << 40 } },
];

const SCAN: [ScanAlgorithm; 3] =
    [ScanAlgorithm::RecursiveDoubling, ScanAlgorithm::Chain { pieces: 1 }, ScanAlgorithm::Chain { pieces: 4 }];

fn group(ranks: u32, program: impl Fn(Rank) -> Program) -> Vec<Program> {
    (0..ranks).map(Rank).map(program).collect()
}

fn prove_reduce(algorithm: ReduceAlgorithm, ranks: u32, root: Rank, vector: Vector) {
    prove_reduce_by_hosts(algorithm, &Topology::flat(ranks), root, vector);
}

fn prove_reduce_by_hosts(algorithm: ReduceAlgorithm, topology: &Topology, root: Rank, vector: Vector) {
    let programs = group(topology.ranks(), |rank| reduce(algorithm, topology, root, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| contract::reduce(algorithm, topology, root, rank, vector));
    assert_eq!(verdict, Ok(()), "{algorithm} among {topology:?} to {root} of {vector:?}");
}

/// Contiguous and strided ranks, hosts of one rank, of several and of different numbers.
fn layouts(ranks: u32) -> [Topology; 5] {
    let laid_out: [&dyn Fn(u32) -> u32; 5] =
        [&|_| 0, &|rank| rank / 4, &|rank| rank % 3, &|rank| rank.ilog2(), &|rank| (rank * 7 + 1) % 11];
    laid_out.map(|host_of| Topology::of_hosts((1..=ranks).map(host_of)).unwrap())
}

fn prove_allreduce(algorithm: AllreduceAlgorithm, ranks: u32, vector: Vector) {
    prove_by_hosts(algorithm, &Topology::flat(ranks), vector);
}

fn prove_by_hosts(algorithm: AllreduceAlgorithm, topology: &Topology, vector: Vector) {
    let programs = group(topology.ranks(), |rank| allreduce(algorithm, topology, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |_| contract::allreduce(algorithm, topology, vector));
    assert_eq!(verdict, Ok(()), "{algorithm} among {topology:?} of {vector:?}");
}

fn prove_reduce_scatter(algorithm: ReduceScatterAlgorithm, counts: &[u64], element_bytes: u64) {
    prove_reduce_scatter_by_hosts(algorithm, &Topology::flat(counts.len() as u32), counts, element_bytes);
}

fn prove_reduce_scatter_by_hosts(
    algorithm: ReduceScatterAlgorithm,
    topology: &Topology,
    counts: &[u64],
    element_bytes: u64,
) {
    let extents = Extents::uneven(counts.iter().map(|count| count * element_bytes)).unwrap();
    let programs = group(extents.ranks(), |rank| reduce_scatter(algorithm, topology, rank, &extents).unwrap());
    let contract = |rank| contract::reduce_scatter(algorithm, topology, rank, &extents, element_bytes);
    let verdict = verify_reduction(&programs, contract);
    assert_eq!(verdict, Ok(()), "{algorithm} among {topology:?} of {counts:?} elements of {element_bytes} B");
}

fn prove_scans(algorithm: ScanAlgorithm, ranks: u32, vector: Vector) {
    let programs = group(ranks, |rank| scan(algorithm, ranks, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| contract::scan(rank, vector));
    assert_eq!(verdict, Ok(()), "scan by {algorithm} among {ranks} of {vector:?}");
    let programs = group(ranks, |rank| exscan(algorithm, ranks, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| contract::exscan(rank, vector));
    assert_eq!(verdict, Ok(()), "exscan by {algorithm} among {ranks} of {vector:?}");
}

/// Counts below, at and beyond the ranks, and none.
fn vectors(ranks: u32) -> [Vector; 4] {
    let ranks = u64::from(ranks);
    [0, 1, ranks - 1, 3 * ranks + 1].map(|count| Vector { count, element_bytes: 4 })
}

#[test]
fn reduce_is_right_for_every_group_up_to_64() {
    for algorithm in REDUCE {
        for ranks in 1..=64 {
            for root in 0..ranks {
                let count = u64::from(root) % 2 * u64::from(ranks) + 1;
                prove_reduce(algorithm, ranks, Rank(root), Vector { count, element_bytes: 4 });
            }
        }
    }
}

#[test]
fn allreduce_is_right_for_every_group_up_to_64() {
    for algorithm in ALLREDUCE {
        for ranks in 1..=64 {
            vectors(ranks).into_iter().for_each(|vector| prove_allreduce(algorithm, ranks, vector));
        }
    }
}

/// SP-7: whatever the layout and whoever of a host is the root.
#[test]
fn reduce_by_hosts_is_right_for_every_group_up_to_64() {
    for algorithm in REDUCE_BY_HOSTS {
        for ranks in 1..=64u32 {
            for topology in layouts(ranks) {
                for root in [0, ranks / 3, ranks - 1] {
                    let vectors = vectors(ranks);
                    prove_reduce_by_hosts(algorithm, &topology, Rank(root), vectors[(root + ranks) as usize % 4]);
                }
            }
        }
    }
}

/// SP-7: whatever the layout.
#[test]
fn allreduce_by_hosts_is_right_for_every_group_up_to_64() {
    for algorithm in BY_HOSTS {
        for ranks in 1..=64u32 {
            for topology in layouts(ranks) {
                for vector in vectors(ranks) {
                    prove_by_hosts(algorithm, &topology, vector);
                }
            }
        }
    }
}

#[test]
fn reduce_scatter_is_right_for_every_group_up_to_64() {
    for algorithm in REDUCE_SCATTER {
        for ranks in 1..=64usize {
            prove_reduce_scatter(algorithm, &vec![3; ranks], 4);
        }
    }
}

/// SP-7: whatever the layout, of blocks of one size and of others with empty ones among them.
#[test]
fn reduce_scatter_by_hosts_is_right_for_every_group_up_to_64() {
    for algorithm in REDUCE_SCATTER_BY_HOSTS {
        for ranks in 1..=64u32 {
            for topology in layouts(ranks) {
                prove_reduce_scatter_by_hosts(algorithm, &topology, &vec![3; ranks as usize], 4);
                let uneven: Vec<u64> = (0..u64::from(ranks)).map(|rank| rank * 5 % 7).collect();
                prove_reduce_scatter_by_hosts(algorithm, &topology, &uneven, 8);
            }
        }
    }
}

#[test]
fn scans_are_right_for_every_group_up_to_64() {
    for algorithm in SCAN {
        for ranks in 1..=64 {
            vectors(ranks).into_iter().for_each(|vector| prove_scans(algorithm, ranks, vector));
        }
    }
}

/// Vectors of any element, shorter and longer than the ranks are many.
fn vector() -> impl Strategy<Value = Vector> {
    let count = prop_oneof![0..300u64, Just(1 << 40)];
    (count, select(vec![1, 2, 4, 8, 12, 16])).prop_map(|(count, element_bytes)| Vector { count, element_bytes })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn random_vectors_are_right(
        (ranks, root) in (1..=64u32).prop_flat_map(|ranks| (Just(ranks), 0..ranks)),
        vector in vector(),
        to_root in select(&REDUCE[..2]),
        to_all in select(&ALLREDUCE),
        pieces in 1..9u32,
    ) {
        prove_reduce(to_root, ranks, Rank(root), vector);
        let segment = (vector.count * vector.element_bytes / u64::from(pieces)).max(1);
        prove_reduce(ReduceAlgorithm::Chain { segment }, ranks, Rank(root), vector);
        prove_allreduce(to_all, ranks, vector);
        prove_scans(ScanAlgorithm::RecursiveDoubling, ranks, vector);
        prove_scans(ScanAlgorithm::Chain { pieces }, ranks, vector);
    }

    #[test]
    fn random_blocks_with_zeros_among_them_are_right(
        counts in prop::collection::vec(prop_oneof![Just(0u64), 1..50u64], 1..=64),
        element_bytes in select(vec![1, 8, 16]),
        algorithm in select(&REDUCE_SCATTER),
        by_host in select(&REDUCE_SCATTER_BY_HOSTS),
        hosts in 1..9u32,
    ) {
        prove_reduce_scatter(algorithm, &counts, element_bytes);
        let topology = Topology::of_hosts((0..counts.len() as u32).map(|rank| rank * 5 % hosts)).unwrap();
        prove_reduce_scatter_by_hosts(by_host, &topology, &counts, element_bytes);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4))]

    /// Algorithms whose programs grow with the logarithm of the ranks.
    #[test]
    fn random_groups_up_to_4096_are_right(ranks in 65..=4096u32, pick: u32, count in 1..100_000u64) {
        let vector = Vector { count, element_bytes: 4 };
        for algorithm in [ReduceAlgorithm::Binomial, ReduceAlgorithm::Halving] {
            prove_reduce(algorithm, ranks, Rank(pick % ranks), vector);
        }
        for algorithm in [AllreduceAlgorithm::RecursiveDoubling, AllreduceAlgorithm::Rabenseifner] {
            prove_allreduce(algorithm, ranks, vector);
        }
        prove_allreduce(AllreduceAlgorithm::ReduceMulticast { subgroups: 1 }, ranks, vector);
        prove_scans(ScanAlgorithm::RecursiveDoubling, ranks, vector);
        prove_scans(ScanAlgorithm::Chain { pieces: 1 }, ranks, vector);
        prove_reduce_scatter(ReduceScatterAlgorithm::RecursiveHalving, &vec![count % 5; ranks as usize], 4);
    }

    /// Algorithms whose programs grow with the ranks.
    #[test]
    fn random_rings_are_right(ranks in 65..=130u32, count in 0..1000u64) {
        let vector = Vector { count, element_bytes: 2 };
        prove_reduce(ReduceAlgorithm::Chain { segment: 500 }, ranks, Rank(ranks / 2), vector);
        prove_allreduce(AllreduceAlgorithm::Ring { segment: 1 << 10 }, ranks, vector);
        prove_allreduce(AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 1, segment: 1 << 10 }, ranks, vector);
        prove_reduce_scatter(ReduceScatterAlgorithm::Ring { segment: 1 << 10 }, &vec![1; ranks as usize], 2);
        prove_reduce_scatter(ReduceScatterAlgorithm::Pairwise { segment: 1 << 10 }, &vec![1; ranks as usize], 2);
    }
}

/// Whether the damage is a dependency less.
fn lacks_a_dependency(damaged: &Program, valid: &Program) -> bool {
    let same_ops = damaged.steps.iter().map(|step| step.op).eq(valid.steps.iter().map(|step| step.op));
    let dependencies = |program: &Program| program.steps.iter().map(|step| step.after.len()).sum::<usize>();
    same_ops && dependencies(damaged) < dependencies(valid)
}

/// Damages each program of a valid group in every way, one at a time: no such group is valid, but that between hosts a dependency
/// may follow from what other ranks wait for.
fn damage_is_refused(name: &str, group: Vec<Program>, contract: impl Fn(Rank) -> ReductionContract) -> usize {
    assert_eq!(verify_reduction(&group, &contract), Ok(()), "{name}");
    let mut refused = 0;
    for rank in 0..group.len() {
        let mut group = group.clone();
        let valid = group[rank].clone();
        for program in damage::damaged(&valid) {
            group[rank] = program;
            let verdict = verify_reduction(&group, &contract);
            if verdict.is_ok() && name == "hierarchical" && lacks_a_dependency(&group[rank], &valid) {
                continue;
            }
            assert!(verdict.is_err(), "{name}: accepted in place of\n{valid}\n{}", group[rank]);
            refused += 1;
        }
    }
    refused
}

#[test]
fn every_single_damage_is_refused() {
    let mut refused = 0;
    for ranks in 1..=6 {
        let vector = Vector { count: 2 * u64::from(ranks) + 1, element_bytes: 2 };
        for algorithm in ALLREDUCE {
            let programs = group(ranks, |rank| allreduce(algorithm, &Topology::flat(ranks), rank, vector).unwrap());
            refused += damage_is_refused(algorithm.name(), programs, |_| {
                contract::allreduce(algorithm, &Topology::flat(ranks), vector)
            });
        }
        let topology = Topology::of_hosts((0..ranks).map(|rank| rank / 2)).unwrap();
        for algorithm in BY_HOSTS {
            let programs = group(ranks, |rank| allreduce(algorithm, &topology, rank, vector).unwrap());
            refused +=
                damage_is_refused(algorithm.name(), programs, |_| contract::allreduce(algorithm, &topology, vector));
        }
        let flat = Topology::flat(ranks);
        let of_reduce = REDUCE.into_iter().map(|algorithm| (algorithm, &flat));
        let by_hosts = REDUCE_BY_HOSTS.into_iter().map(|algorithm| (algorithm, &topology));
        for (algorithm, topology) in of_reduce.chain(by_hosts) {
            let root = Rank(ranks / 2);
            let programs = group(ranks, |rank| reduce(algorithm, topology, root, rank, vector).unwrap());
            let contract = |rank| contract::reduce(algorithm, topology, root, rank, vector);
            refused += damage_is_refused(algorithm.name(), programs, contract);
        }
        let flat_ones = REDUCE_SCATTER.into_iter().map(|algorithm| (algorithm, &flat));
        let by_hosts = REDUCE_SCATTER_BY_HOSTS.into_iter().map(|algorithm| (algorithm, &topology));
        for (algorithm, topology) in flat_ones.chain(by_hosts) {
            let extents = Extents::uneven((0..ranks).map(|rank| 2 + 18 * u64::from(rank % 2))).unwrap();
            let programs = group(ranks, |rank| reduce_scatter(algorithm, topology, rank, &extents).unwrap());
            let contract = |rank| contract::reduce_scatter(algorithm, topology, rank, &extents, 2);
            refused += damage_is_refused(algorithm.name(), programs, contract);
        }
        for algorithm in SCAN {
            let programs = group(ranks, |rank| scan(algorithm, ranks, rank, vector).unwrap());
            refused += damage_is_refused(algorithm.name(), programs, |rank| contract::scan(rank, vector));
            let programs = group(ranks, |rank| exscan(algorithm, ranks, rank, vector).unwrap());
            refused += damage_is_refused(algorithm.name(), programs, |rank| contract::exscan(rank, vector));
        }
    }
    assert!(refused > 10_000, "only {refused} damaged plans were tried");
}
