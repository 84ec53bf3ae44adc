//! A map from ranks to values that holds nearly all ranks, or only one.
//!
//! Invariants: ranks ascend. The cost of a look-up depends on the number of ranks missing between present ranks, never
//! on the number of present ranks.

use outboard_plan::Rank;

#[derive(Debug)]
pub(super) struct ByRank<T> {
    ranks: Vec<Rank>,
    kept: Vec<T>,
}

impl<T> Default for ByRank<T> {
    fn default() -> Self {
        ByRank { ranks: Vec::new(), kept: Vec::new() }
    }
}

impl<T> ByRank<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.ranks.is_empty()
    }

    pub(super) fn get(&self, rank: Rank) -> Option<&T> {
        self.place(rank).map(|at| &self.kept[at])
    }

    pub(super) fn get_mut(&mut self, rank: Rank) -> Option<&mut T> {
        self.place(rank).map(|at| &mut self.kept[at])
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (Rank, &T)> {
        self.ranks.iter().copied().zip(&self.kept)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.kept.iter_mut()
    }

    fn place(&self, rank: Rank) -> Option<usize> {
        let last = self.ranks.len().checked_sub(1)?.min(rank.0 as usize);
        // A rank that is lower by `n` stands at most `n` places earlier.
        let further = self.ranks[last].0.checked_sub(rank.0)? as usize;
        let first = last.saturating_sub(further);
        self.ranks[first..=last].binary_search(&rank).ok().map(|at| first + at)
    }
}

impl<T> FromIterator<(Rank, T)> for ByRank<T> {
    /// Takes ranks in any order, each once.
    fn from_iter<I: IntoIterator<Item = (Rank, T)>>(iter: I) -> Self {
        let mut all: Vec<(Rank, T)> = iter.into_iter().collect();
        all.sort_unstable_by_key(|(rank, _)| *rank);
        assert!(all.is_sorted_by(|(one, _), (other, _)| one < other), "each rank once");
        let (ranks, kept) = all.into_iter().unzip();
        ByRank { ranks, kept }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_exactly_the_present_ranks() {
        for missing in
            [vec![], vec![0], vec![5], vec![9], vec![2, 3, 7], (0..9).collect(), (1..10).collect(), (0..10).collect()]
        {
            let there = |rank: &u32| !missing.contains(rank);
            let map: ByRank<u32> = (0..10).rev().filter(there).map(|rank| (Rank(rank), rank * 2)).collect();
            for rank in 0..12 {
                let expected = Some(rank * 2).filter(|_| rank < 10 && there(&rank));
                assert_eq!(map.get(Rank(rank)).copied(), expected, "{rank} without {missing:?}");
            }
        }
    }
}
