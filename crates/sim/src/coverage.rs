//! What a run has reached, so that a sweep over many seeds shows what it has not: kinds of faults, kinds of messages,
//! steps of collectives, ways of ranks through a group, verdicts.
//!
//! Invariants: a fault counts when it takes effect, not when it is planned; what can be reached and was not is shown
//! with a zero. Never has an influence on a run.

use std::collections::BTreeMap;
use std::fmt;

use outboard_proto::wire::{FrameHeader, FrameKind};
use outboard_proto::{CollectiveError, GroupError, Step};

/// Gives an enum a list of all and names for people.
macro_rules! kinds {
    ($(#[$about:meta])* $kind:ident { $($(#[$of:meta])* $one:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs, reason = "the names are the documentation")]
        pub enum $kind { $($(#[$of])* $one,)+ }

        impl $kind {
            /// All there are.
            pub const ALL: &[$kind] = &[$($kind::$one,)+];

            /// For people.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self { $($kind::$one => $name,)+ }
            }
        }
    };
}

kinds! {
    /// What goes wrong.
    FaultKind {
        DatagramLost = "datagram lost",
        FrameLost = "frame lost",
        Doubled = "doubled",
        Overtaken = "overtaken",
        /// A datagram comes again, seconds later.
        DatagramReplayed = "datagram replayed",
        /// Somebody alters a datagram and is faster than the original.
        DatagramAltered = "datagram altered",
        /// What a host sends does not reach another.
        Cut = "cut off",
        /// A connection goes on some time after a cut.
        FrameHeld = "frame held up by a cut",
        /// Nothing reaches a host.
        Blackout = "blackout",
        /// A service process handles nothing, for less than means death.
        Stalled = "service process stalled",
        /// The same for longer.
        Stopped = "service process stopped",
        /// A sender, or a fabric, says late that it has done what it was asked for.
        SlowDriver = "driver slow",
        /// A fabric writes to where a payload belongs before all of it has come.
        PlacedEarly = "payload placed early",
        RankDied = "rank died",
        RankDiedEarly = "rank died before it asked",
        Refused = "rank refused",
        MemoryBad = "memory bad",
        HostDiedSilently = "host died in silence",
        HostDeathReported = "host's death reported",
        /// Another service process is started in the place of a dead one.
        Restarted = "service process restarted",
        Misconfigured = "host misconfigured",
        Disputed = "ranks disagreed",
        /// By a member of the group, or a stranger, that sends what a script says; so are all below.
        FrameOverwritten = "hostile: frame overwritten",
        MessageForged = "hostile: message forged",
        FrameForged = "hostile: frame forged",
        FrameTruncated = "hostile: any bytes as frame",
        DatagramForged = "hostile: datagram forged",
    }
}

kinds! {
    /// The way of a rank from one state in a group to the next.
    Way {
        AsksForGroup = "asks for the group",
        DiesBeforeAsking = "dies before it asks",
        IsRefusedGroup = "is refused the group",
        HasGroup = "has the group",
        GroupFails = "hears that the group fails",
        DiesWhileMaking = "dies while the group is made",
        Calls = "calls",
        EndsWell = "ends a call well",
        EndsBadly = "ends a call with an error",
        DiesBetweenCalls = "dies between calls",
        DiesInCall = "dies in a call",
        LeavesAfterError = "leaves after an error",
        Leaves = "leaves when all is done",
    }
}

/// What messages are called, by their codes (docs/wire.md).
const MESSAGES: [(u8, &str); 23] = [
    (0, "void"),
    (1, "create"),
    (2, "lost"),
    (3, "abort"),
    (4, "ask"),
    (5, "refuse"),
    (6, "waits"),
    (7, "fails"),
    (16, "ready"),
    (17, "ask sizes"),
    (18, "sizes"),
    (19, "inquire"),
    (20, "absent"),
    (32, "nak"),
    (33, "nak root"),
    (34, "repair"),
    (35, "whole"),
    (36, "complete"),
    (48, "offer"),
    (49, "cts"),
    (50, "data"),
    (51, "expected"),
    (52, "done"),
];
const STEPS: [&str; 5] = ["known", "stood in", "entered", "ready", "ended"];
const VERDICTS: [&str; 16] = [
    "rank lost",
    "peer lost",
    "mismatch",
    "block",
    "message",
    "memory",
    "protocol",
    "configuration",
    "handle taken",
    "not asked",
    "refused",
    "staging",
    "deadline",
    "invalid",
    "engine",
    "stalled",
];

/// What has been reached, how often.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage {
    faults: BTreeMap<FaultKind, u64>,
    ways: BTreeMap<Way, u64>,
    /// By code.
    messages: BTreeMap<u8, u64>,
    steps: BTreeMap<&'static str, u64>,
    verdicts: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// How often this has gone wrong.
    #[must_use]
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.faults.get(&kind).copied().unwrap_or(0)
    }

    /// Messages of kinds that have no name.
    #[must_use]
    pub fn unnamed(&self) -> Vec<u8> {
        self.messages.keys().copied().filter(|code| MESSAGES.iter().all(|(known, _)| known != code)).collect()
    }

    pub(crate) fn fault(&mut self, kind: FaultKind, times: u64) {
        if times > 0 {
            *self.faults.entry(kind).or_insert(0) += times;
        }
    }

    pub(crate) fn way(&mut self, way: Way) {
        *self.ways.entry(way).or_insert(0) += 1;
    }

    /// A frame is handled.
    pub(crate) fn frame(&mut self, header: &[u8], payload_len: u32) {
        let Ok((frame, body)) = FrameHeader::decode(header, payload_len) else { return };
        if let (FrameKind::Message, Some(code)) = (frame.kind, body.first()) {
            *self.messages.entry(*code).or_insert(0) += 1;
        }
    }

    pub(crate) fn step(&mut self, step: &Step) {
        let name = match step {
            Step::Known(_) => STEPS[0],
            Step::StoodIn(_) => STEPS[1],
            Step::Entered => STEPS[2],
            Step::Ready => STEPS[3],
            Step::Ended => STEPS[4],
        };
        *self.steps.entry(name).or_insert(0) += 1;
    }

    pub(crate) fn group_verdict(&mut self, error: &GroupError) {
        match error {
            GroupError::Failed(error) => self.verdict(error),
            GroupError::Invalid(_) => *self.verdicts.entry(VERDICTS[13]).or_insert(0) += 1,
        }
    }

    pub(crate) fn verdict(&mut self, error: &CollectiveError) {
        let name = match error {
            CollectiveError::RankLost(_) => VERDICTS[0],
            CollectiveError::PeerLost { .. } => VERDICTS[1],
            CollectiveError::Mismatch { .. } => VERDICTS[2],
            CollectiveError::Block { .. } => VERDICTS[3],
            CollectiveError::Message { .. } => VERDICTS[4],
            CollectiveError::Memory(_) => VERDICTS[5],
            CollectiveError::Protocol(_) => VERDICTS[6],
            CollectiveError::Configuration { .. } => VERDICTS[7],
            CollectiveError::HandleTaken(_) => VERDICTS[8],
            CollectiveError::NotAsked { .. } => VERDICTS[9],
            CollectiveError::Refused { .. } => VERDICTS[10],
            CollectiveError::Staging { .. } => VERDICTS[11],
            CollectiveError::Deadline(_) => VERDICTS[12],
            CollectiveError::Engine(_) => VERDICTS[14],
            CollectiveError::Stalled { .. } => VERDICTS[15],
        };
        *self.verdicts.entry(name).or_insert(0) += 1;
    }

    /// Adds what another run has reached.
    pub(crate) fn add(&mut self, other: &Coverage) {
        fn sum<K: Copy + Ord>(all: &mut BTreeMap<K, u64>, more: &BTreeMap<K, u64>) {
            more.iter().for_each(|(kind, times)| *all.entry(*kind).or_insert(0) += times);
        }
        sum(&mut self.faults, &other.faults);
        sum(&mut self.ways, &other.ways);
        sum(&mut self.messages, &other.messages);
        sum(&mut self.steps, &other.steps);
        sum(&mut self.verdicts, &other.verdicts);
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn table<'a>(
            f: &mut fmt::Formatter<'_>,
            title: &str,
            rows: impl Iterator<Item = (&'a str, Option<u64>)>,
        ) -> fmt::Result {
            writeln!(f, "\n{title:<32} {:>12}", "times")?;
            for (name, times) in rows {
                let missed = if times.is_none() { "  NOT REACHED" } else { "" };
                writeln!(f, "{name:<32} {:>12}{missed}", times.unwrap_or(0))?;
            }
            Ok(())
        }
        let found = |times: Option<&u64>| times.copied();
        table(f, "fault", FaultKind::ALL.iter().map(|kind| (kind.name(), found(self.faults.get(kind)))))?;
        table(f, "message handled", MESSAGES.iter().map(|(code, name)| (*name, found(self.messages.get(code)))))?;
        table(f, "step of a collective", STEPS.iter().map(|step| (*step, found(self.steps.get(step)))))?;
        table(f, "way of a rank", Way::ALL.iter().map(|way| (way.name(), found(self.ways.get(way)))))?;
        table(f, "verdict", VERDICTS.iter().map(|name| (*name, found(self.verdicts.get(name)))))
    }
}
