//! What the verifier proves of a reduction holds behind each pass and behind all of them, in place and not.

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};

use outboard_plan::combine::{allreduce as all, reduce as to_root, reduce_scatter as scatter, scan as prefix};
use outboard_plan::passes::{chunk, fuse_copies, ports, subgroups};
use outboard_plan::{
    Algorithm, AllreduceAlgorithm, Extents, LeaderReduceScatter, Program, Rank, ReduceAlgorithm,
    ReduceScatterAlgorithm, ReductionContract, ScanAlgorithm, Topology, Vector, allreduce, exscan, reduce,
    reduce_scatter, scan, verify_reduction,
};

/// Bytes of an element, which no pass may cut.
const ELEMENT: u64 = 2;

/// A chain of more than one segment of the vectors here.
const IN_SEGMENTS: ReduceAlgorithm = ReduceAlgorithm::Chain { segment: 50 };

/// Chunks of which the longest span of the group makes three.
fn chunk_bytes(programs: &[Program]) -> NonZeroU64 {
    let spans = programs.iter().flat_map(|program| &program.steps).filter_map(|step| step.op.reads());
    let longest = spans.map(|span| span.len).max().unwrap_or(0);
    NonZeroU64::new((longest / ELEMENT).div_ceil(3).max(1) * ELEMENT).expect("at least one element")
}

fn prove(what: &str, programs: Vec<Program>, contract: impl Fn(Rank) -> ReductionContract) {
    let bytes = chunk_bytes(&programs);
    let three = NonZeroU16::new(3).unwrap();
    let chunked = |program: Program| chunk(program, bytes).unwrap();
    let all = |program| subgroups(ports(chunked(fuse_copies(program)), NonZeroU32::MIN), three);
    let passes: [(&str, &dyn Fn(Program) -> Program); 3] =
        [("chunk", &chunked), ("ports", &|program| ports(program, NonZeroU32::MIN)), ("all", &all)];
    // Each pass by itself for small groups, since all together take what is left of it through the same proof.
    let alone = if programs.len() <= 16 { 0 } else { passes.len() - 1 };
    for (pass, change) in &passes[alone..] {
        let changed: Vec<Program> = programs.iter().cloned().map(change).collect();
        let ranks = changed.len();
        assert_eq!(verify_reduction(&changed, &contract), Ok(()), "{what} among {ranks} behind {pass} of {bytes} B");
    }
}

fn group(ranks: u32, program: impl Fn(Rank) -> Program) -> Vec<Program> {
    (0..ranks).map(Rank).map(program).collect()
}

/// Vectors of seven elements for each rank.
fn vector(ranks: u32) -> Vector {
    Vector { count: 7 * u64::from(ranks), element_bytes: ELEMENT }
}

#[test]
fn reduce_and_scans_stay_right_behind_every_pass() {
    for ranks in 1..=64 {
        let vector = vector(ranks);
        let root = Rank(ranks / 3);
        let topology = Topology::of_hosts((0..ranks).map(|rank| rank % 5)).unwrap();
        for algorithm in ReduceAlgorithm::ALL.iter().copied().chain([IN_SEGMENTS]) {
            let programs = group(ranks, |rank| reduce(algorithm, &topology, root, rank, vector).unwrap());
            prove(algorithm.name(), programs, |rank| to_root::contract(algorithm, &topology, root, rank, vector));
        }
        for algorithm in [ScanAlgorithm::RecursiveDoubling, ScanAlgorithm::Chain { pieces: 2 }] {
            let programs = group(ranks, |rank| scan(algorithm, ranks, rank, vector).unwrap());
            prove(algorithm.name(), programs, |rank| prefix::contract(rank, vector));
            let programs = group(ranks, |rank| exscan(algorithm, ranks, rank, vector).unwrap());
            prove(algorithm.name(), programs, |rank| prefix::exscan_contract(rank, vector));
        }
    }
}

#[test]
fn allreduce_stays_right_behind_every_pass() {
    for ranks in 1..=64 {
        let vector = vector(ranks);
        for algorithm in AllreduceAlgorithm::ALL.iter().copied() {
            let programs = group(ranks, |rank| allreduce(algorithm, &Topology::flat(ranks), rank, vector).unwrap());
            prove(algorithm.name(), programs, |_| all::contract(algorithm, &Topology::flat(ranks), vector));
        }
    }
}

#[test]
fn reduce_scatter_stays_right_behind_every_pass() {
    for ranks in 1..=64 {
        let extents = Extents::uneven((0..ranks).map(|rank| ELEMENT * u64::from(7 + rank % 5))).unwrap();
        let topology = Topology::of_hosts((0..ranks).map(|rank| rank % 5)).unwrap();
        let in_segments = [
            ReduceScatterAlgorithm::Ring { segment: 16 },
            ReduceScatterAlgorithm::Pairwise { segment: 16 },
            ReduceScatterAlgorithm::Hierarchical { between: LeaderReduceScatter::RecursiveHalving },
        ];
        for algorithm in ReduceScatterAlgorithm::ALL.iter().copied().chain(in_segments) {
            let programs = group(ranks, |rank| reduce_scatter(algorithm, &topology, rank, &extents).unwrap());
            prove(algorithm.name(), programs, |rank| scatter::contract(algorithm, &topology, rank, &extents, ELEMENT));
        }
    }
}
