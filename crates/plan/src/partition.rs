//! Balanced partitions: the ranks of a chain (MC-8), the chunks of a subgroup (MC-10).
//!
//! `total` items are cut into `parts` contiguous parts. Every part has `total / parts` items, and the first `total %
//! parts` parts have one item more. So sizes differ by at most one and nothing needs to divide evenly. Parts follow
//! each other in order and cover every item once. Both ends of a message compute the same partition; it is never sent.

use std::ops::Range;

use crate::program::Rank;

/// The items of part `part`.
pub(crate) fn part_range(total: u64, parts: u64, part: u64) -> Range<u64> {
    assert!(part < parts, "part {part} of {parts}");
    let (size, longer) = (total / parts, total % parts);
    let start = part * size + part.min(longer);
    start..start + size + u64::from(part < longer)
}

/// The part that contains `item`.
fn part_of(total: u64, parts: u64, item: u64) -> u64 {
    assert!(item < total, "item {item} of {total}");
    let (size, longer) = (total / parts, total % parts);
    let in_longer = longer * (size + 1);
    if item < in_longer { item / (size + 1) } else { longer + (item - in_longer) / size }
}

/// The powers of `base`, at least 2, below `limit`, from 1.
pub(crate) fn powers(base: u64, limit: u64) -> impl Iterator<Item = u64> {
    std::iter::successors(Some(1u64), move |power| power.checked_mul(base.max(2)))
        .take_while(move |power| *power < limit)
}

/// The multiples of `weight` below `limit`, at most `ports` of them: the distances in one round of a rank with `ports`
/// ports.
pub(crate) fn multiples(weight: u64, ports: u32, limit: u32) -> impl Iterator<Item = u32> {
    (1..=u64::from(ports)).map(move |i| i * weight).take_while(move |far| *far < limit.into()).map(|far| far as u32)
}

/// The chunks that travel in `subgroup` when a span of `chunks` chunks is spread over `subgroups` multicast addresses
/// (MC-10). Empty for the last subgroups if there are more subgroups than chunks.
///
/// # Panics
/// When `subgroup >= subgroups`: the caller checks numbers from peers first.
pub fn subgroup_chunks(chunks: u64, subgroups: u16, subgroup: u16) -> Range<u64> {
    part_range(chunks, subgroups.into(), subgroup.into())
}

/// The subgroup in which `chunk` of a span of `chunks` chunks travels (MC-10); the inverse of [`subgroup_chunks`].
///
/// # Panics
/// When `chunk >= chunks` or `subgroups` is 0: the caller checks numbers from peers first.
pub fn subgroup_of(chunk: u64, chunks: u64, subgroups: u16) -> u16 {
    let subgroup = part_of(chunks, subgroups.into(), chunk);
    u16::try_from(subgroup).expect("a part is below the number of parts")
}

/// The ranks of `chain` when `ranks` ranks form `chains` chains (MC-8), in the order in which they multicast.
pub(crate) fn chain_ranks(ranks: u32, chains: u32, chain: u32) -> Range<u32> {
    let part = part_range(ranks.into(), chains.into(), chain.into());
    let narrow = |rank| u32::try_from(rank).expect("a rank is below the number of ranks");
    narrow(part.start)..narrow(part.end)
}

/// The chain of `rank` (MC-8); the inverse of [`chain_ranks`].
pub(crate) fn chain_of(rank: Rank, ranks: u32, chains: u32) -> u32 {
    let chain = part_of(ranks.into(), chains.into(), rank.0.into());
    u32::try_from(chain).expect("a part is below the number of parts")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// MC-10: every chunk is in exactly one subgroup, in order, and sizes differ by at most one.
    #[test]
    fn subgroups_cover_every_chunk_once() {
        for chunks in 0..70u64 {
            for subgroups in 1..20u16 {
                let mut next = 0;
                for subgroup in 0..subgroups {
                    let run = subgroup_chunks(chunks, subgroups, subgroup);
                    assert_eq!(run.start, next);
                    assert!((run.end - run.start).abs_diff(chunks / u64::from(subgroups)) <= 1);
                    for chunk in run.clone() {
                        assert_eq!(subgroup_of(chunk, chunks, subgroups), subgroup);
                    }
                    next = run.end;
                }
                assert_eq!(next, chunks);
            }
        }
    }

    /// MC-8 does not need that the chains divide the ranks: ten ranks in four chains.
    #[test]
    fn chains_need_not_divide_the_ranks() {
        let chains: Vec<_> = (0..4).map(|chain| chain_ranks(10, 4, chain)).collect();
        assert_eq!(chains, [0..3, 3..6, 6..8, 8..10]);
        assert_eq!(chain_of(Rank(6), 10, 4), 2);
    }

    proptest! {
        #[test]
        fn huge_spans_do_not_overflow(chunks in 1..=u64::MAX, subgroups in 1..=u16::MAX, pick: u64) {
            let chunk = pick % chunks;
            let subgroup = subgroup_of(chunk, chunks, subgroups);
            prop_assert!(subgroup_chunks(chunks, subgroups, subgroup).contains(&chunk));
            prop_assert_eq!(subgroup_chunks(chunks, subgroups, subgroups - 1).end, chunks);
        }
    }
}
