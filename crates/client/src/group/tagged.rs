//! Posting tagged messages, and the begin of a recording.

use super::Group;
use crate::error::Error;
use crate::request::Request;
use crate::staging::RequestBuffers;
use crate::tagged::{Recorder, piece};
use outboard_call::TaggedCall;

impl Group {
    /// Posts a message of `bytes` bytes at `buffer` to rank `to`, which receives it by naming this rank and `tag`. The
    /// request ends when the buffer may be used again, before or after the message is received (GP-1).
    ///
    /// # Safety
    /// The buffer is valid and left alone until the request has completed, also when the request is dropped before.
    pub unsafe fn isend(&self, to: u32, tag: u32, buffer: *const u8, bytes: u64) -> Result<Request, Error> {
        let peer = self.tagged.peer(to, "to")?;
        let length = piece(buffer, bytes, "buffer")?.length;
        let buffers = RequestBuffers { contribution: buffer, bytes_per_rank: length, ..RequestBuffers::NONE };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.tagged.message(TaggedCall::Send { to: peer, tag }, &buffers, bytes) }
    }

    /// Posts the receive of the next message that rank `from` sends to this rank with `tag`, of at most `bytes` bytes,
    /// into `buffer`. A longer message fails only this request, with an error that names both lengths. A shorter
    /// message leaves the rest of the buffer unchanged (GP-1).
    ///
    /// # Safety
    /// As for [`Group::isend`].
    pub unsafe fn ireceive(&self, from: u32, tag: u32, buffer: *mut u8, bytes: u64) -> Result<Request, Error> {
        let peer = self.tagged.peer(from, "from")?;
        let length = piece(buffer, bytes, "buffer")?.length;
        // A staged buffer is copied as a whole, so bytes beyond a shorter message are copied back unchanged.
        let buffers = RequestBuffers {
            contribution: buffer,
            bytes_per_rank: length,
            receive: buffer,
            receive_bytes: length,
            in_place_at: Some(0),
            ..RequestBuffers::NONE
        };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.tagged.message(TaggedCall::Receive { from: peer, tag }, &buffers, bytes) }
    }

    /// Begins to record. Nothing is done or sent before [`Recorder::end`].
    pub fn record(&self) -> Recorder {
        Recorder::new(&self.tagged)
    }
}
