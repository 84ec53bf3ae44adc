//! The account of a run for people: the final state and the last events.

use std::fmt::Write as _;

use super::*;

impl ScenarioRun<'_> {
    /// Describes the current state of the run for people.
    pub(crate) fn account(&self) -> String {
        let mut out = String::new();
        let now = self.cluster.now();
        let _ = writeln!(out, "virtual time {:.6} s", now.0 as f64 / 1e9);
        for (group, members) in self.progress.iter().enumerate() {
            let _ = writeln!(out, "group {group}: {members:?}");
        }
        for (id, name) in &self.open {
            let _ = writeln!(out, "open: {id:?} {name:?}");
        }
        for (number, host) in self.cluster.hosts.iter().enumerate() {
            let _ = writeln!(
                out,
                "host {number}{}: timers {:?}, staging {:?}, batches {}, inbox {}, {:?}",
                if host.dead { " (dead)" } else { "" },
                [host.sp.poll_timeout(), host.sp.next_transmit()].map(|at| at.map(|t| t.0 as i128 - now.0 as i128)),
                host.memory.staged(),
                host.batches.len(),
                self.cluster.inboxes[number].waiting.len(),
                host.sp.counters(),
            );
        }
        for line in self.cluster.trace() {
            let _ = writeln!(out, "{line}");
        }
        out
    }
}
