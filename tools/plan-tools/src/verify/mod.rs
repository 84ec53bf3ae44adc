//! Proves a plan by symbolic execution over the programs of all ranks.
//!
//! The verifier proves, for every timing and every transport that delivers messages once and intact:
//! - every rank ends with the promise of its [`Contract`] and nothing else in `Output`: the right contributions in the
//!   right order, for reductions both in place and not;
//! - no rank waits for ever, not even if a send completes only when its receive is posted;
//! - no two operations of a rank touch the same bytes unless both read or one is complete before the other starts;
//! - messages have unique names and equal lengths on both ends; a multicast is received by all other ranks;
//! - receives of message data wait for nothing (MC-4), and no more roots multicast at once than `chains` allows (MC-8).
//!
//! Unordered operations never conflict, so the outcome does not depend on the order of execution. Therefore executing
//! one order proves all orders. Bytes are tracked as ranges with provenance; cost grows with steps and ranges, not with
//! bytes. The verifier needs the programs of the whole group, so it is for tests and tools, not for the path of a call.
//!
//! The completion of a rank's own send decides when the rank may reuse the sent memory. Arrival at the receiver is not
//! enough, because a transport may still read the memory to repeat the message.

mod check;
mod combination;
mod error;
mod graph;
mod memory;
mod values;

pub use combination::{ContributionFault, Contributors, PromisedSpan};
pub use error::{StepLocation, VerifyError};
pub(crate) use graph::{StepEvent, StepGraph, StepNode};

use std::collections::{HashMap, HashSet};

use memory::{SymbolicBuffer, ValueRun};
use outboard_plan::{Buffer, Op, Program, Rank, Span};
use values::{TreeId, ValueTrees};

/// A span that holds part of a rank's contribution to the collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ContributionSpan {
    pub span: Span,
    pub source: Rank,
    /// The byte of the contribution at which the span begins.
    pub from: u64,
}

/// The demands and promises of a collective for one rank.
///
/// If several ranks are promised the same combinations, they are also promised the same bits. Therefore all these ranks
/// must combine the same pairs of operands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contract {
    /// Bytes of an element of a reduction, which no step may cut; `None` if data only moves.
    pub element_bytes: Option<u64>,
    pub input_bytes: u64,
    pub output_bytes: u64,
    /// Contents of the buffers before the call.
    pub before: Vec<ContributionSpan>,
    /// Contents of `Output` after the call. No two spans overlap.
    pub after: Vec<PromisedSpan>,
}

/// Proves that `programs`, in rank order, fulfil the contracts of all ranks. Reductions are proven for separate `Input`
/// and `Output`, and for both at the same address.
///
/// # Errors
/// The first defect found, naming rank and step.
///
/// # Panics
/// When a span of a contract does not lie within the contract's own buffers.
pub fn verify(programs: &[Program], contract: impl Fn(Rank) -> Contract) -> Result<(), VerifyError> {
    check::group(programs)?;
    let mut element_bytes = None;
    for program in programs {
        let contract = contract(program.rank);
        check::program(program, (contract.input_bytes, contract.output_bytes))?;
        let promised = contract.after.iter().map(|one| one.span);
        for span in contract.before.iter().map(|piece| piece.span).chain(promised) {
            assert!(check::lies_within(program, span), "the contract of {} names {span}", program.rank);
        }
        element_bytes = contract.element_bytes.map(|bytes| bytes.max(1));
    }
    let graph = StepGraph::new(programs)?;
    roots_at_once(&graph, programs)?;
    let layouts: &[BufferLayout] =
        if element_bytes.is_some() { &[BufferLayout::Apart, BufferLayout::Same] } else { &[BufferLayout::Apart] };
    for layout in layouts {
        conflicts(&graph, programs, *layout)?;
        let mut values = ValueTrees::new(programs.len() as u32);
        let combining = element_bytes.map(|element_bytes| Combining { values: &mut values, element_bytes });
        let memories = execute(&graph, programs, *layout, |rank| contract(rank).before, combining)?;
        combination::outcomes(&memories, &values, &contract)?;
    }
    Ok(())
}

/// Checks each program alone, without its contract; afterwards a [`StepGraph`] of all programs can be built.
pub(crate) fn well_formed(programs: &[Program]) -> Result<(), VerifyError> {
    check::group(programs)?;
    programs.iter().try_for_each(check::steps)
}

/// The relation of `Input` and `Output` in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BufferLayout {
    /// Separate memory for each.
    Apart,
    /// Byte `i` of `Input` is byte `i` of `Output`, as in a call in place.
    Same,
}

impl BufferLayout {
    /// The memory of a span of the program; `Input` maps to `Output` if both share memory.
    fn place(self, span: Span) -> Span {
        match (self, span.buffer) {
            (BufferLayout::Same, Buffer::Input) => Span { buffer: Buffer::Output, ..span },
            (BufferLayout::Apart, _) | (BufferLayout::Same, Buffer::Output | Buffer::Scratch) => span,
        }
    }

    /// Whether the operation copies a place to itself.
    fn nothing_to_do(self, op: Op) -> bool {
        matches!(op, Op::Copy { from, to } if self.place(from) == self.place(to))
    }
}

#[derive(Clone, Copy)]
struct BufferAccess {
    start: u64,
    end: u64,
    writes: bool,
    node: StepNode,
}

/// Rejects two accesses of a rank that share bytes if one writes and neither precedes the other.
fn conflicts(graph: &StepGraph<'_>, programs: &[Program], layout: BufferLayout) -> Result<(), VerifyError> {
    let (mut pairs, mut shared) = (Vec::new(), Vec::new());
    for program in programs {
        for buffer in [Buffer::Input, Buffer::Output, Buffer::Scratch] {
            sharing(accesses(graph, program, buffer, layout), |a, b, start, end| {
                pairs.push((a.node, b.node));
                shared.push(Span { buffer, offset: start, len: end - start });
            });
        }
    }
    graph.unordered(&pairs).map_or(Ok(()), |index| {
        let (at, other) = (graph.at(pairs[index].0).boxed(), graph.at(pairs[index].1).boxed());
        Err(VerifyError::Conflict { at, other, shared: shared[index] })
    })
}

/// Accesses of a rank's steps to a buffer, by offset.
fn accesses(graph: &StepGraph<'_>, program: &Program, buffer: Buffer, layout: BufferLayout) -> Vec<BufferAccess> {
    let mut accesses = Vec::new();
    for (id, step) in program.steps.iter().enumerate().filter(|(_, step)| !layout.nothing_to_do(step.op)) {
        let node = graph.node(program.rank, id);
        for (span, writes) in [(step.op.reads(), false), (step.op.writes(), true)] {
            let span = span.map(|span| layout.place(span));
            if let Some(span) = span.filter(|span| span.buffer == buffer && !span.is_empty()) {
                accesses.push(BufferAccess { start: span.offset, end: check::end_of(span), writes, node });
            }
        }
    }
    accesses.sort_by_key(|access| access.start);
    accesses
}

/// Calls `with` for every two accesses that share bytes if one of them writes. `with` also receives the start and end
/// of the shared bytes.
fn sharing(accesses: Vec<BufferAccess>, mut with: impl FnMut(BufferAccess, BufferAccess, u64, u64)) {
    let (mut reads, mut writes): (Vec<BufferAccess>, Vec<BufferAccess>) = (Vec::new(), Vec::new());
    for access in accesses {
        reads.retain(|earlier| earlier.end > access.start);
        writes.retain(|earlier| earlier.end > access.start);
        let readers = reads.iter().filter(|_| access.writes);
        for other in writes.iter().chain(readers) {
            with(*other, access, access.start, access.end.min(other.end));
        }
        if access.writes { writes.push(access) } else { reads.push(access) }
    }
}

/// Proves that at most `chains` roots multicast at once (MC-8), by dividing the multicasts into that many chains. In
/// each chain, one multicast is complete before the next starts.
///
/// A multicast continues the chain of a multicast directly before it, unless another multicast continues that chain
/// already. The proof never accepts too many roots. It may reject an order that does not consist of chains.
fn roots_at_once(graph: &StepGraph<'_>, programs: &[Program]) -> Result<(), VerifyError> {
    let is_multicast = |node: StepNode| matches!(graph.op(node), Op::Multicast { .. });
    let mut continued = HashSet::new();
    let mut chains = 0;
    for event in graph.order() {
        let StepEvent::Start(node) = *event else { continue };
        if !is_multicast(node) {
            continue;
        }
        let mut directly_before = Vec::new();
        graph.walk_back(node, |earlier| {
            let multicast = is_multicast(earlier);
            directly_before.extend(multicast.then_some(earlier));
            !multicast
        });
        if !directly_before.into_iter().any(|earlier| continued.insert(earlier)) {
            chains += 1;
        }
        if chains > programs[0].chains {
            return Err(VerifyError::Roots { at: graph.at(node).boxed(), chains: programs[0].chains });
        }
    }
    Ok(())
}

struct SymbolicMemory {
    layout: BufferLayout,
    /// Indexed by [`Buffer`].
    buffers: [SymbolicBuffer; 3],
}

impl SymbolicMemory {
    fn buffer(&mut self, span: Span) -> &mut SymbolicBuffer {
        &mut self.buffers[self.layout.place(span).buffer as usize]
    }

    fn read(&mut self, graph: &StepGraph<'_>, node: StepNode, span: Span) -> Result<Vec<ValueRun>, VerifyError> {
        let contents = self.buffer(span).read(span.offset..check::end_of(span));
        contents.map_err(|offset| VerifyError::ReadsNothing { at: graph.at(node).boxed(), offset })
    }

    fn write(&mut self, span: Span, runs: &[ValueRun]) {
        self.buffer(span).write(span.offset, runs);
    }
}

/// State for tracking combinations.
struct Combining<'a> {
    values: &'a mut ValueTrees,
    element_bytes: u64,
}

impl Combining<'_> {
    /// Computes `left * right` of two contents of equal length.
    fn combine(
        &mut self,
        at: StepLocation,
        left: &[ValueRun],
        right: &[ValueRun],
    ) -> Result<Vec<ValueRun>, VerifyError> {
        let (mut lefts, mut rights) = (left.iter().copied(), right.iter().copied());
        let (mut left, mut right) = (lefts.next(), rights.next());
        let mut combined = Vec::new();
        while let (Some(a), Some(b)) = (left, right) {
            let len = a.len.min(b.len);
            if a.from != b.from {
                return Err(VerifyError::Elements { at: at.boxed(), left: a.from, right: b.from });
            }
            if !a.from.is_multiple_of(self.element_bytes) || !len.is_multiple_of(self.element_bytes) {
                return Err(VerifyError::CutsElement { at: at.boxed(), bytes: self.element_bytes });
            }
            combined.push(ValueRun { value: self.values.combine(a.value, b.value), from: a.from, len });
            left = if a.len > len { Some(a.part(len, u64::MAX)) } else { lefts.next() };
            right = if b.len > len { Some(b.part(len, u64::MAX)) } else { rights.next() };
        }
        Ok(combined)
    }
}

/// Executes all steps in one order: data leaves when a send starts and is in place when its receive completes.
fn execute(
    graph: &StepGraph<'_>,
    programs: &[Program],
    layout: BufferLayout,
    before: impl Fn(Rank) -> Vec<ContributionSpan>,
    mut combining: Option<Combining<'_>>,
) -> Result<Vec<SymbolicMemory>, VerifyError> {
    let mut memories: Vec<SymbolicMemory> =
        programs.iter().map(|_| SymbolicMemory { layout, buffers: Default::default() }).collect();
    for (program, memory) in programs.iter().zip(&mut memories) {
        for ContributionSpan { span, source, from } in before(program.rank) {
            if !span.is_empty() {
                memory.write(span, &[ValueRun { value: TreeId::of(source), from, len: span.len }]);
            }
        }
    }
    // Messages in flight, with the number of ranks that have yet to receive them.
    let mut sent: HashMap<StepNode, (Vec<ValueRun>, usize)> = HashMap::new();
    for event in graph.order() {
        let (StepEvent::Start(node) | StepEvent::Complete(node)) = *event;
        let at = graph.at(node);
        let memory = &mut memories[at.rank.0 as usize];
        match (*event, at.op) {
            (StepEvent::Start(_), Op::Send { span, .. } | Op::Multicast { span }) => {
                sent.insert(node, (memory.read(graph, node, span)?, graph.receivers(node).len()));
            }
            (StepEvent::Start(_), Op::Copy { from, to }) => {
                let runs = memory.read(graph, node, from)?;
                memory.write(to, &runs);
            }
            (StepEvent::Start(_), Op::Reduce { from, into, from_left }) => {
                let Some(combining) = &mut combining else {
                    return Err(VerifyError::Combines { at: at.boxed() });
                };
                let (from, old) = (memory.read(graph, node, from)?, memory.read(graph, node, into)?);
                let (left, right) = if from_left { (&from, &old) } else { (&old, &from) };
                memory.write(into, &combining.combine(at, left, right)?);
            }
            (StepEvent::Complete(_), Op::Recv { span, .. } | Op::MulticastRecv { span, .. }) => {
                let send = graph.source(node).expect("every receive is matched");
                let (runs, waiting) = sent.get_mut(&send).expect("a receive completes after its send starts");
                memory.write(span, runs);
                *waiting -= 1;
                if *waiting == 0 {
                    sent.remove(&send);
                }
            }
            (StepEvent::Start(_), Op::Recv { .. } | Op::MulticastRecv { .. })
            | (StepEvent::Complete(_), Op::Send { .. } | Op::Multicast { .. })
            | (StepEvent::Complete(_), Op::Copy { .. } | Op::Reduce { .. }) => {}
        }
    }
    Ok(memories)
}
