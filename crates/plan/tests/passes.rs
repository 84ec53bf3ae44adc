//! What the verifier proves of a plan holds behind each pass and behind all of them (GP-8, MC-10, CD-2).

use std::num::{NonZeroU16, NonZeroU32, NonZeroU64};

use outboard_plan::passes::{ChunkError, HierarchyError, chunk, fuse_copies, hierarchy, ports, subgroups};
use outboard_plan::{
    AllgatherAlgorithm, AlltoallAlgorithm, BroadcastAlgorithm, Contract, Extents, LeaderExchange, Op, Program,
    ProgramBuilder, Rank, Span, Topology, allgather, allgatherv, alltoall, broadcast, broadcast_by_hosts, verify,
};
use proptest::prelude::*;

fn chunked(programs: &[Program], bytes: u64) -> Vec<Program> {
    let bytes = NonZeroU64::new(bytes).unwrap();
    programs.iter().map(|program| chunk(program.clone(), bytes).unwrap()).collect()
}

fn bounded(programs: &[Program], count: u32) -> Vec<Program> {
    let count = NonZeroU32::new(count).unwrap();
    programs.iter().map(|program| ports(program.clone(), count)).collect()
}

/// Each pass by itself, and one after the other.
fn all_passes(programs: &[Program], bytes: u64, count: u32) -> Vec<(&'static str, Vec<Program>)> {
    let fused: Vec<Program> = programs.iter().cloned().map(fuse_copies).collect();
    let spread = |program: &Program| subgroups(program.clone(), NonZeroU16::new(3).unwrap());
    let together = bounded(&chunked(&fused, bytes), count).iter().map(spread).collect();
    vec![
        ("chunk", chunked(programs, bytes)),
        ("ports", bounded(programs, count)),
        ("subgroups", programs.iter().map(spread).collect()),
        ("fuse_copies", fused),
        ("all", together),
    ]
}

fn prove(what: &str, programs: &[Program], bytes: u64, count: u32, contract: impl Fn(Rank) -> Contract + Copy) {
    assert_eq!(verify(programs, contract), Ok(()), "{what}");
    for (pass, changed) in all_passes(programs, bytes, count) {
        // What is the same is proven.
        if changed == programs {
            continue;
        }
        let verdict = verify(&changed, contract);
        assert_eq!(verdict, Ok(()), "{what} behind {pass} of {bytes} B, {count} at a time");
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

fn prove_allgather(ranks: u32, sizes: impl Fn(u32) -> u64, bytes: u64, count: u32) {
    let extents = Extents::uneven((0..ranks).map(sizes)).unwrap();
    let topology = Topology::of_hosts((0..ranks).map(|rank| rank % ranks.div_ceil(3))).unwrap();
    for algorithm in allgathers() {
        let program = |rank| allgatherv(algorithm, &topology, Rank(rank), &extents, false).unwrap();
        let programs: Vec<Program> = (0..ranks).map(program).collect();
        let contract = |rank| outboard_plan::allgather::contract(&extents, rank, false);
        prove(&format!("{algorithm} of {ranks}"), &programs, bytes, count, contract);
    }
}

fn prove_broadcast(ranks: u32, root: Rank, size: u64, bytes: u64, count: u32) {
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
        let contract = |rank| outboard_plan::broadcast::contract(root, rank, size);
        prove(&format!("{algorithm} of {ranks}"), &programs, bytes, count, contract);
    }
}

fn prove_alltoall(ranks: u32, size: u64, bytes: u64, count: u32) {
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
        let contract = |rank| outboard_plan::alltoall::contract(rank, &all);
        prove(&format!("{algorithm} of {ranks}"), &programs, bytes, count, contract);
    }
}

#[test]
fn every_group_up_to_64_stays_right() {
    for ranks in 1..=64 {
        // Small blocks in one chunk, joined ones in several.
        let chunk = 5 + u64::from(ranks / 3);
        prove_allgather(ranks, |rank| u64::from(rank % 4 * 3), chunk, 1 + ranks % 3);
        prove_broadcast(ranks, Rank(ranks / 3), 50, 9, 1 + ranks % 3);
        prove_alltoall(ranks, 7, 2 * chunk, 1 + ranks % 3);
    }
}

/// SP-6, SP-7: hosts of any size, contiguous and strided; every byte crosses the network once per host.
#[test]
fn hierarchies_of_every_group_up_to_64_are_right() {
    let algorithms = [
        BroadcastAlgorithm::Binomial,
        BroadcastAlgorithm::Chain { segment: 9 },
        BroadcastAlgorithm::DoubleTree { segment: 7 },
        BroadcastAlgorithm::ScatterAllgather,
    ];
    for ranks in 1..=64u32 {
        for (hosts, strided) in [(ranks.div_ceil(2), false), (ranks.div_ceil(5), true)] {
            let host = |rank: u32| if strided { rank % hosts } else { rank * hosts / ranks };
            let topology = Topology::of_hosts((0..ranks).map(host)).unwrap();
            let root = Rank(ranks / 2);
            for algorithm in algorithms {
                let program = |rank| broadcast_by_hosts(algorithm, &topology, root, Rank(rank), 40).unwrap();
                let programs: Vec<Program> = (0..ranks).map(program).collect();
                let contract = |rank| outboard_plan::broadcast::contract(root, rank, 40);
                prove(&format!("{algorithm} of {hosts} hosts, {ranks} ranks"), &programs, 11, 2, contract);
                let crossing = |program: &Program| {
                    let bytes = program.steps.iter().map(|step| match step.op {
                        Op::Send { to, span, .. } if topology.host_of(to) != topology.host_of(program.rank) => span.len,
                        _ => 0,
                    });
                    bytes.sum::<u64>()
                };
                assert_eq!(programs.iter().map(crossing).sum::<u64>(), 40 * u64::from(hosts - 1));
            }
        }
    }
}

/// A leader whose output changes on the way passes it on when it is done.
#[test]
fn unfinished_output_stays_with_the_leader() {
    let between = |rank: u32| {
        let mut builder = ProgramBuilder::new(Rank(rank), 2);
        builder.buffers(8, 8, 8);
        let received = builder.recv(Rank(1 - rank), 0, Span::scratch(0, 8), &[]);
        builder.send(Rank(1 - rank), 0, Span::input(0, 8), &[]);
        let first = builder.copy(Span::input(0, 8), Span::output(0, 8), &[]);
        builder.copy(Span::scratch(0, 8), Span::output(0, 8), &[received, first]);
        builder.build()
    };
    let topology = Topology::of_hosts([0, 0, 1]).unwrap();
    let program =
        |rank| hierarchy(&between(topology.host_of(Rank(rank))), &topology, &[Rank(0), Rank(2)], Rank(rank)).unwrap();
    let piece = |span, source| outboard_plan::Piece { span, source, from: 0 };
    let contract = |rank: Rank| Contract {
        input_bytes: if rank == Rank(1) { 0 } else { 8 },
        output_bytes: 8,
        before: if rank == Rank(1) { vec![] } else { vec![piece(Span::input(0, 8), rank)] },
        after: vec![piece(Span::output(0, 8), Rank(if rank == Rank(2) { 0 } else { 2 }))],
    };
    let programs: Vec<Program> = (0..3).map(program).collect();
    prove("the input of the other host", &programs, 3, 1, contract);
}

#[test]
fn hierarchies_that_do_not_fit_are_refused_by_name() {
    let topology = Topology::of_hosts([0, 0, 1]).unwrap();
    let between = |algorithm, host| broadcast(algorithm, 2, Rank(0), Rank(host), 8).unwrap();
    let refused =
        |between: &Program, leaders: &[Rank], rank| hierarchy(between, &topology, leaders, Rank(rank)).unwrap_err();
    let binomial = between(BroadcastAlgorithm::Binomial, 0);
    let leaders = [Rank(0), Rank(2)];
    let hosts = |leaders, rank| HierarchyError::Hosts { host: Rank(0), hosts: 2, leaders, rank: Rank(rank) };
    assert_eq!(refused(&binomial, &leaders, 2), hosts(2, 2));
    assert_eq!(refused(&binomial, &leaders[..1], 0), hosts(1, 0));
    assert_eq!(refused(&binomial, &leaders, 3), HierarchyError::Rank { rank: Rank(3), ranks: 3 });
    let stranger = HierarchyError::Leader { leader: Rank(1), host: 1 };
    assert_eq!(refused(&binomial, &[Rank(0), Rank(1)], 0), stranger);
    assert_eq!(stranger.to_string(), "rank 1 is to lead host 1, where it is not");
    let multicast = between(BroadcastAlgorithm::Multicast { subgroups: 1 }, 0);
    assert!(matches!(refused(&multicast, &leaders, 0), HierarchyError::Multicast { .. }));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]

    #[test]
    fn random_groups_stay_right(
        ranks in 1..=40u32, seed: u32, size in 0..200u64, bytes in 1..100u64, count in 1..6u32,
    ) {
        prove_allgather(ranks, |rank| size * u64::from((rank ^ seed) % 3), bytes, count);
        prove_broadcast(ranks, Rank(seed % ranks), size, bytes, count);
        prove_alltoall(ranks, size, bytes, count);
    }
}

/// GP-8: a chain of whole messages, cut in chunks, is the pipelined chain.
#[test]
fn a_chunked_chain_is_the_pipelined_chain() {
    for rank in 0..4 {
        let chain = |segment| broadcast(BroadcastAlgorithm::Chain { segment }, 4, Rank(0), Rank(rank), 1000).unwrap();
        assert_eq!(chunk(chain(1000), NonZeroU64::new(64).unwrap()).unwrap(), chain(64));
    }
}

/// Nothing is longer than asked for, and what is sent stays the same.
#[test]
fn chunks_are_no_larger_than_asked_for() {
    for algorithm in allgathers().into_iter().take(6) {
        let topology = Topology::of_hosts([0, 0, 1, 1, 2, 2]).unwrap();
        let program = allgather(algorithm, &topology, Rank(2), 100, false).unwrap();
        let bytes = |program: &Program| -> Vec<u64> {
            let sent = |op| if let Op::Send { span, .. } = op { span.len } else { 0 };
            program.steps.iter().map(|step| sent(step.op)).collect()
        };
        let cut = chunk(program.clone(), NonZeroU64::new(30).unwrap()).unwrap();
        assert!(bytes(&cut).iter().all(|bytes| *bytes <= 30));
        assert_eq!(bytes(&cut).iter().sum::<u64>(), bytes(&program).iter().sum::<u64>());
    }
}

#[test]
fn too_many_chunks_are_refused_by_name() {
    let program = allgather(AllgatherAlgorithm::Ring, &Topology::flat(2), Rank(0), 1 << 40, false).unwrap();
    let error = chunk(program, NonZeroU64::MIN).unwrap_err();
    assert!(matches!(error, ChunkError::Pieces { chunk: 1, .. }));
    assert!(error.to_string().ends_with("in chunks of 1 bytes: choose chunks of which 1048576 are enough"), "{error}");
}

/// Rank 1 reuses memory behind a signal from rank 0, which one program does not show to be safe: chunks then wait for
/// whole steps, and the plan stays right.
#[test]
fn order_that_other_ranks_make_is_kept() {
    let program = |rank: u32| {
        let other = Rank(1 - rank);
        let mut builder = ProgramBuilder::new(Rank(rank), 2);
        builder.buffers(8, 8, 8);
        if rank == 0 {
            builder.recv(other, 0, Span::output(0, 8), &[]);
            let told = builder.recv(other, 1, Span::signal(), &[]);
            builder.send(other, 2, Span::input(0, 8), &[told]);
        } else {
            let answer = builder.recv(other, 2, Span::scratch(0, 8), &[]);
            let filled = builder.copy(Span::input(0, 8), Span::scratch(0, 8), &[]);
            let sent = builder.send(other, 0, Span::scratch(0, 8), &[filled]);
            builder.send(other, 1, Span::signal(), &[sent]);
            builder.copy(Span::scratch(0, 8), Span::output(0, 8), &[answer]);
        }
        builder.build()
    };
    let piece = |span, source| outboard_plan::Piece { span, source, from: 0 };
    let contract = |rank: Rank| Contract {
        input_bytes: 8,
        output_bytes: 8,
        before: vec![piece(Span::input(0, 8), rank)],
        after: vec![piece(Span::output(0, 8), Rank(1 - rank.0))],
    };
    prove("an answer into memory that was sent", &[program(0), program(1)], 3, 2, contract);
}

/// CD-2: no more sends at a time than ports, counted along every order that the program allows.
#[test]
fn sends_follow_the_one_that_frees_their_port() {
    let program = broadcast(BroadcastAlgorithm::KNomial { radix: 8 }, 8, Rank(0), Rank(0), 8).unwrap();
    let bounded = ports(program, NonZeroU32::new(2).unwrap());
    let after: Vec<Vec<u32>> = bounded.steps.iter().map(|step| step.after.iter().map(|id| id.0).collect()).collect();
    assert_eq!(after, [vec![], vec![], vec![0], vec![1], vec![2], vec![3], vec![4]]);
}
