//! Examines a group that is being made, or that has something in flight: is it too late, and has it failed elsewhere?

use std::time::Duration;

use super::{Group, GroupState};
use crate::endpoint::NodeState;
use crate::ids::{CallId, InstanceId, Instant, TAGGED};
use crate::instance::FirstCall;
use crate::wire::GroupMessage;

/// When a group in the making is first examined. Ranks that call together request the group within this time.
const FIRST_CHECK: Duration = Duration::from_millis(50);
/// Time between examinations of a group, per service process: an examination sends one message to each service process.
const CHECK_PER_PEER: Duration = Duration::from_millis(10);

/// When a group is examined, and what the last examination has found.
#[derive(Debug, Default)]
pub(super) struct GroupChecks {
    at: Option<Instant>,
    /// The oldest instance and call in flight at the last examination.
    oldest_instance: Option<InstanceId>,
    oldest_call: Option<CallId>,
}

impl GroupChecks {
    /// Whether the next examination is due after `now`.
    fn is_scheduled(&self, now: Instant) -> bool {
        self.at.is_some_and(|at| at > now)
    }

    /// Whether no examination has been scheduled yet.
    fn is_first(&self) -> bool {
        self.at.is_none()
    }

    fn schedule(&mut self, at: Instant) {
        self.at = Some(at);
    }

    /// Notes what is in flight for longest. Returns whether one of the two was so at the last examination, too.
    fn note_oldest(&mut self, instance: Option<InstanceId>, call: Option<CallId>) -> bool {
        let before =
            (std::mem::replace(&mut self.oldest_instance, instance), std::mem::replace(&mut self.oldest_call, call));
        (instance.is_some() && instance == before.0) || (call.is_some() && call == before.1)
    }
}

impl Group {
    /// When to examine the group, if the time is not set yet. A group is examined regularly while it is being made or
    /// has something in flight, and less often if it is larger.
    pub(in crate::endpoint) fn next_check(&mut self, node: &NodeState) -> Option<Instant> {
        let waits = match &self.state {
            GroupState::Creating { .. } => true,
            GroupState::Ready => self.in_flight() > 0,
            GroupState::Broken(_) => false,
        };
        if !waits || self.checks.is_scheduled(node.out.now) {
            return None;
        }
        let period = match self.state {
            GroupState::Creating { .. } if self.checks.is_first() => FIRST_CHECK,
            _ => node.config.heartbeat.max(CHECK_PER_PEER * self.members.sps.len() as u32),
        };
        let at = self.making_deadline(node).into_iter().fold(node.out.now + period, Instant::min);
        self.checks.schedule(at);
        Some(at)
    }

    /// If something takes long, polls the active members for failures. The poll also exposes dead links that only this
    /// group needs.
    pub(super) fn check(&mut self, node: &mut NodeState) {
        let waits_still = self.checks.note_oldest(self.instances.oldest(), self.tagged.oldest_call());
        match &self.state {
            GroupState::Creating { barrier, .. } => {
                if self.making_deadline(node).is_some_and(|until| until <= node.out.now) {
                    return self.give_up_making(node);
                }
                if let Some(awaited) = barrier.awaited() {
                    self.request_step(node, awaited);
                }
            }
            GroupState::Ready => {
                if !waits_still {
                    return;
                }
                // If any open instance fails at a member, the newest instance fails there, too.
                let newest = self.instances.newest().unwrap_or(TAGGED);
                let oldest = self.instances.iter().next().map(|(instance, i)| {
                    let FirstCall { rank, signature } = i.first_call();
                    (instance, signature, rank)
                });
                let fingerprint = self.members.fingerprint;
                self.send_to_others(node, GroupMessage::QueryFailures { fingerprint, newest, oldest });
            }
            GroupState::Broken(_) => {}
        }
    }
}
