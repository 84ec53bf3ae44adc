//! NICs that carry out collectives themselves, on a network that delays and reorders by choice.
//!
//! A [`NicPlan`] says which jobs there are, where their ranks are and what they call; [`Prepared::play`] carries it out on
//! [order-triggered NICs](outboard_nic::ordered) with real bytes, every event chosen by a seed, and judges: every call
//! ends with the bits of its plan, or with an error that names the dead; nothing is dropped; slots, counters and grants
//! return. [`Prepared::exhaust`] does so in every order of events. Costs only delay, so whatever bytes they bring about is one of
//! these orders.
//!
//! Invariants: a run is a function of plan and choices. Never does IO.

mod conformance;
mod net;
mod reference;
mod service;

use std::collections::BTreeMap;

use outboard_nic::ordered::descriptor::Source;
use outboard_nic::ordered::{Completion, Failure, Ordered, Refusal, Settings};
use outboard_nic::{Node, Port};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Rank, Reduction, Topology};
use outboard_plan_tools::ordered::{self, LowerError, Lowered};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

pub use conformance::{EngineKind, call_of, conformance};
use net::Net;
pub use service::service_process;

/// What ranks contribute.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// What the simulator's scripts contribute.
    Scripted,
    /// Floating-point numbers that cancel: 1e16, 1 and -1e16, by chance. Any other order of additions gives other bits.
    Cancelling,
}

/// One call of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// How it is carried out.
    pub choice: Choice,
    /// The root, where there is one.
    pub root: Rank,
    /// Bytes, as collectives count them.
    pub bytes: u64,
    /// What is combined.
    pub reduction: Option<Reduction>,
    /// What ranks contribute.
    pub values: Values,
}

impl Call {
    /// From or to rank 0.
    #[must_use]
    pub const fn new(choice: Choice, bytes: u64, reduction: Option<Reduction>) -> Self {
        Call { choice, root: Rank(0), bytes, reduction, values: Values::Scripted }
    }

    fn arguments<'a>(&self, topology: &'a Topology) -> Arguments<'a> {
        let element_bytes = self.reduction.map_or(1, |reduction| reduction.element().bytes());
        Arguments { root: self.root, element_bytes, ..Arguments::of(topology, self.bytes) }
    }
}

/// Ranks that call together.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlan {
    /// The node of each rank.
    pub nodes: Vec<u32>,
    /// What all of them call, one after the other, without waiting between.
    pub calls: Vec<Call>,
}

/// What is played.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicPlan {
    /// The jobs, up to 256.
    pub jobs: Vec<JobPlan>,
    /// The sizes of all NICs.
    pub settings: Settings,
    /// The node that dies, behind so many events.
    pub death: Option<(u32, u64)>,
}

/// The numbers of a run in which nothing was found wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Played {
    /// Packets that arrived.
    pub packets: u64,
    /// Calls that ended with their result, on all ranks together.
    pub right: u64,
    /// Those that ended with an error, or were refused after one.
    pub failed: u64,
    /// The largest part of its slots that a unit had in use, in thousandths.
    pub occupancy: usize,
}

/// What was found wrong.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum NicBreach {
    /// The plan cannot be carried out at all.
    #[error(transparent)]
    Lower(#[from] LowerError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(
        "call {call} of {rank} of job {job} ended with other bytes: byte {at} is {found:#04x}, not {expected:#04x}"
    )]
    Bytes { job: usize, rank: Rank, call: usize, at: usize, found: u8, expected: u8 },
    #[error("call {call} of {rank} of job {job} ended with an error that is not so: {failure}")]
    Untrue { job: usize, rank: Rank, call: usize, failure: Failure },
    #[error("calls of {rank} of job {job} never end: {ended} of {calls} did")]
    Endless { job: usize, rank: Rank, ended: usize, calls: usize },
    #[error("{rank} of job {job} left call {call}, a barrier, before all had come")]
    Barrier { job: usize, rank: Rank, call: usize },
    #[error("node {node} keeps slots, counters or grants behind the last call")]
    Kept { node: u32 },
    #[error("node {node} dropped packets: {what}")]
    Dropped { node: u32, what: String },
}

/// Chooses one of so many events.
type Chooser<'a> = dyn FnMut(usize) -> usize + 'a;

/// A plan that is ready to be played again and again.
#[derive(Debug)]
pub struct Prepared<'a> {
    plan: &'a NicPlan,
    jobs: Vec<PreparedJob>,
}

#[derive(Debug)]
struct PreparedJob {
    members: Vec<Source>,
    calls: Vec<PreparedCall>,
}

#[derive(Debug)]
struct PreparedCall {
    /// By rank.
    posts: Vec<Vec<u64>>,
    /// By rank, where input and output lie in the memory of its process, and what both hold in the end.
    places: Vec<(u64, u64)>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
}

impl<'a> Prepared<'a> {
    /// Lowers all calls and finds out what they end with.
    ///
    /// # Errors
    /// When a call does not fit the NIC.
    pub fn new(plan: &'a NicPlan) -> Result<Self, LowerError> {
        let mut ports = BTreeMap::new();
        let mut jobs = Vec::new();
        for (number, job) in plan.jobs.iter().enumerate() {
            let member = |node: &u32| {
                let port: &mut u16 = ports.entry(*node).or_default();
                *port += 1;
                Source { node: *node, port: *port - 1 }
            };
            let members: Vec<Source> = job.nodes.iter().map(member).collect();
            jobs.push(PreparedJob::new(number as u8, job, members, &plan.settings)?);
        }
        Ok(Prepared { plan, jobs })
    }

    /// Plays it with the events that this seed draws.
    ///
    /// # Errors
    /// What was found wrong.
    pub fn play(&self, seed: u64) -> Result<Played, NicBreach> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // Of every fourth rank, nothing is heard until nothing else happens.
        let late = self.jobs.iter().map(|job| job.members.iter().map(|_| rng.random_ratio(1, 4)).collect()).collect();
        Run::new(self, late)?.play(&mut |events| rng.random_range(0..events))
    }

    /// Plays it in every order of events; how many there are, unless there are more than `most`.
    ///
    /// # Errors
    /// The first order in which something was found wrong.
    pub fn exhaust(&self, most: u64) -> Result<Option<u64>, NicBreach> {
        let late: Vec<Vec<bool>> = self.jobs.iter().map(|job| vec![false; job.members.len()]).collect();
        let mut path: Vec<(usize, usize)> = Vec::new();
        for orders in 1..=most {
            let mut at = 0;
            Run::new(self, late.clone())?.play(&mut |events| {
                if at == path.len() {
                    path.push((0, events));
                }
                at += 1;
                path[at - 1].0
            })?;
            while path.last().is_some_and(|(chosen, events)| chosen + 1 == *events) {
                path.pop();
            }
            match path.last_mut() {
                Some((chosen, _)) => *chosen += 1,
                None => return Ok(Some(orders)),
            }
        }
        Ok(None)
    }
}

impl PreparedJob {
    fn new(number: u8, job: &JobPlan, members: Vec<Source>, settings: &Settings) -> Result<Self, LowerError> {
        let topology = Topology::of_hosts(job.nodes.iter().copied()).expect("at most as many ranks as a group has");
        let ranks = topology.ranks();
        let mut ends = vec![0; ranks as usize];
        let (mut first, mut calls) = (0, Vec::new());
        for (index, call) in (0..).zip(&job.calls) {
            let arguments = call.arguments(&topology);
            let lowered: Lowered = ordered::lower(call.choice, &arguments, settings)?;
            let contributed = |rank, bytes| call.contribution(rank, index, bytes);
            let outputs = reference::outputs(call, &arguments, contributed);
            let mut one = PreparedCall { posts: Vec::new(), places: Vec::new(), inputs: Vec::new(), outputs };
            for rank in (0..ranks).map(Rank) {
                let program = outboard_plan::program(call.choice, &arguments, rank)?;
                let input = ends[rank.0 as usize];
                let output = input + program.input_bytes;
                ends[rank.0 as usize] = output + program.output_bytes;
                let (reduction, members) = (call.reduction, members.as_slice());
                let posted = ordered::Call { job: number, members, reduction, input, output };
                one.posts.push(lowered.words(rank, &posted, first));
                one.places.push((input, output));
                one.inputs.push(contributed(rank, program.input_bytes));
            }
            first += lowered.pulses.len() as u64;
            calls.push(one);
        }
        Ok(PreparedJob { members, calls })
    }
}

/// What a rank has done so far.
#[derive(Debug, Clone, Copy, Default)]
struct Progress {
    called: usize,
    ended: usize,
    failed: bool,
}

/// One run.
struct Run<'a> {
    prepared: &'a Prepared<'a>,
    net: Net<Ordered>,
    progress: Vec<Vec<Progress>>,
    late: Vec<Vec<bool>>,
    /// Nodes that have yet to hear of the death.
    untold: Vec<Node>,
    died: bool,
    played: Played,
}

impl<'a> Run<'a> {
    fn new(prepared: &'a Prepared<'a>, late: Vec<Vec<bool>>) -> Result<Self, NicBreach> {
        let settings = prepared.plan.settings;
        let nodes = prepared.plan.jobs.iter().flat_map(|job| &job.nodes).max().map_or(0, |most| most + 1);
        let engines = (0..nodes).map(|node| Ordered::new(Node(node), settings)).collect();
        let mut net = Net::new(engines, Ordered::memory_bytes(&settings));
        for (number, job) in prepared.jobs.iter().enumerate() {
            for (rank, Source { node, port }) in job.members.iter().enumerate() {
                let (node, port) = (Node(*node), Port(*port));
                let engine = net.engine(node).expect("nobody has died");
                engine.open(number as u8, port, job.members.iter().copied())?;
                let memory = net.host(node, port);
                for call in &job.calls {
                    memory.extend(&call.inputs[rank]);
                    memory.extend(call.outputs[rank].iter().map(|byte| !byte));
                }
            }
        }
        let progress = prepared.jobs.iter().map(|job| vec![Progress::default(); job.members.len()]).collect();
        let (untold, died, played) = (Vec::new(), false, Played::default());
        Ok(Run { prepared, net, progress, late, untold, died, played })
    }

    fn play(mut self, choose: &mut Chooser<'_>) -> Result<Played, NicBreach> {
        for event in 0.. {
            if let Some((node, _)) = self.prepared.plan.death.filter(|(_, behind)| *behind == event) {
                self.die(Node(node));
            }
            let posts = self.posts(false);
            let events = posts.len() + self.untold.len() + self.net.flying();
            if events > 0 {
                match choose(events) {
                    at if at < posts.len() => self.post(posts[at])?,
                    at if at < posts.len() + self.untold.len() => self.tell(at - posts.len()),
                    at => self.net.deliver(at - posts.len() - self.untold.len()),
                }
            } else if let Some(late) = self.posts(true).first() {
                self.post(*late)?;
            } else if !self.net.pass_time() {
                break;
            }
            self.take_ended()?;
            let fullest = self.net.engines().map(|(_, engine)| engine.occupancy()).max().unwrap_or(0);
            self.played.occupancy = self.played.occupancy.max(fullest);
        }
        self.judge()
    }

    /// Ranks that can call, by job: those that are in time, or the late ones.
    fn posts(&self, late: bool) -> Vec<(usize, usize)> {
        let mut posts = Vec::new();
        for (job, (prepared, progress)) in self.prepared.jobs.iter().zip(&self.progress).enumerate() {
            let can = |rank: &usize| {
                let alive = !self.is_dead(prepared.members[*rank]);
                alive && progress[*rank].called < prepared.calls.len() && self.late[job][*rank] == late
            };
            posts.extend((0..prepared.members.len()).filter(can).map(|rank| (job, rank)));
        }
        posts
    }

    fn is_dead(&self, member: Source) -> bool {
        self.died && self.prepared.plan.death.is_some_and(|(node, _)| node == member.node)
    }

    fn die(&mut self, node: Node) {
        self.died = true;
        self.net.die(node);
        self.untold = self.net.engines().map(|(node, _)| node).collect();
    }

    fn tell(&mut self, at: usize) {
        let node = self.untold.swap_remove(at);
        let (dead, _) = self.prepared.plan.death.expect("somebody has died");
        self.net.tell_dead(node, Node(dead));
    }

    fn post(&mut self, (job, rank): (usize, usize)) -> Result<(), NicBreach> {
        let prepared = &self.prepared.jobs[job];
        let Source { node, port } = prepared.members[rank];
        let progress = &mut self.progress[job][rank];
        let call = progress.called;
        progress.called += 1;
        match self.net.post(Node(node), Port(port), &prepared.calls[call].posts[rank]) {
            Some(Err(Refusal::Failed { failure, .. })) => self.end((job, rank), Err(failure)),
            Some(posted) => Ok(posted?),
            None => unreachable!("the dead call nothing"),
        }
    }

    fn take_ended(&mut self) -> Result<(), NicBreach> {
        for (node, port, Completion { job, result }) in self.net.ended() {
            let members = &self.prepared.jobs[usize::from(job)].members;
            let at = members.iter().position(|member| (member.node, member.port) == (node.0, port.0));
            self.end((usize::from(job), at.expect("a port of the job")), result)?;
        }
        Ok(())
    }

    /// A call has ended: with the right bytes, or with an error that is so.
    fn end(&mut self, (job, rank): (usize, usize), result: Result<(), Failure>) -> Result<(), NicBreach> {
        let prepared = &self.prepared.jobs[job];
        let call = self.progress[job][rank].ended;
        self.progress[job][rank].ended += 1;
        if let Err(failure) = result {
            self.progress[job][rank].failed = true;
            self.played.failed += 1;
            let dead = prepared.members.iter().find(|member| self.is_dead(**member));
            let is_so = match failure {
                Failure::Dead { node } => dead.is_some_and(|member| member.node == node.0),
                Failure::Counters { counters, tasks, .. } => counters < tasks,
            };
            let rank = Rank(rank as u32);
            return if is_so { Ok(()) } else { Err(NicBreach::Untrue { job, rank, call, failure }) };
        }
        self.played.right += 1;
        let is_barrier = self.prepared.plan.jobs[job].calls[call].choice.collective() == Collective::Barrier;
        if is_barrier && self.progress[job].iter().any(|other| other.called <= call) {
            return Err(NicBreach::Barrier { job, rank: Rank(rank as u32), call });
        }
        let (Source { node, port }, one) = (prepared.members[rank], &prepared.calls[call]);
        let (input, output) = one.places[rank];
        let memory = self.net.host(Node(node), Port(port));
        for (start, expected) in [(input, &one.inputs[rank]), (output, &one.outputs[rank])] {
            let found = &memory[start as usize..][..expected.len()];
            if let Some(at) = (0..expected.len()).find(|at| found[*at] != expected[*at]) {
                let (found, expected) = (found[at], expected[at]);
                return Err(NicBreach::Bytes { job, rank: Rank(rank as u32), call, at, found, expected });
            }
        }
        Ok(())
    }

    /// Whether all calls have ended, and everything was given back.
    fn judge(mut self) -> Result<Played, NicBreach> {
        let mut failed = false;
        for (job, (prepared, progress)) in self.prepared.jobs.iter().zip(&self.progress).enumerate() {
            for (rank, (member, progress)) in prepared.members.iter().zip(progress).enumerate() {
                let (ended, calls) = (progress.ended, prepared.calls.len());
                if ended < calls && !self.is_dead(*member) {
                    return Err(NicBreach::Endless { job, rank: Rank(rank as u32), ended, calls });
                }
                failed |= progress.failed;
            }
        }
        for (Node(node), engine) in self.net.engines() {
            if !engine.is_idle() {
                return Err(NicBreach::Kept { node });
            }
            let counters = engine.counters();
            let dropped = counters.unknown + counters.duplicate + counters.late + counters.ungranted;
            if dropped > 0 && !failed && !self.died {
                return Err(NicBreach::Dropped { node, what: format!("{counters:?}") });
            }
        }
        self.played.packets = self.net.delivered();
        Ok(self.played)
    }
}
