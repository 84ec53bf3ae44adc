//! The ranks that share a host, so that a plan sends between hosts only the bytes that must go there (SP-6).
//!
//! Invariants: hosts are numbered densely, in the order of their lowest ranks; the ranks of a host ascend. Any
//! placement is valid: contiguous, strided or other (SP-7). Never inspects machines: the caller provides the placement.

use std::sync::Arc;

use crate::partition::part_range;
use crate::program::{MAX_RANKS, Rank};

/// The hosts of the ranks of a group. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology(HostLayout);

#[derive(Debug, Clone, PartialEq, Eq)]
enum HostLayout {
    /// This many ranks, each alone on its host.
    Flat(u32),
    Hosts(Arc<Hosts>),
}

#[derive(Debug, PartialEq, Eq)]
struct Hosts {
    host_of: Vec<u32>,
    ranks_of: Vec<Vec<Rank>>,
}

impl Topology {
    /// Every rank is alone on its host.
    pub const fn flat(ranks: u32) -> Topology {
        Topology(HostLayout::Flat(ranks))
    }

    /// The topology with the given host of each rank, in the order of ranks. Any distinct numbers may name hosts.
    /// `None` for more than [`MAX_RANKS`] ranks.
    pub fn of_hosts(hosts: impl IntoIterator<Item = u32>) -> Option<Topology> {
        let mut numbers = std::collections::HashMap::new();
        let mut layout = Hosts { host_of: Vec::new(), ranks_of: Vec::new() };
        for (host, rank) in hosts.into_iter().zip(0..) {
            if rank == MAX_RANKS {
                return None;
            }
            let dense = *numbers.entry(host).or_insert(layout.ranks_of.len() as u32);
            if dense as usize == layout.ranks_of.len() {
                layout.ranks_of.push(Vec::new());
            }
            layout.host_of.push(dense);
            layout.ranks_of[dense as usize].push(Rank(rank));
        }
        Some(Topology(HostLayout::Hosts(Arc::new(layout))))
    }

    /// Cuts each host into `parts` parts with about equally many ranks, but no more parts than the host has ranks.
    pub(crate) fn cut(&self, parts: u32) -> Topology {
        let part_of = |rank: Rank| {
            let (host, ranks) = (self.host_of(rank), self.ranks_of(self.host_of(rank)));
            let parts = parts.clamp(1, ranks.len() as u32);
            let place = ranks.iter().position(|other| *other == rank).expect("a rank of its host") as u64;
            let holds = |part: &u32| part_range(ranks.len() as u64, parts.into(), (*part).into()).contains(&place);
            host * MAX_RANKS + (0..parts).find(holds).expect("parts are the whole")
        };
        Topology::of_hosts((0..self.ranks()).map(Rank).map(part_of)).expect("as many ranks as before")
    }

    pub fn ranks(&self) -> u32 {
        match &self.0 {
            HostLayout::Flat(ranks) => *ranks,
            HostLayout::Hosts(hosts) => hosts.host_of.len() as u32,
        }
    }

    pub fn hosts(&self) -> u32 {
        match &self.0 {
            HostLayout::Flat(ranks) => *ranks,
            HostLayout::Hosts(hosts) => hosts.ranks_of.len() as u32,
        }
    }

    pub fn host_of(&self, rank: Rank) -> u32 {
        match &self.0 {
            HostLayout::Flat(ranks) => {
                assert!(rank.0 < *ranks, "{rank} of {ranks}");
                rank.0
            }
            HostLayout::Hosts(hosts) => hosts.host_of[rank.0 as usize],
        }
    }

    /// The ranks of `host`, ascending; at least one.
    pub fn ranks_of(&self, host: u32) -> Vec<Rank> {
        match &self.0 {
            HostLayout::Flat(ranks) => {
                assert!(host < *ranks, "host {host} of {ranks}");
                vec![Rank(host)]
            }
            HostLayout::Hosts(hosts) => hosts.ranks_of[host as usize].clone(),
        }
    }

    /// The ranks of the host that has the fewest; 0 if there is no host.
    pub fn fewest_per_host(&self) -> u32 {
        match &self.0 {
            HostLayout::Flat(ranks) => 1.min(*ranks),
            HostLayout::Hosts(hosts) => hosts.ranks_of.iter().map(Vec::len).min().unwrap_or(0) as u32,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP-7: strided ranks, hosts of different sizes, host names that are not dense.
    #[test]
    fn hosts_are_numbered_by_their_lowest_rank() {
        let topology = Topology::of_hosts([70, 3, 70, 5, 3, 70]).unwrap();
        assert_eq!((topology.ranks(), topology.hosts(), topology.fewest_per_host()), (6, 3, 1));
        assert_eq!((0..6).map(|rank| topology.host_of(Rank(rank))).collect::<Vec<_>>(), [0, 1, 0, 2, 1, 0]);
        assert_eq!(topology.ranks_of(0), [Rank(0), Rank(2), Rank(5)]);
        assert_eq!(topology.ranks_of(2), [Rank(3)]);
    }

    #[test]
    fn hosts_are_cut_into_equal_parts() {
        let cut = Topology::of_hosts([0, 1, 0, 1, 0, 2]).unwrap().cut(2);
        assert_eq!((0..6).map(|rank| cut.host_of(Rank(rank))).collect::<Vec<_>>(), [0, 1, 0, 2, 3, 4]);
    }

    #[test]
    fn flat_is_a_host_for_each_rank() {
        let (flat, named) = (Topology::flat(4), Topology::of_hosts(0..4).unwrap());
        for rank in 0..4 {
            assert_eq!(flat.host_of(Rank(rank)), named.host_of(Rank(rank)));
            assert_eq!(flat.ranks_of(rank), named.ranks_of(rank));
        }
        assert_eq!((flat.hosts(), flat.fewest_per_host()), (named.hosts(), named.fewest_per_host()));
        assert_eq!(Topology::of_hosts(std::iter::repeat_n(0, 65_536)), None);
        assert_eq!(Topology::of_hosts([]).unwrap().fewest_per_host(), 0);
    }
}
