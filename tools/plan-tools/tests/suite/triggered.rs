//! Task lists: their printed form, their queue pairs, and rejected plans. `tools/sim/tests/suite/triggered.rs` tests
//! that NICs carry them out, and `tools/cli/tests/suite/explain.rs` tests the tables of the paper.

use outboard_nic::triggered::list::{HostStep, ListTemplate, TemplatePlace, TransferProtocol, WorkAction};
use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Program, ProgramBuilder, Rank, Span, Topology};
use outboard_plan_tools::triggered::{Lowering, TriggeredLowerError};

use crate::support::{choice, group};

const STANDARD_EXCHANGE: &str = "standard-exchange";
const BRUCK: &str = "bruck";
const RING: &str = "ring";

fn allgather(algorithm: &str, ranks: u32, bytes: u64) -> Vec<Program> {
    group(choice(Collective::Allgather, algorithm), &Arguments::of(&Topology::flat(ranks), bytes))
}

fn templates(programs: &[Program], protocol: TransferProtocol) -> Vec<ListTemplate> {
    let lowering = Lowering::new(programs, &Topology::flat(programs.len() as u32)).unwrap();
    (0..programs.len() as u32).map(|rank| lowering.template(Rank(rank), protocol).unwrap()).collect()
}

/// CD-5: the list posts the receive, sends the clear-to-send, then waits for the peer's clear-to-send.
#[test]
fn the_whole_list_reads_like_this() {
    let programs = allgather(STANDARD_EXCHANGE, 2, 8);
    let rendezvous = &templates(&programs, TransferProtocol::Rendezvous)[0];
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
    // CD-4: a buffer holds 5 bytes here, so a message takes two buffers, each with a send and a receive of its own.
    let eager = &templates(&programs, TransferProtocol::Eager { buffer: 5 })[0];
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

/// CD-4: data in an eager buffer is sent on from there, gathered with data in its final place.
#[test]
fn eager_messages_are_passed_on_from_their_buffers() {
    let programs = allgather(STANDARD_EXCHANGE, 4, 4);
    let template = &templates(&programs, TransferProtocol::Eager { buffer: 6 })[1];
    let sent: Vec<&Vec<TemplatePlace>> = template
        .tasks
        .iter()
        .filter_map(|task| match &task.action {
            WorkAction::Send { from, .. } if task.round == 1 => Some(from),
            _ => None,
        })
        .collect();
    let arrived = |offset, len| TemplatePlace::Arrived { slot: 0, offset, len };
    let own = |offset, len| TemplatePlace::Memory(Span::output(offset, len));
    assert_eq!(sent, [&vec![arrived(0, 4), own(4, 2)], &vec![own(6, 2)]]);
}

/// CD-6: the numbers of the paper for 128 ranks and for 16 leaders.
#[test]
fn queue_pairs_per_rank_are_as_in_the_paper() {
    let count = |algorithm, ranks| {
        let programs = allgather(algorithm, ranks, 1);
        let lowering = Lowering::new(&programs, &Topology::flat(ranks)).unwrap();
        let counts: Vec<usize> = (0..ranks).map(|rank| lowering.queue_pairs(Rank(rank))).collect();
        assert!(counts.iter().all(|count| *count == counts[0]), "{counts:?}");
        counts[0]
    };
    assert_eq!([BRUCK, STANDARD_EXCHANGE, RING].map(|algorithm| count(algorithm, 128)), [42, 21, 6]);
    assert_eq!([BRUCK, STANDARD_EXCHANGE, RING].map(|algorithm| count(algorithm, 16)), [24, 12, 6]);
    // Three ports and two rounds make six partners, each with one connection for both directions or for one.
    assert_eq!(count("standard-exchange:ports=3", 16), 3 * 6);
    assert_eq!(count("bruck:ports=3", 16), 2 * 3 * 6);
}

/// CD-6: of 128 ranks on 16 hosts, leaders have as many queue pairs as 16 ranks of a flat plan; others have none.
#[test]
fn cd_6_leaders_alone_have_queue_pairs() {
    let topology = Topology::of_hosts((0..128).map(|rank| rank / 8)).unwrap();
    for (between, expected) in [(BRUCK, 24), (STANDARD_EXCHANGE, 12), (RING, 6)] {
        let algorithm = choice(Collective::Allgather, &format!("hierarchical:leaders=1,between={between}"));
        let programs = group(algorithm, &Arguments::of(&topology, 1));
        let lowering = Lowering::new(&programs, &topology).unwrap();
        for rank in 0..128 {
            let expected = if rank % 8 == 0 { expected } else { 0 };
            assert_eq!(lowering.queue_pairs(Rank(rank)), expected, "rank {rank}, {between}");
        }
    }
}

/// CD Sec. IV-B: within a host a block is copied to the region once; the leader sends from there and receives there.
#[test]
fn what_ranks_of_a_host_share_goes_through_their_region_in_three_phases() {
    let topology = Topology::of_hosts([0, 0, 1, 1]).unwrap();
    let algorithm = choice(Collective::Allgather, "hierarchical:leaders=1,between=ring");
    let programs = group(algorithm, &Arguments::of(&topology, 4));
    let lowering = Lowering::new(&programs, &topology).unwrap();
    let [leader, leaf] = [0, 1].map(|rank| lowering.template(Rank(rank), TransferProtocol::Rendezvous).unwrap());
    assert_eq!(
        leaf.to_string(),
        "  host: copy input[0..4] to output[4..8]\n\
         \x20 host: copy input[0..4] to shared region[4..8]\n\
         \x20 host: raise arrival flag 1\n\
         \x20 host: await arrival flag 0\n\
         \x20 host: copy shared region[0..4] to output[0..4]\n\
         \x20 host: await arrival flag 2\n\
         \x20 host: copy shared region[8..16] to output[8..16]\n"
    );
    let sent: Vec<&Vec<TemplatePlace>> = leader
        .tasks
        .iter()
        .filter_map(|task| match &task.action {
            WorkAction::Send { from, .. } if !from.is_empty() => Some(from),
            _ => None,
        })
        .collect();
    let own = TemplatePlace::Memory(Span::output(0, 4));
    assert_eq!(sent, [&vec![own, TemplatePlace::Shared { offset: 4, len: 4 }]]);
    // Data of the other host lands where the sibling reads it, and the flag is raised before the leader copies.
    let landed = TemplatePlace::Shared { offset: 8, len: 8 };
    let receives = leader.tasks.iter().any(|task| task.action == WorkAction::Receive(Some(landed)));
    let own = HostStep::Copy { from: landed, to: TemplatePlace::Memory(Span::output(8, 8)) };
    assert!(receives && leader.after.starts_with(&[HostStep::Raise { flag: 2 }, own]), "{leader}");
    assert_eq!((leader.sharing.ranks, leader.sharing.bytes, leaf.sharing), (2, 16, leader.sharing));
}

#[test]
fn plans_that_a_nic_cannot_carry_on_are_refused_by_step() {
    let programs = allgather("multicast:chains=1", 3, 8);
    let refused = Lowering::new(&programs, &Topology::flat(3)).unwrap_err();
    assert!(matches!(&refused, TriggeredLowerError::Multicast { at } if at.rank == Rank(0)), "{refused}");
    // Rank 1 adds its own data to the message of rank 0 and passes the sum on.
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
    let refused = Lowering::new(&programs, &Topology::flat(3)).unwrap_err();
    assert!(
        matches!(&refused, TriggeredLowerError::Between { at } if at.rank == Rank(1) && at.step == sum),
        "{refused}"
    );
    // The host can combine at either end of the network path, and between ranks of its own.
    let lowering = Lowering::new(&programs, &Topology::of_hosts([0, 0, 1]).unwrap()).unwrap();
    let template = lowering.template(Rank(2), TransferProtocol::Eager { buffer: 8 }).unwrap();
    let arrived = TemplatePlace::Arrived { slot: 0, offset: 0, len: 8 };
    let (scratch, output) = (TemplatePlace::Memory(Span::scratch(0, 8)), TemplatePlace::Memory(Span::output(0, 8)));
    assert_eq!(template.before, [HostStep::Copy { from: TemplatePlace::Memory(Span::input(0, 8)), to: output }]);
    let combined = HostStep::Reduce { from: scratch, into: output, from_left: true };
    assert_eq!(template.after, [HostStep::Copy { from: arrived, to: scratch }, combined]);
}
