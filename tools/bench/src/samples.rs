//! The results of launches, item by item, and how they become rows. Shared by all programs whose repetitions have a
//! slowest rank, processor time, and results that are right or wrong.
//!
//! Invariant: a row is made of all launches of its system together.
//!
//! Never does: knowing what a program measures.

use crate::job::{ServiceCounters, System};
use crate::launch::PhaseCounters;
use crate::report::{RepetitionCost, SampleSpread, Subject, Sums};
use crate::{BenchCall, Setup};
use serde::Deserialize;

/// The samples of one launch, in the order of measuring.
#[derive(Clone, Debug)]
pub(crate) struct LaunchSamples<L> {
    pub(crate) library: String,
    pub(crate) samples: Vec<LaunchSample<L>>,
}

/// A program's row for one item, and the counters of its repetitions.
#[derive(Clone, Debug)]
pub(crate) struct LaunchSample<L> {
    pub(crate) raw: RawSample<L>,
    /// Counters of all repetitions together.
    pub(crate) counted: PhaseCounters,
}

/// A row as the program sends it.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct RawSample<L> {
    /// Time of the slowest rank in each repetition; computed by the harness if a program sends the times of all ranks.
    #[serde(default)]
    pub(crate) slowest_ms: Vec<f64>,
    /// Processor time of all ranks in all repetitions.
    pub(crate) cpu_s: f64,
    /// Ranks and repetitions with wrong results.
    pub(crate) wrong: u64,
    /// Fields that only this program has.
    #[serde(flatten)]
    pub(crate) own: L,
}

/// The samples of one item in all launches of a system.
pub(crate) struct ItemSamples<'a, L> {
    samples: Vec<&'a LaunchSample<L>>,
}

impl<L> ItemSamples<'_, L> {
    /// The row of each launch.
    pub(crate) fn raw_samples(&self) -> impl Iterator<Item = &RawSample<L>> {
        self.samples.iter().map(|sample| &sample.raw)
    }

    /// The figures of all repetitions.
    pub(crate) fn all(&self, pick: impl Fn(&L) -> &Vec<f64>) -> Vec<f64> {
        self.raw_samples().flat_map(|raw| pick(&raw.own).iter().copied()).collect()
    }

    /// The spread of the figures of all repetitions.
    pub(crate) fn spread(&self, pick: impl Fn(&L) -> &Vec<f64>) -> SampleSpread {
        SampleSpread::of(&self.all(pick))
    }

    /// Summed counters of the services; `None` where a launch has none.
    pub(crate) fn services(&self) -> Option<ServiceCounters> {
        sum_services(self.samples.iter().map(|sample| sample.counted.services))
    }

    /// Cost of one repetition; `repetitions` is the number of all of them.
    pub(crate) fn cost(&self, repetitions: u32) -> RepetitionCost {
        let times: Vec<f64> = self.raw_samples().flat_map(|raw| raw.slowest_ms.iter().copied()).collect();
        RepetitionCost::of(&Sums {
            repetitions,
            time_ms: SampleSpread::of(&times),
            wire_bytes: self.samples.iter().map(|sample| sample.counted.wire_bytes).sum(),
            host_cpu_s: self.raw_samples().map(|raw| raw.cpu_s).sum(),
            services: self.services(),
            wrong_results: self.raw_samples().map(|raw| raw.wrong).sum(),
        })
    }
}

/// The rows of a system, one for each item of `measured`, in the order in which launches sent them. The item's call
/// selects the algorithm that the row names.
pub(crate) fn rows<L, M, R>(
    (setup, system): (&Setup, &dyn System),
    launches: &[LaunchSamples<L>],
    measured: impl Iterator<Item = (M, BenchCall)>,
    row: impl Fn(Subject, M, &ItemSamples<'_, L>) -> R,
) -> Vec<R> {
    let library = launches.last().map_or("", |launch| launch.library.as_str());
    let rows = measured.enumerate().map(|(at, (what, call))| {
        let found = ItemSamples { samples: launches.iter().map(|launch| &launch.samples[at]).collect() };
        row(Subject::of(setup, system, library, &call), what, &found)
    });
    rows.collect()
}

/// Sums over the rounds; `None` if one round has no counters.
pub(crate) fn sum_services(rounds: impl Iterator<Item = Option<ServiceCounters>>) -> Option<ServiceCounters> {
    rounds.reduce(|sum, next| Some(sum?.plus(&next?)))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, Deserialize)]
    struct Own {
        bytes: u64,
        moving_ms: Vec<f64>,
    }

    fn sample(text: &str, services: Option<ServiceCounters>) -> LaunchSample<Own> {
        LaunchSample { raw: serde_json::from_str(text).unwrap(), counted: PhaseCounters { wire_bytes: 300, services } }
    }

    #[test]
    fn a_cost_is_that_of_all_launches_together() {
        let services = ServiceCounters { cpu_s: 1.0, completed: 8, ..ServiceCounters::default() };
        let one = r#"{"bytes":8,"slowest_ms":[1.0,3.0],"moving_ms":[5.0],"cpu_s":2.0,"wrong":0}"#;
        let other = r#"{"bytes":8,"slowest_ms":[2.0,9.0],"moving_ms":[7.0],"cpu_s":4.0,"wrong":1}"#;
        let samples = [sample(one, Some(services)), sample(other, Some(services))];
        let found = ItemSamples { samples: samples.iter().collect() };
        let cost = found.cost(4);
        assert_eq!(cost.time_ms, SampleSpread { median: 2.5, min: 1.0, max: 9.0 });
        assert_eq!((cost.wire_bytes, cost.host_cpu_s, cost.service_cpu_s), (150.0, 1.5, Some(0.5)));
        assert_eq!((cost.wrong_results, cost.verified), (1, false));
        assert_eq!((found.all(|own| &own.moving_ms), found.services().unwrap().completed), (vec![5.0, 7.0], 16));
        assert!(found.raw_samples().all(|raw| raw.own.bytes == 8));
    }

    #[test]
    fn counters_missing_in_one_launch_are_missing_in_the_row() {
        let one = r#"{"bytes":8,"slowest_ms":[1.0],"moving_ms":[],"cpu_s":2.0,"wrong":0}"#;
        let samples = [sample(one, Some(ServiceCounters::default())), sample(one, None)];
        assert_eq!(ItemSamples { samples: samples.iter().collect() }.services(), None);
    }
}
