//! Datapath accelerators: exact to the byte on a network that loses multicast packets, for any cost of completions.

use outboard_nic::datapath::{CompletionCycles, DatapathCosts, DatapathSettings, Transport};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Element, Operator, Reduction};
use outboard_sim::nics::{JobPlan, NicCall, NicPlan};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::nics::{one_job, refusal, watch};

const CHOICES: [(Collective, &str); 4] = [
    (Collective::Broadcast, "multicast:subgroups=3"),
    (Collective::Allgather, "multicast:chains=0,subgroups=1"),
    (Collective::Allgather, "multicast:chains=1,subgroups=4"),
    (Collective::Allgather, "multicast:chains=2,subgroups=20"),
];

fn call((collective, algorithm): (Collective, &str), bytes: u64) -> NicCall {
    NicCall::new(Choice::read(collective, algorithm).expect("an algorithm"), bytes, None)
}

/// MC-2, MC-6, MC-12: the runs have any losses, ranks that share hosts or do not, blocks that differ, and calls in a
/// row.
#[test]
fn mc_6_loss_changes_no_byte() {
    for (ranks, per_host, loss) in [(2, 1, 500), (5, 1, 50), (6, 3, 300), (7, 2, 1_000), (9, 4, 800)] {
        let uneven = |algorithm| NicCall { uneven: Some(7), ..call(algorithm, 30_000) };
        let calls = vec![call(CHOICES[0], 70_001), uneven(CHOICES[2]), call(CHOICES[3], 9_000), uneven(CHOICES[1])];
        for transport in [Transport::Datagrams, Transport::Writes { packets: 1 }, Transport::Writes { packets: 3 }] {
            let settings = DatapathSettings { transport, packet_bytes: 1_000, ..DatapathSettings::default() };
            let played = watch(&one_job(ranks, per_host, calls.clone(), settings), loss, 0..4, |_, _| ());
            assert!(played.iter().all(|played| played.right == 4 * u64::from(ranks) && played.failed == 0));
        }
    }
}

/// MC-13, MC-15: costs only delay. Jobs share few threads and few receives, so some chunks find no receive posted.
#[test]
fn mc_15_random_costs_change_no_byte() {
    let mut not_ready = 0;
    for seed in 0..24 {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut work =
            || CompletionCycles { instructions: rng.random_range(0.0..5e3), stalls: rng.random_range(0.0..5e4) };
        let (datagram, write) = (work(), work());
        let costs = DatapathCosts {
            datagram,
            write,
            cores: 2,
            threads_per_core: rng.random_range(1..4),
            contention: rng.random_range(0.0..2.0),
            activation: rng.random_range(0..100_000),
            ..DatapathCosts::bluefield3()
        };
        let transport = if seed % 2 == 0 { Transport::Datagrams } else { Transport::Writes { packets: 2 } };
        let settings = DatapathSettings {
            transport,
            packet_bytes: 500,
            threads: rng.random_range(1..=costs.threads()),
            receives: rng.random_range(1..9),
            batch: rng.random_range(1..9),
            patience: rng.random_range(0..200_000),
            costs,
            ..DatapathSettings::default()
        };
        let calls: Vec<NicCall> = CHOICES.map(|algorithm| call(algorithm, rng.random_range(0..12_000))).into();
        let job = |nodes: &[u32]| JobPlan { nodes: nodes.to_vec(), calls: calls.clone() };
        let jobs = vec![job(&[0, 1, 2, 3]), job(&[0, 0, 1, 1, 2]), job(&[0, 1, 2])];
        let plan = NicPlan { jobs, settings, death: None };
        let played = watch(&plan, 100, seed..seed + 1, |_, engine| not_ready += engine.counters().not_ready);
        assert_eq!((played[0].right, played[0].failed), (4 * (4 + 5 + 3), 0));
    }
    assert!(not_ready > 0, "some chunk finds no receive");
}

/// MC-6: if no multicast packet arrives, the ring carries each block to each other rank once.
#[test]
fn mc_6_the_ring_alone_carries_everything_once() {
    for (algorithm, blocks) in [(CHOICES[0], 1), (CHOICES[2], 6)] {
        let plan = one_job(6, 1, vec![call(algorithm, 50_000)], DatapathSettings::default());
        for seed in 0..5 {
            let mut repaired = 0;
            watch(&plan, 1_000, seed..seed + 1, |_, engine| repaired += engine.counters().repaired);
            assert_eq!(repaired, 5 * blocks * 50_000, "{algorithm:?}");
        }
    }
}

/// An unsupported call is rejected with the step, or with both numbers, and with a remedy.
#[test]
fn what_is_not_taken_is_refused_with_the_reason() {
    let said = |collective, algorithm, expected: &str| {
        let sum = Reduction::new(Operator::Sum, Element::F64).ok().filter(|_| collective == Collective::Allreduce);
        let call = NicCall { reduction: sum, ..call((collective, algorithm), 100_000) };
        let settings = DatapathSettings { bitmap_bytes: 12, ..DatapathSettings::default() };
        let said = refusal(&one_job(4, 1, vec![call], settings));
        assert!(said.contains(expected), "{algorithm}: {said}");
    };
    said(Collective::Allgather, "ring", "receive multicast, of which this has none; choose multicast");
    said(Collective::Allreduce, "reduce-multicast", "combine none; choose an algorithm that only moves");
    said(Collective::Allgather, "multicast", "rank 0 needs bitmaps of 13 bytes, of which 12 fit");
}
