//! Log lines that strangers, peers and ranks can provoke repeatedly. Each place in the code writes at most one line a
//! second, with the count of omitted lines. Refused connections are also counted.

use std::fmt::Display;
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::PeerId;

/// Least time between two lines of one place in the code.
const PAUSE: Duration = Duration::from_secs(1);

/// Bounds the lines of one place in the code; see [`limited`](crate::limited).
#[derive(Debug, Default)]
pub struct LogLimit(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    last: Option<Instant>,
    left_out: u64,
}

impl LogLimit {
    #[must_use]
    pub const fn new() -> Self {
        LogLimit(Mutex::new(LogState { last: None, left_out: 0 }))
    }

    /// Whether a line may be written now, and how many were omitted since the last one, if any.
    #[must_use]
    pub fn pass(&self, now: Instant) -> Option<Option<NonZeroU64>> {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if written.last.is_some_and(|last| now.saturating_duration_since(last) < PAUSE) {
            written.left_out += 1;
            return None;
        }
        written.last = Some(now);
        Some(NonZeroU64::new(std::mem::take(&mut written.left_out)))
    }
}

/// Logs at the given level, as `tracing::warn!` does, at most once a second, with the count of omitted lines.
#[macro_export]
macro_rules! limited {
    ($level:ident, $($line:tt)+) => {{
        static LIMIT: $crate::LogLimit = $crate::LogLimit::new();
        if let Some(left_out) = LIMIT.pass(std::time::Instant::now()) {
            tracing::$level!(left_out, $($line)+);
        }
    }};
}

/// Connections refused at one listener.
#[derive(Debug, Default)]
pub struct Refusals {
    count: u64,
    limit: LogLimit,
}

impl Refusals {
    /// Counts and logs a refusal: source address, peer if known, reason.
    pub fn note(&mut self, from: &dyn Display, peer: Option<PeerId>, why: &dyn Display) {
        self.count += 1;
        if let Some(left_out) = self.limit.pass(Instant::now()) {
            let peer = peer.map(tracing::field::display);
            tracing::warn!(left_out, %from, peer, %why, refused = self.count, "a connection is refused");
        }
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_a_second_passes_with_the_count_of_omitted_lines() {
        let (limit, start) = (LogLimit::new(), Instant::now());
        let left_out = |milliseconds| limit.pass(start + Duration::from_millis(milliseconds));
        let passes = |milliseconds| left_out(milliseconds).map(|lines| lines.map(NonZeroU64::get));
        assert_eq!([0, 1, 999].map(passes), [Some(None), None, None]);
        assert_eq!([1000, 1001, 5000, 6000].map(passes), [Some(Some(2)), None, Some(Some(1)), Some(None)]);
    }
}
