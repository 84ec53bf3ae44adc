//! Plans take the rounds and send the bytes that their algorithms promise, and reject calls that they cannot carry out.

use std::collections::BTreeSet;

use outboard_plan::combine::MAX_SEGMENTS;
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Algorithm, Arguments, Extents, MAX_RANKS, Op, PlanError, Program, Rank, Topology, program};
use outboard_plan_tools::Rounds;

use crate::support::{choice, group, sent};

/// Bytes of the vector: a multiple of every number of ranks here, so that all blocks are equal.
const BYTES: u64 = 720_720;

fn groups() -> impl Iterator<Item = u32> {
    1..=16
}

fn programs(collective: Collective, algorithm: &str, topology: &Topology) -> Vec<Program> {
    let root = Rank(if topology.hosts() < topology.ranks() { topology.hosts() + 1 } else { topology.ranks() / 3 });
    group(choice(collective, algorithm), &Arguments { root, ..Arguments::of(topology, BYTES) })
}

/// Length of the longest chain of messages that each leave after the previous one has arrived.
fn rounds(programs: &[Program]) -> u32 {
    Rounds::of(programs).unwrap().count() as u32
}

/// The group takes at most `most` rounds, and exactly `most` if the number of ranks is a power of two.
fn takes(programs: &[Program], most: u32) {
    let (ranks, rounds) = (programs.len(), rounds(programs));
    assert!(rounds <= most, "{rounds} rounds of {ranks} ranks in place of {most}");
    assert!(rounds == most || !ranks.is_power_of_two(), "{rounds} rounds of {ranks} ranks in place of {most}");
}

fn most_sent(programs: &[Program]) -> u64 {
    programs.iter().map(|program| sent(program, |_| true)).max().expect("a group has a rank")
}

/// Rounds of the largest power of two of ranks, and additional rounds if there are more ranks.
fn doublings(ranks: u32) -> (u32, u32) {
    (ranks.ilog2(), u32::from(!ranks.is_power_of_two()))
}

fn ceil_log2(ranks: u32) -> u32 {
    ranks.next_power_of_two().ilog2()
}

/// Bytes of all blocks except one.
fn all_but_one(ranks: u32) -> u64 {
    BYTES - BYTES / u64::from(ranks)
}

/// Whether every message is at most one segment long.
fn are_cut(programs: &[Program], segment: u64) -> bool {
    let longest = |op: Op| if let Op::Send { span, .. } = op { span.len } else { 0 };
    programs.iter().flat_map(|program| &program.steps).all(|step| longest(step.op) <= segment)
}

/// Bytes that a rank sends to ranks of other hosts, with three ranks on each host.
fn away(program: &Program) -> u64 {
    sent(program, |to| to.is_none_or(|to| to.0 / 3 != program.rank.0 / 3))
}

/// `hosts` hosts of three ranks each.
fn threes(hosts: u32) -> Topology {
    Topology::of_hosts((0..3 * hosts).map(|rank| rank / 3)).unwrap()
}

#[test]
fn reduce_costs_what_it_says() {
    for ranks in groups() {
        let flat = Topology::flat(ranks);
        let programs = |algorithm: &str| programs(Collective::Reduce, algorithm, &flat);
        let (doublings, more) = doublings(ranks);
        let tree = programs("binomial");
        takes(&tree, ceil_log2(ranks));
        assert!(most_sent(&tree) <= BYTES);
        let halving = programs("halving");
        takes(&halving, 2 * doublings + more);
        assert!(most_sent(&halving) <= BYTES * 3 / 2);
        // A tenth of the vector is one segment; segments follow each other.
        let chain = programs(&format!("chain:segment={}", BYTES / 10));
        assert_eq!(rounds(&chain), ranks - 1);
        let own = |program: &Program| if ranks > 1 && program.rank != Rank(ranks / 3) { BYTES } else { 0 };
        assert!(chain.iter().all(|program| sent(program, |_| true) == own(program)));
        let sends = |program: &Program| program.steps.iter().filter(|step| matches!(step.op, Op::Send { .. })).count();
        assert_eq!(chain.iter().map(sends).max(), Some(if ranks > 1 { 10 } else { 0 }));
    }
}

/// With three ranks per host, only leaders send over the network, and only once.
#[test]
fn reduce_by_hosts_costs_what_it_says() {
    for hosts in groups() {
        let chain = format!("hierarchical:between=chain,segment={}", BYTES / 5);
        for (algorithm, most) in [("hierarchical:between=binomial", ceil_log2(hosts)), (&chain, hosts - 1)] {
            let programs = programs(Collective::Reduce, algorithm, &threes(hosts));
            takes(&programs, most + 1);
            let crossing: Vec<u64> = programs.iter().map(away).filter(|bytes| *bytes > 0).collect();
            assert_eq!(crossing, vec![BYTES; hosts as usize - 1], "{algorithm}");
        }
    }
}

#[test]
fn allreduce_costs_what_it_says() {
    for ranks in groups() {
        let flat = Topology::flat(ranks);
        let programs = |algorithm: &str| programs(Collective::Allreduce, algorithm, &flat);
        let (doublings, more) = doublings(ranks);
        let doubling = programs("recursive-doubling");
        takes(&doubling, doublings + 2 * more);
        assert_eq!(most_sent(&doubling), u64::from(doublings + more) * BYTES);
        for segment in [BYTES, 16 << 10] {
            let ring = programs(&format!("ring:segment={segment}"));
            takes(&ring, 2 * (ranks - 1));
            assert_eq!(most_sent(&ring), 2 * all_but_one(ranks));
            let scatter = programs(&format!("reduce-scatter-multicast:segment={segment}"));
            takes(&scatter, if ranks > 1 { ranks } else { 0 });
            assert_eq!(most_sent(&scatter), if ranks > 1 { BYTES } else { 0 });
            assert!(are_cut(&ring, segment) && are_cut(&scatter, segment));
        }
        let halving = programs("rabenseifner");
        takes(&halving, 2 * doublings + 2 * more);
        assert!(most_sent(&halving).abs_diff(2 * all_but_one(1 << doublings) + u64::from(more) * BYTES) < 2 * 16);
        // With three ranks per host, only leaders send over the network, and `ranks` counts the hosts.
        let by_host = self::programs(Collective::Allreduce, "hierarchical", &threes(ranks));
        takes(&by_host, doublings + 2 * more + 2);
        assert_eq!(by_host.iter().map(away).max(), Some(u64::from(doublings + more) * BYTES));
        assert!(by_host.iter().all(|program| program.rank.0 % 3 == 0 || away(program) == 0));
        let tree = programs("reduce-multicast");
        takes(&tree, ceil_log2(ranks) + u32::from(ranks > 1));
        assert_eq!(most_sent(&tree), if ranks > 1 { BYTES } else { 0 });
    }
}

#[test]
fn reduce_scatter_costs_what_it_says() {
    for ranks in groups() {
        let flat = Topology::flat(ranks);
        let programs = |algorithm: &str| programs(Collective::ReduceScatter, algorithm, &flat);
        let (doublings, more) = doublings(ranks);
        for segment in [BYTES, 16 << 10] {
            let ring = programs(&format!("ring:segment={segment}"));
            takes(&ring, ranks - 1);
            assert_eq!(most_sent(&ring), all_but_one(ranks));
            let pairwise = programs(&format!("pairwise:segment={segment}"));
            takes(&pairwise, u32::from(ranks > 1));
            assert_eq!(most_sent(&pairwise), all_but_one(ranks));
            assert!(are_cut(&ring, segment) && are_cut(&pairwise, segment));
        }
        let halving = programs("recursive-halving");
        takes(&halving, doublings + 2 * more);
        assert!(most_sent(&halving) <= BYTES);
        // With three ranks per host, only leaders send over the network, and `ranks` counts the hosts.
        let (hosts, ring) = (threes(ranks), format!("hierarchical:between=ring,segment={BYTES}"));
        let arguments = Arguments::of(&hosts, 3 * BYTES);
        let by_host = group(choice(Collective::ReduceScatter, &ring), &arguments);
        takes(&by_host, ranks + 1);
        assert_eq!(by_host.iter().map(away).max(), Some(3 * all_but_one(ranks)));
        assert!(by_host.iter().all(|program| program.rank.0 % 3 == 0 || away(program) == 0));
    }
}

#[test]
fn scans_cost_what_they_say() {
    for (ranks, exclusive) in groups().flat_map(|ranks| [(ranks, false), (ranks, true)]) {
        let flat = Topology::flat(ranks);
        let arguments = Arguments { exclusive, ..Arguments::of(&flat, BYTES) };
        let programs = group(choice(Collective::Scan, "recursive-doubling"), &arguments);
        takes(&programs, ceil_log2(ranks));
        assert!(most_sent(&programs) <= u64::from(ceil_log2(ranks)) * BYTES);
        for chain in ["chain", "chain:pieces=5"] {
            let programs = group(choice(Collective::Scan, chain), &arguments);
            takes(&programs, ranks - 1);
            assert_eq!(most_sent(&programs), if ranks > 1 { BYTES } else { 0 });
        }
    }
}

/// CD-2: rounds as documented, and the number of partners of a rank, which determines its queue pairs (CD-6).
#[test]
fn allgathers_cost_what_they_say() {
    for (algorithm, ranks, most) in [
        ("ring", 8, 7),
        ("neighbour-exchange", 10, 5),
        ("standard-exchange", 16, 4),
        ("standard-exchange:ports=3", 16, 2),
        ("standard-exchange:ports=2", 27, 3),
        ("bruck", 15, 4),
        ("bruck:ports=2", 26, 3),
        ("bruck:ports=27", 28, 1),
    ] {
        assert_eq!(rounds(&programs(Collective::Allgather, algorithm, &Topology::flat(ranks))), most, "{algorithm}");
    }
    // Bruck has seven partners to send to and seven to receive from; the partner half way round is both.
    for (algorithm, most) in [("standard-exchange", 7), ("ring", 2), ("bruck", 13)] {
        let flat = Topology::flat(128);
        let one = program(choice(Collective::Allgather, algorithm), &Arguments::of(&flat, 8), Rank(5)).unwrap();
        let partner = |op| match op {
            Op::Send { to, .. } => Some(to),
            Op::Recv { from, .. } => Some(from),
            _ => None,
        };
        let partners: BTreeSet<Rank> = one.steps.iter().filter_map(|step| partner(step.op)).collect();
        assert_eq!(partners.len(), most, "{algorithm}");
    }
}

/// Bytes that each rank sends in a broadcast: at most a multiple of the broadcast's bytes.
#[test]
fn broadcasts_cost_what_they_say() {
    let flat = Topology::flat(16);
    let most = |algorithm| most_sent(&programs(Collective::Broadcast, algorithm, &flat));
    for (algorithm, times) in [
        ("binomial", 4),
        ("k-nomial", 2 * 3),
        ("chain:segment=10000", 1),
        ("double-tree:segment=10000", 1),
        ("multicast", 1),
    ] {
        assert_eq!(most(algorithm), times * BYTES, "{algorithm}");
    }
    assert!(most("scatter-allgather") < 2 * BYTES);
}

/// Programs of the largest group: steps grow with the number of ranks, or with its logarithm, for any count.
#[test]
fn programs_stay_small() {
    let flat = Topology::flat(MAX_RANKS);
    let (linear, logarithmic) = (5 * MAX_RANKS as usize, 6 * 16);
    let reductions = [Collective::Reduce, Collective::Allreduce, Collective::ReduceScatter, Collective::Scan];
    let many = choice(Collective::Scan, "chain:pieces=1000");
    for choice in reductions.into_iter().flat_map(Collective::algorithms).chain([many]) {
        let most = match choice.algorithm() {
            Algorithm::Chain { .. } => 3 * MAX_SEGMENTS as usize,
            Algorithm::Pieces { pieces } => 5 * pieces as usize,
            Algorithm::Ring { .. } | Algorithm::ReduceScatterMulticast { .. } => linear,
            _ if choice.collective() == Collective::ReduceScatter => linear,
            _ => logarithmic,
        };
        for (rank, exclusive) in [0, 1, MAX_RANKS / 2, MAX_RANKS - 1].into_iter().zip([false, true, false, true]) {
            let bytes =
                if choice.collective() == Collective::ReduceScatter { 8 * u64::from(MAX_RANKS) } else { 8 << 40 };
            let arguments = Arguments { root: Rank(7), element_bytes: 8, exclusive, ..Arguments::of(&flat, bytes) };
            let program = program(choice, &arguments, Rank(rank)).unwrap();
            assert!(program.steps.iter().all(|step| step.after.len() <= 20), "{choice}: {rank}");
            assert!(program.steps.len() <= most, "{choice}: {} steps", program.steps.len());
        }
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let three = Topology::flat(3);
    let of = Arguments::of(&three, 24);
    let refused = |choice: Choice, arguments: &Arguments<'_>, rank| program(choice, arguments, Rank(rank)).unwrap_err();
    let set = |collective, algorithm| Choice::among_all(collective, algorithm).unwrap();
    for (collective, algorithm, said) in [
        (Collective::Reduce, Algorithm::Chain { segment: 0 }, "segment=0 of chain: choose at least 1"),
        (Collective::ReduceScatter, Algorithm::Ring { segment: 0 }, "segment=0 of ring: choose at least 1"),
        (Collective::Allreduce, Algorithm::ReduceMulticast { subgroups: 0 }, "subgroups=0 of reduce-multicast"),
        (Collective::Scan, Algorithm::Pieces { pieces: 0 }, "pieces=0 of chain: choose at least 1"),
        (Collective::Allgather, Algorithm::Bruck { ports: 0 }, "ports=0 of bruck: choose at least 1"),
        (
            Collective::Allgather,
            Algorithm::Multicast { chains: 4, subgroups: 1 },
            "4 chains for 3 ranks: choose up to 3",
        ),
        (Collective::Broadcast, Algorithm::KNomial { radix: 1 }, "radix=1 of k-nomial: choose at least 2"),
        (Collective::Broadcast, Algorithm::DoubleTree { segment: 0 }, "segment=0 of double-tree: choose at least 1"),
        (Collective::Alltoall, Algorithm::ScatterDestination { batch: 0 }, "batch=0 of scatter-destination"),
        (Collective::Barrier, Algorithm::Dissemination { ports: 0 }, "ports=0 of dissemination: choose at least 1"),
    ] {
        let error = refused(set(collective, algorithm), &of, 0).to_string();
        assert!(error.starts_with(said), "{error}");
    }
    let leaders = Choice::among_leaders(Collective::Allgather, 0, Algorithm::Bruck { ports: 1 }).unwrap();
    assert_eq!(refused(leaders, &of, 0).to_string(), "leaders=0 of hierarchical: choose at least 1");
    for choice in Collective::ALL.map(|collective| collective.algorithms()[0]) {
        let to = |root| Arguments { root: Rank(root), ..of };
        assert_eq!(refused(choice, &to(3), 0), PlanError::Rank { rank: Rank(3), ranks: 3 });
        assert_eq!(refused(choice, &of, 4).to_string(), "rank 4 in a plan among 3 ranks: ranks count from 0");
        for ranks in [0, MAX_RANKS + 1] {
            let topology = Topology::flat(ranks);
            assert_eq!(refused(choice, &Arguments::of(&topology, 24), 0), PlanError::Ranks { ranks });
        }
    }
    let first = |collective: Collective| collective.algorithms()[0];
    let many = Arguments::of(&three, u64::MAX / 3 + 1);
    for collective in [Collective::Allgather, Collective::Alltoall, Collective::Gather, Collective::Scatter] {
        assert_eq!(refused(first(collective), &many, 0), PlanError::Bytes { ranks: 3 });
    }
    let (four, sixteen) = (Extents::even(4, 8).unwrap(), Topology::flat(16));
    for collective in [Collective::Allgather, Collective::ReduceScatter] {
        let arguments = Arguments { extents: Some(&four), ..of };
        assert_eq!(refused(first(collective), &arguments, 0), PlanError::Blocks { blocks: 4, ranks: 3 });
    }
    let half = Arguments::of(&sixteen, u64::MAX / 2);
    assert_eq!(refused(first(Collective::Allreduce), &half, 0), PlanError::Scratch);
    let cut = Arguments { element_bytes: 16, ..of };
    assert_eq!(refused(first(Collective::Scan), &cut, 0), PlanError::Elements { bytes: 24, element_bytes: 16 });
    let large = set(Collective::Broadcast, Algorithm::Chain { segment: 1 });
    let segments = PlanError::Segments { bytes: u64::MAX, segment: 1 };
    assert_eq!(refused(large, &Arguments::of(&three, u64::MAX), 1), segments);
}

#[test]
fn nothing_to_move_is_an_empty_program() {
    let five = Topology::flat(5);
    for choice in Collective::ALL.into_iter().flat_map(Collective::algorithms) {
        for exclusive in [false, true] {
            let programs = group(choice, &Arguments { root: Rank(1), exclusive, ..Arguments::of(&five, 0) });
            let moves = choice.collective() == Collective::Barrier;
            assert!(programs.iter().all(|program| program.steps.is_empty() != moves), "{choice}");
        }
    }
}
