//! Makes templates from the programs of one pulse.

use std::collections::{BTreeMap, BTreeSet};

use outboard_nic::ordered::descriptor::{MAX_MESSAGE, MAX_PIECES};
use outboard_nic::ordered::{MAX_SOURCES, MAX_STEPS, OrderedSettings};
use outboard_plan::{Buffer, Op, OpId, PlanError, Program, Rank, Span};
use thiserror::Error;

use super::{SequenceStep, SequenceTemplate, StepWork};
use crate::verify::StepLocation;

/// The reason why an order-triggered NIC does not carry out a call.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum OrderedLowerError {
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error("{at}: NICs send from port to port; choose an algorithm without multicast")]
    Multicast { at: Box<StepLocation> },
    #[error("{at}: the NIC combines packets with memory, not memory with memory; choose another algorithm")]
    InMemory { at: Box<StepLocation> },
    #[error("{at} waits, in the order of its program, for what a rank sends that waits for this one")]
    Order { at: Box<StepLocation> },
    #[error(
        "{rank} and {peer} exchange {messages} messages in one direction: a pulse has {MAX_STEPS} steps; choose an \
         algorithm with fewer rounds between two ranks"
    )]
    Steps { rank: Rank, peer: Rank, messages: usize },
    #[error(
        "{rank} reads from {sources} sources: a task has {MAX_SOURCES}; choose an algorithm in which a rank hears of \
         fewer"
    )]
    Sources { rank: Rank, sources: usize },
    #[error("{rank} receives {packets} packets in a pulse, which has room for {most}; {remedy}")]
    Packets { rank: Rank, packets: u64, most: u64, remedy: &'static str },
    #[error("{rank} needs {bytes} B for intermediate results of a pulse, which has {most} B; {remedy}")]
    Intermediate { rank: Rank, bytes: u64, most: u64, remedy: &'static str },
    #[error("{at} is of {bytes} B, and a descriptor of up to {MAX_MESSAGE} B; {remedy}")]
    Message { at: Box<StepLocation>, bytes: u64, remedy: &'static str },
    #[error("{at} lies in {pieces} pieces, and a descriptor has {MAX_PIECES}; {remedy}")]
    Pieces { at: Box<StepLocation>, pieces: usize, remedy: &'static str },
}

impl OrderedLowerError {
    pub(super) fn is_size(&self) -> bool {
        matches!(
            self,
            OrderedLowerError::Packets { .. }
                | OrderedLowerError::Intermediate { .. }
                | OrderedLowerError::Message { .. }
                | OrderedLowerError::Pieces { .. }
        )
    }
}

/// A received message that no descriptor has read yet.
#[derive(Debug, Clone, Copy)]
struct UnreadMessage {
    step: OpId,
    from: Rank,
    seq: usize,
    span: Span,
}

/// A template under construction.
struct SequenceWriter<'a, G> {
    program: &'a Program,
    /// Maps a span of the program to the memory that holds the span's bytes.
    gather: G,
    /// The key is a peer, whether the message is sent, and its index. The value is the message's number among all
    /// messages with this peer in this direction.
    numbers: BTreeMap<(Rank, bool, u32), usize>,
    unread: BTreeMap<OpId, UnreadMessage>,
    steps: Vec<SequenceStep>,
}

/// The template of `program`. Size errors state `remedy` as advice.
pub(super) fn template(
    program: &Program,
    gather: impl Fn(Span) -> Vec<Span>,
    settings: &OrderedSettings,
    remedy: &'static str,
) -> Result<SequenceTemplate, OrderedLowerError> {
    let rank = program.rank;
    let (packets, most) = (received(program, settings), settings.pulse_packets() as u64);
    if packets > most {
        return Err(OrderedLowerError::Packets { rank, packets, most, remedy });
    }
    let (bytes, most) = (program.scratch_bytes, settings.intermediate_bytes());
    if bytes > most {
        return Err(OrderedLowerError::Intermediate { rank, bytes, most, remedy });
    }
    let numbers = numbers(program)?;
    let mut writer = SequenceWriter { program, gather, numbers, unread: BTreeMap::new(), steps: Vec::new() };
    for (id, step) in program.steps.iter().enumerate() {
        writer.step(OpId(id as u32), step.op, &step.after)?;
    }
    let left: Vec<OpId> = writer.unread.keys().copied().collect();
    writer.read(&left, None);
    let steps = writer.steps;
    let at = |step: &SequenceStep| StepLocation::new(program, step.of).boxed();
    if let Some(step) = steps.iter().find(|step| step.length > MAX_MESSAGE) {
        return Err(OrderedLowerError::Message { at: at(step), bytes: step.length, remedy });
    }
    let pieces = |step: &SequenceStep| {
        let (operand, result) = match &step.work {
            StepWork::Nothing => (0, 0),
            StepWork::Store { result } => (0, result.len()),
            StepWork::Copy { operand, result } | StepWork::Reduce { operand, result, .. } => {
                (operand.len(), result.len())
            }
        };
        operand.max(result).max(step.sends.as_ref().map_or(0, |(_, _, message)| message.len()))
    };
    if let Some(step) = steps.iter().find(|step| pieces(step) > MAX_PIECES) {
        return Err(OrderedLowerError::Pieces { at: at(step), pieces: pieces(step), remedy });
    }
    Ok(SequenceTemplate { rank, sources: table(rank, &steps)?, steps })
}

fn received(program: &Program, settings: &OrderedSettings) -> u64 {
    let packets = |op: Op| match op {
        Op::Recv { span, .. } => settings.packets(span.len),
        _ => 0,
    };
    program.steps.iter().map(|step| packets(step.op)).sum()
}

/// The numbers of messages, in the order of their indices.
fn numbers(program: &Program) -> Result<BTreeMap<(Rank, bool, u32), usize>, OrderedLowerError> {
    let mut messages: BTreeMap<(Rank, bool), BTreeSet<u32>> = BTreeMap::new();
    for step in &program.steps {
        let (peer, index) = match step.op {
            Op::Send { to, index, .. } => ((to, true), index),
            Op::Recv { from, index, .. } => ((from, false), index),
            Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => continue,
        };
        messages.entry(peer).or_default().insert(index);
    }
    if let Some(((peer, _), all)) = messages.iter().find(|(_, all)| all.len() > MAX_STEPS) {
        return Err(OrderedLowerError::Steps { rank: program.rank, peer: *peer, messages: all.len() });
    }
    let numbered = |((peer, sent), all): ((Rank, bool), BTreeSet<u32>)| {
        all.into_iter().zip(0..).map(move |(index, number)| ((peer, sent, index), number))
    };
    Ok(messages.into_iter().flat_map(numbered).collect())
}

/// The table of sources, longest runs first.
fn table(rank: Rank, steps: &[SequenceStep]) -> Result<Vec<Rank>, OrderedLowerError> {
    let mut runs: Vec<&Vec<Rank>> = steps.iter().map(|step| &step.awaits.0).collect();
    runs.sort_by_key(|run| std::cmp::Reverse(run.len()));
    let mut table: Vec<Rank> = Vec::new();
    for run in runs.into_iter().filter(|run| !run.is_empty()) {
        if !table.windows(run.len()).any(|window| window == run.as_slice()) {
            table.extend(run);
        }
    }
    let sources = table.len();
    if sources > MAX_SOURCES { Err(OrderedLowerError::Sources { rank, sources }) } else { Ok(table) }
}

fn overlap(a: Span, b: Span) -> bool {
    a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len
}

impl<G: Fn(Span) -> Vec<Span>> SequenceWriter<'_, G> {
    fn at(&self, step: OpId) -> Box<StepLocation> {
        StepLocation::new(self.program, step).boxed()
    }

    fn step(&mut self, id: OpId, op: Op, after: &[OpId]) -> Result<(), OrderedLowerError> {
        match op {
            Op::Recv { from, index, span } => {
                let seq = self.numbers[&(from, false, index)];
                self.unread.insert(id, UnreadMessage { step: id, from, seq, span });
            }
            Op::Send { to, index, span } => {
                self.read(after, None);
                self.send(id, to, self.numbers[&(to, true, index)], span);
            }
            Op::Copy { from, to } => {
                self.read(after, None);
                let work = StepWork::Copy { operand: (self.gather)(from), result: (self.gather)(to) };
                self.push(id, from.len, (Vec::new(), 0), work);
            }
            Op::Reduce { from, into, from_left } => self.reduce(id, (from, into, from_left), after)?,
            Op::Multicast { .. } | Op::MulticastRecv { .. } => {
                return Err(OrderedLowerError::Multicast { at: self.at(id) });
            }
        }
        Ok(())
    }

    fn push(&mut self, of: OpId, length: u64, awaits: (Vec<Rank>, usize), work: StepWork) {
        self.steps.push(SequenceStep { of, length, awaits, work, sends: None });
    }

    /// Reads the unread messages of `steps`, except that of `not`, to their final places.
    fn read(&mut self, steps: &[OpId], not: Option<OpId>) {
        for id in steps.iter().filter(|id| Some(**id) != not) {
            if let Some(UnreadMessage { step, from, seq, span }) = self.unread.remove(id) {
                let work =
                    if span.is_empty() { StepWork::Nothing } else { StepWork::Store { result: (self.gather)(span) } };
                self.push(step, span.len, (vec![from], seq), work);
            }
        }
    }

    /// Sends the result of the previous descriptor if this is the message; otherwise sends bytes in memory.
    fn send(&mut self, id: OpId, to: Rank, seq: usize, span: Span) {
        let message = if span.is_empty() { Vec::new() } else { (self.gather)(span) };
        let sends = Some((to, seq, message));
        let made = |step: &&mut SequenceStep| {
            let message = sends.iter().map(|(_, _, message)| message);
            step.sends.is_none()
                && step.length == span.len
                && match &step.work {
                    StepWork::Nothing => span.is_empty(),
                    StepWork::Store { result } | StepWork::Copy { result, .. } | StepWork::Reduce { result, .. } => {
                        message.into_iter().all(|message| message == result)
                    }
                }
        };
        match self.steps.last_mut().filter(made) {
            Some(last) => last.sends = sends,
            None => self.steps.push(SequenceStep {
                of: id,
                length: span.len,
                awaits: (Vec::new(), 0),
                work: StepWork::Nothing,
                sends,
            }),
        }
    }

    fn reduce(&mut self, id: OpId, op: (Span, Span, bool), after: &[OpId]) -> Result<(), OrderedLowerError> {
        let (from, into, from_left) = op;
        let mut arrivals = after.iter().filter_map(|id| self.unread.get(id));
        let arrival = arrivals.find(|arrival| arrival.span == from || arrival.span == into).copied();
        let Some(arrival) = arrival else { return Err(OrderedLowerError::InMemory { at: self.at(id) }) };
        self.read(after, Some(arrival.step));
        self.unread.remove(&arrival.step);
        let (operand, packet_left) = if arrival.span == into { (from, !from_left) } else { (into, from_left) };
        let (operand, result) = ((self.gather)(operand), (self.gather)(into));
        // A result that no later step reads is not written to memory: the NIC combines the next packet with the
        // result directly.
        let rest = &self.program.steps[id.0 as usize + 1..];
        let read_later = |span: &Span| rest.iter().filter_map(|step| step.op.reads()).any(|read| overlap(read, *span));
        let goes_on = |step: &&mut SequenceStep| {
            let StepWork::Reduce { result: before, packet_left: side, .. } = &step.work else { return false };
            let only_here =
                *before == result || before.iter().all(|span| span.buffer == Buffer::Scratch && !read_later(span));
            let free = step.sends.is_none() && step.awaits.0.len() < MAX_SOURCES;
            free && *before == operand && *side == packet_left && step.awaits.1 == arrival.seq && only_here
        };
        match self.steps.last_mut().filter(goes_on) {
            Some(last) => {
                last.awaits.0.push(arrival.from);
                if let StepWork::Reduce { result: before, .. } = &mut last.work {
                    *before = result;
                }
            }
            None => {
                let work = StepWork::Reduce { operand, result, packet_left };
                self.push(id, into.len, (vec![arrival.from], arrival.seq), work);
            }
        }
        Ok(())
    }
}

/// Checks that all ranks finish if each rank runs its template in order and a sent message always has room.
pub(super) fn check_order(programs: &[Program], templates: &[SequenceTemplate]) -> Result<(), OrderedLowerError> {
    let mut at = vec![0; templates.len()];
    let mut sent: BTreeSet<(Rank, Rank, usize)> = BTreeSet::new();
    loop {
        let mut went = false;
        for (template, at) in templates.iter().zip(&mut at) {
            while let Some(step) = template.steps.get(*at) {
                let (sources, seq) = &step.awaits;
                if !sources.iter().all(|source| sent.contains(&(*source, template.rank, *seq))) {
                    break;
                }
                sent.extend(step.sends.iter().map(|(to, seq, _)| (template.rank, *to, *seq)));
                (*at, went) = (*at + 1, true);
            }
        }
        if !went {
            let waits = templates.iter().zip(programs).zip(at).find(|((template, _), at)| *at < template.steps.len());
            return waits.map_or(Ok(()), |((template, program), at)| {
                Err(OrderedLowerError::Order { at: StepLocation::new(program, template.steps[at].of).boxed() })
            });
        }
    }
}
