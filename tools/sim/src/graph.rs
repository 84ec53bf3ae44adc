//! Recorded groups drawn by seed, and their results: the reference for the machines (GP-2).
//!
//! Events (a message, a copy, a local barrier) are drawn one after the other, and recorded by the members that take
//! part. The reference carries the events out in the drawn order. The members' programs allow every order that
//! dependencies allow.
//! Invariants: an operation touches no byte that another operation of its member writes in the same round, so all
//! orders end alike. An event needs only earlier events, so an order exists. Pure.

use std::sync::Arc;

use outboard_plan::{ProgramBuilder, Rank, Span};
use outboard_proto::Recording;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::pattern::ExpectedPart;

/// The recordings of all members of a group, and their results.
#[derive(Debug, Clone)]
pub(crate) struct RecordedGraph {
    /// Recordings by member.
    pub(crate) recordings: Vec<Arc<Recording>>,
    /// The final contents of each member's buffer.
    pub(crate) parts: Vec<Vec<ExpectedPart>>,
    pub(crate) moved: u64,
}

pub(crate) struct GraphMember {
    pub(crate) builder: ProgramBuilder,
    bytes: u64,
    /// The contents of the buffer in order, without gaps.
    holds: Vec<ExpectedPart>,
    /// Spans since the last barrier, and whether each is written.
    touched: Vec<(Span, bool)>,
}

fn overlap(one: Span, other: Span) -> bool {
    one.len > 0 && other.len > 0 && one.offset < other.offset + other.len && other.offset < one.offset + one.len
}

impl GraphMember {
    pub(crate) fn new(rank: usize, ranks: usize, bytes: u64) -> GraphMember {
        let mut builder = ProgramBuilder::new(Rank(rank as u32), ranks as u32);
        builder.buffers(0, bytes, 0);
        let holds = vec![ExpectedPart { at: 0, len: bytes, source: rank, from: 0 }];
        GraphMember { builder, bytes, holds, touched: Vec::new() }
    }

    pub(crate) fn barrier(&mut self) {
        self.builder.barrier();
        self.touched.clear();
    }

    /// Notes what an operation reads and writes, behind a barrier if it conflicts with an earlier operation.
    pub(crate) fn touch(&mut self, spans: &[(Span, bool)]) {
        let in_the_way = |(span, writes): &(Span, bool)| {
            self.touched.iter().any(|(other, written)| (*writes || *written) && overlap(*span, *other))
        };
        if spans.iter().any(in_the_way) {
            self.barrier();
        }
        self.touched.extend_from_slice(spans);
    }

    fn read(&self, span: Span) -> Vec<ExpectedPart> {
        let (start, end) = (span.offset, span.offset + span.len);
        let inside = |part: &ExpectedPart| {
            let (first, last) = (part.at.max(start), (part.at + part.len).min(end));
            let cut =
                || ExpectedPart { at: first - start, len: last - first, from: part.from + first - part.at, ..*part };
            (first < last).then(cut)
        };
        self.holds.iter().filter_map(inside).collect()
    }

    fn write(&mut self, span: Span, what: &[ExpectedPart]) {
        let (start, end) = (span.offset, span.offset + span.len);
        let mut holds = self.read_at(0, start);
        holds.extend(what.iter().map(|part| ExpectedPart { at: part.at + start, ..*part }));
        holds.extend(self.read_at(end, self.bytes));
        self.holds = holds;
    }

    /// Like [`Self::read`], with places that count from the start of the buffer.
    fn read_at(&self, start: u64, end: u64) -> Vec<ExpectedPart> {
        let parts = self.read(Span::output(start, end - start));
        parts.into_iter().map(|part| ExpectedPart { at: part.at + start, ..part }).collect()
    }
}

impl RecordedGraph {
    /// The graph of this seed for `members` members, with messages of up to `scale` bytes.
    pub(crate) fn draw(seed: u64, members: usize, scale: u64) -> RecordedGraph {
        let mut rng = ChaCha8Rng::seed_from_u64(seed ^ 0x6772_6170_6800);
        let ranks = members;
        let mut members: Vec<GraphMember> =
            (0..ranks).map(|rank| GraphMember::new(rank, ranks, 1 + rng.random_range(0..=3 * scale))).collect();
        let mut moved = 0;
        for _ in 0..rng.random_range(0..=12 * ranks) {
            let (from, to) = (rng.random_range(0..ranks), rng.random_range(0..ranks));
            match rng.random_range(0..12) {
                0 => members[from].barrier(),
                1 => {
                    let len = rng.random_range(0..=members[from].bytes / 2);
                    let [source, target] = [0, 1].map(|_| span(&mut rng, members[from].bytes, len));
                    if overlap(source, target) {
                        continue;
                    }
                    let member = &mut members[from];
                    member.touch(&[(source, false), (target, true)]);
                    member.builder.copy(source, target, &[]);
                    let what = member.read(source);
                    member.write(target, &what);
                }
                _ => {
                    let most = scale.min(members[from].bytes).min(members[to].bytes);
                    let len = if rng.random_range(0..8) == 0 { 0 } else { rng.random_range(0..=most) };
                    let source = span(&mut rng, members[from].bytes, len);
                    let target = span(&mut rng, members[to].bytes, len);
                    if from == to && overlap(source, target) {
                        continue;
                    }
                    let tag = rng.random_range(0..3);
                    if from == to {
                        members[from].touch(&[(source, false), (target, true)]);
                    } else {
                        members[from].touch(&[(source, false)]);
                        members[to].touch(&[(target, true)]);
                    }
                    members[from].builder.send(Rank(to as u32), tag, source, &[]);
                    members[to].builder.recv(Rank(from as u32), tag, target, &[]);
                    let what = members[from].read(source);
                    members[to].write(target, &what);
                    moved += len;
                }
            }
        }
        let (recordings, parts) = members.into_iter().map(finish).unzip();
        RecordedGraph { recordings, parts, moved }
    }
}

fn span(rng: &mut ChaCha8Rng, bytes: u64, len: u64) -> Span {
    Span::output(rng.random_range(0..=bytes - len), len)
}

fn finish(member: GraphMember) -> (Arc<Recording>, Vec<ExpectedPart>) {
    let recording = Recording { program: member.builder.build().into(), reductions: Vec::new() };
    (Arc::new(recording), member.holds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn graphs_are_a_function_of_the_seed_and_name_all_bytes_of_all_members() {
        let mut behind = false;
        for seed in 0..200 {
            let graph = RecordedGraph::draw(seed, 1 + seed as usize % 5, 1000);
            assert_eq!(graph.recordings, RecordedGraph::draw(seed, 1 + seed as usize % 5, 1000).recordings);
            for (recording, parts) in graph.recordings.iter().zip(&graph.parts) {
                let program = &recording.program;
                assert_eq!(recording.check(program.rank, program.ranks), Ok(()));
                let end = parts.iter().fold(0, |at, part| {
                    assert_eq!(part.at, at);
                    at + part.len
                });
                assert_eq!(end, program.output_bytes);
                behind |= program.steps.iter().any(|step| step.after.len() > 1);
            }
        }
        assert!(behind, "barriers order several before");
    }
}
