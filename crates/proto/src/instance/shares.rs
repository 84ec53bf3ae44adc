//! How the roots of a collective share the receive links.
//!
//! Roots with blocks of one size share the links evenly. With different sizes a larger sender sends faster, so that all
//! end together and the links stay full to the end. A service process with `w` of `T` bytes sends at `B * w / (T - t)`,
//! where `t` is the bytes of the host with the fewest. (MC-8 for blocks of any size.)

use outboard_plan::{Extents, Rank};

use crate::config::Config;
use crate::group::members::Members;
use crate::interface::CallKind;
use crate::multicast::pacing::{LinkShare, Pace};

/// The smallest share is 1/16 of an even one, so that a few datagrams do not delay the pacer's other multicasts.
const MIN_SHARE_DIVISOR: u64 = 16;

/// Share and pace of each service process; one entry where all are alike, none where nothing is multicast.
#[derive(Debug, Default)]
pub(super) struct Shares(Vec<(LinkShare, Pace)>);

impl Shares {
    /// The shares when `active` roots multicast at the same time.
    pub(super) fn new(members: &Members, config: &Config, kind: CallKind, active: u32, extents: &Extents) -> Self {
        let paced = |share| (share, Pace::new(config, share));
        let uneven = matches!(kind, CallKind::Allgatherv { .. }) && active == members.ranks();
        if !uneven {
            return Shares(vec![paced(LinkShare::even(members.incoming, active))]);
        }
        let mut by_sp = vec![0; members.sps.len()];
        extents.sizes().zip(&members.of_rank).for_each(|(bytes, sp)| by_sp[*sp as usize] += bytes);
        let mut by_host = vec![0; members.host_of.last().map_or(0, |host| *host as usize + 1)];
        by_sp.iter().zip(&members.host_of).for_each(|(bytes, host): (&u64, _)| by_host[*host as usize] += bytes);
        let incoming = extents.total() - by_host.into_iter().min().unwrap_or(0);
        let least = incoming / (MIN_SHARE_DIVISOR * u64::from(members.incoming.max(1)));
        let share = |bytes: u64| {
            let part = bytes.max(least).max(1);
            LinkShare { part, of: part.max(incoming) }
        };
        Shares(by_sp.into_iter().map(share).map(paced).collect())
    }

    /// The share and pace of the service process of `rank`. `None` where nothing is multicast.
    pub(super) fn of(&self, members: &Members, rank: Rank) -> Option<(LinkShare, Pace)> {
        match self.0[..] {
            [alike] => Some(alike),
            _ => self.0.get(members.of_rank[rank.0 as usize] as usize).copied(),
        }
    }
}
