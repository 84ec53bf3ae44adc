//! The truth of a run, and the judgement of the machines' reports against it.
//!
//! A call must end well with the right bytes, or with a true error: the rank did die, the service process did die, the
//! signatures do differ. Invariant: truth is recorded when it happens, before any machine can know it.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::{
    Absentee, CollectiveError, GroupError, GroupRefusal, InstanceId, Instant, Overdue, Signature, staging_size,
};

use crate::cluster::{group_number, handle, sp_id};
use crate::faults::{HostPause, LinkCut};
use crate::pattern::Pattern;
use crate::reductions::ReductionKind;
use crate::scenario::{CallPlan, GroupPlan, Scenario};
use crate::store::{CallOutput, ContributionId};
use crate::violation::Violation;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct CallName {
    pub(crate) group: usize,
    pub(crate) member: usize,
    pub(crate) instance: u64,
}

impl CallName {
    pub(crate) fn origin(&self) -> ContributionId {
        ContributionId { group: self.group as u32, instance: self.instance as u32, rank: self.member as u32 }
    }
}

/// Events so far that can excuse an error.
#[derive(Debug, Default)]
pub(crate) struct Truth {
    pub(crate) dead_hosts: BTreeSet<usize>,
    pub(crate) bad_memory: BTreeSet<usize>,
    /// (group, member) that died or left early.
    pub(crate) gone: BTreeSet<(usize, usize)>,
    /// When (group, member) requested the group.
    pub(crate) requested_at: BTreeMap<(usize, usize), Instant>,
    /// (group, member, instance) that ended well.
    done: BTreeSet<(usize, usize, u64)>,
    /// Fingerprints of the results of reductions, by (group, member, instance).
    pub(crate) bits: BTreeMap<(usize, usize, u64), u64>,
    /// (group, member, instance) that was called.
    called: BTreeSet<(usize, usize, u64)>,
    /// The first error by which each member was notified of the end of its group.
    pub(crate) reported_errors: BTreeMap<(usize, usize), CollectiveError>,
}

impl Truth {
    pub(crate) fn call(&mut self, name: CallName) {
        self.called.insert((name.group, name.member, name.instance));
    }

    pub(crate) fn judge(
        &mut self,
        scenario: &Scenario,
        name: CallName,
        result: &Result<(), CollectiveError>,
        output: CallOutput,
    ) -> Result<(), Violation> {
        let plan = &scenario.groups[name.group];
        let call = &plan.calls[name.instance as usize - 1];
        let (group, rank, instance) = (handle(name.group), Rank(name.member as u32), InstanceId(name.instance));
        match result {
            Ok(()) => {
                if call.is_disputed() && call.needs_all_of(name.member, plan.members.len()) {
                    return Err(Violation::MissedMismatch { group, rank, instance });
                }
                let called = |member| self.called.contains(&(name.group, member, name.instance));
                if call.is_barrier() && !(0..plan.members.len()).all(called) {
                    return Err(Violation::PassedBarrier { group, rank, instance });
                }
                let wrong = call.describe_wrong_bytes(name, plan.members.len(), &output);
                if let Some(what) = wrong.or_else(|| self.compare_bits(scenario, name, &output)) {
                    return Err(Violation::WrongBytes { group, rank, instance, what });
                }
                self.done.insert((name.group, name.member, name.instance));
                Ok(())
            }
            Err(error) if self.is_justified(scenario, name.group, Some(name.instance), error) => {
                if !call.pattern.is_tagged() {
                    self.reported_errors.entry((name.group, name.member)).or_insert_with(|| error.clone());
                }
                Ok(())
            }
            Err(error) => Err(Violation::FalseError { group, rank, instance, reason: error.to_string() }),
        }
    }

    /// Records the bits of a reduction's result. All ranks that receive the same result must have the same bits.
    fn compare_bits(&mut self, scenario: &Scenario, name: CallName, output: &CallOutput) -> Option<String> {
        let plan = &scenario.groups[name.group];
        let call = &plan.calls[name.instance as usize - 1];
        let expected = call.expected(name.member, plan.members.len())?;
        let found = output.bytes(expected.len())?;
        let mut hasher = DefaultHasher::new();
        found.hash(&mut hasher);
        let bits = hasher.finish();
        self.bits.insert((name.group, name.member, name.instance), bits);
        if let Some((ReductionKind::Allreduce, _)) = call.reduction() {
            let others = (0..plan.members.len())
                .filter_map(|member| self.bits.get(&(name.group, member, name.instance)).map(|bits| (member, *bits)));
            if let Some((other, _)) = others.into_iter().find(|(_, other)| *other != bits) {
                return Some(format!("other bits than at member {other}"));
            }
        }
        None
    }

    /// Judges the answer to a request for a group.
    pub(crate) fn judge_group(
        &mut self,
        (scenario, now): (&Scenario, Instant),
        number: usize,
        member: usize,
        result: &Result<(), GroupError>,
    ) -> Result<(), Violation> {
        let so = match result {
            Ok(()) if self.misconfigured(scenario, number) => {
                return Err(Violation::MissedConfiguration { group: handle(number) });
            }
            Ok(()) => {
                let last = self.requested_at.iter().filter(|((group, _), _)| *group == number).map(|(_, at)| *at).max();
                let after = now.since(last.unwrap_or_default());
                let healed = scenario.faults.healed().is_some_and(|healed| scenario.groups[number].create >= healed);
                if healed && after > scenario.prompt() {
                    return Err(Violation::LateGroup { group: handle(number), rank: Rank(member as u32), after });
                }
                true
            }
            // Only calls end with these errors. A rank that could call had the group, and then every member has the
            // group.
            Err(GroupError::Failed(
                CollectiveError::Mismatch { .. }
                | CollectiveError::Block { .. }
                | CollectiveError::Message { .. }
                | CollectiveError::Memory(_)
                | CollectiveError::Staging { .. }
                | CollectiveError::Engine(_)
                | CollectiveError::Deadline(_),
            )) => false,
            Err(GroupError::Failed(error)) => self.is_justified(scenario, number, None, error),
            Err(GroupError::Invalid(_)) => false,
        };
        if so {
            if let Err(GroupError::Failed(error)) = result {
                self.reported_errors.insert((number, member), error.clone());
            }
            return Ok(());
        }
        let reason = result.as_ref().err().map_or(String::new(), ToString::to_string);
        Err(Violation::FalseGroupError { group: handle(number), rank: Rank(member as u32), reason })
    }

    fn is_justified(&self, scenario: &Scenario, group: usize, instance: Option<u64>, error: &CollectiveError) -> bool {
        let plan = &scenario.groups[group];
        let member = |rank: &Rank| ((rank.0 as usize) < plan.members.len()).then_some(rank.0 as usize);
        match error {
            // A lost rank breaks every instance from the first instance that the rank has not completed.
            CollectiveError::RankLost(rank) => member(rank).is_some_and(|m| {
                let tagged = |i: u64| plan.calls[i as usize - 1].pattern.is_tagged();
                // Recordings and messages are called in any order.
                let completed = |i: u64| !tagged(i) && (1..=i).all(|i| self.done.contains(&(group, m, i)));
                // In a disputed call, one rank may have ended the call that it made, and left. The departure breaks the
                // group for earlier calls, too, and for members that have not yet been notified of the group.
                let disputed = |i: u64| plan.calls[i as usize - 1].is_disputed() && self.done.contains(&(group, m, i));
                let ended_another = (1..=plan.calls.len() as u64).any(disputed);
                ended_another || self.gone.contains(&(group, m)) && !instance.is_some_and(completed)
            }),
            CollectiveError::PeerLost { sp, rank } => {
                let lowest = plan.members.iter().position(|r| sp_id(scenario.host_of[*r]) == *sp);
                lowest == member(rank)
                    && lowest.map(|m| scenario.host_of[plan.members[m]]).is_some_and(|host| {
                        let cut = |cut: &LinkCut| {
                            // Groups requested after the cut are made.
                            let before = plan.create < cut.end() && cut.lasting >= scenario.config.heartbeat;
                            before && [cut.from, cut.to].contains(&host)
                        };
                        // A host that was stopped for long has received nothing from others, either, when it resumes.
                        let stopped = |stall: &HostPause| {
                            let long = stall.lasting >= scenario.config.dead_after / 2;
                            let among = plan.members.iter().any(|rank| scenario.host_of[*rank] == stall.host);
                            long && among && plan.create < stall.at + stall.lasting
                        };
                        let faults = &scenario.faults;
                        let silent = faults.cuts.iter().any(cut) || faults.stalls.iter().any(stopped);
                        self.dead_hosts.contains(&host) || silent
                    })
            }
            CollectiveError::Stalled { sp, rank, ms } => {
                let lowest = plan.members.iter().position(|r| sp_id(scenario.host_of[*r]) == *sp);
                let stalls = scenario.faults.stalls.iter().filter(|stall| sp_id(stall.host) == *sp);
                let (most, least) = (stalls.map(|stall| stall.lasting).sum::<Duration>(), scenario.config.dead_after);
                let lasted = Duration::from_millis(*ms);
                // Before the stop, the fabric may have lacked room for as long as a large frame takes to leave.
                let most = most + scenario.config.heartbeat;
                lowest == member(rank) && lasted <= most && lasted + Duration::from_millis(1) > least
            }
            CollectiveError::Mismatch { a_rank, a, b_rank, b } => (1..=plan.calls.len() as u64).any(|i| {
                a != b && self.called_with(plan, group, i, a_rank, a) && self.called_with(plan, group, i, b_rank, b)
            }),
            CollectiveError::Block { source_rank, sent, destination, expected } => {
                let (from, to) = (source_rank.0 as usize, destination.0 as usize);
                plan.calls.iter().zip(1u64..).any(|(call, i)| {
                    let both = [from, to].iter().all(|m| self.called.contains(&(group, *m, i)));
                    let names = (call.sent(from, to, from), call.sent(from, to, to));
                    // The algorithm that follows from one rank's call may send nothing to another rank, or expect
                    // nothing from the other rank.
                    let named = |n: u64, count: u64| n == count || n == 0 && names.0 != names.1;
                    both && sent != expected && named(*sent, names.0) && named(*expected, names.1)
                })
            }
            CollectiveError::Memory(rank) => member(rank).is_some_and(|m| self.bad_memory.contains(&plan.members[m])),
            CollectiveError::Configuration { a, b, a_digest, b_digest } => {
                let odd = scenario.faults.misconfigured.map(sp_id);
                let named = Some(*a) == odd || Some(*b) == odd;
                self.misconfigured(scenario, group) && named && a != b && a_digest != b_digest
            }
            CollectiveError::Deadline(missed) => {
                let call = &plan.calls[missed.instance.0 as usize - 1];
                let after = Duration::from_millis(missed.after_ms);
                let first = (0..plan.members.len()).map(|m| call.due(m)).min().unwrap_or_default();
                let late = |one: &Absentee| {
                    member(&one.rank).is_some_and(|m| call.due(m) > first + after) && last_call_is_true(plan, one)
                };
                call.deadline == Some(after) && !missed.missing.is_empty() && missed.missing.named.iter().all(late)
            }
            // A call within the quota also fits beside other calls of its group, because the call waits for the end of
            // the others.
            CollectiveError::Staging { bytes, .. } => {
                let size = staging_size(*bytes);
                size.is_none_or(|size| size > scenario.config.scratch_quota) || scenario.groups.len() > 1
            }
            // No scenario has engines beside service processes.
            CollectiveError::Engine(_) => false,
            CollectiveError::Message { source_rank, destination, tag, sent, expected } => {
                let (from, to) = (source_rank.0 as usize, destination.0 as usize);
                // A message that is too long fails only the call that receives the message.
                let call = instance.map(|i| &plan.calls[i as usize - 1]);
                sent > expected
                    && call.is_some_and(|call| {
                        let named = call.pattern == Pattern::Message { from, to, tag: *tag };
                        named && (call.bytes_of(from), call.bytes_of(to)) == (*sent, *expected)
                    })
            }
            CollectiveError::GroupNotRequested { rank, after_ms } => member(rank).is_some_and(|named| {
                let (after, host) = (Duration::from_millis(*after_ms), |m: usize| scenario.host_of[plan.members[m]]);
                let requested_at = |m| self.requested_at.get(&(group, m));
                let first = (0..plan.members.len()).filter_map(requested_at).min();
                let late = |m| requested_at(m).is_none_or(|at| first.is_some_and(|first| at.since(*first) >= after));
                scenario.config.group_timeout == Some(after)
                    && (0..plan.members.len()).any(|m| host(m) == host(named) && late(m))
            }),
            CollectiveError::Refused { rank, why } => {
                *why == GroupRefusal::Groups
                    && member(rank).is_some_and(|m| scenario.faults.refused == Some((group, m)))
            }
            CollectiveError::Protocol(_) | CollectiveError::HandleTaken(_) => false,
        }
    }

    /// Judges a report of ranks that have not called.
    pub(crate) fn judge_overdue(&self, scenario: &Scenario, overdue: &Overdue) -> Result<(), Violation> {
        let (group, instance) = (overdue.flight.group, overdue.flight.instance);
        let number = group_number(group).filter(|number| *number < scenario.groups.len());
        for one in &overdue.missing.named {
            let called = |number| self.called.contains(&(number, one.rank.0 as usize, instance.0));
            let so = |number: usize| !called(number) && last_call_is_true(&scenario.groups[number], one);
            if !number.is_some_and(so) {
                return Err(Violation::FalseAbsence { group, rank: one.rank, instance });
            }
        }
        Ok(())
    }

    /// If one cause alone can end a group, all members that are notified of an end receive the same error.
    pub(crate) fn check_one_verdict(&self, scenario: &Scenario) -> Result<(), Violation> {
        if !scenario.has_one_cause() {
            return Ok(());
        }
        for (group, plan) in scenario.groups.iter().enumerate().filter(|(_, plan)| !plan.leave_on_error) {
            let mut reported_errors =
                (0..plan.members.len()).filter_map(|member| self.reported_errors.get(&(group, member)));
            let Some(one) = reported_errors.next() else { continue };
            if let Some(other) = reported_errors.find(|other| !has_same_cause(plan, one, other)) {
                let (one, other) = (one.to_string(), other.to_string());
                return Err(Violation::Verdicts { group: handle(group), one, other });
            }
        }
        Ok(())
    }

    /// Whether the service processes of the group are configured differently.
    fn misconfigured(&self, scenario: &Scenario, group: usize) -> bool {
        let hosts: BTreeSet<usize> = scenario.groups[group].members.iter().map(|r| scenario.host_of[*r]).collect();
        hosts.len() > 1 && scenario.faults.misconfigured.is_some_and(|odd| hosts.contains(&odd))
    }

    /// Whether `rank` has called `instance` of the group as the signature says.
    fn called_with(&self, plan: &GroupPlan, group: usize, instance: u64, rank: &Rank, signature: &Signature) -> bool {
        let member = rank.0 as usize;
        let call = &plan.calls[instance as usize - 1];
        self.called.contains(&(group, member, instance)) && *signature == call.signature_of(member, plan.members.len())
    }
}

/// Whether two errors have the same cause. A rank that notices a disagreement names two ranks. A rank that first learns
/// that a disagreeing rank has left names the rank that left.
fn has_same_cause(plan: &GroupPlan, one: &CollectiveError, other: &CollectiveError) -> bool {
    let disputed = plan.calls.iter().any(CallPlan::is_disputed);
    let disagree = |error: &CollectiveError| match error {
        CollectiveError::Mismatch { .. } | CollectiveError::Block { .. } => true,
        CollectiveError::RankLost(_) => disputed,
        _ => false,
    };
    let configured = |error: &CollectiveError| matches!(error, CollectiveError::Configuration { .. });
    one == other || (disagree(one) && disagree(other)) || (configured(one) && configured(other))
}

/// Whether the report about the rank's last call is true.
fn last_call_is_true(plan: &GroupPlan, one: &Absentee) -> bool {
    let said = |(instance, signature): (InstanceId, Signature)| {
        plan.calls[instance.0 as usize - 1].signature_of(one.rank.0 as usize, plan.members.len()) == signature
    };
    one.last.is_none_or(said)
}
