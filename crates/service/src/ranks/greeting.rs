//! Connections that have not greeted: for how long, and how many.
//!
//! A rank greets as soon as it has connected. A connection that has not greeted in time is closed, and the oldest one
//! makes way for one too many. Never closes anything itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ranks::ConnectionId;

/// How long a connection may take to greet.
const LIMIT: Duration = Duration::from_secs(5);
/// Connections that have not greeted: a host full of ranks that start together.
const MOST: usize = 512;

/// See the module.
#[derive(Debug, Default)]
pub struct Greetings {
    /// The oldest first, with the end of its time.
    waiting: VecDeque<(ConnectionId, Instant)>,
}

impl Greetings {
    /// Adds a connection. Returns the one that makes way.
    pub fn add(&mut self, now: Instant, id: ConnectionId) -> Option<ConnectionId> {
        self.waiting.push_back((id, now + LIMIT));
        let oldest = (self.waiting.len() > MOST).then(|| self.waiting.pop_front())?;
        oldest.map(|(id, _)| id)
    }

    /// The connection has greeted, or is gone.
    pub fn remove(&mut self, id: ConnectionId) {
        self.waiting.retain(|(waiting, _)| *waiting != id);
    }

    /// A connection whose time is over.
    pub fn pop_due(&mut self, now: Instant) -> Option<ConnectionId> {
        let (id, until) = *self.waiting.front()?;
        (until <= now).then(|| self.waiting.pop_front())?;
        Some(id)
    }

    /// When the next connection's time is over.
    pub fn until(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, until)| *until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_silent_connection_is_closed_in_time_or_makes_way() {
        let (mut greetings, now) = (Greetings::default(), Instant::now());
        assert!((0..MOST as u64).all(|id| greetings.add(now, id).is_none()));
        assert_eq!(greetings.add(now + LIMIT / 2, 1000), Some(0), "the oldest makes way");
        greetings.remove(1);
        assert_eq!(greetings.until(), Some(now + LIMIT));
        assert_eq!(greetings.pop_due(now), None);
        assert_eq!(greetings.pop_due(now + LIMIT), Some(2));
        assert_eq!(std::iter::from_fn(|| greetings.pop_due(now + LIMIT)).count(), MOST - 3);
        assert_eq!(greetings.until(), Some(now + LIMIT / 2 + LIMIT));
    }
}
