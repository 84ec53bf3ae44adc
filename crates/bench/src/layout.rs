//! Which host each rank runs on.

use crate::OptionError;
use std::fmt;
use std::str::FromStr;

/// How ranks are dealt to hosts (SP-7).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Layout {
    /// Neighbouring ranks share a host: with two per host, 0 and 1 are on the first.
    #[default]
    Contiguous,
    /// Ranks are dealt to the hosts in turn: on four hosts, 0 and 4 are on the first.
    Strided,
}

impl Layout {
    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Contiguous => "contiguous",
            Self::Strided => "strided",
        }
    }

    /// Number (from 1) of the host that `rank` of `ranks` runs on. Where `hosts` does not divide `ranks`, the first hosts
    /// have one more, under either layout.
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

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Layout {
    type Err = OptionError;

    fn from_str(text: &str) -> Result<Self, OptionError> {
        [Self::Contiguous, Self::Strided]
            .into_iter()
            .find(|layout| layout.name() == text)
            .ok_or_else(|| OptionError::Layout { text: text.to_owned() })
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

    #[test]
    fn layouts_go_by_name() {
        for layout in [Contiguous, Strided] {
            assert_eq!(layout.to_string().parse(), Ok(layout));
        }
        assert_eq!("random".parse::<Layout>(), Err(OptionError::Layout { text: "random".into() }));
    }
}
