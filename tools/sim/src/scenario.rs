//! The simulated hosts, ranks, groups, calls and faults.
//!
//! A [`Scenario`] is data; together with a seed it determines a run. [`Scenario::check`] checks the invariants at the
//! start of every run. Never runs anything.

use std::collections::BTreeMap;
use std::time::Duration;

use outboard_proto::Config;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;

use crate::faults::Faults;
use crate::graph::RecordedGraph;
use crate::network::NetworkPlan;
use crate::pattern::{BlockPairs, DataMovement, Pattern};
use crate::store::StoreKind;

#[derive(Debug, Clone, PartialEq)]
pub struct Scenario {
    /// The host of each rank of the job.
    pub host_of: Vec<usize>,
    pub network: NetworkPlan,
    pub config: Config,
    pub groups: Vec<GroupPlan>,
    pub faults: Faults,
    pub store: StoreKind,
}

/// A group and the calls of its ranks. Each rank calls in the order of the list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupPlan {
    /// The members as ranks of the job, in the order of their ranks in the group.
    pub members: Vec<usize>,
    pub create: Duration,
    /// Longest delay of a member's request for the group, drawn by seed.
    pub create_spread: Duration,
    /// Calls that a rank may have in flight at once.
    pub window: usize,
    /// A rank leaves after its first failed call, instead of making the remaining ones.
    pub leave_on_error: bool,
    /// Each member calls in an order of its own, drawn by this seed; calls of one recording stay in order.
    pub shuffled: Option<u64>,
    pub calls: Vec<CallPlan>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPlan {
    pub pattern: Pattern,
    /// Bytes that each rank or the root contributes, or of the largest block of an all-to-all or a reduce-scatter.
    pub bytes: u64,
    /// The earliest time at which ranks call.
    pub at: Duration,
    /// Members, by rank in the group, that call later, and by how much.
    pub late: Vec<(usize, Duration)>,
    /// Members that call in place, as far as `Pattern::may_be_in_place` allows.
    pub in_place: Vec<usize>,
    /// The deadline that all members set.
    pub deadline: Option<Duration>,
    /// A member that calls with another number of bytes.
    pub disagrees: Option<(usize, u64)>,
}

impl CallPlan {
    /// An allgather that all members call at the same time.
    pub fn new(bytes: u64) -> Self {
        CallPlan::of(Pattern::Allgather, bytes)
    }

    /// A collective that all members call at the same time.
    pub fn of(pattern: Pattern, bytes: u64) -> Self {
        let (at, late, in_place) = (Duration::ZERO, Vec::new(), Vec::new());
        CallPlan { pattern, bytes, at, late, in_place, deadline: None, disagrees: None }
    }

    pub fn bytes_of(&self, member: usize) -> u64 {
        match self.disagrees {
            Some((rank, bytes)) if rank == member => bytes,
            _ => self.bytes,
        }
    }

    pub fn is_disputed(&self) -> bool {
        self.disagrees.is_some_and(|(_, bytes)| bytes != self.bytes)
    }

    pub fn due(&self, member: usize) -> Duration {
        self.at + self.late.iter().filter(|(m, _)| *m == member).map(|(_, by)| *by).sum::<Duration>()
    }
}

impl GroupPlan {
    /// A group of these members without calls, made at the start.
    pub fn new(members: impl Into<Vec<usize>>) -> Self {
        GroupPlan {
            members: members.into(),
            create: Duration::ZERO,
            create_spread: Duration::ZERO,
            window: 1,
            leave_on_error: false,
            shuffled: None,
            calls: Vec::new(),
        }
    }

    /// Number (from 0) of the call that `member` makes after `made` calls.
    pub(crate) fn call_at(&self, member: usize, made: usize) -> usize {
        let Some(seed) = self.shuffled else { return made };
        let mut order: Vec<usize> = (0..self.calls.len()).collect();
        order.shuffle(&mut ChaCha8Rng::seed_from_u64(seed ^ member as u64));
        // The n-th call of a recording on one member is the n-th call of that recording on all members.
        let alike = |at: &&usize| self.calls[**at].pattern == self.calls[order[made]].pattern;
        let before = order[..made].iter().filter(alike).count();
        let first = self.calls.iter().enumerate().filter(|(_, c)| c.pattern == self.calls[order[made]].pattern);
        first.map(|(at, _)| at).nth(before).expect("as many as there are")
    }

    pub fn recordings(&self) -> usize {
        self.recorded().len()
    }

    /// The seed and size of each of the group's recordings.
    pub(crate) fn recorded(&self) -> BTreeMap<u32, (u64, u64)> {
        let recorded = |call: &CallPlan| match call.pattern {
            Pattern::Recorded { number, seed } => Some((number, (seed, call.bytes))),
            _ => None,
        };
        self.calls.iter().filter_map(recorded).collect()
    }
}

impl Scenario {
    /// One allgather of `bytes` per rank among `ranks` ranks, one on each host, without faults. Receive buffers of up
    /// to 1 MiB altogether use real bytes, larger ones provenance.
    pub fn allgather(ranks: usize, bytes: u64) -> Self {
        let small = bytes.saturating_mul((ranks * ranks) as u64) <= 1 << 20;
        let network = NetworkPlan::default();
        let config = Config { offload_from: 0, ..Config::on_links(network.rate) };
        Scenario {
            host_of: (0..ranks).collect(),
            network,
            config,
            groups: vec![GroupPlan {
                calls: vec![CallPlan::new(bytes)],
                ..GroupPlan::new((0..ranks).collect::<Vec<_>>())
            }],
            faults: Faults::none(),
            store: if small { StoreKind::Bytes } else { StoreKind::Provenance },
        }
    }

    /// Sets the rate of all links in bit/s, and replaces all settings by the defaults for that rate. Ports faster than
    /// 1 Gbit/s queue 2 MiB.
    pub fn on_links(mut self, rate: u64) -> Self {
        self.network.rate = rate;
        if rate > 1_000_000_000 {
            self.network.queue_bytes = 2 << 20;
        }
        self.config = Config { offload_from: 0, ..Config::on_links(rate) };
        self
    }

    pub fn multicast(mut self, multicast: bool) -> Self {
        self.config.multicast = multicast;
        self
    }

    /// Puts `per_host` neighbouring ranks on each host.
    pub fn ranks_per_host(mut self, per_host: usize) -> Self {
        for (rank, host) in self.host_of.iter_mut().enumerate() {
            *host = rank / per_host;
        }
        self
    }

    /// Puts `siblings` neighbouring service processes on each machine (SP-8).
    pub fn siblings(mut self, siblings: usize) -> Self {
        self.network.siblings = siblings;
        self
    }

    pub fn with_faults(mut self, faults: Faults) -> Self {
        self.faults = faults;
        self
    }

    pub fn hosts(&self) -> usize {
        self.host_of.iter().max().map_or(0, |h| h + 1)
    }

    /// An upper bound of the payload bytes that all ranks together receive.
    pub fn received_bytes(&self) -> u64 {
        let calls = self.groups.iter().flat_map(|g| g.calls.iter().map(move |c| (g.members.len() as u64, c)));
        let each = |(p, c): (u64, &CallPlan)| match c.pattern.class().moves {
            DataMovement::FromOne(_) | DataMovement::Blocks(BlockPairs::To(_) | BlockPairs::From(_)) => c.bytes * p,
            DataMovement::FromEach | DataMovement::Blocks(BlockPairs::All) => c.bytes * p * p,
            DataMovement::Reduction(..) => 4 * c.bytes * p * p,
            DataMovement::Message { .. } => c.bytes,
            DataMovement::Recorded(seed) => RecordedGraph::draw(seed, p as usize, c.bytes).moved,
            DataMovement::Nothing => 0,
        };
        calls.map(each).sum()
    }

    /// When the last scripted event is over.
    pub(crate) fn last_scripted(&self) -> Duration {
        let calls = self.groups.iter().flat_map(|g| {
            let late = g.calls.iter().map(|c| c.at + c.late.iter().map(|(_, by)| *by).sum::<Duration>());
            late.chain([g.create + g.create_spread])
        });
        calls.max().unwrap_or_default().max(self.faults.last_scripted()).max(self.faults.until.unwrap_or_default())
    }

    /// Whether exactly one thing can end groups, and no host is silent for so long that it counts as dead.
    pub(crate) fn has_one_cause(&self) -> bool {
        let faults = &self.faults;
        let silent = faults.cuts.iter().any(|cut| cut.lasting >= self.config.heartbeat)
            || faults.stalls.iter().chain(&faults.blackouts).any(|stall| stall.lasting >= self.config.dead_after / 2);
        let disputes = self.groups.iter().flat_map(|group| &group.calls).filter(|call| call.is_disputed()).count();
        let deaths = faults.dead_ranks.len() + faults.early_deaths.len() + faults.dead_hosts.len();
        let rest = faults.bad_memory.len() + usize::from(faults.refused.is_some());
        !silent && deaths + rest + disputes + usize::from(faults.misconfigured.is_some()) == 1
    }

    /// Time within which a group is made after the last fault, once all members have requested it. A cut link is
    /// detected by its silence. The link after it resumes when the connection resumes.
    pub(crate) fn prompt(&self) -> Duration {
        self.config.dead_after + self.faults.backoff + Duration::from_secs(2)
    }

    /// Virtual time within which everything must have ended after [`Self::last_scripted`]. This time suffices to detect
    /// the dead, and to move every byte at a small fraction of the links' rate.
    pub(crate) fn patience(&self) -> Duration {
        let moved = Duration::from_secs_f64(self.received_bytes() as f64 * 8.0 / self.network.rate as f64);
        let calls = self.groups.iter().map(|g| g.calls.len() as u32 + 1).sum::<u32>();
        let ended = self.config.dead_after * 4 + Duration::from_secs(5) + moved * 10 + Duration::from_secs(1) * calls;
        if self.faults.until.is_some() {
            return ended;
        }
        // When its timer runs out, a link sends again from the lost frame on: one loss costs one timer.
        let frames = self.received_bytes() as f64 / f64::from(self.config.fragment_bytes);
        let losses = frames * (self.faults.frame_loss + self.faults.reorder);
        ended * 4 + self.config.retransmit_floor.mul_f64(2.0 * losses)
    }

    /// Panics on a scenario that makes no sense: the author of the scenario made a mistake.
    pub(crate) fn check(&self) {
        for group in &self.groups {
            let mut seen = vec![false; self.host_of.len()];
            for member in &group.members {
                assert!(!std::mem::replace(&mut seen[*member], true), "a rank is a member once");
            }
            assert!(group.window > 0 && !group.members.is_empty());
            for call in &group.calls {
                assert!(call.pattern.root().is_none_or(|root| root < group.members.len()), "a root is a member");
                let may_be = |member: &usize| call.pattern.may_be_in_place(*member);
                assert!(call.in_place.iter().all(may_be), "{call:?} cannot be in place");
                if let Some((_, reduction)) = call.reduction() {
                    let disputed = call.disagrees.map_or(0, |(_, bytes)| bytes);
                    let whole = |bytes: u64| bytes.is_multiple_of(reduction.element().bytes());
                    assert!(whole(call.bytes) && whole(disputed), "vectors are whole elements");
                    assert!(self.store == StoreKind::Bytes, "only bytes can be combined");
                }
            }
            let tagged = group.calls.iter().filter(|call| call.pattern.is_tagged()).count();
            assert!(tagged == 0 || tagged == group.calls.len(), "instances count all calls of a group, or none");
            for call in &group.calls {
                if let Pattern::Message { from, to, .. } = call.pattern {
                    assert!(from != to && from.max(to) < group.members.len(), "a message has two ends");
                }
            }
            let numbers = group.recorded().into_keys();
            assert!(numbers.eq(1..=group.recordings() as u32), "recordings are numbered");
            assert!(group.shuffled.is_none() || group.window >= group.calls.len(), "ranks in any order wait for none");
        }
        let largest = u64::from(self.config.fragment_bytes.max(self.config.chunk_bytes * self.network.train));
        assert!(self.network.queue_bytes > 2 * largest, "a queue must hold what is sent in one piece");
    }
}
