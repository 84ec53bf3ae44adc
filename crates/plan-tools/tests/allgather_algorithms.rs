//! The allgather algorithms beyond ring and multicast, proven for every small group, topology and pattern of empty
//! blocks (CD-2, SP-6).

mod support;

use outboard_plan::{AllgatherAlgorithm, Extents, LeaderExchange, Op, Program, Rank, Topology, allgather, allgatherv};
use outboard_plan_tools::contract::allgather as contract;
use outboard_plan_tools::verify;
use proptest::prelude::*;

const EXCHANGES: [LeaderExchange; 7] = [
    LeaderExchange::Ring,
    LeaderExchange::NeighbourExchange,
    LeaderExchange::StandardExchange { ports: 1 },
    LeaderExchange::StandardExchange { ports: 2 },
    LeaderExchange::Bruck { ports: 1 },
    LeaderExchange::Bruck { ports: 3 },
    LeaderExchange::Bruck { ports: u32::MAX },
];

fn group(algorithm: AllgatherAlgorithm, topology: &Topology, extents: &Extents, in_place: bool) -> Vec<Program> {
    let program = |rank| allgatherv(algorithm, topology, Rank(rank), extents, in_place).unwrap();
    (0..topology.ranks()).map(program).collect()
}

fn prove(algorithm: AllgatherAlgorithm, topology: &Topology, extents: &Extents, in_place: bool) {
    let verdict = verify(&group(algorithm, topology, extents, in_place), |rank| contract(extents, rank, in_place));
    assert_eq!(verdict, Ok(()), "{algorithm} on {topology:?} of {extents:?}, in place: {in_place}");
}

/// `per_host` ranks on each host, one host after the other, or ranks dealt out to hosts in turn.
fn hosts(ranks: u32, per_host: u32, strided: bool) -> Topology {
    let hosts = ranks.div_ceil(per_host);
    Topology::of_hosts((0..ranks).map(|rank| if strided { rank % hosts } else { rank / per_host })).unwrap()
}

/// CD-2: every group, also those that the algorithm does not fit.
#[test]
fn flat_algorithms_are_right_for_every_group_up_to_64() {
    for ranks in 1..=64 {
        let topology = Topology::flat(ranks);
        let even = Extents::even(ranks, 3).unwrap();
        // Every third block empty.
        let uneven = Extents::uneven((0..ranks).map(|rank| u64::from(rank % 3 * (rank + 1)))).unwrap();
        for exchange in EXCHANGES {
            prove(exchange.into(), &topology, &even, ranks % 2 == 0);
            prove(exchange.into(), &topology, &uneven, ranks % 2 == 1);
        }
    }
}

/// Every pattern of empty blocks among up to eight ranks.
#[test]
fn empty_blocks_anywhere_are_right() {
    for ranks in 1..=8u32 {
        let pairs = hosts(ranks, 2, false);
        for full in 0u32..1 << ranks {
            let sizes = (0..ranks).map(|rank| u64::from(full >> rank & 1) * u64::from(rank + 1));
            let extents = Extents::uneven(sizes).unwrap();
            for exchange in EXCHANGES {
                prove(exchange.into(), &Topology::flat(ranks), &extents, full % 2 == 0);
            }
            let between = LeaderExchange::Bruck { ports: 1 };
            prove(AllgatherAlgorithm::Hierarchical { leaders: 2, between }, &pairs, &extents, full % 2 == 0);
        }
    }
}

/// SP-6, SP-7, CD-2: hosts of any size, contiguous and strided, one and several leaders.
#[test]
fn hierarchies_are_right_for_every_group_up_to_64() {
    for ranks in 1..=64 {
        let extents = Extents::uneven((0..ranks).map(|rank| u64::from(rank % 4))).unwrap();
        for (per_host, strided) in [(1, false), (2, true), (3, false), (3, true), (8, false), (8, true), (64, false)] {
            let topology = hosts(ranks, per_host, strided);
            let leaders = 1 + ranks % 3;
            let between = EXCHANGES[(ranks + per_host) as usize % EXCHANGES.len()];
            let algorithm = AllgatherAlgorithm::Hierarchical { leaders, between };
            prove(algorithm, &topology, &extents, strided);
        }
    }
}

#[test]
fn every_hierarchy_of_twelve_ranks_is_right() {
    let extents = Extents::even(12, 5).unwrap();
    let irregular = Topology::of_hosts([4, 4, 9, 4, 1, 9, 9, 9, 1, 4, 4, 9]).unwrap();
    let topologies = [hosts(12, 3, false), hosts(12, 4, true), hosts(12, 5, false), irregular];
    for topology in &topologies {
        for (leaders, between) in (1..=5).flat_map(|leaders| EXCHANGES.map(|between| (leaders, between))) {
            prove(AllgatherAlgorithm::Hierarchical { leaders, between }, topology, &extents, false);
        }
    }
}

/// SP-6, SP-7: every block crosses the network once per host, contiguous or strided, however many leaders.
#[test]
fn blocks_cross_the_network_once_per_host() {
    for (topology, leaders) in [(hosts(24, 6, false), 1), (hosts(24, 6, true), 1), (hosts(24, 6, true), 4)] {
        let algorithm = AllgatherAlgorithm::Hierarchical { leaders, between: LeaderExchange::Ring };
        let mut received = vec![0; topology.hosts() as usize];
        for program in group(algorithm, &topology, &Extents::even(24, 10).unwrap(), false) {
            let host = topology.host_of(program.rank);
            for step in &program.steps {
                if let Op::Recv { from, span, .. } = step.op {
                    received[host as usize] += u64::from(topology.host_of(from) != host) * span.len;
                }
            }
        }
        assert_eq!(received, [180; 4], "18 blocks of 10 bytes come to each host");
    }
}

/// CD-2: rounds as documented; a round is a send that follows what came in an earlier one.
#[test]
fn rounds_are_as_documented() {
    let rounds = |algorithm, ranks| {
        let extents = Extents::even(ranks, 8).unwrap();
        let programs = group(algorithm, &Topology::flat(ranks), &extents, true);
        // A receive lies in the round of its send; a send one round behind the receives that it follows.
        let mut round: Vec<Vec<u32>> = programs.iter().map(|program| vec![0; program.steps.len()]).collect();
        loop {
            let before = round.clone();
            for (me, program) in programs.iter().enumerate() {
                for (id, step) in program.steps.iter().enumerate() {
                    match step.op {
                        Op::Send { to, index, .. } => {
                            let after = step.after.iter().map(|id| before[me][id.0 as usize]).max();
                            round[me][id] = after.map_or(1, |round| round + 1);
                            let there = programs[to.0 as usize].steps.iter().position(|step| {
                                let name = (me, index);
                                matches!(step.op, Op::Recv { from, index, .. } if (from.0 as usize, index) == name)
                            });
                            round[to.0 as usize][there.unwrap()] = round[me][id];
                        }
                        _ => continue,
                    }
                }
            }
            if round == before {
                return round.into_iter().flatten().max().unwrap();
            }
        }
    };
    assert_eq!(rounds(AllgatherAlgorithm::Ring, 8), 7);
    assert_eq!(rounds(AllgatherAlgorithm::NeighbourExchange, 10), 5);
    assert_eq!(rounds(AllgatherAlgorithm::StandardExchange { ports: 1 }, 16), 4);
    assert_eq!(rounds(AllgatherAlgorithm::StandardExchange { ports: 3 }, 16), 2);
    assert_eq!(rounds(AllgatherAlgorithm::StandardExchange { ports: 2 }, 27), 3);
    assert_eq!(rounds(AllgatherAlgorithm::Bruck { ports: 1 }, 15), 4);
    assert_eq!(rounds(AllgatherAlgorithm::Bruck { ports: 2 }, 26), 3);
    assert_eq!(rounds(AllgatherAlgorithm::Bruck { ports: 27 }, 28), 1);
}

/// CD-6: the partners of a rank, from which queue pairs follow.
#[test]
fn partners_are_as_in_the_paper() {
    let partners = |algorithm| {
        let program = allgather(algorithm, &Topology::flat(128), Rank(5), 8, false).unwrap();
        let mut partners: Vec<Rank> = program
            .steps
            .iter()
            .filter_map(|step| match step.op {
                Op::Send { to, .. } => Some(to),
                Op::Recv { from, .. } => Some(from),
                _ => None,
            })
            .collect();
        partners.sort();
        partners.dedup();
        partners.len()
    };
    assert_eq!(partners(AllgatherAlgorithm::StandardExchange { ports: 1 }), 7);
    assert_eq!(partners(AllgatherAlgorithm::Ring), 2);
    // Seven to each side, of which the one half way round is the same.
    assert_eq!(partners(AllgatherAlgorithm::Bruck { ports: 1 }), 13);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_groups_are_right(
        sizes in prop::collection::vec(prop_oneof![Just(0u64), 0..1u64 << 40], 1..200),
        seed: u64, leaders in 1..6u32, ports in 1..6u32, pick in 0..EXCHANGES.len(), in_place: bool,
    ) {
        let ranks = sizes.len() as u64;
        let extents = Extents::uneven(sizes).unwrap();
        // Any rank on any host.
        let host = |rank: u64| (rank + seed % 7).wrapping_mul(seed | 1) % (1 + seed % ranks) % 19;
        let topology = Topology::of_hosts((0..ranks).map(|rank| host(rank) as u32)).unwrap();
        prove(AllgatherAlgorithm::Bruck { ports }, &topology, &extents, in_place);
        prove(EXCHANGES[pick].into(), &topology, &extents, in_place);
        prove(AllgatherAlgorithm::Hierarchical { leaders, between: EXCHANGES[pick] }, &topology, &extents, in_place);
    }

    /// Programs of single ranks of large groups fit those of their peers.
    #[test]
    fn random_ranks_of_large_groups_fit_their_peers(ranks in 1..=4096u32, rank: u32, per_host in 1..40u32,
        // Not the last, which has every rank as a partner.
        pick in 0..EXCHANGES.len() - 1) {
        let topology = hosts(ranks, per_host, rank % 2 == 0);
        let exchange = EXCHANGES[pick];
        let algorithms = [
            exchange.into(),
            AllgatherAlgorithm::Bruck { ports: per_host },
            AllgatherAlgorithm::Hierarchical { leaders: 1 + rank % 3, between: exchange },
        ];
        for algorithm in algorithms {
            let program = |rank| allgather(algorithm, &topology, rank, 64, false).unwrap();
            support::sampled(program, &[Rank(rank % ranks)], |_| 64 * u64::from(ranks));
        }
    }
}
