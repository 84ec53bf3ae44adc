//! The order-triggered NIC alone: reactions to descriptors and packets. The simulator tests that NICs carry out plans.

use outboard_nic::ordered::descriptor::{
    Descriptor, DescriptorAddress, DescriptorPiece, Flags, MAX_INLINE, PULSES, PortAddress,
};
use outboard_nic::ordered::{OrderedContent, OrderedEngine, OrderedError, OrderedPacket, OrderedSettings};
use outboard_nic::{AddressSpace, Executor, JobError, JobFailure, NicEngine, NicOrder, NodeId, Output, Port};
use outboard_plan::{Element, Operator, Reduction};

const PEER: PortAddress = PortAddress { node: 1, port: 3 };

/// A descriptor that is a sequence of its own.
fn alone() -> Descriptor {
    let flags = Flags::COLLECTIVE.with(Flags::HEAD).with(Flags::TAIL);
    Descriptor { flags, ..Descriptor::default() }
}

fn host(at: u64, len: u64) -> Vec<DescriptorPiece> {
    vec![DescriptorPiece { address: DescriptorAddress::Host(at), len }]
}

/// Node 0, with port 0 in job 7 together with [`PEER`].
fn nic() -> OrderedEngine {
    let mut nic = OrderedEngine::new(NodeId(0), OrderedSettings::default());
    nic.open(7, Port(0), [PortAddress { node: 0, port: 0 }, PEER]).expect("there is room");
    nic
}

/// A descriptor that waits for 8 bytes in pulse `pulse`, adds its own to them, and ends.
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

fn data(pulse: u64) -> OrderedPacket {
    let content = OrderedContent::Data { seq: 0, pulse: (pulse % PULSES) as u16, chunk: 0, bytes: 8 };
    OrderedPacket { job: 7, source_port: PEER.port, port: 0, content }
}

type NicOutput = Output<OrderedPacket>;

fn outputs(nic: &mut OrderedEngine) -> Vec<NicOutput> {
    std::iter::from_fn(|| nic.poll()).collect()
}

/// TH-2, TH-4: an early or late packet waits for its descriptor, also when pulse numbers repeat.
#[test]
fn packets_before_and_after_their_descriptor_complete_the_call() {
    let mut nic = nic();
    for pulse in 0..2 * PULSES + 3 {
        let post = [receives(pulse)];
        if pulse % 2 == 0 {
            nic.handle_packet(0, NodeId(1), data(pulse));
            nic.post(0, Port(0), &post).expect("it makes sense");
        } else {
            nic.post(0, Port(0), &post).expect("it makes sense");
            nic.handle_packet(0, NodeId(1), data(pulse));
        }
        let seen = outputs(&mut nic);
        assert!(matches!(seen[0], Output::Order { order: NicOrder::Deliver { .. }, .. }), "{seen:?}");
        assert!(matches!(seen[2], Output::Order { order: NicOrder::Reduce { from_left: false, .. }, .. }), "{seen:?}");
        assert!(matches!(&seen[3..], [Output::Completed { completion, .. }] if completion.result == Ok(())));
        assert!(nic.is_idle());
    }
}

/// A point-to-point descriptor that names a place of `len` bytes to [`PEER`], or sends as many from memory.
fn direct(flags: Flags, len: u64) -> Descriptor {
    let (dest, dest_port) = (PEER.node, PEER.port);
    let (message, result) =
        if flags.has(Flags::SWAP_REMOTE_DATA) { (host(64, len), Vec::new()) } else { (Vec::new(), host(128, len)) };
    Descriptor { flags, job: 7, dest, dest_port, length: len as u32, message, result, ..Descriptor::default() }
}

fn from_peer(content: OrderedContent) -> OrderedPacket {
    OrderedPacket { job: 7, source_port: PEER.port, port: 0, content }
}

/// A chunk of a point-to-point message, by number and chunk.
fn chunk(number: u64, chunk: u16, bytes: u32) -> OrderedPacket {
    from_peer(OrderedContent::Direct { number, chunk, bytes })
}

fn completions(outputs: &[NicOutput]) -> usize {
    outputs.iter().filter(|output| matches!(output, Output::Completed { .. })).count()
}

/// TH-1: a point-to-point message leaves when its place is named, past a waiting sequence of its port, and touches no
/// buffer. The end of its call is reported after the calls before.
#[test]
fn th_1_point_to_point_does_not_wait_behind_a_suspended_sequence() {
    let mut nic = nic();
    let sends = direct(Flags::SWAP_REMOTE_DATA.with(Flags::ENDS), 1_500);
    nic.post(0, Port(0), &[receives(0), sends]).expect("it makes sense");
    assert_eq!(outputs(&mut nic), [], "one waits for its packet, one for its place");
    nic.handle_packet(0, NodeId(1), from_peer(OrderedContent::Places { before: 1 }));
    let left = outputs(&mut nic);
    let carried: Vec<(u64, OrderedContent)> = left
        .iter()
        .map(|output| match output {
            Output::Transmit { packet, payload, .. } => (payload[0].address, packet.content),
            other => panic!("{other:?}"),
        })
        .collect();
    let content = |chunk, bytes| OrderedContent::Direct { number: 0, chunk, bytes };
    assert_eq!(carried, [(64, content(0, 1_024)), (64 + 1_024, content(1, 476))]);
    assert_eq!(nic.occupancy(), 0);
    nic.handle_packet(0, NodeId(1), data(0));
    assert_eq!(completions(&outputs(&mut nic)), 2, "both calls have ended now");
    assert!(nic.is_idle());
}

/// TH-1: a message of few bytes lies in its descriptor, so it leaves without a read of the host's memory.
#[test]
fn th_1_inline_payload_is_sent_from_nic_memory() {
    let mut nic = nic();
    let carries = Descriptor { message: Vec::new(), inline: vec![0x1122, 3], ..direct(Flags::SWAP_REMOTE_DATA, 11) };
    let head = Flags::COLLECTIVE.with(Flags::HEAD).with(Flags::TAIL).with(Flags::SENDS);
    let in_sequence = Descriptor { flags: head, ..carries.clone() };
    nic.handle_packet(0, NodeId(1), from_peer(OrderedContent::Places { before: 1 }));
    nic.post(0, Port(0), &[carries, in_sequence]).expect("it makes sense");
    let seen = outputs(&mut nic);
    let [one, other] = [&seen[..3], &seen[3..]];
    for three in [one, other] {
        let (Output::Order { order: first, .. }, Output::Order { order: second, .. }) = (&three[0], &three[1]) else {
            panic!("{three:?}");
        };
        let (NicOrder::Write { word: 0x1122, to: low }, NicOrder::Write { word: 3, to: high }) = (first, second) else {
            panic!("{first:?}, {second:?}");
        };
        let Output::Transmit { payload, .. } = &three[2] else { panic!("{three:?}") };
        assert_eq!((low.len, high.len, high.address), (8, 3, low.address + 8));
        assert_eq!((payload.len(), payload[0].address, payload[0].len), (1, low.address, 11));
        assert_eq!(
            (low.region, low.address),
            (AddressSpace::Nic, OrderedEngine::memory_bytes(&OrderedSettings::default()) - MAX_INLINE)
        );
    }
}

/// TH-1: with SwapLocalVP a message goes to the port of the last packet that its descriptor has read.
#[test]
fn th_1_swap_local_vp_replies_to_the_port_of_the_last_read_packet() {
    let mut nic = nic();
    let flags = receives(0).flags.with(Flags::SENDS).with(Flags::SWAP_LOCAL_PORT);
    let answers = Descriptor { flags, dest: 1, message: host(8, 8), ..receives(0) };
    nic.post(0, Port(0), &[answers]).expect("it makes sense");
    nic.handle_packet(0, NodeId(1), data(0));
    let to = outputs(&mut nic).into_iter().find_map(|output| match output {
        Output::Transmit { to, packet, .. } => Some((to, packet.port)),
        _ => None,
    });
    assert_eq!(to, Some((NodeId(1), PEER.port)));
}

/// TH-1: SwapRemoteAddr names places to the peer in order. Chunks go only there, in any order, each once.
#[test]
fn th_1_point_to_point_chunks_are_written_to_their_named_place() {
    let mut nic = nic();
    let names = Flags::SWAP_REMOTE_ADDRESS;
    nic.post(0, Port(0), &[direct(names, 2_000), direct(names.with(Flags::ENDS), 0)]).expect("it makes sense");
    let seen: Vec<OrderedContent> = outputs(&mut nic)
        .into_iter()
        .map(|output| match output {
            Output::Transmit { packet, .. } => packet.content,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(seen, [1, 2].map(|before| OrderedContent::Places { before }));
    nic.handle_packet(0, NodeId(1), chunk(0, 1, 976));
    nic.handle_packet(0, NodeId(1), chunk(1, 0, 0));
    let placed = outputs(&mut nic);
    let [Output::Order { order: NicOrder::Deliver { to }, .. }] = placed[..] else { panic!("{placed:?}") };
    assert_eq!((to.region, to.address, to.len), (AddressSpace::Host(Port(0)), 128 + 1_024, 976));
    assert!(!nic.is_idle());
    nic.handle_packet(0, NodeId(1), chunk(0, 0, 1_024));
    assert_eq!(completions(&outputs(&mut nic)), 1);
    assert!(nic.is_idle() && nic.occupancy() == 0);
}

/// The unit that stores a packet of this job.
fn unit_of(nic: &mut OrderedEngine, job: u8, chunk: u16) -> u16 {
    let content = OrderedContent::Data { seq: 0, pulse: 0, chunk, bytes: 8 };
    nic.handle_packet(0, NodeId(1), OrderedPacket { job, ..from_peer(content) });
    let seen = outputs(nic);
    let [Output::Order { by: Executor::Nic(unit), .. }] = seen[..] else { panic!("job {job}: {seen:?}") };
    unit
}

/// TH-3: a task goes to the unit with the fewest tasks, then with the fewest packets, and stays there until it is idle.
/// TH-7: 32 tasks share 8 units.
#[test]
fn th_3_units_share_tasks_by_load() {
    let mut nic = OrderedEngine::new(NodeId(0), OrderedSettings::default());
    (0..32).for_each(|job| nic.open(job, Port(0), [PEER]).expect("there is room for 32"));
    (0..8).for_each(|job| assert_eq!(unit_of(&mut nic, job, 0), u16::from(job)));
    for job in [0, 1, 2, 3, 4, 6, 7] {
        assert_eq!(unit_of(&mut nic, job, 1), u16::from(job), "a task stays with its unit");
    }
    assert_eq!([8, 9].map(|job| unit_of(&mut nic, job, 0)), [5, 0], "unit 5 holds the fewest packets");
    nic.post(0, Port(0), &[Descriptor { job: 5, ..receives(0) }]).expect("it makes sense");
    assert_eq!(completions(&outputs(&mut nic)), 1);
    assert_eq!(unit_of(&mut nic, 10, 0), 5, "job 5 has left its unit");
    let mut tasks = [2, 1, 1, 1, 1, 2, 1, 1];
    (11..32).for_each(|job| tasks[usize::from(unit_of(&mut nic, job, 0))] += 1);
    tasks.sort_unstable();
    assert_eq!(tasks, [3, 4, 4, 4, 4, 4, 4, 4]);
}

/// TH-7: exceeded limits are errors with both numbers.
#[test]
fn posts_beyond_a_limit_of_the_nic_are_rejected() {
    let mut nic = nic();
    for job in 8..39 {
        nic.open(job, Port(0), [PEER]).expect("there is room for 32");
    }
    assert_eq!(nic.open(39, Port(0), [PEER]), Err(OrderedError::Tasks { tasks: 33, most: 32 }));
    let mut nic = OrderedEngine::new(NodeId(0), OrderedSettings::default());
    let port = PortAddress { node: 1, port: 2_048 };
    assert_eq!(nic.open(39, Port(0), [port]), Err(OrderedError::Ports { port: 2_048 }));
}

/// A dead node ends the calls of its jobs on both paths, and the job accepts no more posts.
#[test]
fn dead_node_fails_calls_in_flight_on_both_paths() {
    let mut nic = nic();
    let names = direct(Flags::SWAP_REMOTE_ADDRESS, 8);
    let sends = direct(Flags::SWAP_REMOTE_DATA.with(Flags::ENDS), 8);
    nic.post(0, Port(0), &[receives(0), receives(1), names, sends]).expect("it makes sense");
    outputs(&mut nic);
    nic.handle_dead(0, NodeId(2));
    assert!(outputs(&mut nic).is_empty(), "nobody there is in the job");
    nic.handle_dead(0, NodeId(1));
    nic.handle_dead(0, NodeId(1));
    let failure = JobFailure::Dead { node: NodeId(1) };
    let ended = outputs(&mut nic);
    let failed = |output: &NicOutput| match output {
        Output::Completed { completion, .. } => completion.result == Err(failure),
        Output::Order { .. } | Output::Transmit { .. } | Output::Multicast { .. } => false,
    };
    assert!(ended.len() == 3 && ended.iter().all(failed), "{ended:?}");
    nic.handle_packet(0, NodeId(1), chunk(0, 0, 8));
    assert_eq!(outputs(&mut nic), [], "its places are gone");
    assert_eq!(nic.post(0, Port(0), &[receives(2)]), Err(OrderedError::Job(JobError::Failed { job: 7, failure })));
    assert!(nic.is_idle());
}
