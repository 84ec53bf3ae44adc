//! One job: ranks of a user on some hosts of the cluster that attach, make a group, call and leave. Every verdict that
//! they receive is judged.

use std::time::Duration;

use rand::Rng;
use rand::seq::IndexedRandom;
use rand_chacha::ChaCha8Rng;

use super::hits::{ChaosFault, Crew, Hit};
use super::{Chaos, LivingRank, lock};
use crate::error::CliError;
use crate::trial::rank::{ActAnswer, RankAct, Verdict, WRONG, now_ns};
use crate::trial::{Silence, TrialRank};

/// Every act ends within this time after the last fault that touches its job.
pub(super) const BOUND: Duration = Duration::from_secs(20);
/// Interval between checks of the faults while an answer is awaited.
const LOOK: Duration = Duration::from_millis(200);
/// One in this many jobs writes a trace, in the directory [`TRACES`] of each host.
const TRACED: u64 = 4;
const TRACES: &str = "/run/tmp";

/// A running job.
struct ChaosJob<'a, 'c> {
    chaos: &'c Chaos<'a>,
    crew: Crew,
    ranks: Vec<TrialRank>,
    /// Whether each rank has been found dead.
    dead: Vec<bool>,
    since: u64,
}

/// Plays a job to its end.
pub(super) fn play(chaos: &Chaos<'_>, number: u64, rng: &mut ChaCha8Rng) -> Result<(), CliError> {
    let hosts: Vec<u16> = (0..rng.random_range(2..=6)).map(|_| rng.random_range(1..=chaos.trial.hosts())).collect();
    let user = *chaos.trial.users().choose(rng).expect("our own at least");
    let mut environment = vec![("OUTBOARD_JOB".to_owned(), (number + 1).to_string())];
    let traced = number.is_multiple_of(TRACED);
    environment.extend(traced.then(|| ("OUTBOARD_TRACE".to_owned(), TRACES.to_owned())));
    let rounds = rng.random_range(1..=12);
    let since = now_ns();
    let ranks = chaos.trial.start_ranks(&hosts, user, &environment)?;
    for (rank, one) in ranks.iter().enumerate() {
        let living = LivingRank { handle: one.handle(), host: one.host, user };
        lock(&chaos.ranks).insert((number, rank), living);
    }
    let dead = vec![false; ranks.len()];
    let mut job = ChaosJob { chaos, crew: Crew { job: number, user, hosts }, ranks, dead, since };
    if job.all(|_| RankAct::Attach).is_some() {
        job.groups(rounds);
    }
    job.end();
    if traced {
        job.crew.hosts.iter().for_each(|host| chaos.trial.remove_files(*host, TRACES, "rank-"));
    }
    Ok(())
}

impl ChaosJob<'_, '_> {
    /// Makes groups and calls on each, until something fails.
    fn groups(&mut self, rounds: u64) -> Option<()> {
        for round in 0..rounds {
            if round % 4 == 0 {
                let offers = self.all(|_| RankAct::Offer)?.concat();
                let ranks = self.crew.hosts.len() as u32;
                self.all(|rank| RankAct::Make { offers: offers.clone(), ranks, rank: rank as u32 })?;
            }
            self.all(|_| RankAct::Calls { first: round * 10, count: 10 })?;
            if round % 4 == 3 {
                self.all(|_| RankAct::Leave)?;
            }
        }
        Some(())
    }

    /// Sends an act to all ranks. Returns their results, or `None` if the act failed for a rank.
    fn all(&mut self, act: impl Fn(usize) -> RankAct) -> Option<Vec<Vec<u8>>> {
        let sent_at = now_ns();
        self.ranks.iter_mut().enumerate().for_each(|(rank, one)| one.send_act(&act(rank)));
        let name = format!("{:?}", act(0)).split([' ', '{']).next().unwrap_or_default().to_owned();
        let answers: Vec<_> = (0..self.ranks.len()).map(|rank| self.await_answer(rank, sent_at, &name)).collect();
        let verdicts = answers.iter().enumerate();
        let verdicts: Vec<(usize, u64, Verdict)> = verdicts
            .filter_map(|(rank, answer)| {
                let answer = answer.as_ref()?;
                Some((rank, answer.at_ns, answer.result.clone().err()?))
            })
            .collect();
        self.judge(&name, &verdicts);
        answers.into_iter().map(|answer| answer?.result.ok()).collect()
    }

    /// Waits for a rank's answer; `None` if the rank is dead.
    fn await_answer(&mut self, rank: usize, sent_at: u64, act: &str) -> Option<ActAnswer> {
        while !self.dead[rank] {
            match self.ranks[rank].await_answer(LOOK) {
                Ok(answer) => {
                    lock(&self.chaos.tally).calls += answer.calls;
                    return Some(answer);
                }
                Err(Silence::Late) => {
                    let hits = self.hits(now_ns());
                    // A fault that has not ended extends the wait.
                    let last = hits.iter().map(|hit| hit.to.unwrap_or(u64::MAX)).max().unwrap_or(0).max(sent_at);
                    if now_ns().saturating_sub(last) > BOUND.as_nanos() as u64 {
                        self.breach(&format!("rank {rank} has not ended {act} in time; {hits:?}"));
                        self.ranks[rank].kill();
                        self.dead[rank] = true;
                    }
                }
                Err(Silence::Ended) => {
                    self.dead[rank] = true;
                    let killed = |hit: &Hit| hit.kind == ChaosFault::KilledRank && self.touches(hit, rank);
                    if !self.hits(now_ns()).iter().any(killed) {
                        self.breach(&format!("rank {rank} has ended by itself in {act}"));
                    }
                }
            }
        }
        None
    }

    /// The faults that may have had an effect on this job before `until`.
    fn hits(&self, until: u64) -> Vec<Hit> {
        lock(&self.chaos.hits).excusing(&self.crew, self.since, until)
    }

    fn touches(&self, hit: &Hit, rank: usize) -> bool {
        hit.touches(&self.crew, rank)
    }

    fn breach(&self, what: &str) {
        lock(&self.chaos.tally).breaches.push(format!("{:?}: {what}", self.crew));
    }

    /// Judges the verdicts of one act.
    fn judge(&self, act: &str, verdicts: &[(usize, u64, Verdict)]) {
        for (rank, at, verdict) in verdicts {
            *lock(&self.chaos.tally).verdicts.entry(verdict.status.clone()).or_insert(0) += 1;
            let hits = self.hits(*at);
            if let Some(why) = self.wrong(*rank, verdict, &hits) {
                let Verdict { status, text } = verdict;
                self.breach(&format!("rank {rank} in {act}: {status}, {text}: {why}; {hits:?}"));
            }
        }
        let Some(last) = verdicts.iter().map(|(_, at, _)| *at).max() else { return };
        let hits = self.hits(last);
        let [only] = &hits[..] else { return };
        if !matches!(only.kind, ChaosFault::KilledRank | ChaosFault::KilledDaemon) {
            return;
        }
        let mut others = verdicts.iter().filter(|(rank, ..)| !self.touches(only, *rank)).map(|(_, _, verdict)| verdict);
        let first = others.next();
        if let (Some(first), Some(other)) = (first, others.find(|verdict| Some(*verdict) != first)) {
            self.breach(&format!("after {only:?} some were told {first:?}, some {other:?}"));
        }
    }

    /// Why a verdict is wrong; `None` if it is right.
    fn wrong(&self, rank: usize, verdict: &Verdict, hits: &[Hit]) -> Option<String> {
        if verdict.status == WRONG {
            return Some("bytes are never wrong".to_owned());
        }
        if hits.is_empty() {
            return Some("no fault touches the job".to_owned());
        }
        // A verdict that names no rank is about the service process of the rank that received the verdict.
        let named = named_rank(&verdict.text).unwrap_or(rank);
        // If a service process does not know the group, the verdict names the lowest rank on that host. So all ranks of
        // the named rank's host are suspects.
        let beside = |rank: &usize| self.crew.hosts.get(named).is_some_and(|host| self.crew.hosts[*rank] == *host);
        let suspects = || (0..self.crew.hosts.len()).filter(beside);
        // A partitioned host may be the first to report the peers that it cannot reach. A daemon without descriptors
        // reports the peers to which it cannot connect.
        let parts = |hit: &Hit| hit.kind.is_silence() || hit.kind == ChaosFault::FewDescriptors;
        let apart = verdict.status == "PeerLost" && hits.iter().any(parts);
        let blamed = apart || hits.iter().any(|hit| suspects().any(|rank| self.touches(hit, rank)));
        (!blamed).then(|| format!("no fault touches rank {named}"))
    }

    /// Ends the living ranks.
    fn end(&mut self) {
        for act in [RankAct::Leave, RankAct::Detach] {
            let sent_at = now_ns();
            self.ranks.iter_mut().for_each(|rank| rank.send_act(&act));
            (0..self.ranks.len()).for_each(|rank| drop(self.await_answer(rank, sent_at, "the end")));
        }
        lock(&self.chaos.ranks).retain(|(job, _), _| *job != self.crew.job);
        for (rank, one) in std::mem::take(&mut self.ranks).into_iter().enumerate() {
            if self.dead[rank] {
                continue;
            }
            // A rank that was stopped or killed meanwhile may never end by itself.
            let touched = self.hits(now_ns()).iter().any(|hit| hit.kind.is_of_ranks() && self.touches(hit, rank));
            if touched {
                one.kill();
            } else if let Err(why) = one.end() {
                self.breach(&why);
            }
        }
    }
}

/// The first rank number in a sentence.
fn named_rank(text: &str) -> Option<usize> {
    let (_, rest) = text.split_once("rank ")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_first_rank_that_is_named_is_blamed() {
        assert_eq!(super::named_rank("rank 3 died or left; rank 4 as well"), Some(3));
        assert_eq!(super::named_rank("the service process of this host ended"), None);
    }
}
