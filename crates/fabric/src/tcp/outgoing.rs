//! Outgoing messages of a connection, which wait for the next flush or for room in the kernel, and their sealed bytes.
//!
//! Invariants: messages leave in order. Sealed bytes belong to one connection: they leave on it or are lost with it,
//! like bytes that the kernel accepted. Beyond one message, at most [`AT_ONCE`] bytes are sealed ahead. Never does IO.

use std::collections::VecDeque;

use outboard_shm::memory::{GatherList, ScatterList};

use crate::secured::Sealer;
use crate::tcp::frames;
use crate::{SendBuffer, SendPayload};

/// Bytes passed to the kernel, or sealed for it, at once.
pub(super) const AT_ONCE: usize = 256 << 10;

/// The payload of a message, if it does not lie behind the header.
enum Body {
    Nowhere,
    Buffer(SendBuffer),
    /// The memory is valid only until the flush has ended.
    Mapped(ScatterList),
}

/// A message on its way to the kernel.
pub(super) struct QueuedMessage {
    /// Prefix and header, and the payload if `body` holds none.
    head: Vec<u8>,
    body: Body,
    pub(super) written: usize,
}

impl QueuedMessage {
    pub(super) fn new(header: &[u8], payload: SendPayload<'_>) -> Self {
        let mut head = [&frames::prefix(header.len(), payload.len()), header].concat();
        let body = match payload {
            SendPayload::Empty => Body::Nowhere,
            SendPayload::Bytes(bytes) => {
                head.extend_from_slice(bytes);
                Body::Nowhere
            }
            SendPayload::Buffer(buffer) => Body::Buffer(buffer),
            SendPayload::Mapped(places) => Body::Mapped(places),
        };
        QueuedMessage { head, body, written: 0 }
    }

    /// Bytes of header and payload together, as the peer's load counts them.
    pub(super) fn length(&self) -> usize {
        let body = match &self.body {
            Body::Nowhere => 0,
            Body::Buffer(buffer) => buffer.len(),
            Body::Mapped(places) => places.bytes(),
        };
        self.head.len() + body
    }

    /// Starts the message over on a new connection.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
    }

    /// Copies a payload that may change after the flush.
    pub(super) fn keep(&mut self) {
        if let Body::Mapped(places) = &self.body {
            let start = self.head.len();
            self.head.resize(start + places.bytes(), 0);
            places.take(&mut self.head[start..]);
            self.body = Body::Nowhere;
        }
    }

    pub(super) fn gather<'a>(&'a self, gathered: &mut GatherList<'a>) {
        gathered.push(&self.head[self.written.min(self.head.len())..]);
        let of_body = self.written.saturating_sub(self.head.len());
        match &self.body {
            Body::Nowhere => {}
            Body::Buffer(buffer) => gathered.push(&buffer[of_body..]),
            Body::Mapped(places) => gathered.push_scattered(places, of_body),
        }
    }

    /// The whole message; only for messages whose bytes stay.
    fn whole(&self) -> [&[u8]; 2] {
        let payload: &[u8] = match &self.body {
            Body::Nowhere => &[],
            Body::Buffer(buffer) => buffer,
            Body::Mapped(_) => unreachable!("a copy is kept of what is sealed"),
        };
        [&self.head, payload]
    }
}

/// Memory shared by all connections, because only one is written at a time. Each connection keeps its own unsent bytes.
#[derive(Default)]
pub(super) struct SpareBuffers {
    sealed: Vec<u8>,
    gathered: Vec<u8>,
}

/// Bytes that are sealed for one connection and have not left.
pub(super) struct RecordWriter {
    sealer: Sealer,
    sealed: Vec<u8>,
    written: usize,
}

impl RecordWriter {
    pub(super) fn new(sealer: Sealer) -> RecordWriter {
        RecordWriter { sealer, sealed: Vec::new(), written: 0 }
    }

    pub(super) fn rest(&self) -> &[u8] {
        &self.sealed[self.written..]
    }

    pub(super) fn advance(&mut self, written: usize, spare: &mut SpareBuffers) {
        self.written += written;
        if self.rest().is_empty() {
            self.written = 0;
            self.sealed.clear();
            if spare.sealed.capacity() == 0 {
                std::mem::swap(&mut spare.sealed, &mut self.sealed);
            }
            // Several connections had bytes left; one spare buffer is enough.
            self.sealed = Vec::new();
        }
    }

    fn seal<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>, spare: &mut SpareBuffers) {
        assert!(self.rest().is_empty(), "what is sealed leaves before more is");
        std::mem::swap(&mut spare.sealed, &mut self.sealed);
        self.sealer.seal(pieces, &mut spare.gathered, &mut self.sealed);
    }

    /// Seals the first waiting messages together, which then count as sent. Returns how many.
    pub(super) fn seal_queue(
        &mut self,
        queue: &mut VecDeque<QueuedMessage>,
        spare: &mut SpareBuffers,
        left: &mut dyn FnMut(QueuedMessage),
    ) -> usize {
        queue.iter_mut().for_each(QueuedMessage::keep);
        let mut bytes = 0;
        let few = queue.iter().take_while(|message| {
            let first = bytes == 0;
            bytes += message.length();
            first || bytes <= AT_ONCE
        });
        let few = few.count();
        self.seal(queue.iter().take(few).flat_map(QueuedMessage::whole), spare);
        queue.drain(..few).for_each(left);
        few
    }
}
