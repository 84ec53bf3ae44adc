//! A reduction's program under construction: parts of vectors that are sent, received, combined and delivered.
//!
//! Invariants: each message is received into its own scratch, unless the message is the result itself. `Input` is never
//! combined into. A copy to `Output` follows every earlier step that reads the same bytes of `Input`, which may be the
//! same memory. Steps without bytes are left out.

use std::collections::BTreeSet;

use crate::arguments::PlanError;
use crate::builder::ProgramBuilder;
use crate::program::{Buffer, OpId, Program, Rank, Span};

/// Some bytes and the steps that must be complete before they may be read.
#[derive(Debug, Clone)]
pub(super) struct PendingSpan {
    pub(super) span: Span,
    pub(super) after: Vec<OpId>,
}

impl PendingSpan {
    /// Bytes that are valid from the start.
    pub(super) fn given(span: Span) -> Self {
        Self { span, after: Vec::new() }
    }

    /// `len` bytes from `offset` of the part.
    pub(super) fn cut(&self, offset: u64, len: u64) -> PendingSpan {
        assert!(offset + len <= self.span.len, "{len} B from {offset} of {}", self.span);
        PendingSpan { span: Span { offset: self.span.offset + offset, len, ..self.span }, after: self.after.clone() }
    }
}

/// A [`ProgramBuilder`] that allocates scratch and records the readers of `Input`.
pub(super) struct ReductionDraft {
    builder: ProgramBuilder,
    input: u64,
    output: u64,
    /// Bytes of scratch allocated so far, `None` beyond 64 bits.
    scratch: Option<u64>,
    /// Steps that read `Input`, with the spans that they read.
    readers: Vec<(Span, OpId)>,
    /// Set while `among` runs: the ranks of the subgroup, by number, and the adjoining parts that this rank
    /// contributes for its host.
    among: Option<(Vec<Rank>, Vec<PendingSpan>)>,
}

impl ReductionDraft {
    pub(super) fn new(rank: Rank, ranks: u32, input: u64, output: u64) -> Self {
        let builder = ProgramBuilder::new(rank, ranks);
        Self { builder, input, output, scratch: Some(0), readers: Vec::new(), among: None }
    }

    /// Calls [`ProgramBuilder::multicast_layout`].
    pub(super) fn multicast_layout(&mut self, chains: u32, subgroups: u16) {
        self.builder.multicast_layout(chains, subgroups);
    }

    /// The rank's whole contribution.
    pub(super) fn input(&self) -> PendingSpan {
        let bytes = self.among.as_ref().map_or(self.input, |(_, parts)| parts.iter().map(|part| part.span.len).sum());
        self.own(0, bytes)
    }

    /// `len` bytes from `offset` of the rank's contribution.
    pub(super) fn own(&self, offset: u64, len: u64) -> PendingSpan {
        let Some((_, parts)) = &self.among else { return PendingSpan::given(Span::input(offset, len)) };
        let Some(first) = parts.first() else { return PendingSpan::given(Span::signal()) };
        let start = first.span.offset + offset;
        let before = parts.partition_point(|part| part.span.offset + part.span.len <= start);
        let overlapping = parts[before..].iter().take_while(|part| part.span.offset < start + len);
        let after = overlapping.flat_map(|part| part.after.iter().copied()).collect();
        PendingSpan { span: Span { offset: start, len, ..first.span }, after }
    }

    /// Runs `steps` for the subgroup `ranks`, which `steps` names by number. This rank contributes `parts`, which lie
    /// one behind the other.
    pub(super) fn among<T>(
        &mut self,
        ranks: Vec<Rank>,
        parts: Vec<PendingSpan>,
        steps: impl FnOnce(&mut ReductionDraft) -> T,
    ) -> T {
        let before = self.among.replace((ranks, parts));
        let added = steps(self);
        self.among = before;
        added
    }

    fn rank(&self, number: Rank) -> Rank {
        self.among.as_ref().map_or(number, |(ranks, _)| ranks[number.0 as usize])
    }

    /// Allocates scratch that no other step uses.
    pub(super) fn scratch(&mut self, len: u64) -> Span {
        let offset = self.scratch.unwrap_or(0);
        self.scratch = self.scratch.and_then(|bytes| bytes.checked_add(len));
        // A program with scratch beyond 64 bits is rejected at the end; until then its spans need only exist.
        Span::scratch(if self.scratch.is_some() { offset } else { 0 }, len)
    }

    fn reads(&mut self, span: Span, by: OpId) -> OpId {
        if span.buffer == Buffer::Input {
            self.readers.push((span, by));
        }
        by
    }

    pub(super) fn send(&mut self, to: Rank, index: u32, part: &PendingSpan) {
        if !part.span.is_empty() {
            let to = self.rank(to);
            let sent = self.builder.send(to, index, part.span, &part.after);
            self.reads(part.span, sent);
        }
    }

    /// Receives `len` bytes into scratch.
    pub(super) fn recv(&mut self, from: Rank, index: u32, len: u64) -> PendingSpan {
        let span = self.scratch(len);
        self.recv_into(from, index, span)
    }

    /// Receives a result into its place, or a part of a message beside its neighbours.
    pub(super) fn recv_into(&mut self, from: Rank, index: u32, span: Span) -> PendingSpan {
        let from = self.rank(from);
        let received = (!span.is_empty()).then(|| self.builder.recv(from, index, span, &[]));
        PendingSpan { span, after: received.into_iter().collect() }
    }

    pub(super) fn multicast(&mut self, part: &PendingSpan) {
        if !part.span.is_empty() {
            self.builder.multicast(part.span, &part.after);
        }
    }

    /// Receives a result by multicast into its place.
    pub(super) fn multicast_recv(&mut self, root: Rank, span: Span) {
        if !span.is_empty() {
            self.builder.multicast_recv(root, span);
        }
    }

    /// Combines two parts: the first stays unchanged, the second becomes the result.
    pub(super) fn combine(&mut self, stays: &PendingSpan, becomes: &PendingSpan, stays_left: bool) -> PendingSpan {
        if becomes.span.is_empty() {
            return becomes.clone();
        }
        let after: Vec<OpId> = becomes.after.iter().chain(&stays.after).copied().collect();
        let combined = self.builder.reduce(stays.span, becomes.span, stays_left, &after);
        self.reads(stays.span, combined);
        PendingSpan { span: becomes.span, after: vec![combined] }
    }

    /// Copies a part to `to`, which no other step touches before.
    pub(super) fn copy(&mut self, part: &PendingSpan, to: Span) -> PendingSpan {
        if part.span.is_empty() {
            return PendingSpan::given(to);
        }
        let copied = self.builder.copy(part.span, to, &part.after);
        self.reads(part.span, copied);
        PendingSpan { span: to, after: vec![copied] }
    }

    /// Copies a part to scratch. The copy is sent when a result may arrive in the memory of the part.
    pub(super) fn copy_aside(&mut self, part: &PendingSpan) -> PendingSpan {
        let span = self.scratch(part.span.len);
        self.copy(part, span)
    }

    /// Copies a result at `offset` of the vector to the same offset of `Output`.
    pub(super) fn deliver(&mut self, part: &PendingSpan, offset: u64) -> PendingSpan {
        let to = Span::output(offset, part.span.len);
        let mut after = part.after.clone();
        if (part.span.buffer, part.span.offset) != (Buffer::Input, offset) {
            after.extend(self.readers(to));
            after = self.latest(after);
        }
        self.copy(&PendingSpan { span: part.span, after }, to)
    }

    /// Copies a piece of a result, which lies at `from` of the vector, to `to` of `Output`. The copy follows all
    /// readers of these bytes of `Input`.
    pub(super) fn deliver_piece(&mut self, part: &PendingSpan, from: u64, to: u64) {
        if from == to {
            self.deliver(part, to);
            return;
        }
        let to = Span::output(to, part.span.len);
        // A result made of bytes that a step reads follows that step anyway. A piece of a cut plan replaces bytes of
        // `Input` of which the piece is not made, so the copy must follow the readers of these bytes.
        let after = self.latest(part.after.clone()).into_iter().chain(self.readers(to)).collect::<BTreeSet<OpId>>();
        self.copy(&PendingSpan { span: part.span, after: after.into_iter().collect() }, to);
    }

    /// The earlier steps that read bytes of `Input` which may share memory with `output`.
    fn readers(&self, output: Span) -> impl Iterator<Item = OpId> + '_ {
        let overlaps =
            move |read: &Span| read.offset < output.offset + output.len && output.offset < read.offset + read.len;
        self.readers.iter().filter(move |(read, _)| overlaps(read)).map(|(_, by)| *by)
    }

    /// The steps in `after` that no other step in `after` follows.
    fn latest(&self, mut after: Vec<OpId>) -> Vec<OpId> {
        after.sort_unstable();
        after.dedup();
        let mut latest: Vec<OpId> = Vec::new();
        for step in after.into_iter().rev() {
            if !self.builder.follows(&latest, step) {
                latest.push(step);
            }
        }
        latest.reverse();
        latest
    }

    pub(super) fn finish(mut self) -> Result<Program, PlanError> {
        let scratch = self.scratch.ok_or(PlanError::Scratch)?;
        self.builder.buffers(self.input, self.output, scratch);
        Ok(self.builder.build())
    }
}
