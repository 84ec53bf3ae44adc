//! `outboard chaos`: jobs of several users on an emulated cluster, while faults are injected: processes are killed and
//! stopped, links cut, disks filled and descriptors taken away.
//!
//! ```text
//!  seed --> faults, one after another ----> Trial <---- jobs, several at once: attach, make a group, call, leave
//!             |                                            | answers of ranks, every byte checked
//!             '--- Hits: kind, place, from when to when ---+--> judged: rightful, in time, the same for all
//! ```
//!
//! Invariants: an error is right only if a fault has touched both the job and the rank that the error names. Every act
//! of a rank ends within [`job::BOUND`] of the last fault that touches its job. A host has at most one fault at a time,
//! and few hosts have a fault. Each user has a daemon on each host; a daemon's fault touches jobs of the daemon's user
//! alone. At the end all faults are mended, and nothing may be left of any user: no process, file, socket or address.

mod hits;
mod job;

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use outboard_lab::LabSpec;
use outboard_service::turns::{TurnLength, TurnLengths};
use outboard_units::Rate;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rustix::process::{Signal, geteuid};

use crate::error::CliError;
use crate::launch::DaemonArgs;
use crate::trial::rank::now_ns;
use crate::trial::{Trial, User, signal};
use hits::{ChaosFault, FaultTarget, Hit, Hits};

/// How long daemons may take to notice that the last ranks have gone.
const QUIET: Duration = Duration::from_secs(20);
/// One in this many hosts may have a fault at a time, so that most jobs run.
const HOSTS_PER_FAULT: usize = 4;
/// Most violations that are printed in full.
const MOST_PRINTED: usize = 10;

#[derive(Debug, Args)]
pub(crate) struct ChaosArgs {
    /// Hosts of the cluster
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(2..=64))]
    hosts: u16,
    /// Rate of their links
    #[arg(long, default_value = "1gbit")]
    rate: Rate,
    /// Minutes, or a duration such as 90s, in which jobs are started and faults are injected
    #[arg(long, default_value = "60", value_parser = outboard_units::Duration::minutes)]
    minutes: Duration,
    /// Jobs that run at the same time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=32))]
    jobs: u16,
    /// Users beside this one, each with a daemon on every host; only root can start programs of other users
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(0..=100))]
    users: u32,
    /// Seed from which jobs and faults are drawn
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    daemons: DaemonArgs,
}

/// The number of the first user.
const FIRST_USER: u32 = 20_000;

/// The results so far.
#[derive(Debug, Default)]
struct ChaosTally {
    jobs: u64,
    calls: u64,
    verdicts: BTreeMap<String, u64>,
    faults: BTreeMap<ChaosFault, u64>,
    /// The longest turn of all service processes, and the turn with the most processor time.
    longest: TurnLength,
    busiest: TurnLength,
    /// Violations of the invariants.
    breaches: Vec<String>,
}

/// A rank of a running job.
struct LivingRank {
    handle: Arc<OwnedFd>,
    host: u16,
    user: User,
}

/// The state that jobs and faults share.
struct Chaos<'a> {
    trial: &'a Trial,
    args: &'a ChaosArgs,
    hits: Mutex<Hits>,
    /// The living ranks of the running jobs.
    ranks: Mutex<BTreeMap<(u64, usize), LivingRank>>,
    tally: Mutex<ChaosTally>,
    until: Instant,
    /// Faults cannot be injected or mended any more.
    failed: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn chaos(args: &ChaosArgs) -> Result<ExitCode, CliError> {
    let rate = args.rate.in_bits_per_second();
    let spec = LabSpec::new(args.hosts, rate).map_err(|error| CliError::Lab(error.into()))?;
    let more = ["--group-timeout", "10"].map(str::to_owned).to_vec();
    let others = if geteuid().is_root() { args.users } else { 0 };
    let users: Vec<u32> = (1..=others).map(|user| FIRST_USER + user).collect();
    let trial = Trial::start(&spec, DaemonArgs { more, ..args.daemons.clone() }, users)?;
    let chaos = Chaos {
        trial: &trial,
        args,
        hits: Mutex::default(),
        ranks: Mutex::default(),
        tally: Mutex::default(),
        until: Instant::now() + args.minutes,
        failed: AtomicBool::new(false),
    };
    let injected = std::thread::scope(|scope| {
        for worker in 0..args.jobs {
            let chaos = &chaos;
            scope.spawn(move || chaos.work(u64::from(worker)));
        }
        chaos.inject()
    });
    injected?;
    for host in 1..=trial.hosts() {
        trial.users().iter().for_each(|user| chaos.note_turns(host, *user));
    }
    let tally = chaos.tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let users = trial.users().len();
    let mut leftovers = trial.quiet(QUIET)?;
    leftovers.extend(trial.end());
    print(args, users, &tally, &leftovers);
    Ok(if tally.breaches.is_empty() && leftovers.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print(args: &ChaosArgs, users: usize, tally: &ChaosTally, leftovers: &[String]) {
    let ChaosArgs { seed, hosts, .. } = args;
    println!("seed {seed}: {} jobs of {users} users on {hosts} hosts, {} calls ended well", tally.jobs, tally.calls);
    println!("\n{:<20} {:>8}", "fault", "injected");
    for kind in ChaosFault::value_variants() {
        println!("{:<20} {:>8}", kind.name(), tally.faults.get(kind).copied().unwrap_or(0));
    }
    println!("\n{:<20} {:>8}", "verdict", "ranks");
    for (status, count) in &tally.verdicts {
        println!("{status:<20} {count:>8}");
    }
    println!("\nlongest turn of a service process: {}\nbusiest: {}", tally.longest, tally.busiest);
    println!("\nleftovers {}, breaches {}", leftovers.len(), tally.breaches.len());
    leftovers.iter().take(MOST_PRINTED).for_each(|one| println!("LEFT OVER: {one}"));
    tally.breaches.iter().take(MOST_PRINTED).for_each(|breach| println!("BREACH: {breach}"));
}

/// A fault that has to be mended.
struct ActiveFault {
    due: Instant,
    hit: usize,
    kind: ChaosFault,
    place: FaultTarget,
}

impl Chaos<'_> {
    /// Runs one job after another.
    fn work(&self, worker: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(self.args.seed ^ ((worker + 1) << 32));
        let mut number = worker;
        while Instant::now() < self.until && !self.failed.load(Ordering::Relaxed) {
            if let Err(error) = job::play(self, number, &mut rng) {
                lock(&self.tally).breaches.push(format!("job {number}: {error}"));
            }
            lock(&self.tally).jobs += 1;
            number += u64::from(self.args.jobs);
        }
    }

    /// Injects one fault after another, and mends each after a while.
    fn inject(&self) -> Result<(), CliError> {
        let mut rng = ChaCha8Rng::seed_from_u64(self.args.seed);
        let mut broken: Vec<ActiveFault> = Vec::new();
        let outcome = loop {
            let now = Instant::now();
            let due = broken.extract_if(.., |one| one.due <= now).collect::<Vec<_>>();
            if let Err(error) = due.iter().try_for_each(|one| self.mend(one)) {
                break Err(error);
            }
            if now >= self.until {
                break Ok(());
            }
            match self.strike(&mut rng, &broken) {
                Ok(struck) => broken.extend(struck),
                Err(error) => break Err(error),
            }
            let pause = Duration::from_millis(rng.random_range(100..1500));
            std::thread::sleep(pause.min(self.until.saturating_duration_since(now)));
        };
        let mended: Vec<_> = broken.iter().map(|one| self.mend(one)).collect();
        let outcome = outcome.and(mended.into_iter().collect());
        self.failed.store(outcome.is_err(), Ordering::Relaxed);
        outcome
    }

    /// Injects one fault, if a place for the fault exists. Returns the fault if it has to be mended.
    fn strike(&self, rng: &mut ChaCha8Rng, broken: &[ActiveFault]) -> Result<Option<ActiveFault>, CliError> {
        let kind = *ChaosFault::value_variants().choose(rng).expect("there are some");
        let Some(place) = self.place(kind, rng, broken) else { return Ok(None) };
        // Some of the durations are below, some above the silence after which a peer counts as lost.
        let most = *[300, 3_000, 10_000].choose(rng).expect("there are some");
        let lasting = Duration::from_millis(rng.random_range(50..most));
        let hit = lock(&self.hits).begin(Hit { kind, place, from: now_ns(), to: None });
        *lock(&self.tally).faults.entry(kind).or_insert(0) += 1;
        self.act(kind, place)?;
        let broken = ActiveFault { due: Instant::now() + lasting, hit, kind, place };
        if kind == ChaosFault::KilledRank {
            lock(&self.hits).end(hit, now_ns());
            return Ok(None);
        }
        Ok(Some(broken))
    }

    /// A place where this kind of fault can happen now.
    fn place(&self, kind: ChaosFault, rng: &mut ChaCha8Rng, broken: &[ActiveFault]) -> Option<FaultTarget> {
        if kind.is_of_ranks() {
            let ranks: Vec<(u64, usize)> = lock(&self.ranks).keys().copied().collect();
            return ranks.choose(rng).map(|(job, rank)| FaultTarget::Rank { job: *job, rank: *rank });
        }
        let taken: BTreeSet<u16> = broken.iter().flat_map(|one| one.place.hosts()).collect();
        let room = usize::from(self.trial.hosts()).div_ceil(HOSTS_PER_FAULT);
        let wanted = if kind == ChaosFault::OneWayCut { 2 } else { 1 };
        if taken.len() + wanted > room.max(wanted) {
            return None;
        }
        if kind.is_of_daemons() {
            // Only a daemon that serves a rank is of interest.
            let serving = lock(&self.ranks).values().map(|rank| (rank.host, rank.user)).collect::<Vec<_>>();
            let free: Vec<_> = serving.into_iter().filter(|(host, _)| !taken.contains(host)).collect();
            return free.choose(rng).map(|(host, user)| FaultTarget::Daemon { host: *host, user: *user });
        }
        let free: Vec<u16> = (1..=self.trial.hosts()).filter(|host| !taken.contains(host)).collect();
        let host = *free.choose(rng)?;
        if kind != ChaosFault::OneWayCut {
            return Some(FaultTarget::Host(host));
        }
        let others: Vec<u16> = free.into_iter().filter(|other| *other != host).collect();
        others.choose(rng).map(|to| FaultTarget::Way { from: host, to: *to })
    }

    fn act(&self, kind: ChaosFault, place: FaultTarget) -> Result<(), CliError> {
        match (kind, place) {
            (ChaosFault::KilledRank, FaultTarget::Rank { job, rank }) => self.signal_rank((job, rank), Signal::KILL),
            (ChaosFault::StoppedRank, FaultTarget::Rank { job, rank }) => self.signal_rank((job, rank), Signal::STOP),
            (ChaosFault::KilledDaemon, FaultTarget::Daemon { host, user }) => {
                self.note_turns(host, user);
                self.trial.kill_daemon(host, user)?;
            }
            (ChaosFault::StoppedDaemon, FaultTarget::Daemon { host, user }) => self.trial.halt_daemon(host, user, true),
            (ChaosFault::CutLink, FaultTarget::Host(host)) => self.trial.cut(host)?,
            (ChaosFault::OneWayCut, FaultTarget::Way { from, to }) => self.trial.cut_one_way(from, to)?,
            (ChaosFault::FullDisk, FaultTarget::Host(host)) => self.trial.fill_disk(host, true)?,
            (ChaosFault::FewDescriptors, FaultTarget::Daemon { host, user }) => {
                self.trial.take_descriptors(host, user, true)?
            }
            _ => unreachable!("{kind:?} happens elsewhere than at {place:?}"),
        }
        Ok(())
    }

    fn mend(&self, broken: &ActiveFault) -> Result<(), CliError> {
        match (broken.kind, broken.place) {
            (ChaosFault::StoppedRank, FaultTarget::Rank { job, rank }) => self.signal_rank((job, rank), Signal::CONT),
            (ChaosFault::KilledDaemon, FaultTarget::Daemon { host, user }) => self.trial.restart_daemon(host, user)?,
            (ChaosFault::StoppedDaemon, FaultTarget::Daemon { host, user }) => {
                self.trial.halt_daemon(host, user, false)
            }
            (ChaosFault::CutLink, FaultTarget::Host(host)) => self.trial.mend(host)?,
            (ChaosFault::OneWayCut, FaultTarget::Way { to, .. }) => self.trial.mend_one_way(to)?,
            (ChaosFault::FullDisk, FaultTarget::Host(host)) => self.trial.fill_disk(host, false)?,
            (ChaosFault::FewDescriptors, FaultTarget::Daemon { host, user }) => {
                self.trial.take_descriptors(host, user, false)?
            }
            (kind, place) => unreachable!("{kind:?} at {place:?} needs no mending"),
        }
        lock(&self.hits).end(broken.hit, now_ns());
        Ok(())
    }

    /// Records the longest and the busiest turn of a service process, before its statistics end with the process.
    fn note_turns(&self, host: u16, user: User) {
        // A daemon without a free descriptor cannot answer. Its statistics are read again at the end of the run.
        if let Ok(report) = self.trial.statistics(host, user) {
            let TurnLengths { longest, busiest, .. } = report.turns;
            let tally = &mut *lock(&self.tally);
            (tally.longest, tally.busiest) = (tally.longest.longer(longest), tally.busiest.busier(busiest));
        }
    }

    fn signal_rank(&self, rank: (u64, usize), what: Signal) {
        // A rank whose job has ended meanwhile needs no signal.
        lock(&self.ranks).get(&rank).into_iter().for_each(|rank| signal(&rank.handle, what));
    }
}
