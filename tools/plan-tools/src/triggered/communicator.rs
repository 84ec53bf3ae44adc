//! Templates that a communicator keeps, and calls that fill them in (CD-3).
//!
//! Invariants: calls of one kind share their queue pairs, whatever their sizes. The number of preposted receives is
//! fixed when a queue pair is created. All ranks make the same calls in one order, so all ranks fix the same number.

use std::collections::BTreeMap;
use std::sync::Arc;

use outboard_nic::triggered::list::{ListTemplate, PeerConnection, Prepost, TransferProtocol};
use outboard_nic::triggered::{ListPost, Readiness, TriggeredSettings};
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Algorithm, Arguments, Extents, Program, Rank, Reduction, Topology, program};

use super::{Lowering, TriggeredLowerError};

/// Most templates that are kept for one kind of call; the oldest is dropped first.
const MAX_CACHED: usize = 64;

type Templates = Arc<[Arc<ListTemplate>]>;

/// The sizes for which the programs of a template are made.
#[derive(Debug, Clone, PartialEq, Eq)]
enum TemplateSize {
    /// Blocks of 1 byte, which stand for blocks of any size.
    Unit,
    /// This call alone. The fields are the bytes, the bytes of an element, and uneven blocks.
    Exact(u64, u64, Option<Extents>),
}

/// Templates, with the protocol and size that they serve.
type CachedTemplates = (TransferProtocol, TemplateSize, Templates);

/// Calls that share their queue pairs.
#[derive(Debug)]
struct CachedOperation {
    choice: Choice,
    root: Rank,
    exclusive: bool,
    in_place: bool,
    /// By rank, the preposted receives of its queue pairs.
    preposts: Vec<BTreeMap<PeerConnection, Prepost>>,
    cached: Vec<CachedTemplates>,
}

#[derive(Debug, Clone)]
pub struct LoweredLists {
    /// The operation that owns the queue pairs of the call.
    pub operation: u16,
    /// Templates, by rank.
    pub templates: Arc<[Arc<ListTemplate>]>,
    /// Bytes of the call for each byte of the templates.
    pub unit: u64,
}

/// The values that fill in a template.
#[derive(Debug, Clone, Copy)]
pub struct ListCall {
    pub job: u8,
    pub reduction: Option<Reduction>,
    /// Addresses in the rank's memory at which input, output and scratch begin.
    pub memory: [u64; 3],
}

impl LoweredLists {
    pub fn post(&self, rank: Rank, call: &ListCall) -> ListPost {
        ListPost {
            job: call.job,
            operation: self.operation,
            template: Arc::clone(&self.templates[rank.0 as usize]),
            unit: self.unit,
            memory: call.memory,
            reduction: call.reduction,
        }
    }
}

/// The operations of a group, with their kept templates.
#[derive(Debug)]
pub struct Communicator<'a> {
    topology: &'a Topology,
    settings: TriggeredSettings,
    operations: Vec<CachedOperation>,
    built: usize,
}

/// Whether the programs of `choice` for blocks of any size are the programs for blocks of 1 byte, scaled up.
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
    /// A communicator of the ranks of `topology`, without templates.
    pub fn new(topology: &'a Topology, settings: TriggeredSettings) -> Self {
        Communicator { topology, settings, operations: Vec::new(), built: 0 }
    }

    /// Number of templates built so far, each for all ranks.
    pub fn built(&self) -> usize {
        self.built
    }

    /// Lowers a call, from kept templates if there are any for it.
    pub fn call(&mut self, choice: Choice, arguments: &Arguments<'_>) -> Result<LoweredLists, TriggeredLowerError> {
        let arguments = Arguments { topology: self.topology, ..*arguments };
        let TriggeredSettings { eager_bytes, buffer_bytes, readiness, .. } = self.settings;
        let ready = match readiness {
            Readiness::ClearToSend => TransferProtocol::Rendezvous,
            Readiness::Retry => TransferProtocol::Retry,
        };
        let operation = self.operation(choice, &arguments);
        let eager = arguments.bytes.saturating_mul(self.blocks_of_a_leader(choice)) < eager_bytes;
        let grows = grows_with_blocks(choice, &arguments) && (!eager || arguments.bytes <= buffer_bytes);
        let (size, buffer, unit) = match grows {
            true => (TemplateSize::Unit, 1, arguments.bytes.max(1)),
            false => {
                let extents = arguments.extents.cloned();
                (TemplateSize::Exact(arguments.bytes, arguments.element_bytes, extents), buffer_bytes, 1)
            }
        };
        let protocol = if eager { TransferProtocol::Eager { buffer } } else { ready };
        if let Some(templates) = self.operations[operation].cached(protocol, &size) {
            return Ok(LoweredLists { operation: operation as u16, templates, unit });
        }
        let templates = self.build((operation, choice), &arguments, (protocol, size, buffer), ready)?;
        Ok(LoweredLists { operation: operation as u16, templates, unit })
    }

    /// Blocks that one leader contributes to an allgather among leaders (CD Sec. IV-B); 1 for other calls.
    fn blocks_of_a_leader(&self, choice: Choice) -> u64 {
        let leaders = choice.leaders().filter(|_| choice.collective() == Collective::Allgather);
        let most = || (0..self.topology.hosts()).map(|host| self.topology.ranks_of(host).len() as u64).max();
        leaders.and_then(|leaders| Some(most()?.div_ceil(leaders.into()))).unwrap_or(1)
    }

    /// The index of the operation for this kind of call; adds the operation if there is none.
    fn operation(&mut self, choice: Choice, arguments: &Arguments<'_>) -> usize {
        let Arguments { root, exclusive, in_place, .. } = *arguments;
        let same = |other: &CachedOperation| {
            (other.choice, other.root, other.exclusive, other.in_place) == (choice, root, exclusive, in_place)
        };
        self.operations.iter().position(same).unwrap_or_else(|| {
            let preposts = vec![BTreeMap::new(); self.topology.ranks() as usize];
            self.operations.push(CachedOperation { choice, root, exclusive, in_place, preposts, cached: Vec::new() });
            self.operations.len() - 1
        })
    }

    fn build(
        &mut self,
        (operation, choice): (usize, Choice),
        arguments: &Arguments<'_>,
        (protocol, size, buffer): (TransferProtocol, TemplateSize, u64),
        ready: TransferProtocol,
    ) -> Result<Templates, TriggeredLowerError> {
        let ranks = self.topology.ranks();
        let bytes = match size {
            TemplateSize::Unit => u64::from(choice.collective() != Collective::Barrier),
            TemplateSize::Exact(bytes, ..) => bytes,
        };
        let one = |rank| program(choice, &Arguments { bytes, ..*arguments }, Rank(rank));
        let programs: Vec<Program> = (0..ranks).map(one).collect::<Result<_, _>>()?;
        let longest = programs.iter().map(|one| one.input_bytes.max(one.output_bytes).max(one.scratch_bytes)).max();
        if size == TemplateSize::Unit && longest.unwrap_or(0).checked_mul(arguments.bytes).is_none() {
            return Err(TriggeredLowerError::Bytes { ranks, bytes: arguments.bytes });
        }
        let lowering = Lowering::new(&programs, self.topology)?;
        let (operation, eager) = (&mut self.operations[operation], matches!(protocol, TransferProtocol::Eager { .. }));
        let mut wanted = Vec::new();
        for (rank, known) in (0..ranks).map(Rank).zip(&mut operation.preposts) {
            let fresh = lowering.connections(rank, buffer);
            for one in &fresh {
                // A long message waits for its receiver, so its size does not determine the number of eager buffers.
                let buffers = if eager || size == TemplateSize::Unit { one.buffers } else { one.buffers.min(1) };
                known.entry(one.connection).or_insert(Prepost { buffers, ..*one });
            }
            wanted.push(fresh);
        }
        // The preposted buffers may be too few for this call. Then the call's messages wait for receivers and need no
        // buffers.
        let fits = |(wanted, known): (&Vec<Prepost>, &BTreeMap<PeerConnection, Prepost>)| {
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
        operation.cached.push((protocol, size, Arc::clone(&templates)));
        if operation.cached.len() > MAX_CACHED {
            operation.cached.remove(0);
        }
        self.built += 1;
        Ok(templates)
    }
}

impl CachedOperation {
    fn cached(&self, protocol: TransferProtocol, size: &TemplateSize) -> Option<Templates> {
        let found = self.cached.iter().find(|(other, of, _)| *other == protocol && of == size);
        found.map(|(.., templates)| Arc::clone(templates))
    }
}
