//! Plans of reductions are proven: every contribution once, in the promised order, the same pairs on all ranks that share a
//! result (TH-2, TH-6), in place and not.

use outboard_plan::combine::{allreduce as all, reduce as to_root, reduce_scatter as scatter, scan as prefix};
use outboard_plan::{
    AllreduceAlgorithm, Extents, Program, Rank, ReduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm, Vector,
    allreduce, exscan, reduce, reduce_scatter, scan, verify_reduction,
};

const REDUCE: [ReduceAlgorithm; 2] = [ReduceAlgorithm::Binomial, ReduceAlgorithm::Halving];

const ALLREDUCE: [AllreduceAlgorithm; 5] = [
    AllreduceAlgorithm::RecursiveDoubling,
    AllreduceAlgorithm::Ring,
    AllreduceAlgorithm::Rabenseifner,
    AllreduceAlgorithm::ReduceMulticast { subgroups: 2 },
    AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 3 },
];

const REDUCE_SCATTER: [ReduceScatterAlgorithm; 3] =
    [ReduceScatterAlgorithm::Ring, ReduceScatterAlgorithm::RecursiveHalving, ReduceScatterAlgorithm::Pairwise];

const SCAN: [ScanAlgorithm; 3] =
    [ScanAlgorithm::RecursiveDoubling, ScanAlgorithm::Chain { pieces: 1 }, ScanAlgorithm::Chain { pieces: 4 }];

fn group(ranks: u32, program: impl Fn(Rank) -> Program) -> Vec<Program> {
    (0..ranks).map(Rank).map(program).collect()
}

fn prove_reduce(algorithm: ReduceAlgorithm, ranks: u32, root: Rank, vector: Vector) {
    let programs = group(ranks, |rank| reduce(algorithm, ranks, root, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| to_root::contract(algorithm, ranks, root, rank, vector));
    assert_eq!(verdict, Ok(()), "{algorithm} among {ranks} to {root} of {vector:?}");
}

fn prove_allreduce(algorithm: AllreduceAlgorithm, ranks: u32, vector: Vector) {
    let programs = group(ranks, |rank| allreduce(algorithm, ranks, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |_| all::contract(algorithm, ranks, vector));
    assert_eq!(verdict, Ok(()), "{algorithm} among {ranks} of {vector:?}");
}

fn prove_reduce_scatter(algorithm: ReduceScatterAlgorithm, counts: &[u64], element_bytes: u64) {
    let extents = Extents::uneven(counts.iter().map(|count| count * element_bytes)).unwrap();
    let programs = group(extents.ranks(), |rank| reduce_scatter(algorithm, rank, &extents).unwrap());
    let verdict = verify_reduction(&programs, |rank| scatter::contract(algorithm, rank, &extents, element_bytes));
    assert_eq!(verdict, Ok(()), "{algorithm} of {counts:?} elements of {element_bytes} B");
}

fn prove_scans(algorithm: ScanAlgorithm, ranks: u32, vector: Vector) {
    let programs = group(ranks, |rank| scan(algorithm, ranks, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| prefix::contract(rank, vector));
    assert_eq!(verdict, Ok(()), "scan by {algorithm} among {ranks} of {vector:?}");
    let programs = group(ranks, |rank| exscan(algorithm, ranks, rank, vector).unwrap());
    let verdict = verify_reduction(&programs, |rank| prefix::exscan_contract(rank, vector));
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

#[test]
fn reduce_scatter_is_right_for_every_group_up_to_64() {
    for algorithm in REDUCE_SCATTER {
        for ranks in 1..=64usize {
            prove_reduce_scatter(algorithm, &vec![3; ranks], 4);
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
