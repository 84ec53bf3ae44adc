//! Engines carry out the same plans as service processes: the same bits, whatever arrives first. Most tests are about
//! order-triggered NICs.

use std::ops::Range;

use outboard_nic::ordered::{BufferSharing, OrderedSettings};
use outboard_nic::{NodeId, datapath, host, triggered};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, Reduction};
use outboard_sim::nics::{
    EngineKind, EngineSettings, InputValues, JobPlan, NicCall, NicOutcome, NicPlan, PreparedPlan, conformance,
};

use crate::sum;

/// The algorithms that TH-6 names, and the trees of messages without rounds.
const CHOICES: [(Collective, &str); 7] = [
    (Collective::Broadcast, "double-tree:segment=18446744073709551615"),
    (Collective::Broadcast, "binomial"),
    (Collective::Reduce, "halving"),
    (Collective::Reduce, "binomial"),
    (Collective::Allreduce, "rabenseifner"),
    (Collective::ReduceScatter, "recursive-halving"),
    (Collective::Barrier, "dissemination"),
];

fn call((collective, algorithm): (Collective, &str), bytes: u64, reduction: Reduction) -> NicCall {
    let combines = matches!(collective, Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter);
    let choice = Choice::read(collective, algorithm).expect("an algorithm");
    let bytes = match collective {
        Collective::Barrier => 0,
        _ if combines => bytes / reduction.element().bytes() * reduction.element().bytes(),
        _ => bytes,
    };
    NicCall::new(choice, bytes, combines.then_some(reduction))
}

pub(crate) fn one_job<S>(ranks: u32, per_host: u32, calls: Vec<NicCall>, settings: S) -> NicPlan<S> {
    let nodes = (0..ranks).map(|rank| rank / per_host).collect();
    NicPlan { jobs: vec![JobPlan { nodes, calls }], settings, death: None }
}

pub(crate) fn prepared<S: EngineSettings>(plan: &NicPlan<S>) -> PreparedPlan<'_, S> {
    PreparedPlan::new(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}"))
}

/// Plays a plan with the loss of `loss` in a thousand multicast packets. In the end, `watch` receives all engines.
pub(crate) fn watch<S: EngineSettings>(
    plan: &NicPlan<S>,
    loss: usize,
    seeds: Range<u64>,
    mut watch: impl FnMut(NodeId, &S::Engine),
) -> Vec<NicOutcome> {
    let prepared = prepared(plan).losing(loss);
    let one = |seed| {
        prepared.watch(seed, &mut watch).unwrap_or_else(|violation| panic!("{plan:?}, seed {seed}: {violation}"))
    };
    seeds.map(one).collect()
}

pub(crate) fn play<S: EngineSettings>(plan: &NicPlan<S>, seeds: Range<u64>) -> Vec<NicOutcome> {
    watch(plan, 0, seeds, |_, _| ())
}

/// Why an engine rejects a plan.
pub(crate) fn refusal<S: EngineSettings>(plan: &NicPlan<S>) -> String {
    PreparedPlan::new(plan).expect_err("it does not fit").to_string()
}

/// The least number of algorithms that an engine accepts for every group.
fn least(engine: EngineKind) -> usize {
    match engine {
        EngineKind::ServiceProcess | EngineKind::Host => 30,
        EngineKind::Triggered => 8,
        EngineKind::Ordered => 16,
        EngineKind::Datapath => 2,
        EngineKind::OfiTriggered => 6,
    }
}

/// TH-6: one suite for all engines, and every algorithm of every collective that they accept. Algorithms of one engine
/// differ in descriptors alone. The groups have any size, ranks share hosts, and vectors have no byte to several
/// pulses.
#[test]
fn th_6_engines_conform() {
    for engine in EngineKind::ALL {
        for (ranks, bytes) in (1..=33).zip([0, 1, 70_001, 16_384, 16_383].into_iter().cycle()) {
            // Large groups use few bytes, because collectives of blocks move many blocks.
            let bytes = if ranks > 8 { bytes.min(4_001) } else { bytes };
            conforms(engine, ranks, 1 + ranks % 4, bytes, least(engine));
        }
    }
}

#[test]
#[ignore = "132 groups on each engine, vectors of full size: for release builds (make soak)"]
fn engines_conform_in_all_sizes() {
    let groups = (1..=33).flat_map(|ranks| (1..=4).map(move |per_host| (ranks, per_host)));
    // The sizes are repeated group by group, so each of the 5 sizes meets each of the 4 numbers of ranks on a host.
    for ((ranks, per_host), bytes) in groups.zip([0, 1, 16_383, 16_384, 70_001].into_iter().cycle()) {
        for engine in EngineKind::ALL {
            conforms(engine, ranks, per_host, bytes, least(engine).min(8));
        }
    }
}

fn conforms(engine: EngineKind, ranks: u32, per_host: u32, bytes: u64, least: usize) {
    let hosts: Vec<u32> = (0..ranks).map(|rank| rank / per_host).collect();
    let taken = conformance(engine, &hosts, bytes).unwrap_or_else(|wrong| panic!("{bytes} bytes: {wrong}"));
    assert!(taken >= least, "{engine} takes {taken} algorithms of {ranks} ranks, {bytes} bytes");
}

/// Checks that every order of packets, and of the calls among them, ends with the same bits. Any other order of
/// additions would give other bits. There are at least `least` orders.
fn every_order_is_right(algorithm: (Collective, &str), ranks: u32, least: u64) {
    let call = NicCall { values: InputValues::Cancelling, ..call(algorithm, 64, sum(Element::F64)) };
    let settings =
        OrderedSettings { units: 1, tasks: 1, counters: 1, buffer_bytes: 8 << 10, ..OrderedSettings::default() };
    let settings = OrderedSettings { pulses: 1, packet_bytes: 64, ..settings };
    let orders = prepared(&one_job(ranks, 1, vec![call], settings)).exhaust(2_000_000);
    let orders = orders.unwrap_or_else(|violation| panic!("{algorithm:?} among {ranks}: {violation}"));
    assert!(orders.is_some_and(|orders| orders >= least), "{algorithm:?} among {ranks}: {orders:?} orders");
}

#[test]
fn th_2_every_order_of_few_packets_has_the_same_bits() {
    every_order_is_right((Collective::Reduce, "binomial"), 4, 300);
    every_order_is_right((Collective::Allreduce, "rabenseifner"), 3, 150);
    every_order_is_right((Collective::ReduceScatter, "recursive-halving"), 3, 50);
    every_order_is_right((Collective::Barrier, "dissemination"), 3, 1_000);
}

#[test]
#[ignore = "300,000 orders of 8 packets and 10,000 seeds: for release builds (make soak)"]
fn th_2_every_order_of_8_packets_and_many_seeds_have_the_same_bits() {
    every_order_is_right((Collective::Allreduce, "recursive-doubling"), 4, 200_000);
    let cancelling =
        |algorithm| NicCall { values: InputValues::Cancelling, ..call(algorithm, 20_000, sum(Element::F64)) };
    play(&one_job(6, 2, CHOICES.map(cancelling).into(), OrderedSettings::default()), 0..10_000);
}

/// TH-2 for calls in a row and jobs side by side, by seed.
#[test]
fn th_2_jobs_side_by_side_and_calls_in_a_row_keep_their_bits() {
    let calls = |bytes| {
        let calls = CHOICES
            .map(|algorithm| NicCall { values: InputValues::Cancelling, ..call(algorithm, bytes, sum(Element::F64)) });
        calls.iter().cycle().take(9).copied().collect::<Vec<_>>()
    };
    let jobs = (1..=6).map(|job| JobPlan {
        nodes: (0..job + 2).map(|rank| rank % 4).collect(),
        calls: calls(3_000 * u64::from(job)),
    });
    for sharing in [BufferSharing::Dynamic, BufferSharing::Fixed] {
        let settings = OrderedSettings { sharing, ..OrderedSettings::default() };
        let plan = NicPlan { jobs: jobs.clone().collect(), settings, death: None };
        let played = play(&plan, 0..10);
        assert!(played.iter().all(|played| played.failed == 0 && played.right == 9 * (3 + 4 + 5 + 6 + 7 + 8)));
    }
}

/// TH-1: if the buffers have no room for a call, messages that follow no other message go from point to point (C = 0),
/// beside sequences of the same ports. Some messages fit one descriptor, others are longer than a descriptor can
/// describe.
#[test]
fn th_1_first_steps_go_point_to_point_when_buffers_are_full() {
    let moves = [(Collective::Alltoall, "pull"), (Collective::Gather, "linear"), (Collective::Allgather, "linear")];
    // Buffers have room for a block from one source, and for messages without bytes from few sources.
    let (barrier, scatter) = ((Collective::Barrier, "dissemination:ports=32"), (Collective::Scatter, "linear"));
    for (ranks, bytes, also) in [(20, 40, barrier), (33, 1_500, barrier), (3, 300_000, scatter)] {
        let mut calls = Vec::new();
        for (collective, algorithm) in moves.into_iter().chain([also]) {
            let call = call((collective, algorithm), bytes, sum(Element::F64));
            let hosts: Vec<u32> = (0..ranks).map(|rank| rank / 3).collect();
            let described = EngineKind::Ordered.takes(&hosts, &call);
            assert_eq!(described.as_deref(), Ok("from point to point"), "{algorithm} of {ranks} ranks, {bytes} bytes");
            calls.extend([call, self::call((Collective::Allreduce, "rabenseifner"), 4_000, sum(Element::F64))]);
        }
        let played = play(&one_job(ranks, 3, calls.clone(), OrderedSettings::default()), 0..3);
        assert!(played.iter().all(|played| played.right == u64::from(ranks) * calls.len() as u64));
    }
}

fn a_dead_node_is_named<S: EngineSettings>(settings: S, calls: [NicCall; 3], loss: usize) {
    let jobs = [vec![0, 1, 2, 3, 4], vec![0, 1, 2, 4], vec![3, 2, 2, 3]];
    let jobs: Vec<JobPlan> = jobs.map(|nodes| JobPlan { nodes, calls: calls.to_vec() }).into();
    let mut failed = 0;
    for behind in [0, 5, 40, 120, 200, 400, 800] {
        let plan = NicPlan { jobs: jobs.clone(), settings, death: Some((3, behind)) };
        for played in watch(&plan, loss, 0..10, |_, _| ()) {
            assert!(played.right >= 3 * 4, "the job without the dead node ends right");
            failed += played.failed;
        }
    }
    assert!(failed > 0);
}

/// A dead node ends the calls of its jobs with an error that names the node. No other call ends with an error, and
/// nothing is kept.
#[test]
fn a_dead_node_ends_the_calls_of_its_jobs_by_name() {
    let call = |collective, algorithm, bytes| call((collective, algorithm), bytes, sum(Element::F64));
    let reduce = call(Collective::Allreduce, "rabenseifner", 40_000);
    a_dead_node_is_named(OrderedSettings::default(), [reduce, call(Collective::Alltoall, "pull", 20_000), reduce], 0);
    let hierarchical = |bytes| call(Collective::Allgather, "hierarchical:leaders=1,between=ring", bytes);
    let hierarchical = [20_000, 9, 20_000].map(hierarchical);
    a_dead_node_is_named(triggered::TriggeredSettings::default(), hierarchical, 0);
    a_dead_node_is_named(host::HostSettings::default(), hierarchical, 0);
    let thread = host::HostSettings { progress: host::ProgressMode::Thread, ..host::HostSettings::default() };
    a_dead_node_is_named(thread, hierarchical, 0);
    let multicast = [
        call(Collective::Allgather, "multicast:chains=1,subgroups=4", 20_000),
        call(Collective::Broadcast, "multicast:subgroups=3", 40_000),
        call(Collective::Allgather, "multicast:chains=2,subgroups=20", 10_000),
    ];
    a_dead_node_is_named(datapath::DatapathSettings::default(), multicast, 200);
}

/// TH-5: a task that finds no DMA counter tries again. Finally its calls end with an error on all ranks.
#[test]
fn th_5_without_a_counter_a_task_retries_and_fails_in_the_end() {
    let call = call((Collective::Allreduce, "rabenseifner"), 4_000, sum(Element::F64));
    let jobs = (0..4).map(|_| JobPlan { nodes: vec![0, 1], calls: vec![call] }).collect();
    let settings = OrderedSettings { units: 1, tasks: 4, counters: 1, ..OrderedSettings::default() };
    let plan = NicPlan { jobs, settings, death: None };
    let played = play(&plan, 0..50);
    assert!(played.iter().any(|played| played.failed > 0) && played.iter().any(|played| played.failed == 0));
}

/// A plan that does not fit is rejected with the step, or with both numbers, and with a remedy.
#[test]
fn what_does_not_fit_is_refused_by_step_or_number() {
    // There is room for one pulse at a time, of 115 packets.
    let settings = OrderedSettings { pulses: 1, ..OrderedSettings::default() };
    let said = |algorithm: (Collective, &str), ranks, bytes, expected: &str| {
        let said = refusal(&one_job(ranks, 1, vec![call(algorithm, bytes, sum(Element::F64))], settings));
        assert!(said.contains(expected), "{algorithm:?}: {said}");
    };
    said((Collective::Broadcast, "multicast"), 4, 100, "rank 0 step 0 (multicast input[0..100])");
    said((Collective::Allreduce, "ring"), 40, 4_000, "78 messages in one direction: a pulse has 32 steps");
    said(
        (Collective::Gather, "binomial"),
        140,
        1_025,
        "rank 0 receives 147 packets in a pulse, which has room for 115",
    );
    said((Collective::Barrier, "dissemination:ports=18"), 40, 0, "rank 0 reads from 20 sources: a task has 16");
    said((Collective::Allgather, "ring"), 8, 100_000, "whose elements go different ways has no pulses");
}
