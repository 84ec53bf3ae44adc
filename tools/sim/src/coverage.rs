//! The coverage of a run: kinds of faults and messages, steps of collectives, state changes of ranks, verdicts. A sweep
//! over many seeds thereby shows what it has not reached.
//!
//! Invariants: a fault counts when it takes effect, not when it is planned. A kind that was never reached is shown with
//! a zero. Never influences a run.

use std::collections::BTreeMap;
use std::fmt;

use outboard_proto::wire::{FrameHeader, FrameKind};
use outboard_proto::{CollectiveError, GroupError, Milestone};

/// Gives an enum a list of all variants and names for people.
macro_rules! kinds {
    ($(#[$about:meta])* $kind:ident { $($(#[$of:meta])* $one:ident = $name:literal,)+ }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        pub enum $kind { $($(#[$of])* $one,)+ }

        impl $kind {
            /// All variants.
            pub const ALL: &[$kind] = &[$($kind::$one,)+];

            pub fn name(self) -> &'static str {
                match self { $($kind::$one => $name,)+ }
            }
        }
    };
}

kinds! {
    FaultKind {
        DatagramLost = "datagram lost",
        FrameLost = "frame lost",
        Doubled = "doubled",
        Overtaken = "overtaken",
        /// A datagram arrives again, seconds later.
        DatagramReplayed = "datagram replayed",
        /// An attacker alters a datagram and sends it before the original arrives.
        DatagramAltered = "datagram altered",
        /// Nothing that a host sends reaches another host.
        Cut = "cut off",
        /// A connection resumes some time after a cut.
        FrameHeld = "frame held up by a cut",
        Blackout = "blackout",
        /// A service process handles nothing, for too short a time to count as dead.
        Stalled = "service process stalled",
        /// A service process handles nothing, for long enough to count as dead.
        Stopped = "service process stopped",
        /// A sender or a fabric reports late that it has finished.
        SlowDriver = "driver slow",
        /// A fabric writes to the destination of a payload before the whole payload has arrived.
        PlacedEarly = "payload placed early",
        RankDied = "rank died",
        RankDiedEarly = "rank died before it asked",
        Refused = "rank refused",
        MemoryBad = "memory bad",
        HostDiedSilently = "host died in silence",
        HostDeathReported = "host's death reported",
        /// Another service process starts in the place of a dead one.
        Restarted = "service process restarted",
        Misconfigured = "host misconfigured",
        Disputed = "ranks disagreed",
        /// A script of [`crate::hostile`] causes this fault and all faults below.
        FrameOverwritten = "hostile: frame overwritten",
        FrameForged = "hostile: frame forged",
        DatagramForged = "hostile: datagram forged",
    }
}

kinds! {
    /// A change of a rank's state in a group.
    RankTransition {
        RequestsGroup = "asks for the group",
        DiesBeforeRequest = "dies before it asks",
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

/// Names of messages by code (docs/wire.md).
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

/// Titles of the tables.
const FAULTS: &str = "fault";
const HANDLED: &str = "message handled";
const STEP: &str = "step of a collective";
const WAYS: &str = "way of a rank";
const VERDICT: &str = "verdict";
/// The row of messages whose kind [`MESSAGES`] lacks.
const UNNAMED: &str = "unnamed";

/// How often each row of each table was reached.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Coverage(BTreeMap<(&'static str, &'static str), u64>);

impl Coverage {
    pub fn faults(&self, kind: FaultKind) -> u64 {
        self.times(FAULTS, kind.name()).unwrap_or(0)
    }

    /// Messages whose kind has no name.
    pub fn unnamed(&self) -> u64 {
        self.times(HANDLED, UNNAMED).unwrap_or(0)
    }

    fn times(&self, table: &'static str, row: &'static str) -> Option<u64> {
        self.0.get(&(table, row)).copied()
    }

    fn count(&mut self, table: &'static str, row: &'static str, times: u64) {
        *self.0.entry((table, row)).or_insert(0) += times;
    }

    pub(crate) fn fault(&mut self, kind: FaultKind, times: u64) {
        if times > 0 {
            self.count(FAULTS, kind.name(), times);
        }
    }

    pub(crate) fn transition(&mut self, transition: RankTransition) {
        self.count(WAYS, transition.name(), 1);
    }

    pub(crate) fn frame(&mut self, header: &[u8], payload_len: u32) {
        let Ok((frame, body)) = FrameHeader::decode(header, payload_len) else { return };
        if let (FrameKind::Message, Some(code)) = (frame.kind, body.first()) {
            let name = MESSAGES.iter().find(|(known, _)| known == code).map_or(UNNAMED, |(_, name)| *name);
            self.count(HANDLED, name, 1);
        }
    }

    pub(crate) fn step(&mut self, step: &Milestone) {
        let name = match step {
            Milestone::Known(_) => STEPS[0],
            Milestone::StoodIn(_) => STEPS[1],
            Milestone::Entered => STEPS[2],
            Milestone::Ready => STEPS[3],
            Milestone::Ended => STEPS[4],
        };
        self.count(STEP, name, 1);
    }

    pub(crate) fn group_verdict(&mut self, error: &GroupError) {
        match error {
            GroupError::Failed(error) => self.verdict(error),
            GroupError::Invalid(_) => self.count(VERDICT, VERDICTS[13], 1),
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
            CollectiveError::GroupNotRequested { .. } => VERDICTS[9],
            CollectiveError::Refused { .. } => VERDICTS[10],
            CollectiveError::Staging { .. } => VERDICTS[11],
            CollectiveError::Deadline(_) => VERDICTS[12],
            CollectiveError::Engine(_) => VERDICTS[14],
            CollectiveError::Stalled { .. } => VERDICTS[15],
        };
        self.count(VERDICT, name, 1);
    }

    pub(crate) fn add(&mut self, other: &Coverage) {
        other.0.iter().for_each(|((table, row), times)| self.count(table, row, *times));
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = [
            (FAULTS, FaultKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>()),
            (HANDLED, MESSAGES.iter().map(|(_, name)| *name).collect()),
            (STEP, STEPS.to_vec()),
            (WAYS, RankTransition::ALL.iter().map(|transition| transition.name()).collect()),
            (VERDICT, VERDICTS.to_vec()),
        ];
        for (table, rows) in tables {
            writeln!(f, "\n{table:<32} {:>12}", "times")?;
            for row in rows {
                let times = self.times(table, row);
                let missed = if times.is_none() { "  NOT REACHED" } else { "" };
                writeln!(f, "{row:<32} {:>12}{missed}", times.unwrap_or(0))?;
            }
        }
        Ok(())
    }
}
