//! The order-triggered NIC by itself: its descriptors word by word, and what it does with posts and packets that make
//! no sense. That it carries out plans is for the simulator to show.

use outboard_nic::ordered::descriptor::{
    Address, Descriptor, DescriptorError, Fault, Flags, MAX_MESSAGE, PULSES, Piece, Sequence, Source,
};
use outboard_nic::ordered::{Content, Ordered, Packet, Refusal, Settings};
use outboard_nic::{Engine, Failure, JobError, Node, Order, Output, Port};
use outboard_plan::{Element, Operator, Reduction};
use proptest::prelude::*;

const PEER: Source = Source { node: 1, port: 3 };

/// A descriptor that is a sequence of its own.
fn alone() -> Descriptor {
    let flags = Flags::COLLECTIVE.with(Flags::HEAD).with(Flags::TAIL);
    Descriptor { flags, ..Descriptor::default() }
}

fn words(descriptors: &[Descriptor]) -> Vec<u64> {
    let mut words = Vec::new();
    descriptors.iter().for_each(|descriptor| descriptor.write(&mut words));
    words
}

fn read_back(descriptor: &Descriptor) -> Descriptor {
    let sequences = Sequence::read(&words(std::slice::from_ref(descriptor))).expect("it makes sense");
    assert_eq!((sequences.len(), sequences[0].descriptors.len()), (1, 1));
    sequences[0].descriptors[0].clone()
}

fn refused(descriptors: &[Descriptor]) -> (usize, Fault) {
    let DescriptorError { index, fault } = Sequence::read(&words(descriptors)).expect_err("it makes no sense");
    (index, fault)
}

fn host(at: u64, len: u64) -> Vec<Piece> {
    vec![Piece { address: Address::Host(at), len }]
}

/// TH-1: the widths of the fields, and the positions that are documented.
#[test]
fn th_1_words_are_laid_out_as_documented() {
    let base = alone();
    let flags = 0b1110 << 12;
    let sends = |descriptor: Descriptor| Descriptor { flags: base.flags.with(Flags::SENDS), ..descriptor };
    let cases = [
        (Descriptor { await_seq: 31, ..base.clone() }, 31 << 59, flags),
        (Descriptor { job: 255, ..base.clone() }, 255 << 51, flags),
        (Descriptor { seq: 31, ..base.clone() }, 31 << 46, flags),
        (Descriptor { source_port: 2_047, ..base.clone() }, 2_047 << 35, flags),
        (Descriptor { dest_port: 2_047, ..base.clone() }, 2_047 << 24, flags),
        (Descriptor { dest: (1 << 24) - 1, ..base.clone() }, (1 << 24) - 1, flags),
        (sends(base.clone()), 0, flags | 1 << 12),
        (Descriptor { pulse: 4_095, ..base.clone() }, 0, flags | 4_095 << 30),
        (Descriptor { flags: base.flags.with(Flags::ENDS), ..base.clone() }, 0, flags | 1),
        (Descriptor { packet_left: true, ..base.clone() }, 0, flags | 1 << 20),
        (Descriptor { first_source: 15, ..base.clone() }, 0, flags | 15 << 16),
    ];
    for (descriptor, first, second) in cases {
        assert_eq!(words(std::slice::from_ref(&descriptor))[..3], [first, second, 0]);
        assert_eq!(read_back(&descriptor), descriptor);
    }
}

/// TH-1: every field at its extremes, with payload of every kind.
#[test]
fn th_1_descriptors_come_back_as_they_were() {
    let sources: Vec<Source> = (0..16).map(|i| Source { node: (1 << 24) - 1 - i, port: 2_047 - i as u16 }).collect();
    for reduction in Reduction::all() {
        let length = MAX_MESSAGE as u32 / 16 * 16;
        let descriptor = Descriptor {
            flags: alone().flags.with(Flags::REDUCE).with(Flags::SENDS).with(Flags::ENDS),
            count: 16,
            reduction: Some(reduction),
            length,
            sources: sources.clone(),
            operand: host((1 << 63) - 1, length.into()),
            result: vec![Piece { address: Address::Intermediate((1 << 63) - 1), len: length.into() }],
            message: [host(0, 16), host(64, u64::from(length) - 16)].concat(),
            ..alone()
        };
        assert_eq!(read_back(&descriptor), descriptor);
    }
    let stores = Descriptor {
        flags: alone().flags.with(Flags::SWAP_LOCAL_DATA),
        count: 1,
        first_source: 15,
        length: MAX_MESSAGE as u32,
        sources,
        result: host(5, MAX_MESSAGE),
        ..alone()
    };
    assert_eq!(read_back(&stores), stores);
}

/// What makes no sense is refused, with the index of the descriptor.
#[test]
fn descriptors_that_make_no_sense_are_refused_by_index() {
    let part = |flags| Descriptor { flags, ..Descriptor::default() };
    let head = part(Flags::COLLECTIVE.with(Flags::HEAD));
    let inner = part(Flags::COLLECTIVE);
    let tail = part(Flags::COLLECTIVE.with(Flags::TAIL));
    assert_eq!(refused(&[alone(), tail.clone()]), (1, Fault::TailWithoutHead));
    assert_eq!(refused(std::slice::from_ref(&inner)), (0, Fault::Outside));
    assert_eq!(refused(&[head.clone(), head.clone()]), (1, Fault::HeadWithin));
    assert_eq!(refused(&[alone(), head.clone(), inner]), (2, Fault::NoTail));
    assert_eq!(refused(&[Descriptor::default()]), (0, Fault::PointToPoint));
    assert_eq!(refused(&[head.clone(), Descriptor { job: 1, ..tail.clone() }]), (1, Fault::Strays));
    let table = Descriptor { sources: vec![PEER], ..tail.clone() };
    assert_eq!(refused(&[head.clone(), table]), (1, Fault::Table));
    let waits = Descriptor { count: 2, first_source: 1, ..tail };
    let known = Descriptor { sources: vec![PEER, PEER], ..head };
    assert_eq!(refused(&[known, waits]), (1, Fault::Source { first: 1, last: 2, sources: 2 }));
    assert_eq!(refused(&[Descriptor { count: 17, ..alone() }]), (0, Fault::Count { count: 17 }));
    assert_eq!(refused(&[Descriptor { sources: vec![PEER; 17], ..alone() }]), (0, Fault::Sources { sources: 17 }));
    let swaps = Descriptor { flags: alone().flags.with(Flags::SWAP_LOCAL_PORT), ..alone() };
    assert_eq!(refused(&[swaps]), (0, Fault::Flag { flag: "SwapLocalVP" }));
    let length = Fault::Length { what: "operand", bytes: 3, length: 4 };
    assert_eq!(refused(&[Descriptor { length: 4, operand: host(0, 3), ..alone() }]), (0, length));
    let cut = Descriptor { operand: [host(0, 5), host(5, 3)].concat(), ..receives(0) };
    assert_eq!(refused(&[cut]), (0, Fault::Element { what: "operand", bytes: 5, element: 8 }));

    let mut reserved = words(&[alone(), alone()]);
    reserved[4] |= 1 << 60;
    let fault = Fault::Reserved { word: 1, bits: 1 << 60 };
    assert_eq!(Sequence::read(&reserved), Err(DescriptorError { index: 1, fault }));
    assert_eq!(Sequence::read(&reserved[..2]), Err(DescriptorError { index: 0, fault: Fault::Cut }));
}

/// Node 0 with port 0 in job 7 among itself and [`PEER`].
fn nic() -> Ordered {
    let mut nic = Ordered::new(Node(0), Settings::default());
    nic.open(7, Port(0), [Source { node: 0, port: 0 }, PEER]).expect("there is room");
    nic
}

/// Pulse `pulse`: waits for 8 bytes, adds its own to them, and ends.
fn receives(pulse: u64) -> Descriptor {
    Descriptor {
        flags: alone().flags.with(Flags::REDUCE).with(Flags::ENDS),
        job: 7,
        pulse: (pulse % PULSES) as u16,
        count: 1,
        reduction: Reduction::new(Operator::Sum, Element::F64).ok(),
        length: 8,
        sources: vec![PEER],
        operand: host(0, 8),
        result: host(8, 8),
        ..alone()
    }
}

fn data(pulse: u64, seq: u8) -> Packet {
    let content = Content::Data { seq, pulse: (pulse % PULSES) as u16, chunk: 0, bytes: 8 };
    Packet { job: 7, source_port: PEER.port, port: 0, content }
}

type Told = Output<Packet>;

fn outputs(nic: &mut Ordered) -> Vec<Told> {
    std::iter::from_fn(|| nic.poll()).collect()
}

/// TH-2, TH-4: early or late, a packet waits for its descriptor, and the numbers of pulses may begin again.
#[test]
fn packets_may_come_before_and_behind_their_descriptors() {
    let mut nic = nic();
    for pulse in 0..2 * PULSES + 3 {
        let post = words(&[receives(pulse)]);
        if pulse % 2 == 0 {
            nic.handle_packet(0, Node(1), data(pulse, 0));
            nic.post(0, Port(0), &post).expect("it makes sense");
        } else {
            nic.post(0, Port(0), &post).expect("it makes sense");
            nic.handle_packet(0, Node(1), data(pulse, 0));
        }
        let seen = outputs(&mut nic);
        assert!(matches!(seen[0], Output::Order { order: Order::Deliver { .. }, .. }), "{seen:?}");
        assert!(matches!(seen[2], Output::Order { order: Order::Reduce { from_left: false, .. }, .. }), "{seen:?}");
        assert!(matches!(&seen[3..], [Output::Completed { completion, .. }] if completion.result == Ok(())));
        assert!(nic.is_idle());
    }
    assert_eq!(nic.counters(), outboard_nic::ordered::Counters::default());
}

/// Packets that nothing waits for are counted and dropped, and keep no room.
#[test]
fn stray_packets_are_counted_and_dropped() {
    let mut nic = nic();
    nic.post(0, Port(0), &words(&[receives(0)])).expect("it makes sense");
    nic.handle_packet(0, Node(1), Packet { job: 8, ..data(0, 0) });
    nic.handle_packet(0, Node(1), Packet { port: 1, ..data(0, 0) });
    nic.handle_packet(0, Node(2), data(0, 0));
    nic.handle_packet(0, Node(1), data(0, 32));
    assert_eq!(nic.counters().unknown, 4);
    nic.handle_packet(0, Node(1), data(1, 0));
    assert_eq!(nic.counters().ungranted, 1);
    nic.handle_packet(0, Node(1), data(0, 5));
    nic.handle_packet(0, Node(1), data(0, 5));
    assert_eq!(nic.counters().duplicate, 1);
    assert!(!nic.is_idle());
    nic.handle_packet(0, Node(1), data(0, 0));
    assert_eq!(nic.counters().late, 1, "what the pulse did not read");
    outputs(&mut nic);
    assert!(nic.is_idle());
    nic.handle_packet(0, Node(1), data(0, 0));
    assert_eq!(nic.counters().late, 2);
    assert!(nic.is_idle());
}

/// A peer that sends more than a pulse has room for fills nobody else's.
#[test]
fn a_pulse_holds_no_more_than_its_room() {
    let mut nic = nic();
    let most = Settings::default().pulse_packets() as u16;
    for chunk in 0..most + 5 {
        let content = Content::Data { seq: 9, pulse: 0, chunk, bytes: 8 };
        nic.handle_packet(0, Node(1), Packet { content, ..data(0, 0) });
    }
    assert_eq!(nic.counters().ungranted, 5);
    nic.close(7, Port(0)).expect("no call is in flight");
    outputs(&mut nic);
    assert!(nic.is_idle());
}

/// Limits are errors with both numbers, and posts that do not fit their task are refused whole.
#[test]
fn limits_and_posts_that_do_not_fit_are_refused() {
    let mut nic = nic();
    for job in 8..39 {
        nic.open(job, Port(0), [PEER]).expect("there is room for 32");
    }
    let refused = nic.open(39, Port(0), [PEER]).expect_err("there is not");
    assert_eq!(refused, Refusal::Tasks { tasks: 33, most: 32 });
    nic.close(38, Port(0)).expect("no call is in flight");
    let port = Source { node: 1, port: 2_048 };
    assert_eq!(nic.open(39, Port(0), [port]), Err(Refusal::Ports { port: 2_048 }));
    let node = Source { node: 1 << 24, port: 0 };
    assert_eq!(nic.open(39, Port(0), [node]), Err(Refusal::Nodes { node: 1 << 24 }));
    assert_eq!(nic.open(7, Port(0), [PEER]), Err(Refusal::Job(JobError::Open { job: 7, port: Port(0) })));

    let mut post = |descriptors: &[Descriptor]| nic.post(0, Port(0), &words(descriptors)).expect_err("refused");
    let pulse = Refusal::Pulse { job: 7, pulse: 1, expected: 0 };
    assert_eq!(post(&[receives(1)]), pulse);
    assert_eq!(post(&[receives(0), receives(0)]), Refusal::Pulse { job: 7, pulse: 0, expected: 1 });
    let other = Descriptor { source_port: 4, ..receives(0) };
    assert_eq!(post(&[other]), Refusal::Port { port: Port(0), source_port: Port(4) });
    assert_eq!(
        post(&[Descriptor { job: 50, ..receives(0) }]),
        Refusal::Job(JobError::Unknown { job: 50, port: Port(0) })
    );
    let stranger = Descriptor { sources: vec![Source { node: 9, port: 9 }], ..receives(0) };
    let fault = Fault::Stranger { node: 9, port: 9 };
    assert_eq!(post(&[stranger]), Refusal::Descriptor(DescriptorError { index: 0, fault }));
    let (bytes, most) = (1 << 40, Settings::default().intermediate_bytes());
    let beyond = vec![Piece { address: Address::Intermediate(bytes - 8), len: 8 }];
    let fault = Fault::Intermediate { bytes, most };
    let refused = post(&[Descriptor { result: beyond, ..receives(0) }]);
    assert_eq!(refused, Refusal::Descriptor(DescriptorError { index: 0, fault }));
    assert!(outputs(&mut nic).is_empty() && nic.is_idle());
}

/// A dead node ends the calls of its jobs, the peers hear of it once, and nothing is posted to the job any more.
#[test]
fn a_dead_node_ends_what_is_in_flight() {
    let mut nic = nic();
    nic.post(0, Port(0), &words(&[receives(0), receives(1)])).expect("it makes sense");
    assert_eq!(nic.close(7, Port(0)), Err(Refusal::Job(JobError::Busy { job: 7, port: Port(0) })));
    nic.handle_dead(0, Node(2));
    assert!(outputs(&mut nic).is_empty(), "nobody there is in the job");
    nic.handle_dead(0, Node(1));
    nic.handle_dead(0, Node(1));
    let failure = Failure::Dead { node: Node(1) };
    let ended = outputs(&mut nic);
    let failed = |output: &Told| match output {
        Output::Completed { completion, .. } => completion.result == Err(failure),
        Output::Order { .. } | Output::Transmit { .. } | Output::Multicast { .. } => false,
    };
    assert!(ended.len() == 2 && ended.iter().all(failed), "{ended:?}");
    assert_eq!(nic.post(0, Port(0), &words(&[receives(2)])), Err(Refusal::Job(JobError::Failed { job: 7, failure })));
    nic.close(7, Port(0)).expect("it has failed");
    assert!(nic.is_idle());
}

proptest! {
    /// Any words, and sensible ones with damage, are read or refused, and what is read comes back.
    #[test]
    fn any_words_are_read_or_refused(
        mut any in prop::collection::vec(any::<u64>(), 0..40),
        small in prop::collection::vec(0..3u64, 0..40),
        at in 0..20usize,
        bit in 0..64u32,
    ) {
        for (word, small) in any.iter_mut().zip(&small) {
            *word &= u64::MAX << 60 >> (small * 30);
        }
        let mut damaged = words(&[receives(0), receives(1)]);
        let at = at % damaged.len();
        damaged[at] ^= 1 << bit;
        for input in [any, damaged] {
            if let Ok(sequences) = Sequence::read(&input) {
                let descriptors: Vec<Descriptor> = sequences.into_iter().flat_map(|one| one.descriptors).collect();
                prop_assert_eq!(words(&descriptors), &input[..]);
            }
            let mut nic = nic();
            let _ = nic.post(0, Port(0), &input);
            outputs(&mut nic);
        }
    }
}
