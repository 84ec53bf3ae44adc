//! How a run ended: its numbers, or an account of the failure and how to reproduce it.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outboard_proto::{CollectiveError, EndpointCounters, Overdue};

use crate::coverage::Coverage;
use crate::network::LinkBytes;
use crate::scenario::Scenario;
use crate::violation::Violation;

/// The numbers of a run in which no oracle found anything.
#[derive(Debug, Clone, PartialEq)]
pub struct RunOutcome {
    /// Virtual time at which each call ended, by (group, member, instance).
    pub ends: BTreeMap<(usize, usize, u64), Duration>,
    /// Fingerprints of the results of reductions, by (group, member, instance).
    pub bits: BTreeMap<(usize, usize, u64), u64>,
    /// The first error by which members were notified of the end of their group, by (group, member).
    pub reported_errors: BTreeMap<(usize, usize), CollectiveError>,
    /// Virtual time from the first call to the last completion.
    pub in_collectives: Duration,
    pub links: Vec<LinkBytes>,
    pub counters: Vec<EndpointCounters>,
    /// How many altered datagrams each service process was sent.
    pub forged: Vec<u64>,
    /// Deliveries (a datagram to one receiver, or a frame) that were tried.
    pub deliveries: u64,
    /// Deliveries lost to chance or script.
    pub dropped: u64,
    pub calls: u64,
    /// Calls that ended with an error (a true one, or there would be no outcome).
    pub errors: u64,
    /// Calls reported as late (SP-9).
    pub late: u64,
    /// Collectives reported as taking too long (SP-9): the host, the time and the findings.
    pub overdue: Vec<(usize, Duration, Overdue)>,
    /// Task lists handed to engines beside service processes.
    pub lists: u64,
    /// Faults that took effect, and what the machines went through.
    pub coverage: Coverage,
}

impl RunOutcome {
    /// Payload bytes sent again, by all service processes.
    pub fn retransmitted_bytes(&self) -> u64 {
        self.counters.iter().map(|c| c.retransmitted_bytes).sum()
    }

    pub fn wire_bytes(&self) -> u64 {
        self.links.iter().map(|l| l.up + l.down).sum()
    }
}

/// A run in which an oracle found something.
#[derive(Debug, Clone, PartialEq)]
pub struct RunFailure {
    pub seed: u64,
    pub violation: Violation,
    pub scenario: Box<Scenario>,
    pub account: String,
}

impl std::error::Error for RunFailure {}

impl fmt::Display for RunFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.violation)?;
        writeln!(f, "{:#?}", self.scenario)?;
        write!(f, "{}", self.account)
    }
}
