//! Cuts a call into pulses that fit (TH-5).

use std::ops::Range;

use outboard_nic::ordered::OrderedSettings;
use outboard_nic::ordered::descriptor::Descriptor;
use outboard_plan::selection::{Choice, Collective};
use outboard_plan::{Arguments, Buffer, Extents, Op, OpId, Program, Rank, Span, Step, program};

use super::exchange::{RankExchange, exchanges};
use super::lower::{self, OrderedLowerError};
use super::{OrderedCall, SequenceTemplate};
use crate::contract;

/// The way a call is cut into parts by elements.
enum Elements {
    /// A part consists of elements of the vector.
    Vector,
    /// A reduce-scatter: a part consists of elements of every block.
    Blocks(Extents),
    /// The call cannot be cut: there are no elements, or the position of an element decides its path and so its bits.
    Whole,
}

const SHORTER: &str = "a pulse of one element is too long: choose an algorithm with fewer messages to a rank";
const CUT: &str =
    "a plan whose elements go different ways has no pulses: move fewer bytes, or choose another algorithm";

/// A call without addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoweredCall {
    /// By pulse, the templates of all ranks.
    Pulses(Vec<Vec<SequenceTemplate>>),
    /// Point-to-point operations, by rank.
    Exchange(Vec<RankExchange>),
}

impl LoweredCall {
    pub fn pulses(&self) -> usize {
        match self {
            LoweredCall::Pulses(pulses) => pulses.len(),
            LoweredCall::Exchange(_) => 0,
        }
    }

    /// The descriptors that `rank` posts for a call whose first pulse is number `first` of the job.
    pub fn post(&self, rank: Rank, call: &OrderedCall<'_>, first: u64) -> Vec<Descriptor> {
        let rank = rank.0 as usize;
        match self {
            LoweredCall::Pulses(pulses) => {
                let last = pulses.len() - 1;
                let one = |at: usize| pulses[at][rank].post(call, first + at as u64, at == last);
                (0..pulses.len()).flat_map(one).collect()
            }
            LoweredCall::Exchange(ranks) => ranks[rank].post(call),
        }
    }
}

/// Lowers a call by `choice` to pulses of equal length. The number of pulses doubles until the pulses fit. If no number
/// fits, the call goes from point to point. Pulses are preferred, because a message that has room needs no packet from
/// its receiver first.
pub fn lower(
    choice: Choice,
    arguments: &Arguments<'_>,
    settings: &OrderedSettings,
) -> Result<LoweredCall, OrderedLowerError> {
    let refused = match pulses(choice, arguments, settings) {
        Ok(pulses) => return Ok(LoweredCall::Pulses(pulses)),
        Err(refused) => refused,
    };
    exchanges(&programs(choice, arguments)?).map(LoweredCall::Exchange).ok_or(refused)
}

/// The templates of all ranks, by pulse.
fn pulses(
    choice: Choice,
    arguments: &Arguments<'_>,
    settings: &OrderedSettings,
) -> Result<Vec<Vec<SequenceTemplate>>, OrderedLowerError> {
    let unit = arguments.element_bytes.max(1);
    let (elements, units) = match choice.collective() {
        Collective::Broadcast => (Elements::Vector, arguments.bytes),
        Collective::Reduce | Collective::Allreduce | Collective::Scan => {
            let orders = contract(choice, arguments, arguments.root)?.after.len();
            let elements = if orders > 1 { Elements::Whole } else { Elements::Vector };
            (elements, arguments.vector()?.count)
        }
        Collective::ReduceScatter => {
            let blocks = arguments.blocks(choice.collective())?;
            let longest = blocks.sizes().max().unwrap_or(0) / unit;
            (Elements::Blocks(blocks), longest)
        }
        Collective::Barrier
        | Collective::Allgather
        | Collective::Alltoall
        | Collective::Gather
        | Collective::Scatter => (Elements::Whole, 0),
    };
    let unit = if choice.collective() == Collective::Broadcast { 1 } else { unit };
    let mut count = 1;
    loop {
        let length = units.div_ceil(count).max(1);
        let part = |pulse: u64| pulse * length * unit..((pulse + 1) * length).min(units) * unit;
        let pulses = (0..units.div_ceil(length).max(1)).map(part);
        let remedy = if matches!(elements, Elements::Whole) { CUT } else { SHORTER };
        let lowered: Result<Vec<_>, _> =
            pulses.map(|part| one(choice, arguments, &elements, part, (settings, remedy))).collect();
        match lowered {
            Err(error) if error.is_size() && length > 1 && !matches!(elements, Elements::Whole) => count *= 2,
            lowered => return lowered,
        }
    }
}

fn programs(choice: Choice, arguments: &Arguments<'_>) -> Result<Vec<Program>, OrderedLowerError> {
    let ranks = (0..arguments.topology.ranks()).map(Rank);
    ranks.map(|rank| Ok(program(choice, arguments, rank)?)).collect()
}

/// The templates of the pulse for `part`, in bytes of the vector or of each block.
fn one(
    choice: Choice,
    arguments: &Arguments<'_>,
    elements: &Elements,
    part: Range<u64>,
    (settings, remedy): (&OrderedSettings, &'static str),
) -> Result<Vec<SequenceTemplate>, OrderedLowerError> {
    let all = |extents: Option<&Extents>, bytes| -> Result<Vec<Program>, OrderedLowerError> {
        let arguments = Arguments { bytes, extents: extents.or(arguments.extents), ..*arguments };
        let kept = |program| if choice.collective() == Collective::Broadcast { program } else { kept_in_nic(program) };
        Ok(programs(choice, &arguments)?.into_iter().map(kept).collect())
    };
    let templates = |programs: Vec<Program>, gather: &dyn Fn(Rank, Span) -> Vec<Span>| {
        let one = |program: &Program| lower::template(program, |span| gather(program.rank, span), settings, remedy);
        let templates = programs.iter().map(one).collect::<Result<Vec<_>, _>>()?;
        lower::check_order(&programs, &templates)?;
        Ok(templates)
    };
    let moved = |span: Span, by: u64| match span.buffer {
        Buffer::Scratch => span,
        Buffer::Input | Buffer::Output => Span { offset: span.offset + by, ..span },
    };
    match elements {
        Elements::Whole => templates(all(None, arguments.bytes)?, &|_, span| vec![span]),
        Elements::Vector => {
            let programs = all(None, part.end - part.start)?;
            templates(programs, &|_, span| vec![moved(span, part.start)])
        }
        Elements::Blocks(blocks) => {
            let within = |len: u64| part.start.min(len)..part.end.min(len);
            let cut = Extents::uneven(blocks.sizes().map(|len| within(len).end - within(len).start));
            let cut = cut.expect("parts are no more than the whole");
            let programs = all(Some(&cut), cut.total())?;
            templates(programs, &|rank, span| match span.buffer {
                Buffer::Scratch => vec![span],
                Buffer::Output => vec![moved(span, within(blocks.block(rank).len).start)],
                Buffer::Input => of_blocks(span, &cut, blocks, &within),
            })
        }
    }
}

/// Moves the result to the intermediate results if the program sends parts of the result. NICs then pass on combined
/// results without the way through memory, which broadcasts take (TH Sec. 2.2). Each part is copied to memory once it
/// is sent; parts that are never sent are copied last.
fn kept_in_nic(program: Program) -> Program {
    let of_result = |span: Option<Span>| span.filter(|span| span.buffer == Buffer::Output);
    if program.input_bytes == 0 || !program.steps.iter().any(|step| of_result(step.op.reads()).is_some()) {
        return program;
    }
    let (result, whole) = (program.scratch_bytes, program.output_bytes);
    let kept = |span: Span| match span.buffer {
        Buffer::Output => Span { buffer: Buffer::Scratch, offset: result + span.offset, ..span },
        Buffer::Input | Buffer::Scratch => span,
    };
    let within = |a: Span, b: Span| b.offset <= a.offset && a.offset + a.len <= b.offset + b.len;
    let (mut steps, mut moved, mut pending) = (Vec::new(), Vec::new(), Vec::<(Span, OpId)>::new());
    let copy = |(to, after)| Step { op: Op::Copy { from: kept(to), to }, after: vec![after] };
    for Step { op, after } in program.steps {
        let id = OpId(steps.len() as u32);
        moved.push(id);
        if let Some(written) = of_result(op.writes()) {
            pending.retain(|(span, _)| !within(*span, written));
            pending.push((written, id));
        }
        let after = after.iter().map(|id| moved[id.0 as usize]).collect();
        steps.push(Step { op: with_spans(op, kept), after });
        let sent = of_result(op.reads()).filter(|_| matches!(op, Op::Send { .. }));
        let sent = pending.extract_if(.., |(span, _)| sent.is_some_and(|sent| within(*span, sent)));
        steps.extend(sent.map(copy));
    }
    steps.extend(pending.into_iter().map(copy));
    Program { steps, scratch_bytes: result + whole, ..program }
}

/// Replaces the spans of an operation by their images under `become_of`.
fn with_spans(mut op: Op, become_of: impl Fn(Span) -> Span) -> Op {
    match &mut op {
        Op::Send { span, .. } | Op::Recv { span, .. } | Op::Multicast { span } | Op::MulticastRecv { span, .. } => {
            *span = become_of(*span);
        }
        Op::Copy { from, to: into } | Op::Reduce { from, into, .. } => {
            (*from, *into) = (become_of(*from), become_of(*into));
        }
    }
    op
}

/// Maps a span of the concatenated parts of all blocks to the blocks.
fn of_blocks(span: Span, cut: &Extents, blocks: &Extents, within: &dyn Fn(u64) -> Range<u64>) -> Vec<Span> {
    let mut pieces: Vec<Span> = Vec::new();
    for rank in (0..cut.ranks()).map(Rank) {
        let (part, block) = (cut.block(rank), blocks.block(rank));
        let start = span.offset.max(part.offset);
        let end = (span.offset + span.len).min(part.offset + part.len);
        if start < end {
            let offset = block.offset + within(block.len).start + start - part.offset;
            match pieces.last_mut() {
                Some(last) if last.offset + last.len == offset => last.len += end - start,
                _ => pieces.push(Span::input(offset, end - start)),
            }
        }
    }
    pieces
}
