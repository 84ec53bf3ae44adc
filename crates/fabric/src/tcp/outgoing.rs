//! What leaves on a connection: messages that wait for room in the kernel, and bytes that are sealed for it.
//!
//! Invariants: messages leave in order; what is sealed belongs to one connection and leaves on it or is gone with it,
//! as what the kernel has taken does; beside one message at most [`AT_ONCE`] bytes are sealed ahead. Never does IO.

use std::collections::VecDeque;

use crate::SendBuffer;
use crate::secured::Sealer;
use crate::tcp::frames;

/// Bytes that are sealed before the kernel is asked to take them.
const AT_ONCE: usize = 256 << 10;

/// A message that waits for room in the kernel.
pub(super) struct Outgoing {
    /// Prefix, header, and a payload that has no buffer of its own.
    head: Vec<u8>,
    payload: Option<SendBuffer>,
    pub(super) written: usize,
}

impl Outgoing {
    pub(super) fn new(head: Vec<u8>, payload: Option<SendBuffer>, written: usize) -> Self {
        Outgoing { head, payload, written }
    }

    /// Bytes of header and payload together, as the peer's load counts them.
    pub(super) fn length(&self) -> usize {
        self.head.len() + self.payload.as_deref().map_or(0, <[u8]>::len)
    }

    /// On a new connection a message starts over.
    pub(super) fn rewind(&mut self) {
        self.written = 0;
    }

    /// What has not been written.
    pub(super) fn pieces(&self) -> [&[u8]; 2] {
        let payload = self.payload.as_deref().unwrap_or_default();
        let head = &self.head[self.written.min(self.head.len())..];
        [head, &payload[self.written.saturating_sub(self.head.len())..]]
    }
}

/// Memory that connections share, since one is written at a time; each keeps what the kernel did not take.
#[derive(Default)]
pub(super) struct Spare {
    sealed: Vec<u8>,
    gathered: Vec<u8>,
}

/// What is sealed for one connection and has not left.
pub(super) struct Sealing {
    sealer: Sealer,
    sealed: Vec<u8>,
    written: usize,
}

impl Sealing {
    pub(super) fn new(sealer: Sealer) -> Sealing {
        Sealing { sealer, sealed: Vec::new(), written: 0 }
    }

    /// What the kernel is to take next.
    pub(super) fn rest(&self) -> &[u8] {
        &self.sealed[self.written..]
    }

    /// It took so many bytes.
    pub(super) fn advance(&mut self, written: usize, spare: &mut Spare) {
        self.written += written;
        if self.rest().is_empty() {
            self.written = 0;
            self.sealed.clear();
            if spare.sealed.capacity() == 0 {
                std::mem::swap(&mut spare.sealed, &mut self.sealed);
            }
            // One of several that had something left; the spare one is enough.
            self.sealed = Vec::new();
        }
    }

    fn seal<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>, spare: &mut Spare) {
        assert!(self.rest().is_empty(), "what is sealed leaves before more is");
        std::mem::swap(&mut spare.sealed, &mut self.sealed);
        self.sealer.seal(pieces, &mut spare.gathered, &mut self.sealed);
    }

    /// Seals one message, when nothing waits before it.
    pub(super) fn seal_message(&mut self, header: &[u8], payload: &[u8], spare: &mut Spare) {
        let prefix = frames::prefix(header.len(), payload.len());
        self.seal([&prefix[..], header, payload], spare);
    }

    /// Seals the first messages that wait, together; they have left then. Returns how many did.
    pub(super) fn seal_queue(
        &mut self,
        queue: &mut VecDeque<Outgoing>,
        spare: &mut Spare,
        left: &mut dyn FnMut(Outgoing),
    ) -> usize {
        let mut bytes = 0;
        let few = queue.iter().take_while(|message| {
            let first = bytes == 0;
            bytes += message.length();
            first || bytes <= AT_ONCE
        });
        let few = few.count();
        self.seal(queue.iter().take(few).flat_map(Outgoing::pieces), spare);
        queue.drain(..few).for_each(left);
        few
    }
}
