//! Plans of all collectives are proven for every small group, root and layout, and for random larger ones. Damaged
//! plans are rejected (CD-2, MC-1, MC-8, GP-8, SP-6, SP-7, TH-2, TH-6).

use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Algorithm, Arguments, Extents, Op, Program, Rank, Span, Step, Topology, program};
use outboard_plan_tools::{VerifyError, contract, verify};
use proptest::prelude::*;
use proptest::sample::select;

use crate::damage;
use crate::support::{choice, group, prove, sampled, sent, verdict};

/// Algorithms among all ranks: whole messages and several segments, one port and several.
fn flat(collective: Collective) -> Vec<Choice> {
    let texts: &[&str] = match collective {
        Collective::Allgather => &[
            "ring",
            "neighbour-exchange",
            "standard-exchange",
            "standard-exchange:ports=2",
            "bruck",
            "bruck:ports=3",
            "bruck:ports=4294967295",
            "rotated-bruck",
            "rotated-bruck:ports=3",
            "linear",
            "multicast",
            "multicast:chains=1,subgroups=3",
        ],
        Collective::Broadcast => &[
            "binomial",
            "k-nomial:radix=3",
            "k-nomial:radix=4",
            "chain:segment=60",
            "double-tree:segment=60",
            "scatter-allgather",
            "multicast:subgroups=3",
        ],
        Collective::Alltoall => {
            &["pull", "pairwise", "scatter-destination:batch=1", "scatter-destination:batch=4", "bruck"]
        }
        Collective::Gather | Collective::Scatter => &["linear", "binomial"],
        Collective::Barrier => {
            &["dissemination", "dissemination:ports=2", "dissemination:ports=3", "dissemination:ports=4294967295"]
        }
        Collective::Reduce => &["binomial", "halving", "chain:segment=44", "chain:segment=1099511627776"],
        Collective::Allreduce => &[
            "recursive-doubling",
            "ring:segment=16",
            "ring:segment=1099511627776",
            "rabenseifner",
            "reduce-multicast:subgroups=2",
            "reduce-scatter-multicast:subgroups=3,segment=16",
            "reduce-scatter-multicast:subgroups=3,segment=1099511627776",
        ],
        Collective::ReduceScatter => &[
            "ring:segment=16",
            "ring:segment=1099511627776",
            "recursive-halving",
            "pairwise:segment=16",
            "pairwise:segment=1099511627776",
        ],
        Collective::Scan => &["recursive-doubling", "chain", "chain:pieces=4"],
    };
    texts.iter().map(|text| choice(collective, text)).collect()
}

/// Algorithms that depend on which ranks share a host.
fn by_hosts(collective: Collective) -> Vec<Choice> {
    let chain = choice(Collective::Reduce, "chain:segment=100");
    let among = flat(collective).into_iter().filter(|flat| !flat.multicasts());
    let led = among.flat_map(|flat| {
        (1..=3).filter_map(move |leaders| Choice::among_leaders(collective, leaders, flat.algorithm()))
    });
    let met = ["multi-leader", "multi-leader:leaders=3,between=bruck", "multi-leader:leaders=2,between=linear"];
    let met = met.into_iter().filter(|_| collective == Collective::Allgather).map(|text| choice(collective, text));
    led.chain((collective == Collective::Reduce).then_some(chain)).chain(met).collect()
}

/// Contiguous and strided ranks; hosts of one rank, of several ranks and of different numbers of ranks.
fn layouts(ranks: u32) -> [Topology; 5] {
    let laid_out: [&dyn Fn(u32) -> u32; 5] =
        [&|_| 0, &|rank| rank / 4, &|rank| rank % 3, &|rank| rank.ilog2(), &|rank| (rank * 7 + 1) % 11];
    laid_out.map(|host_of| Topology::of_hosts((1..=ranks).map(host_of)).unwrap())
}

/// Byte counts of zero, below and above one element per rank, in whole elements.
fn sizes(ranks: u32) -> [u64; 4] {
    let ranks = u64::from(ranks);
    [0, 1, ranks - 1, 3 * ranks + 1].map(|count| 4 * count)
}

/// Blocks of all ranks, including empty ones, in whole elements.
fn uneven(ranks: u32) -> Extents {
    Extents::uneven((0..u64::from(ranks)).map(|rank| rank * 5 % 7 * 4)).unwrap()
}

/// A call among the ranks of `topology`, with its variable arguments derived from `seed`.
fn call(topology: &Topology, bytes: u64, seed: u32) -> Arguments<'_> {
    let root = Rank(seed % topology.ranks());
    let (exclusive, in_place) = (seed % 2 == 1, seed % 2 == 1);
    Arguments { root, element_bytes: 4, exclusive, in_place, ..Arguments::of(topology, bytes) }
}

#[test]
fn every_group_up_to_64_is_right() {
    for (collective, ranks) in Collective::ALL.into_iter().flat_map(|one| (1..=64).map(move |ranks| (one, ranks))) {
        let (topology, extents) = (Topology::flat(ranks), uneven(ranks));
        for choice in flat(collective) {
            for (bytes, seed) in sizes(ranks).into_iter().zip([ranks, ranks + 1, ranks / 2, ranks / 2 + 1]) {
                prove(choice, &call(&topology, bytes, seed));
            }
            let has_blocks = matches!(collective, Collective::Allgather | Collective::ReduceScatter);
            for seed in (0..2).filter(|_| has_blocks) {
                prove(choice, &Arguments { extents: Some(&extents), ..call(&topology, 0, seed) });
            }
        }
    }
}

#[test]
fn every_root_of_every_group_up_to_64_is_right() {
    for collective in [Collective::Broadcast, Collective::Gather, Collective::Scatter, Collective::Reduce] {
        for ranks in 1..=64 {
            let topology = Topology::flat(ranks);
            for (choice, root) in flat(collective).into_iter().flat_map(|one| (0..ranks).map(move |root| (one, root))) {
                // Some calls have fewer bytes than ranks.
                prove(choice, &call(&topology, if root % 2 == 0 { 152 } else { 4 * u64::from(ranks / 8) }, root));
            }
        }
    }
}

/// SP-6, SP-7: for every layout and any position of the root on its host, with even and uneven blocks.
#[test]
fn every_layout_of_every_group_up_to_64_is_right() {
    for (collective, ranks) in Collective::ALL.into_iter().flat_map(|one| (1..=64).map(move |ranks| (one, ranks))) {
        let extents = uneven(ranks);
        for (topology, choice) in
            layouts(ranks).iter().flat_map(|t| by_hosts(collective).into_iter().map(move |c| (t, c)))
        {
            // Allgather has many algorithms for hosts with several ranks, so most are tested with one number of
            // leaders.
            let few = choice.all_leaders_meet() || collective != Collective::Allgather;
            if choice.leaders().is_some_and(|leaders| !few && leaders != 1 + ranks % 3) {
                continue;
            }
            let skipped = if collective == Collective::Allgather { 3 } else { 0 };
            for (bytes, root) in sizes(ranks).into_iter().zip([0, ranks / 3, ranks / 2, ranks - 1]).skip(skipped) {
                prove(choice, &call(topology, bytes, root));
            }
            if matches!(collective, Collective::Allgather | Collective::ReduceScatter) {
                prove(choice, &Arguments { extents: Some(&extents), ..call(topology, 0, ranks) });
            }
        }
    }
}

/// Every pattern of empty blocks among up to eight ranks, alone and in pairs on hosts.
#[test]
fn empty_blocks_anywhere_are_right() {
    for (ranks, full) in (1..=8u32).flat_map(|ranks| (0u32..1 << ranks).map(move |full| (ranks, full))) {
        let sizes = (0..ranks).map(|rank| u64::from(full >> rank & 1) * u64::from(rank + 1));
        let extents = Extents::uneven(sizes).unwrap();
        let (alone, pairs) = (Topology::flat(ranks), Topology::of_hosts((0..ranks).map(|rank| rank / 2)).unwrap());
        let arguments = |topology| Arguments { extents: Some(&extents), ..call(topology, 0, full) };
        let chains = (1..=ranks).map(|chains| choice(Collective::Allgather, &format!("multicast:chains={chains}")));
        for choice in flat(Collective::Allgather).into_iter().chain(chains) {
            prove(choice, &arguments(&alone));
        }
        prove(choice(Collective::Allgather, "hierarchical:leaders=2,between=bruck"), &arguments(&pairs));
    }
}

/// MC-8, with and without the paper's condition that the chains divide the ranks; in place on some ranks only.
#[test]
fn every_number_of_chains_is_right() {
    for (ranks, chains) in (1..=64u32).flat_map(|ranks| (1..=ranks).map(move |chains| (ranks, chains))) {
        if ranks > 20 && ![1, 2, 3, 5, ranks.div_ceil(2), ranks - 1, ranks].contains(&chains) {
            continue;
        }
        let (topology, choice) =
            (Topology::flat(ranks), choice(Collective::Allgather, &format!("multicast:chains={chains}")));
        let arguments = |rank: Rank| call(&topology, 1500, (rank.0 ^ chains) % 3);
        let programs: Vec<Program> =
            (0..ranks).map(Rank).map(|rank| program(choice, &arguments(rank), rank).unwrap()).collect();
        assert_eq!(verify(&programs, |rank| contract(choice, &arguments(rank), rank).unwrap()), Ok(()), "{choice}");
    }
}

#[test]
fn extreme_byte_counts_are_right() {
    for ranks in [1, 2, 3, 10] {
        let topology = Topology::flat(ranks);
        for choice in flat(Collective::Allreduce) {
            prove(choice, &Arguments { element_bytes: 12, ..Arguments::of(&topology, 12 << 40) });
        }
        for choice in flat(Collective::Allgather) {
            prove(choice, &Arguments::of(&topology, u64::MAX / u64::from(ranks)));
        }
        for text in ["binomial", "k-nomial", "scatter-allgather", "multicast", "chain:segment=9000000000000000000"] {
            let root = Rank(ranks - 1);
            prove(choice(Collective::Broadcast, text), &Arguments { root, ..Arguments::of(&topology, u64::MAX) });
        }
    }
}

fn any_of(of: fn(Collective) -> Vec<Choice>) -> impl Strategy<Value = Choice> {
    select(Collective::ALL.into_iter().flat_map(of).collect::<Vec<_>>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// Any bytes and elements, any rank on any host.
    #[test]
    fn random_calls_are_right(
        choice in prop_oneof![any_of(flat), any_of(by_hosts)],
        ranks in 1..=64u32, seed: u32, count in prop_oneof![0..300u64, Just(1 << 40)],
        element_bytes in select(vec![1, 2, 4, 8, 12, 16]),
    ) {
        let host = |rank: u32| (rank + seed % 7).wrapping_mul(seed | 1) % (1 + seed % ranks) % 19;
        let topology = Topology::of_hosts((0..ranks).map(host)).unwrap();
        // Segments of a broadcast have the requested length, so many bytes would take many steps.
        let count = if choice.collective() == Collective::Broadcast { count % 1000 } else { count };
        // Segments of a reduce-scatter hold whole elements of the sizes that MPI has, and 12 bytes is no such size.
        let odd = choice.collective() == Collective::ReduceScatter && element_bytes == 12;
        let element_bytes = if odd { 16 } else { element_bytes };
        prove(choice, &Arguments { element_bytes, ..call(&topology, count * element_bytes, seed) });
    }

    #[test]
    fn random_blocks_with_zeros_among_them_are_right(
        counts in prop::collection::vec(prop_oneof![Just(0u64), 1..50u64], 1..=100), seed: u32,
        element_bytes in select(vec![1, 8, 16]),
        choice in prop_oneof![any_of(flat), any_of(by_hosts)]
            .prop_filter("with blocks", |c| matches!(c.collective(), Collective::Allgather | Collective::ReduceScatter)),
    ) {
        let extents = Extents::uneven(counts.iter().map(|count| count * element_bytes)).unwrap();
        let topology = Topology::of_hosts((0..extents.ranks()).map(|rank| rank * 5 % (1 + seed % 9))).unwrap();
        prove(choice, &Arguments { extents: Some(&extents), element_bytes, ..call(&topology, 0, seed) });
    }
}

/// Algorithms whose programs grow with the logarithm of the ranks.
const SHORT: [(Collective, &str); 14] = [
    (Collective::Broadcast, "binomial"),
    (Collective::Broadcast, "k-nomial"),
    (Collective::Broadcast, "chain:segment=100000"),
    (Collective::Broadcast, "double-tree:segment=100000"),
    (Collective::Broadcast, "multicast"),
    (Collective::Gather, "binomial"),
    (Collective::Scatter, "binomial"),
    (Collective::Barrier, "dissemination:ports=4"),
    (Collective::Reduce, "binomial"),
    (Collective::Reduce, "halving"),
    (Collective::Allreduce, "recursive-doubling"),
    (Collective::Allreduce, "rabenseifner"),
    (Collective::ReduceScatter, "recursive-halving"),
    (Collective::Scan, "recursive-doubling"),
];

/// Algorithms whose programs grow with the ranks.
const LONG: [(Collective, &str); 8] = [
    (Collective::Allgather, "ring"),
    (Collective::Allgather, "multicast:chains=7"),
    (Collective::Broadcast, "scatter-allgather"),
    (Collective::Reduce, "chain:segment=500"),
    (Collective::Allreduce, "ring:segment=1024"),
    (Collective::Allreduce, "reduce-scatter-multicast:segment=1024"),
    (Collective::ReduceScatter, "ring:segment=1024"),
    (Collective::ReduceScatter, "pairwise:segment=1024"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20))]

    #[test]
    fn random_groups_up_to_4096_are_right(ranks in 65..=4096u32, seed: u32, count in 1..100_000u64, pick in select(&SHORT)) {
        // A contract of a gather has as many blocks as there are ranks.
        let ranks = if pick.0 == Collective::Gather || pick.0 == Collective::Scatter { 1 + ranks % 1000 } else { ranks };
        prove(choice(pick.0, pick.1), &call(&Topology::flat(ranks), 4 * count, seed));
    }

    #[test]
    fn random_rings_are_right(ranks in 65..=300u32, seed: u32, count in 0..1000u64, pick in select(&LONG)) {
        let ranks = if pick.0 == Collective::Allgather { ranks } else { 65 + ranks % 66 };
        prove(choice(pick.0, pick.1), &call(&Topology::flat(ranks), 4 * count, seed));
    }

    /// Programs of single ranks of large groups match the programs of their peers.
    #[test]
    fn random_ranks_of_large_groups_fit_their_peers(
        ranks in 1..=4096u32, rank: u32, seed: u32, per_host in 1..40u32, bytes in 1..=1u64 << 40,
        choice in any_of(|collective| [flat(collective), by_hosts(collective)].concat()).prop_filter("data that only moves",
            |c| !matches!(c.collective(), Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter | Collective::Scan)),
    ) {
        // In other algorithms every rank is a partner, or the number of messages grows with the bytes.
        let few = ["k-nomial", "binomial", "bruck", "standard-exchange", "neighbour-exchange", "ring"].contains(&choice.algorithm().name());
        let ranks = if few && !choice.to_string().contains("4294967295") { ranks } else { 1 + ranks % 300 };
        let pieces = matches!(choice.algorithm(), Algorithm::Chain { .. } | Algorithm::DoubleTree { .. });
        let bytes = if pieces { 4 * (1 + bytes % 1000) } else { bytes };
        let strided = ranks.div_ceil(per_host);
        let topology = Topology::of_hosts((0..ranks).map(|rank| if seed % 3 == 0 { rank % strided } else { rank / per_host })).unwrap();
        let arguments = Arguments { in_place: false, ..call(&topology, bytes, seed) };
        let promised = |rank| contract(choice, &arguments, rank).unwrap().output_bytes;
        sampled(|rank| program(choice, &arguments, rank).unwrap(), &[Rank(rank % ranks)], promised);
    }
}

/// SP-6, SP-7: every block crosses the network once per host, contiguous or strided, for any number of leaders.
#[test]
fn blocks_cross_the_network_once_per_host() {
    let hosts = |strided| (0..24).map(move |rank| if strided { rank % 4 } else { rank / 6 });
    for (strided, leaders) in [(false, 1), (true, 1), (true, 4)] {
        let topology = Topology::of_hosts(hosts(strided)).unwrap();
        let choice = choice(Collective::Allgather, &format!("hierarchical:leaders={leaders}"));
        let programs = group(choice, &Arguments::of(&topology, 10));
        let crossing = programs.iter().map(|program| {
            let here = topology.host_of(program.rank);
            sent(program, |to| to.is_some_and(|to| topology.host_of(to) != here))
        });
        assert_eq!(crossing.sum::<u64>(), 4 * 180, "18 blocks of 10 bytes come to each of four hosts");
    }
}

/// TH-6, GP-8: a rank passes on each segment as it arrives, without waiting for the others.
#[test]
fn segments_wait_for_themselves_alone() {
    for text in ["chain:segment=100", "double-tree:segment=100"] {
        for program in group(choice(Collective::Broadcast, text), &Arguments::of(&Topology::flat(9), 1000)) {
            for step in program.steps.iter().filter(|step| matches!(step.op, Op::Send { .. })) {
                let before: Vec<_> = step.after.iter().map(|id| program.steps[id.0 as usize].op.writes()).collect();
                let expected = if program.rank == Rank(0) { vec![] } else { vec![step.op.reads()] };
                assert_eq!(before, expected, "{text}: {step}");
            }
        }
    }
}

/// MC-8: a rank multicasts after its predecessor in the chain, and notifies its successor afterwards.
#[test]
fn activation_passes_along_the_chain() {
    let two = choice(Collective::Allgather, "multicast:chains=2");
    let turns = |rank| {
        let program = program(two, &Arguments::of(&Topology::flat(5), 8), Rank(rank)).unwrap();
        let step = |op: &dyn Fn(&Op) -> bool| program.steps.iter().find(|step| op(&step.op)).cloned();
        let before = |step: &Step| step.after.iter().map(|id| program.steps[id.0 as usize].op).collect::<Vec<_>>();
        let multicast = step(&|op| matches!(op, Op::Multicast { .. })).unwrap();
        let signal = step(&|op| matches!(op, Op::Send { .. }));
        (before(&multicast), signal.map(|signal| (signal.op, before(&signal))))
    };
    let (from_input, span) = (Span::input(0, 8), Span::signal());
    let told = |to| Some((Op::Send { to: Rank(to), index: 0, span }, vec![Op::Multicast { span: from_input }]));
    let tells = |from| vec![Op::Recv { from: Rank(from), index: 0, span }];
    assert_eq!(turns(0), (vec![], told(1)));
    assert_eq!(turns(1), (tells(0), told(2)));
    assert_eq!(turns(2), (tells(1), None));
    assert_eq!(turns(3), (vec![], told(4)));
    assert_eq!(turns(4), (tells(3), None));
}

/// MC-8: fewer chains than concurrent roots are rejected, even if the programs agree on the number.
#[test]
fn too_many_roots_at_once_are_refused() {
    let (topology, three) = (Topology::flat(7), choice(Collective::Allgather, "multicast:chains=3"));
    let arguments = Arguments::of(&topology, 8);
    let mut programs = group(three, &arguments);
    programs.iter_mut().for_each(|program| program.chains = 2);
    let verdict = verdict(&programs, three, &arguments);
    assert!(matches!(verdict, Err(VerifyError::Roots { chains: 2, .. })), "{verdict:?}");
}

/// By rank, the ranks whose calls this rank knows of at the end. Messages pass knowledge on until nothing changes.
fn known_at_the_end(programs: &[Program]) -> Vec<Vec<bool>> {
    let ranks = programs.len();
    // By rank and step, the ranks whose calls are known when the step is complete.
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
                // Only an empty span of input reports that the rank has called.
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
    for (ranks, choice) in (1..=24).flat_map(|ranks| flat(Collective::Barrier).into_iter().map(move |one| (ranks, one)))
    {
        let programs = group(choice, &Arguments::of(&Topology::flat(ranks), 0));
        for (rank, known) in known_at_the_end(&programs).into_iter().enumerate() {
            assert!(ranks == 1 || known.iter().all(|known| *known), "{choice} of {ranks}: rank {rank} knows {known:?}");
        }
    }
}

/// Whether the damage removed a dependency.
fn lacks_a_dependency(damaged: &Program, valid: &Program) -> bool {
    let same_ops = damaged.steps.iter().map(|step| step.op).eq(valid.steps.iter().map(|step| step.op));
    let dependencies = |program: &Program| program.steps.iter().map(|step| step.after.len()).sum::<usize>();
    same_ops && dependencies(damaged) < dependencies(valid)
}

/// Damages each program of a valid group in every way, one at a time, and expects a rejection. Exception: between
/// hosts, other ranks' waits may imply a removed dependency of a reduction.
fn damage_is_refused(choice: Choice, arguments: &Arguments<'_>) -> usize {
    prove(choice, arguments);
    let mut programs = group(choice, arguments);
    let implied = choice.leaders().is_some() && choice.collective() != Collective::Allgather;
    let mut refused = 0;
    for rank in 0..programs.len() {
        let valid = programs[rank].clone();
        for program in damage::damaged(&valid) {
            programs[rank] = program;
            let verdict = verdict(&programs, choice, arguments);
            if verdict.is_ok() && implied && lacks_a_dependency(&programs[rank], &valid) {
                continue;
            }
            assert!(verdict.is_err(), "{choice}: accepted in place of\n{valid}\n{}", programs[rank]);
            refused += 1;
        }
        programs[rank] = valid;
    }
    refused
}

#[test]
fn every_single_damage_is_refused() {
    let mut refused = 0;
    for ranks in 1..=6 {
        let (alone, pairs) = (Topology::flat(ranks), Topology::of_hosts((0..ranks).map(|rank| rank / 2)).unwrap());
        let blocks = Extents::uneven((0..ranks).map(|rank| 4 + 20 * u64::from(rank % 2))).unwrap();
        let reductions = [Collective::Reduce, Collective::Allreduce, Collective::Scan];
        for collective in reductions {
            for seed in 0..2 {
                let arguments = |topology| call(topology, 4 * (2 * u64::from(ranks) + 1), ranks / 2 + seed);
                refused +=
                    flat(collective).into_iter().map(|c| damage_is_refused(c, &arguments(&alone))).sum::<usize>();
                refused +=
                    by_hosts(collective).into_iter().map(|c| damage_is_refused(c, &arguments(&pairs))).sum::<usize>();
            }
        }
        let arguments = |topology| Arguments { extents: Some(&blocks), ..call(topology, 0, 0) };
        let scatters = flat(Collective::ReduceScatter).into_iter();
        refused += scatters.map(|c| damage_is_refused(c, &arguments(&alone))).sum::<usize>();
        let scatters = by_hosts(Collective::ReduceScatter).into_iter();
        refused += scatters.map(|c| damage_is_refused(c, &arguments(&pairs))).sum::<usize>();
        let chains = (1..=ranks).map(|chains| format!("multicast:chains={chains}"));
        for text in chains.chain(["ring".to_owned(), "rotated-bruck".to_owned(), "linear".to_owned()]) {
            for (seed, bytes) in [(0, 8), (1, 8), (0, 1)] {
                refused += damage_is_refused(choice(Collective::Allgather, &text), &call(&alone, bytes, seed));
            }
        }
    }
    assert!(refused > 20_000, "only {refused} damaged plans were tried");
}
