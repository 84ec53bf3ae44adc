//! Hosts and the network between them, in virtual time: the one driver of service processes for all kinds of scripts.
//!
//! The player ([`ScenarioRun`](crate::scenario_run::ScenarioRun), [`sequences`](crate::sequences),
//! [`hostile`](crate::hostile)) feeds in the acts of ranks and takes [`steps`](Cluster::step). After each input and
//! each step the player [polls](Cluster::poll) for notifications of ranks. A service process may have no
//! [`SimulatedHost`]: frames for that service process go to the player, which may answer.
//!
//! Invariants: what happens is a function of the plan, the seed, and the player's inputs and their times. Nothing
//! happens between the player's calls. Never knows what ranks call, nor which results are right.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_proto::{
    Config, GroupHandle, GroupMember, GroupSpec, HostId, Instant, MulticastBatch, MulticastChannel, OfferId, SpId,
};

use crate::clock::EventQueue;
use crate::deferred_engine::engine_of;
use crate::faults::{Dice, Faults, LinkCut};
use crate::host::{HostAction, Inbox, Input, SimulatedHost};
use crate::network::{LinkBytes, Network, NetworkPlan, Train, TransitFrame};
use crate::sabotage::Sabotage;
use crate::store::StoreKind;
use crate::violation::Violation;

/// The name of the service process on a host.
pub(crate) fn sp_id(host: usize) -> SpId {
    SpId(0x5e00 + host as u64)
}

pub(crate) fn host_of(sp: SpId) -> usize {
    (sp.0 - sp_id(0).0) as usize
}

pub(crate) fn address_of(machine: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0001 + machine as u32)
}

/// The handle of a group, by its number.
pub(crate) fn handle(group: usize) -> GroupHandle {
    GroupHandle(0x6000 + group as u32)
}

pub(crate) fn group_number(group: GroupHandle) -> Option<usize> {
    Some(group.0.checked_sub(handle(0).0)? as usize)
}

/// Describes a group by the hosts of its ranks. A machine has `siblings` hosts; `link_rate` is in bit/s.
pub(crate) fn group_spec(
    number: usize,
    key: [u64; 2],
    hosts: impl IntoIterator<Item = usize>,
    (siblings, link_rate): (usize, u64),
) -> Rc<GroupSpec> {
    let member = |(rank, host): (usize, usize)| GroupMember {
        sp: sp_id(host),
        sends_from: Some(address_of(host / siblings)),
        link_rate,
        engine: engine_of(host),
        host: HostId((host / siblings) as u64),
        address: Arc::from(&(host as u32).to_le_bytes()[..]),
        offer: OfferId((number as u64) << 32 | rank as u64),
    };
    let members = hosts.into_iter().enumerate().map(member).collect();
    Rc::new(GroupSpec { handle: handle(number), key, members })
}

/// Something that happens at an instant.
#[derive(Debug)]
enum ClusterEvent<P> {
    PlayerEvent(P),
    Timer {
        host: usize,
    },
    Input {
        host: usize,
        input: Input,
    },
    /// The service process resumes after a stall.
    Wake {
        host: usize,
    },
    /// `count` datagrams of a batch, from number `first`, start on the uplink.
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
    FrameAtSwitch(Rc<TransitFrame>),
    /// A frame that waited behind a cut goes on, unless its sender has reconnected since.
    FrameHeld {
        frame: Rc<TransitFrame>,
        connection: u32,
    },
    Joined {
        host: usize,
        channel: MulticastChannel,
    },
}

#[derive(Debug)]
pub(crate) enum ClusterStep<P> {
    /// An event that the player scheduled is due.
    PlayerEvent(P),
    /// A frame would reach a service process without a host, or its sender or receiver is hijacked.
    Frame(Rc<TransitFrame>),
    /// Something else happened.
    Done,
}

#[derive(Debug)]
pub(crate) struct ClusterPlan<'a> {
    /// The configuration of each host's service process.
    pub(crate) configs: Vec<Config>,
    /// How many service processes have no host. Their numbers follow the hosts' numbers.
    pub(crate) missing: usize,
    pub(crate) network: &'a NetworkPlan,
    pub(crate) faults: &'a Faults,
    pub(crate) store: StoreKind,
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether to record a trace.
    pub(crate) trace: bool,
}

#[derive(Debug)]
pub(crate) struct Cluster<P> {
    pub(crate) hosts: Vec<SimulatedHost>,
    /// Inboxes by host.
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) dice: Dice,
    /// This host neither sends nor receives frames: all its frames are shown to the player.
    pub(crate) hijacked: Option<usize>,
    queue: EventQueue<ClusterEvent<P>>,
    network: Network,
    plan: NetworkPlan,
    blackouts: Vec<(usize, Instant, Instant)>,
    cuts: Vec<LinkCut>,
    backoff: Duration,
    /// How often each (from, to) was connected.
    connections: BTreeMap<(usize, usize), u32>,
    /// The earliest delivery time of the next frame of (from, to), so that jitter keeps the order.
    in_order: BTreeMap<(usize, usize), Instant>,
    /// The host that acted last; `actions` holds its remaining actions.
    acting: Option<usize>,
    actions: VecDeque<HostAction>,
    /// Datagrams that a host handles. The field keeps the allocation, which all hosts share.
    batch: Vec<(Rc<Train>, u32)>,
    trace: Option<VecDeque<String>>,
    /// How many altered datagrams each host was sent.
    pub(crate) forged: Vec<u64>,
    /// Events so far.
    steps: u64,
}

const TRACE_LINES: usize = 300;

impl<P: std::fmt::Debug> Cluster<P> {
    pub(crate) fn new(plan: ClusterPlan<'_>, seed: u64) -> Self {
        let mut dice = Dice::new(plan.faults, seed);
        let count = plan.configs.len() + plan.missing;
        let hosts = plan.configs.into_iter().enumerate().map(|(host, config)| {
            SimulatedHost::new(sp_id(host), config, dice.draw(), plan.store, plan.network, plan.sabotage)
        });
        let hosts: Vec<SimulatedHost> = hosts.collect();
        let pause = |pause: &crate::faults::HostPause| {
            (pause.host, Instant(0) + pause.at, Instant(0) + pause.at + pause.lasting)
        };
        Cluster {
            inboxes: hosts.iter().map(|_| Inbox::default()).collect(),
            hosts,
            hijacked: None,
            queue: EventQueue::new(),
            network: Network::new(plan.network, count),
            plan: plan.network.clone(),
            blackouts: plan.faults.blackouts.iter().map(pause).collect(),
            cuts: plan.faults.cuts.clone(),
            backoff: plan.faults.backoff,
            connections: BTreeMap::new(),
            in_order: BTreeMap::new(),
            acting: None,
            actions: VecDeque::new(),
            batch: Vec::new(),
            trace: plan.trace.then(VecDeque::new),
            dice,
            forged: vec![0; count],
            steps: 0,
        }
    }

    pub(crate) fn now(&self) -> Instant {
        self.queue.now()
    }

    /// The last lines of the trace.
    pub(crate) fn trace(&self) -> impl Iterator<Item = &String> {
        self.trace.iter().flatten()
    }

    /// Bytes on the wire so far, by machine.
    pub(crate) fn bytes(&self) -> Vec<LinkBytes> {
        self.network.bytes()
    }

    /// Schedules an event of the player's own.
    pub(crate) fn schedule(&mut self, at: Instant, own: P) {
        self.queue.schedule(at, ClusterEvent::PlayerEvent(own));
    }

    /// Schedules an input of a service process.
    pub(crate) fn deliver_at(&mut self, at: Instant, host: usize, input: Input) {
        self.queue.schedule(at, ClusterEvent::Input { host, input });
    }

    /// Lets the next event happen. Returns `None` if none is left.
    pub(crate) fn step(&mut self) -> Result<Option<ClusterStep<P>>, Violation> {
        let Some(event) = self.queue.pop() else { return Ok(None) };
        let now = self.now();
        self.steps += 1;
        if self.trace.is_some() {
            self.note(trace::event(&event));
        }
        match event {
            ClusterEvent::PlayerEvent(own) => return Ok(Some(ClusterStep::PlayerEvent(own))),
            ClusterEvent::Input { input: Input::Frame(frame), .. } if self.is_intercepted(&frame) => {
                return Ok(Some(ClusterStep::Frame(frame)));
            }
            ClusterEvent::Input { host, input } => self.deliver(host, input)?,
            ClusterEvent::Timer { host } => {
                let h = &mut self.hosts[host];
                if h.timer == Some(now) && !h.dead {
                    h.timer = None;
                    if h.due(now) == Some(now) {
                        self.deliver(host, Input::Timeout)?;
                    } else {
                        self.set_timer(host);
                    }
                }
            }
            ClusterEvent::Wake { host } => {
                let h = &mut self.hosts[host];
                if now >= h.stalled_until && !h.dead {
                    h.wake(now, &mut self.inboxes[host], self.plan.receive_buffer, &mut self.batch)?;
                    self.begin_actions(host);
                }
            }
            ClusterEvent::TrainStarts { host, batch, first, count, ready } => {
                self.train_starts(now, host, &batch, (first, count), ready)?;
            }
            ClusterEvent::TrainAtSwitch(train) => self.train_at_switch(now, &train),
            ClusterEvent::FrameLeft { host } => {
                if let Some(h) = self.hosts.get_mut(host)
                    && !h.dead
                    && h.frame_left()
                {
                    self.deliver(host, Input::Room)?;
                }
            }
            ClusterEvent::FrameAtSwitch(frame) => {
                self.hosts.get_mut(frame.to).map_or(Ok(()), |host| host.handle_frame_header(&frame))?;
                self.frame_at_switch(now, &frame);
            }
            ClusterEvent::FrameHeld { frame, connection } => {
                if connection == self.connection(&frame) {
                    self.deliver(frame.to, Input::Frame(Rc::clone(&frame)))?;
                } else {
                    self.note_loss(frame.from, frame.to, || trace::frame(&frame.header, frame.payload_len));
                }
            }
            ClusterEvent::Joined { host, channel } => {
                if self.hosts[host].receives(channel) {
                    self.network.join(channel, host);
                }
            }
        }
        Ok(Some(ClusterStep::Done))
    }

    /// Delivers an input to a service process, or to its inbox if other inputs wait there or may join it.
    pub(crate) fn deliver(&mut self, host: usize, input: Input) -> Result<(), Violation> {
        let now = self.now();
        let h = &mut self.hosts[host];
        if h.dead {
            return Ok(());
        }
        let inbox = &mut self.inboxes[host];
        let waits = now < h.stalled_until || !inbox.is_empty();
        let gather = match input {
            Input::Datagrams(..) => self.plan.gather,
            Input::Frame(_) => self.plan.gather_frames,
            _ => Duration::ZERO,
        };
        if waits || gather > Duration::ZERO {
            inbox.enqueue(self.queue.due(), input);
            if !waits {
                inbox.wakes = self.queue.schedule(now + gather, ClusterEvent::Wake { host });
            }
            return Ok(());
        }
        h.handle(now, input)?;
        self.begin_actions(host);
        Ok(())
    }

    /// Performs the actions of the host that acted last, until one concerns the player or none is left. The player
    /// polls until `None` after every step and every input.
    pub(crate) fn poll(&mut self) -> Option<(usize, HostAction)> {
        let (now, host) = (self.now(), self.acting?);
        while let Some(action) = self.actions.pop_front() {
            if self.trace.is_some() {
                self.note(trace::action(host, &action));
            }
            match action {
                HostAction::Frame(frame) => self.frame_out(frame),
                HostAction::Batch(batch) => self.batch_out(now, host, batch),
                // Letters between engines may overtake each other.
                HostAction::Letter(letter) => {
                    let at = now + self.plan.latency + self.dice.up_to(self.plan.join_delay);
                    self.queue.schedule(at, ClusterEvent::Input { host: letter.to, input: Input::Letter(letter) });
                }
                HostAction::Join(channel) => {
                    let at = now + self.dice.up_to(self.plan.join_delay);
                    self.queue.schedule(at, ClusterEvent::Joined { host, channel });
                }
                HostAction::Leave(channel) => self.network.leave(channel, host),
                other => {
                    if let HostAction::Connect(peer) = other {
                        *self.connections.entry((host, host_of(peer))).or_default() += 1;
                    }
                    return Some((host, other));
                }
            }
        }
        self.acting = None;
        self.set_timer(host);
        None
    }

    /// Hands the offers of a group's ranks to their service processes.
    pub(crate) fn offer(&mut self, spec: &GroupSpec) {
        for member in &spec.members {
            let host = self.hosts.get_mut(host_of(member.sp));
            host.into_iter().for_each(|host| host.sp.handle_offer(member.offer));
        }
    }

    /// Ends random faults.
    pub(crate) fn end_faults(&mut self) {
        self.dice.end(self.now());
    }

    /// Keeps a service process from handling anything for a while.
    pub(crate) fn stall(&mut self, host: usize, lasting: Duration) {
        let until = self.now() + lasting;
        self.hosts[host].stalled_until = self.hosts[host].stalled_until.max(until);
        self.queue.schedule(until, ClusterEvent::Wake { host });
    }

    pub(crate) fn kill(&mut self, host: usize) {
        self.hosts[host].dead = true;
        for (channel, _) in std::mem::take(&mut self.hosts[host].joined) {
            self.network.leave(channel, host);
        }
    }

    fn is_intercepted(&self, frame: &TransitFrame) -> bool {
        frame.to >= self.hosts.len() || [frame.from, frame.to].into_iter().any(|host| self.hijacked == Some(host))
    }

    fn begin_actions(&mut self, host: usize) {
        debug_assert!(self.acting.is_none(), "the player asks what has come of the last step");
        self.acting = Some(host);
        std::mem::swap(&mut self.actions, &mut self.hosts[host].outbox);
    }

    fn set_timer(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let Some(due) = h.due(self.queue.now()) else { return };
        if h.timer.is_none_or(|under_way| due < under_way) {
            h.timer = Some(due);
            self.queue.schedule(due, ClusterEvent::Timer { host });
        }
    }

    /// Adds a line to the trace, if this run has one.
    fn note(&mut self, line: Option<String>) {
        let at = self.now().0;
        if let (Some(trace), Some(line)) = (&mut self.trace, line) {
            if trace.len() == TRACE_LINES {
                trace.pop_front();
            }
            trace.push_back(format!("{:>12.3} us  {line}", at as f64 / 1000.0));
        }
    }

    /// Adds a loss to the trace.
    fn note_loss(&mut self, from: usize, to: usize, what: impl FnOnce() -> String) {
        if self.trace.is_some() {
            self.note(Some(format!("LOST from host {from} to host {to}: {}", what())));
        }
    }
}

mod forgery;
mod player;
mod trace;
mod transit;

pub(crate) use player::ScriptPlayer;
