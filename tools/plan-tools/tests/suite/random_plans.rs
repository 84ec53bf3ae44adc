//! The verifier accepts any sound plan, not only the plans of our algorithms. The plans here are random: they overwrite
//! memory repeatedly, and some orders follow only from other steps.

use outboard_plan::{Buffer, Op, OpId, Program, ProgramBuilder, Rank, Span};
use outboard_plan_tools::{Contract, ContributionSpan, PromisedSpan, verify};
use proptest::prelude::*;

const RANKS: u32 = 3;
const INPUT: u64 = 24;

/// Random numbers for one action: the first picks the kind of action, the others pick ranks, spans and dependencies.
type Draw = (u8, u32, u16, u16, u16, u32);

/// The plan under construction. Every action starts after the actions that it conflicts with, so the order of drawing
/// is a possible order of execution.
struct Plan {
    ranks: Vec<Author>,
    messages: u32,
}

/// One rank of the plan.
struct Author {
    rank: Rank,
    builder: ProgramBuilder,
    /// Steps, each with all steps known to come before it, itself included.
    steps: Vec<(Op, Vec<bool>)>,
    /// Spans with contents.
    filled: Vec<Span>,
    /// The origin of each byte of scratch: the rank and the offset in its input.
    scratch: Vec<(Rank, u64)>,
}

impl Author {
    fn new(rank: Rank) -> Author {
        let filled = vec![Span::input(0, INPUT)];
        Author { rank, builder: ProgramBuilder::new(rank, RANKS), steps: Vec::new(), filled, scratch: Vec::new() }
    }

    /// Part of a span with contents.
    fn some(&self, pick: u16, part: u16) -> Span {
        let span = self.filled[pick as usize % self.filled.len()];
        let skip = u64::from(part) % span.len;
        Span { offset: span.offset + skip, len: 1 + u64::from(part >> 8) % (span.len - skip), ..span }
    }

    fn fresh(&mut self, len: u64) -> Span {
        let span = Span::scratch(self.scratch.len() as u64, len);
        self.scratch.resize((span.offset + len) as usize, (self.rank, 0));
        self.filled.push(span);
        span
    }

    fn read(&self, span: Span) -> Vec<(Rank, u64)> {
        let bytes = span.offset..span.offset + span.len;
        match span.buffer {
            Buffer::Scratch => self.scratch[bytes.start as usize..bytes.end as usize].to_vec(),
            Buffer::Input | Buffer::Output => bytes.map(|byte| (self.rank, byte)).collect(),
        }
    }

    fn write(&mut self, span: Span, bytes: &[(Rank, u64)]) {
        self.scratch[span.offset as usize..(span.offset + span.len) as usize].copy_from_slice(bytes);
    }

    /// Steps that `op` must follow: all that it conflicts with, except some that the others imply.
    fn follows(&self, op: Op, keep: u32) -> Vec<OpId> {
        let shares = |a: Option<Span>, b: Option<Span>| match (a, b) {
            (Some(a), Some(b)) => a.buffer == b.buffer && a.offset < b.offset + b.len && b.offset < a.offset + a.len,
            _ => false,
        };
        let conflicts = |other: Op| {
            shares(op.writes(), other.writes())
                || shares(op.writes(), other.reads())
                || shares(op.reads(), other.writes())
        };
        let mut needed: Vec<usize> = (0..self.steps.len()).filter(|id| conflicts(self.steps[*id].0)).collect();
        for id in needed.clone() {
            let implied = needed.iter().any(|other| *other != id && self.steps[*other].1.get(id) == Some(&true));
            if implied && keep >> (id % 32) & 1 == 0 {
                needed.retain(|other| *other != id);
            }
        }
        needed.into_iter().map(|id| OpId(id as u32)).collect()
    }

    fn push(&mut self, op: Op, mut after: Vec<OpId>, more: u32) -> OpId {
        // Dependencies without a reason in memory.
        after.extend((0..self.steps.len() as u32).rev().take(8).filter(|id| more >> (24 + id % 8) & 3 == 3).map(OpId));
        let mut before = vec![false; self.steps.len() + 1];
        for id in &after {
            for (known, earlier) in before.iter_mut().zip(&self.steps[id.0 as usize].1) {
                *known |= *earlier;
            }
        }
        before[self.steps.len()] = true;
        self.steps.push((op, before));
        self.builder.push(op, &after)
    }
}

impl Plan {
    fn act(&mut self, (kind, rank, pick, part, place, bits): Draw) {
        let (from, to) = (rank % RANKS, (rank + 1 + u32::from(kind >> 4) % (RANKS - 1)) % RANKS);
        let author = &mut self.ranks[from as usize];
        let source = author.some(pick, part);
        if kind % 4 < 2 {
            let target = if kind % 4 == 0 { author.fresh(source.len) } else { author.some(place, part ^ place) };
            let len = source.len.min(target.len);
            let (source, target) = (Span { len, ..source }, Span { len, ..target });
            let apart = source.offset + len <= target.offset || target.offset + len <= source.offset;
            if target.buffer == Buffer::Scratch && (apart || source.buffer != target.buffer) {
                let op = Op::Copy { from: source, to: target };
                author.push(op, author.follows(op, bits), bits);
                author.write(target, &author.read(source));
            }
            return;
        }
        let span = if kind % 4 == 2 { source } else { Span::signal() };
        let sent = author.read(source);
        let index = self.messages;
        self.messages += 1;
        let op = Op::Send { to: Rank(to), index, span };
        author.push(op, author.follows(op, bits), bits);
        let author = &mut self.ranks[to as usize];
        if span.is_empty() {
            author.push(Op::Recv { from: Rank(from), index, span }, Vec::new(), bits.rotate_left(7));
        } else {
            let span = author.fresh(span.len);
            author.write(span, &sent);
            author.push(Op::Recv { from: Rank(from), index, span }, Vec::new(), 0);
        }
    }

    /// The programs, which finally copy each rank's scratch to its output, and the contracts for these contents.
    fn finish(self) -> (Vec<Program>, Vec<Contract>) {
        let finish = |mut author: Author| {
            let bytes = author.scratch.len() as u64;
            author.builder.buffers(INPUT, bytes, bytes);
            author.builder.barrier();
            author.builder.copy(Span::scratch(0, bytes), Span::output(0, bytes), &[]);
            let ends =
                |(at, (source, from)): (u64, &(Rank, u64))| PromisedSpan::of_one(Span::output(at, 1), *source, *from);
            let contract = Contract {
                element_bytes: None,
                input_bytes: INPUT,
                output_bytes: bytes,
                before: vec![ContributionSpan { span: Span::input(0, INPUT), source: author.rank, from: 0 }],
                after: (0..).zip(&author.scratch).map(ends).collect(),
            };
            (author.builder.build(), contract)
        };
        self.ranks.into_iter().map(finish).unzip()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn sound_plans_are_accepted(draws in prop::collection::vec(any::<Draw>(), 1..40)) {
        let mut plan = Plan { ranks: (0..RANKS).map(Rank).map(Author::new).collect(), messages: 0 };
        draws.into_iter().for_each(|draw| plan.act(draw));
        let (programs, contracts) = plan.finish();
        prop_assert_eq!(verify(&programs, |rank| contracts[rank.0 as usize].clone()), Ok(()));
    }
}
