//! The rows of a run, as they go into the JSON file.

use super::{Outcome, Program};
use crate::report::{Report, Spread};
use crate::samples::sum_services;
use crate::{Choosing, Place, Setup, Verdict};
use serde::{Deserialize, Serialize};

/// A program is slower from this ratio of its pairs on...
const SLOWER_FROM: f64 = 1.01;
/// ... and faster up to this one.
const FASTER_FROM: f64 = 0.95;

/// Everything that was found about programs.
pub type ProgramsReport = Report<ProgramRow>;

impl ProgramsReport {
    /// Whether every result was right.
    pub fn verified(&self) -> bool {
        self.rows.iter().all(|row| row.verified)
    }
}

/// One program on one cluster.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProgramRow {
    /// Name of the [`Program`].
    pub program: String,
    /// The [`Place`].
    pub place: String,
    /// Name of the library that is measured natively.
    pub native: String,
    /// How the shim chose: `OUTBOARD_CHOICE`.
    pub choice: String,
    /// Runs both ways.
    pub pairs: u32,
    /// A run natively.
    pub native_s: Spread,
    /// A run below the shim.
    pub below_s: Spread,
    /// Median below the shim over the native one.
    pub ratio: f64,
    /// The same of each pair, whose runs follow one another.
    pub pair_ratio: Spread,
    /// What that means, by the median of the pairs.
    pub verdict: Verdict,
    /// Calls of a rank in a run that service processes carried out.
    pub offloaded_calls: Option<f64>,
    /// Processor time of the service processes in a run, from their start.
    pub service_cpu_s: Option<f64>,
    /// All runs had the same, right result.
    pub verified: bool,
}

impl ProgramRow {
    pub(super) fn of(
        program: Program,
        place: &Place,
        setup: &Setup,
        choosing: &Choosing,
        native: &[Outcome],
        below: &[Outcome],
    ) -> Self {
        let seconds = |outcomes: &[Outcome]| outcomes.iter().map(|outcome| outcome.seconds).collect::<Vec<_>>();
        let (native_s, below_s) = (seconds(native), seconds(below));
        let ratios: Vec<f64> = below_s.iter().zip(&native_s).map(|(below, native)| below / native).collect();
        let (native_s, below_s, pair_ratio) = (Spread::of(&native_s), Spread::of(&below_s), Spread::of(&ratios));
        let each = |sum: f64| sum / f64::from(setup.rounds);
        let services = sum_services(below.iter().map(|outcome| outcome.services));
        let check = &native[0].check;
        Self {
            program: program.name().to_owned(),
            place: place.to_string(),
            native: setup.peers[0].name().to_owned(),
            choice: choosing.way().to_owned(),
            pairs: setup.rounds,
            native_s,
            below_s,
            ratio: below_s.median / native_s.median,
            pair_ratio,
            verdict: verdict(pair_ratio.median),
            offloaded_calls: services.map(|sum| each(sum.completed as f64) / f64::from(setup.ranks())),
            service_cpu_s: services.map(|sum| each(sum.cpu_s)),
            verified: check != "wrong" && native.iter().chain(below).all(|outcome| outcome.check == *check),
        }
    }
}

fn verdict(ratio: f64) -> Verdict {
    match ratio {
        slower if slower > SLOWER_FROM => Verdict::Loss,
        faster if faster <= FASTER_FROM => Verdict::Win,
        _ => Verdict::Even,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Peer;
    use crate::report::tests::through_json;

    pub(crate) fn row(native: &[(f64, &str)], below: &[(f64, &str)]) -> ProgramRow {
        let place: Place = "2x1gbit".parse().unwrap();
        let mut setup = Setup::new(place.lab.clone(), 1);
        (setup.rounds, setup.peers) = (native.len() as u32, vec![Peer::Debian]);
        let outcomes = |side: &[(f64, &str)]| {
            side.iter()
                .map(|(seconds, check)| Outcome { seconds: *seconds, check: (*check).to_owned(), services: None })
                .collect::<Vec<_>>()
        };
        ProgramRow::of(Program::Cg, &place, &setup, &Choosing::default(), &outcomes(native), &outcomes(below))
    }

    #[test]
    fn pairs_are_compared_run_by_run() {
        let row = row(&[(1.0, "ok"), (2.0, "ok"), (4.0, "ok")], &[(1.0, "ok"), (1.0, "ok"), (3.0, "ok")]);
        assert_eq!((row.ratio, row.pair_ratio), (0.5, Spread { median: 0.75, min: 0.5, max: 1.0 }));
        assert!(row.verified && row.pairs == 3 && row.native == "debian");
        assert_eq!(through_json(row)["verdict"], "win");
    }

    #[test]
    fn results_must_be_right_and_the_same() {
        assert!(row(&[(1.0, "0a1b")], &[(1.0, "0a1b")]).verified);
        assert!(!row(&[(1.0, "0a1b")], &[(1.0, "0a1c")]).verified);
        assert!(!row(&[(1.0, "wrong")], &[(1.0, "wrong")]).verified);
    }

    #[test]
    fn one_percent_slower_is_a_loss_and_five_faster_a_win() {
        let verdicts = [1.02, 1.01, 0.96, 0.95].map(verdict);
        assert_eq!(verdicts, [Verdict::Loss, Verdict::Even, Verdict::Even, Verdict::Win]);
    }
}
