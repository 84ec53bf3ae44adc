//! The algorithms that Outboard uses in a measurement: the daemons' settings, and the names in the report's rows.
//!
//! Invariant: a row's name and the group's choice come from the same pure function. A requested algorithm that cannot
//! carry out a call of the run is refused before anything starts.

use std::fs;
use std::path::Path;

use outboard_bench::{BenchCall, Collective, LaunchError};
use outboard_lab::LabSpec;
use outboard_plan::selection::{self, Case, Choice, Links, Rate, Rule, Tuning};
use outboard_service::settings::{EAGER_BYTES, read_tuning};

use crate::error::CliError;
use crate::launch::DaemonArgs;

/// The algorithm of calls in which only the sender and the receiver know the size of a block (SP-5).
const PULL: &str = "pull";
/// The algorithm that daemons use by default.
const MULTICAST: &str = "multicast";
/// The algorithm that daemons use without multicast.
const RING: &str = "ring";

/// The algorithms of one collective.
#[derive(Debug, Clone)]
pub(crate) struct Algorithms {
    /// `None` if the collective has only one algorithm.
    collective: Option<selection::Collective>,
    tuning: Tuning,
    /// The algorithm that was requested by name.
    requested: Option<Choice>,
    /// Whether the tuning comes from a file or a request.
    tuned: bool,
    multicast: bool,
    link_rate: Rate,
}

impl Algorithms {
    /// The algorithms that [`DaemonArgs`] select. For an allgather or a broadcast, `ring` and `multicast` say whether
    /// the daemons multicast; other names are algorithms of the collective. For other collectives `multicast` leaves
    /// the choice to the group. If `lab` does not limit its links, interfaces report a fast rate.
    pub(crate) fn of(collective: Collective, daemons: &DaemonArgs, lab: &LabSpec) -> Result<Self, CliError> {
        let failed = |why: String| CliError::Failed(format!("--algorithm {}: {why}", daemons.algorithm));
        let gathers_all = matches!(collective, Collective::Allgather | Collective::Allgatherv | Collective::Broadcast);
        let of_daemons = daemons.algorithm == MULTICAST || (gathers_all && daemons.algorithm == RING);
        let without = daemons.encrypt || (gathers_all && daemons.algorithm == RING);
        let chosen_for = chosen_for(collective);
        let requested = match chosen_for {
            _ if of_daemons => None,
            Some(chosen_for) => Some(chosen_for.read(&daemons.algorithm).map_err(failed)?),
            None if daemons.algorithm == PULL => None,
            None => return Err(failed(format!("{collective} has no other than {PULL}"))),
        };
        let link_rate = Rate::bits_per_second(lab.link().rate_bits_per_s().unwrap_or(u64::MAX));
        let mut tuning = match &daemons.tuning {
            Some(path) => read_tuning(path).map_err(CliError::failed)?,
            None => Tuning::untuned(Links::between(lab.hosts().into(), link_rate)),
        };
        if let (Some(collective), Some(choice)) = (chosen_for, requested) {
            tuning.rules.insert(collective, vec![Rule { up_to: None, ranks: None, choice }]);
        }
        let tuned = requested.is_some() || daemons.tuning.is_some();
        Ok(Self { collective: chosen_for, tuning, requested, tuned, multicast: !without, link_rate })
    }

    /// Refuses `call` if the requested algorithm cannot carry it out.
    pub(crate) fn check(&self, call: &BenchCall) -> Result<(), CliError> {
        match (self.requested, self.choice(call)) {
            (Some(requested), Some(choice)) if requested != choice => Err(CliError::Failed(format!(
                "{requested} cannot carry out a {} of {} bytes among {} ranks on {} hosts",
                call.collective,
                call.bytes,
                call.ranks(),
                call.hosts
            ))),
            _ => Ok(()),
        }
    }

    /// The choice of the group for `call`; `None` where there is no choice.
    fn choice(&self, call: &BenchCall) -> Option<Choice> {
        let collective = self.collective?;
        let (ranks, hosts) = (call.ranks(), call.hosts);
        // Ranks of one host need no network, so nothing keeps them from the multicast algorithm.
        let multicast = self.multicast || hosts == 1;
        let links = Links::between(hosts, self.link_rate);
        let case = Case { collective, ranks, hosts, bytes: call.bytes, multicast, links };
        let uneven = call.collective == Collective::Allgatherv;
        Some(chosen(self.tuned.then_some(&self.tuning), &case, uneven).0)
    }

    /// The algorithm's name in the report's rows.
    pub(crate) fn name(&self, call: &BenchCall) -> String {
        match self.choice(call) {
            // A multicast uses the daemons' settings, so the name of the algorithm has no settings.
            Some(choice) if choice.multicasts() => {
                let text = choice.to_string();
                text.split(':').next().unwrap_or(&text).to_owned()
            }
            Some(choice) => choice.to_string(),
            // The transfer layer chooses by size.
            None if call.collective == Collective::PingPong => "auto".to_owned(),
            None => PULL.to_owned(),
        }
    }

    /// The daemons' arguments for the requested algorithm, which is written to a tuning file in `directory`.
    pub(crate) fn with_tuning_file(&self, daemons: &DaemonArgs, directory: &Path) -> Result<DaemonArgs, LaunchError> {
        let mut daemons = daemons.clone();
        if self.requested.is_some() {
            let path = directory.join("tuning.toml");
            fs::write(&path, self.tuning.to_string())
                .map_err(|error| LaunchError::new(format!("write {}", path.display()), error))?;
            daemons.tuning = Some(path);
        }
        if self.requested.is_some() || self.collective.is_none() {
            daemons.algorithm = MULTICAST.to_owned();
        }
        Ok(daemons)
    }
}

/// The algorithm that daemons with `tuning` choose, and whether the call is small. On one host no call counts as small.
pub(crate) fn chosen(tuning: Option<&Tuning>, case: &Case, uneven: bool) -> (Choice, bool) {
    let eager_bytes = if case.hosts == 1 { 0 } else { EAGER_BYTES.0 };
    selection::chosen(tuning, case, eager_bytes, uneven)
}

/// The collective under whose name the algorithm is chosen.
fn chosen_for(collective: Collective) -> Option<selection::Collective> {
    match collective {
        Collective::Allgatherv => Some(selection::Collective::Allgather),
        even => even.to_string().parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn algorithms(collective: Collective, name: &str) -> Result<Algorithms, CliError> {
        let daemons = DaemonArgs { algorithm: name.to_owned(), ..DaemonArgs::default() };
        Algorithms::of(collective, &daemons, &"4x1gbit".parse().expect("a cluster"))
    }

    fn call(collective: Collective, bytes: u64) -> BenchCall {
        BenchCall { collective, hosts: 4, ranks_per_host: 1, bytes, silent_rank: false }
    }

    fn named(collective: Collective, name: &str, bytes: u64) -> String {
        algorithms(collective, name).expect("there is one").name(&call(collective, bytes))
    }

    #[test]
    fn rows_name_what_is_asked_for_or_chosen() {
        assert_eq!(named(Collective::Allgatherv, "multicast", 4096), "multicast");
        assert_eq!(named(Collective::Allgatherv, "bruck", 4096), "ring");
        assert_eq!(named(Collective::Broadcast, "ring", 40_960), "binomial");
        assert_eq!(named(Collective::Broadcast, "ring", 4 << 20), "chain:segment=16384");
        assert_eq!(named(Collective::Allreduce, "ring:segment=100", 64), "ring:segment=100");
        assert_eq!(named(Collective::Gather, "multicast", 64), "linear");
        assert_eq!(named(Collective::Alltoall, "bruck", 64), "bruck");
        assert_eq!(named(Collective::Gatherv, "multicast", 64), "pull");
        assert_eq!(named(Collective::Alltoallv, "pull", 64), "pull");
        let tuning = Tuning::untuned(Links::Slow);
        for bytes in [64, 4 << 20] {
            let collective = selection::Collective::Allreduce;
            let case = Case { collective, ranks: 4, hosts: 4, bytes, multicast: true, links: Links::Slow };
            let chosen = tuning.choose(&case).choice.to_string();
            assert!(chosen.starts_with(&named(Collective::Allreduce, "multicast", bytes)), "{chosen}");
        }
    }

    #[test]
    fn what_is_asked_for_is_what_the_daemons_read() {
        let directory = tempfile::tempdir().expect("a directory");
        let requested = algorithms(Collective::Allreduce, "rabenseifner").expect("there is one");
        let daemons = DaemonArgs { algorithm: "rabenseifner".to_owned(), ..DaemonArgs::default() };
        let written = requested.with_tuning_file(&daemons, directory.path()).expect("a file");
        assert_eq!(written.algorithm, MULTICAST);
        let read = read_tuning(&written.tuning.expect("a file")).expect("a tuning");
        assert_eq!(read, requested.tuning);
        let default = algorithms(Collective::Allreduce, MULTICAST).expect("there is one");
        assert_eq!(
            default.with_tuning_file(&DaemonArgs::default(), directory.path()).expect("as they are").tuning,
            None
        );
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (collective, name) in [
            (Collective::Allreduce, "magic"),
            (Collective::Alltoallv, "bruck"),
            (Collective::Barrier, "dissemination:ports=3"),
        ] {
            let why = algorithms(collective, name).expect_err("there is none").to_string();
            assert!(why.contains(name), "{why}");
        }
    }
}
