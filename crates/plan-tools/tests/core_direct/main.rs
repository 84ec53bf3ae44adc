//! Task lists: what the tables of the paper show of them, how many queue pairs they take, and that a model of the NIC
//! carries them out, late ranks and calls in a row included.

mod nic;
#[path = "../support/mod.rs"]
mod support;

use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Extents, Program, ProgramBuilder, Rank, Span, Topology};
use outboard_plan_tools::contract;
use outboard_plan_tools::core_direct::{Action, HostStep, LowerError, Lowering, Place, Protocol, Template};
use proptest::prelude::*;
use proptest::sample::select;
use support::{choice, group};

const STANDARD_EXCHANGE: &str = "standard-exchange";
const BRUCK: &str = "bruck";
const RING: &str = "ring";

fn allgather(algorithm: &str, ranks: u32, bytes: u64) -> Vec<Program> {
    group(choice(Collective::Allgather, algorithm), &Arguments::of(&Topology::flat(ranks), bytes))
}

fn templates(programs: &[Program], protocol: Protocol) -> Vec<Template> {
    let lowering = Lowering::new(programs).unwrap();
    (0..programs.len() as u32).map(|rank| lowering.template(Rank(rank), protocol).unwrap()).collect()
}

/// The columns of a rank in the tables, step by step.
fn table(template: &Template) -> Vec<Vec<String>> {
    template.table().iter().map(|round| round.iter().map(ToString::to_string).collect()).collect()
}

/// CD-4: Table I, ranks 0 and 1 of 4.
#[test]
fn standard_exchange_with_eager_messages_is_table_1() {
    let programs = allgather(STANDARD_EXCHANGE, 4, 1);
    let templates = templates(&programs, Protocol::Eager { buffer: 1 });
    for (rank, first, second) in [(0, 1, 2), (1, 0, 3)] {
        let step_0 =
            [format!("recv from {first}"), format!("send to {first}"), format!("wait (1 recv CQ) from {first}")];
        let recv = format!("recv from {second}");
        let send = format!("send to {second}");
        let step_1 = [recv.clone(), recv, send.clone(), send, format!("wait (2 recv CQ) from {second}")];
        assert_eq!(table(&templates[rank]), [step_0.to_vec(), step_1.to_vec()]);
    }
}

/// CD-5: Table II, ranks 0 and 1 of 4.
#[test]
fn standard_exchange_by_rendezvous_is_table_2() {
    let programs = allgather(STANDARD_EXCHANGE, 4, 1);
    let templates = templates(&programs, Protocol::Rendezvous);
    for (rank, peers) in [(0, [1, 2]), (1, [0, 3])] {
        let step = |peer| {
            vec![
                format!("recv CTS from {peer}"),
                format!("wait (1 CTS CQ) from {peer}"),
                format!("recv from {peer}"),
                format!("send to {peer}"),
                format!("wait (1 recv CQ) from {peer}"),
            ]
        };
        assert_eq!(table(&templates[rank]), peers.map(step));
    }
}

/// CD-5: the list that runs posts the receive, sends the clear-to-send, then waits for that of the peer.
#[test]
fn the_whole_list_reads_like_this() {
    let programs = allgather(STANDARD_EXCHANGE, 2, 8);
    let rendezvous = &templates(&programs, Protocol::Rendezvous)[0];
    assert_eq!(
        rendezvous.to_string(),
        "  host: copy input[0..8] to output[0..8]\n\
         \x20 round 0\n\
         \x20   receive on data QP of rank 1 into output[8..16]\n\
         \x20   enable 1 to receive on data QP of rank 1\n\
         \x20   send on CTS QP of rank 1\n\
         \x20   enable 1 to send on CTS QP of rank 1\n\
         \x20   receive on CTS QP of rank 1\n\
         \x20   wait for 1 received on CTS QP of rank 1\n\
         \x20   send on data QP of rank 1 from input[0..8]\n\
         \x20   enable 1 to send on data QP of rank 1\n\
         \x20   wait for 1 received on data QP of rank 1\n\
         \x20 round 1\n\
         \x20   wait for 1 sent on CTS QP of rank 1\n\
         \x20   wait for 1 sent on data QP of rank 1\n"
    );
    // CD-4: a buffer takes 5 bytes here, so a message takes two, each with a send and a receive of its own.
    let eager = &templates(&programs, Protocol::Eager { buffer: 5 })[0];
    assert_eq!(
        eager.to_string(),
        "  host: copy input[0..8] to output[0..8]\n\
         \x20 round 0\n\
         \x20   receive on eager QP of rank 1 into eager buffer 0 of the next call\n\
         \x20   receive on eager QP of rank 1 into eager buffer 1 of the next call\n\
         \x20   send on eager QP of rank 1 from input[0..5]\n\
         \x20   send on eager QP of rank 1 from input[5..8]\n\
         \x20   enable 2 to send on eager QP of rank 1\n\
         \x20   wait for 2 received on eager QP of rank 1\n\
         \x20 round 1\n\
         \x20   wait for 2 sent on eager QP of rank 1\n\
         \x20 host: copy eager buffer 0[0..5] to output[8..13]\n\
         \x20 host: copy eager buffer 1[0..3] to output[13..16]\n"
    );
}

/// CD-4: what arrived in a buffer is sent on from there, gathered with what lies in its place.
#[test]
fn eager_messages_are_passed_on_from_their_buffers() {
    let programs = allgather(STANDARD_EXCHANGE, 4, 4);
    let template = &templates(&programs, Protocol::Eager { buffer: 6 })[1];
    let sent: Vec<&Vec<Place>> = template
        .tasks
        .iter()
        .filter_map(|task| match &task.action {
            Action::Send(from) if task.round == 1 => Some(from),
            _ => None,
        })
        .collect();
    let arrived = |offset, len| Place::Arrived { slot: 0, offset, len };
    let own = |offset, len| Place::Memory(Span::output(offset, len));
    assert_eq!(sent, [&vec![arrived(0, 4), own(4, 2)], &vec![own(6, 2)]]);
}

/// CD-6, as the paper counts for 128 ranks and for 16 leaders.
#[test]
fn queue_pairs_per_rank_are_as_in_the_paper() {
    let count = |algorithm, ranks| {
        let programs = allgather(algorithm, ranks, 1);
        let lowering = Lowering::new(&programs).unwrap();
        let counts: Vec<usize> = (0..ranks).map(|rank| lowering.queue_pairs(Rank(rank))).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        counts[0]
    };
    assert_eq!([BRUCK, STANDARD_EXCHANGE, RING].map(|algorithm| count(algorithm, 128)), [42, 21, 6]);
    assert_eq!([BRUCK, STANDARD_EXCHANGE, RING].map(|algorithm| count(algorithm, 16)), [24, 12, 6]);
    // Three ports, two rounds: twice three partners, each for both directions or for one.
    assert_eq!(count("standard-exchange:ports=3", 16), 3 * 6);
    assert_eq!(count("bruck:ports=3", 16), 2 * 3 * 6);
}

/// CD-3: one template serves blocks of every size.
#[test]
fn a_template_of_one_byte_blocks_moves_blocks_of_any_size() {
    let topology = Topology::flat(16);
    let arguments = Arguments::of(&topology, 1);
    for algorithm in [STANDARD_EXCHANGE, BRUCK, RING, "standard-exchange:ports=3"] {
        let algorithm = choice(Collective::Allgather, algorithm);
        for protocol in [Protocol::Eager { buffer: 1 }, Protocol::Rendezvous] {
            for unit in [1, 7, 4096] {
                run_scaled(algorithm, &arguments, unit, protocol, 3, &[5, 0, 11]);
            }
        }
    }
}

#[test]
fn plans_that_a_nic_cannot_carry_on_are_refused_by_step() {
    let programs = allgather("multicast:chains=1", 3, 8);
    let refused = Lowering::new(&programs).unwrap_err();
    assert!(matches!(&refused, LowerError::Multicast { at } if at.rank == Rank(0)), "{refused}");
    // Rank 1 adds its own to what comes from rank 0 and passes the sum on.
    let mut first = ProgramBuilder::new(Rank(0), 3);
    first.buffers(8, 0, 0).send(Rank(1), 0, Span::input(0, 8), &[]);
    let mut middle = ProgramBuilder::new(Rank(1), 3);
    middle.buffers(8, 0, 8);
    let received = middle.recv(Rank(0), 0, Span::scratch(0, 8), &[]);
    let sum = middle.reduce(Span::input(0, 8), Span::scratch(0, 8), false, &[received]);
    middle.send(Rank(2), 0, Span::scratch(0, 8), &[sum]);
    let mut last = ProgramBuilder::new(Rank(2), 3);
    last.buffers(8, 8, 8);
    let copied = last.copy(Span::input(0, 8), Span::output(0, 8), &[]);
    let received = last.recv(Rank(1), 0, Span::scratch(0, 8), &[]);
    last.reduce(Span::scratch(0, 8), Span::output(0, 8), true, &[received, copied]);
    let programs = [first.build(), middle.build(), last.build()];
    let lowering = Lowering::new(&programs).unwrap();
    let refused = lowering.template(Rank(1), Protocol::Rendezvous).unwrap_err();
    assert!(matches!(&refused, LowerError::Between { at } if at.rank == Rank(1) && at.step == sum), "{refused}");
    // At either end the host combines.
    let template = lowering.template(Rank(2), Protocol::Eager { buffer: 8 }).unwrap();
    let arrived = Place::Arrived { slot: 0, offset: 0, len: 8 };
    let (scratch, output) = (Place::Memory(Span::scratch(0, 8)), Place::Memory(Span::output(0, 8)));
    assert_eq!(template.before, [HostStep::Copy { from: Place::Memory(Span::input(0, 8)), to: output }]);
    let combined = HostStep::Reduce { from: scratch, into: output, from_left: true };
    assert_eq!(template.after, [HostStep::Copy { from: arrived, to: scratch }, combined]);
    assert_eq!(lowering.template(Rank(2), Protocol::Eager { buffer: 0 }), Err(LowerError::NoBuffer));
}

/// Runs the lists of a plan on the model of the NIC. Several calls in a row are of a collective that nobody leaves
/// before all have come, since others let ranks run ahead of their peers' buffers.
fn run(choice: Choice, arguments: &Arguments<'_>, protocol: Protocol, calls: u32, choices: &[usize]) {
    run_scaled(choice, arguments, 1, protocol, calls, choices);
}

/// The same with `unit` bytes for each byte of the plan.
fn run_scaled(choice: Choice, arguments: &Arguments<'_>, unit: u64, protocol: Protocol, calls: u32, choices: &[usize]) {
    let programs = group(choice, arguments);
    let contract = |rank| contract(choice, arguments, rank).unwrap();
    nic::Group::new(&programs, templates(&programs, protocol), unit, calls > 1, contract).run(calls, choices);
}

fn protocols() -> impl Strategy<Value = Protocol> {
    prop_oneof![Just(Protocol::Rendezvous), (1..20u64).prop_map(|buffer| Protocol::Eager { buffer })]
}

/// Plans that pass on what they receive.
const OTHERS: [(Collective, &str); 8] = [
    (Collective::Broadcast, "binomial"),
    (Collective::Broadcast, "k-nomial:radix=3"),
    (Collective::Broadcast, "chain:segment=7"),
    (Collective::Broadcast, "double-tree:segment=5"),
    (Collective::Broadcast, "scatter-allgather"),
    (Collective::Alltoall, "pairwise"),
    (Collective::Gather, "linear"),
    (Collective::Gather, "binomial"),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// CD-1, CD-2, CD-4, CD-5: lists of every allgather end with the right bytes, call after call, whoever is late.
    #[test]
    fn allgathers_end_right_on_the_model_of_the_nic(
        algorithm in select(vec!["ring", "neighbour-exchange", "standard-exchange", "bruck"]),
        ports in 1..4u32,
        sizes in prop::collection::vec(0..12u64, 1..18),
        in_place: bool,
        protocol in protocols(),
        choices in prop::collection::vec(0..18usize, 1..400),
    ) {
        let mut algorithm = choice(Collective::Allgather, algorithm);
        // Some have no ports.
        let _ = algorithm.set("ports", &ports.to_string());
        let extents = Extents::uneven(sizes).unwrap();
        let topology = Topology::flat(extents.ranks());
        let arguments = Arguments { extents: Some(&extents), in_place, ..Arguments::of(&topology, 0) };
        // Who gets nothing from a rank may leave before it comes.
        let calls = if extents.sizes().all(|bytes| bytes > 0) { 3 } else { 1 };
        run(algorithm, &arguments, protocol, calls, &choices);
    }

    /// CD-2: blocks cross between hosts once, through leaders.
    #[test]
    fn hierarchical_allgathers_end_right_on_the_model_of_the_nic(
        hosts in prop::collection::vec(0..4u32, 1..12),
        leaders in 1..3u32,
        protocol in protocols(),
        choices in prop::collection::vec(0..12usize, 1..400),
    ) {
        let topology = Topology::of_hosts(hosts).unwrap();
        let algorithm = format!("hierarchical:leaders={leaders},between=bruck");
        run(choice(Collective::Allgather, &algorithm), &Arguments::of(&topology, 5), protocol, 3, &choices);
    }

    /// Nobody leaves a barrier before all have called.
    #[test]
    fn barriers_hold_on_the_model_of_the_nic(
        ranks in 1..20u32,
        ports in 1..4u32,
        protocol in protocols(),
        choices in prop::collection::vec(0..20usize, 1..400),
    ) {
        let algorithm = choice(Collective::Barrier, &format!("dissemination:ports={ports}"));
        run(algorithm, &Arguments::of(&Topology::flat(ranks), 0), protocol, 3, &choices);
    }

    /// Other plans that pass on what they receive have lists, too.
    #[test]
    fn broadcasts_alltoalls_and_gathers_end_right_on_the_model_of_the_nic(
        ranks in 1..14u32,
        root: u32,
        bytes in 0..40u64,
        protocol in protocols(),
        choices in prop::collection::vec(0..14usize, 1..400),
    ) {
        let topology = Topology::flat(ranks);
        let arguments = Arguments { root: Rank(root % ranks), ..Arguments::of(&topology, bytes) };
        for (collective, algorithm) in OTHERS {
            run(choice(collective, algorithm), &arguments, protocol, 1, &choices);
        }
    }
}
