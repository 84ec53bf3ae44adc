//! Two honest service processes, a possessed one and a stranger, on a network in virtual time.
//!
//! Service processes 10 and 11 are honest. 12 is a member of the second group; it runs the real machine, so that the
//! protocol gets deep, but the script drops, doubles, overwrites and replaces what it sends. 13 is a member of nothing and
//! sends what the script says. Datagrams may be forged with either group's key.
//!
//! What is demanded: nobody panics; references to memory stay within what was handed over; queues and staging keep their
//! bounds; the traffic of one input ends; every call of an honest rank is answered once: in the first group, which has
//! honest members alone, with success unless it needs more staging than there is, in the second with success or an error
//! that names members of the group.

mod forge;
mod machine;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Element, Operator, Rank, Reduction, Span};
use outboard_proto::config::AllgatherAlgorithm;
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, FrameHeader, FrameKind, Message};
use outboard_proto::{
    Call, CallId, CallKind, CollectiveError, Config, GroupHandle, GroupSpec, HostId, InstanceId, Instant, Member,
    Signature, SpId, Transmit, sizes_digest,
};
use outboard_sim::Tape;

use machine::{Buffers, Machine};

/// Honest ranks alone, at 10, 11 and 10.
pub const FIRST: GroupHandle = GroupHandle(7);
/// Ranks at 10, 11, 12 and 10.
pub const SECOND: GroupHandle = GroupHandle(8);
const POSSESSED: SpId = SpId(12);
const STRANGER: SpId = SpId(13);
const CHUNK: u32 = 1000;
const STAGING: u64 = 64 << 10;
/// More than the calls of one play need, so that none fails for what the other group holds.
const SCRATCH: u64 = 64 << 20;
/// Packets that one input may cause before it counts as a livelock.
const MOST_PACKETS: u32 = 400_000;
/// By then a silent service process has been declared dead and everything that needs it has failed.
const LONG: Duration = Duration::from_secs(30);

/// The acts of a script.
pub mod acts {
    #![allow(missing_docs, reason = "the names are the documentation")]
    pub const CALL: u8 = 0;
    pub const WAIT: u8 = 1;
    pub const ASK: u8 = 2;
    pub const MESSAGE: u8 = 3;
    pub const FRAME: u8 = 4;
    pub const BYTES: u8 = 5;
    pub const DATAGRAM: u8 = 6;
    pub const RAW_DATAGRAM: u8 = 7;
    pub const TAMPER: u8 = 8;
    pub const LEAVE: u8 = 9;
    pub const LOSE: u8 = 10;
    pub const END: u8 = 11;
}

/// What becomes of the next frame or datagrams of the possessed.
#[derive(Debug, Clone)]
enum Tamper {
    Drop,
    Double,
    Overwrite { at: u8, with: u8 },
    Replace(Message),
}

#[derive(Debug)]
enum Packet {
    Frame { from: SpId, to: usize, header: Vec<u8>, payload: u32 },
    Datagrams { to: usize, headers: Vec<[u8; DATAGRAM_HEADER_BYTES]>, payloads: Vec<u32> },
}

struct Group {
    spec: GroupSpec,
    /// By instance, from 1.
    signatures: Vec<Signature>,
    ranks: Vec<Seat>,
}

/// A rank of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Seat {
    asked: bool,
    left: bool,
    calls: usize,
}

struct World {
    now: Instant,
    machines: Vec<Machine>,
    groups: [Group; 2],
    wire: VecDeque<Packet>,
    tampers: VecDeque<Tamper>,
    /// The number of the next message to machine 0 or 1 as the possessed and the stranger would send it, and what they
    /// could acknowledge.
    next: [[u32; 2]; 2],
    heard: [[u32; 2]; 2],
    silenced: bool,
    next_call: u64,
    packets: u32,
}

fn config(ring: bool) -> Config {
    Config {
        chunk_bytes: CHUNK,
        staging_quota: STAGING,
        owner_scratch_quota: SCRATCH,
        fragment_bytes: 4000,
        allgather: if ring { AllgatherAlgorithm::Ring } else { AllgatherAlgorithm::Multicast },
        ..Config::default()
    }
}

fn group(handle: GroupHandle, sps: &[u64]) -> Group {
    let member = |sp: &u64| Member { sp: SpId(*sp), host: HostId(*sp), address: Arc::from([*sp as u8]) };
    let key = [u64::from(handle.0), 5];
    let spec = GroupSpec { handle, key, job: 1, members: sps.iter().map(member).collect() };
    Group { spec, signatures: Vec::new(), ranks: vec![Seat::default(); sps.len()] }
}

/// How much one rank has for another where blocks differ: nothing for some.
fn uneven_bytes(from: u32, to: u32) -> u64 {
    u64::from((from * 3 + to * 5 + 1) % 4) * 900
}

/// Bytes of the blocks of a gather or scatter; those of uneven ones follow from the root.
fn rooted_bytes(signature: Signature) -> u64 {
    match signature.kind {
        CallKind::Gatherv { root } | CallKind::Scatterv { root } => uneven_bytes(root.0, 1),
        _ => signature.bytes,
    }
}

/// Blocks of these lengths one behind the other.
fn place(span: fn(u64, u64) -> Span, lengths: Vec<u64>) -> Vec<Span> {
    let starts = lengths.iter().scan(0, |end, bytes| Some(std::mem::replace(end, *end + bytes)));
    starts.zip(&lengths).map(|(start, bytes)| span(start, *bytes)).collect()
}

/// The blocks of an alltoallv.
fn uneven(ranks: u32, me: Rank) -> Blocks {
    Blocks {
        send: place(Span::input, (0..ranks).map(|to| uneven_bytes(me.0, to)).collect()),
        receive: place(Span::output, (0..ranks).map(|from| uneven_bytes(from, me.0)).collect()),
    }
}

/// Plays a script.
///
/// # Panics
/// When the hostile did harm.
pub fn play(script: &[u8]) {
    forge::decode(script);
    let mut tape = Tape::new(script);
    let ring = tape.flip();
    let machines = (10..13).map(|id| Machine::new(SpId(id), config(ring))).collect();
    let mut world = World {
        now: Instant(1),
        machines,
        groups: [group(FIRST, &[10, 11, 10]), group(SECOND, &[10, 11, 12, 10])],
        wire: VecDeque::new(),
        tampers: VecDeque::new(),
        next: [[0; 2]; 2],
        heard: [[0; 2]; 2],
        silenced: false,
        next_call: 0,
        packets: 0,
    };
    while !tape.ended() && world.act(&mut tape) {
        world.pump();
    }
    world.end();
}

impl World {
    /// One act of the script; false for the last.
    fn act(&mut self, tape: &mut Tape<'_>) -> bool {
        match tape.byte() % (acts::END + 1) {
            acts::CALL => {
                let (group, rank) = (tape.below(2), tape.byte());
                self.call(group.into(), rank.into(), tape);
            }
            acts::WAIT => {
                let wait = [1_000, 100_000, 600_000, 5_000_000, 30_000_000, 500_000_000, 4_000_000_000];
                self.advance(Duration::from_nanos(wait[usize::from(tape.byte()) % wait.len()]));
            }
            acts::ASK => {
                let (group, rank) = (tape.below(2), tape.byte());
                self.ask(group.into(), rank.into());
            }
            acts::MESSAGE => {
                let (from, to) = (tape.flip(), tape.below(2).into());
                let times = match tape.byte() {
                    0xff => 5000,
                    0xf0.. => 40,
                    _ => 1,
                };
                let (message, payload) = forge::message(tape);
                for _ in 0..times {
                    self.inject(from, to, &message, payload);
                }
            }
            acts::FRAME => {
                let (from, to) = (tape.flip(), usize::from(tape.below(2)));
                let honest = self.header(from, to);
                let (header, payload) = forge::header(tape, honest);
                let mut bytes = Vec::new();
                header.encode(&mut bytes);
                let body = tape.byte();
                bytes.extend_from_slice(tape.bytes(body.into()));
                self.frame(from, to, bytes, payload);
            }
            acts::BYTES => {
                let (from, to, count) = (tape.flip(), tape.below(2).into(), tape.byte());
                let bytes = tape.bytes(count.into()).to_vec();
                let payload = forge::payload(tape);
                self.frame(from, to, bytes, payload);
            }
            acts::DATAGRAM | acts::RAW_DATAGRAM => self.datagram(tape),
            acts::TAMPER => {
                let tamper = match tape.below(4) {
                    0 => Tamper::Drop,
                    1 => Tamper::Double,
                    2 => Tamper::Overwrite { at: tape.byte(), with: tape.byte() },
                    _ => Tamper::Replace(forge::message(tape).0),
                };
                self.tampers.push_back(tamper);
            }
            acts::LEAVE => {
                let rank = usize::from(tape.byte()) % self.groups[1].ranks.len();
                self.leave(1, rank);
            }
            acts::LOSE => {
                let at = usize::from(tape.below(2));
                self.machines[at].lose(self.now, if tape.flip() { POSSESSED } else { STRANGER });
            }
            _ => return false,
        }
        true
    }

    /// Which machine serves a rank.
    fn home(&self, group: usize, rank: usize) -> usize {
        (self.groups[group].spec.members[rank].sp.0 - 10) as usize
    }

    fn ask(&mut self, group: usize, rank: usize) {
        let rank = rank % self.groups[group].ranks.len();
        let at = self.home(group, rank);
        let group = &mut self.groups[group];
        let seat = &mut group.ranks[rank];
        if !std::mem::replace(&mut seat.asked, true) {
            self.machines[at].ask(self.now, &group.spec, Rank(rank as u32));
        }
    }

    fn call(&mut self, group: usize, rank: usize, tape: &mut Tape<'_>) {
        let rank = rank % self.groups[group].ranks.len();
        let at = self.home(group, rank);
        let Group { spec, signatures, ranks } = &mut self.groups[group];
        let seat = &mut ranks[rank];
        // A rank that may go on for ever says little more than one that stops.
        if !self.machines[at].is_made(spec.handle, Rank(rank as u32)) || seat.left || seat.calls >= 600 {
            return;
        }
        if seat.calls == signatures.len() {
            let bytes = [0, 1, 999, 1000, 2500, 9000, 33_000][usize::from(tape.below(7))];
            let root = Rank(u32::from(tape.below(ranks.len() as u8)));
            let sizes = || (0..ranks.len() as u32).map(|from| uneven_bytes(from, 0));
            let reduction = Reduction::new(Operator::Sum, Element::U8).expect("defined by MPI");
            let signature = match tape.below(16) {
                0 => Signature { kind: CallKind::Allgather, bytes },
                1 => Signature { kind: CallKind::Broadcast { root }, bytes },
                2 => Signature { kind: CallKind::Alltoall, bytes },
                3 => Signature { kind: CallKind::Alltoallv, bytes: 0 },
                4 => Signature { kind: CallKind::Gather { root }, bytes },
                5 => Signature { kind: CallKind::Gatherv { root }, bytes: 0 },
                6 => Signature { kind: CallKind::Scatter { root }, bytes },
                7 => Signature { kind: CallKind::Scatterv { root }, bytes: 0 },
                8 => Signature { kind: CallKind::Barrier, bytes: 0 },
                9 => Signature { kind: CallKind::Reduce { root, reduction }, bytes },
                10 => Signature { kind: CallKind::Allreduce { reduction }, bytes },
                11 => Signature { kind: CallKind::ReduceScatterBlock { reduction }, bytes },
                12 => Signature { kind: CallKind::Scan { reduction, inclusive: true }, bytes },
                13 => Signature { kind: CallKind::Scan { reduction, inclusive: false }, bytes },
                14 => {
                    let kind = CallKind::ReduceScatter { reduction, sizes: sizes_digest(sizes()) };
                    Signature { kind, bytes: sizes().sum() }
                }
                _ => {
                    let kind = CallKind::Allgatherv { sizes: sizes_digest(sizes()) };
                    Signature { kind, bytes: sizes().sum() }
                }
            };
            signatures.push(signature);
        }
        self.call_next(group, rank);
    }

    /// The rank makes its next call, whose signature is settled.
    fn call_next(&mut self, group: usize, rank: usize) {
        let at = self.home(group, rank);
        let Group { spec, signatures, ranks } = &mut self.groups[group];
        let seat = &mut ranks[rank];
        seat.calls += 1;
        self.next_call += 1;
        let (signature, rank) = (signatures[seat.calls - 1], Rank(rank as u32));
        let all = ranks.len() as u64;
        let mut blocks = None;
        let buffers = match signature.kind {
            CallKind::Allgather => Buffers { input: signature.bytes, output: signature.bytes * all },
            CallKind::Alltoall => Buffers { input: signature.bytes * all, output: signature.bytes * all },
            CallKind::Allgatherv { .. } => {
                let input = uneven_bytes(rank.0, 0);
                let receive = place(Span::output, (0..all as u32).map(|from| uneven_bytes(from, 0)).collect());
                blocks = Some(Arc::new(Blocks { send: vec![Span::input(0, input)], receive }));
                Buffers { input, output: signature.bytes }
            }
            CallKind::Alltoallv => {
                let uneven = uneven(all as u32, rank);
                let (input, output) = uneven.bytes();
                blocks = Some(Arc::new(uneven));
                Buffers { input, output }
            }
            CallKind::Gather { root } | CallKind::Gatherv { root } => {
                let gathered = Blocks::gather((all as u32, root), rank, rooted_bytes(signature), true).expect("small");
                let (input, output) = gathered.bytes();
                blocks = (signature.kind == CallKind::Gatherv { root }).then(|| Arc::new(gathered));
                Buffers { input, output }
            }
            CallKind::Scatter { root } | CallKind::Scatterv { root } => {
                let scattered =
                    Blocks::scatter((all as u32, root), rank, rooted_bytes(signature), true).expect("small");
                let (input, output) = scattered.bytes();
                blocks = (signature.kind == CallKind::Scatterv { root }).then(|| Arc::new(scattered));
                Buffers { input, output }
            }
            CallKind::Barrier => Buffers { input: 0, output: 0 },
            CallKind::Reduce { root, .. } => {
                Buffers { input: signature.bytes, output: if root == rank { signature.bytes } else { 0 } }
            }
            CallKind::Scan { inclusive: false, .. } if rank.0 == 0 => Buffers { input: signature.bytes, output: 0 },
            CallKind::Allreduce { .. } | CallKind::Scan { .. } => {
                Buffers { input: signature.bytes, output: signature.bytes }
            }
            CallKind::ReduceScatterBlock { .. } => Buffers { input: signature.bytes * all, output: signature.bytes },
            CallKind::ReduceScatter { .. } => {
                let output = uneven_bytes(rank.0, 0);
                let send = place(Span::input, (0..all as u32).map(|to| uneven_bytes(to, 0)).collect());
                blocks = Some(Arc::new(Blocks { send, receive: vec![Span::output(0, output)] }));
                Buffers { input: signature.bytes, output }
            }
            CallKind::Broadcast { root } if root == rank => Buffers { input: signature.bytes, output: 0 },
            CallKind::Broadcast { .. } => Buffers { input: 0, output: signature.bytes },
            CallKind::Tagged(_) => unreachable!("messages have no signature that ranks agree on"),
        };
        let instance = InstanceId(ranks[rank.0 as usize].calls as u64);
        let id = CallId(self.next_call);
        let call = Call { id, group: spec.handle, rank, instance, signature, in_place: false, blocks, deadline: None };
        self.machines[at].call(self.now, call, buffers);
    }

    fn leave(&mut self, group: usize, rank: usize) {
        let at = self.home(group, rank);
        let group = &mut self.groups[group];
        if group.ranks[rank].asked && !std::mem::replace(&mut group.ranks[rank].left, true) {
            self.machines[at].leave(self.now, group.spec.handle, Rank(rank as u32));
        }
    }

    /// The header that the link of an honest machine would take next from the possessed or the stranger.
    fn header(&self, from: bool, to: usize) -> FrameHeader {
        let (seq, ack) = (self.next[usize::from(from)][to], self.heard[usize::from(from)][to]);
        let clock = (self.now.0 / 1000) as u32;
        FrameHeader {
            kind: FrameKind::Message,
            ack_now: true,
            seq,
            ack,
            payload_len: 0,
            clock,
            echo: clock,
            echo_age: 1,
        }
    }

    fn inject(&mut self, from: bool, to: usize, message: &Message, payload: u32) {
        let mut bytes = Vec::new();
        FrameHeader { payload_len: payload, ..self.header(from, to) }.encode(&mut bytes);
        message.encode(&mut bytes);
        self.next[usize::from(from)][to] += 1;
        self.frame(from, to, bytes, payload);
    }

    fn frame(&mut self, from: bool, to: usize, header: Vec<u8>, payload: u32) {
        let from = if from { POSSESSED } else { STRANGER };
        self.wire.push_back(Packet::Frame { from, to, header, payload });
    }

    fn datagram(&mut self, tape: &mut Tape<'_>) {
        let to = usize::from(tape.below(2));
        let keys = [self.groups[0].spec.key, self.groups[1].spec.key, [0, 0]];
        let count = 1 + tape.below(4);
        let (headers, payloads) = (0..count).map(|_| (forge::datagram(tape, keys), forge::payload(tape))).unzip();
        self.wire.push_back(Packet::Datagrams { to, headers, payloads });
    }

    /// Time passes; timers run when they are due.
    fn advance(&mut self, by: Duration) {
        let until = self.now + by;
        while let Some(due) = self.machines.iter().filter_map(Machine::due).min().filter(|due| *due <= until) {
            self.now = self.now.max(due);
            for machine in &mut self.machines {
                machine.timeout(self.now);
            }
            self.pump();
        }
        self.now = until;
    }

    /// Carries everything that waits, and what it causes.
    fn pump(&mut self) {
        loop {
            for at in 0..self.machines.len() {
                self.collect(at);
            }
            let Some(packet) = self.wire.pop_front() else { return };
            self.packets += 1;
            assert!(self.packets < MOST_PACKETS, "the traffic of one input never ends");
            match packet {
                Packet::Frame { from, to, header, payload } => {
                    self.machines[to].frame(self.now, from, &header, payload);
                }
                Packet::Datagrams { to, headers, payloads } => {
                    self.machines[to].datagrams(self.now, &headers, &payloads);
                }
            }
        }
    }

    /// What a machine wants to send goes onto the wire, that of the possessed as the script wants it.
    fn collect(&mut self, at: usize) {
        while let Some(transmit) = self.machines[at].transmit(self.now) {
            let copies = match transmit {
                Transmit::Frame { to, header, payload } => {
                    let payload = payload.iter().map(|piece| piece.len as u32).sum();
                    self.send_frame(at, to, header.into_vec(), payload)
                }
                Transmit::Multicast(batch) => {
                    let packets: Vec<Packet> = (0..self.machines.len())
                        .filter(|to| *to != at && self.machines[*to].has_joined(batch.channel))
                        .map(|to| {
                            let (headers, payloads) = machine::datagrams_of(&batch);
                            Packet::Datagrams { to, headers, payloads }
                        })
                        .collect();
                    self.machines[at].multicast_done(self.now, batch.token);
                    packets
                }
            };
            self.wire.extend(copies);
        }
    }

    fn send_frame(&mut self, at: usize, to: SpId, mut header: Vec<u8>, payload: u32) -> Vec<Packet> {
        let from = self.machines[at].id();
        if at != 2 {
            if let (12..=13, Ok((frame, _))) = (to.0, FrameHeader::decode(&header, payload)) {
                let whose = usize::from(to == POSSESSED);
                self.heard[whose][at] = self.heard[whose][at].max(frame.seq.wrapping_add(1));
            }
            let to = if to == STRANGER { return Vec::new() } else { (to.0 - 10) as usize };
            return vec![Packet::Frame { from, to, header, payload }];
        }
        if self.silenced {
            return Vec::new();
        }
        let to = (to.0 - 10) as usize;
        let Ok((frame, _)) = FrameHeader::decode(&header, payload) else { unreachable!("its own frame") };
        let carries = frame.kind == FrameKind::Message;
        if carries {
            self.next[1][to] = self.next[1][to].max(frame.seq.wrapping_add(1));
        }
        let mut times = 1;
        match self.tampers.pop_front() {
            None => {}
            Some(Tamper::Drop) => times = 0,
            Some(Tamper::Double) => times = 2,
            Some(Tamper::Overwrite { at, with }) => {
                let at = usize::from(at) % header.len();
                header[at] = with;
            }
            Some(Tamper::Replace(message)) if carries => {
                header.truncate(outboard_proto::wire::FRAME_HEADER_BYTES);
                message.encode(&mut header);
            }
            Some(tamper @ Tamper::Replace(_)) => self.tampers.push_front(tamper),
        }
        (0..times).map(|_| Packet::Frame { from, to, header: header.clone(), payload }).collect()
    }

    /// The hostile fall silent, the honest finish: everything is answered.
    fn end(&mut self) {
        for rank in 0..self.groups[0].ranks.len() {
            self.ask(0, rank);
        }
        self.pump();
        self.advance(LONG);
        for rank in 0..self.groups[0].ranks.len() {
            let at = self.home(0, rank);
            assert!(self.machines[at].is_made(FIRST, Rank(rank as u32)), "rank {rank} waits for its group for ever");
        }
        self.silenced = true;
        for group in 0..2 {
            for rank in 0..self.groups[group].ranks.len() {
                self.catch_up(group, rank);
            }
        }
        self.advance(LONG);
        for at in 0..2 {
            self.machines[at].check_answered();
            self.machines[at].lose(self.now, POSSESSED);
        }
        for group in 0..2 {
            for rank in 0..self.groups[group].ranks.len() {
                self.leave(group, rank);
            }
        }
        self.pump();
        self.advance(LONG);
        for machine in &self.machines[..2] {
            machine.check_empty();
        }
        for (at, result) in self.machines[..2].iter().flat_map(|machine| machine.results()) {
            let (group, ranks) = if at.group == FIRST { (0, 3) } else { (1, 4) };
            match result {
                Ok(()) => {}
                Err(error) if group == 1 => names_members(error, ranks),
                Err(error) => panic!("{at:?} fails although its members are honest: {error}"),
            }
        }
    }

    /// The rank makes the calls that others of its group have made.
    fn catch_up(&mut self, group: usize, rank: usize) {
        let at = self.home(group, rank);
        let made = self.machines[at].is_made(self.groups[group].spec.handle, Rank(rank as u32));
        while made && at < 2 && !self.groups[group].ranks[rank].left {
            if self.groups[group].ranks[rank].calls == self.groups[group].signatures.len() {
                return;
            }
            self.call_next(group, rank);
            self.pump();
        }
    }
}

/// An error of the second group names somebody who is in it.
fn names_members(error: &CollectiveError, ranks: u32) {
    let member = |rank: &Rank| assert!(rank.0 < ranks, "{error} names a rank that is not there");
    let server = |sp: &SpId| assert!((10..13).contains(&sp.0), "{error} names a service process that is not there");
    match error {
        CollectiveError::RankLost(rank) | CollectiveError::Memory(rank) | CollectiveError::Staging { rank, .. } => {
            member(rank);
        }
        CollectiveError::PeerLost { sp, rank } => {
            server(sp);
            member(rank);
        }
        CollectiveError::Mismatch { a_rank, b_rank, .. } => {
            member(a_rank);
            member(b_rank);
        }
        CollectiveError::Block { source_rank, destination, .. }
        | CollectiveError::Message { source_rank, destination, .. } => {
            member(source_rank);
            member(destination);
        }
        CollectiveError::Protocol(sp) => server(sp),
        CollectiveError::Configuration { a, b, .. } => {
            server(a);
            server(b);
        }
        CollectiveError::HandleTaken(_) => {}
        CollectiveError::Deadline(missed) => {
            missed.missing.named.iter().for_each(|one| member(&one.rank));
            missed.awaited.iter().for_each(member);
        }
    }
}
