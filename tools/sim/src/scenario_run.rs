//! One run of a scenario: a [`Cluster`], and the ranks with their scripts.
//!
//! Invariants: a run is a function of scenario, seed and sabotage. Every rank's call is judged the moment it ends. The
//! loop is bounded in virtual time and in bytes on the wire. Never decides what goes wrong (the dice do) nor what is
//! right (the oracle does).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::link::WINDOW;
use outboard_proto::{CallId, Config, GroupHandle, GroupRefusal, GroupSpec, Instant, Overdue, SpId};

use crate::cluster::{Cluster, ClusterPlan, ClusterStep, group_number, group_spec, handle, host_of, sp_id};
use crate::coverage::{FaultKind, RankTransition};
use crate::faults::{HostDeath, HostPause};
use crate::host::{HostAction, Input};
use crate::oracle::{CallName, Truth};
use crate::report::RunOutcome;
use crate::sabotage::Sabotage;
use crate::scenario::Scenario;
use crate::violation::Violation;

/// An event that a script or a fault causes at an instant.
#[derive(Debug)]
enum ScriptEvent {
    /// A member of a group checks what its script demands.
    Script {
        group: usize,
        member: usize,
    },
    RankDies(usize),
    RankDiesEarly(usize),
    MemoryTurnsBad(usize),
    HostDies(HostDeath),
    HostStalls(HostPause),
}

/// The progress of one member of a group through its script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ScriptProgress {
    Before,
    Requested,
    /// Makes calls: `next` is the instance to call next, `open` counts the calls in flight.
    Calling {
        next: u64,
        open: usize,
        failed: bool,
    },
    /// Was refused the group, and has yet to leave the partly made group.
    Refused,
    Over,
}

#[derive(Debug)]
pub(crate) struct ScenarioRun<'a> {
    scenario: &'a Scenario,
    cluster: Cluster<ScriptEvent>,
    truth: Truth,
    specs: Vec<Rc<GroupSpec>>,
    progress: Vec<Vec<ScriptProgress>>,
    create_at: Vec<Vec<Instant>>,
    open: BTreeMap<CallId, CallName>,
    calls_made: u64,
    first_call: Option<Instant>,
    last_completion: Instant,
    ends: Vec<(CallName, Duration)>,
    late_events: u64,
    overdue: Vec<(usize, Duration, Overdue)>,
    errors: u64,
    dying: Vec<bool>,
    /// Hosts that are dead or about to die, each with the delay until the fabric reports the death.
    host_deaths: Vec<(usize, Option<Duration>)>,
}

/// Control messages that one block of one collective may have queued on one link.
const BACKLOG_PER_BLOCK: usize = 4;
/// Bytes on the wire beside the payload of a fragment: its headers, and the headers of its acknowledgement, if any.
const HEADERS_OF_A_FRAGMENT: u64 = 256;
/// Events between two checks of the bounds of one host.
const STEPS_PER_CHECK: u64 = 64;
/// Events between two counts of the bytes on the wire.
const STEPS_PER_COUNT: u64 = 4096;

impl<'a> ScenarioRun<'a> {
    pub(crate) fn new(scenario: &'a Scenario, seed: u64, sabotage: Option<Sabotage>, trace: bool) -> Self {
        scenario.check();
        let config = |host| {
            let odd = u32::from(scenario.faults.misconfigured == Some(host));
            Config { chains: scenario.config.chains + odd, ..scenario.config.clone() }
        };
        let plan = ClusterPlan {
            configs: (0..scenario.hosts()).map(config).collect(),
            missing: 0,
            network: &scenario.network,
            faults: &scenario.faults,
            store: scenario.store,
            sabotage,
            trace,
        };
        let mut cluster = Cluster::new(plan, seed);
        let forged = scenario.faults.forgery > 0.0;
        cluster.hosts.iter_mut().for_each(|host| host.expects_violations = forged);
        let specs = scenario.groups.iter().enumerate().map(|(number, plan)| {
            let key = [cluster.dice.draw(), cluster.dice.draw()];
            let hosts = plan.members.iter().map(|rank| scenario.host_of[*rank]);
            group_spec(number, key, hosts, (scenario.network.siblings, scenario.config.link_rate))
        });
        let specs: Vec<_> = specs.collect();
        cluster.dice.coverage.fault(FaultKind::Restarted, scenario.faults.restarted as u64);
        let odd = scenario.faults.misconfigured.is_some();
        cluster.dice.coverage.fault(FaultKind::Misconfigured, odd.into());
        specs.iter().for_each(|spec| cluster.offer(spec));
        let mut world = ScenarioRun {
            scenario,
            cluster,
            truth: Truth::default(),
            specs,
            progress: scenario.groups.iter().map(|g| vec![ScriptProgress::Before; g.members.len()]).collect(),
            create_at: Vec::new(),
            open: BTreeMap::new(),
            calls_made: 0,
            first_call: None,
            last_completion: Instant(0),
            ends: Vec::new(),
            late_events: 0,
            overdue: Vec::new(),
            errors: 0,
            dying: vec![false; scenario.host_of.len()],
            host_deaths: Vec::new(),
        };
        world.schedule_script();
        world
    }

    fn schedule_script(&mut self) {
        let scenario = self.scenario;
        let start = Instant(0);
        for (group, plan) in scenario.groups.iter().enumerate() {
            let times: Vec<Instant> = plan
                .members
                .iter()
                .map(|_| start + plan.create + self.cluster.dice.up_to(plan.create_spread))
                .collect();
            for (member, at) in times.iter().enumerate() {
                self.cluster.schedule(*at, ScriptEvent::Script { group, member });
            }
            self.create_at.push(times);
        }
        let faults = &scenario.faults;
        for death in &faults.dead_ranks {
            self.cluster.schedule(start + death.at, ScriptEvent::RankDies(death.rank));
        }
        for death in &faults.early_deaths {
            self.cluster.schedule(start + death.at, ScriptEvent::RankDiesEarly(death.rank));
        }
        for fault in &faults.bad_memory {
            self.cluster.schedule(start + fault.at, ScriptEvent::MemoryTurnsBad(fault.rank));
        }
        for death in &faults.dead_hosts {
            self.cluster.schedule(start + death.at, ScriptEvent::HostDies(*death));
        }
        for one in &faults.abandoned {
            self.cluster.deliver_at(start + one.at, one.host, Input::PeerLost(sp_id(one.peer)));
        }
        for stall in &faults.stalls {
            self.cluster.schedule(start + stall.at, ScriptEvent::HostStalls(*stall));
        }
    }

    /// Runs until everything has ended and is quiet.
    pub(crate) fn run(&mut self) -> Result<(), Violation> {
        let patience = self.scenario.patience();
        let deadline = Instant(0) + self.scenario.last_scripted() + patience;
        let bytes_bound = self.bytes_bound();
        let ends = self.scenario.faults.stalls.iter().map(|stall| stall.at + stall.lasting);
        let all_run = Instant(0) + ends.max().unwrap_or_default();
        let mut quiet_by = None;
        let mut steps = 0u64;
        while let Some(step) = self.cluster.step()? {
            let now = self.cluster.now();
            let may_end = matches!(step, ClusterStep::PlayerEvent(_));
            if let ClusterStep::PlayerEvent(event) = step {
                self.handle_script_event(now, event)?;
            }
            self.poll_actions(now)?;
            steps += 1;
            if quiet_by.is_none() && may_end && self.is_over() {
                quiet_by = Some(now.max(all_run) + self.scenario.config.dead_after * 3 + Duration::from_secs(5));
            }
            if quiet_by.is_some_and(|by| now > by) {
                break;
            }
            if quiet_by.is_none() && now > deadline {
                return Err(Violation::NotLive { open: self.unfinished(), after: patience });
            }
            if steps.is_multiple_of(STEPS_PER_CHECK) {
                self.check_backlog((steps / STEPS_PER_CHECK) as usize % self.cluster.hosts.len())?;
            }
            if steps.is_multiple_of(STEPS_PER_COUNT) {
                let sent = self.cluster.bytes().iter().map(|b| b.up + b.down).sum();
                if sent > bytes_bound {
                    return Err(Violation::Storm { sent, bound: bytes_bound });
                }
            }
        }
        if quiet_by.is_none() {
            let after = self.cluster.now().since(Instant(0));
            return Err(Violation::NotLive { open: self.unfinished(), after });
        }
        self.truth.check_one_verdict(self.scenario)?;
        self.check_quiet()
    }

    /// The queues of a machine are bounded. Each link may queue a window of bulk messages, and control messages. The
    /// number of control messages grows with the calls in flight, never with the number of attempts.
    fn check_backlog(&self, number: usize) -> Result<(), Violation> {
        let host = &self.cluster.hosts[number];
        let in_flight: usize = self.scenario.groups.iter().map(|g| (g.window + 1) * g.members.len()).sum();
        let (_, _, messages) = host.sp.load();
        let bound = host.connected.len().max(1) * (WINDOW + BACKLOG_PER_BLOCK * in_flight);
        if messages > bound {
            return Err(Violation::Backlog { sp: sp_id(number), messages, bound });
        }
        Ok(())
    }

    /// Bound of the bytes on the wire: far more than any sensible run sends, including headers of small fragments and
    /// their acknowledgements.
    fn bytes_bound(&self) -> u64 {
        let hosts = self.cluster.hosts.len() as u64;
        let fragment = u64::from(self.scenario.config.fragment_bytes);
        let received = self.scenario.received_bytes();
        (1 << 26) + hosts * hosts * (1 << 20) + 100 * (received + received * HEADERS_OF_A_FRAGMENT / fragment)
    }

    fn handle_script_event(&mut self, now: Instant, event: ScriptEvent) -> Result<(), Violation> {
        match event {
            ScriptEvent::Script { group, member } => self.advance_script(now, group, member)?,
            ScriptEvent::RankDies(rank) => self.rank_dies(now, rank)?,
            ScriptEvent::RankDiesEarly(rank) => {
                self.cluster.dice.coverage.fault(FaultKind::RankDiedEarly, 1);
                self.rank_ends(now, rank)?;
            }
            ScriptEvent::MemoryTurnsBad(rank) => {
                self.cluster.dice.coverage.fault(FaultKind::MemoryBad, 1);
                self.truth.bad_memory.insert(rank);
                for (id, name) in &self.open {
                    if self.scenario.groups[name.group].members[name.member] == rank {
                        self.cluster.hosts[self.scenario.host_of[rank]].memory.make_faulty(*id);
                    }
                }
            }
            ScriptEvent::HostDies(HostDeath { host, reported_after, .. }) => {
                let silent = reported_after.is_none();
                let kind = if silent { FaultKind::HostDiedSilently } else { FaultKind::HostDeathReported };
                self.cluster.dice.coverage.fault(kind, 1);
                self.host_deaths.push((host, reported_after));
                self.host_dies(now, host, reported_after);
            }
            ScriptEvent::HostStalls(HostPause { host, lasting, .. }) => {
                let stopped = lasting >= self.scenario.config.dead_after;
                let kind = if stopped { FaultKind::Stopped } else { FaultKind::Stalled };
                self.cluster.dice.coverage.fault(kind, 1);
                self.cluster.stall(host, lasting);
            }
        }
        Ok(())
    }

    /// Delivers an input to a service process and processes the resulting notifications.
    fn deliver(&mut self, now: Instant, host: usize, input: Input) -> Result<(), Violation> {
        self.cluster.deliver(host, input)?;
        self.poll_actions(now)
    }

    /// Processes the notifications that service processes send to ranks.
    fn poll_actions(&mut self, now: Instant) -> Result<(), Violation> {
        while let Some((host, action)) = self.cluster.poll() {
            self.handle_action(now, host, action)?;
        }
        Ok(())
    }

    fn handle_action(&mut self, now: Instant, host: usize, action: HostAction) -> Result<(), Violation> {
        match action {
            HostAction::Connect(peer) => {
                let dead = self.host_deaths.iter().find(|(h, _)| sp_id(*h) == peer);
                if let Some((_, Some(after))) = dead.copied()
                    && self.cluster.hosts[host_of(peer)].dead
                {
                    self.report_death(now, host, peer, after);
                }
            }
            HostAction::GroupReady { group, rank, result } => {
                let (number, member) = self.member_of(group, rank)?;
                let progress = &mut self.progress[number][member];
                if *progress != ScriptProgress::Requested {
                    return Err(Violation::UnaskedReady { group, rank });
                }
                let ready = ScriptProgress::Calling { next: 1, open: 0, failed: false };
                let transition = if result.is_ok() { RankTransition::HasGroup } else { RankTransition::GroupFails };
                self.cluster.dice.coverage.transition(transition);
                result.as_ref().err().into_iter().for_each(|error| self.cluster.dice.coverage.group_verdict(error));
                *progress = if result.is_ok() { ready } else { ScriptProgress::Refused };
                if result.is_ok() {
                    self.record(number, member);
                }
                self.truth.judge_group((self.scenario, now), number, member, &result)?;
                self.cluster.schedule(now, ScriptEvent::Script { group: number, member });
            }
            HostAction::Completed { call, result, output } => {
                let name = self.open.remove(&call).ok_or(Violation::CompletedTwice(call))?;
                if let ScriptProgress::Calling { open, failed, .. } = &mut self.progress[name.group][name.member] {
                    *open -= 1;
                    *failed |= result.is_err();
                }
                let coverage = &mut self.cluster.dice.coverage;
                coverage.transition(if result.is_ok() { RankTransition::EndsWell } else { RankTransition::EndsBadly });
                result.as_ref().err().into_iter().for_each(|error| coverage.verdict(error));
                self.errors += u64::from(result.is_err());
                self.last_completion = now;
                self.ends.push((name, now.since(Instant(0))));
                self.truth.judge(self.scenario, name, &result, output)?;
                self.cluster.schedule(now, ScriptEvent::Script { group: name.group, member: name.member });
            }
            HostAction::Late { group, rank } => {
                self.member_of(group, rank)?;
                self.late_events += 1;
            }
            HostAction::Overdue(overdue) => {
                self.truth.judge_overdue(self.scenario, &overdue)?;
                self.overdue.push((host, now.since(Instant(0)), *overdue));
            }
            HostAction::Frame(_)
            | HostAction::Batch(_)
            | HostAction::Letter(_)
            | HostAction::Join(_)
            | HostAction::Leave(_) => {}
        }
        Ok(())
    }

    fn member_of(&self, group: GroupHandle, rank: Rank) -> Result<(usize, usize), Violation> {
        let (number, member) = (group_number(group), rank.0 as usize);
        let known = |number: &usize| self.scenario.groups.get(*number).is_some_and(|g| member < g.members.len());
        Ok((number.filter(known).ok_or(Violation::UnaskedReady { group, rank })?, member))
    }
}

mod account;
mod script;
