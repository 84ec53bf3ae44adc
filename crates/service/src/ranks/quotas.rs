//! What the ranks of one job may hold together on this host, so that a job at its end of something harms itself alone.
//!
//! A job is what its ranks say it is, among the processes of one user, who is the kernel's word: no user gets at the
//! quota of another, and by naming many jobs none gets more than some jobs have. Staging is accounted in the machine,
//! by the same [`Account`]. Never holds anything: who checks counts.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;

use outboard_proto::Account;

use crate::settings::Settings;

/// The most of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most {
    what: &'static str,
    setting: &'static str,
    most: u64,
}

/// A job, or all jobs of a user, would hold more than they may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the {whose} quota of {} {} on this host is used up ({held} held); release some, or raise {} of outboardd",
    most.most, most.what, most.setting
)]
pub struct QuotaError {
    whose: &'static str,
    most: Most,
    held: u64,
}

/// Something of a job, and of all jobs of its user.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Both<T> {
    pub(crate) job: T,
    pub(crate) user: T,
}

impl Most {
    /// Whether `more` fits beside what is `held`: a user may hold `jobs` times what a job may.
    fn check(self, jobs: u64, held: Both<u64>, more: u64) -> Result<(), QuotaError> {
        let of_user = Most { setting: "--user-jobs", most: self.most.saturating_mul(jobs), ..self };
        for (whose, most, held) in [("job's", self, held.job), ("user's", of_user, held.user)] {
            if held.checked_add(more).is_none_or(|all| all > most.most) {
                return Err(QuotaError { whose, most, held });
            }
        }
        Ok(())
    }
}

/// The quotas of every job.
#[derive(Debug, Clone)]
pub(crate) struct Quotas {
    /// A user may hold as much as so many jobs.
    jobs: u64,
    groups: Most,
    requests: Most,
    ranges: Most,
    bytes: Most,
}

/// What a job holds, beside requests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Held {
    /// Memberships of its ranks in groups.
    pub(crate) groups: u64,
    /// Ranges of memory that its ranks have registered.
    pub(crate) ranges: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
}

impl Quotas {
    pub(crate) fn new(settings: &Settings) -> Quotas {
        let most = |what, setting, most| Most { what, setting, most };
        Quotas {
            jobs: settings.user_jobs.into(),
            groups: most("group memberships", "--job-groups", settings.job_groups.into()),
            requests: most("requests in flight", "--job-requests", settings.job_requests.into()),
            ranges: most("registered memory ranges", "--job-ranges", settings.job_ranges.into()),
            bytes: most("bytes of registered memory", "--job-memory", settings.job_memory.0),
        }
    }

    /// One membership more.
    pub(crate) fn join(&self, held: Both<Held>) -> Result<(), QuotaError> {
        self.groups.check(self.jobs, held.of(|held| held.groups), 1)
    }

    /// One range more.
    pub(crate) fn register(&self, held: Both<Held>, bytes: u64) -> Result<(), QuotaError> {
        self.ranges.check(self.jobs, held.of(|held| held.ranges), 1)?;
        self.bytes.check(self.jobs, held.of(|held| held.bytes), bytes)
    }

    /// One request more beside those in flight.
    pub(crate) fn request(&self, in_flight: Both<u64>) -> Result<(), QuotaError> {
        self.requests.check(self.jobs, in_flight, 1)
    }
}

impl Both<Held> {
    fn of(self, what: impl Fn(Held) -> u64) -> Both<u64> {
        Both { job: what(self.job), user: what(self.user) }
    }
}

/// Requests in flight.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    /// Of each job and user that has some.
    jobs: HashMap<Account, u64>,
    users: HashMap<u32, u64>,
}

impl Requests {
    pub(crate) fn of(&self, job: Account) -> Both<u64> {
        let count = |found: Option<&u64>| found.copied().unwrap_or(0);
        Both { job: count(self.jobs.get(&job)), user: count(self.users.get(&job.user)) }
    }

    pub(crate) fn begin(&mut self, job: Account) {
        *self.jobs.entry(job).or_insert(0) += 1;
        *self.users.entry(job.user).or_insert(0) += 1;
    }

    pub(crate) fn end(&mut self, job: Account) {
        end_one(&mut self.jobs, job);
        end_one(&mut self.users, job.user);
    }
}

fn end_one<K: Eq + Hash>(counts: &mut HashMap<K, u64>, of: K) {
    if let Entry::Occupied(mut count) = counts.entry(of) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::tests::parse;

    #[test]
    fn what_is_used_up_is_told_with_its_setting() {
        let line = ["outboardd", "--job-groups", "2", "--job-requests", "3", "--job-ranges", "4", "--job-memory", "1K"];
        let quotas = Quotas::new(&parse(&line).0);
        let one = |job: Held| Both { job, user: job };
        let held = Held { groups: 1, ranges: 3, bytes: 1000 };
        let requests = |job| Both { job, user: job };
        let fits = (quotas.join(one(held)), quotas.request(requests(2)), quotas.register(one(held), 24));
        assert_eq!(fits, (Ok(()), Ok(()), Ok(())));
        let refused = |refused: Result<(), QuotaError>, setting: &str| {
            let text = refused.expect_err("used up").to_string();
            assert!(text.contains(setting), "{text}");
        };
        refused(quotas.join(one(Held { groups: 2, ..held })), "--job-groups");
        refused(quotas.request(requests(3)), "--job-requests");
        refused(quotas.request(Both { job: 0, user: 24 }), "--user-jobs");
        refused(quotas.register(one(Held { ranges: 4, ..held }), 1), "--job-ranges");
        refused(quotas.register(one(held), 25), "--job-memory");
        refused(quotas.register(one(held), u64::MAX), "--job-memory");
        let others = Held { bytes: 8 << 10, ..held };
        refused(quotas.register(Both { job: held, user: others }, 1), "--user-jobs");
    }
}
