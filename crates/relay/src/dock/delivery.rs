//! Frames to the relay: output as it is written, and the rest with the completion of each ended call.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outboard_shm::control::RankSide;
use outboard_shm::status::Status;

use super::call::Docked;
use crate::frame::{DATA_BYTES, Frame};
use crate::output::Output;
use crate::shadow::Shadows;
use crate::wire::{Wire, lock};

/// State that both threads of a session share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) side: Arc<RankSide>,
    pub(super) output: Arc<Output>,
    pub(super) wire: Wire,
    pub(super) books: Mutex<Books>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct Books {
    /// Calls by completion word.
    pub(super) posted: HashMap<u32, Docked>,
    pub(super) shadows: Shadows,
    pub(super) over: bool,
}

impl Shared {
    pub(super) fn books(&self) -> MutexGuard<'_, Books> {
        lock(&self.books)
    }

    /// Ends the session, so that the other thread ends.
    pub(super) fn finish(&self) {
        self.wire.end();
        self.books().over = true;
        self.changed.notify_all();
        self.side.nudge();
    }

    /// Sends output as it is written, and the rest with the completion of every ended call, until the session ends.
    pub(super) fn deliver(&self) {
        let mut buffer = Vec::new();
        loop {
            let idle = |books: &mut Books| books.posted.is_empty() && !books.over;
            drop(self.changed.wait_while(self.books(), idle).unwrap_or_else(PoisonError::into_inner));
            let news = |books: &Books| books.over || books.posted.keys().any(|slot| self.side.result(*slot).is_some());
            self.side.wait(None, None, || news(&self.books()) || self.output.is_worth_a_frame());
            let mut books = self.books();
            if books.over {
                return;
            }
            let ended: Vec<_> = books.posted.extract_if(|slot, _| self.side.result(*slot).is_some()).collect();
            drop(books);
            // The reading thread notices a broken connection.
            for (slot, call) in ended {
                let status = self.side.result(slot).unwrap_or(Status::Internal);
                if self.answer(slot, &call, status, &mut buffer).is_err() {
                    return;
                }
                self.books().shadows.give_back(call.shadow);
            }
            if let Some(span) = self.output.take()
                && self.send_early(span, &mut buffer).is_err()
            {
                return;
            }
        }
    }

    /// Sends output that was written between two addresses, for calls that have not ended.
    fn send_early(&self, (mut start, end): (u64, u64), buffer: &mut Vec<u8>) -> io::Result<()> {
        while start < end {
            let mut books = self.books();
            let holds = |call: &Docked| (call.addresses().0..call.addresses().1).contains(&start);
            // Only calls in flight are written to; the output of calls that have ended meanwhile has been sent.
            let Some((&slot, call)) = books.posted.iter_mut().find(|(_, call)| holds(call)) else { return Ok(()) };
            let stop = call.addresses().1.min(end);
            let Some((offset, behind)) = call.first_between(start, stop) else {
                start = stop;
                continue;
            };
            let behind = behind.min(offset + DATA_BYTES as u64);
            buffer.resize((behind - offset) as usize, 0);
            call.read(offset, buffer);
            call.leaves(offset, behind);
            start = call.address_behind(behind);
            drop(books);
            self.wire.send(&Frame::Data { slot, offset, bytes: buffer })?;
        }
        Ok(())
    }

    /// Sends the rest of an ended call's output, and its completion.
    fn answer(&self, slot: u32, call: &Docked, status: Status, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (start, end) = call.addresses();
        let rewritten = self.output.take_between(start, end);
        let rest = if status == Status::Ok { call.left(&rewritten) } else { Vec::new() };
        for (mut offset, end) in rest {
            while offset < end {
                let count = (end - offset).min(DATA_BYTES as u64);
                buffer.resize(count as usize, 0);
                call.read(offset, buffer);
                self.wire.send(&Frame::Data { slot, offset, bytes: buffer })?;
                offset += count;
            }
        }
        self.wire.send(&Frame::Complete { slot, status })
    }
}
