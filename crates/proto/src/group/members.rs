//! The members of a group, seen from one of its service processes.
//!
//! Service processes are numbered host by host. Hosts, and siblings on one host, are in the order of their lowest
//! ranks; the ring of recovery and the barriers use these numbers. So a loss on a host's link is repaired over that
//! link once: the first sibling requests from the host before, the other siblings request from one another (MC-6,
//! SP-8). Invariant: all members agree, except on `me`, `reach` and other local state.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::Hasher;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use outboard_call::codec::Writer;
use outboard_plan::Rank;
use outboard_plan::selection::{Links, Rate};
use siphasher::sip::SipHasher13;

use crate::config::Config;
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, HostId, InstanceId, MulticastChannel, SpId};
use crate::interface::{GroupSpec, Reach, Signature};
use crate::wire::MulticastKey;

#[derive(Debug)]
pub(crate) struct Members {
    pub(crate) handle: GroupHandle,
    /// Key of the group's datagrams.
    pub(crate) key: MulticastKey,
    pub(crate) fingerprint: u64,
    pub(crate) sps: Vec<SpId>,
    /// The index in `sps` of each service process, by ID.
    places: Vec<(SpId, u32)>,
    /// The index in `sps` of the service process of each rank.
    pub(crate) of_rank: Vec<u32>,
    lowest: Vec<Rank>,
    /// This service process among `sps`.
    pub(crate) me: u32,
    /// Source address of the datagrams of each of `sps`, if known.
    sends_from: Vec<Option<Ipv4Addr>>,
    /// Links between the hosts.
    pub(crate) links: Links,
    /// Address of the engine beside each of `sps`; empty without an engine.
    engines: Vec<Arc<[u8]>>,
    /// Keys the tags of messages between engines.
    secret: [u64; 2],
    /// The ranks served here, ascending.
    pub(crate) locals: Vec<Rank>,
    /// How far multicast from here must go.
    pub(crate) reach: Reach,
    /// Most service processes on other hosts that any one host sees: the senders that share one receive link.
    pub(crate) incoming: u32,
    /// The host of each of `sps`, counted from 0 in their order.
    pub(crate) host_of: Vec<u32>,
    /// By subgroup; empty when one service process serves all.
    pub(crate) channels: Vec<MulticastChannel>,
    /// Recovery timer, adapted to how many repairs turn out unnecessary.
    pub(crate) patience: Duration,
    /// The last instance that may begin now. 0 before the group is made: if a link breaks while the group is being
    /// made, messages of the making continue over another link, but instances do not.
    pub(crate) window_end: u64,
    /// Instances that wait for scratch. Instances get scratch in this order, so that no two wait for each other.
    pub(crate) waiting_for_scratch: BTreeSet<InstanceId>,
    /// How many instances hold scratch of the quota for calls.
    pub(crate) holding_scratch: u32,
}

/// Approximate bytes per service process or rank in a group.
const MEMBER_BYTES: u64 = 256;

impl Members {
    /// Approximate bytes of the group's tables.
    pub(crate) fn bytes(&self) -> u64 {
        MEMBER_BYTES * u64::from(self.ranks())
    }

    /// The members of `spec` seen from `me`, or the reason why `spec` is invalid.
    pub(crate) fn new(spec: &GroupSpec, me: SpId, config: &Config) -> Result<Self, &'static str> {
        if spec.members.is_empty() {
            return Err("it has no ranks");
        }
        if spec.members.len() > usize::from(u16::MAX) {
            return Err("it has more than 65,535 ranks");
        }
        let hosts = by_host(spec);
        let sps: Vec<SpId> = hosts.concat();
        let number: BTreeMap<SpId, u32> = sps.iter().copied().zip(0..).collect();
        let of_rank: Vec<u32> = spec.members.iter().map(|m| number[&m.sp]).collect();
        if number.len() < sps.len() {
            return Err("a service process is on two hosts");
        }
        let Some(&my_number) = number.get(&me) else {
            return Err("none of its ranks is served here");
        };
        let here = hosts.iter().find(|siblings| siblings.contains(&me)).map_or(1, Vec::len);
        let fewest = hosts.iter().map(Vec::len).min().unwrap_or(1);
        let of = |r: &Rank| of_rank[r.0 as usize] == my_number;
        let mut lowest = vec![Rank(0); sps.len()];
        (0..of_rank.len()).rev().for_each(|rank| lowest[of_rank[rank] as usize] = Rank(rank as u32));
        let engines = lowest.iter().map(|rank| Arc::clone(&spec.members[rank.0 as usize].engine)).collect();
        let sends_from = lowest.iter().map(|rank| spec.members[rank.0 as usize].sends_from).collect();
        let slowest = spec.members.iter().map(|member| member.link_rate).min().unwrap_or_default();
        let locals = (0..of_rank.len() as u32).map(Rank).filter(of).collect();
        let channels =
            if sps.len() > 1 { (0..config.subgroups).map(|s| channel(&sps, s)).collect() } else { Vec::new() };
        Ok(Members {
            handle: spec.handle,
            key: MulticastKey::new(spec.key, config.multicast_auth),
            fingerprint: spec.fingerprint(),
            of_rank,
            lowest,
            sends_from,
            links: Links::between(hosts.len() as u32, Rate::bits_per_second(slowest)),
            engines,
            secret: spec.key,
            me: my_number,
            locals,
            reach: match (hosts.len(), here) {
                (1, _) => Reach::Host,
                (_, 1) => Reach::Network,
                _ => Reach::Everywhere,
            },
            incoming: (sps.len() - fewest) as u32,
            host_of: hosts.iter().zip(0..).flat_map(|(siblings, host)| vec![host; siblings.len()]).collect(),
            places: number.into_iter().collect(),
            sps,
            channels,
            patience: config.timer_floor,
            window_end: 0,
            waiting_for_scratch: BTreeSet::new(),
            holding_scratch: 0,
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

    /// The service process of a rank, if the group has the rank.
    pub(crate) fn sp_of_member(&self, rank: Rank) -> Option<SpId> {
        self.has_rank(rank).then(|| self.sp_of(rank))
    }

    /// Whether a datagram of this member may come from this address.
    pub(crate) fn may_send_from(&self, rank: Rank, address: Ipv4Addr) -> bool {
        self.sends_from[self.of_rank[rank.0 as usize] as usize].is_none_or(|known| known == address)
    }

    /// Address of the engine of a rank's service process.
    pub(crate) fn engine_of(&self, rank: Rank) -> &Arc<[u8]> {
        &self.engines[self.of_rank[rank.0 as usize] as usize]
    }

    /// The tag of a message between engines. The tag is secret; calls that differ in anything have different tags.
    pub(crate) fn engine_tag(
        &self,
        instance: InstanceId,
        signature: &Signature,
        from: Rank,
        to: Rank,
        index: u32,
    ) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(self.secret[0], self.secret[1]);
        let mut called = Vec::new();
        signature.encode(&mut Writer::new(&mut called));
        hasher.write_u64(instance.0);
        hasher.write(&called);
        [from.0, to.0, index].into_iter().for_each(|part| hasher.write_u32(part));
        hasher.finish()
    }

    pub(crate) fn local(&self, rank: Rank) -> Option<usize> {
        self.locals.binary_search(&rank).ok()
    }

    pub(crate) fn index_of(&self, sp: SpId) -> Option<u32> {
        self.places.binary_search_by_key(&sp, |(name, _)| *name).ok().map(|at| self.places[at].1)
    }

    pub(crate) fn lowest_rank(&self, sp: u32) -> Rank {
        self.lowest[sp as usize]
    }

    pub(crate) fn loss_of(&self, sp: u32) -> CollectiveError {
        CollectiveError::PeerLost { sp: self.sps[sp as usize], rank: self.lowest_rank(sp) }
    }

    /// The neighbour that this service process requests repairs from.
    pub(crate) fn left(&self) -> SpId {
        let n = self.sps.len();
        self.sps[(self.me as usize + n - 1) % n]
    }

    /// The neighbour that requests repairs from this service process.
    pub(crate) fn right(&self) -> SpId {
        self.sps[(self.me as usize + 1) % self.sps.len()]
    }

    /// Whether a service process is on another host.
    pub(crate) fn is_elsewhere(&self, sp: SpId) -> bool {
        self.index_of(sp).is_some_and(|at| self.host_of[at as usize] != self.host_of[self.me as usize])
    }

    pub(crate) fn others(&self) -> impl Iterator<Item = SpId> + '_ {
        let me = self.me as usize;
        self.sps.iter().enumerate().filter(move |(i, _)| *i != me).map(|(_, s)| *s)
    }
}

/// The service processes of each host, without repetition, in the order of their lowest ranks.
fn by_host(spec: &GroupSpec) -> Vec<Vec<SpId>> {
    let mut place: BTreeMap<HostId, usize> = BTreeMap::new();
    let mut known = BTreeSet::new();
    let mut hosts: Vec<Vec<SpId>> = Vec::new();
    for m in spec.members.iter().filter(|m| known.insert((m.host, m.sp))) {
        let at = *place.entry(m.host).or_insert(hosts.len());
        if at == hosts.len() {
            hosts.push(Vec::new());
        }
        hosts[at].push(m.sp);
    }
    hosts
}

/// The channel of a subgroup. Equal sets of service processes with equal subgroups have equal channels.
fn channel(sps: &[SpId], subgroup: u16) -> MulticastChannel {
    use std::hash::Hasher;
    let mut sorted = sps.to_vec();
    sorted.sort_unstable();
    let mut h = siphasher::sip::SipHasher13::new_with_keys(0, u64::from(subgroup));
    sorted.iter().for_each(|s| h.write_u64(s.0));
    MulticastChannel(h.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::OfferId;
    use crate::interface::GroupMember;

    /// Ranks at (service process, host), seen from service process `me`.
    fn members(places: &[(u64, u64)], me: u64) -> Result<Members, &'static str> {
        of(places.iter().map(|&(sp, host)| member(sp, host)).collect(), me)
    }

    fn of(members: Vec<GroupMember>, me: u64) -> Result<Members, &'static str> {
        Members::new(&GroupSpec { handle: GroupHandle(1), key: [2, 3], members }, SpId(me), &Config::default())
    }

    fn member(sp: u64, host: u64) -> GroupMember {
        let (sp, host, offer) = (SpId(sp), HostId(host), OfferId(0));
        GroupMember {
            sp,
            host,
            address: [].into(),
            sends_from: None,
            link_rate: 1_000_000_000,
            engine: [].into(),
            offer,
        }
    }

    #[test]
    fn slowest_link_between_hosts_decides_for_all() -> Result<(), &'static str> {
        let links = |rates: [(u64, u64); 3]| {
            let members =
                rates.iter().zip(1..).map(|(&(host, link_rate), sp)| GroupMember { link_rate, ..member(sp, host) });
            Ok::<_, &str>(of(members.collect(), 1)?.links)
        };
        let (one, ten) = (1_000_000_000, 10_000_000_000);
        assert_eq!(links([(1, ten), (2, ten), (3, ten)])?, Links::Fast);
        assert_eq!(links([(1, ten), (2, one), (3, ten)])?, Links::Slow);
        assert_eq!(links([(1, ten), (1, ten), (1, ten)])?, Links::Slow, "nothing leaves the host");
        Ok(())
    }

    fn ring(members: &Members) -> Vec<u64> {
        members.sps.iter().map(|sp| sp.0).collect()
    }

    #[test]
    fn sp_7_siblings_are_neighbours_in_the_ring_under_any_layout() -> Result<(), &'static str> {
        let contiguous = members(&[(10, 1), (11, 1), (10, 1), (11, 1), (20, 2), (21, 2)], 20)?;
        let strided = members(&[(10, 1), (20, 2), (11, 1), (21, 2)], 20)?;
        assert_eq!(ring(&contiguous), [10, 11, 20, 21]);
        assert_eq!(ring(&strided), [10, 11, 20, 21]);
        assert_eq!(strided.of_rank, [0, 2, 1, 3]);
        assert_eq!((strided.left(), strided.right()), (SpId(11), SpId(21)));
        assert_eq!(strided.locals, [Rank(1)]);
        assert_eq!((0..4).map(|sp| strided.lowest_rank(sp).0).collect::<Vec<_>>(), [0, 2, 1, 3]);
        Ok(())
    }

    #[test]
    fn sp_8_multicast_reaches_siblings_where_there_are_some_and_the_network_where_it_must() {
        let seen = |places: &[(u64, u64)], me| members(places, me).map(|m| (m.reach, m.incoming));
        assert_eq!(seen(&[(10, 1), (20, 2), (30, 3)], 10), Ok((Reach::Network, 2)));
        assert_eq!(seen(&[(10, 1), (11, 1), (20, 2)], 11), Ok((Reach::Everywhere, 2)));
        assert_eq!(seen(&[(10, 1), (11, 1), (20, 2)], 20), Ok((Reach::Network, 2)), "host 2 hears both of host 1");
        assert_eq!(seen(&[(10, 1), (11, 1)], 10), Ok((Reach::Host, 0)));
        assert_eq!(seen(&[(10, 1), (10, 2)], 10), Err("a service process is on two hosts"));
    }
}
