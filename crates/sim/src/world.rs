//! One run: the hosts, the network between them, the ranks with their scripts, and the event loop.
//!
//! Invariants: a run is a function of scenario, seed and sabotage; every rank's call is judged the moment it ends; the
//! loop is bounded in virtual time and in bytes on the wire. Never decides what goes wrong (the dice do) nor what is
//! right (the oracle does).

use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::link::WINDOW;
use outboard_proto::{
    Call, CallId, Channel, GroupHandle, GroupSpec, HostId, InstanceId, Instant, Member, MulticastBatch, Overdue, SpId,
};

use crate::breach::Breach;
use crate::clock::EventQueue;
use crate::faults::Dice;
use crate::host::{Action, Host, Input};
use crate::network::{Frame, Network, Train};
use crate::oracle::{CallName, Truth, group_number, handle, sp_id};
use crate::report::Outcome;
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;

/// Something that happens at an instant.
#[derive(Debug)]
enum Happening {
    /// A member of a group looks at what its script says.
    Script {
        group: usize,
        member: usize,
    },
    Timer {
        host: usize,
    },
    /// Reaches a service process.
    Input {
        host: usize,
        input: Input,
    },
    /// Service process goes on after a stall.
    Wake {
        host: usize,
    },
    /// Datagrams `first ..` of a batch start on the uplink.
    TrainStarts {
        host: usize,
        batch: Box<MulticastBatch>,
        first: u32,
        count: u32,
        ready: Instant,
    },
    TrainAtSwitch(Rc<Train>),
    FrameLeft {
        host: usize,
    },
    FrameAtSwitch(Rc<Frame>),
    Joined {
        host: usize,
        channel: Channel,
    },
    RankDies {
        rank: usize,
    },
    MemoryTurnsBad {
        rank: usize,
    },
    HostDies {
        host: usize,
        reported_after: Option<Duration>,
    },
    HostStalls {
        host: usize,
        lasting: Duration,
    },
    /// Something has happened that dying hosts may have waited for.
    HostsMayDie,
}

impl Happening {
    /// Whether it can be the last thing that the ranks wait for.
    fn may_end_all(&self) -> bool {
        matches!(
            self,
            Happening::Script { .. } | Happening::RankDies { .. } | Happening::HostDies { .. } | Happening::HostsMayDie
        )
    }
}

/// How far one member of a group is with its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Has not asked for the group.
    Before,
    /// Has asked.
    Asked,
    /// Calls; `next` is the instance to call next, `open` counts the calls in flight.
    Calling { next: u64, open: usize, failed: bool },
    /// Was refused the group and has yet to leave what was made of it.
    Refused,
    /// Has left.
    Over,
}

/// The state of one run.
#[derive(Debug)]
pub(crate) struct World<'a> {
    scenario: &'a Scenario,
    queue: EventQueue<Happening>,
    hosts: Vec<Host>,
    network: Network,
    dice: Dice,
    truth: Truth,
    specs: Vec<Rc<GroupSpec>>,
    progress: Vec<Vec<Progress>>,
    /// When each member asks for its group.
    create_at: Vec<Vec<Instant>>,
    open: BTreeMap<CallId, CallName>,
    calls_made: u64,
    first_call: Option<Instant>,
    last_completion: Instant,
    /// Ends of calls, in their order.
    ends: Vec<(CallName, Duration)>,
    late_events: u64,
    overdue: Vec<(usize, Duration, Overdue)>,
    errors: u64,
    dying: Vec<bool>,
    /// Hosts that are dead or about to die, with how long after it the fabric reports it.
    host_deaths: Vec<(usize, Option<Duration>)>,
    blackouts: Vec<(usize, Instant, Instant)>,
    /// When a frame of (from, to) is delivered at the earliest, so that jitter keeps the order.
    in_order: BTreeMap<(usize, usize), Instant>,
    trace: Option<VecDeque<String>>,
}

/// Control messages that one block of one collective may have queued on one link.
const BACKLOG_PER_BLOCK: usize = 4;
/// After so many events the bounds of one host are looked at.
const STEPS_PER_CHECK: u64 = 64;
/// Lines of trace that are kept.
const TRACE_LINES: usize = 300;

impl<'a> World<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, sabotage: Option<Sabotage>, trace: bool) -> Self {
        scenario.check();
        let mut dice = Dice::new(&scenario.faults, seed);
        let count = scenario.hosts();
        let hosts = (0..count).map(|host| {
            let mut config = scenario.config.clone();
            if scenario.faults.misconfigured == Some(host) {
                config.chains += 1;
            }
            Host::new(sp_id(host), config, dice.draw(), scenario.store, &scenario.network, sabotage)
        });
        let hosts = hosts.collect();
        let specs = scenario.groups.iter().enumerate().map(|(number, plan)| {
            let member = |rank: &usize| Member {
                sp: sp_id(scenario.host_of[*rank]),
                host: HostId((scenario.host_of[*rank] / scenario.network.siblings) as u64),
                address: Arc::from(&(scenario.host_of[*rank] as u32).to_le_bytes()[..]),
            };
            let members = plan.members.iter().map(member).collect();
            Rc::new(GroupSpec { handle: handle(number), key: [dice.draw(), dice.draw()], job: 1, members })
        });
        let specs = specs.collect();
        let mut world = World {
            scenario,
            queue: EventQueue::new(2 * count),
            hosts,
            network: Network::new(&scenario.network, count),
            truth: Truth::default(),
            specs,
            progress: scenario.groups.iter().map(|g| vec![Progress::Before; g.members.len()]).collect(),
            create_at: Vec::new(),
            open: BTreeMap::new(),
            calls_made: 0,
            first_call: None,
            last_completion: Instant(0),
            ends: Vec::new(),
            late_events: 0,
            overdue: Vec::new(),
            errors: 0,
            dying: vec![false; scenario.host_of.len()],
            host_deaths: Vec::new(),
            blackouts: Vec::new(),
            in_order: BTreeMap::new(),
            trace: trace.then(VecDeque::new),
            dice,
        };
        world.schedule_script();
        world
    }

    fn schedule_script(&mut self) {
        let scenario = self.scenario;
        let start = Instant(0);
        for (group, plan) in scenario.groups.iter().enumerate() {
            let times: Vec<Instant> =
                plan.members.iter().map(|_| start + plan.create + self.dice.up_to(plan.create_spread)).collect();
            for (member, at) in times.iter().enumerate() {
                self.queue.put(*at, Happening::Script { group, member });
            }
            self.create_at.push(times);
        }
        let faults = &scenario.faults;
        for death in &faults.dead_ranks {
            self.queue.put(start + death.at, Happening::RankDies { rank: death.rank });
        }
        for fault in &faults.bad_memory {
            self.queue.put(start + fault.at, Happening::MemoryTurnsBad { rank: fault.rank });
        }
        for death in &faults.dead_hosts {
            let dies = Happening::HostDies { host: death.host, reported_after: death.reported_after };
            self.queue.put(start + death.at, dies);
        }
        for stall in &faults.stalls {
            self.queue.put(start + stall.at, Happening::HostStalls { host: stall.host, lasting: stall.lasting });
        }
        for pause in &faults.blackouts {
            self.blackouts.push((pause.host, start + pause.at, start + pause.at + pause.lasting));
        }
    }

    /// Runs until everything has ended and is quiet.
    pub(crate) fn run(&mut self) -> Result<(), Breach> {
        let patience = self.scenario.patience();
        let deadline = Instant(0) + self.scenario.last_scripted() + patience;
        let bytes_bound = self.bytes_bound();
        let mut quiet_by = None;
        let mut steps = 0u64;
        while let Some(happening) = self.queue.take() {
            let now = self.queue.now();
            if self.trace.is_some() {
                self.note(trace::happening(&happening));
            }
            let may_end = happening.may_end_all();
            self.happen(now, happening)?;
            steps += 1;
            if quiet_by.is_none() && may_end && self.is_over() {
                quiet_by = Some(now + self.scenario.config.dead_after * 3 + Duration::from_secs(5));
            }
            if quiet_by.is_some_and(|by| now > by) {
                break;
            }
            if quiet_by.is_none() && now > deadline {
                return Err(Breach::NotLive { open: self.unfinished(), after: patience });
            }
            if steps.is_multiple_of(STEPS_PER_CHECK) {
                self.check_backlog((steps / STEPS_PER_CHECK) as usize % self.hosts.len())?;
            }
            if steps.is_multiple_of(4096) {
                let sent = self.network.bytes().iter().map(|b| b.up + b.down).sum();
                if sent > bytes_bound {
                    return Err(Breach::Storm { sent, bound: bytes_bound });
                }
            }
        }
        if quiet_by.is_none() {
            return Err(Breach::NotLive { open: self.unfinished(), after: self.queue.now().since(Instant(0)) });
        }
        self.check_quiet()
    }

    /// The queues of a machine are bounded: a window of bulk for each link, and control messages that grow with
    /// what is in flight, never with how often something was tried.
    fn check_backlog(&self, number: usize) -> Result<(), Breach> {
        let host = &self.hosts[number];
        let in_flight: usize = self.scenario.groups.iter().map(|g| (g.window + 1) * g.members.len()).sum();
        let (_, _, messages) = host.sp.load();
        let bound = host.connected.len().max(1) * (WINDOW + BACKLOG_PER_BLOCK * in_flight);
        if messages > bound {
            return Err(Breach::Backlog { sp: sp_id(number), messages, bound });
        }
        Ok(())
    }

    /// Far more than any sensible run sends.
    fn bytes_bound(&self) -> u64 {
        let hosts = self.hosts.len() as u64;
        (1 << 26) + hosts * hosts * (1 << 20) + 100 * self.scenario.received_bytes()
    }

    /// Writes a line down, if this run is written down.
    fn note(&mut self, line: Option<String>) {
        let at = self.queue.now().0;
        if let (Some(trace), Some(line)) = (&mut self.trace, line) {
            if trace.len() == TRACE_LINES {
                trace.pop_front();
            }
            trace.push_back(format!("{:>12.3} us  {line}", at as f64 / 1000.0));
        }
    }

    /// Writes down what is lost on the way.
    fn note_loss(&mut self, from: usize, to: usize, what: impl FnOnce() -> String) {
        if self.trace.is_some() {
            self.note(Some(format!("LOST from host {from} to host {to}: {}", what())));
        }
    }

    fn happen(&mut self, now: Instant, happening: Happening) -> Result<(), Breach> {
        match happening {
            Happening::Script { group, member } => self.pump(now, group, member)?,
            Happening::Timer { host } => {
                if self.hosts[host].timer == Some(now) && !self.hosts[host].dead {
                    self.hosts[host].timer = None;
                    if self.hosts[host].due(now) == Some(now) {
                        self.deliver(now, host, Input::Timeout)?;
                    } else {
                        self.set_timer(host);
                    }
                }
            }
            Happening::Input { host, input } => self.deliver(now, host, input)?,
            Happening::Wake { host } => {
                if now >= self.hosts[host].stalled_until && !self.hosts[host].dead {
                    self.hosts[host].wake(now)?;
                    self.take_actions(now, host)?;
                }
            }
            Happening::TrainStarts { host, batch, first, count, ready } => {
                self.train_starts(now, host, &batch, first, count, ready)?;
            }
            Happening::TrainAtSwitch(train) => self.train_at_switch(now, &train),
            Happening::FrameLeft { host } => {
                if !self.hosts[host].dead && self.hosts[host].frame_left() {
                    self.deliver(now, host, Input::Room)?;
                }
            }
            Happening::FrameAtSwitch(frame) => self.frame_at_switch(now, &frame),
            Happening::Joined { host, channel } => {
                if self.hosts[host].joined.contains(&channel) {
                    self.network.join(channel, host);
                }
            }
            Happening::RankDies { rank } => self.rank_dies(now, rank)?,
            Happening::MemoryTurnsBad { rank } => {
                self.truth.bad_memory.insert(rank);
                for (id, name) in &self.open {
                    if self.scenario.groups[name.group].members[name.member] == rank {
                        self.hosts[self.scenario.host_of[rank]].memory.make_faulty(*id);
                    }
                }
            }
            Happening::HostDies { host, reported_after } => {
                self.host_deaths.push((host, reported_after));
                self.let_hosts_die(now);
            }
            Happening::HostsMayDie => self.let_hosts_die(now),
            Happening::HostStalls { host, lasting } => {
                let until = now + lasting;
                self.hosts[host].stalled_until = self.hosts[host].stalled_until.max(until);
                self.queue.put(until, Happening::Wake { host });
            }
        }
        Ok(())
    }

    /// Brings something to a service process, or to what waits for it.
    fn deliver(&mut self, now: Instant, host: usize, input: Input) -> Result<(), Breach> {
        if self.hosts[host].dead {
            return Ok(());
        }
        let plan = &self.scenario.network;
        let h = &mut self.hosts[host];
        let waits = now < h.stalled_until || !h.inbox.is_empty();
        if waits || (plan.gather > Duration::ZERO && matches!(input, Input::Datagrams(..))) {
            h.enqueue(input, plan.receive_buffer);
            if !waits {
                self.queue.put(now + plan.gather, Happening::Wake { host });
            }
            return Ok(());
        }
        self.hosts[host].handle(now, input)?;
        self.take_actions(now, host)
    }

    fn set_timer(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let Some(due) = h.due(self.queue.now()) else { return };
        if h.timer.is_none_or(|under_way| due < under_way) {
            h.timer = Some(due);
            self.queue.put(due, Happening::Timer { host });
        }
    }

    fn take_actions(&mut self, now: Instant, host: usize) -> Result<(), Breach> {
        let mut actions = std::mem::take(&mut self.hosts[host].outbox);
        for action in actions.drain(..) {
            if self.trace.is_some() {
                self.note(trace::action(host, &action));
            }
            self.act(now, host, action)?;
        }
        self.hosts[host].outbox = actions;
        self.set_timer(host);
        Ok(())
    }

    fn act(&mut self, now: Instant, host: usize, action: Action) -> Result<(), Breach> {
        match action {
            Action::Frame { to, header, payload, payload_len } => {
                let to = (to.0 - sp_id(0).0) as usize;
                let len = header.len() as u64 + u64::from(payload_len);
                let config = &self.scenario.config;
                let segments = len.div_ceil(u64::from(config.chunk_bytes)).max(1);
                let wire_bytes = len + segments * u64::from(config.datagram_overhead);
                let frame = Frame { from: host, to, header, payload, payload_len, wire_bytes };
                self.frame_out(now, Rc::new(frame));
            }
            Action::Batch(batch) => self.batch_out(now, host, batch),
            Action::Connect(peer) => {
                let dead = self.host_deaths.iter().find(|(h, _)| sp_id(*h) == peer);
                if let Some((_, Some(after))) = dead.copied()
                    && self.hosts[(peer.0 - sp_id(0).0) as usize].dead
                {
                    self.report_death(now, host, peer, after);
                }
            }
            Action::Join(channel) => {
                let at = now + self.dice.up_to(self.scenario.network.join_delay);
                self.queue.put(at, Happening::Joined { host, channel });
            }
            Action::Leave(channel) => self.network.leave(channel, host),
            Action::GroupReady { group, rank, result } => {
                let (number, member) = self.place(group, rank)?;
                let progress = &mut self.progress[number][member];
                if *progress != Progress::Asked {
                    return Err(Breach::UnaskedReady { group, rank });
                }
                let ready = Progress::Calling { next: 1, open: 0, failed: false };
                *progress = if result.is_ok() { ready } else { Progress::Refused };
                if result.is_ok() {
                    self.record(number, member);
                }
                self.truth.judge_group(self.scenario, number, member, &result)?;
                self.queue.put(now, Happening::HostsMayDie);
                self.queue.put(now, Happening::Script { group: number, member });
            }
            Action::Completed { call, result, output } => {
                let name = self.open.remove(&call).ok_or(Breach::CompletedTwice(call))?;
                if let Progress::Calling { open, failed, .. } = &mut self.progress[name.group][name.member] {
                    *open -= 1;
                    *failed |= result.is_err();
                }
                self.errors += u64::from(result.is_err());
                self.last_completion = now;
                self.ends.push((name, now.since(Instant(0))));
                self.truth.judge(self.scenario, name, &result, output)?;
                self.queue.put(now, Happening::Script { group: name.group, member: name.member });
            }
            Action::Late { group, rank } => {
                self.place(group, rank)?;
                self.late_events += 1;
            }
            Action::Overdue(overdue) => {
                self.truth.judge_overdue(self.scenario, &overdue)?;
                self.overdue.push((host, now.since(Instant(0)), *overdue));
            }
        }
        Ok(())
    }

    fn place(&self, group: GroupHandle, rank: Rank) -> Result<(usize, usize), Breach> {
        let number = group_number(self.scenario, group).ok_or(Breach::UnaskedReady { group, rank })?;
        let member = rank.0 as usize;
        if member >= self.scenario.groups[number].members.len() {
            return Err(Breach::UnaskedReady { group, rank });
        }
        Ok((number, member))
    }
}

mod script;
mod trace;
mod transit;
