//! Incoming connections whose other ends have proven nothing yet. Chooses the one that makes way if there are too many.
//!
//! There are two kinds: with a hello for this process and without. The oldest of the more numerous kind makes way. So a
//! crowd of one kind displaces none of the other. In its own kind a connection survives if it progresses before half
//! the bound of newer ones has arrived. Pure.

use std::collections::VecDeque;

/// Oldest first: silent ones by arrival, greeted ones by their hello.
#[derive(Default)]
pub(super) struct Strangers {
    silent: VecDeque<u64>,
    greeted: VecDeque<u64>,
}

fn remove(token: u64, from: &mut VecDeque<u64>) -> bool {
    from.iter().position(|&one| one == token).and_then(|at| from.remove(at)).is_some()
}

impl Strangers {
    pub(super) fn came(&mut self, token: u64) {
        self.silent.push_back(token);
    }

    pub(super) fn greeted(&mut self, token: u64) {
        if remove(token, &mut self.silent) {
            self.greeted.push_back(token);
        }
    }

    /// The connection has proven its identity, or has ended.
    pub(super) fn gone(&mut self, token: u64) {
        let _ = remove(token, &mut self.silent) || remove(token, &mut self.greeted);
    }

    /// The connection that makes way when there are more than `most`.
    pub(super) fn beyond(&self, most: usize) -> Option<u64> {
        let larger = if self.silent.len() < self.greeted.len() { &self.greeted } else { &self.silent };
        larger.front().copied().filter(|_| self.silent.len() + self.greeted.len() > most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_the_more_numerous_kind_makes_way() {
        let mut strangers = Strangers::default();
        (0..6).for_each(|token| strangers.came(token));
        assert_eq!([5, 6].map(|most| strangers.beyond(most)), [Some(0), None]);
        [3, 2, 1, 0].into_iter().for_each(|token| strangers.greeted(token));
        assert_eq!(strangers.beyond(5), Some(3), "the first that has greeted");
        strangers.gone(3);
        strangers.greeted(2);
        strangers.came(6);
        assert_eq!(strangers.beyond(5), Some(4));
        [4, 5, 6].into_iter().for_each(|token| strangers.gone(token));
        assert_eq!([2, 3].map(|most| strangers.beyond(most)), [Some(2), None]);
    }
}
