//! A model of triggered NICs, just enough to run task lists of a whole group and to notice what is wrong with them.

use std::collections::{BTreeMap, VecDeque};

use outboard_plan::{Buffer, Program, Rank, Span};
use outboard_plan_tools::core_direct::{
    Addresses, Filled, HostStep, Protocol, Purpose, QueuePair, Region, Request, Serves, Task, Template,
};
use outboard_plan_tools::{Contract, Contributors};

/// Where the five parts of a rank's memory start.
struct Layout {
    input: u64,
    output: u64,
    scratch: u64,
    eager: [u64; 2],
}

/// A receive queue.
#[derive(Default)]
struct Receives {
    posted: VecDeque<Option<Region>>,
    enabled: u32,
}

/// One rank: its memory, and its NIC.
struct Member {
    template: Template,
    contract: Contract,
    layout: Layout,
    memory: Vec<u8>,
    sends: BTreeMap<QueuePair, VecDeque<Vec<Region>>>,
    send_enabled: BTreeMap<QueuePair, u32>,
    receives: BTreeMap<QueuePair, Receives>,
    received: BTreeMap<QueuePair, u32>,
    sent: BTreeMap<QueuePair, u32>,
    management: VecDeque<Request<Region>>,
    /// The call that runs, and what the host does when it ends.
    running: Option<Vec<HostStep<Region>>>,
    calls: u32,
}

/// What byte `at` of what `rank` contributes to a call holds.
fn content(call: u32, rank: Rank, at: u64) -> u8 {
    (u64::from(call) * 101 + u64::from(rank.0) * 31 + at * 7 + 1) as u8
}

/// A group of ranks with templates of one plan.
pub(crate) struct Group {
    members: Vec<Member>,
    buffer: u64,
    /// Whether nobody may leave a call before all have come.
    together: bool,
}

impl Group {
    /// Ranks with these programs, lists and promises; see `together`.
    pub(crate) fn new(
        programs: &[Program],
        templates: Vec<Template>,
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
                layout: Layout { input: 0, output, scratch, eager: [eager, eager + set] },
                memory: vec![0; (eager + 2 * set) as usize],
                template,
                sends: BTreeMap::new(),
                send_enabled: BTreeMap::new(),
                receives: BTreeMap::new(),
                received: BTreeMap::new(),
                sent: BTreeMap::new(),
                management: VecDeque::new(),
                running: None,
                calls: 0,
            };
            // Set-up posts what may arrive before the first call, into the buffers of the first call.
            let list = member.fill(u32::MAX, buffer);
            for Task { request, .. } in list.tasks {
                if matches!(request, Request::Receive { on, .. } if on.purpose != Purpose::Data) {
                    member.post(request);
                }
            }
            member
        };
        Group { members: programs.iter().zip(templates).map(member).collect(), buffer, together }
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
            assert!(member.running.is_none());
            let leftover = member.received.values().chain(member.sent.values()).sum::<u32>();
            assert_eq!(leftover, 0, "rank {rank} leaves completions");
            assert!(member.sends.values().all(VecDeque::is_empty));
        }
    }

    /// One thing that `rank` can do; whether there was one.
    fn go_on(&mut self, rank: usize, calls: u32) -> bool {
        let buffer = self.buffer;
        let member = &mut self.members[rank];
        if member.running.is_none() && member.calls < calls {
            member.start(buffer);
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
            let called = |other: &Member| other.calls + u32::from(other.running.is_some()) >= call;
            assert!(self.members.iter().all(called), "rank {rank} leaves call {call} before all have come");
        }
        ended
    }

    fn deliver(&mut self, rank: usize, on: QueuePair) {
        let member = &mut self.members[rank];
        let from = member.sends.get_mut(&on).and_then(VecDeque::pop_front).expect("a send is posted");
        *member.send_enabled.get_mut(&on).expect("enabled") -= 1;
        *member.sent.entry(on).or_default() += 1;
        let bytes: Vec<u8> = from.iter().flat_map(|piece| member.bytes(*piece).to_vec()).collect();
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
        let room = into.map_or(0, |region| region.bytes);
        assert!(bytes.len() as u64 <= room, "{} bytes on {theirs}, which has room for {room}", bytes.len());
        if let Some(region) = into {
            peer.memory[region.address as usize..][..bytes.len()].copy_from_slice(&bytes);
        }
        *peer.received.entry(theirs).or_default() += 1;
    }
}

impl Member {
    fn fill(&self, call: u32, buffer: u64) -> Filled {
        let Layout { input, output, scratch, eager } = self.layout;
        let of = |call: u32| eager[call as usize % 2];
        let (arrived, next) = (of(call), of(call.wrapping_add(1)));
        let call = Addresses { unit: 1, input, output, scratch, arrived, next, buffer };
        self.template.fill(&call).expect("buffers have the size that the template asks for")
    }

    fn address(&self, span: Span) -> usize {
        let base = match span.buffer {
            Buffer::Input => self.layout.input,
            Buffer::Output => self.layout.output,
            Buffer::Scratch => self.layout.scratch,
        };
        (base + span.offset) as usize
    }

    fn bytes(&self, region: Region) -> &[u8] {
        &self.memory[region.address as usize..][..region.bytes as usize]
    }

    /// The rank calls.
    fn start(&mut self, buffer: u64) {
        for piece in self.contract.before.clone() {
            let at = self.address(piece.span);
            for i in 0..piece.span.len {
                self.memory[at + i as usize] = content(self.calls, piece.source, piece.from + i);
            }
        }
        let list = self.fill(self.calls, buffer);
        list.before.iter().for_each(|step| self.host(step));
        list.tasks.into_iter().for_each(|task| self.post(task.request));
        self.running = Some(list.after);
    }

    fn post(&mut self, request: Request<Region>) {
        match request {
            Request::Receive { on, into } => {
                let receives = self.receives.entry(on).or_default();
                receives.posted.push_back(into);
                receives.enabled += u32::from(on.purpose != Purpose::Data);
            }
            Request::Send { on, from } => self.sends.entry(on).or_default().push_back(from),
            managed => self.management.push_back(managed),
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
        let done = match self.management.front() {
            None => false,
            Some(&Request::WaitReceived { on, count }) => take(&mut self.received, on, count),
            Some(&Request::WaitSent { on, count }) => take(&mut self.sent, on, count),
            Some(&Request::SendEnable { on, count }) => {
                *self.send_enabled.entry(on).or_default() += count;
                true
            }
            Some(&Request::ReceiveEnable { on, count }) => {
                let receives = self.receives.entry(on).or_default();
                receives.enabled += count;
                assert!(receives.enabled as usize <= receives.posted.len(), "more are enabled than posted on {on}");
                true
            }
            Some(Request::Receive { .. } | Request::Send { .. }) => unreachable!("posted elsewhere"),
        };
        if done {
            self.management.pop_front();
        }
        done
    }

    /// The host takes the last completion; the call ends, with the right bytes.
    fn end(&mut self) -> bool {
        if !self.management.is_empty() {
            return false;
        }
        let Some(after) = self.running.take() else { return false };
        after.iter().for_each(|step| self.host(step));
        for piece in &self.contract.after {
            let Contributors::Round { first: source, count: 1 } = piece.of else { unreachable!("data only moves") };
            let at = self.address(piece.span);
            for i in 0..piece.span.len {
                let expected = content(self.calls, source, piece.from + i);
                assert_eq!(self.memory[at + i as usize], expected, "{} byte {i} of {}", self.template.rank, piece.span);
            }
        }
        self.calls += 1;
        true
    }

    fn host(&mut self, step: &HostStep<Region>) {
        match *step {
            HostStep::Copy { from, to } => {
                assert_eq!(from.bytes, to.bytes);
                let start = from.address as usize;
                self.memory.copy_within(start..start + from.bytes as usize, to.address as usize);
            }
            HostStep::Reduce { .. } => unreachable!("these plans only move data"),
        }
    }
}
