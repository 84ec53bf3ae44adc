//! How the roots of a collective share the receive links.
//!
//! Blocks of one size share them evenly. Where sizes differ, whoever sends much sends fast, so that all end together
//! and the links stay full to the end: a service process that multicasts `w` bytes of `T` sends at `B * w / (T - t)`,
//! where `t` is what the host with the least to send sends. (MC-8 for blocks of any size.)

use outboard_plan::{Extents, Rank};

use crate::config::Config;
use crate::group::members::Members;
use crate::interface::CallKind;
use crate::multicast::pacing::{Pace, Share};

/// The least part of an even share: the few datagrams of one source do not hold up what it multicasts for others.
const LEAST: u64 = 16;

/// Share and pace of each service process; one entry where all are alike, none where nothing is multicast.
#[derive(Debug, Default)]
pub(super) struct Shares(Vec<(Share, Pace)>);

impl Shares {
    /// Of roots of which `active` multicast at the same time.
    pub(super) fn new(members: &Members, config: &Config, kind: CallKind, active: u32, extents: &Extents) -> Self {
        let paced = |share| (share, Pace::new(config, share));
        let uneven = matches!(kind, CallKind::Allgatherv { .. }) && active == members.ranks();
        if !uneven {
            return Shares(vec![paced(Share::even(members.incoming, active))]);
        }
        let mut by_sp = vec![0; members.sps.len()];
        extents.sizes().zip(&members.of_rank).for_each(|(bytes, sp)| by_sp[*sp as usize] += bytes);
        let mut by_host = vec![0; members.host_of.last().map_or(0, |host| *host as usize + 1)];
        by_sp.iter().zip(&members.host_of).for_each(|(bytes, host): (&u64, _)| by_host[*host as usize] += bytes);
        let incoming = extents.total() - by_host.into_iter().min().unwrap_or(0);
        let least = incoming / (LEAST * u64::from(members.incoming.max(1)));
        let share = |bytes: u64| {
            let part = bytes.max(least).max(1);
            Share { part, of: part.max(incoming) }
        };
        Shares(by_sp.into_iter().map(share).map(paced).collect())
    }

    /// What the service process of `rank` may fill, and how it multicasts then. None where nothing is multicast.
    pub(super) fn of(&self, members: &Members, rank: Rank) -> Option<(Share, Pace)> {
        match self.0[..] {
            [alike] => Some(alike),
            _ => self.0.get(members.of_rank[rank.0 as usize] as usize).copied(),
        }
    }
}
