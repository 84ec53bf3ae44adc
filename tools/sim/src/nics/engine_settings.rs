//! The interface of each kind of engine to the world.

use std::borrow::Borrow;
use std::error::Error;
use std::fmt::Debug;
use std::sync::Arc;

use outboard_nic::datapath::{self, DatapathEngine};
use outboard_nic::ordered::descriptor::{Descriptor, PortAddress};
use outboard_nic::ordered::{self, OrderedEngine};
use outboard_nic::triggered::{self, TriggeredEngine};
use outboard_nic::{JobError, JobFailure, NicEngine, NodeId, Port, host};
use outboard_plan::{Arguments, PlanError, Program, Rank, Span, Topology};
use outboard_plan_tools as tools;
use outboard_plan_tools::triggered::Communicator;

use super::NicCall;

/// A job whose calls are to be lowered.
#[derive(Debug, Clone, Copy)]
pub struct LoweringJob<'a> {
    pub number: u8,
    pub members: &'a [(NodeId, Port)],
    pub topology: &'a Topology,
    pub calls: &'a [NicCall],
    /// By call and rank, the start of input, output and scratch in the memory of the process.
    pub memory: &'a [Vec<[u64; 3]>],
    /// By call and rank, the contents of the input; empty if bytes are not judged.
    pub inputs: &'a [&'a [Vec<u8>]],
}

/// The posts of each rank, by call and rank.
type RankPosts<P> = Vec<Vec<P>>;

/// A kind of engine, by its settings.
pub trait EngineSettings: Copy + Debug {
    type Engine: NicEngine<Error: Error> + Debug;
    type Post: Borrow<<Self::Engine as NicEngine>::Post> + Debug;
    type LowerError: Error + From<PlanError>;

    fn engine(&self, node: NodeId) -> Self::Engine;

    /// Bytes of a NIC's own memory, and of the memory that its host has registered.
    fn memory_bytes(&self) -> [u64; 2];

    fn lower(&self, job: &LoweringJob<'_>) -> Result<RankPosts<Self::Post>, Self::LowerError>;

    /// Makes a port a member of a job.
    fn open(
        engine: &mut Self::Engine,
        job: u8,
        port: Port,
        members: &[(NodeId, Port)],
    ) -> Result<(), <Self::Engine as NicEngine>::Error>;

    /// The failure of the job, if the failure is the reason for the refusal.
    fn failure(refusal: &<Self::Engine as NicEngine>::Error) -> Option<JobFailure>;

    /// Whether nothing is in flight, and calls have given everything back.
    fn is_idle(engine: &Self::Engine) -> bool;

    /// Whether time may pass while packets are on their way.
    fn races_with_time() -> bool {
        false
    }

    /// The used part of the engine's capacity, in thousandths.
    fn occupancy(_engine: &Self::Engine) -> usize {
        0
    }
}

impl EngineSettings for ordered::OrderedSettings {
    type Engine = OrderedEngine;
    type Post = Vec<Descriptor>;
    type LowerError = tools::ordered::OrderedLowerError;

    fn engine(&self, node: NodeId) -> OrderedEngine {
        OrderedEngine::new(node, *self)
    }

    fn memory_bytes(&self) -> [u64; 2] {
        [OrderedEngine::memory_bytes(self), 0]
    }

    fn lower(&self, job: &LoweringJob<'_>) -> Result<RankPosts<Vec<Descriptor>>, Self::LowerError> {
        let sources = sources(job.members);
        let mut first = 0;
        let mut one = |at: usize| {
            let (call, memory, inputs) = (&job.calls[at], &job.memory[at], job.inputs[at]);
            let lowered =
                call.with_arguments(job.topology, |arguments| tools::ordered::lower(call.choice, arguments, self))?;
            let post = |(rank, [input, output, _]): (u32, &[u64; 3])| {
                let bytes = |span: Span| match inputs.get(rank as usize) {
                    Some(input) => input[span.offset as usize..][..span.len as usize].to_vec(),
                    None => vec![0; span.len as usize],
                };
                let (number, reduction, members) = (job.number, call.reduction, sources.as_slice());
                let (input, output, bytes) = (*input, *output, &bytes);
                let posted = tools::ordered::OrderedCall { job: number, members, reduction, input, output, bytes };
                lowered.post(Rank(rank), &posted, first)
            };
            let posts = (0..).zip(memory).map(post).collect();
            first += lowered.pulses() as u64;
            Ok(posts)
        };
        (0..job.calls.len()).map(&mut one).collect()
    }

    fn open(
        engine: &mut OrderedEngine,
        job: u8,
        port: Port,
        members: &[(NodeId, Port)],
    ) -> Result<(), ordered::OrderedError> {
        engine.open(job, port, sources(members))
    }

    fn failure(refusal: &ordered::OrderedError) -> Option<JobFailure> {
        if let ordered::OrderedError::Job(JobError::Failed { failure, .. }) = refusal { Some(*failure) } else { None }
    }

    fn is_idle(engine: &OrderedEngine) -> bool {
        engine.is_idle()
    }

    fn occupancy(engine: &OrderedEngine) -> usize {
        engine.occupancy()
    }
}

fn sources(members: &[(NodeId, Port)]) -> Vec<PortAddress> {
    members.iter().map(|(node, port)| PortAddress { node: node.0, port: port.0 }).collect()
}

impl EngineSettings for triggered::TriggeredSettings {
    type Engine = TriggeredEngine;
    type Post = triggered::ListPost;
    type LowerError = tools::triggered::TriggeredLowerError;

    fn engine(&self, node: NodeId) -> TriggeredEngine {
        TriggeredEngine::new(node, *self)
    }

    fn memory_bytes(&self) -> [u64; 2] {
        [TriggeredEngine::memory_bytes(self), self.registered_bytes]
    }

    fn lower(&self, job: &LoweringJob<'_>) -> Result<RankPosts<triggered::ListPost>, Self::LowerError> {
        let mut communicator = Communicator::new(job.topology, *self);
        let mut one = |(call, memory): (&NicCall, &Vec<[u64; 3]>)| {
            let lowered = call.with_arguments(job.topology, |arguments| communicator.call(call.choice, arguments))?;
            let post = |(rank, memory): (u32, &[u64; 3])| {
                let (job, reduction) = (job.number, call.reduction);
                lowered.post(Rank(rank), &tools::triggered::ListCall { job, reduction, memory: *memory })
            };
            Ok((0..).zip(memory).map(post).collect())
        };
        job.calls.iter().zip(job.memory).map(&mut one).collect()
    }

    fn open(
        engine: &mut TriggeredEngine,
        job: u8,
        port: Port,
        members: &[(NodeId, Port)],
    ) -> Result<(), triggered::TriggeredError> {
        engine.open(job, port, members.to_vec());
        Ok(())
    }

    fn failure(refusal: &triggered::TriggeredError) -> Option<JobFailure> {
        if let triggered::TriggeredError::Job(JobError::Failed { failure, .. }) = refusal {
            Some(*failure)
        } else {
            None
        }
    }

    fn is_idle(engine: &TriggeredEngine) -> bool {
        engine.is_idle()
    }
}

impl EngineSettings for host::HostSettings {
    type Engine = host::HostEngine;
    type Post = host::ProgramPost;
    type LowerError = tools::host::HostLowerError;

    fn engine(&self, node: NodeId) -> host::HostEngine {
        host::HostEngine::new(node, *self)
    }

    fn memory_bytes(&self) -> [u64; 2] {
        [0, self.staging_bytes]
    }

    fn lower(&self, job: &LoweringJob<'_>) -> Result<RankPosts<host::ProgramPost>, Self::LowerError> {
        programs(job, |call, arguments| tools::host::lower(call.choice, arguments))
    }

    fn open(engine: &mut host::HostEngine, job: u8, port: Port, members: &[(NodeId, Port)]) -> Result<(), JobError> {
        engine.open(job, port, members.to_vec());
        Ok(())
    }

    fn failure(refusal: &JobError) -> Option<JobFailure> {
        if let JobError::Failed { failure, .. } = refusal { Some(*failure) } else { None }
    }

    fn is_idle(engine: &host::HostEngine) -> bool {
        engine.is_idle()
    }
}

/// Posts of ranks that post their programs unchanged.
fn programs<E>(
    job: &LoweringJob<'_>,
    lower: impl Fn(&NicCall, &Arguments<'_>) -> Result<Vec<Arc<Program>>, E>,
) -> Result<RankPosts<host::ProgramPost>, E> {
    let one = |(call, memory): (&NicCall, &Vec<[u64; 3]>)| {
        let programs = call.with_arguments(job.topology, |arguments| lower(call, arguments))?;
        let post = |(program, memory): (_, &[u64; 3])| {
            let (job, reduction) = (job.number, call.reduction);
            host::ProgramPost { job, program, memory: *memory, reduction }
        };
        Ok(programs.into_iter().zip(memory).map(post).collect())
    };
    job.calls.iter().zip(job.memory).map(one).collect()
}

impl EngineSettings for datapath::DatapathSettings {
    type Engine = DatapathEngine;
    type Post = datapath::ProgramPost;
    type LowerError = tools::datapath::DatapathLowerError;

    fn engine(&self, node: NodeId) -> DatapathEngine {
        DatapathEngine::new(node, *self)
    }

    fn memory_bytes(&self) -> [u64; 2] {
        [self.staging_bytes(), 0]
    }

    fn lower(&self, job: &LoweringJob<'_>) -> Result<RankPosts<datapath::ProgramPost>, Self::LowerError> {
        programs(job, |call, arguments| tools::datapath::lower(call.choice, arguments, self))
    }

    fn open(
        engine: &mut DatapathEngine,
        job: u8,
        port: Port,
        members: &[(NodeId, Port)],
    ) -> Result<(), datapath::DatapathError> {
        engine.open(job, port, members.to_vec());
        Ok(())
    }

    fn failure(refusal: &datapath::DatapathError) -> Option<JobFailure> {
        if let datapath::DatapathError::Job(JobError::Failed { failure, .. }) = refusal { Some(*failure) } else { None }
    }

    fn is_idle(engine: &DatapathEngine) -> bool {
        engine.is_idle()
    }

    fn races_with_time() -> bool {
        true
    }
}
