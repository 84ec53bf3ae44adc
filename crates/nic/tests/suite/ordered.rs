//! The order-triggered NIC by itself: its descriptors word by word, and what it does with posts and packets that make
//! no sense. That it carries out plans is for the simulator to show.

use outboard_nic::ordered::descriptor::{
    Address, Descriptor, DescriptorError, Fault, Flags, MAX_INLINE, MAX_MESSAGE, PULSES, Piece, Posted, Source,
};
use outboard_nic::ordered::{Content, Ordered, Packet, Refusal, Settings};
use outboard_nic::{Engine, Failure, JobError, Node, Order, Output, Port, Region};
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
    let posted = Posted::read(&words(std::slice::from_ref(descriptor))).expect("it makes sense");
    assert_eq!((posted.len(), posted[0].descriptors().len()), (1, 1));
    posted[0].descriptors()[0].clone()
}

fn refused(descriptors: &[Descriptor]) -> (usize, Fault) {
    let DescriptorError { index, fault } = Posted::read(&words(descriptors)).expect_err("it makes no sense");
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
    let carries = Descriptor {
        flags: Flags::SWAP_REMOTE_DATA.with(Flags::ENDS),
        length: MAX_INLINE as u32,
        inline: vec![u64::MAX; 8],
        dest_port: 2_047,
        ..Descriptor::default()
    };
    assert_eq!(read_back(&carries), carries);
    let names = Descriptor {
        flags: Flags::SWAP_REMOTE_ADDRESS,
        length: MAX_MESSAGE as u32,
        result: host(5, MAX_MESSAGE),
        ..Descriptor::default()
    };
    assert_eq!(read_back(&names), names);
    let answers = Descriptor {
        flags: alone().flags.with(Flags::SENDS).with(Flags::SWAP_LOCAL_PORT),
        count: 1,
        length: 1,
        sources: vec![PEER],
        inline: vec![9],
        ..alone()
    };
    assert_eq!(read_back(&answers), answers);
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
    assert_eq!(refused(&[head.clone(), Descriptor::default()]), (1, Fault::DirectWithin));
    assert_eq!(refused(&[head.clone(), Descriptor { job: 1, ..tail.clone() }]), (1, Fault::Strays));
    let table = Descriptor { sources: vec![PEER], ..tail.clone() };
    assert_eq!(refused(&[head.clone(), table]), (1, Fault::Table));
    let waits = Descriptor { count: 2, first_source: 1, ..tail };
    let known = Descriptor { sources: vec![PEER, PEER], ..head };
    assert_eq!(refused(&[known, waits]), (1, Fault::Source { first: 1, last: 2, sources: 2 }));
    assert_eq!(refused(&[Descriptor { count: 17, ..alone() }]), (0, Fault::Count { count: 17 }));
    assert_eq!(refused(&[Descriptor { sources: vec![PEER; 17], ..alone() }]), (0, Fault::Sources { sources: 17 }));
    let length = Fault::Length { what: "operand", bytes: 3, length: 4 };
    assert_eq!(refused(&[Descriptor { length: 4, operand: host(0, 3), ..alone() }]), (0, length));
    let cut = Descriptor { operand: [host(0, 5), host(5, 3)].concat(), ..receives(0) };
    assert_eq!(refused(&[cut]), (0, Fault::Element { what: "operand", bytes: 5, element: 8 }));

    let mut reserved = words(&[alone(), alone()]);
    reserved[4] |= 1 << 60;
    let fault = Fault::Reserved { word: 1, bits: 1 << 60 };
    assert_eq!(Posted::read(&reserved), Err(DescriptorError { index: 1, fault }));
    assert_eq!(Posted::read(&reserved[..2]), Err(DescriptorError { index: 0, fault: Fault::Cut }));
}

/// The paths from point to point and of collectives have flags of their own, and what is inline fits a descriptor.
#[test]
fn descriptors_of_one_path_do_not_look_like_those_of_the_other() {
    let with = |flags| Descriptor { flags, ..Descriptor::default() };
    let flag = |flag, c| (0, Fault::Flag { flag, c });
    assert_eq!(refused(&[with(Flags::SENDS)]), flag("CP", 0));
    assert_eq!(refused(&[with(Flags::SWAP_LOCAL_PORT)]), flag("SwapLocalVP", 0));
    assert_eq!(refused(&[with(alone().flags.with(Flags::SWAP_REMOTE_DATA))]), flag("SwapRemoteData", 1));
    assert_eq!(refused(&[with(alone().flags.with(Flags::SWAP_REMOTE_ADDRESS))]), flag("SwapRemoteAddr", 1));
    assert_eq!(refused(&[with(Flags::SWAP_REMOTE_DATA.with(Flags::SWAP_REMOTE_ADDRESS))]), (0, Fault::Both));
    assert_eq!(refused(&[Descriptor { seq: 1, ..Descriptor::default() }]), (0, Fault::Sequenced));
    let nic = vec![Piece { address: Address::Intermediate(0), len: 8 }];
    let names = |result| Descriptor { length: 8, result, ..with(Flags::SWAP_REMOTE_ADDRESS) };
    assert_eq!(refused(&[names(nic)]), (0, Fault::NotHost));
    assert_eq!(refused(&[names([host(0, 4), host(8, 4)].concat())]), (0, Fault::Place { pieces: 2 }));
    let length = Fault::Length { what: "result", bytes: 0, length: 8 };
    assert_eq!(refused(&[names(Vec::new())]), (0, length));

    let inline = |length: u32, words| Descriptor { length, inline: vec![0; words], ..with(Flags::SWAP_REMOTE_DATA) };
    assert_eq!(refused(&[inline(65, 9)]), (0, Fault::Inline { bytes: 65 }));
    assert_eq!(refused(&[inline(0, 1)]), (0, Fault::Inline { bytes: 0 }));
    assert_eq!(refused(&[inline(9, 1)]), (0, Fault::Cut));
    assert_eq!(refused(&[Descriptor { flags: Flags::default(), ..inline(8, 1) }]), (0, Fault::Inline { bytes: 8 }));
    let answers = alone().flags.with(Flags::SENDS).with(Flags::SWAP_LOCAL_PORT);
    assert_eq!(refused(&[with(answers)]), (0, Fault::Answer));
    let told = Descriptor { count: 1, sources: vec![PEER], dest_port: 3, ..with(answers) };
    assert_eq!(refused(&[told]), (0, Fault::Answer));
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

/// From point to point: names a place of `len` bytes to [`PEER`], or sends as many from memory.
fn direct(flags: Flags, len: u64) -> Descriptor {
    let (dest, dest_port) = (PEER.node, PEER.port);
    let (message, result) =
        if flags.has(Flags::SWAP_REMOTE_DATA) { (host(64, len), Vec::new()) } else { (Vec::new(), host(128, len)) };
    Descriptor { flags, job: 7, dest, dest_port, length: len as u32, message, result, ..Descriptor::default() }
}

fn from_peer(content: Content) -> Packet {
    Packet { job: 7, source_port: PEER.port, port: 0, content }
}

/// What comes from point to point, by number and chunk.
fn chunk(number: u64, chunk: u16, bytes: u32) -> Packet {
    from_peer(Content::Direct { number, chunk, bytes })
}

fn completions(outputs: &[Told]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Completed { .. })).count()
}

/// TH-1: what is from point to point leaves when its place is named, past a sequence of its port that waits, and
/// touches no buffer; the end of its call is told behind those before.
#[test]
fn th_1_point_to_point_does_not_wait_behind_a_suspended_sequence() {
    let mut nic = nic();
    let sends = direct(Flags::SWAP_REMOTE_DATA.with(Flags::ENDS), 1_500);
    nic.post(0, Port(0), &words(&[receives(0), sends])).expect("it makes sense");
    assert_eq!(outputs(&mut nic), [], "one waits for its packet, one for its place");
    nic.handle_packet(0, Node(1), from_peer(Content::Places { before: 1 }));
    let left = outputs(&mut nic);
    let carried: Vec<(u64, Content)> = left
        .iter()
        .map(|output| match output {
            Output::Transmit { packet, payload, .. } => (payload[0].address, packet.content),
            other => panic!("{other:?}"),
        })
        .collect();
    let content = |chunk, bytes| Content::Direct { number: 0, chunk, bytes };
    assert_eq!(carried, [(64, content(0, 1_024)), (64 + 1_024, content(1, 476))]);
    assert_eq!(nic.occupancy(), 0);
    nic.handle_packet(0, Node(1), data(0, 0));
    assert_eq!(completions(&outputs(&mut nic)), 2, "both calls have ended now");
    assert!(nic.is_idle());
}

/// TH-1: a message of few bytes lies in its descriptor, and so leaves without a look at the host's memory.
#[test]
fn th_1_what_a_descriptor_carries_leaves_from_the_nic() {
    let mut nic = nic();
    let carries = Descriptor { message: Vec::new(), inline: vec![0x1122, 3], ..direct(Flags::SWAP_REMOTE_DATA, 11) };
    let head = Flags::COLLECTIVE.with(Flags::HEAD).with(Flags::TAIL).with(Flags::SENDS);
    let in_sequence = Descriptor { flags: head, ..carries.clone() };
    nic.handle_packet(0, Node(1), from_peer(Content::Places { before: 1 }));
    nic.post(0, Port(0), &words(&[carries, in_sequence])).expect("it makes sense");
    let told = outputs(&mut nic);
    let [one, other] = [&told[..3], &told[3..]];
    for three in [one, other] {
        let (Output::Order { order: first, .. }, Output::Order { order: second, .. }) = (&three[0], &three[1]) else {
            panic!("{three:?}");
        };
        let (Order::Write { word: 0x1122, to: low }, Order::Write { word: 3, to: high }) = (first, second) else {
            panic!("{first:?}, {second:?}");
        };
        let Output::Transmit { payload, .. } = &three[2] else { panic!("{three:?}") };
        assert_eq!((low.len, high.len, high.address), (8, 3, low.address + 8));
        assert_eq!((payload.len(), payload[0].address, payload[0].len), (1, low.address, 11));
        assert_eq!((low.region, low.address), (Region::Nic, Ordered::memory_bytes(&Settings::default()) - MAX_INLINE));
    }
}

/// TH-1: with SwapLocalVP a message goes to the port of the last packet that its descriptor has read.
#[test]
fn th_1_an_answer_goes_to_the_port_that_was_heard() {
    let mut nic = nic();
    let flags = receives(0).flags.with(Flags::SENDS).with(Flags::SWAP_LOCAL_PORT);
    let answers = Descriptor { flags, dest: 1, message: host(8, 8), ..receives(0) };
    nic.post(0, Port(0), &words(&[answers])).expect("it makes sense");
    nic.handle_packet(0, Node(1), data(0, 0));
    let to = outputs(&mut nic).into_iter().find_map(|output| match output {
        Output::Transmit { to, packet, .. } => Some((to, packet.port)),
        _ => None,
    });
    assert_eq!(to, Some((Node(1), PEER.port)));
}

/// TH-1: SwapRemoteAddr names places to the peer in their order; chunks go there in any, each once, and nowhere else.
#[test]
fn th_1_what_comes_from_point_to_point_goes_to_its_named_place() {
    let mut nic = nic();
    let names = Flags::SWAP_REMOTE_ADDRESS;
    nic.post(0, Port(0), &words(&[direct(names, 2_000), direct(names.with(Flags::ENDS), 0)])).expect("it makes sense");
    let told: Vec<Content> = outputs(&mut nic)
        .into_iter()
        .map(|output| match output {
            Output::Transmit { packet, .. } => packet.content,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(told, [1, 2].map(|before| Content::Places { before }));
    for (packet, node) in [(chunk(0, 2, 8), 1), (chunk(0, 1, 975), 1), (chunk(2, 0, 0), 1), (chunk(0, 0, 1_024), 2)] {
        nic.handle_packet(0, Node(node), packet);
    }
    nic.handle_packet(0, Node(1), chunk(0, 1, 976));
    nic.handle_packet(0, Node(1), chunk(0, 1, 976));
    nic.handle_packet(0, Node(1), chunk(1, 0, 0));
    let counted = nic.counters();
    assert_eq!((counted.ungranted, counted.unknown, counted.duplicate), (3, 1, 1));
    let placed = outputs(&mut nic);
    let [Output::Order { order: Order::Deliver { to }, .. }] = placed[..] else { panic!("{placed:?}") };
    assert_eq!((to.region, to.address, to.len), (Region::Host(Port(0)), 128 + 1_024, 976));
    assert!(!nic.is_idle());
    nic.handle_packet(0, Node(1), chunk(0, 0, 1_024));
    assert_eq!(completions(&outputs(&mut nic)), 1);
    nic.handle_packet(0, Node(1), chunk(0, 0, 1_024));
    assert_eq!(nic.counters().late, 1);
    assert!(nic.is_idle() && nic.occupancy() == 0);
}

/// A dead node ends what is from point to point, too, and its places are gone.
#[test]
fn a_dead_node_ends_messages_from_point_to_point() {
    let mut nic = nic();
    let post = [direct(Flags::SWAP_REMOTE_ADDRESS, 8), direct(Flags::SWAP_REMOTE_DATA.with(Flags::ENDS), 8)];
    nic.post(0, Port(0), &words(&post)).expect("it makes sense");
    assert_eq!(nic.close(7, Port(0)), Err(Refusal::Job(JobError::Busy { job: 7, port: Port(0) })));
    outputs(&mut nic);
    nic.handle_dead(0, Node(1));
    assert_eq!(completions(&outputs(&mut nic)), 1);
    nic.handle_packet(0, Node(1), chunk(0, 0, 8));
    assert!(outputs(&mut nic).is_empty() && nic.counters().unknown == 1);
    nic.close(7, Port(0)).expect("it has failed");
    assert!(nic.is_idle());
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
            if let Ok(posted) = Posted::read(&input) {
                let descriptors: Vec<Descriptor> = posted.iter().flat_map(Posted::descriptors).cloned().collect();
                prop_assert_eq!(words(&descriptors), &input[..]);
            }
            let mut nic = nic();
            let _ = nic.post(0, Port(0), &input);
            outputs(&mut nic);
        }
    }
}
