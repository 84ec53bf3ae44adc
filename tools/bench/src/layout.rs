//! The assignment of ranks to hosts.

use crate::named::named;

named! {
    "a layout of ranks: contiguous or strided",
    /// How ranks are assigned to hosts (SP-7).
    #[derive(Default)]
    Layout {
        /// Neighbouring ranks share a host: with two ranks per host, 0 and 1 are on the first host.
        #[default]
        Contiguous = "contiguous",
        /// Ranks are assigned to the hosts in turn: on four hosts, 0 and 4 are on the first host.
        Strided = "strided",
    }
}

impl Layout {
    /// Number (from 1) of the host of `rank` out of `ranks`. If `hosts` does not divide `ranks`, the first hosts have
    /// one rank more, under either layout.
    pub fn host_of(self, rank: u32, ranks: u32, hosts: u32) -> u32 {
        match self {
            Self::Strided => rank % hosts + 1,
            Self::Contiguous => {
                let (fewer, longer_hosts) = (ranks / hosts, ranks % hosts);
                let on_longer = longer_hosts * (fewer + 1);
                if rank < on_longer { rank / (fewer + 1) + 1 } else { longer_hosts + (rank - on_longer) / fewer + 1 }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Layout::{Contiguous, Strided};

    fn placed(layout: Layout, ranks: u32, hosts: u32) -> Vec<u32> {
        (0..ranks).map(|rank| layout.host_of(rank, ranks, hosts)).collect()
    }

    #[test]
    fn sp_7_neighbours_share_a_host_or_are_dealt_in_turn() {
        assert_eq!(placed(Contiguous, 8, 4), [1, 1, 2, 2, 3, 3, 4, 4]);
        assert_eq!(placed(Strided, 8, 4), [1, 2, 3, 4, 1, 2, 3, 4]);
        assert_eq!(placed(Contiguous, 4, 4), placed(Strided, 4, 4));
    }

    #[test]
    fn either_layout_puts_as_many_ranks_on_each_host() {
        for hosts in 1..9 {
            for ranks in 1..30 {
                let count = |layout| {
                    let placed = placed(layout, ranks, hosts);
                    (1..=hosts).map(|host| placed.iter().filter(|at| **at == host).count()).collect::<Vec<_>>()
                };
                assert_eq!(count(Contiguous), count(Strided), "{ranks} ranks on {hosts} hosts");
                assert!(placed(Contiguous, ranks, hosts).is_sorted());
            }
        }
    }
}
