//! A call for a relayed rank: its shadow, and the bytes of the shadow that cross the link.

use std::sync::Arc;

use outboard_call::{Call, CallKind, TaggedCall};
use outboard_shm::entry::SubmissionEntry;

use super::rank::NOWHERE;
use outboard_service::Pieces;

use crate::recording::Recorded;
use crate::shadow::Shadow;
use crate::spans::Spans;

/// Alignment of shadows and of their parts.
const ALIGN: u64 = 64;

/// Bytes of a call that cross the link, by their place in its shadow.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    /// Input, table and output, one after another; `table_at` and `output_at` are offsets. The table counts as input.
    Apart { input: Pieces, output: Pieces, table_at: u64, output_at: u64 },
    /// The memory of a recording, which it reads and writes.
    Recorded(Arc<Recorded>),
}

impl Layout {
    /// Lays out a call with these bytes of each part. Returns the layout and the bytes of the shadow, or `None` if they
    /// exceed the address space.
    pub(super) fn apart(input: u64, table: u64, output: u64) -> Option<(Layout, u64)> {
        let table_at = input.checked_next_multiple_of(ALIGN)?;
        let output_at = table_at.checked_add(table)?.checked_next_multiple_of(ALIGN)?;
        let bytes = output_at.checked_add(output)?;
        let (input, output) = (Pieces::new([(0, input), (table_at, table)]), Pieces::new([(output_at, output)]));
        Some((Layout::Apart { input, output, table_at, output_at }, bytes))
    }

    fn input(&self) -> &Pieces {
        match self {
            Layout::Apart { input, .. } => input,
            Layout::Recorded(recorded) => &recorded.reads,
        }
    }

    fn output(&self) -> &Pieces {
        match self {
            Layout::Apart { output, .. } => output,
            Layout::Recorded(recorded) => &recorded.writes,
        }
    }
}

/// A call and the shadow that holds its buffers.
#[derive(Debug)]
pub(super) struct Docked {
    pub(super) entry: SubmissionEntry,
    pub(super) shadow: Shadow,
    layout: Layout,
    /// Bytes of input and table that have not arrived.
    pub(super) missing: u64,
    sent: Spans,
    readable: bool,
}

impl Docked {
    pub(super) fn new(entry: SubmissionEntry, shadow: Shadow, layout: Layout) -> Docked {
        let missing = layout.input().total();
        Docked { entry, shadow, layout, missing, sent: Spans::default(), readable: true }
    }

    /// The missing input never arrives: the service process fails the call as the rank's fault.
    pub(super) fn unreadable(self) -> Docked {
        Docked { readable: false, ..self }
    }

    /// Stores a piece of input or table; returns false if it lies beyond them.
    pub(super) fn fill(&mut self, offset: u64, mut bytes: &[u8]) -> bool {
        let (length, input) = (bytes.len() as u64, self.layout.input());
        if length > self.missing || offset.checked_add(length).is_none_or(|end| end > input.total()) {
            return false;
        }
        for (at, count) in input.places(offset, length) {
            // The counts of the places add up to the length of `bytes` at most.
            let (now, rest) = bytes.split_at(count as usize);
            self.shadow.write(at, now);
            bytes = rest;
        }
        self.missing -= length;
        true
    }

    /// First address of the shadow, and the address behind it.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.shadow.address(), self.shadow.address() + self.shadow.bytes())
    }

    /// Fills `buffer` with output from `offset` on.
    pub(super) fn read(&self, offset: u64, mut buffer: &mut [u8]) {
        for (at, count) in self.layout.output().places(offset, buffer.len() as u64) {
            let (now, rest) = buffer.split_at_mut(count as usize);
            self.shadow.read(at, now);
            buffer = rest;
        }
    }

    /// Offsets of the first run of output between two addresses.
    pub(super) fn first_between(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let base = self.shadow.address();
        self.layout.output().offsets(start.saturating_sub(base), end.saturating_sub(base)).next()
    }

    /// The address behind the output byte before `offset`.
    pub(super) fn address_behind(&self, offset: u64) -> u64 {
        let last = self.layout.output().places(offset.saturating_sub(1), 1).next();
        self.shadow.address() + last.map_or(0, |(at, _)| at + 1)
    }

    pub(super) fn leaves(&mut self, start: u64, end: u64) {
        self.sent.insert(start, end);
    }

    /// Output ranges that must still be sent, if these address spans were written since they were last sent.
    pub(super) fn left(&self, rewritten: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let (output, base) = (self.layout.output(), self.shadow.address());
        let rewritten = rewritten.iter().flat_map(|(start, end)| output.offsets(start - base, end - base));
        if let CallKind::Tagged(TaggedCall::Send { .. } | TaggedCall::Receive { .. }) = self.entry.call.kind {
            // A message may be shorter than its receive buffer, whose memory behind the message stays unchanged.
            return rewritten.collect();
        }
        let mut sent = self.sent.clone();
        rewritten.for_each(|(from, to)| drop(sent.remove(from, to)));
        sent.missing(0, output.total())
    }

    pub(super) fn placed(&self) -> SubmissionEntry {
        let base = self.shadow.address();
        let send = if self.readable { base } else { NOWHERE };
        let (receive, table) = match (&self.layout, self.entry.call.kind) {
            (Layout::Recorded(_), _) => (send, 0),
            // The service process knows no recording that the dock does not know, and reports that.
            (Layout::Apart { .. }, CallKind::Tagged(TaggedCall::Recorded { .. })) => (NOWHERE, 0),
            (Layout::Apart { table_at, output_at, .. }, _) => (base + output_at, base + table_at),
        };
        SubmissionEntry { call: Call { send, receive, table, ..self.entry.call }, ..self.entry }
    }
}
