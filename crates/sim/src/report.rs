//! How a run ended: its numbers, or an account of what broke and how to see it again.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use outboard_proto::{CollectiveError, Counters, Overdue};

use crate::breach::Breach;
use crate::coverage::Coverage;
use crate::network::LinkBytes;
use crate::scenario::Scenario;

/// The numbers of a run in which no oracle found anything.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Virtual time of the last completion.
    pub finished: Duration,
    /// Virtual time at which each call ended, by (group, member, instance).
    pub ends: BTreeMap<(usize, usize, u64), Duration>,
    /// Fingerprints of what the calls of reductions received, by (group, member, instance).
    pub bits: BTreeMap<(usize, usize, u64), u64>,
    /// Why a group failed, as its members were told first, by (group, member).
    pub told: BTreeMap<(usize, usize), CollectiveError>,
    /// Virtual time from the first call to the last completion.
    pub in_collectives: Duration,
    /// Bytes on the wire, by host.
    pub links: Vec<LinkBytes>,
    /// What each service process has counted.
    pub counters: Vec<Counters>,
    /// Altered datagrams that each service process was sent.
    pub forged: Vec<u64>,
    /// Deliveries (a datagram to one receiver, or a frame) that were tried.
    pub deliveries: u64,
    /// How many of them were lost to chance or script.
    pub dropped: u64,
    /// Calls made by all ranks.
    pub calls: u64,
    /// How many of them ended with an error (rightly, or there would be no outcome).
    pub errors: u64,
    /// Calls reported as late (SP-9).
    pub late: u64,
    /// Collectives reported as taking too long (SP-9): on which host, when, and what was found.
    pub overdue: Vec<(usize, Duration, Overdue)>,
    /// Task lists that engines beside service processes were given.
    pub lists: u64,
    /// What has gone wrong, and what the machines have come through.
    pub coverage: Coverage,
}

impl Outcome {
    /// Payload bytes sent again, by all service processes.
    #[must_use]
    pub fn retransmitted_bytes(&self) -> u64 {
        self.counters.iter().map(|c| c.retransmitted_bytes).sum()
    }

    /// Bytes on all links, both ways.
    #[must_use]
    pub fn wire_bytes(&self) -> u64 {
        self.links.iter().map(|l| l.up + l.down).sum()
    }
}

/// A run in which an oracle found something.
#[derive(Debug, Clone, PartialEq)]
pub struct Failure {
    pub seed: u64,
    pub breach: Breach,
    pub scenario: Box<Scenario>,
    pub account: String,
}

impl std::error::Error for Failure {}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}: {}", self.seed, self.breach)?;
        writeln!(f, "{:#?}", self.scenario)?;
        write!(f, "{}", self.account)
    }
}
