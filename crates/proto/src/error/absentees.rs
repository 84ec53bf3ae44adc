//! The ranks that a late collective waits for, in reports and errors (SP-9).

use std::fmt;

use outboard_call::{Rank, Signature};

use crate::ids::InstanceId;

/// Most absent ranks that are named in a message, a report or an error.
pub const MAX_ABSENT: usize = 12;

/// A rank that has not called, and the last call that it made in the group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Absentee {
    pub rank: Rank,
    /// The call's instance and signature; `None` before the first call.
    pub last: Option<(InstanceId, Signature)>,
}

impl fmt::Display for Absentee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.last {
            Some((instance, signature)) => write!(f, "{} (last call {}: {signature})", self.rank, instance.0),
            None => write!(f, "{} (no call yet)", self.rank),
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Absentees {
    /// At most [`MAX_ABSENT`].
    pub named: Vec<Absentee>,
    pub more: u32,
}

impl Absentees {
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.more == 0
    }

    pub(crate) fn add(&mut self, absentee: Absentee) {
        if self.named.len() < MAX_ABSENT {
            self.named.push(absentee);
        } else {
            self.more = self.more.saturating_add(1);
        }
    }

    pub(crate) fn merge(&mut self, others: &Absentees) {
        others.named.iter().for_each(|absentee| self.add(*absentee));
        self.more = self.more.saturating_add(others.more);
        // The order is equal on all hosts that received the same reports.
        self.named.sort_by_key(|absentee| absentee.rank);
    }
}

impl fmt::Display for Absentees {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let named: Vec<String> = self.named.iter().map(Absentee::to_string).collect();
        f.write_str(&named.join(", "))?;
        if self.more > 0 {
            write!(f, " and {} more", self.more)?;
        }
        Ok(())
    }
}

/// A collective that missed the deadline that a rank had set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadlineMissed {
    pub instance: InstanceId,
    pub signature: Signature,
    /// The deadline, milliseconds after the rank's call.
    pub after_ms: u64,
    pub missing: Absentees,
    /// A rank whose bytes or readiness are missing.
    pub awaited: Option<Rank>,
}

impl fmt::Display for DeadlineMissed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (call, instance, seconds) = (self.signature, self.instance.0, self.after_ms as f64 / 1000.0);
        match (self.missing.is_empty(), self.awaited) {
            // The names come first: MPI cuts messages after 256 bytes.
            (false, _) => write!(f, "{} did not call {call}, call {instance}, in {seconds} s", self.missing)?,
            (true, Some(rank)) => write!(f, "{rank} is waited for in {call}, call {instance}, after {seconds} s")?,
            (true, None) => write!(f, "{call}, call {instance}, did not end in {seconds} s")?,
        }
        f.write_str("; see to it, or set a longer deadline and make the group again")
    }
}
