//! Incoming connections whose other ends have proven nothing yet. Chooses the one that makes way if there are too many.
//!
//! There are two kinds of connections: with a hello for this process and without. The oldest connection of the more
//! numerous kind makes way. So a crowd of one kind displaces no connection of the other kind. A connection survives
//! within its kind if it progresses before the number of newer ones reaches half the bound. Pure.

use std::collections::VecDeque;

/// Oldest first: silent ones by arrival, greeted ones by their hello.
#[derive(Default)]
pub(super) struct PendingConnections {
    silent: VecDeque<u64>,
    greeted: VecDeque<u64>,
}

fn remove(token: u64, from: &mut VecDeque<u64>) -> bool {
    from.iter().position(|&one| one == token).and_then(|at| from.remove(at)).is_some()
}

impl PendingConnections {
    pub(super) fn add(&mut self, token: u64) {
        self.silent.push_back(token);
    }

    pub(super) fn mark_greeted(&mut self, token: u64) {
        if remove(token, &mut self.silent) {
            self.greeted.push_back(token);
        }
    }

    /// The connection has proven its identity, or has ended.
    pub(super) fn discard(&mut self, token: u64) {
        let _ = remove(token, &mut self.silent) || remove(token, &mut self.greeted);
    }

    /// The connection that makes way when there are more than `most`.
    pub(super) fn oldest_beyond(&self, most: usize) -> Option<u64> {
        let larger = if self.silent.len() < self.greeted.len() { &self.greeted } else { &self.silent };
        larger.front().copied().filter(|_| self.silent.len() + self.greeted.len() > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_more_numerous_kind_makes_way() {
        let mut pending = PendingConnections::default();
        (0..6).for_each(|token| pending.add(token));
        assert_eq!([5, 6].map(|most| pending.oldest_beyond(most)), [Some(0), None]);
        [3, 2, 1, 0].into_iter().for_each(|token| pending.mark_greeted(token));
        assert_eq!(pending.oldest_beyond(5), Some(3), "the first that has greeted");
        pending.discard(3);
        pending.mark_greeted(2);
        pending.add(6);
        assert_eq!(pending.oldest_beyond(5), Some(4));
        [4, 5, 6].into_iter().for_each(|token| pending.discard(token));
        assert_eq!([2, 3].map(|most| pending.oldest_beyond(most)), [Some(2), None]);
    }
}
