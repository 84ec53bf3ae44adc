//! Scenarios drawn by seed: everything that can vary varies, everything that can go wrong sometimes does.
//!
//! Invariant: every drawn run has an end that the oracles accept. False alarms of the heartbeat have a negligible
//! chance, and every rank or host that dies is a true culprit.

use std::sync::Arc;
use std::time::Duration;

use outboard_plan::selection::{Collective, Rule, Size, Tuning};
use outboard_plan::{Element, Operator, Reduction};
use outboard_proto::Config;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::faults::{Faults, HostDeath, HostPause, LinkCut, RankFault};
use crate::network::NetworkPlan;
use crate::pattern::Pattern;
use crate::reductions::ReductionKind;
use crate::scenario::{CallPlan, GroupPlan, Scenario};
use crate::store::StoreKind;

/// `mixed_reductions`, where half of the scenarios have a tuning that sets algorithms by hand.
pub fn mixed_choices(seed: u64) -> Scenario {
    let mut scenario = mixed_reductions(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6368_6f69_6365) };
    if draw.one_in(2) {
        scenario.config.tuning = Some(Arc::new(draw.tuning()));
    }
    scenario
}

/// [`mixed_faults`], where some calls become barriers and half of the scenarios get reductions.
fn mixed_reductions(seed: u64) -> Scenario {
    let mut scenario = mixed_faults(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x636f_6d62_6900) };
    let reduces = draw.one_in(2);
    for group in &mut scenario.groups {
        let members = group.members.len();
        for call in &mut group.calls {
            if draw.one_in(6) {
                call.pattern = Pattern::Barrier;
                call.in_place.clear();
            } else if reduces && draw.one_in(2) {
                draw.reduction(call, members);
            }
        }
    }
    if reduces {
        scenario.store = StoreKind::Bytes;
    }
    scenario
}

/// [`mixed_sizes`], where some broadcasts become gathers and scatters, even and uneven, some of them in place.
fn mixed_faults(seed: u64) -> Scenario {
    let mut scenario = mixed_sizes(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x626c_6f63_6b73) };
    for call in scenario.groups.iter_mut().flat_map(|group| &mut group.calls) {
        let Pattern::Broadcast { root } = call.pattern else { continue };
        if draw.one_in(3) {
            continue;
        }
        let drawn = draw.rng.random();
        let gathers = [Pattern::Gather { root }, Pattern::Gatherv { root, seed: drawn }];
        let scatters = [Pattern::Scatter { root }, Pattern::Scatterv { root, seed: drawn }];
        call.pattern = draw.of(&[gathers, scatters].concat());
        if draw.one_in(3) {
            call.in_place.push(root);
        }
    }
    scenario
}

/// [`mixed_exchanges`], where some allgathers get blocks of different sizes.
pub fn mixed_sizes(seed: u64) -> Scenario {
    let mut scenario = mixed_exchanges(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x7369_7a65_7300) };
    for call in scenario.groups.iter_mut().flat_map(|group| &mut group.calls) {
        if call.pattern == Pattern::Allgather && draw.one_in(2) {
            call.pattern = Pattern::Allgatherv { seed: draw.rng.random() };
        }
    }
    scenario
}

/// [`mixed_recorded`], where groups with recordings also exchange messages, some longer than their receive.
pub fn mixed_messages(seed: u64) -> Scenario {
    let mut scenario = mixed_recorded(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6d65_7373_6167) };
    for group in &mut scenario.groups {
        let members = group.members.len();
        if members < 2 || !group.calls.iter().all(|call| call.pattern.is_tagged()) {
            continue;
        }
        for _ in 0..draw.rng.random_range(0..=4 * members) {
            let from = draw.rng.random_range(0..members);
            let to = (from + draw.rng.random_range(1..members)) % members;
            let tag = draw.rng.random_range(0..2);
            let mut call = CallPlan::of(Pattern::Message { from, to, tag }, draw.message_bytes());
            call.at = draw.micros(10_000);
            if draw.one_in(4) {
                call.late.push((if draw.one_in(2) { from } else { to }, draw.micros(300_000)));
            }
            call.disagrees = draw.one_in(8).then(|| (if draw.one_in(4) { from } else { to }, draw.message_bytes()));
            let at = draw.rng.random_range(0..=group.calls.len());
            group.calls.insert(at, call);
        }
        group.window = group.calls.len();
        // Two ranks that stop calling after an error could wait for ever: each may have a call in flight that needs the
        // other's next call.
        group.leave_on_error = false;
    }
    scenario
}

pub fn mixed_calls(seed: u64) -> Scenario {
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6361_6c6c_7300) };
    if draw.one_in(3) { mixed_messages(seed) } else { mixed_choices(seed) }
}

/// [`mixed_calls`], where some groups are not made: a rank dies before its request, or the rank is refused the group.
fn mixed_makings(seed: u64) -> Scenario {
    let mut scenario = mixed_calls(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6d61_6b69_6e67) };
    if draw.one_in(8) {
        let fault = RankFault { rank: draw.rng.random_range(0..scenario.host_of.len()), at: draw.micros(9_000) };
        scenario.faults.early_deaths.push(fault);
    }
    if draw.one_in(12) {
        let group = draw.rng.random_range(0..scenario.groups.len());
        let member = draw.rng.random_range(0..scenario.groups[group].members.len());
        scenario.faults.refused = Some((group, member));
    }
    if draw.one_in(6) {
        // One member requests the group late, when the others have already inquired after it.
        let late = draw.of(&[40_000, 400_000, 3_000_000]);
        scenario.groups.iter_mut().for_each(|group| group.create_spread = draw.micros(late));
    }
    scenario
}

/// `mixed_makings` with rarer hardships: service processes that are stopped for longer than any timer or restarted,
/// partitions into halves, group requests meanwhile, datagrams that arrive again after seconds, slow drivers.
pub fn mixed_hardships(seed: u64) -> Scenario {
    let mut scenario = mixed_makings(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6861_7264_7368) };
    scenario.config.narrate = true;
    if seed % 4 == 3 {
        // Peers without a group are forgotten at once.
        scenario.config.idle_peers = 0;
    }
    let hosts = scenario.hosts();
    if draw.one_in(10) {
        let (host, at) = (draw.rng.random_range(0..hosts), draw.micros(50_000));
        scenario.faults.stalls.push(HostPause { host, at, lasting: Duration::from_secs(1) + draw.micros(12_000_000) });
    }
    if draw.one_in(12) {
        scenario.faults.cuts.extend(draw.halves(hosts));
    }
    if let Some(death) = scenario.faults.dead_hosts.first().copied()
        && draw.one_in(2)
    {
        draw.restart(&mut scenario, death);
    } else if draw.one_in(6) {
        // The group is requested while something may still be broken, or later.
        let mut group = draw.group(scenario.host_of.len(), scenario.groups.len(), &scenario.config);
        group.create = draw.micros(15_000_000);
        scenario.groups.push(group);
    }
    draw_backoff(&mut scenario, seed);
    if scenario.faults.until.is_none() {
        // Faults that go on for ever are hard enough.
        return scenario;
    }
    if draw.one_in(5) {
        scenario.faults.replay = draw.rng.random_range(0.0..0.1);
    }
    if draw.one_in(6) {
        let most = draw.of(&[100, 5_000, 200_000]);
        scenario.faults.slow = draw.micros(most);
    }
    scenario
}

/// After some cuts, connections resume late, and a group is requested meanwhile.
fn draw_backoff(scenario: &mut Scenario, seed: u64) {
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6261_636b_6f66) };
    if let Some(healed) = scenario.faults.cuts.iter().map(LinkCut::end).max().filter(|_| !draw.one_in(2)) {
        scenario.faults.backoff = draw.micros(2_000_000);
        let group = draw.group(scenario.host_of.len(), scenario.groups.len(), &scenario.config);
        scenario.groups.push(GroupPlan { create: healed + draw.micros(1_000_000), ..group });
    }
}

/// [`mixed_allgathers`], where some calls become broadcasts and some all-to-alls, even and uneven.
pub fn mixed_exchanges(seed: u64) -> Scenario {
    let mut scenario = mixed_allgathers(seed);
    // Random streams of their own keep the meaning of seeds that once found something.
    let mut rooted = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x726f_6f74_7300) };
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x7061_6972_7300) };
    for group in &mut scenario.groups {
        for call in &mut group.calls {
            if rooted.one_in(3) {
                call.pattern = Pattern::Broadcast { root: rooted.rng.random_range(0..group.members.len()) };
            } else {
                call.pattern = match draw.of(&[Pattern::Allgather, Pattern::Alltoall, Pattern::Alltoallv { seed: 0 }]) {
                    Pattern::Allgather => continue,
                    Pattern::Alltoallv { .. } => Pattern::Alltoallv { seed: draw.rng.random() },
                    even => even,
                };
            }
            call.in_place.clear();
        }
    }
    scenario
}

/// `mixed_faults`, where most groups call recordings instead, each member in an order of its own.
pub fn mixed_recorded(seed: u64) -> Scenario {
    let mut scenario = mixed_faults(seed);
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x7265_636f_7264) };
    for group in &mut scenario.groups {
        if draw.one_in(5) {
            continue;
        }
        let scale = draw.of(&[100, 5_000, 40_000]);
        let seeds: Vec<u64> = (0..draw.rng.random_range(1..=3)).map(|_| draw.rng.random()).collect();
        // Every recording is called at least once.
        let further = (0..draw.rng.random_range(0..=4)).map(|_| draw.rng.random_range(0..seeds.len()));
        let called: Vec<usize> = (0..seeds.len()).chain(further).collect();
        let recorded = |at: usize| Pattern::Recorded { number: at as u32 + 1, seed: seeds[at] };
        let mut calls: Vec<CallPlan> = called.into_iter().map(|at| CallPlan::of(recorded(at), scale)).collect();
        for call in &mut calls {
            call.at = draw.micros(10_000);
            if draw.one_in(3) {
                call.late.push((draw.rng.random_range(0..group.members.len()), draw.micros(1_000_000)));
            }
        }
        group.window = calls.len();
        group.shuffled = draw.one_in(2).then(|| draw.rng.random());
        group.calls = calls;
    }
    scenario
}

/// Draws everything from the seed: 1 to 12 ranks, 1 to 3 on a host, several groups with several calls in flight, blocks
/// of 0 bytes to about 200 KB, ring or multicast, loss up to 30 %, deaths, stalls and disagreements.
pub fn mixed_allgathers(seed: u64) -> Scenario {
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x6d69_7865_6400) };
    let host_of = draw.hosts();
    let network = draw.network();
    let config = draw.config(&network, host_of.len());
    let groups = draw.groups(host_of.len(), &config);
    let store = if draw.one_in(2) { StoreKind::Bytes } else { StoreKind::Provenance };
    let mut scenario = Scenario { host_of, network, config, groups, faults: Faults::none(), store };
    scenario.faults = draw.faults(&scenario);
    scenario.network.siblings = draw.of(&[1, 1, 2, 3]);
    // A random stream of its own keeps the meaning of seeds that once found something.
    let mut draw = Draw { rng: ChaCha8Rng::seed_from_u64(seed ^ 0x666f_7267_6564) };
    if draw.one_in(3) {
        scenario.faults.forgery = draw.rng.random_range(0.0..0.5);
    }
    scenario
}

struct Draw {
    rng: ChaCha8Rng,
}

impl Draw {
    /// Sets two algorithms of most collectives; the first is for short vectors and small blocks.
    fn tuning(&mut self) -> Tuning {
        let mut tuning = Tuning::default();
        for collective in Collective::ALL {
            if self.one_in(4) {
                continue;
            }
            let up_to = self.of(&[100, 1_000, 10_000]);
            let mut rule = |up_to| Rule { up_to, ranks: None, choice: self.of(collective.choices()) };
            tuning.rules.insert(collective, vec![rule(Some(Size(up_to))), rule(None)]);
        }
        tuning
    }

    fn one_in(&mut self, n: u32) -> bool {
        self.rng.random_range(0..n) == 0
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        *choices.choose(&mut self.rng).expect("there is a choice")
    }

    fn reduction(&mut self, call: &mut CallPlan, members: usize) {
        let (root, seed) = (self.rng.random_range(0..members), u64::from(self.rng.random::<u32>()));
        let all = ReductionKind::all(root, seed);
        // Allreduces are drawn twice as often.
        let result = self.of(&[&all[..2], &all[1..]].concat());
        let (operator, element) = self.of(&[
            (Operator::Sum, Element::F32),
            (Operator::Sum, Element::F64),
            (Operator::Sum, Element::I32),
            (Operator::BitXor, Element::U8),
            (Operator::Maximum, Element::I16),
            (Operator::MinimumLocation, Element::I32Index),
        ]);
        let reduction = Reduction::new(operator, element).expect("defined by MPI");
        let whole = |bytes: u64| bytes / element.bytes() * element.bytes();
        call.pattern = Pattern::Reduction { result, reduction };
        call.bytes = whole(call.bytes);
        call.disagrees = call.disagrees.map(|(member, bytes)| (member, whole(bytes)));
        if let ReductionKind::Reduce { root } = result {
            call.in_place.retain(|member| *member == root);
        } else if call.in_place.is_empty() {
            // Calls that were no allgathers before may be in place, too.
            call.in_place = (0..members).filter(|_| self.one_in(3)).collect();
        }
    }

    fn micros(&mut self, most: u64) -> Duration {
        Duration::from_micros(self.rng.random_range(0..=most))
    }

    /// The host of each rank: neighbours share a host, or ranks are assigned to the hosts in turn.
    fn hosts(&mut self) -> Vec<usize> {
        let ranks = self.rng.random_range(1..=12usize);
        let per_host = self.rng.random_range(1..=3usize);
        let hosts = ranks.div_ceil(per_host);
        let strided = self.one_in(2);
        (0..ranks).map(|rank| if strided { rank % hosts } else { rank / per_host }).collect()
    }

    fn network(&mut self) -> NetworkPlan {
        NetworkPlan {
            rate: self.of(&[100_000_000, 1_000_000_000, 10_000_000_000]),
            siblings: 1,
            latency: self.micros(200),
            queue_bytes: self.of(&[256 << 10, 1 << 20]),
            join_delay: self.micros(2000),
            outstanding_frames: self.of(&[1, 4, 64]),
            room: 1,
            outstanding_batches: self.of(&[1, 2, 8]),
            train: self.of(&[1, 8, 32, 64]),
            receive_buffer: self.of(&[64 << 10, 4 << 20]),
            gather: Duration::from_micros(self.of(&[0, 0, 50, 500])),
            gather_frames: Duration::ZERO,
        }
    }

    fn config(&mut self, network: &NetworkPlan, ranks: usize) -> Config {
        let multicast = !self.one_in(3);
        let wrong_rate = self.of(&[10, 10, 10, 5, 12]);
        let mut config = Config {
            link_rate: network.rate / 10 * wrong_rate,
            chunk_bytes: self.of(&[64, 200, 512, 1448]),
            multicast,
            chains: self.rng.random_range(0..=ranks as u32),
            subgroups: self.rng.random_range(1..=4),
            offload_from: 0,
            staging_quota: self.of(&[256 << 10, 64 << 20, 64 << 20]),
            scratch_quota: 256 << 20,
            heartbeat: Duration::from_millis(200),
            dead_after: Duration::from_secs(4),
            timer_floor: Duration::from_micros(self.of(&[1000, 4000])),
            ..Config::default()
        };
        config.eager_bytes = self.of(&[0, 1 << 10, 16 << 10]);
        config.batch_chunks = self.of(&[1, 4, 32]);
        config.fragment_bytes = self.of(&[256, 1000, 4096, 64 << 10]);
        config
    }

    fn groups(&mut self, ranks: usize, config: &Config) -> Vec<GroupPlan> {
        let count = self.of(&[1, 1, 2, 3]);
        (0..count).map(|number| self.group(ranks, number, config)).collect()
    }

    /// The first group has all ranks in order, the others have some ranks in any order.
    fn group(&mut self, ranks: usize, number: usize, config: &Config) -> GroupPlan {
        let mut members: Vec<usize> = (0..ranks).collect();
        if number > 0 {
            members.shuffle(&mut self.rng);
            members.truncate(self.rng.random_range(1..=ranks));
        }
        let calls = self.rng.random_range(1..=4);
        let calls = (0..calls).map(|i| self.call(members.len(), i, config)).collect();
        GroupPlan {
            members,
            create: self.micros(2000),
            create_spread: self.micros(5000),
            window: self.rng.random_range(1..=3),
            leave_on_error: self.one_in(2),
            shuffled: None,
            calls,
        }
    }

    fn call(&mut self, members: usize, number: u64, config: &Config) -> CallPlan {
        let mut call = CallPlan::new(self.bytes(u64::from(config.chunk_bytes)));
        call.at = Duration::from_millis(5 * number) + self.micros(5000);
        call.in_place = (0..members).filter(|_| self.one_in(3)).collect();
        if self.one_in(3) {
            let most = self.of(&[1_000, 50_000, 1_500_000]);
            call.late.push((self.rng.random_range(0..members), self.micros(most)));
        }
        if members > 1 && self.one_in(40) {
            let bytes = self.bytes(u64::from(config.chunk_bytes));
            call.disagrees = Some((self.rng.random_range(0..members), bytes));
        }
        call
    }

    fn bytes(&mut self, chunk: u64) -> u64 {
        let chunks = self.rng.random_range(1..=40);
        match self.rng.random_range(0..10) {
            0 => 0,
            1 => 1,
            2 => self.rng.random_range(2..=chunk),
            3 => chunks * chunk,
            4 => chunks * chunk - 1,
            5 => chunks * chunk + 1,
            6..9 => self.rng.random_range(0..=40 * chunk),
            _ => self.rng.random_range(0..=200_000.min(400 * chunk)),
        }
    }

    /// A size around the limit up to which a message travels with its announcement.
    fn message_bytes(&mut self) -> u64 {
        let most = self.of(&[0, 1, 1000, 8192, 8193, 100_000]);
        if self.one_in(2) { most } else { self.rng.random_range(0..=most) }
    }

    fn faults(&mut self, scenario: &Scenario) -> Faults {
        let mut faults = Faults::none();
        if !self.one_in(8) {
            self.random_faults(&mut faults);
        }
        let hosts = scenario.hosts();
        for _ in 0..self.of(&[0, 0, 0, 1, 3]) {
            faults.stalls.push(self.pause(hosts));
        }
        for _ in 0..self.of(&[0, 0, 0, 1, 2]) {
            faults.blackouts.push(self.pause(hosts));
        }
        let ranks = scenario.host_of.len();
        if self.one_in(7) {
            faults.dead_ranks.push(self.rank_fault(ranks));
        }
        if self.one_in(20) {
            faults.bad_memory.push(self.rank_fault(ranks));
        }
        if self.one_in(8) {
            let reported_after = if self.one_in(2) { Some(self.micros(20_000)) } else { None };
            let host = self.rng.random_range(0..hosts);
            faults.dead_hosts.push(HostDeath { host, at: self.micros(40_000), reported_after });
        }
        if self.one_in(25) {
            faults.misconfigured = Some(self.rng.random_range(0..hosts));
        }
        if self.one_in(12) {
            faults.cuts = self.cuts(hosts);
        }
        faults
    }

    /// Cuts off a host, or a pair, or one direction of a pair. The cut lasts less or more than the silence that counts
    /// as death.
    fn cuts(&mut self, hosts: usize) -> Vec<LinkCut> {
        let most = self.of(&[20_000, 2_000_000, 12_000_000]);
        let (at, lasting) = (self.micros(50_000), self.micros(most));
        let (from, to) = (self.rng.random_range(0..hosts), self.rng.random_range(0..hosts));
        match self.rng.random_range(0..3) {
            0 => LinkCut::off(from, 0..hosts, at, lasting),
            1 => LinkCut::off(from, to..to + 1, at, lasting),
            _ => vec![LinkCut { from, to, at, lasting }],
        }
    }

    /// Cuts some hosts off from the others, in both directions.
    fn halves(&mut self, hosts: usize) -> Vec<LinkCut> {
        let most = self.of(&[20_000, 2_000_000, 12_000_000]);
        let (at, lasting) = (self.micros(50_000), self.micros(most));
        let (some, others): (Vec<usize>, Vec<usize>) = (0..hosts).partition(|_| self.one_in(2));
        some.into_iter().flat_map(|host| LinkCut::off(host, others.iter().copied(), at, lasting)).collect()
    }

    /// Starts another service process in the place of a dead one, with as many new ranks. The new ranks make a group
    /// with the living ranks.
    fn restart(&mut self, scenario: &mut Scenario, death: HostDeath) {
        let ranks = scenario.host_of.iter().filter(|host| **host == death.host).count();
        let dead: Vec<usize> = scenario.faults.dead_hosts.iter().map(|death| death.host).collect();
        let (host, first) = (scenario.hosts(), scenario.host_of.len());
        scenario.host_of.extend(std::iter::repeat_n(host, ranks));
        scenario.faults.restarted += 1;
        let mut group = self.group(first + ranks, 0, &scenario.config);
        group.members.retain(|rank| !dead.contains(&scenario.host_of[*rank]));
        group.create = death.at + self.micros(6_000_000);
        // Settings of calls must name members that the group still has.
        for call in &mut group.calls {
            call.in_place.retain(|member| *member < group.members.len());
            call.late.retain(|(member, _)| *member < group.members.len());
            call.disagrees = None;
        }
        scenario.groups.push(group);
    }

    fn random_faults(&mut self, faults: &mut Faults) {
        let unending = self.one_in(4);
        let until = self.micros(500_000);
        faults.until = if unending { None } else { Some(until) };
        let worst = if unending { 0.1 } else { 0.3 };
        let mut chance = |likely: u32| if self.one_in(likely) { self.rng.random_range(0.0..worst) } else { 0.0 };
        faults.datagram_loss = chance(1);
        faults.uplink_loss = chance(4) / 2.0;
        faults.frame_loss = chance(2);
        faults.duplicate = chance(2);
        faults.reorder = chance(2);
        let jitter = self.of(&[0, 10, 300, 3000]);
        faults.jitter = self.micros(jitter);
    }

    /// A pause shorter than any silence that counts as death.
    fn pause(&mut self, hosts: usize) -> HostPause {
        let most = self.of(&[1_000, 20_000, 700_000]);
        HostPause { host: self.rng.random_range(0..hosts), at: self.micros(50_000), lasting: self.micros(most) }
    }

    fn rank_fault(&mut self, ranks: usize) -> RankFault {
        RankFault { rank: self.rng.random_range(0..ranks), at: self.micros(40_000) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some_call(scenario: &Scenario, holds: impl Fn(&CallPlan) -> bool) -> bool {
        scenario.groups.iter().flat_map(|group| &group.calls).any(holds)
    }

    #[test]
    fn scenarios_are_a_function_of_the_seed_and_cover_what_they_promise() {
        let all: Vec<Scenario> = (0..500).map(mixed_faults).collect();
        assert!(all.iter().zip(0..).all(|(s, seed)| *s == mixed_faults(seed)));
        all.iter().for_each(Scenario::check);
        let missing = (1..=12).find(|ranks| !all.iter().any(|s| s.host_of.len() == *ranks));
        assert_eq!(missing, None, "a number of ranks is drawn too seldom");
        type Trait = (&'static str, fn(&Scenario) -> bool);
        let traits: [Trait; 10] = [
            ("several service processes on a machine", |s| s.network.siblings > 1 && s.hosts() > s.network.siblings),
            ("ring", |s| !s.config.multicast),
            ("several ranks on a host", |s| s.hosts() < s.host_of.len()),
            ("uneven blocks", |s| some_call(s, |c| matches!(c.pattern, Pattern::Alltoallv { .. }))),
            ("a gather in place", |s| {
                some_call(s, |c| matches!(c.pattern, Pattern::Gather { .. }) && !c.in_place.is_empty())
            }),
            ("an uneven scatter", |s| some_call(s, |c| matches!(c.pattern, Pattern::Scatterv { .. }))),
            ("a dispute", |s| some_call(s, CallPlan::is_disputed)),
            ("faults without end", |s| s.faults.until.is_none() && s.faults.datagram_loss > 0.0),
            ("a large block", |s| some_call(s, |c| c.bytes > 100_000)),
            ("an empty block", |s| some_call(s, |c| c.bytes == 0)),
        ];
        let seldom = traits.iter().find(|(_, holds)| all.iter().filter(|s| holds(s)).count() < 5).map(|(name, _)| name);
        assert_eq!(seldom, None, "is drawn too seldom");
    }
}
