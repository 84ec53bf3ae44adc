//! What the ranks of one job may hold together on this host, so that a job at its end of something harms itself alone.
//!
//! A job is what its ranks say it is, among the processes of one user, who is the kernel's word: no user gets at the
//! quota of another. Staging is accounted in the machine, by [`Job::owner`]. Never holds anything: who checks counts.

use std::hash::Hasher;

use siphasher::sip::SipHasher13;

use crate::settings::Settings;

/// A job, as far as quotas go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Job {
    /// By the kernel's word.
    pub user: u32,
    /// As its ranks name it.
    pub number: u64,
}

impl Job {
    /// The name of the job in the machine.
    #[must_use]
    pub fn owner(self) -> u64 {
        let mut hasher = SipHasher13::new_with_keys(0x6f77_6e65, 0x7273);
        hasher.write_u32(self.user);
        hasher.write_u64(self.number);
        hasher.finish()
    }
}

/// The most of one thing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Most {
    what: &'static str,
    setting: &'static str,
    most: u64,
}

/// A job would hold more than it may.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the job's quota of {} {} on this host is used up ({held} held); release some, or raise {} of outboardd",
    most.most, most.what, most.setting
)]
pub struct QuotaError {
    most: Most,
    held: u64,
}

impl Most {
    /// Whether `more` fit beside what is `held`.
    fn check(self, held: u64, more: u64) -> Result<(), QuotaError> {
        match held.checked_add(more) {
            Some(all) if all <= self.most => Ok(()),
            Some(_) | None => Err(QuotaError { most: self, held }),
        }
    }
}

/// The quotas of every job.
#[derive(Debug, Clone)]
pub(crate) struct Quotas {
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
            groups: most("group memberships", "--job-groups", settings.job_groups.into()),
            requests: most("requests in flight", "--job-requests", settings.job_requests.into()),
            ranges: most("registered memory ranges", "--job-ranges", settings.job_ranges.into()),
            bytes: most("bytes of registered memory", "--job-memory", settings.job_memory.0),
        }
    }

    /// One membership more.
    pub(crate) fn join(&self, held: Held) -> Result<(), QuotaError> {
        self.groups.check(held.groups, 1)
    }

    /// One range more.
    pub(crate) fn register(&self, held: Held, bytes: u64) -> Result<(), QuotaError> {
        self.ranges.check(held.ranges, 1)?;
        self.bytes.check(held.bytes, bytes)
    }

    /// One request more beside those in flight.
    pub(crate) fn request(&self, in_flight: u64) -> Result<(), QuotaError> {
        self.requests.check(in_flight, 1)
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
        let held = Held { groups: 1, ranges: 3, bytes: 1000 };
        assert_eq!((quotas.join(held), quotas.request(2), quotas.register(held, 24)), (Ok(()), Ok(()), Ok(())));
        let refused = |refused: Result<(), QuotaError>, setting: &str| {
            let text = refused.expect_err("used up").to_string();
            assert!(text.contains(setting), "{text}");
        };
        refused(quotas.join(Held { groups: 2, ..held }), "--job-groups");
        refused(quotas.request(3), "--job-requests");
        refused(quotas.register(Held { ranges: 4, ..held }, 1), "--job-ranges");
        refused(quotas.register(held, 25), "--job-memory");
        refused(quotas.register(held, u64::MAX), "--job-memory");
    }

    #[test]
    fn users_and_jobs_are_told_apart() {
        let owner = |user, number| Job { user, number }.owner();
        assert_eq!(owner(1, 2), owner(1, 2));
        assert_ne!(owner(1, 2), owner(2, 2));
        assert_ne!(owner(1, 2), owner(1, 1));
    }
}
