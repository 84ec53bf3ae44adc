//! The faults of a run: kinds, places and times, and which faults excuse a verdict.

use clap::ValueEnum;

use crate::trial::User;

/// The kinds of faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(super) enum ChaosFault {
    KilledRank,
    StoppedRank,
    KilledDaemon,
    StoppedDaemon,
    CutLink,
    OneWayCut,
    FullDisk,
    FewDescriptors,
}

/// The place of a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FaultTarget {
    /// A rank of a job, both by number.
    Rank {
        job: u64,
        rank: usize,
    },
    /// The daemon of one user on a host.
    Daemon {
        host: u16,
        user: User,
    },
    Host(u16),
    /// The network path from one host to another host.
    Way {
        from: u16,
        to: u16,
    },
}

/// The user of a job, and the hosts of its ranks.
#[derive(Debug, Clone)]
pub(super) struct Crew {
    pub(super) job: u64,
    pub(super) user: User,
    /// The host of each rank.
    pub(super) hosts: Vec<u16>,
}

/// One fault.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit {
    pub(super) kind: ChaosFault,
    pub(super) place: FaultTarget,
    /// Start on CLOCK_MONOTONIC.
    pub(super) from: u64,
    /// End on CLOCK_MONOTONIC; `None` while the fault lasts.
    pub(super) to: Option<u64>,
}

/// All faults so far, in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Hits(Vec<Hit>);

/// Time for which a mended fault may still show effects. A process that was stopped or partitioned handles the inputs
/// that arrived meanwhile, and TCP gives up connections.
const SETTLING_NS: u64 = 6_000_000_000;

impl ChaosFault {
    pub(super) fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().replace('-', " ")
    }

    pub(super) fn is_of_ranks(self) -> bool {
        matches!(self, ChaosFault::KilledRank | ChaosFault::StoppedRank)
    }

    pub(super) fn is_of_daemons(self) -> bool {
        matches!(self, ChaosFault::KilledDaemon | ChaosFault::StoppedDaemon | ChaosFault::FewDescriptors)
    }

    /// Whether the fault keeps service processes from receiving from each other, so that each may report the other as
    /// lost.
    pub(super) fn is_silence(self) -> bool {
        matches!(self, ChaosFault::StoppedDaemon | ChaosFault::CutLink | ChaosFault::OneWayCut)
    }

    /// Whether a call or group may fail because of this fault. A full disk is no excuse, because calls need no file.
    fn excuses(self) -> bool {
        self != ChaosFault::FullDisk
    }
}

impl FaultTarget {
    pub(super) fn hosts(self) -> impl Iterator<Item = u16> {
        let hosts = match self {
            FaultTarget::Rank { .. } => [None, None],
            FaultTarget::Daemon { host, .. } | FaultTarget::Host(host) => [Some(host), None],
            FaultTarget::Way { from, to } => [Some(from), Some(to)],
        };
        hosts.into_iter().flatten()
    }
}

impl Hit {
    /// Whether the fault touches this rank of a job. A fault of a daemon touches ranks of the daemon's user alone.
    pub(super) fn touches(&self, crew: &Crew, rank: usize) -> bool {
        match self.place {
            FaultTarget::Rank { job, rank: one } => (job, one) == (crew.job, rank),
            FaultTarget::Daemon { host, user } => (host, user) == (crew.hosts[rank], crew.user),
            FaultTarget::Host(_) | FaultTarget::Way { .. } => self.place.hosts().any(|one| one == crew.hosts[rank]),
        }
    }
}

impl Hits {
    /// Adds a fault that begins; returns its number.
    pub(super) fn begin(&mut self, hit: Hit) -> usize {
        self.0.push(hit);
        self.0.len() - 1
    }

    /// Marks a fault as mended.
    pub(super) fn end(&mut self, number: usize, at: u64) {
        self.0[number].to = Some(at);
    }

    /// The faults that may have had an effect on a job between two times.
    pub(super) fn excusing(&self, crew: &Crew, since: u64, until: u64) -> Vec<Hit> {
        let then = |hit: &&Hit| hit.from <= until && hit.to.is_none_or(|to| to + SETTLING_NS >= since);
        let touches = |hit: &&Hit| (0..crew.hosts.len()).any(|rank| hit.touches(crew, rank));
        self.0.iter().filter(|hit| hit.kind.excuses()).filter(then).filter(touches).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn crew(job: u64, hosts: &[u16]) -> Crew {
        Crew { job, user: Some(1), hosts: hosts.to_vec() }
    }

    #[test]
    fn a_fault_excuses_those_whom_it_touches_while_it_lasts_and_a_moment_longer() {
        let mut hits = Hits::default();
        let cut = hits.begin(Hit { kind: ChaosFault::CutLink, place: FaultTarget::Host(2), from: 10, to: None });
        let killed = FaultTarget::Rank { job: 7, rank: 1 };
        hits.begin(Hit { kind: ChaosFault::KilledRank, place: killed, from: 20, to: Some(20) });
        hits.begin(Hit { kind: ChaosFault::FullDisk, place: FaultTarget::Host(3), from: 0, to: None });
        let found = |hits: &Hits, job, hosts: &[u16], since| hits.excusing(&crew(job, hosts), since, since + 5).len();
        assert_eq!(found(&hits, 1, &[1, 2], 0), 0);
        assert_eq!(found(&hits, 1, &[1, 2], 10), 1);
        assert_eq!(found(&hits, 7, &[1, 3], 16), 1);
        assert_eq!(found(&hits, 7, &[3], 16), 0);
        hits.end(cut, 100);
        assert_eq!(found(&hits, 1, &[2], 100 + SETTLING_NS), 1);
        assert_eq!(found(&hits, 1, &[2], 101 + SETTLING_NS), 0);
    }

    #[test]
    fn what_happens_to_the_daemon_of_one_user_excuses_no_job_of_another() {
        let mut hits = Hits::default();
        hits.begin(Hit {
            kind: ChaosFault::KilledDaemon,
            place: FaultTarget::Daemon { host: 2, user: Some(1) },
            from: 0,
            to: None,
        });
        let found = |crew: &Crew| hits.excusing(crew, 0, 5).len();
        assert_eq!(found(&crew(1, &[1, 2])), 1);
        assert_eq!(found(&crew(1, &[1, 3])), 0);
        assert_eq!(found(&Crew { user: None, ..crew(1, &[1, 2]) }), 0);
    }
}
