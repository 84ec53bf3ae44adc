//! A call for a relayed rank: its proxy buffer, and the bytes of that buffer that cross the link.

use std::sync::Arc;

use outboard_call::{Call, CallKind, TaggedCall};
use outboard_shm::entry::SubmissionEntry;

use super::rank::UNMAPPED_ADDRESS;
use outboard_service::MemoryPieces;

use crate::proxy_buffer::ProxyBuffer;
use crate::recording::RelayedRecording;
use crate::spans::Spans;

/// Alignment of proxy buffers and of their parts.
const ALIGN: u64 = 64;

/// Bytes of a call that cross the link, by their offset in the call's proxy buffer.
#[derive(Debug, Clone)]
pub(super) enum ProxyLayout {
    /// Input, table and output, one after another. `table_at` and `output_at` are offsets, and `input` includes the
    /// table.
    Apart { input: MemoryPieces, output: MemoryPieces, table_at: u64, output_at: u64 },
    /// The memory of a recording; a start reads and writes this memory.
    Recorded(Arc<RelayedRecording>),
}

impl ProxyLayout {
    /// Lays out a call whose input, table and output have these lengths. Returns the layout and the length of the proxy
    /// buffer, or `None` if they exceed the address space.
    pub(super) fn apart(input: u64, table: u64, output: u64) -> Option<(ProxyLayout, u64)> {
        let table_at = input.checked_next_multiple_of(ALIGN)?;
        let output_at = table_at.checked_add(table)?.checked_next_multiple_of(ALIGN)?;
        let bytes = output_at.checked_add(output)?;
        let (input, output) =
            (MemoryPieces::new([(0, input), (table_at, table)]), MemoryPieces::new([(output_at, output)]));
        Some((ProxyLayout::Apart { input, output, table_at, output_at }, bytes))
    }

    fn input(&self) -> &MemoryPieces {
        match self {
            ProxyLayout::Apart { input, .. } => input,
            ProxyLayout::Recorded(recorded) => &recorded.reads,
        }
    }

    fn output(&self) -> &MemoryPieces {
        match self {
            ProxyLayout::Apart { output, .. } => output,
            ProxyLayout::Recorded(recorded) => &recorded.writes,
        }
    }
}

/// A call, and the proxy buffer that stands for the rank's buffers.
#[derive(Debug)]
pub(super) struct DockedCall {
    pub(super) entry: SubmissionEntry,
    pub(super) proxy_buffer: ProxyBuffer,
    layout: ProxyLayout,
    /// Bytes of input and table that have not arrived yet.
    pub(super) missing: u64,
    sent: Spans,
    readable: bool,
}

impl DockedCall {
    pub(super) fn new(entry: SubmissionEntry, proxy_buffer: ProxyBuffer, layout: ProxyLayout) -> DockedCall {
        let missing = layout.input().total();
        DockedCall { entry, proxy_buffer, layout, missing, sent: Spans::default(), readable: true }
    }

    /// Marks the missing input as unreadable: it never arrives, and the service process fails the call as the rank's
    /// fault.
    pub(super) fn unreadable(self) -> DockedCall {
        DockedCall { readable: false, ..self }
    }

    /// Stores a piece of input or table. Returns false if the piece lies beyond input and table.
    pub(super) fn fill(&mut self, offset: u64, mut bytes: &[u8]) -> bool {
        let (length, input) = (bytes.len() as u64, self.layout.input());
        if length > self.missing || offset.checked_add(length).is_none_or(|end| end > input.total()) {
            return false;
        }
        for (at, count) in input.places(offset, length) {
            // The counts of the places add up to the length of `bytes` at most, so the split is in range.
            let (now, rest) = bytes.split_at(count as usize);
            self.proxy_buffer.write(at, now);
            bytes = rest;
        }
        self.missing -= length;
        true
    }

    /// First address of the proxy buffer, and the address after its last byte.
    pub(super) fn addresses(&self) -> (u64, u64) {
        (self.proxy_buffer.address(), self.proxy_buffer.address() + self.proxy_buffer.bytes())
    }

    /// Copies output from `offset` on into `buffer`.
    pub(super) fn read(&self, offset: u64, mut buffer: &mut [u8]) {
        for (at, count) in self.layout.output().places(offset, buffer.len() as u64) {
            let (now, rest) = buffer.split_at_mut(count as usize);
            self.proxy_buffer.read(at, now);
            buffer = rest;
        }
    }

    /// Offsets (start and end) of the first contiguous run of output between two addresses.
    pub(super) fn first_between(&self, start: u64, end: u64) -> Option<(u64, u64)> {
        let base = self.proxy_buffer.address();
        self.layout.output().offsets(start.saturating_sub(base), end.saturating_sub(base)).next()
    }

    /// The address after the output byte that precedes `offset`.
    pub(super) fn address_behind(&self, offset: u64) -> u64 {
        let last = self.layout.output().places(offset.saturating_sub(1), 1).next();
        self.proxy_buffer.address() + last.map_or(0, |(at, _)| at + 1)
    }

    pub(super) fn mark_sent(&mut self, start: u64, end: u64) {
        self.sent.insert(start, end);
    }

    /// Ranges of output that must still be sent, if `rewritten` lists the address spans that were written since the
    /// last send.
    pub(super) fn unsent(&self, rewritten: &[(u64, u64)]) -> Vec<(u64, u64)> {
        let (output, base) = (self.layout.output(), self.proxy_buffer.address());
        let rewritten = rewritten.iter().flat_map(|(start, end)| output.offsets(start - base, end - base));
        if let CallKind::Tagged(TaggedCall::Send { .. } | TaggedCall::Receive { .. }) = self.entry.call.kind {
            // A message may be shorter than its receive buffer. The part of the buffer after the message stays
            // unchanged and is not sent.
            return rewritten.collect();
        }
        let mut sent = self.sent.clone();
        rewritten.for_each(|(from, to)| drop(sent.remove(from, to)));
        sent.missing(0, output.total())
    }

    pub(super) fn entry_in_buffer(&self) -> SubmissionEntry {
        let base = self.proxy_buffer.address();
        let send = if self.readable { base } else { UNMAPPED_ADDRESS };
        let (receive, table) = match (&self.layout, self.entry.call.kind) {
            (ProxyLayout::Recorded(_), _) => (send, 0),
            // The dock does not know this recording, so the service process does not know it either, and reports that.
            (ProxyLayout::Apart { .. }, CallKind::Tagged(TaggedCall::Recorded { .. })) => (UNMAPPED_ADDRESS, 0),
            (ProxyLayout::Apart { table_at, output_at, .. }, _) => (base + output_at, base + table_at),
        };
        SubmissionEntry { call: Call { send, receive, table, ..self.entry.call }, ..self.entry }
    }
}
