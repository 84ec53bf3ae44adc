//! Examines collectives that take too long ([`crate::group::lateness`]): queries the other members, answers queries of
//! other members, and notifies the driver or ends the collective.

use std::collections::BTreeSet;

use outboard_plan::Rank;

use crate::effects::Effects;
use crate::error::{Absentee, Absentees, CollectiveError, DeadlineMissed};
use crate::group::lateness::{LatenessFindings, WatchAction};
use crate::ids::{InstanceId, Instant, SpId};
use crate::interface::{Event, Overdue};
use crate::wire::{InstanceMessage, Message};

use super::NodeState;
use super::groups::Group;

impl Group {
    /// The local ranks that have not called `instance`.
    fn absent(&self, instance: InstanceId) -> Absentees {
        let mut absent = Absentees::default();
        for (rank, last) in self.members.locals.iter().zip(self.ranks.last_calls()) {
            if last.map_or(InstanceId(0), |(called, _)| called) < instance {
                absent.add(Absentee { rank: *rank, last });
            }
        }
        absent
    }

    /// When [`Group::handle_watch_timeout`] is due.
    pub(super) fn watch_due(&self, instance: InstanceId) -> Option<Instant> {
        self.instance(instance).filter(|i| i.is_active())?;
        self.instances.watch(instance)?.poll_timeout()
    }

    pub(super) fn handle_inquiry(&self, out: &mut Effects, instance: InstanceId, from: SpId) {
        let (group, ranks) = (self.members.handle, self.absent(instance));
        out.messages.push_back((from, Message::instance(group, instance, InstanceMessage::Absent(ranks))));
    }

    pub(super) fn handle_absent(&mut self, out: &mut Effects, instance: InstanceId, from: SpId, ranks: &Absentees) {
        if let Some(watch) = self.instances.watch_mut(instance) {
            watch.handle_answer(out.now, from, ranks);
            out.mark_changed(self.members.handle, instance);
        }
    }

    /// Handles the watch timer of a collective.
    pub(super) fn handle_watch_timeout(&mut self, node: &mut NodeState, instance: InstanceId) {
        let now = node.out.now;
        // A query without receivers is answered at once, so two rounds are enough.
        for _ in 0..2 {
            let Some(i) = self.instance(instance).filter(|i| i.is_active()) else { return };
            let wanted = self.members.locals.iter().any(|rank| i.in_flight(*rank));
            match self.instances.watch_mut(instance).and_then(|watch| watch.handle_timeout(now, wanted)) {
                None => return,
                Some(WatchAction::Query) => {
                    let others: BTreeSet<SpId> = self.active_members().map(|at| self.members.sps[at]).collect();
                    let message = Message::instance(self.members.handle, instance, InstanceMessage::Inquire);
                    node.out.messages.extend(others.iter().map(|sp| (*sp, message.clone())));
                    let local = self.absent(instance);
                    if let Some(watch) = self.instances.watch_mut(instance) {
                        watch.start_query(now, others, local);
                    }
                }
                Some(WatchAction::Report(found)) => return self.report_overdue(node, instance, found),
            }
        }
    }

    fn report_overdue(&mut self, node: &mut NodeState, instance: InstanceId, found: LatenessFindings) {
        let Some(i) = self.instance(instance) else { return };
        let flight = i.in_flight_now(node.out.now, &self.members, &self.transfer);
        let LatenessFindings { missing, silent, deadline } = found;
        match deadline {
            Some(after) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                let (signature, awaited) = (flight.signature, flight.awaits.first().copied());
                let missed = DeadlineMissed { instance, signature, after_ms, missing, awaited };
                self.break_up(node, CollectiveError::Deadline(Box::new(missed)), true);
            }
            None => {
                let lowest = |sp: &SpId| self.members.index_of(*sp).map(|at| self.members.lowest_rank(at));
                let silent: Vec<Rank> = silent.iter().filter_map(lowest).collect();
                node.out.events.push_back(Event::Overdue(Box::new(Overdue { flight, missing, silent })));
            }
        }
    }
}
