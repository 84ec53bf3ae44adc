//! Triggered NICs: templates are kept, queue pairs are made once, and settings change no byte.

use std::collections::BTreeMap;

use outboard_nic::triggered::{Readiness, TriggeredSettings};
use outboard_nic::{NodeId, Port, host};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Element, Topology};
use outboard_plan_tools::triggered::Communicator;
use outboard_sim::nics::NicCall;

use crate::nics::{one_job, play, prepared, watch};
use crate::sum;

fn call(collective: Collective, algorithm: &str, bytes: u64) -> NicCall {
    NicCall::new(Choice::read(collective, algorithm).expect("an algorithm"), bytes, None)
}

/// CD-3: calls of any size are filled into two templates, one for each protocol.
#[test]
fn cd_3_a_thousand_calls_have_two_templates() {
    for per_host in [1, 8] {
        let topology = Topology::of_hosts((0..16).map(|rank| rank / per_host)).expect("few ranks");
        let mut communicator = Communicator::new(&topology, TriggeredSettings::default());
        for algorithm in ["standard-exchange", "bruck", "ring"] {
            let algorithm = match per_host {
                1 => algorithm.to_owned(),
                _ => format!("hierarchical:leaders=1,between={algorithm}"),
            };
            let choice = Choice::read(Collective::Allgather, &algorithm).expect("an algorithm");
            let before = communicator.built();
            for at in 0..1_000 {
                let arguments = Arguments::of(&topology, 1 + at * 69_999 / 999);
                communicator.call(choice, &arguments).expect("it fits");
            }
            assert_eq!(communicator.built() - before, 2, "{algorithm}");
        }
    }
}

/// CD-3, CD-6: the queue pairs of the first call serve all other calls; only leaders have queue pairs.
#[test]
fn cd_3_queue_pairs_are_made_by_the_first_call() {
    let sizes = [20_000, 1, 16_383, 16_384, 70_000, 0, 5];
    for (per_host, algorithm, pairs) in
        [(1, "standard-exchange", 9), (1, "bruck", 18), (2, "hierarchical:leaders=1,between=standard-exchange", 6)]
    {
        let made = |sizes: &[u64]| {
            let calls = sizes.iter().map(|bytes| call(Collective::Allgather, algorithm, *bytes)).collect();
            let plan = one_job(8, per_host, calls, TriggeredSettings::default());
            let mut made = BTreeMap::new();
            watch(&plan, 0, 3..4, |NodeId(node), engine| {
                let of_port = |port| (port == 0, engine.queue_pairs(Port(port)));
                let of_ports: Vec<_> = (0..per_host as u16).map(of_port).collect();
                made.insert(node, (of_ports, engine.counters().queue_pairs));
            });
            made
        };
        let first = made(&sizes[..1]);
        assert_eq!(made(&sizes), first, "{algorithm}");
        for (ports, all) in first.values() {
            assert_eq!(*all, pairs, "{algorithm}");
            assert!(ports.iter().all(|(leads, has)| *has as u64 == if *leads { pairs } else { 0 }), "{ports:?}");
        }
    }
}

/// Plans in which no rank has to wait for all others, so that ranks run ahead of their peers' buffers.
const AHEAD: [(Collective, &str); 6] = [
    (Collective::Broadcast, "binomial"),
    (Collective::Broadcast, "chain:segment=700"),
    (Collective::Broadcast, "double-tree:segment=500"),
    (Collective::Gather, "binomial"),
    (Collective::Scatter, "linear"),
    (Collective::Alltoall, "pairwise"),
];

/// Allgathers of CD-2: the algorithm, the number of ranks, and the ranks of a host.
const ALLGATHERS: [(&str, u32, u32); 9] = [
    ("ring", 5, 1),
    ("neighbour-exchange", 6, 1),
    ("standard-exchange:ports=2", 9, 1),
    ("bruck:ports=3", 11, 1),
    ("rotated-bruck", 7, 1),
    ("linear", 7, 2),
    ("hierarchical:leaders=2,between=bruck,ports=2", 11, 3),
    ("hierarchical:leaders=1,between=ring", 9, 4),
    ("multi-leader:leaders=2,between=standard-exchange", 16, 4),
];

/// CD-4, CD-5: for any settings, calls of any size in a row end with their bytes.
#[test]
fn settings_change_no_byte() {
    let defaults = TriggeredSettings::default();
    let all = [
        TriggeredSettings { readiness: Readiness::Retry, ..defaults },
        TriggeredSettings { eager_bytes: 0, inline_bytes: 0, ..defaults },
        TriggeredSettings { eager_bytes: 4_000, buffer_bytes: 700, ..defaults },
        TriggeredSettings { buffer_bytes: 1, eager_bytes: 40, inline_places: 1, ..defaults },
        TriggeredSettings { virtual_ports: 3, physical_ports: 2, ..defaults },
    ];
    for settings in all {
        for (collective, algorithm) in AHEAD {
            let calls = [3_000, 30, 0, 3_999, 4_000].map(|bytes| call(collective, algorithm, bytes)).into();
            play(&one_job(5, 1, calls, settings), 0..4);
        }
        for (algorithm, ranks, per_host) in ALLGATHERS {
            let even = |bytes| call(Collective::Allgather, algorithm, bytes);
            let uneven = |bytes| NicCall { uneven: Some(bytes), ..even(bytes) };
            let calls = vec![even(3_000), uneven(50), even(1), uneven(9_000), even(39), uneven(7), even(5_000)];
            play(&one_job(ranks, per_host, calls, settings), 0..3);
        }
    }
}

/// CD-4, CD-5: if nobody leaves before all ranks have come, receives posted one call ahead suffice. Otherwise, and
/// without clear-to-sends, some senders find their receiver not ready, and send again.
#[test]
fn who_finds_a_receiver_not_ready_sends_again() {
    let refused = |collective, algorithm, bytes, readiness| {
        let calls = vec![call(collective, algorithm, bytes); 6];
        let plan = one_job(6, 1, calls, TriggeredSettings { readiness, ..TriggeredSettings::default() });
        let mut refused = 0;
        watch(&plan, 0, 0..20, |_, engine| refused += engine.counters().refused);
        refused
    };
    for bytes in [100, 20_000] {
        assert_eq!(refused(Collective::Allgather, "bruck", bytes, Readiness::ClearToSend), 0);
    }
    assert!(refused(Collective::Allgather, "bruck", 20_000, Readiness::Retry) > 0);
    assert!(refused(Collective::Broadcast, "binomial", 100, Readiness::ClearToSend) > 0);
}

/// A NIC without room reports both numbers.
#[test]
fn what_a_nic_has_no_room_for_is_refused_with_numbers() {
    let refused = |settings: TriggeredSettings, expected: &str| {
        let plan = one_job(8, 1, vec![call(Collective::Allgather, "bruck", 100); 3], settings);
        let said = prepared(&plan).play(0).expect_err("too small").to_string();
        assert!(said.contains(expected), "{said}");
    };
    let defaults = TriggeredSettings::default();
    refused(TriggeredSettings { queue_pairs: 17, ..defaults }, "18 queue pairs: a NIC has 17");
    refused(
        TriggeredSettings { registered_bytes: 40_000, ..defaults },
        "131072 B of registered memory, of which 40000 B are left",
    );
    refused(
        TriggeredSettings { queue_depth: 10, ..defaults },
        "requests: a queue has room for 10; choose an algorithm with fewer messages",
    );
    refused(TriggeredSettings { calls: 2, ..defaults }, "3 calls of job 0 at once: 2 may be in flight");
}

/// Processes that find no staging, or that request everything first, end with the same bytes.
#[test]
fn hosts_without_staging_end_right() {
    for (eager_bytes, staging_bytes) in [(0, 0), (16 << 10, 0), (16 << 10, 900)] {
        let settings = host::HostSettings { eager_bytes, staging_bytes, ..host::HostSettings::default() };
        let reduce = Choice::read(Collective::Allreduce, "rabenseifner").expect("an algorithm");
        let mut calls = vec![NicCall::new(reduce, 4_000, Some(sum(Element::F64))); 2];
        calls.extend(AHEAD.map(|(collective, algorithm)| call(collective, algorithm, 333)));
        play(&one_job(7, 2, calls, settings), 0..10);
    }
}
