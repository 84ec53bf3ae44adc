//! Who is in a group, seen from one of its service processes.
//!
//! Service processes are numbered in the order of the lowest rank they serve; the ring of recovery and the barriers
//! run over these numbers. Invariant: equal on all members but for `me`.

use std::time::Duration;

use outboard_plan::Rank;

use crate::config::Config;
use crate::ids::{Channel, GroupHandle, SpId};
use crate::interface::GroupSpec;

/// The members of a group.
#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) handle: GroupHandle,
    pub(crate) key: [u64; 2],
    pub(crate) fingerprint: u64,
    pub(crate) sps: Vec<SpId>,
    /// Which of `sps` serves each rank.
    pub(crate) of_rank: Vec<u32>,
    /// This service process among `sps`.
    pub(crate) me: u32,
    /// The ranks served here, ascending.
    pub(crate) locals: Vec<Rank>,
    /// By subgroup; empty when one service process serves all.
    pub(crate) channels: Vec<Channel>,
    /// Adapts to how late repairs turn out to be needed.
    pub(crate) patience: Duration,
    /// The last instance whose barrier may be entered now.
    pub(crate) window_end: u64,
}

impl Members {
    /// The members of `spec` seen from `me`, or what is wrong with it.
    pub(crate) fn new(spec: &GroupSpec, me: SpId, config: &Config, window: u64) -> Result<Self, &'static str> {
        if spec.members.is_empty() {
            return Err("it has no ranks");
        }
        if spec.members.len() > usize::from(u16::MAX) {
            return Err("it has more than 65,535 ranks");
        }
        let mut sps: Vec<SpId> = Vec::new();
        let mut number = std::collections::BTreeMap::new();
        let mut of_rank = Vec::with_capacity(spec.members.len());
        for m in &spec.members {
            of_rank.push(*number.entry(m.sp).or_insert_with(|| {
                sps.push(m.sp);
                sps.len() as u32 - 1
            }));
        }
        let Some(&my_number) = number.get(&me) else {
            return Err("none of its ranks is served here");
        };
        let of = |r: &Rank| of_rank[r.0 as usize] == my_number;
        let locals = (0..of_rank.len() as u32).map(Rank).filter(of).collect();
        let channels = if sps.len() > 1 {
            (0..config.subgroups).map(|s| channel(spec.job, &sps, s)).collect()
        } else {
            Vec::new()
        };
        Ok(Members {
            handle: spec.handle,
            key: spec.key,
            fingerprint: spec.fingerprint(),
            sps,
            of_rank,
            me: my_number,
            locals,
            channels,
            patience: config.timer_floor,
            window_end: window,
        })
    }

    pub(crate) fn ranks(&self) -> u32 {
        self.of_rank.len() as u32
    }

    pub(crate) fn sp_of(&self, rank: Rank) -> SpId {
        self.sps[self.of_rank[rank.0 as usize] as usize]
    }

    pub(crate) fn has_rank(&self, rank: Rank) -> bool {
        rank.0 < self.ranks()
    }

    pub(crate) fn local(&self, rank: Rank) -> Option<usize> {
        self.locals.binary_search(&rank).ok()
    }

    pub(crate) fn index_of(&self, sp: SpId) -> Option<u32> {
        self.sps.iter().position(|s| *s == sp).map(|i| i as u32)
    }

    /// The lowest rank that `sp` serves.
    pub(crate) fn lowest_rank(&self, sp: u32) -> Rank {
        let r = self.of_rank.iter().position(|s| *s == sp).expect("every service process serves a rank");
        Rank(r as u32)
    }

    /// Asked for what is missing here.
    pub(crate) fn left(&self) -> SpId {
        let n = self.sps.len();
        self.sps[(self.me as usize + n - 1) % n]
    }

    /// Asks here.
    pub(crate) fn right(&self) -> SpId {
        self.sps[(self.me as usize + 1) % self.sps.len()]
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = SpId> + '_ {
        let me = self.me as usize;
        self.sps.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, s)| *s)
    }
}

/// Equal for equal (job, set of service processes, subgroup).
fn channel(job: u64, sps: &[SpId], subgroup: u16) -> Channel {
    use std::hash::Hasher;
    let mut sorted = sps.to_vec();
    sorted.sort_unstable();
    let mut h = siphasher::sip::SipHasher13::new_with_keys(job, u64::from(subgroup));
    sorted.iter().for_each(|s| h.write_u64(s.0));
    Channel(h.finish())
}
