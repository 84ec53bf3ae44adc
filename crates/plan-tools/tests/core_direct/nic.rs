//! A model of triggered NICs, just enough to run task lists of a whole group and to notice what is wrong with them.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;

use outboard_plan::{Buffer, Program, Rank};
use outboard_plan_tools::core_direct::{
    Action, HostStep, Place, Protocol, Purpose, QueuePair, Request, Serves, Template,
};
use outboard_plan_tools::{Contract, Contributors};

/// Where the parts of a rank's memory start, in units of the plan: input, output and scratch, then eager buffers.
struct Layout {
    output: u64,
    scratch: u64,
    eager: [u64; 2],
    /// Of an eager buffer.
    buffer: u64,
    /// Bytes that a byte of the plan stands for.
    unit: u64,
}

impl Layout {
    /// The bytes of a place, as a list of call number `call` means it.
    fn region(&self, place: Place, call: u32) -> Range<usize> {
        let eager = |call: u32, slot: u32| self.eager[call as usize % 2] + u64::from(slot) * self.buffer;
        let (start, len) = match place {
            Place::Memory(span) => {
                let base = match span.buffer {
                    Buffer::Input => 0,
                    Buffer::Output => self.output,
                    Buffer::Scratch => self.scratch,
                };
                (base + span.offset, span.len)
            }
            Place::Arrived { slot, offset, len } => (eager(call, slot) + offset, len),
            Place::Next { slot } => (eager(call.wrapping_add(1), slot), self.buffer),
        };
        (start * self.unit) as usize..((start + len) * self.unit) as usize
    }
}

/// A receive queue.
#[derive(Default)]
struct Receives {
    posted: VecDeque<Range<usize>>,
    enabled: u32,
}

/// One rank: its memory, and its NIC.
struct Member {
    template: Template,
    contract: Contract,
    layout: Layout,
    memory: Vec<u8>,
    sends: BTreeMap<QueuePair, VecDeque<Vec<Range<usize>>>>,
    send_enabled: BTreeMap<QueuePair, u32>,
    receives: BTreeMap<QueuePair, Receives>,
    received: BTreeMap<QueuePair, u32>,
    sent: BTreeMap<QueuePair, u32>,
    management: VecDeque<(QueuePair, Action)>,
    /// A call runs.
    running: bool,
    calls: u32,
}

/// What byte `at` of what `rank` contributes to a call holds.
fn content(call: u32, rank: Rank, at: u64) -> u8 {
    (u64::from(call) * 101 + u64::from(rank.0) * 31 + at * 7 + 1) as u8
}

/// A group of ranks with templates of one plan.
pub(crate) struct Group {
    members: Vec<Member>,
    /// Whether nobody may leave a call before all have come.
    together: bool,
}

impl Group {
    /// Ranks with these programs, lists and promises, which move `unit` bytes for each byte of the plan.
    pub(crate) fn new(
        programs: &[Program],
        templates: Vec<Template>,
        unit: u64,
        together: bool,
        contract: impl Fn(Rank) -> Contract,
    ) -> Group {
        let buffer = templates.first().map_or(0, |template| match template.protocol {
            Protocol::Eager { buffer } => buffer,
            Protocol::Rendezvous => 0,
        });
        let member = |(program, template): (&Program, Template)| {
            let output = program.input_bytes;
            let scratch = output + program.output_bytes;
            let eager = scratch + program.scratch_bytes;
            let set = u64::from(template.slots) * buffer;
            let mut member = Member {
                contract: contract(program.rank),
                layout: Layout { output, scratch, eager: [eager, eager + set], buffer, unit },
                memory: vec![0; ((eager + 2 * set) * unit) as usize],
                template,
                sends: BTreeMap::new(),
                send_enabled: BTreeMap::new(),
                receives: BTreeMap::new(),
                received: BTreeMap::new(),
                sent: BTreeMap::new(),
                management: VecDeque::new(),
                running: false,
                calls: 0,
            };
            // Set-up posts what may arrive before the first call, into the buffers of the first call.
            for request in member.template.tasks.clone() {
                if matches!(request.action, Action::Receive(_)) && request.on.purpose != Purpose::Data {
                    member.post(request, u32::MAX);
                }
            }
            member
        };
        Group { members: programs.iter().zip(templates).map(member).collect(), together }
    }

    /// Runs `calls` calls on every rank; `choices` say who goes on next, again and again.
    pub(crate) fn run(&mut self, calls: u32, choices: &[usize]) {
        let ranks = self.members.len();
        for turn in 0.. {
            // Whoever is chosen goes on if it can, else the next who can.
            let first = choices[turn % choices.len()] % ranks;
            if !(0..ranks).any(|i| self.go_on((first + i) % ranks, calls)) {
                break;
            }
        }
        for (rank, member) in self.members.iter().enumerate() {
            assert_eq!(member.calls, calls, "rank {rank} waits for ever, with {:?} next", member.management.front());
            assert!(!member.running);
            let leftover = member.received.values().chain(member.sent.values()).sum::<u32>();
            assert_eq!(leftover, 0, "rank {rank} leaves completions");
            assert!(member.sends.values().all(VecDeque::is_empty));
        }
    }

    /// One thing that `rank` can do; whether there was one.
    fn go_on(&mut self, rank: usize, calls: u32) -> bool {
        let member = &mut self.members[rank];
        if !member.running && member.calls < calls {
            member.start();
            return true;
        }
        if let Some(on) = member.can_send() {
            self.deliver(rank, on);
            return true;
        }
        if member.manage() {
            return true;
        }
        let ended = member.end();
        if ended && self.together {
            let call = self.members[rank].calls;
            let called = |other: &Member| other.calls + u32::from(other.running) >= call;
            assert!(self.members.iter().all(called), "rank {rank} leaves call {call} before all have come");
        }
        ended
    }

    fn deliver(&mut self, rank: usize, on: QueuePair) {
        let member = &mut self.members[rank];
        let from = member.sends.get_mut(&on).and_then(VecDeque::pop_front).expect("a send is posted");
        *member.send_enabled.get_mut(&on).expect("enabled") -= 1;
        *member.sent.entry(on).or_default() += 1;
        let bytes: Vec<u8> = from.iter().flat_map(|piece| member.memory[piece.clone()].to_vec()).collect();
        let mut theirs = on;
        theirs.connection.peer = Rank(rank as u32);
        theirs.connection.serves = match on.connection.serves {
            Serves::Both => Serves::Both,
            Serves::Outgoing => Serves::Incoming,
            Serves::Incoming => Serves::Outgoing,
        };
        let peer = &mut self.members[on.connection.peer.0 as usize];
        let receives = peer.receives.entry(theirs).or_default();
        assert!(receives.enabled > 0, "{theirs} is not ready for what rank {rank} sends");
        receives.enabled -= 1;
        let into = receives.posted.pop_front().expect("an enabled receive is posted");
        let room = into.len();
        assert!(bytes.len() <= room, "{} bytes on {theirs}, which has room for {room}", bytes.len());
        peer.memory[into.start..][..bytes.len()].copy_from_slice(&bytes);
        *peer.received.entry(theirs).or_default() += 1;
    }
}

impl Member {
    /// The rank calls.
    fn start(&mut self) {
        for piece in self.contract.before.clone() {
            let from = (piece.from * self.layout.unit)..;
            for (at, from) in self.layout.region(Place::Memory(piece.span), self.calls).zip(from) {
                self.memory[at] = content(self.calls, piece.source, from);
            }
        }
        let Template { before, tasks, .. } = self.template.clone();
        before.iter().for_each(|step| self.host(step));
        tasks.into_iter().for_each(|request| self.post(request, self.calls));
        self.running = true;
    }

    /// Posts a request of the list of a call.
    fn post(&mut self, Request { on, action, .. }: Request, call: u32) {
        let region = |place| self.layout.region(place, call);
        match action {
            Action::Receive(into) => {
                let receives = self.receives.entry(on).or_default();
                receives.posted.push_back(into.map_or(0..0, region));
                receives.enabled += u32::from(on.purpose != Purpose::Data);
            }
            Action::Send(from) => self.sends.entry(on).or_default().push_back(from.into_iter().map(region).collect()),
            managed => self.management.push_back((on, managed)),
        }
    }

    fn can_send(&self) -> Option<QueuePair> {
        self.send_enabled.iter().find(|(_, enabled)| **enabled > 0).map(|(on, _)| *on)
    }

    /// Runs the next request of the management queue.
    fn manage(&mut self) -> bool {
        let take = |counts: &mut BTreeMap<QueuePair, u32>, on, count| {
            let there = counts.entry(on).or_default();
            let enough = *there >= count;
            *there -= if enough { count } else { 0 };
            enough
        };
        let Some((on, action)) = self.management.front() else { return false };
        let on = *on;
        let done = match *action {
            Action::WaitReceived(count) => take(&mut self.received, on, count),
            Action::WaitSent(count) => take(&mut self.sent, on, count),
            Action::SendEnable(count) => {
                *self.send_enabled.entry(on).or_default() += count;
                true
            }
            Action::ReceiveEnable(count) => {
                let receives = self.receives.entry(on).or_default();
                receives.enabled += count;
                assert!(receives.enabled as usize <= receives.posted.len(), "more are enabled than posted on {on}");
                true
            }
            Action::Receive(_) | Action::Send(_) => unreachable!("posted elsewhere"),
        };
        if done {
            self.management.pop_front();
        }
        done
    }

    /// The host takes the last completion; the call ends, with the right bytes.
    fn end(&mut self) -> bool {
        if !self.running || !self.management.is_empty() {
            return false;
        }
        self.running = false;
        self.template.after.clone().iter().for_each(|step| self.host(step));
        for piece in &self.contract.after {
            let Contributors::Round { first: source, count: 1 } = piece.of else { unreachable!("data only moves") };
            let from = (piece.from * self.layout.unit)..;
            for (at, from) in self.layout.region(Place::Memory(piece.span), self.calls).zip(from) {
                let (rank, span) = (self.template.rank, piece.span);
                assert_eq!(self.memory[at], content(self.calls, source, from), "{rank} byte {from} of {span}");
            }
        }
        self.calls += 1;
        true
    }

    fn host(&mut self, step: &HostStep) {
        match *step {
            HostStep::Copy { from, to } => {
                let [from, to] = [from, to].map(|place| self.layout.region(place, self.calls));
                assert_eq!(from.len(), to.len());
                self.memory.copy_within(from, to.start);
            }
            HostStep::Reduce { .. } => unreachable!("these plans only move data"),
        }
    }
}
