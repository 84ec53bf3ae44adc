//! The service process itself was stopped, or one turn of it took too long.
//!
//! The driver passes the time with every event. A timer that was due for longer than others wait for a sign of life shows
//! a stall: they have given this service process up, and name it. So what is lost soon after is lost by the stall, and
//! this service process names itself to its own ranks. Never breaks a group by itself: others may have waited longer.

use std::time::Duration;

use super::{Endpoint, Node};
use crate::ids::Instant;

/// Others may take so many times their silence limit until they have shown that they gave this service process up.
const SHOWN_WITHIN: u32 = 2;

#[derive(Debug, Clone, Copy)]
pub(super) struct Stall {
    over: Instant,
    lasted: Duration,
}

impl Node {
    /// For how long this service process was stopped, if a group that was made at `since` may be lost by that.
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
