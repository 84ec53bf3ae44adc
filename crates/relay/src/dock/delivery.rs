//! Sends frames to the relay: output while it is written, then the rest of the output with the completion of each call.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use outboard_shm::control::RankSide;
use outboard_shm::status::Status;

use super::call::DockedCall;
use crate::frame::{DATA_BYTES, RelayFrame};
use crate::output::Output;
use crate::proxy_buffer::ProxyBuffers;
use crate::wire::{Wire, lock};

/// State that both threads of a rank's session share.
#[derive(Debug)]
pub(super) struct DockDelivery {
    pub(super) side: Arc<RankSide>,
    pub(super) output: Arc<Output>,
    pub(super) wire: Wire,
    pub(super) state: Mutex<DockState>,
    pub(super) changed: Condvar,
}

#[derive(Debug)]
pub(super) struct DockState {
    /// Posted calls by completion word.
    pub(super) posted: HashMap<u32, DockedCall>,
    pub(super) proxy_buffers: ProxyBuffers,
    pub(super) over: bool,
}

impl DockDelivery {
    pub(super) fn state(&self) -> MutexGuard<'_, DockState> {
        lock(&self.state)
    }

    /// Ends the session; the other thread then ends too.
    pub(super) fn finish(&self) {
        self.wire.end();
        self.state().over = true;
        self.changed.notify_all();
        self.side.nudge();
    }

    /// Sends output while it is written, and the rest with the completion of every ended call. Returns when the session
    /// ends.
    pub(super) fn deliver(&self) {
        let mut buffer = Vec::new();
        loop {
            let idle = |state: &mut DockState| state.posted.is_empty() && !state.over;
            drop(self.changed.wait_while(self.state(), idle).unwrap_or_else(PoisonError::into_inner));
            let has_work =
                |state: &DockState| state.over || state.posted.keys().any(|slot| self.side.result(*slot).is_some());
            self.side.wait(None, None, || has_work(&self.state()) || self.output.is_worth_a_frame());
            let mut state = self.state();
            if state.over {
                return;
            }
            let ended: Vec<_> = state.posted.extract_if(|slot, _| self.side.result(*slot).is_some()).collect();
            drop(state);
            // If a send fails, this thread ends: the reading thread notices the broken connection.
            for (slot, call) in ended {
                let status = self.side.result(slot).unwrap_or(Status::Internal);
                if self.send_completion(slot, &call, status, &mut buffer).is_err() {
                    return;
                }
                self.state().proxy_buffers.give_back(call.proxy_buffer);
            }
            if let Some((start, end)) = self.output.take()
                && self.send_early(start, end, &mut buffer).is_err()
            {
                return;
            }
        }
    }

    /// Sends output that was written between two addresses, if it belongs to calls that have not ended.
    fn send_early(&self, mut start: u64, end: u64, buffer: &mut Vec<u8>) -> io::Result<()> {
        while start < end {
            let mut state = self.state();
            let holds = |call: &DockedCall| (call.addresses().0..call.addresses().1).contains(&start);
            // Only calls in flight are written to. The output of calls that have ended meanwhile is already sent.
            let Some((&slot, call)) = state.posted.iter_mut().find(|(_, call)| holds(call)) else { return Ok(()) };
            let stop = call.addresses().1.min(end);
            let Some((offset, behind)) = call.first_between(start, stop) else {
                start = stop;
                continue;
            };
            let behind = behind.min(offset + DATA_BYTES as u64);
            buffer.resize((behind - offset) as usize, 0);
            call.read(offset, buffer);
            call.mark_sent(offset, behind);
            start = call.address_behind(behind);
            drop(state);
            self.wire.send(&RelayFrame::Data { slot, offset, bytes: buffer })?;
        }
        Ok(())
    }

    /// Sends the rest of an ended call's output, then the call's completion.
    fn send_completion(&self, slot: u32, call: &DockedCall, status: Status, buffer: &mut Vec<u8>) -> io::Result<()> {
        let (start, end) = call.addresses();
        let rewritten = self.output.take_between(start, end);
        let rest = if status == Status::Ok { call.unsent(&rewritten) } else { Vec::new() };
        for (mut offset, end) in rest {
            while offset < end {
                let count = (end - offset).min(DATA_BYTES as u64);
                buffer.resize(count as usize, 0);
                call.read(offset, buffer);
                self.wire.send(&RelayFrame::Data { slot, offset, bytes: buffer })?;
                offset += count;
            }
        }
        self.wire.send(&RelayFrame::Complete { slot, status })
    }
}
