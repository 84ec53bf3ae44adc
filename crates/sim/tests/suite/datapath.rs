//! Datapath accelerators: exact to the byte on a network that loses what is multicast, whatever completions cost.

use outboard_nic::datapath::{Costs, Settings, Transport, Work};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, Operator, Reduction};
use outboard_sim::nics::{Call, JobPlan, NicPlan, Played, Prepared};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const CHOICES: [(Collective, &str); 4] = [
    (Collective::Broadcast, "multicast:subgroups=3"),
    (Collective::Allgather, "multicast:chains=0,subgroups=1"),
    (Collective::Allgather, "multicast:chains=1,subgroups=4"),
    (Collective::Allgather, "multicast:chains=2,subgroups=20"),
];

fn call((collective, algorithm): (Collective, &str), bytes: u64) -> Call {
    Call::new(Choice::read(collective, algorithm).expect("an algorithm"), bytes, None)
}

fn jobs(ranks: u32, per_host: u32, calls: &[Call]) -> JobPlan {
    JobPlan { nodes: (0..ranks).map(|rank| rank / per_host).collect(), calls: calls.to_vec() }
}

fn play(plan: &NicPlan<Settings>, loss: usize, seeds: std::ops::Range<u64>) -> Vec<Played> {
    let prepared = Prepared::new(plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")).losing(loss);
    let one = |seed| prepared.play(seed).unwrap_or_else(|breach| panic!("{plan:?}, seed {seed}: {breach}"));
    seeds.map(one).collect()
}

/// MC-2, MC-6, MC-12: whatever is lost, ranks that share hosts or do not, blocks that differ, calls in a row.
#[test]
fn mc_6_bytes_are_right_whatever_is_lost() {
    for (ranks, per_host, loss) in [(2, 1, 500), (5, 1, 50), (6, 3, 300), (7, 2, 1_000), (9, 4, 800)] {
        let uneven = |algorithm| Call { uneven: Some(7), ..call(algorithm, 30_000) };
        let calls = [call(CHOICES[0], 70_001), uneven(CHOICES[2]), call(CHOICES[3], 9_000), uneven(CHOICES[1])];
        for transport in [Transport::Datagrams, Transport::Writes { packets: 1 }, Transport::Writes { packets: 3 }] {
            let settings = Settings { transport, packet_bytes: 1_000, ..Settings::default() };
            let plan = NicPlan { jobs: vec![jobs(ranks, per_host, &calls)], settings, death: None };
            let played = play(&plan, loss, 0..4);
            assert!(played.iter().all(|played| played.right == 4 * u64::from(ranks) && played.failed == 0));
        }
    }
}

/// MC-13, MC-15: costs only delay. Jobs share few threads of few receives, so that chunks find none posted, too.
#[test]
fn mc_15_random_costs_change_no_byte() {
    let mut not_ready = 0;
    for seed in 0..24 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut work = || Work { instructions: rng.random_range(0.0..5e3), stalls: rng.random_range(0.0..5e4) };
        let (datagram, write) = (work(), work());
        let costs = Costs {
            datagram,
            write,
            cores: 2,
            threads_per_core: rng.random_range(1..4),
            contention: rng.random_range(0.0..2.0),
            activation: rng.random_range(0..100_000),
            ..Costs::bluefield3()
        };
        let transport = if seed % 2 == 0 { Transport::Datagrams } else { Transport::Writes { packets: 2 } };
        let settings = Settings {
            transport,
            packet_bytes: 500,
            threads: rng.random_range(1..=costs.threads()),
            receives: rng.random_range(1..9),
            batch: rng.random_range(1..9),
            patience: rng.random_range(0..200_000),
            costs,
            ..Settings::default()
        };
        let calls: Vec<Call> = CHOICES.map(|algorithm| call(algorithm, rng.random_range(0..12_000))).into();
        let jobs = [jobs(4, 1, &calls), jobs(5, 2, &calls), jobs(3, 1, &calls)];
        let plan = NicPlan { jobs: jobs.into(), settings, death: None };
        let prepared = Prepared::new(&plan).unwrap_or_else(|error| panic!("{plan:?}: {error}")).losing(100);
        let watched = prepared.watch(seed, |_, engine| not_ready += engine.counters().not_ready);
        let played = watched.unwrap_or_else(|breach| panic!("{plan:?}, seed {seed}: {breach}"));
        assert_eq!((played.right, played.failed), (4 * (4 + 5 + 3), 0));
    }
    assert!(not_ready > 0, "some chunk finds no receive");
}

/// MC-6: where nothing multicast arrives the ring carries each block to each other rank once.
#[test]
fn mc_6_the_ring_alone_carries_everything_once() {
    for (algorithm, blocks) in [(CHOICES[0], 1), (CHOICES[2], 6)] {
        let plan =
            NicPlan { jobs: vec![jobs(6, 1, &[call(algorithm, 50_000)])], settings: Settings::default(), death: None };
        for seed in 0..5 {
            let mut repaired = 0;
            let prepared = Prepared::new(&plan).expect("it fits").losing(1_000);
            let watched = prepared.watch(seed, |_, engine| repaired += engine.counters().repaired);
            watched.unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
            assert_eq!(repaired, 5 * blocks * 50_000, "{algorithm:?}");
        }
    }
}

/// A dead node ends the calls of its jobs with its name, and no others; nothing is kept.
#[test]
fn a_dead_node_ends_the_calls_of_its_jobs_by_name() {
    let calls = [call(CHOICES[2], 20_000), call(CHOICES[0], 40_000), call(CHOICES[3], 10_000)];
    let nodes = [vec![0, 1, 2, 3, 4], vec![0, 1, 2, 4], vec![3, 2, 2, 3]];
    let jobs: Vec<JobPlan> = nodes.map(|nodes| JobPlan { nodes, calls: calls.to_vec() }).into();
    let mut failed = 0;
    for behind in [0, 5, 40, 200, 800] {
        let plan = NicPlan { jobs: jobs.clone(), settings: Settings::default(), death: Some((3, behind)) };
        for played in play(&plan, 200, 0..10) {
            assert!(played.right >= 3 * 4, "the job without the dead node ends right");
            failed += played.failed;
        }
    }
    assert!(failed > 0);
}

/// What is not taken is refused with the step, or both numbers, and a way out.
#[test]
fn what_is_not_taken_is_refused_with_the_reason() {
    let said = |collective, algorithm, expected: &str| {
        let sum = Reduction::new(Operator::Sum, Element::F64).ok().filter(|_| collective == Collective::Allreduce);
        let call = Call { reduction: sum, ..call((collective, algorithm), 100_000) };
        let settings = Settings { bitmap_bytes: 12, ..Settings::default() };
        let plan = NicPlan { jobs: vec![jobs(4, 1, &[call])], settings, death: None };
        let said = Prepared::new(&plan).map(|_| ()).map_err(|error| error.to_string());
        assert!(said.as_ref().is_err_and(|said| said.contains(expected)), "{algorithm}: {said:?}");
    };
    said(Collective::Allgather, "ring", "receive multicast, of which this has none; choose multicast");
    said(Collective::Allreduce, "reduce-multicast", "combine none; choose an algorithm that only moves");
    said(Collective::Allgather, "multicast", "rank 0 needs bitmaps of 13 bytes, of which 12 fit");
}
