//! One run of a plan.

use std::borrow::Borrow;

use outboard_nic::{JobCompletion, JobFailure, NodeId, Port};
use outboard_plan::Rank;
use outboard_plan::selection::Collective;

use super::net::NicNetwork;
use super::{Chooser, EngineSettings, NicOutcome, NicViolation, PreparedPlan, refused};

#[derive(Debug, Clone, Copy, Default)]
struct RankProgress {
    called: usize,
    ended: usize,
}

pub(super) struct NicRun<'a, S: EngineSettings> {
    prepared: &'a PreparedPlan<'a, S>,
    net: NicNetwork<S::Engine>,
    progress: Vec<Vec<RankProgress>>,
    late: Vec<Vec<bool>>,
    /// Nodes that have not yet been notified of the death.
    unnotified: Vec<NodeId>,
    died: bool,
    played: NicOutcome,
}

impl<'a, S: EngineSettings> NicRun<'a, S> {
    pub(super) fn new(prepared: &'a PreparedPlan<'a, S>, late: Vec<Vec<bool>>) -> Result<Self, NicViolation> {
        let (engines, memory) = prepared.machines()?;
        let net = NicNetwork::new(engines, memory);
        let progress = prepared.jobs.iter().map(|job| vec![RankProgress::default(); job.members.len()]).collect();
        let (unnotified, died, played) = (Vec::new(), false, NicOutcome::default());
        Ok(NicRun { prepared, net, progress, late, unnotified, died, played })
    }

    pub(super) fn play(
        mut self,
        choose: &mut Chooser<'_>,
        mut watch: impl FnMut(NodeId, &S::Engine),
    ) -> Result<NicOutcome, NicViolation> {
        for event in 0.. {
            if let Some((node, _)) = self.prepared.plan.death.filter(|(_, behind)| *behind == event) {
                self.die(NodeId(node));
            }
            if !self.step(choose)? {
                break;
            }
            let fullest = self.net.engines().map(|(_, engine)| S::occupancy(engine)).max().unwrap_or(0);
            self.played.occupancy = self.played.occupancy.max(fullest);
        }
        self.net.engines().for_each(|(node, engine)| watch(node, engine));
        self.judge()
    }

    /// Lets the next event happen. Returns false when none is left.
    fn step(&mut self, choose: &mut Chooser<'_>) -> Result<bool, NicViolation> {
        let posts = self.posts(false);
        let behind = posts.len() + self.unnotified.len();
        let packets = behind + self.net.in_flight();
        let events = packets + usize::from(S::races_with_time() && self.net.awaits_time());
        if events > 0 {
            match choose(events) {
                at if at < posts.len() => self.post(posts[at])?,
                at if at < behind => self.notify_survivor(at - posts.len()),
                at if at < packets => self.deliver(at - behind, choose),
                _ => _ = self.net.pass_time(),
            }
        } else if let Some(late) = self.posts(true).first() {
            self.post(*late)?;
        } else if !self.net.pass_time() {
            return Ok(false);
        }
        self.drain_completions()?;
        Ok(true)
    }

    fn deliver(&mut self, index: usize, choose: &mut Chooser<'_>) {
        let loss = self.prepared.loss;
        if loss > 0 && self.net.may_lose(index) && choose(1_000) < loss {
            self.net.lose(index);
        } else {
            self.net.deliver(index);
        }
    }

    /// Ranks that can call, by job: the punctual ones, or the late ones.
    fn posts(&self, late: bool) -> Vec<(usize, usize)> {
        let mut posts = Vec::new();
        for (job, (prepared, progress)) in self.prepared.jobs.iter().zip(&self.progress).enumerate() {
            let can = |rank: &usize| {
                let alive = !self.is_dead(prepared.members[*rank]);
                alive && progress[*rank].called < prepared.calls.len() && self.late[job][*rank] == late
            };
            posts.extend((0..prepared.members.len()).filter(can).map(|rank| (job, rank)));
        }
        posts
    }

    fn is_dead(&self, (member, _): (NodeId, Port)) -> bool {
        self.died && self.prepared.plan.death.is_some_and(|(node, _)| node == member.0)
    }

    fn die(&mut self, node: NodeId) {
        self.died = true;
        self.net.die(node);
        self.unnotified = self.net.engines().map(|(node, _)| node).collect();
    }

    fn notify_survivor(&mut self, at: usize) {
        let node = self.unnotified.swap_remove(at);
        let (dead, _) = self.prepared.plan.death.expect("somebody has died");
        self.net.notify_dead(node, NodeId(dead));
    }

    fn post(&mut self, (job, rank): (usize, usize)) -> Result<(), NicViolation> {
        let prepared = &self.prepared.jobs[job];
        let (node, port) = prepared.members[rank];
        let progress = &mut self.progress[job][rank];
        let call = progress.called;
        progress.called += 1;
        match self.net.post(node, port, prepared.calls[call].posts[rank].borrow()) {
            Some(Err(refusal)) => match S::failure(&refusal) {
                Some(failure) => self.end((job, rank), Err(failure)),
                None => Err(refused(refusal)),
            },
            Some(Ok(())) => Ok(()),
            None => unreachable!("the dead call nothing"),
        }
    }

    fn drain_completions(&mut self) -> Result<(), NicViolation> {
        for (node, port, JobCompletion { job, result }) in self.net.ended() {
            let members = &self.prepared.jobs[usize::from(job)].members;
            let at = members.iter().position(|member| *member == (node, port));
            self.end((usize::from(job), at.expect("a port of the job")), result)?;
        }
        Ok(())
    }

    /// A call has ended. Its bytes must be right, or its error true.
    fn end(&mut self, (job, rank): (usize, usize), result: Result<(), JobFailure>) -> Result<(), NicViolation> {
        let prepared = &self.prepared.jobs[job];
        let call = self.progress[job][rank].ended;
        self.progress[job][rank].ended += 1;
        if let Err(failure) = result {
            self.played.failed += 1;
            let dead = prepared.members.iter().find(|member| self.is_dead(**member));
            let is_justified = match failure {
                JobFailure::Dead { node } => dead.is_some_and(|member| member.0 == node),
                JobFailure::Counters { counters, tasks, .. } => counters < tasks,
            };
            let rank = Rank(rank as u32);
            return if is_justified { Ok(()) } else { Err(NicViolation::Untrue { job, rank, call, failure }) };
        }
        self.played.right += 1;
        let is_barrier = self.prepared.plan.jobs[job].calls[call].choice.collective() == Collective::Barrier;
        if is_barrier && self.progress[job].iter().any(|other| other.called <= call) {
            return Err(NicViolation::Barrier { job, rank: Rank(rank as u32), call });
        }
        let ((node, port), one) = (prepared.members[rank], &prepared.calls[call]);
        match one.wrong_byte(rank, self.net.host(node, port)) {
            Some((at, found, expected)) => {
                Err(NicViolation::Bytes { job, rank: Rank(rank as u32), call, at, found, expected })
            }
            None => Ok(()),
        }
    }

    /// Checks that all calls have ended, and that everything was given back.
    fn judge(mut self) -> Result<NicOutcome, NicViolation> {
        for (job, (prepared, progress)) in self.prepared.jobs.iter().zip(&self.progress).enumerate() {
            for (rank, (member, progress)) in prepared.members.iter().zip(progress).enumerate() {
                let (ended, calls) = (progress.ended, prepared.calls.len());
                if ended < calls && !self.is_dead(*member) {
                    return Err(NicViolation::Endless { job, rank: Rank(rank as u32), ended, calls });
                }
            }
        }
        for (NodeId(node), engine) in self.net.engines() {
            if !S::is_idle(engine) {
                return Err(NicViolation::Kept { node });
            }
        }
        self.played.packets = self.net.delivered();
        Ok(self.played)
    }
}
