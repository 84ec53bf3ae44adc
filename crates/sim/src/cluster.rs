//! Hosts and the network between them, in virtual time: the one driver of service processes, whoever writes the script.
//!
//! The player ([`World`](crate::world::World), [`sequences`](crate::sequences), [`hostile`](crate::hostile)) brings in
//! what ranks do, takes [`steps`](Cluster::step), and after each of both [asks](Cluster::poll) what ranks are told.
//! Service processes may be missing: frames for one that has no [`Host`] are shown to the player, who may answer.
//!
//! Invariants: what happens is a function of plan and seed and of what the player does when; nothing happens between
//! the player's questions. Never knows what ranks call, nor what is right.

use std::collections::{BTreeMap, VecDeque};
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use outboard_proto::{Channel, Config, GroupHandle, GroupSpec, HostId, Instant, Member, MulticastBatch, OfferId, SpId};

use crate::breach::Breach;
use crate::clock::EventQueue;
use crate::engine::engine_of;
use crate::faults::{Cut, Dice, Faults};
use crate::host::{Action, Host, Inbox, Input};
use crate::network::{Frame, LinkBytes, Network, NetworkPlan, Train};
use crate::sabotage::Sabotage;
use crate::store::StoreKind;

/// The name of the service process on a host.
pub(crate) fn sp_id(host: usize) -> SpId {
    SpId(0x5e00 + host as u64)
}

/// The host of a service process.
pub(crate) fn host_of(sp: SpId) -> usize {
    (sp.0 - sp_id(0).0) as usize
}

/// The address of a machine.
pub(crate) fn address_of(machine: usize) -> Ipv4Addr {
    Ipv4Addr::from_bits(0x0a00_0001 + machine as u32)
}

/// The handle of a group, by its number.
pub(crate) fn handle(group: usize) -> GroupHandle {
    GroupHandle(0x6000 + group as u32)
}

/// The number of a group.
pub(crate) fn group_number(group: GroupHandle) -> Option<usize> {
    Some(group.0.checked_sub(handle(0).0)? as usize)
}

/// A group by the hosts of its ranks, `siblings` of which are on one machine, with links of so many bit/s.
pub(crate) fn group_spec(
    number: usize,
    key: [u64; 2],
    hosts: impl IntoIterator<Item = usize>,
    (siblings, link_rate): (usize, u64),
) -> Rc<GroupSpec> {
    let member = |(rank, host): (usize, usize)| Member {
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
enum Happening<P> {
    /// What the player has put in.
    Own(P),
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
    /// What has waited behind a cut goes on, unless its sender has made another connection since.
    FrameHeld {
        frame: Rc<Frame>,
        connection: u32,
    },
    Joined {
        host: usize,
        channel: Channel,
    },
}

/// What one step was.
#[derive(Debug)]
pub(crate) enum Step<P> {
    /// Something of the player's own is due.
    Own(P),
    /// A frame would reach a service process that has no host, or goes from or to the hijacked one.
    Frame(Rc<Frame>),
    /// Something else has happened.
    Done,
}

/// What a cluster is made of.
#[derive(Debug)]
pub(crate) struct ClusterPlan<'a> {
    /// What the service process of each host is told.
    pub(crate) configs: Vec<Config>,
    /// Service processes behind them that have no host.
    pub(crate) missing: usize,
    pub(crate) network: &'a NetworkPlan,
    pub(crate) faults: &'a Faults,
    pub(crate) store: StoreKind,
    pub(crate) sabotage: Option<Sabotage>,
    /// Whether what happens is written down.
    pub(crate) trace: bool,
}

#[derive(Debug)]
pub(crate) struct Cluster<P> {
    pub(crate) hosts: Vec<Host>,
    /// By host.
    pub(crate) inboxes: Vec<Inbox>,
    pub(crate) dice: Dice,
    /// A host of which no frame reaches anybody, nor any frame it: they are shown to the player.
    pub(crate) hijacked: Option<usize>,
    queue: EventQueue<Happening<P>>,
    network: Network,
    plan: NetworkPlan,
    blackouts: Vec<(usize, Instant, Instant)>,
    cuts: Vec<Cut>,
    backoff: Duration,
    /// How often (from, to) was connected.
    connections: BTreeMap<(usize, usize), u32>,
    /// When a frame of (from, to) is delivered at the earliest, so that jitter keeps the order.
    in_order: BTreeMap<(usize, usize), Instant>,
    /// The host that has acted last, and what of it is still to be done.
    acting: Option<usize>,
    actions: VecDeque<Action>,
    /// Datagrams that a host handles. Kept for its memory, which all hosts share.
    batch: Vec<(Rc<Train>, u32)>,
    trace: Option<VecDeque<String>>,
    /// Altered datagrams that each host was sent.
    pub(crate) forged: Vec<u64>,
    /// Events so far.
    steps: u64,
}

/// Of each host: what leaves it, what is on its way from it, and what is on its way to it.
const LANES: usize = 3;
/// Lines of trace that are kept.
const TRACE_LINES: usize = 300;

impl<P: std::fmt::Debug> Cluster<P> {
    pub(crate) fn new(plan: ClusterPlan<'_>, seed: u64) -> Self {
        let mut dice = Dice::new(plan.faults, seed);
        let count = plan.configs.len() + plan.missing;
        let hosts =
            plan.configs.into_iter().enumerate().map(|(host, config)| {
                Host::new(sp_id(host), config, dice.draw(), plan.store, plan.network, plan.sabotage)
            });
        let hosts: Vec<Host> = hosts.collect();
        let pause = |pause: &crate::faults::HostPause| {
            (pause.host, Instant(0) + pause.at, Instant(0) + pause.at + pause.lasting)
        };
        Cluster {
            inboxes: hosts.iter().map(|_| Inbox::new()).collect(),
            hosts,
            hijacked: None,
            queue: EventQueue::new(LANES * count),
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

    /// Virtual time.
    pub(crate) fn now(&self) -> Instant {
        self.queue.now()
    }

    /// The last lines of what was written down.
    pub(crate) fn trace(&self) -> impl Iterator<Item = &String> {
        self.trace.iter().flatten()
    }

    /// Bytes on the wire so far, by machine.
    pub(crate) fn bytes(&self) -> Vec<LinkBytes> {
        self.network.bytes()
    }

    /// Puts in something of the player's own.
    pub(crate) fn put(&mut self, at: Instant, own: P) {
        self.queue.put(at, Happening::Own(own));
    }

    /// Something reaches a service process later.
    pub(crate) fn deliver_at(&mut self, at: Instant, host: usize, input: Input) {
        self.queue.put(at, Happening::Input { host, input });
    }

    /// The next thing happens; `None` if nothing is left.
    pub(crate) fn step(&mut self) -> Result<Option<Step<P>>, Breach> {
        let Some(happening) = self.queue.take() else { return Ok(None) };
        let now = self.now();
        self.steps += 1;
        if self.trace.is_some() {
            self.note(trace::happening(&happening));
        }
        match happening {
            Happening::Own(own) => return Ok(Some(Step::Own(own))),
            Happening::Input { input: Input::Frame(frame), .. } if self.is_shown(&frame) => {
                return Ok(Some(Step::Frame(frame)));
            }
            Happening::Input { host, input } => {
                self.deliver(host, input)?;
                self.gather(host);
            }
            Happening::Timer { host } => {
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
            Happening::Wake { host } => {
                let h = &mut self.hosts[host];
                if now >= h.stalled_until && !h.dead {
                    h.wake(now, &mut self.inboxes[host], self.plan.receive_buffer, &mut self.batch)?;
                    self.acts(host);
                }
            }
            Happening::TrainStarts { host, batch, first, count, ready } => {
                self.train_starts(now, host, &batch, (first, count), ready)?;
            }
            Happening::TrainAtSwitch(train) => self.train_at_switch(now, &train),
            Happening::FrameLeft { host } => {
                if let Some(h) = self.hosts.get_mut(host)
                    && !h.dead
                    && h.frame_left()
                {
                    self.deliver(host, Input::Room)?;
                }
            }
            Happening::FrameAtSwitch(frame) => {
                self.hosts.get_mut(frame.to).map_or(Ok(()), |host| host.begin(&frame))?;
                self.frame_at_switch(now, &frame);
            }
            Happening::FrameHeld { frame, connection } => {
                if connection == self.connection(&frame) {
                    self.deliver(frame.to, Input::Frame(Rc::clone(&frame)))?;
                    self.gather(frame.to);
                } else {
                    self.note_loss(frame.from, frame.to, || trace::frame(&frame.header, frame.payload_len));
                }
            }
            Happening::Joined { host, channel } => {
                if self.hosts[host].receives(channel) {
                    self.network.join(channel, host);
                }
            }
        }
        Ok(Some(Step::Done))
    }

    /// Brings something to a service process, or to what waits for it.
    pub(crate) fn deliver(&mut self, host: usize, input: Input) -> Result<(), Breach> {
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
                inbox.wakes = self.queue.put(now + gather, Happening::Wake { host });
            }
            return Ok(());
        }
        h.handle(now, input)?;
        self.acts(host);
        Ok(())
    }

    /// What arrives before a host wakes only joins what waits there, so it need not be an event for each datagram.
    fn gather(&mut self, host: usize) {
        let (lane, inbox) = (self.down_lane(host), &mut self.inboxes[host]);
        if self.trace.is_some() || inbox.is_empty() {
            return;
        }
        while let Some((due, happening)) = self.queue.take_ahead(lane, inbox.wakes) {
            if let Happening::Input { input, .. } = happening {
                inbox.enqueue(due, input);
            }
        }
    }

    /// What a host does, until it tells its ranks something or nothing is left. Asked until then after every step, and
    /// after everything brought in.
    pub(crate) fn poll(&mut self) -> Option<(usize, Action)> {
        let (now, host) = (self.now(), self.acting?);
        while let Some(action) = self.actions.pop_front() {
            if self.trace.is_some() {
                self.note(trace::action(host, &action));
            }
            match action {
                Action::Frame(frame) => self.frame_out(frame),
                Action::Batch(batch) => self.batch_out(now, host, batch),
                // They overtake each other.
                Action::Letter(letter) => {
                    let at = now + self.plan.latency + self.dice.up_to(self.plan.join_delay);
                    self.queue.put(at, Happening::Input { host: letter.to, input: Input::Letter(letter) });
                }
                Action::Join(channel) => {
                    let at = now + self.dice.up_to(self.plan.join_delay);
                    self.queue.put(at, Happening::Joined { host, channel });
                }
                Action::Leave(channel) => self.network.leave(channel, host),
                told => {
                    if let Action::Connect(peer) = told {
                        *self.connections.entry((host, host_of(peer))).or_default() += 1;
                    }
                    return Some((host, told));
                }
            }
        }
        self.acting = None;
        self.set_timer(host);
        None
    }

    /// The ranks of a group have made their offers.
    pub(crate) fn offer(&mut self, spec: &GroupSpec) {
        for member in &spec.members {
            let host = self.hosts.get_mut(host_of(member.sp));
            host.into_iter().for_each(|host| host.sp.handle_offer(member.offer));
        }
    }

    /// Nothing goes wrong by chance from now on.
    pub(crate) fn end_faults(&mut self) {
        self.dice.end(self.now());
    }

    /// A service process handles nothing for a while.
    pub(crate) fn stall(&mut self, host: usize, lasting: Duration) {
        let until = self.now() + lasting;
        self.hosts[host].stalled_until = self.hosts[host].stalled_until.max(until);
        self.queue.put(until, Happening::Wake { host });
    }

    /// A service process dies.
    pub(crate) fn kill(&mut self, host: usize) {
        self.hosts[host].dead = true;
        for (channel, _) in std::mem::take(&mut self.hosts[host].joined) {
            self.network.leave(channel, host);
        }
    }

    fn is_shown(&self, frame: &Frame) -> bool {
        frame.to >= self.hosts.len() || [frame.from, frame.to].into_iter().any(|host| self.hijacked == Some(host))
    }

    fn acts(&mut self, host: usize) {
        debug_assert!(self.acting.is_none(), "the player asks what has come of the last step");
        self.acting = Some(host);
        std::mem::swap(&mut self.actions, &mut self.hosts[host].outbox);
    }

    fn set_timer(&mut self, host: usize) {
        let h = &mut self.hosts[host];
        let Some(due) = h.due(self.queue.now()) else { return };
        if h.timer.is_none_or(|under_way| due < under_way) {
            h.timer = Some(due);
            self.queue.put(due, Happening::Timer { host });
        }
    }

    /// Writes a line down, if this run is written down.
    fn note(&mut self, line: Option<String>) {
        let at = self.now().0;
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
}

mod forgery;
mod player;
mod trace;
mod transit;

pub(crate) use player::Player;
