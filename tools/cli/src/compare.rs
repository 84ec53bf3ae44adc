//! `outboard compare`: runs one program natively, by default and after learning, in turn, and prints which setting to
//! keep.
//!
//! Each run is an `outboard run` of its own, so that no run inherits anything from another but the learnt choices.
//! Rounds go forwards and backwards in turn, so that a drift of the machine touches all ways alike.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::parser::ValueSource;
use clap::{ArgAction, ArgMatches, Args, CommandFactory};

use crate::error::CliError;
use crate::run::RunArgs;
use crate::{Cli, output, work};

/// Options of `outboard run` that this command sets by itself.
const OWN_OPTIONS: [&str; 5] = ["native", "quiet", "report", "trace", "seconds"];
/// Medians that are closer than this are no difference, however exact the runs.
const LEAST_DIFFERENCE: f64 = 0.02;
/// Fewer runs have no quartiles that would say much.
const QUARTILED: usize = 5;
/// Lines of a failed run that are shown.
const SHOWN_LINES: usize = 20;

#[derive(Debug, Args)]
pub(crate) struct CompareArgs {
    /// Measured runs of each way, at least 2
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=1000))]
    rounds: u32,
    /// Runs with OUTBOARD_CHOICE=learn before the measured ones
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    learn: u32,
    /// Keep what the program has learnt in this file, for OUTBOARD_CHOICE_FILE
    #[arg(long, value_name = "FILE", value_parser = output::file())]
    keep: Option<PathBuf>,
    #[command(flatten)]
    run: RunArgs,
}

/// A way to run the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Native,
    /// The first run on a cluster: nothing is learnt yet.
    Default,
    Learnt,
}

impl Way {
    const ALL: [Way; 3] = [Way::Native, Way::Default, Way::Learnt];

    fn name(self) -> &'static str {
        match self {
            Way::Native => "natively",
            Way::Default => "by default",
            Way::Learnt => "learnt",
        }
    }
}

pub(crate) fn compare(args: &CompareArgs) -> Result<ExitCode, CliError> {
    let matches = Cli::command().get_matches();
    let words = run_words(matches.subcommand_matches("compare").expect("this subcommand runs"))?;
    let directory = work::directory()?;
    let comparison = Comparison { words, directory: directory.path() };
    let learnt = directory.path().join("learnt.tsv");
    for _ in 0..args.learn {
        comparison.time("learn", &learnt, &[])?;
    }
    let mut seconds: [Vec<f64>; 3] = Default::default();
    for round in 0..args.rounds {
        let order: [usize; 3] = if round % 2 == 0 { [0, 1, 2] } else { [2, 1, 0] };
        for index in order {
            let fresh = directory.path().join(format!("fresh-{round}.tsv"));
            let time = match Way::ALL[index] {
                Way::Native => comparison.time("native", &directory.path().join("unused.tsv"), &["--native"]),
                Way::Default => comparison.time("adaptive", &fresh, &[]),
                Way::Learnt => comparison.time("adaptive", &learnt, &[]),
            };
            seconds[index].push(time?);
        }
    }
    let kept = match &args.keep {
        Some(path) if learnt.exists() => {
            fs::copy(&learnt, path).map_err(CliError::system(format!("write {}", path.display())))?;
            Some(path.as_path())
        }
        Some(_) | None => None,
    };
    print!("{}", report(&seconds.map(Sample::of), kept));
    Ok(ExitCode::SUCCESS)
}

/// The words of `outboard run` that the command line gave, without those that each run sets by itself.
fn run_words(matches: &ArgMatches) -> Result<Vec<OsString>, CliError> {
    let run = RunArgs::augment_args(clap::Command::new("run"));
    let (mut options, mut program) = (Vec::new(), vec![OsString::from("--")]);
    for argument in run.get_arguments() {
        let name = argument.get_id().as_str();
        if matches.value_source(name) != Some(ValueSource::CommandLine) {
            continue;
        }
        let Some(long) = argument.get_long() else {
            program.extend(matches.get_raw(name).into_iter().flatten().map(OsString::from));
            continue;
        };
        if OWN_OPTIONS.contains(&name) {
            return Err(CliError::Failed(format!("--{long}: `outboard compare` sets it in each run; leave it out")));
        }
        options.push(format!("--{long}").into());
        if !matches!(argument.get_action(), ArgAction::SetTrue) {
            options.extend(matches.get_raw(name).into_iter().flatten().map(OsString::from));
        }
    }
    Ok([options, program].concat())
}

/// The words and the directory that all runs share.
struct Comparison<'a> {
    words: Vec<OsString>,
    directory: &'a Path,
}

impl Comparison<'_> {
    /// Runs the program once. Returns the seconds from the start of its ranks to the end of the last.
    fn time(&self, choice: &str, choices: &Path, more: &[&str]) -> Result<f64, CliError> {
        let program = std::env::current_exe().map_err(CliError::system("find this program"))?;
        let (seconds, log) = (self.directory.join("seconds"), self.directory.join("log"));
        let errors = File::create(&log).map_err(CliError::system(format!("write {}", log.display())))?;
        let mut command = Command::new(program);
        command.args(["run", "--quiet", "--seconds"]).arg(&seconds).args(more).args(&self.words);
        command.env("OUTBOARD_CHOICE", choice).env("OUTBOARD_CHOICE_FILE", choices);
        // The program's own results are of no interest here, and a report would be overwritten by each run.
        command.env_remove("OUTBOARD_MPI_REPORT").env_remove("OUTBOARD_MPI").stdout(Stdio::null()).stderr(errors);
        let mut child = command.spawn().map_err(CliError::system("start outboard run"))?;
        work::set_foreground([child.id()]);
        let status = child.wait();
        work::set_foreground([]);
        let status = status.map_err(CliError::system("wait for outboard run"))?;
        if !status.success() {
            let text = String::from_utf8_lossy(&fs::read(&log).unwrap_or_default()).into_owned();
            let lines: Vec<&str> = text.lines().collect();
            let end = lines[lines.len().saturating_sub(SHOWN_LINES)..].join("\n");
            let way = if more.is_empty() { format!("OUTBOARD_CHOICE={choice}") } else { more.join(" ") };
            return Err(CliError::Failed(format!("a run with {way} failed ({status}):\n{end}")));
        }
        let text = fs::read_to_string(&seconds).map_err(CliError::system("read the time of a run"))?;
        text.trim().parse().map_err(|error| CliError::Failed(format!("`{text}` is no time of a run: {error}")))
    }
}

/// The times of one way, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sample {
    median: f64,
    /// Distance of the quartiles; with fewer than [`QUARTILED`] runs, of the fastest and the slowest run.
    spread: f64,
    runs: usize,
}

impl Sample {
    fn of(mut seconds: Vec<f64>) -> Sample {
        seconds.sort_by(f64::total_cmp);
        let at = |share: f64| {
            let place = share * (seconds.len() - 1) as f64;
            let (below, above) = (seconds[place.floor() as usize], seconds[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let spread = if seconds.len() < QUARTILED { at(1.0) - at(0.0) } else { at(0.75) - at(0.25) };
        Sample { median: at(0.5), spread, runs: seconds.len() }
    }

    /// Spread as a share of the median.
    fn noise(&self) -> f64 {
        self.spread / self.median.max(f64::MIN_POSITIVE)
    }

    /// Whether this way is faster than `other` beyond noise: by more than both spreads, and by 2 %.
    fn beats(&self, other: &Sample) -> bool {
        other.median - self.median > self.spread.max(other.spread).max(LEAST_DIFFERENCE * other.median)
    }
}

/// The table and the verdict.
fn report(samples: &[Sample; 3], kept: Option<&Path>) -> String {
    let mut text = format!("{:<12} {:>10} {:>8} {:>6}\n", "way", "median s", "spread", "runs");
    for (way, sample) in Way::ALL.iter().zip(samples) {
        let (name, percent) = (way.name(), sample.noise() * 100.0);
        let _ = writeln!(text, "{name:<12} {:>10.3} {percent:>6.1} % {:>6}", sample.median, sample.runs);
    }
    text += &verdict(samples, kept);
    text.push('\n');
    text
}

fn verdict(samples: &[Sample; 3], kept: Option<&Path>) -> String {
    let [native, default, learnt] = samples;
    let spread = samples.iter().map(Sample::noise).fold(0.0, f64::max) * 100.0;
    let spread = format!("(spread up to {spread:.1} %)");
    let times = |slow: &Sample, fast: &Sample| slow.median / fast.median.max(f64::MIN_POSITIVE);
    let learning = match kept {
        Some(path) => format!("keep OUTBOARD_CHOICE_FILE={}", path.display()),
        None => "keep the default, whose runs learn, or start with OUTBOARD_CHOICE=learn".to_owned(),
    };
    if learnt.beats(native) && (learnt.beats(default) || !default.beats(native)) {
        return format!("after learning {:.2} times as fast as natively {spread}: {learning}", times(native, learnt));
    }
    if default.beats(native) {
        return format!(
            "by default {:.2} times as fast as natively {spread}: keep the default",
            times(native, default)
        );
    }
    match (native.beats(default), native.beats(learnt)) {
        (_, true) => format!(
            "slower offloaded, {:.2} times the native time by default and {:.2} times after learning {spread}: keep \
             OUTBOARD_MPI=off",
            times(default, native),
            times(learnt, native)
        ),
        (true, false) => format!(
            "slower only until it has learnt, {:.2} times the native time in a first run {spread}: {learning}",
            times(default, native)
        ),
        (false, false) => format!("no difference beyond noise {spread}: keep the default"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(median: f64, spread: f64) -> Sample {
        Sample { median, spread, runs: 3 }
    }

    fn verdict_of(native: f64, default: f64, learnt: f64, spread: f64) -> String {
        verdict(&[native, default, learnt].map(|median| sample(median, spread)), None)
    }

    #[test]
    fn spread_is_the_distance_of_quartiles_and_of_extremes_among_few_runs() {
        let of = |seconds: &[f64]| Sample::of(seconds.to_vec());
        assert_eq!(of(&[2.0]), Sample { median: 2.0, spread: 0.0, runs: 1 });
        assert_eq!(of(&[3.0, 1.0, 2.0]), Sample { median: 2.0, spread: 2.0, runs: 3 });
        assert_eq!(of(&[1.0, 9.0, 1.0, 1.0, 1.0]), Sample { median: 1.0, spread: 0.0, runs: 5 }, "one outlier");
    }

    #[test]
    fn verdict_names_the_faster_way_and_the_setting_to_keep() {
        let faster = verdict_of(1.12, 1.0, 1.0, 0.01);
        assert!(faster.starts_with("by default 1.12 times as fast as natively"), "{faster}");
        assert!(faster.ends_with(": keep the default"), "{faster}");
        let slower = verdict_of(1.0, 1.1, 1.08, 0.01);
        assert!(slower.starts_with("slower offloaded, 1.10 times the native time"), "{slower}");
        assert!(slower.ends_with(": keep OUTBOARD_MPI=off"), "{slower}");
        let learnt = verdict_of(2.0, 2.1, 1.0, 0.01);
        assert!(learnt.starts_with("after learning 2.00 times as fast"), "{learnt}");
        let first = verdict_of(1.0, 1.2, 1.0, 0.01);
        assert!(first.starts_with("slower only until it has learnt, 1.20 times"), "{first}");
        let better = verdict_of(2.0, 1.5, 1.0, 0.01);
        assert!(better.starts_with("after learning 2.00 times as fast"), "{better}");
    }

    #[test]
    fn difference_within_the_spread_is_none() {
        assert!(verdict_of(1.12, 1.0, 1.0, 0.2).starts_with("no difference beyond noise"));
        assert!(verdict_of(1.0, 1.12, 1.12, 0.2).starts_with("no difference beyond noise"));
        assert!(verdict_of(1.01, 1.0, 1.0, 0.0).starts_with("no difference beyond noise"), "less than 2 %");
    }

    #[test]
    fn kept_file_is_the_setting_after_learning() {
        let samples = [2.0, 2.0, 1.0].map(|median| sample(median, 0.0));
        let kept = report(&samples, Some(Path::new("/home/me/choice.tsv")));
        assert!(kept.ends_with(": keep OUTBOARD_CHOICE_FILE=/home/me/choice.tsv\n"), "{kept}");
        assert_eq!(kept.lines().count(), 5, "{kept}");
    }
}
