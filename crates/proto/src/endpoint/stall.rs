//! Detects that the service process itself was stopped, or that one of its turns took too long.
//!
//! The driver passes the time with every event. A timer that is overdue by more than the silence limit shows a stall:
//! other service processes have given up this service process, and name it. So the stall explains losses soon after it,
//! and this service process names itself to its own ranks. Never breaks a group by itself: the others may have waited
//! longer.

use std::time::Duration;

use super::{Endpoint, NodeState};
use crate::ids::Instant;

/// Other service processes may take this many silence limits to show that they gave up this service process.
const SHOWN_WITHIN: u32 = 2;

#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    over: Instant,
    lasted: Duration,
}

impl NodeState {
    /// How long this service process was stopped, if the stall may cost a group made at `since`.
    pub(super) fn stalled(&self, since: Instant) -> Option<Duration> {
        let shown_until = |stall: &Stall| stall.over + self.config.dead_after * SHOWN_WITHIN;
        let stall = self.stall.filter(|stall| since < stall.over && self.out.now < shown_until(stall));
        stall.map(|stall| stall.lasted)
    }
}

impl Endpoint {
    pub(super) fn advance(&mut self, now: Instant) {
        let (before, limit) = (self.node.out.now, self.node.config.dead_after);
        if now.since(before) > limit {
            let due = [self.poll_timeout(), self.node.peers.next_poll()].into_iter().flatten().min();
            let lasted = due.map_or(Duration::ZERO, |due| now.since(due.max(before)));
            if lasted > limit {
                self.node.stall = Some(Stall { over: now, lasted });
            }
        }
        self.node.out.now = now;
    }
}
