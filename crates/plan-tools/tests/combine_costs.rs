//! Reductions take the rounds and send the bytes that their algorithms promise.

use std::collections::HashMap;

use outboard_plan::combine::MAX_SEGMENTS;
use outboard_plan::{
    Algorithm, AllreduceAlgorithm, CombineError, Extents, LeaderAllreduce, LeaderReduce, LeaderReduceScatter,
    MAX_RANKS, Op, Program, Rank, ReduceAlgorithm, ReduceScatterAlgorithm, ScanAlgorithm, Topology, Vector, allreduce,
    exscan, reduce, reduce_scatter, scan,
};

/// Elements of the vector: a multiple of every number of ranks here, so that all blocks are equal.
const BYTES: u64 = 720_720;
const VECTOR: Vector = Vector { count: BYTES, element_bytes: 1 };

fn groups() -> impl Iterator<Item = u32> {
    1..=16
}

fn group(ranks: u32, program: impl Fn(Rank) -> Program) -> Vec<Program> {
    (0..ranks).map(Rank).map(program).collect()
}

/// The most messages of which each leaves after the one before it has arrived.
fn rounds(programs: &[Program]) -> u32 {
    let mut depths: Vec<Vec<u32>> = programs.iter().map(|program| vec![0; program.steps.len()]).collect();
    loop {
        let before = depths.clone();
        let mut sent = HashMap::new();
        for (program, depths) in programs.iter().zip(&mut depths) {
            for (id, step) in program.steps.iter().enumerate() {
                let ready = step.after.iter().map(|id| depths[id.0 as usize]).max().unwrap_or(0);
                depths[id] = depths[id].max(ready);
                match step.op {
                    Op::Send { to, index, .. } => sent.insert((program.rank, Some((to, index))), depths[id]),
                    Op::Multicast { .. } => sent.insert((program.rank, None), depths[id]),
                    Op::Recv { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => None,
                };
            }
        }
        for (program, depths) in programs.iter().zip(&mut depths) {
            for (id, step) in program.steps.iter().enumerate() {
                let name = match step.op {
                    Op::Recv { from, index, .. } => (from, Some((program.rank, index))),
                    Op::MulticastRecv { root, .. } => (root, None),
                    Op::Send { .. } | Op::Multicast { .. } | Op::Copy { .. } | Op::Reduce { .. } => continue,
                };
                depths[id] = sent[&name] + 1;
            }
        }
        if depths == before {
            return depths.into_iter().flatten().max().unwrap_or(0);
        }
    }
}

/// The group takes so many rounds at most, and no fewer where the ranks are a power of two.
fn takes(programs: &[Program], most: u32) {
    let (ranks, rounds) = (programs.len(), rounds(programs));
    assert!(rounds <= most, "{rounds} rounds of {ranks} ranks in place of {most}");
    assert!(rounds == most || !ranks.is_power_of_two(), "{rounds} rounds of {ranks} ranks in place of {most}");
}

/// Bytes that a rank sends.
fn sent(program: &Program) -> u64 {
    let bytes = |op: Op| match op {
        Op::Send { span, .. } | Op::Multicast { span } => span.len,
        Op::Recv { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => 0,
    };
    program.steps.iter().map(|step| bytes(step.op)).sum()
}

fn most_sent(programs: &[Program]) -> u64 {
    programs.iter().map(sent).max().expect("a group has a rank")
}

/// Rounds among a power of two of ranks, and those for pairs of ranks beyond it.
fn doublings(ranks: u32) -> (u32, u32) {
    (ranks.ilog2(), u32::from(!ranks.is_power_of_two()))
}

fn ceil_log2(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// Bytes of all blocks but one.
fn all_but_one(ranks: u32) -> u64 {
    BYTES - BYTES / u64::from(ranks)
}

#[test]
fn reduce_costs_what_it_says() {
    for ranks in groups() {
        let programs = |algorithm| {
            let root = Rank(ranks / 3);
            group(ranks, |rank| reduce(algorithm, &Topology::flat(ranks), root, rank, VECTOR).unwrap())
        };
        let (doublings, more) = doublings(ranks);
        let tree = programs(ReduceAlgorithm::Binomial);
        takes(&tree, ceil_log2(ranks));
        assert!(tree.iter().all(|program| sent(program) <= BYTES));
        let halving = programs(ReduceAlgorithm::Halving);
        takes(&halving, 2 * doublings + more);
        assert!(most_sent(&halving) <= BYTES * 3 / 2);
        // Segments of a 10th follow each other.
        let chain = programs(ReduceAlgorithm::Chain { segment: BYTES / 10 });
        assert_eq!(rounds(&chain), ranks - 1);
        let own = |program: &Program| if ranks > 1 && program.rank != Rank(ranks / 3) { BYTES } else { 0 };
        assert!(chain.iter().all(|program| sent(program) == own(program)));
        let sends = |program: &Program| program.steps.iter().filter(|step| matches!(step.op, Op::Send { .. })).count();
        assert_eq!(chain.iter().map(sends).max(), Some(if ranks > 1 { 10 } else { 0 }));
        reduce_by_hosts_costs_what_it_says(ranks);
    }
}

/// Of hosts with three ranks each, leaders alone send over the network, and only once.
fn reduce_by_hosts_costs_what_it_says(hosts: u32) {
    let topology = Topology::of_hosts((0..3 * hosts).map(|rank| rank / 3)).unwrap();
    let root = Rank(hosts + 1);
    for between in [LeaderReduce::Binomial, LeaderReduce::Chain { segment: BYTES / 5 }] {
        let algorithm = ReduceAlgorithm::Hierarchical { between };
        let programs = group(3 * hosts, |rank| reduce(algorithm, &topology, root, rank, VECTOR).unwrap());
        let most = if between == LeaderReduce::Binomial { ceil_log2(hosts) } else { hosts - 1 };
        takes(&programs, most + 1);
        let crossing: Vec<u64> = programs.iter().map(away).filter(|bytes| *bytes > 0).collect();
        assert_eq!(crossing, vec![BYTES; hosts as usize - 1], "{algorithm}");
    }
}

/// Bytes that a rank sends to others than the two that it shares a host with.
fn away(program: &Program) -> u64 {
    let sent = |op: &Op| match op {
        Op::Send { to, span, .. } if to.0 / 3 != program.rank.0 / 3 => span.len,
        _ => 0,
    };
    program.steps.iter().map(|step| sent(&step.op)).sum()
}

#[test]
fn allreduce_costs_what_it_says() {
    for ranks in groups() {
        let programs =
            |algorithm| group(ranks, |rank| allreduce(algorithm, &Topology::flat(ranks), rank, VECTOR).unwrap());
        let (doublings, more) = doublings(ranks);
        let doubling = programs(AllreduceAlgorithm::RecursiveDoubling);
        takes(&doubling, doublings + 2 * more);
        assert_eq!(most_sent(&doubling), u64::from(doublings + more) * BYTES);
        for segment in [BYTES, 16 << 10] {
            let ring = programs(AllreduceAlgorithm::Ring { segment });
            takes(&ring, 2 * (ranks - 1));
            assert_eq!(most_sent(&ring), 2 * all_but_one(ranks));
            let scatter = programs(AllreduceAlgorithm::ReduceScatterMulticast { subgroups: 1, segment });
            takes(&scatter, if ranks > 1 { ranks } else { 0 });
            assert_eq!(most_sent(&scatter), if ranks > 1 { BYTES } else { 0 });
            let longest = |op: Op| if let Op::Send { span, .. } = op { span.len } else { 0 };
            let steps = || ring.iter().chain(&scatter).flat_map(|program| &program.steps);
            assert!(steps().all(|step| longest(step.op) <= segment));
        }
        let halving = programs(AllreduceAlgorithm::Rabenseifner);
        takes(&halving, 2 * doublings + 2 * more);
        assert!(most_sent(&halving).abs_diff(2 * all_but_one(1 << doublings) + u64::from(more) * BYTES) < 2 * 16);
        // Of hosts with three ranks each, leaders alone send over the network, as many as there are hosts.
        let between = LeaderAllreduce::RecursiveDoubling;
        let topology = Topology::of_hosts((0..3 * ranks).map(|rank| rank / 3)).unwrap();
        let of = |rank| allreduce(AllreduceAlgorithm::Hierarchical { between }, &topology, rank, VECTOR).unwrap();
        let by_host = group(3 * ranks, of);
        takes(&by_host, doublings + 2 * more + 2);
        assert_eq!(by_host.iter().map(away).max(), Some(u64::from(doublings + more) * BYTES));
        assert!(by_host.iter().all(|program| program.rank.0 % 3 == 0 || away(program) == 0));
        let tree = programs(AllreduceAlgorithm::ReduceMulticast { subgroups: 1 });
        takes(&tree, ceil_log2(ranks) + u32::from(ranks > 1));
        assert_eq!(most_sent(&tree), if ranks > 1 { BYTES } else { 0 });
    }
}

#[test]
fn reduce_scatter_costs_what_it_says() {
    for ranks in groups() {
        let extents = Extents::even(ranks, BYTES / u64::from(ranks)).unwrap();
        let flat = Topology::flat(ranks);
        let programs = |algorithm| group(ranks, |rank| reduce_scatter(algorithm, &flat, rank, &extents).unwrap());
        let (doublings, more) = doublings(ranks);
        for segment in [BYTES, 16 << 10] {
            let ring = programs(ReduceScatterAlgorithm::Ring { segment });
            takes(&ring, ranks - 1);
            assert_eq!(most_sent(&ring), all_but_one(ranks));
            let pairwise = programs(ReduceScatterAlgorithm::Pairwise { segment });
            takes(&pairwise, u32::from(ranks > 1));
            assert_eq!(most_sent(&pairwise), all_but_one(ranks));
            let longest = |op: Op| if let Op::Send { span, .. } = op { span.len } else { 0 };
            let steps = || ring.iter().chain(&pairwise).flat_map(|program| &program.steps);
            assert!(steps().all(|step| longest(step.op) <= segment));
        }
        let halving = programs(ReduceScatterAlgorithm::RecursiveHalving);
        takes(&halving, doublings + 2 * more);
        assert!(most_sent(&halving) <= BYTES);
        // Of hosts with three ranks each, leaders alone send over the network, as many as there are hosts.
        let topology = Topology::of_hosts((0..3 * ranks).map(|rank| rank / 3)).unwrap();
        let extents = Extents::even(3 * ranks, BYTES / u64::from(ranks)).unwrap();
        let between = LeaderReduceScatter::Ring { segment: BYTES };
        let algorithm = ReduceScatterAlgorithm::Hierarchical { between };
        let by_host = group(3 * ranks, |rank| reduce_scatter(algorithm, &topology, rank, &extents).unwrap());
        takes(&by_host, ranks + 1);
        assert_eq!(by_host.iter().map(away).max(), Some(3 * all_but_one(ranks)));
        assert!(by_host.iter().all(|program| program.rank.0 % 3 == 0 || away(program) == 0));
    }
}

#[test]
fn scans_cost_what_they_say() {
    for ranks in groups() {
        let doubling = |rank| scan(ScanAlgorithm::RecursiveDoubling, ranks, rank, VECTOR).unwrap();
        let exclusive = |rank| exscan(ScanAlgorithm::RecursiveDoubling, ranks, rank, VECTOR).unwrap();
        for programs in [group(ranks, doubling), group(ranks, exclusive)] {
            takes(&programs, ceil_log2(ranks));
            assert!(most_sent(&programs) <= u64::from(ceil_log2(ranks)) * BYTES);
        }
        for pieces in [1, 5] {
            let chain = |rank| scan(ScanAlgorithm::Chain { pieces }, ranks, rank, VECTOR).unwrap();
            let exclusive = |rank| exscan(ScanAlgorithm::Chain { pieces }, ranks, rank, VECTOR).unwrap();
            for programs in [group(ranks, chain), group(ranks, exclusive)] {
                takes(&programs, ranks - 1);
                assert_eq!(most_sent(&programs), if ranks > 1 { BYTES } else { 0 });
            }
        }
    }
}

/// Programs of the largest group: steps grow with the ranks, or with their logarithm, whatever the count.
#[test]
fn programs_stay_small() {
    let vector = Vector { count: 1 << 40, element_bytes: 8 };
    let steps = |program: Program| {
        assert!(program.steps.iter().all(|step| step.after.len() <= 20), "{}", program.rank);
        program.steps.len()
    };
    let (linear, logarithmic) = (5 * MAX_RANKS as usize, 6 * 16);
    for rank in [0, 1, MAX_RANKS / 2, MAX_RANKS - 1].map(Rank) {
        let most = |algorithm| match algorithm {
            AllreduceAlgorithm::Ring { .. } | AllreduceAlgorithm::ReduceScatterMulticast { .. } => linear,
            AllreduceAlgorithm::RecursiveDoubling
            | AllreduceAlgorithm::Rabenseifner
            | AllreduceAlgorithm::Hierarchical { .. }
            | AllreduceAlgorithm::ReduceMulticast { .. } => logarithmic,
        };
        for algorithm in AllreduceAlgorithm::ALL.iter().copied() {
            assert!(
                steps(allreduce(algorithm, &Topology::flat(MAX_RANKS), rank, vector).unwrap()) <= most(algorithm),
                "{algorithm}"
            );
        }
        for algorithm in ReduceAlgorithm::ALL.iter().copied() {
            let most = match algorithm {
                ReduceAlgorithm::Binomial | ReduceAlgorithm::Halving => logarithmic,
                ReduceAlgorithm::Chain { .. } | ReduceAlgorithm::Hierarchical { .. } => 3 * MAX_SEGMENTS as usize,
            };
            let program = reduce(algorithm, &Topology::flat(MAX_RANKS), Rank(7), rank, vector).unwrap();
            assert!(steps(program) <= most, "{algorithm}");
        }
        let (flat, extents) = (Topology::flat(MAX_RANKS), Extents::even(MAX_RANKS, 8).unwrap());
        for algorithm in ReduceScatterAlgorithm::ALL.iter().copied() {
            assert!(steps(reduce_scatter(algorithm, &flat, rank, &extents).unwrap()) <= linear, "{algorithm}");
        }
        let doubling = ScanAlgorithm::RecursiveDoubling;
        assert!(steps(scan(doubling, MAX_RANKS, rank, vector).unwrap()) <= logarithmic);
        assert!(steps(exscan(doubling, MAX_RANKS, rank, vector).unwrap()) <= logarithmic);
        assert!(steps(scan(ScanAlgorithm::Chain { pieces: 1000 }, MAX_RANKS, rank, vector).unwrap()) <= 4 * 1000);
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let vector = Vector { count: 3, element_bytes: 8 };
    let flat = Topology::flat(3);
    let reduced = |algorithm, root, rank| reduce(algorithm, &flat, Rank(root), Rank(rank), vector).unwrap_err();
    let to = |root, rank| reduced(ReduceAlgorithm::Binomial, root, rank);
    assert_eq!(reduced(ReduceAlgorithm::Chain { segment: 0 }, 0, 0), CombineError::Segment);
    assert_eq!(to(3, 0), CombineError::Rank { rank: Rank(3), ranks: 3 });
    assert_eq!(to(0, 4).to_string(), "rank 4 in a reduction among 3 ranks: ranks count from 0");
    let all = |algorithm, ranks, vector| allreduce(algorithm, &Topology::flat(ranks), Rank(0), vector).unwrap_err();
    let (doubling, multicast) =
        (AllreduceAlgorithm::RecursiveDoubling, AllreduceAlgorithm::ReduceMulticast { subgroups: 0 });
    assert_eq!(all(doubling, 0, vector), CombineError::Ranks { ranks: 0 });
    assert_eq!(all(doubling, MAX_RANKS + 1, vector), CombineError::Ranks { ranks: MAX_RANKS + 1 });
    assert_eq!(all(multicast, 3, vector), CombineError::Subgroups);
    let long = Vector { count: u64::MAX / 8 + 1, element_bytes: 8 };
    assert_eq!(all(doubling, 3, long), CombineError::Bytes { count: u64::MAX / 8 + 1, element_bytes: 8 });
    let half = Vector { count: u64::MAX / 2, element_bytes: 1 };
    assert_eq!(all(doubling, 16, half), CombineError::Scratch);
    let blocks = Extents::even(3, 8).unwrap();
    let scatter = |algorithm, ranks| reduce_scatter(algorithm, &Topology::flat(ranks), Rank(0), &blocks).unwrap_err();
    assert_eq!(scatter(ReduceScatterAlgorithm::Ring { segment: 0 }, 3), CombineError::Segment);
    assert_eq!(scatter(ReduceScatterAlgorithm::RecursiveHalving, 4), CombineError::Blocks { blocks: 3, ranks: 4 });
    let chain = scan(ScanAlgorithm::Chain { pieces: 0 }, 3, Rank(0), vector).unwrap_err();
    assert_eq!(chain, CombineError::Pieces);
}

#[test]
fn nothing_to_combine_is_an_empty_program() {
    let vector = Vector { count: 0, element_bytes: 8 };
    for rank in (0..5).map(Rank) {
        for algorithm in AllreduceAlgorithm::ALL.iter().copied() {
            assert_eq!(allreduce(algorithm, &Topology::flat(5), rank, vector).unwrap().steps, [], "{algorithm}");
        }
        for algorithm in ReduceAlgorithm::ALL.iter().copied() {
            assert_eq!(reduce(algorithm, &Topology::flat(5), Rank(1), rank, vector).unwrap().steps, [], "{algorithm}");
        }
        for algorithm in [ScanAlgorithm::RecursiveDoubling, ScanAlgorithm::Chain { pieces: 3 }] {
            assert_eq!(scan(algorithm, 5, rank, vector).unwrap().steps, [], "{algorithm}");
            assert_eq!(exscan(algorithm, 5, rank, vector).unwrap().steps, [], "{algorithm}");
        }
    }
}
