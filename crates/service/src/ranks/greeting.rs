//! Connections that have not said who they are: for how long, and how many.
//!
//! A rank greets as soon as it has connected, so whoever has not done so in time is closed, whatever else it sends. One
//! user has so many of them at most, and so have all together: where there are more the oldest makes way, of the user
//! who has most. So nobody who only connects keeps another user's ranks out. Never closes anything itself.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::ranks::ConnectionId;

/// How long a connection may take to greet.
const LIMIT: Duration = Duration::from_secs(5);
/// Connections of one user: a host full of ranks that start together.
const MOST_OF_ONE: usize = 256;
/// Connections of all users.
const MOST: usize = 512;

#[derive(Debug, Clone, Copy)]
struct Waiting {
    id: ConnectionId,
    user: u32,
    until: Instant,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Greetings {
    /// The oldest first.
    waiting: VecDeque<Waiting>,
}

impl Greetings {
    /// One more. Returns the one that makes way.
    pub fn add(&mut self, now: Instant, id: ConnectionId, user: u32) -> Option<ConnectionId> {
        self.waiting.push_back(Waiting { id, user, until: now + LIMIT });
        let of = |user| self.waiting.iter().filter(|one| one.user == user).count();
        let crowded = if of(user) > MOST_OF_ONE {
            user
        } else if self.waiting.len() > MOST {
            self.waiting.iter().map(|one| one.user).max_by_key(|user| of(*user))?
        } else {
            return None;
        };
        let oldest = self.waiting.iter().position(|one| one.user == crowded)?;
        Some(self.waiting.remove(oldest)?.id)
    }

    /// It has greeted, or is gone.
    pub fn remove(&mut self, id: ConnectionId) {
        self.waiting.retain(|one| one.id != id);
    }

    /// One whose time is over.
    pub fn pop_due(&mut self, now: Instant) -> Option<ConnectionId> {
        let due = self.waiting.front().filter(|one| one.until <= now)?.id;
        self.waiting.pop_front();
        Some(due)
    }

    /// When the next one's time is over.
    pub fn until(&self) -> Option<Instant> {
        self.waiting.front().map(|one| one.until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_greet_is_closed_in_time_and_crowds_out_nobody_else() {
        let (mut greetings, now) = (Greetings::default(), Instant::now());
        assert_eq!(greetings.add(now, 1, 1000), None);
        let first = (2..2 + MOST_OF_ONE as u64).filter_map(|id| greetings.add(now, id, 7)).next();
        assert_eq!(first, None);
        assert_eq!(greetings.add(now, 500, 7), Some(2), "its own oldest makes way");
        for user in 8..2000 {
            let gone = greetings.add(now + LIMIT / 2, 1000 + u64::from(user), user);
            assert!(gone.is_none_or(|id| id != 1), "whoever has most makes way, as long as that is one");
            greetings.remove(1000 + u64::from(user));
        }
        assert!(greetings.waiting.len() <= MOST);
        assert_eq!(greetings.until(), Some(now + LIMIT));
        assert_eq!(greetings.pop_due(now), None);
        assert_eq!(greetings.pop_due(now + LIMIT), Some(1));
        assert_eq!(std::iter::from_fn(|| greetings.pop_due(now + LIMIT)).count(), MOST_OF_ONE);
        assert_eq!(greetings.until(), None);
    }
}
