//! Fits the cost parameters of a cluster to measured times of calls.
//!
//! A call's time is a sum of terms times parameters (`cost.rs`), so the parameters follow by least squares. Errors are
//! relative, because short calls count as much as long ones. No parameter is negative. Parameters that the calls do not
//! determine stay unchanged. Floating-point numbers do no harm here, because one result is written down for all ranks.

use outboard_plan::selection::{Case, Choice, Cost, terms};
use outboard_units::{Duration, Rate};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CostSample {
    pub case: Case,
    pub choice: Choice,
    /// Time from the post to the end, on the slowest rank.
    pub took: Duration,
}

/// Number of parameters of [`Cost`].
const PARAMETERS: usize = 7;
/// Weight of each parameter's old value, relative to one call. If the calls determine only the sum of two parameters,
/// both change alike.
const HOLD: f64 = 0.01;
/// The smallest factor by which one round scales a parameter.
const LEAST: f64 = 0.05;
/// Largest number of fits, each from the result of the previous fit. A better estimate shows better whether link or
/// processor limits a call. Further fits also free the parameters from their old values.
const ROUNDS: usize = 8;
/// Largest number of descent steps, each over all parameters. The descent ends much earlier if the calls determine all
/// parameters.
const STEPS: usize = 5_000;

/// Nanoseconds of each term of a sample at `cost`.
fn parts(cost: &Cost, sample: &CostSample) -> [f64; PARAMETERS] {
    let terms = terms(cost, &sample.case, sample.choice);
    let each = |count: u64, duration: Duration| count as f64 * duration.in_nanoseconds() as f64;
    let at = |bytes: u64, rate: Rate| bytes as f64 * 8e9 / rate.in_bits_per_second() as f64;
    [
        each(terms.latencies, cost.latency),
        each(terms.messages, cost.message),
        each(terms.controls, cost.control),
        at(terms.sent, cost.bandwidth),
        cost.multicast.map_or(0.0, |rate| at(terms.multicast, rate)),
        at(terms.copied, cost.copy),
        at(terms.reduced, cost.reduce),
    ]
}

/// The error factor of `cost` for a sample: the larger time over the smaller, so 1 if `cost` is exact.
pub fn factor(cost: &Cost, sample: &CostSample) -> f64 {
    let model: f64 = parts(cost, sample).iter().sum();
    let took = sample.took.in_nanoseconds().max(1) as f64;
    (model / took).max(took / model.max(1.0))
}

/// The cost that explains the times of `samples` best. Parameters that the samples do not determine stay as in `start`.
/// The result has multicast if `start` has multicast.
pub fn fit(start: &Cost, samples: &[CostSample]) -> Cost {
    let mut cost = *start;
    for _ in 0..ROUNDS {
        // By sample: the fraction of the measured time that each parameter accounts for.
        let rows: Vec<[f64; PARAMETERS]> = samples
            .iter()
            .map(|sample| parts(&cost, sample).map(|part| part / sample.took.in_nanoseconds().max(1) as f64))
            .collect();
        let factors = descend(&rows);
        let changed = scaled(&cost, factors);
        if changed == cost {
            break;
        }
        cost = changed;
    }
    cost
}

/// The factors, none below [`LEAST`], for which the scaled columns of `rows` sum up to nearly 1 in each row.
fn descend(rows: &[[f64; PARAMETERS]]) -> [f64; PARAMETERS] {
    let mut factors = [1.0; PARAMETERS];
    let mut sums: Vec<f64> = rows.iter().map(|row| row.iter().sum()).collect();
    for _ in 0..STEPS {
        let mut moved = 0.0f64;
        for j in 0..PARAMETERS {
            let (mut wanted, mut weight) = (HOLD, HOLD);
            for (row, sum) in rows.iter().zip(&sums) {
                wanted += row[j] * (1.0 - sum + row[j] * factors[j]);
                weight += row[j] * row[j];
            }
            let step = (wanted / weight).max(LEAST) - factors[j];
            factors[j] += step;
            rows.iter().zip(&mut sums).for_each(|(row, sum)| *sum += row[j] * step);
            moved = moved.max(step.abs());
        }
        if moved < 1e-9 {
            break;
        }
    }
    factors
}

fn scaled(cost: &Cost, factors: [f64; PARAMETERS]) -> Cost {
    let [latency, message, control, bandwidth, multicast, copy, reduce] = factors;
    let longer =
        |duration: Duration, factor: f64| Duration::nanoseconds(readable(duration.in_nanoseconds() as f64 * factor));
    let slower = |rate: Rate, factor: f64| Rate::bits_per_second(readable(rate.in_bits_per_second() as f64 / factor));
    Cost {
        latency: longer(cost.latency, latency),
        message: longer(cost.message, message),
        control: longer(cost.control, control),
        bandwidth: slower(cost.bandwidth, bandwidth),
        multicast: cost.multicast.map(|rate| slower(rate, multicast)),
        copy: slower(cost.copy, copy),
        reduce: slower(cost.reduce, reduce),
    }
}

/// Rounds to four digits, because measurements are no more precise. The result is at least 1, so that a parameter can
/// grow again.
fn readable(value: f64) -> u64 {
    let unit = 10f64.powf((value.max(1.0).log10().floor() - 3.0).max(0.0));
    ((value / unit).round() * unit).max(1.0) as u64
}

#[cfg(test)]
mod tests {
    use outboard_plan::selection::{Collective, Links};

    use super::*;

    fn samples(cost: &Cost, noise: impl Fn(usize) -> f64) -> Vec<CostSample> {
        let mut all = Vec::new();
        for collective in Collective::ALL {
            for (choice, bytes) in
                collective.choices().iter().flat_map(|c| [64u64, 4 << 10, 64 << 10, 1 << 20].map(|b| (*c, b)))
            {
                for ranks in [4, 8] {
                    let case = Case { collective, ranks, hosts: 4, bytes, multicast: true, links: Links::Slow };
                    let sample = CostSample { case, choice, took: Duration::nanoseconds(0) };
                    let took = parts(cost, &sample).iter().sum::<f64>() * noise(all.len());
                    all.push(CostSample { took: Duration::nanoseconds(took as u64), ..sample });
                }
            }
        }
        all
    }

    fn near(a: u64, b: u64, percent: u64) -> bool {
        a.abs_diff(b) * 100 <= b * percent
    }

    fn other() -> Cost {
        Cost {
            latency: Duration::nanoseconds(5_000),
            message: Duration::nanoseconds(2_000),
            control: Duration::nanoseconds(20_000),
            bandwidth: Rate::bits_per_second(25_000_000_000),
            multicast: Some(Rate::bits_per_second(20_000_000_000)),
            copy: Rate::bits_per_second(100_000_000_000),
            reduce: Rate::bits_per_second(50_000_000_000),
        }
    }

    #[test]
    fn a_cluster_is_found_again_from_the_times_of_its_calls() {
        let (truth, found) = (other(), fit(&Cost::default(), &samples(&other(), |_| 1.0)));
        for (name, found, truth) in [
            ("latency", found.latency.in_nanoseconds(), truth.latency.in_nanoseconds()),
            ("message", found.message.in_nanoseconds(), truth.message.in_nanoseconds()),
            ("control", found.control.in_nanoseconds(), truth.control.in_nanoseconds()),
            ("bandwidth", found.bandwidth.in_bits_per_second(), truth.bandwidth.in_bits_per_second()),
            ("copy", found.copy.in_bits_per_second(), truth.copy.in_bits_per_second()),
            ("reduce", found.reduce.in_bits_per_second(), truth.reduce.in_bits_per_second()),
        ] {
            assert!(near(found, truth, 5), "{name}: {found} found, {truth} true");
        }
    }

    #[test]
    fn noise_of_a_tenth_leaves_the_model_within_a_quarter_of_the_samples() {
        let noisy = samples(&other(), |i| if i.is_multiple_of(2) { 1.1 } else { 0.9 });
        let found = fit(&Cost::default(), &noisy);
        let wrong = noisy.iter().filter(|sample| factor(&found, sample) > 1.25).count();
        assert!(wrong * 20 <= noisy.len(), "{wrong} of {} are off, {found:?}", noisy.len());
    }

    #[test]
    fn what_nobody_measured_stays_as_it_was() {
        let broadcasts: Vec<CostSample> = samples(&other(), |_| 1.0)
            .into_iter()
            .filter(|s| s.case.collective == Collective::Broadcast && !s.choice.multicasts())
            .collect();
        let found = fit(&Cost::default(), &broadcasts);
        assert_eq!((found.reduce, found.multicast), (Cost::default().reduce, Cost::default().multicast));
        assert!(near(found.bandwidth.in_bits_per_second(), other().bandwidth.in_bits_per_second(), 5), "{found:?}");
        assert_eq!(fit(&Cost::default(), &[]), Cost::default());
    }
}
