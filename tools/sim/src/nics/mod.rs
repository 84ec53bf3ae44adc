//! NICs that carry out collectives themselves, on a network that delays and reorders by choice.
//!
//! A [`NicPlan`] describes jobs, the places of their ranks, and their calls. [`PreparedPlan::play`] carries the plan
//! out on the [engines](EngineSettings) of `outboard_nic` with real bytes, and a seed chooses every event. Every call
//! ends with the bits of its plan, or with an error that names the dead node. An engine gives back everything that a
//! call has taken. [`PreparedPlan::exhaust`] plays every order of events. Costs only delay events, so a run with costs
//! has one of these orders.
//!
//! Invariants: a run is a function of plan and choices. Never does IO.

mod conformance;
mod engine_settings;
mod events;
pub mod figures;
mod memory;
mod net;
mod reference;
mod resources;
mod run;
mod service;
mod timed;
pub mod trace;

use std::collections::BTreeMap;

use outboard_nic::{JobFailure, NodeId, Port};
use outboard_plan::selection::Choice;
use outboard_plan::{Arguments, Extents, Rank, Reduction, Topology};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use thiserror::Error;

pub use conformance::{EngineKind, call_of, conformance};
pub use engine_settings::{EngineSettings, LoweringJob};
use memory::NicMemory;
use run::NicRun;
use service::service_process;
pub use timed::{Timing, TimingModel};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputValues {
    /// The contributions of the simulator's scripts.
    Scripted,
    /// Floating-point numbers that cancel: 1e16, 1 and -1e16, by chance. Any other order of additions gives other bits.
    Cancelling,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NicCall {
    pub choice: Choice,
    /// The root, if there is one.
    pub root: Rank,
    /// Bytes, as collectives count them.
    pub bytes: u64,
    pub reduction: Option<Reduction>,
    pub values: InputValues,
    /// The seed of allgather blocks of different sizes, some empty; their mean is at most [`NicCall::bytes`].
    pub uneven: Option<u64>,
}

impl NicCall {
    /// A call from or to rank 0.
    pub const fn new(choice: Choice, bytes: u64, reduction: Option<Reduction>) -> Self {
        NicCall { choice, root: Rank(0), bytes, reduction, values: InputValues::Scripted, uneven: None }
    }

    /// Applies `use_them` to the arguments that determine the programs of the call.
    fn with_arguments<T>(&self, topology: &Topology, use_them: impl FnOnce(&Arguments<'_>) -> T) -> T {
        let element_bytes = self.reduction.map_or(1, |reduction| reduction.element().bytes());
        let drawn = |seed: u64| {
            let mut rng = ChaCha8Rng::seed_from_u64(seed);
            let sizes = (0..topology.ranks())
                .map(|_| if rng.random_ratio(1, 4) { 0 } else { rng.random_range(0..=self.bytes) });
            Extents::uneven(sizes.collect::<Vec<_>>()).expect("few bytes on few ranks")
        };
        let extents = self.uneven.map(drawn);
        let extents = extents.as_ref();
        use_them(&Arguments { root: self.root, element_bytes, extents, ..Arguments::of(topology, self.bytes) })
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobPlan {
    pub nodes: Vec<u32>,
    /// The calls of all ranks, one after the other, without waiting in between.
    pub calls: Vec<NicCall>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NicPlan<S> {
    /// The jobs, up to 256.
    pub jobs: Vec<JobPlan>,
    /// The settings of all NICs; their type determines the kind of NIC.
    pub settings: S,
    /// The node that dies, and after how many events.
    pub death: Option<(u32, u64)>,
}

/// The numbers of a run without a violation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NicOutcome {
    pub packets: u64,
    /// Calls that ended with their result, on all ranks together.
    pub right: u64,
    /// Calls that ended with an error, or were refused after one.
    pub failed: u64,
    /// The largest part of a unit's slots in use, in thousandths.
    pub occupancy: usize,
}

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum NicViolation {
    #[error("a NIC does not take what it is to carry out: {why}")]
    Refused { why: String },
    #[error(
        "call {call} of {rank} of job {job} ended with other bytes: byte {at} is {found:#04x}, not {expected:#04x}"
    )]
    Bytes { job: usize, rank: Rank, call: usize, at: usize, found: u8, expected: u8 },
    #[error("call {call} of {rank} of job {job} ended with an error that is not so: {failure}")]
    Untrue { job: usize, rank: Rank, call: usize, failure: JobFailure },
    #[error("calls of {rank} of job {job} never end: {ended} of {calls} did")]
    Endless { job: usize, rank: Rank, ended: usize, calls: usize },
    #[error("{rank} of job {job} left call {call}, a barrier, before all had come")]
    Barrier { job: usize, rank: Rank, call: usize },
    #[error("node {node} keeps some of what its calls had behind the last one")]
    Kept { node: u32 },
}

/// Chooses one of the given number of events.
type Chooser<'a> = dyn FnMut(usize) -> usize + 'a;

/// A plan that is ready to be played again and again.
#[derive(Debug)]
pub struct PreparedPlan<'a, S: EngineSettings> {
    plan: &'a NicPlan<S>,
    jobs: Vec<PreparedJob<S::Post>>,
    /// How many of a thousand multicast packets are lost on their way to a node.
    loss: usize,
}

#[derive(Debug)]
struct PreparedJob<P> {
    members: Vec<(NodeId, Port)>,
    calls: Vec<PreparedCall<P>>,
}

#[derive(Debug)]
struct PreparedCall<P> {
    /// Posts by rank.
    posts: Vec<P>,
    /// By rank, where input, output and scratch lie in the memory of its process, and the final contents of input and
    /// output. Both contents are empty if nothing is judged.
    places: Vec<[u64; 3]>,
    inputs: Vec<Vec<u8>>,
    outputs: Vec<Vec<u8>>,
    scratch: Vec<u64>,
}

impl<P> PreparedCall<P> {
    /// Appends the contents before the call to the memory of a process.
    fn fill(&self, rank: usize, memory: &mut Vec<u8>) {
        memory.extend(&self.inputs[rank]);
        memory.extend(self.outputs[rank].iter().map(|byte| !byte));
        memory.resize(memory.len() + self.scratch[rank] as usize, 0);
    }

    /// The first wrong byte of a process after the call: its place, its value, and the right value.
    fn wrong_byte(&self, rank: usize, memory: &[u8]) -> Option<(usize, u8, u8)> {
        let [input, output, _] = self.places[rank];
        [(input, &self.inputs[rank]), (output, &self.outputs[rank])].into_iter().find_map(|(start, expected)| {
            let found = &memory[start as usize..][..expected.len()];
            (0..expected.len()).find(|at| found[*at] != expected[*at]).map(|at| (at, found[at], expected[at]))
        })
    }
}

impl<'a, S: EngineSettings> PreparedPlan<'a, S> {
    /// Lowers all calls and determines their results.
    pub fn new(plan: &'a NicPlan<S>) -> Result<Self, S::LowerError> {
        Self::prepare(plan, true)
    }

    /// Lowers all calls without bytes, for [`PreparedPlan::time`] alone.
    pub fn without_bytes(plan: &'a NicPlan<S>) -> Result<Self, S::LowerError> {
        Self::prepare(plan, false)
    }

    /// The members of all jobs: job, rank, node and port.
    pub fn members(&self) -> impl Iterator<Item = (usize, Rank, NodeId, Port)> {
        let of = |(number, job): (usize, &PreparedJob<S::Post>)| {
            (0..).zip(job.members.clone()).map(move |(rank, (node, port))| (number, Rank(rank), node, port))
        };
        self.jobs.iter().enumerate().flat_map(of)
    }

    /// The engines of all nodes, with a port for every member, and the memory before the first call.
    fn machines(&self) -> Result<(Vec<S::Engine>, NicMemory), NicViolation> {
        let settings = &self.plan.settings;
        let nodes = self.plan.jobs.iter().flat_map(|job| &job.nodes).max().map_or(0, |most| most + 1);
        let mut engines: Vec<S::Engine> = (0..nodes).map(|node| settings.engine(NodeId(node))).collect();
        let mut memory = NicMemory::new(nodes as usize, settings.memory_bytes());
        for (number, job) in self.jobs.iter().enumerate() {
            for (rank, (node, port)) in job.members.iter().enumerate() {
                S::open(&mut engines[node.0 as usize], number as u8, *port, &job.members).map_err(refused)?;
                let filled = job.calls.iter().filter(|call| !call.inputs.is_empty());
                filled.for_each(|call| call.fill(rank, memory.host(*node, *port)));
            }
        }
        Ok((engines, memory))
    }

    fn prepare(plan: &'a NicPlan<S>, filled: bool) -> Result<Self, S::LowerError> {
        let mut ports = BTreeMap::new();
        let mut jobs = Vec::new();
        for (number, job) in plan.jobs.iter().enumerate() {
            let member = |node: &u32| {
                let port: &mut u16 = ports.entry(*node).or_default();
                *port += 1;
                (NodeId(*node), Port(*port - 1))
            };
            let members: Vec<(NodeId, Port)> = job.nodes.iter().map(member).collect();
            jobs.push(prepare(number as u8, job, members, (&plan.settings, filled))?);
        }
        Ok(PreparedPlan { plan, jobs, loss: 0 })
    }

    /// Makes the network lose `thousandths` in a thousand multicast packets on their way to each node.
    pub fn losing(self, thousandths: usize) -> Self {
        PreparedPlan { loss: thousandths, ..self }
    }

    /// Plays the plan with the events that this seed draws.
    pub fn play(&self, seed: u64) -> Result<NicOutcome, NicViolation> {
        self.watch(seed, |_, _| ())
    }

    /// Like [`Self::play`]; in the end, `watch` receives the engines of all living nodes.
    pub fn watch(&self, seed: u64, watch: impl FnMut(NodeId, &S::Engine)) -> Result<NicOutcome, NicViolation> {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        // About every fourth rank is late: it calls when nothing else can happen.
        let late = self.jobs.iter().map(|job| job.members.iter().map(|_| rng.random_ratio(1, 4)).collect()).collect();
        NicRun::new(self, late)?.play(&mut |events| rng.random_range(0..events), watch)
    }

    /// Plays the plan in every order of events. Returns their number, or `None` if there are more than `most`.
    pub fn exhaust(&self, most: u64) -> Result<Option<u64>, NicViolation> {
        let late: Vec<Vec<bool>> = self.jobs.iter().map(|job| vec![false; job.members.len()]).collect();
        let mut path: Vec<(usize, usize)> = Vec::new();
        for orders in 1..=most {
            let mut at = 0;
            let mut choose = |events| {
                if at == path.len() {
                    path.push((0, events));
                }
                at += 1;
                path[at - 1].0
            };
            NicRun::new(self, late.clone())?.play(&mut choose, |_, _| ())?;
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

fn refused(refusal: impl std::fmt::Display) -> NicViolation {
    NicViolation::Refused { why: refusal.to_string() }
}

/// Lowers the calls of a job, lays out the memory of its processes, and determines the final contents of that memory.
fn prepare<S: EngineSettings>(
    number: u8,
    job: &JobPlan,
    members: Vec<(NodeId, Port)>,
    (settings, filled): (&S, bool),
) -> Result<PreparedJob<S::Post>, S::LowerError> {
    let topology = Topology::of_hosts(job.nodes.iter().copied()).expect("at most as many ranks as a group has");
    let ranks = (0..topology.ranks()).map(Rank);
    let mut ends = vec![0; members.len()];
    let (mut calls, mut memory) = (Vec::new(), Vec::new());
    for (index, call) in (0..).zip(&job.calls) {
        let contributed = |rank, bytes| call.contribution(rank, index, bytes);
        let mut one = PreparedCall {
            posts: Vec::new(),
            places: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            scratch: Vec::new(),
        };
        for rank in ranks.clone() {
            let program =
                call.with_arguments(&topology, |arguments| outboard_plan::program(call.choice, arguments, rank))?;
            let input = ends[rank.0 as usize];
            let (output, scratch) = (input + program.input_bytes, input + program.input_bytes + program.output_bytes);
            ends[rank.0 as usize] = scratch + program.scratch_bytes;
            one.places.push([input, output, scratch]);
            if filled {
                one.inputs.push(contributed(rank, program.input_bytes));
            }
            one.scratch.push(program.scratch_bytes);
        }
        memory.push(one.places.clone());
        calls.push(one);
    }
    let inputs: Vec<&[Vec<u8>]> = calls.iter().map(|call| call.inputs.as_slice()).collect();
    let lowered = LoweringJob {
        number,
        members: &members,
        topology: &topology,
        calls: &job.calls,
        memory: &memory,
        inputs: &inputs,
    };
    let posts = settings.lower(&lowered)?;
    for ((index, call), (one, posts)) in (0..).zip(&job.calls).zip(calls.iter_mut().zip(posts)) {
        one.posts = posts;
        if filled {
            let contributed = |rank, bytes| call.contribution(rank, index, bytes);
            one.outputs = call.with_arguments(&topology, |arguments| reference::outputs(call, arguments, contributed));
        }
    }
    Ok(PreparedJob { members, calls })
}
