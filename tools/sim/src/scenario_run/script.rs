//! The ranks of a run: the actions of their scripts, deaths of ranks and service processes, and the end of the run.

use super::*;
use crate::graph::RecordedGraph;

impl ScenarioRun<'_> {
    /// Does what a member's script demands now.
    pub(super) fn advance_script(&mut self, now: Instant, group: usize, member: usize) -> Result<(), Violation> {
        let plan = &self.scenario.groups[group];
        let rank = plan.members[member];
        let host = self.scenario.host_of[rank];
        if self.cluster.hosts[host].dead || self.truth.gone.contains(&(group, member)) {
            return Ok(());
        }
        match self.progress[group][member] {
            ScriptProgress::Before if now >= self.create_at[group][member] => {
                self.progress[group][member] = ScriptProgress::Requested;
                self.reach(RankTransition::RequestsGroup);
                let (spec, place) = (Rc::clone(&self.specs[group]), Rank(member as u32));
                if self.scenario.faults.refused == Some((group, member)) {
                    self.progress[group][member] = ScriptProgress::Over;
                    self.truth.gone.insert((group, member));
                    self.reach(RankTransition::IsRefusedGroup);
                    self.cluster.dice.coverage.fault(FaultKind::Refused, 1);
                    self.deliver(now, host, Input::Refuse { spec, rank: place, why: GroupRefusal::Groups })?;
                } else {
                    self.truth.requested_at.insert((group, member), now);
                    self.deliver(now, host, Input::CreateGroup { spec, rank: place })?;
                }
                if self.dying[rank] {
                    self.cluster.schedule(now, ScriptEvent::RankDies(rank));
                }
                Ok(())
            }
            ScriptProgress::Before | ScriptProgress::Requested | ScriptProgress::Over => Ok(()),
            ScriptProgress::Refused => {
                self.progress[group][member] = ScriptProgress::Over;
                self.deliver(now, host, Input::Leave { group: handle(group), rank: Rank(member as u32) })
            }
            ScriptProgress::Calling { next, open, failed } => {
                let ended = next > plan.calls.len() as u64 || (failed && plan.leave_on_error);
                if ended && open == 0 {
                    self.reach(if failed { RankTransition::LeavesAfterError } else { RankTransition::Leaves });
                    if next <= plan.calls.len() as u64 {
                        self.truth.gone.insert((group, member));
                    }
                    self.progress[group][member] = ScriptProgress::Over;
                    return self.deliver(now, host, Input::Leave { group: handle(group), rank: Rank(member as u32) });
                }
                if ended || open >= plan.window {
                    return Ok(());
                }
                let call = plan.call_at(member, next as usize - 1);
                if !plan.calls[call].pattern.is_called_by(member) {
                    self.progress[group][member] = ScriptProgress::Calling { next: next + 1, open, failed };
                    self.cluster.schedule(now, ScriptEvent::Script { group, member });
                    return Ok(());
                }
                let due = Instant(0) + plan.calls[call].due(member);
                if now < due {
                    self.cluster.schedule(due, ScriptEvent::Script { group, member });
                    return Ok(());
                }
                self.call(now, CallName { group, member, instance: call as u64 + 1 }, host)
            }
        }
    }

    /// A member whose group is made records the graphs that it will call.
    pub(super) fn record(&mut self, group: usize, member: usize) {
        let plan = &self.scenario.groups[group];
        let host = self.scenario.host_of[plan.members[member]];
        for (number, (seed, bytes)) in plan.recorded() {
            let recording = RecordedGraph::draw(seed, plan.members.len(), bytes).recordings.swap_remove(member);
            let recorded =
                self.cluster.hosts[host].sp.handle_record(handle(group), Rank(member as u32), number, recording);
            // A group that has broken meanwhile no longer knows the rank.
            drop(recorded);
        }
    }

    fn call(&mut self, now: Instant, name: CallName, host: usize) -> Result<(), Violation> {
        let CallName { group, member, instance } = name;
        let plan = &self.scenario.groups[group];
        let call = &plan.calls[instance as usize - 1];
        self.calls_made += 1;
        self.reach(RankTransition::Calls);
        self.cluster
            .dice
            .coverage
            .fault(FaultKind::Disputed, (call.is_disputed() && call.bytes_of(member) != call.bytes).into());
        let id = CallId(self.calls_made);
        let memory = &mut self.cluster.hosts[host].memory;
        let call = call.make(memory, id, name, plan.members.len());
        if self.truth.bad_memory.contains(&plan.members[member]) {
            memory.make_faulty(id);
        }
        self.open.insert(id, name);
        self.truth.call(name);
        self.first_call.get_or_insert(now);
        if let ScriptProgress::Calling { next, open, .. } = &mut self.progress[group][member] {
            *next += 1;
            *open += 1;
        }
        self.cluster.schedule(now, ScriptEvent::Script { group, member });
        self.deliver(now, host, Input::Call(Box::new(call)))
    }

    /// A rank's process ends: its service process sees the rank leave all groups that it has requested. A rank that has
    /// not requested all its groups dies after its last request.
    pub(super) fn rank_dies(&mut self, now: Instant, rank: usize) -> Result<(), Violation> {
        if !std::mem::replace(&mut self.dying[rank], true) {
            self.cluster.dice.coverage.fault(FaultKind::RankDied, 1);
        }
        if self.memberships(rank).any(|(g, m)| self.progress[g][m] == ScriptProgress::Before) {
            return Ok(());
        }
        self.rank_ends(now, rank)
    }

    /// The groups of a rank, and its number in each.
    fn memberships(&self, rank: usize) -> impl Iterator<Item = (usize, usize)> {
        let groups = self.scenario.groups.iter().enumerate();
        groups.filter_map(move |(g, plan)| plan.members.iter().position(|r| *r == rank).map(|m| (g, m)))
    }

    fn reach(&mut self, transition: RankTransition) {
        self.cluster.dice.coverage.transition(transition);
    }

    /// Ends the process of a rank: it leaves the groups that it has requested, and cannot request the others.
    pub(super) fn rank_ends(&mut self, now: Instant, rank: usize) -> Result<(), Violation> {
        let host = self.scenario.host_of[rank];
        for (group, member) in self.memberships(rank).collect::<Vec<_>>() {
            let before = self.progress[group][member];
            if before == ScriptProgress::Over || !self.truth.gone.insert((group, member)) {
                continue;
            }
            self.reach(match before {
                ScriptProgress::Before => RankTransition::DiesBeforeRequest,
                ScriptProgress::Requested | ScriptProgress::Refused => RankTransition::DiesWhileMaking,
                ScriptProgress::Calling { open: 0, .. } => RankTransition::DiesBetweenCalls,
                ScriptProgress::Calling { .. } => RankTransition::DiesInCall,
                ScriptProgress::Over => unreachable!("looked at above"),
            });
            let input = match before {
                ScriptProgress::Before => {
                    self.progress[group][member] = ScriptProgress::Over;
                    Input::Withdraw(self.specs[group].members[member].offer)
                }
                _ => Input::Leave { group: handle(group), rank: Rank(member as u32) },
            };
            self.deliver(now, host, input)?;
        }
        Ok(())
    }

    /// A service process dies, whatever its ranks are doing.
    pub(super) fn host_dies(&mut self, now: Instant, host: usize, reported_after: Option<Duration>) {
        self.cluster.kill(host);
        self.truth.dead_hosts.insert(host);
        let Some(after) = reported_after else { return };
        for other in 0..self.cluster.hosts.len() {
            if other != host && self.cluster.hosts[other].connected.contains(&sp_id(host)) {
                self.report_death(now, other, sp_id(host), after);
            }
        }
    }

    /// The fabric of `host` notices that `peer` is dead, within `after`.
    pub(super) fn report_death(&mut self, now: Instant, host: usize, peer: SpId, after: Duration) {
        let at = now + self.cluster.dice.up_to(after);
        self.cluster.deliver_at(at, host, Input::PeerLost(peer));
    }

    /// Whether a member will do nothing more, and no end of a call is owed to the member.
    fn member_is_over(&self, group: usize, member: usize) -> bool {
        let host = self.scenario.host_of[self.scenario.groups[group].members[member]];
        let gone = self.progress[group][member] == ScriptProgress::Over || self.truth.gone.contains(&(group, member));
        self.cluster.hosts[host].dead || gone
    }

    /// Open calls whose ends are still owed.
    fn owed(&self) -> usize {
        let lives = |n: &&CallName| {
            !self.cluster.hosts[self.scenario.host_of[self.scenario.groups[n.group].members[n.member]]].dead
        };
        self.open.values().filter(lives).count()
    }

    pub(super) fn is_over(&self) -> bool {
        self.unfinished() == 0
    }

    /// Open calls, and members that have not finished.
    pub(super) fn unfinished(&self) -> usize {
        let members =
            self.progress.iter().enumerate().map(|(group, members)| {
                (0..members.len()).filter(|member| !self.member_is_over(group, *member)).count()
            });
        self.owed() + members.sum::<usize>()
    }

    /// Checks that no living host has anything left of a group, and that its counters match the observed events.
    pub(super) fn check_quiet(&self) -> Result<(), Violation> {
        for (number, host) in self.cluster.hosts.iter().enumerate().filter(|(_, h)| !h.dead) {
            let sp = sp_id(number);
            let due = || host.sp.poll_timeout().or(host.sp.next_transmit());
            let timer = || due().map(|due| format!("a timer due at {} ns", due.0));
            let Some(what) = host.left_over(true).or_else(timer) else { continue };
            return Err(Violation::LeftOver { sp, what });
        }
        for (number, host) in self.cluster.hosts.iter().enumerate().filter(|(_, h)| !h.dead) {
            let c = host.sp.counters();
            let refused = c.datagrams_refused == c.violations && c.violations <= self.cluster.forged[number];
            if (c.completed, c.failed) != (host.completed, host.failed) || !refused || c.datagrams_early != 0 {
                let what = format!("{c:?}, but {} calls ended well and {} did not", host.completed, host.failed);
                return Err(Violation::WrongCounters { sp: sp_id(number), what });
            }
        }
        Ok(())
    }

    /// The numbers of a run that ended as it should.
    pub(crate) fn outcome(&self) -> RunOutcome {
        let (deliveries, dropped) = self.cluster.dice.counted();
        RunOutcome {
            ends: self.ends.iter().map(|(n, at)| ((n.group, n.member, n.instance), *at)).collect(),
            bits: self.truth.bits.clone(),
            reported_errors: self.truth.reported_errors.clone(),
            in_collectives: self.last_completion.since(self.first_call.unwrap_or_default()),
            links: self.cluster.bytes(),
            counters: self.cluster.hosts.iter().map(|h| h.sp.counters()).collect(),
            forged: self.cluster.forged.clone(),
            deliveries,
            dropped,
            calls: self.calls_made,
            errors: self.errors,
            late: self.late_events,
            overdue: self.overdue.clone(),
            lists: self.cluster.hosts.iter().map(|host| host.engine.taken).sum(),
            coverage: self.cluster.hosts.iter().fold(self.cluster.dice.coverage.clone(), |mut sum, host| {
                sum.add(&host.coverage);
                sum
            }),
        }
    }
}
