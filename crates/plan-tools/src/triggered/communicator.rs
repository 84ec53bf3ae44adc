//! Templates that a communicator keeps, and calls that are filled in (CD-3).
//!
//! Invariants: calls of one kind share their queue pairs, whatever their sizes, and what is posted on a queue pair
//! beforehand is decided when it is made. All ranks make the same calls in one order, so all decide alike.

use std::collections::BTreeMap;
use std::sync::Arc;

use outboard_nic::triggered::list::{Connection, Prepost, Protocol, Template};
use outboard_nic::triggered::{Post, Readiness, Settings};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Algorithm, Arguments, Extents, Program, Rank, Reduction, Topology, program};

use super::{LowerError, Lowering};

/// Templates of one kind of call that are kept; the oldest goes first.
const KEPT: usize = 64;

type Templates = Arc<[Arc<Template>]>;

/// What the programs of a template have been made for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Size {
    /// Blocks of 1 byte, in the place of any.
    Unit,
    /// This call alone: bytes, bytes of an element, and blocks that differ.
    Exact(u64, u64, Option<Extents>),
}

/// Templates, and what they serve.
type Kept = (Protocol, Size, Templates);

/// Calls that have their queue pairs in common.
#[derive(Debug)]
struct Operation {
    choice: Choice,
    root: Rank,
    exclusive: bool,
    in_place: bool,
    /// By rank, what is posted on its queue pairs beforehand.
    preposts: Vec<BTreeMap<Connection, Prepost>>,
    kept: Vec<Kept>,
}

#[derive(Debug, Clone)]
pub struct Lowered {
    /// Which queue pairs it uses.
    pub operation: u16,
    /// By rank.
    pub templates: Arc<[Arc<Template>]>,
    /// Bytes for each byte of the templates.
    pub unit: u64,
}

/// What a template is filled with.
#[derive(Debug, Clone, Copy)]
pub struct Call {
    pub job: u8,
    pub reduction: Option<Reduction>,
    /// Where input, output and scratch of the rank begin in its memory.
    pub memory: [u64; 3],
}

impl Lowered {
    pub fn post(&self, rank: Rank, call: &Call) -> Post {
        Post {
            job: call.job,
            operation: self.operation,
            template: Arc::clone(&self.templates[rank.0 as usize]),
            unit: self.unit,
            memory: call.memory,
            reduction: call.reduction,
        }
    }
}

/// The calls of a group and what is kept of them.
#[derive(Debug)]
pub struct Communicator<'a> {
    topology: &'a Topology,
    settings: Settings,
    operations: Vec<Operation>,
    built: usize,
}

/// Whether the programs of `choice` for blocks of any size are those for blocks of 1 byte, drawn out.
fn grows_with_blocks(choice: Choice, arguments: &Arguments<'_>) -> bool {
    match choice.collective() {
        Collective::Allgather => arguments.extents.is_none() && arguments.bytes > 0,
        Collective::Alltoall | Collective::Gather | Collective::Scatter => arguments.bytes > 0,
        Collective::Broadcast => {
            arguments.bytes > 0 && matches!(choice.algorithm(), Algorithm::Binomial | Algorithm::KNomial { .. })
        }
        Collective::Barrier => true,
        Collective::Reduce | Collective::Allreduce | Collective::ReduceScatter | Collective::Scan => false,
    }
}

impl<'a> Communicator<'a> {
    /// Of the ranks on these hosts, without templates.
    pub fn new(topology: &'a Topology, settings: Settings) -> Self {
        Communicator { topology, settings, operations: Vec::new(), built: 0 }
    }

    /// Templates built so far, each of them for all ranks.
    pub fn built(&self) -> usize {
        self.built
    }

    /// What ranks post for a call, by templates that are kept where there are some.
    pub fn call(&mut self, choice: Choice, arguments: &Arguments<'_>) -> Result<Lowered, LowerError> {
        let arguments = Arguments { topology: self.topology, ..*arguments };
        let Settings { eager_bytes, buffer_bytes, readiness, .. } = self.settings;
        let ready = match readiness {
            Readiness::ClearToSend => Protocol::Rendezvous,
            Readiness::Retry => Protocol::Retry,
        };
        let operation = self.operation(choice, &arguments);
        let eager = arguments.bytes.saturating_mul(self.blocks_of_a_leader(choice)) < eager_bytes;
        let grows = grows_with_blocks(choice, &arguments) && (!eager || arguments.bytes <= buffer_bytes);
        let (size, buffer, unit) = match grows {
            true => (Size::Unit, 1, arguments.bytes.max(1)),
            false => {
                let extents = arguments.extents.cloned();
                (Size::Exact(arguments.bytes, arguments.element_bytes, extents), buffer_bytes, 1)
            }
        };
        let protocol = if eager { Protocol::Eager { buffer } } else { ready };
        if let Some(templates) = self.operations[operation].kept(protocol, &size) {
            return Ok(Lowered { operation: operation as u16, templates, unit });
        }
        let templates = self.build((operation, choice), &arguments, (protocol, size, buffer), ready)?;
        Ok(Lowered { operation: operation as u16, templates, unit })
    }

    /// Blocks that make up what one leader contributes to an allgather among leaders (CD Sec. IV-B); else 1.
    fn blocks_of_a_leader(&self, choice: Choice) -> u64 {
        let leaders = choice.leaders().filter(|_| choice.collective() == Collective::Allgather);
        let most = || (0..self.topology.hosts()).map(|host| self.topology.ranks_of(host).len() as u64).max();
        leaders.and_then(|leaders| Some(most()?.div_ceil(leaders.into()))).unwrap_or(1)
    }

    /// Where calls of that kind are kept.
    fn operation(&mut self, choice: Choice, arguments: &Arguments<'_>) -> usize {
        let Arguments { root, exclusive, in_place, .. } = *arguments;
        let same = |other: &Operation| {
            (other.choice, other.root, other.exclusive, other.in_place) == (choice, root, exclusive, in_place)
        };
        self.operations.iter().position(same).unwrap_or_else(|| {
            let preposts = vec![BTreeMap::new(); self.topology.ranks() as usize];
            self.operations.push(Operation { choice, root, exclusive, in_place, preposts, kept: Vec::new() });
            self.operations.len() - 1
        })
    }

    fn build(
        &mut self,
        (operation, choice): (usize, Choice),
        arguments: &Arguments<'_>,
        (protocol, size, buffer): (Protocol, Size, u64),
        ready: Protocol,
    ) -> Result<Templates, LowerError> {
        let ranks = self.topology.ranks();
        let bytes = match size {
            Size::Unit => u64::from(choice.collective() != Collective::Barrier),
            Size::Exact(bytes, ..) => bytes,
        };
        let one = |rank| program(choice, &Arguments { bytes, ..*arguments }, Rank(rank));
        let programs: Vec<Program> = (0..ranks).map(one).collect::<Result<_, _>>()?;
        let longest = programs.iter().map(|one| one.input_bytes.max(one.output_bytes).max(one.scratch_bytes)).max();
        if size == Size::Unit && longest.unwrap_or(0).checked_mul(arguments.bytes).is_none() {
            return Err(LowerError::Bytes { ranks, bytes: arguments.bytes });
        }
        let lowering = Lowering::new(&programs, self.topology)?;
        let (operation, eager) = (&mut self.operations[operation], matches!(protocol, Protocol::Eager { .. }));
        let mut wanted = Vec::new();
        for (rank, known) in (0..ranks).map(Rank).zip(&mut operation.preposts) {
            let fresh = lowering.connections(rank, buffer);
            for one in &fresh {
                // A long message that waits says nothing about those that do not.
                let buffers = if eager || size == Size::Unit { one.buffers } else { one.buffers.min(1) };
                known.entry(one.connection).or_insert(Prepost { buffers, ..*one });
            }
            wanted.push(fresh);
        }
        // What was posted beforehand may be too little for the messages of this call; those that wait need nothing.
        let fits = |(wanted, known): (&Vec<Prepost>, &BTreeMap<Connection, Prepost>)| {
            wanted.iter().all(|one| one.buffers <= known[&one.connection].buffers)
        };
        let waits = eager && !wanted.iter().zip(&operation.preposts).all(fits);
        let used = if waits { ready } else { protocol };
        let mut templates = Vec::new();
        for (rank, known) in (0..ranks).map(Rank).zip(&operation.preposts) {
            let mut template = lowering.template(rank, used)?;
            template.connections.iter_mut().for_each(|one| *one = known[&one.connection]);
            templates.push(Arc::new(template));
        }
        let templates: Templates = templates.into();
        operation.kept.push((protocol, size, Arc::clone(&templates)));
        if operation.kept.len() > KEPT {
            operation.kept.remove(0);
        }
        self.built += 1;
        Ok(templates)
    }
}

impl Operation {
    fn kept(&self, protocol: Protocol, size: &Size) -> Option<Templates> {
        let found = self.kept.iter().find(|(other, of, _)| *other == protocol && of == size);
        found.map(|(.., templates)| Arc::clone(templates))
    }
}
