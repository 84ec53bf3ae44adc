//! `outboard bench verdicts`: measures the time from a fault until every surviving rank has its verdict, and whether
//! all verdicts agree (docs/promise.md).
//!
//! Each run has new ranks, on the daemons of the run before it unless the fault has ended them. A host that was cut
//! off, stopped or killed has to serve the next run without an order to recover.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use outboard_bench::{BenchReport, SampleSpread, VerdictRow};
use outboard_lab::LabSpec;

use crate::error::CliError;
use crate::launch::DaemonArgs;
use crate::trial::rank::{ActAnswer, RankAct, Verdict, now_ns};
use crate::trial::{Silence, Trial, TrialRank};

/// Far above the bound of any verdict. A rank without an answer within this time has no verdict.
const LIMIT: Duration = Duration::from_secs(60);
/// How long a daemon stays stopped after the ranks of other daemons have their last verdict.
const REST: Duration = Duration::from_millis(200);

#[derive(Debug, Args)]
pub(crate) struct VerdictsArgs {
    /// HOSTSxRATE, with at least three hosts
    #[arg(long, default_value = "4x1gbit")]
    lab: LabSpec,
    /// Ranks on every host
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(1..=16))]
    ranks_per_host: u16,
    /// Faults, separated by commas; all by default
    #[arg(long, value_delimiter = ',')]
    only: Vec<VerdictFault>,
    /// Runs of each fault
    #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..))]
    repetitions: u32,
    /// Write the rows to this JSON file
    #[arg(long, value_parser = crate::output::file())]
    json: Option<PathBuf>,
    #[command(flatten)]
    daemons: DaemonArgs,
}

/// The faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum VerdictFault {
    /// A rank is killed while the others wait for it
    KilledRank,
    /// The daemon of a rank is killed
    KilledDaemon,
    /// The host of a rank loses its power
    KilledHost,
    /// The host of a rank loses its network
    CutLink,
    /// Nothing that the first host sends reaches the last one
    OneWayCut,
    /// The daemon of a rank is stopped, and continues after the others have their verdict
    StoppedDaemon,
    /// A rank dies after all ranks have made their offers, before any rank requests the group
    DeadBefore,
    /// A rank dies after the others have requested the group
    DeadDuring,
    /// A rank dies after the group has been made, before the others call
    DeadAfter,
    /// A rank is refused the group
    RefusedMember,
}

impl VerdictFault {
    fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().replace('-', " ")
    }

    /// Seconds within which all ranks have their verdict. The bound is lower if a process ends, because the kernel
    /// reports that end.
    fn bound_s(self) -> f64 {
        match self {
            VerdictFault::KilledRank | VerdictFault::KilledDaemon => 2.0,
            VerdictFault::DeadBefore
            | VerdictFault::DeadDuring
            | VerdictFault::DeadAfter
            | VerdictFault::RefusedMember => 2.0,
            VerdictFault::KilledHost
            | VerdictFault::CutLink
            | VerdictFault::OneWayCut
            | VerdictFault::StoppedDaemon => 5.0,
        }
    }
}

pub(super) fn verdicts(args: &VerdictsArgs) -> Result<ExitCode, CliError> {
    if args.lab.hosts() < 3 {
        return Err(CliError::Failed("--lab: a verdict of several hosts takes three hosts at least".to_owned()));
    }
    // With this limit, a rank that is in a group of its own is refused any other group.
    let daemons = DaemonArgs { more: vec!["--max-groups".into(), "2".into()], ..args.daemons.clone() };
    let faults = if args.only.is_empty() { VerdictFault::value_variants() } else { &args.only };
    let mut report = BenchReport { rows: Vec::new() };
    let mut trial = None;
    for fault in faults {
        let mut runs = Vec::new();
        for _ in 0..args.repetitions {
            let cluster = match trial.take() {
                Some(trial) => trial,
                None => Trial::start(&args.lab, daemons.clone(), Vec::new())?,
            };
            runs.push(run(&cluster, args, *fault)?);
            trial = (*fault != VerdictFault::KilledHost).then_some(cluster);
        }
        report.rows.push(row(args, *fault, &runs));
        print!("{}", outboard_bench::render_verdicts(&report.rows[report.rows.len() - 1..], report.rows.len() == 1));
        if let Some(path) = &args.json {
            report.write_json(path)?;
        }
    }
    Ok(if report.all(VerdictRow::holds) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result of one run.
struct VerdictRun {
    /// Milliseconds until the last surviving rank had its verdict.
    worst_ms: f64,
    /// How often ranks received each verdict, for each set of ranks that can reach each other.
    verdicts: Vec<BTreeMap<Verdict, u32>>,
}

impl VerdictRun {
    fn alike(&self) -> bool {
        self.verdicts.iter().all(|counts| counts.len() == 1)
    }
}

fn row(args: &VerdictsArgs, fault: VerdictFault, runs: &[VerdictRun]) -> VerdictRow {
    let milliseconds: Vec<f64> = runs.iter().map(|run| run.worst_ms).collect();
    let mut statuses = BTreeMap::new();
    for (verdict, count) in runs.iter().flat_map(|run| &run.verdicts).flatten() {
        *statuses.entry(verdict.status.clone()).or_insert(0) += count;
    }
    let odd = runs.iter().find(|run| !run.alike());
    VerdictRow {
        fault: fault.name(),
        cluster: args.lab.to_string(),
        ranks_per_host: args.ranks_per_host.into(),
        bound_s: fault.bound_s(),
        verdict_ms: SampleSpread::of(&milliseconds),
        runs: runs.len() as u32,
        alike: runs.iter().filter(|run| run.alike()).count() as u32,
        statuses,
        disagreement: odd.map(|run| {
            let sides = run.verdicts.iter().flatten();
            sides.map(|(verdict, count)| format!("{count} x {}: {}", verdict.status, verdict.text)).collect()
        }),
    }
}

/// The ranks of a run; the last one is the victim.
struct VerdictScene<'a> {
    trial: &'a Trial,
    ranks: Vec<TrialRank>,
    fault: VerdictFault,
}

fn run(trial: &Trial, args: &VerdictsArgs, fault: VerdictFault) -> Result<VerdictRun, CliError> {
    let hosts: Vec<u16> =
        (1..=trial.hosts()).flat_map(|host| std::iter::repeat_n(host, args.ranks_per_host.into())).collect();
    let mut scene = VerdictScene { trial, ranks: trial.start_ranks(&hosts, None, &[])?, fault };
    scene.all(&RankAct::Attach)?;
    let victim = scene.ranks.len() - 1;
    if fault == VerdictFault::RefusedMember {
        let alone = scene.offers(victim..victim + 1)?;
        scene.well(victim, &RankAct::Make { offers: alone, ranks: 1, rank: 0 })?;
    }
    let offers = scene.offers(0..victim + 1)?;
    let make = |rank: usize| RankAct::Make { offers: offers.clone(), ranks: hosts.len() as u32, rank: rank as u32 };
    let since = match fault {
        VerdictFault::DeadBefore => {
            scene.ranks[victim].kill();
            let since = now_ns();
            scene.send_to_survivors(make);
            since
        }
        VerdictFault::DeadDuring => {
            scene.send_to_survivors(make);
            scene.await_statistics(|report| report.present.memberships, victim as u32)?;
            let since = now_ns();
            scene.ranks[victim].kill();
            since
        }
        VerdictFault::RefusedMember => {
            scene.send_to_survivors(make);
            scene.await_statistics(|report| report.present.memberships, victim as u32 + 1)?;
            let since = now_ns();
            scene.ranks[victim].send_act(&make(victim));
            since
        }
        _ => {
            (0..=victim).for_each(|rank| scene.ranks[rank].send_act(&make(rank)));
            scene.all_well()?;
            scene.all(&RankAct::Calls { first: 0, count: 8 })?;
            scene.strike(victim)?
        }
    };
    scene.verdicts(since)
}

impl VerdictScene<'_> {
    fn failed(&self, rank: usize, why: impl std::fmt::Display) -> CliError {
        CliError::Failed(format!("{}: rank {rank}: {why}", self.fault.name()))
    }

    fn await_answer(&mut self, rank: usize) -> Result<ActAnswer, CliError> {
        self.ranks[rank].await_answer(LIMIT).map_err(|silence| match silence {
            Silence::Late => self.failed(rank, format!("no answer in {} s", LIMIT.as_secs())),
            Silence::Ended => self.failed(rank, "it has ended"),
        })
    }

    fn hear_well(&mut self, rank: usize) -> Result<Vec<u8>, CliError> {
        self.await_answer(rank)?.result.map_err(|verdict| self.failed(rank, verdict.text))
    }

    fn well(&mut self, rank: usize, act: &RankAct) -> Result<Vec<u8>, CliError> {
        self.ranks[rank].send_act(act);
        self.hear_well(rank)
    }

    fn all_well(&mut self) -> Result<(), CliError> {
        (0..self.ranks.len()).try_for_each(|rank| self.hear_well(rank).map(drop))
    }

    fn all(&mut self, act: &RankAct) -> Result<(), CliError> {
        self.ranks.iter_mut().for_each(|rank| rank.send_act(act));
        self.all_well()
    }

    fn offers(&mut self, ranks: std::ops::Range<usize>) -> Result<Vec<u8>, CliError> {
        let offers: Result<Vec<_>, _> = ranks.map(|rank| self.well(rank, &RankAct::Offer)).collect();
        Ok(offers?.concat())
    }

    fn send_to_survivors(&mut self, act: impl Fn(usize) -> RankAct) {
        let survivors = self.ranks.len() - 1;
        self.ranks[..survivors].iter_mut().enumerate().for_each(|(rank, one)| one.send_act(&act(rank)));
    }

    /// Waits until the sum of `count` over all daemons reaches `wanted`.
    fn await_statistics(
        &self,
        count: fn(&outboard_service::statistics::StatisticsReport) -> u32,
        wanted: u32,
    ) -> Result<(), CliError> {
        let deadline = Instant::now() + LIMIT;
        loop {
            let reports: Result<Vec<_>, _> =
                (1..=self.trial.hosts()).map(|host| self.trial.statistics(host, None)).collect();
            let found: u32 = reports?.iter().map(count).sum();
            match found >= wanted {
                true => return Ok(()),
                false if Instant::now() >= deadline => {
                    return Err(CliError::Failed(format!("{}: {found} of {wanted} have called", self.fault.name())));
                }
                false => std::thread::yield_now(),
            }
        }
    }

    /// Causes the fault while the survivors wait for the victim. Returns the time of the fault.
    fn strike(&mut self, victim: usize) -> Result<u64, CliError> {
        let (trial, last) = (self.trial, self.trial.hosts());
        let call = RankAct::Calls { first: 16, count: 1 };
        if self.fault == VerdictFault::DeadAfter {
            let since = now_ns();
            self.ranks[victim].kill();
            self.send_to_survivors(|_| call.clone());
            return Ok(since);
        }
        self.send_to_survivors(|_| call.clone());
        self.await_statistics(|report| report.present.calls, victim as u32)?;
        let since = now_ns();
        match self.fault {
            VerdictFault::KilledDaemon => trial.kill_daemon(last, None)?,
            VerdictFault::KilledHost => trial.crash(last)?,
            VerdictFault::CutLink => trial.cut(last)?,
            VerdictFault::OneWayCut => trial.cut_one_way(1, last)?,
            VerdictFault::StoppedDaemon => trial.halt_daemon(last, None, true),
            VerdictFault::KilledRank => self.ranks[victim].kill(),
            VerdictFault::DeadBefore
            | VerdictFault::DeadDuring
            | VerdictFault::DeadAfter
            | VerdictFault::RefusedMember => {
                unreachable!("they come before the group, or before the call")
            }
        }
        Ok(since)
    }

    /// Collects the verdicts of all survivors, mends the fault and ends the ranks.
    fn verdicts(mut self, since: u64) -> Result<VerdictRun, CliError> {
        let last = self.trial.hosts();
        let mut run = VerdictRun { worst_ms: 0.0, verdicts: Vec::new() };
        let (there, here): (Vec<usize>, Vec<usize>) =
            (0..self.ranks.len() - 1).partition(|rank| self.ranks[*rank].host == last);
        self.side(&here, since, &mut run)?;
        match self.fault {
            VerdictFault::KilledHost => return Ok(run),
            // A stopped daemon informs its ranks after it continues; no other process could inform these ranks.
            VerdictFault::StoppedDaemon => {
                std::thread::sleep(REST);
                self.trial.halt_daemon(last, None, false);
                self.side(&there, now_ns(), &mut run)?;
            }
            VerdictFault::KilledDaemon | VerdictFault::CutLink => self.side(&there, since, &mut run)?,
            _ => {
                // Survivors on the victim's host can reach the other survivors, so the verdicts of both are counted
                // together.
                self.side(&there, since, &mut run)?;
                let counts = run.verdicts.pop().unwrap_or_default();
                match run.verdicts.last_mut() {
                    Some(here) => {
                        counts.into_iter().for_each(|(verdict, count)| *here.entry(verdict).or_insert(0) += count)
                    }
                    None => run.verdicts.push(counts),
                }
            }
        }
        self.mend(last)?;
        self.end_ranks()?;
        Ok(run)
    }

    fn mend(&mut self, host: u16) -> Result<(), CliError> {
        match self.fault {
            VerdictFault::KilledDaemon => self.trial.restart_daemon(host, None),
            VerdictFault::CutLink => self.trial.mend(host),
            VerdictFault::OneWayCut => self.trial.mend_one_way(host),
            _ => Ok(()),
        }
    }

    /// Collects the verdicts of these survivors, which can reach each other.
    fn side(&mut self, ranks: &[usize], since: u64, run: &mut VerdictRun) -> Result<(), CliError> {
        let mut counts = BTreeMap::new();
        for rank in ranks {
            let answer = self.await_answer(*rank)?;
            let Err(verdict) = answer.result else { return Err(self.failed(*rank, "its call has ended well")) };
            run.worst_ms = run.worst_ms.max(answer.at_ns.saturating_sub(since) as f64 / 1e6);
            *counts.entry(verdict).or_insert(0) += 1;
        }
        if !counts.is_empty() {
            run.verdicts.push(counts);
        }
        Ok(())
    }

    fn end_ranks(&mut self) -> Result<(), CliError> {
        let victim = self.ranks.len() - 1;
        self.ranks[victim].kill();
        for mut rank in self.ranks.drain(..victim) {
            [RankAct::Leave, RankAct::Detach].iter().for_each(|act| rank.send_act(act));
            // If the daemon has ended, leaving fails.
            let _ = [rank.await_answer(LIMIT), rank.await_answer(LIMIT)];
            rank.end().map_err(CliError::Failed)?;
        }
        Ok(())
    }
}
