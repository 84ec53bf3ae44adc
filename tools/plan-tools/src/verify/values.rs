//! The values of bytes: contributions, and combinations of them as trees with a left and a right side.
//!
//! Invariant: equal trees have equal names, so a comparison costs the same for all sizes.

use std::collections::HashMap;

use outboard_plan::Rank;

/// The name of a tree. Names below the number of ranks stand for the ranks' own contributions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TreeId(u32);

impl TreeId {
    pub(super) fn of(rank: Rank) -> Self {
        Self(rank.0)
    }
}

/// All trees of a verification.
pub(super) struct ValueTrees {
    ranks: u32,
    /// Left and right side of each combined tree; tree `ranks + i` is at index `i`.
    sides: Vec<(TreeId, TreeId)>,
    names: HashMap<(TreeId, TreeId), TreeId>,
}

impl ValueTrees {
    pub(super) fn new(ranks: u32) -> Self {
        Self { ranks, sides: Vec::new(), names: HashMap::new() }
    }

    pub(super) fn combine(&mut self, left: TreeId, right: TreeId) -> TreeId {
        let next = u32::try_from(self.sides.len() as u64 + u64::from(self.ranks))
            .expect("a verification has fewer than 2^32 trees");
        let name = *self.names.entry((left, right)).or_insert(TreeId(next));
        if name.0 == next {
            self.sides.push((left, right));
        }
        name
    }

    /// The ranks whose contributions a value combines, from left to right. If a plan is wrong, the list may repeat
    /// ranks and be far longer than the group.
    pub(super) fn ranks_of(&self, value: TreeId) -> impl Iterator<Item = Rank> + '_ {
        let mut stack = vec![value];
        std::iter::from_fn(move || {
            let mut value = stack.pop()?;
            while let Some(combined) = value.0.checked_sub(self.ranks) {
                let (left, right) = self.sides[combined as usize];
                stack.push(right);
                value = left;
            }
            Some(Rank(value.0))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_trees_have_one_name_and_list_their_ranks_from_the_left() {
        let mut values = ValueTrees::new(4);
        let [a, b, c] = [0, 1, 2].map(|rank| TreeId::of(Rank(rank)));
        let ab = values.combine(a, b);
        let left = values.combine(ab, c);
        let bc = values.combine(b, c);
        let right = values.combine(a, bc);
        assert_ne!(left, right);
        assert_eq!(values.combine(ab, c), left);
        for value in [left, right] {
            assert_eq!(values.ranks_of(value).collect::<Vec<_>>(), [0, 1, 2].map(Rank));
        }
        let twice = values.combine(right, ab);
        assert_eq!(values.ranks_of(twice).map(|rank| rank.0).collect::<Vec<_>>(), [0, 1, 2, 0, 1]);
    }
}
