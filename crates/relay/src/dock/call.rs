//! A call on behalf of a relayed rank: its shadow, and what of that crosses the link.

use std::sync::Arc;

use outboard_call::{Call, CallKind, TaggedCall};
use outboard_shm::entry::Entry;

use super::rank::NOWHERE;
use outboard_service::Pieces;

use crate::recording::Recorded;
use crate::shadow::Shadow;
use crate::spans::Spans;

/// Shadows and their parts begin at multiples of this.
const ALIGN: u64 = 64;

/// What crosses of a call, and where in its shadow.
#[derive(Debug, Clone)]
pub(super) enum Layout {
    /// Input, table and output, one behind the other; table and output begin there. The table counts as input.
    Apart { input: Pieces, output: Pieces, table_at: u64, output_at: u64 },
    /// The memory of a recording, in which it reads and writes.
    Recorded(Arc<Recorded>),
}

impl Layout {
    /// Lays a call out that has so many bytes of each, and says how many its shadow has; `None` if they exceed the
    /// address space.
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

/// A call, with the shadow that its buffers lie in.
#[derive(Debug)]
pub(super) struct Docked {
    pub(super) entry: Entry,
    pub(super) shadow: Shadow,
    layout: Layout,
    /// Bytes of input and table that have not come.
    pub(super) missing: u64,
    sent: Spans,
    readable: bool,
}

impl Docked {
    pub(super) fn new(entry: Entry, shadow: Shadow, layout: Layout) -> Docked {
        let missing = layout.input().total();
        Docked { entry, shadow, layout, missing, sent: Spans::default(), readable: true }
    }

    /// What is missing never comes: the service process blames the rank.
    pub(super) fn unreadable(self) -> Docked {
        Docked { readable: false, ..self }
    }

    /// Takes a piece of input or table; false if it is beyond them.
    pub(super) fn fill(&mut self, offset: u64, mut bytes: &[u8]) -> bool {
        let (length, input) = (bytes.len() as u64, self.layout.input());
        if length > self.missing || offset.checked_add(length).is_none_or(|end| end > input.total()) {
            return false;
        }
        for (at, count) in input.places(offset, length) {
            // Part of `bytes`, whose places these are.
            let (now, rest) = bytes.split_at(count as usize);
            self.shadow.write(at, now);
            bytes = rest;
        }
        self.missing -= length;
        true
    }

    /// First address of the shadow, and the one behind it.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.shadow.address(), self.shadow.address() + self.shadow.bytes())
    }

    /// Copies output out, `buffer` full of it from `offset` on.
    pub(super) fn read(&self, offset: u64, mut buffer: &mut [u8]) {
        for (at, count) in self.layout.output().places(offset, buffer.len() as u64) {
            let (now, rest) = buffer.split_at_mut(count as usize);
            self.shadow.read(at, now);
            buffer = rest;
        }
    }

    /// The first of the output that was written between two addresses.
    pub(super) fn first_between(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let base = self.shadow.address();
        self.layout.output().offsets(start.saturating_sub(base), end.saturating_sub(base)).next()
    }

    /// The address of a byte of the output.
    pub(super) fn address_behind(&self, offset: u64) -> u64 {
        let last = self.layout.output().places(offset.saturating_sub(1), 1).next();
        self.shadow.address() + last.map_or(0, |(at, _)| at + 1)
    }

    pub(super) fn leaves(&mut self, start: u64, end: u64) {
        self.sent.insert(start, end);
    }

    /// What of the output has not left, if these spans of addresses were written since they last did.
    pub(super) fn left(&self, rewritten: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let (output, base) = (self.layout.output(), self.shadow.address());
        let rewritten = rewritten.iter().flat_map(|(start, end)| output.offsets(start - base, end - base));
        if let CallKind::Tagged(TaggedCall::Send { .. } | TaggedCall::Receive { .. }) = self.entry.call.kind {
            // It may be shorter than its receive allows, whose memory behind it stays as it was.
            return rewritten.collect();
        }
        let mut sent = self.sent.clone();
        rewritten.for_each(|(from, to)| drop(sent.remove(from, to)));
        sent.missing(0, output.total())
    }

    pub(super) fn placed(&self) -> Entry {
        let base = self.shadow.address();
        let send = if self.readable { base } else { NOWHERE };
        let (receive, table) = match (&self.layout, self.entry.call.kind) {
            (Layout::Recorded(_), _) => (send, 0),
            // One that the dock does not know the service process does not know, either, and says so.
            (Layout::Apart { .. }, CallKind::Tagged(TaggedCall::Recorded { .. })) => (NOWHERE, 0),
            (Layout::Apart { table_at, output_at, .. }, _) => (base + output_at, base + table_at),
        };
        Entry { call: Call { send, receive, table, ..self.entry.call }, ..self.entry }
    }
}
