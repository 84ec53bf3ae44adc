//! Output of relayed calls that the service process has written, so that it can be sent before the call ends (GP-9).
//!
//! The conductor's writes are noted as spans of addresses, and the delivering thread takes long spans. The spans only
//! decide when bytes are sent: at its end a call sends all bytes that have not been sent. The conductor waits only for
//! the lock of the spans.

use std::sync::{Arc, Mutex, OnceLock};

use outboard_shm::control::RankSide;
use outboard_shm::memory::{WriteObserver, WritePiece};

use crate::spans::Spans;
use crate::wire::lock;

/// Length of contiguous output from which on it is sent before the call has ended.
const WORTH_A_FRAME: u64 = 128 << 10;

/// Spans of output that were written to one rank's proxy buffers and have not been sent.
#[derive(Debug, Default)]
pub(crate) struct Output {
    written: Mutex<Spans>,
    /// The rank's side of the connection to the service process, on which the delivering thread waits.
    side: OnceLock<Arc<RankSide>>,
}

impl Output {
    /// Sets the side on which the delivering thread waits. From now on output wakes the thread.
    pub(super) fn wake(&self, side: &Arc<RankSide>) {
        // The side is set only once for each rank.
        let _ = self.side.set(Arc::clone(side));
    }

    pub(super) fn is_worth_a_frame(&self) -> bool {
        lock(&self.written).first_of(WORTH_A_FRAME).is_some()
    }

    /// Takes a span that is long enough for a frame.
    pub(super) fn take(&self) -> Option<(u64, u64)> {
        let mut written = lock(&self.written);
        let (start, end) = written.first_of(WORTH_A_FRAME)?;
        written.remove(start, end);
        Some((start, end))
    }

    pub(super) fn take_between(&self, start: u64, end: u64) -> Vec<(u64, u64)> {
        lock(&self.written).remove(start, end)
    }
}

impl WriteObserver for Output {
    fn written(&self, batch: &[WritePiece<'_>]) {
        let mut spans = lock(&self.written);
        let longest = batch.iter().map(|piece| {
            let end = piece.address.saturating_add(piece.local.len() as u64);
            spans.insert(piece.address, end)
        });
        let longest = longest.max();
        drop(spans);
        if longest >= Some(WORTH_A_FRAME)
            && let Some(side) = self.side.get()
        {
            side.nudge();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_worth_a_frame_is_taken_once() {
        let output = Output::default();
        let half = vec![1; WORTH_A_FRAME as usize / 2];
        output.take_between(0, 1);
        WriteObserver::written(&output, &[WritePiece { local: &half, address: 1000 }]);
        assert!(!output.is_worth_a_frame() && output.take().is_none());
        WriteObserver::written(&output, &[WritePiece { local: &half, address: 1000 + half.len() as u64 }]);
        assert_eq!(output.take(), Some((1000, 1000 + WORTH_A_FRAME)));
        assert_eq!(output.take_between(0, u64::MAX), []);
    }
}
