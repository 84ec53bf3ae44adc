//! Looks into collectives that take too long ([`crate::group::lateness`]): asks the others, answers them, tells the driver or ends
//! the collective.

use std::collections::BTreeSet;

use outboard_plan::Rank;

use crate::error::CollectiveError;
use crate::group::lateness::{Absentee, Absentees, DeadlineMissed, Found, Overdue, Turn};
use crate::ids::{GroupHandle, InstanceId, Instant, SpId};
use crate::interface::{Call, Event};
use crate::outbox::Outbox;
use crate::wire::{InstanceMessage, Message};

use super::Endpoint;
use super::groups::Group;

impl Group {
    /// The local ranks that have not called `instance`.
    fn absent(&self, instance: InstanceId) -> Absentees {
        let mut absent = Absentees::default();
        for (rank, (calls, last)) in self.members.locals.iter().zip(&self.calls) {
            if *calls < instance.0 {
                absent.add(Absentee { rank: *rank, last: last.map(|signature| (InstanceId(*calls), signature)) });
            }
        }
        absent
    }

    /// When [`Endpoint::watch_over`] is due.
    pub(super) fn watch_due(&self, instance: InstanceId) -> Option<Instant> {
        self.instance(instance).filter(|i| i.alive())?;
        self.watches.get(&instance)?.poll_timeout()
    }

    /// Somebody asks which ranks here have not called.
    pub(super) fn handle_inquiry(&self, out: &mut Outbox, instance: InstanceId, from: SpId) -> bool {
        let (group, ranks) = (self.members.handle, self.absent(instance));
        out.messages.push_back((from, Message::instance(group, instance, InstanceMessage::Absent(ranks))));
        true
    }

    /// The answer. False when it names ranks of others.
    pub(super) fn handle_absent(
        &mut self,
        out: &mut Outbox,
        instance: InstanceId,
        from: SpId,
        ranks: &Absentees,
    ) -> bool {
        let members = &self.members;
        if ranks.named.iter().any(|one| !members.has_rank(one.rank) || members.sp_of(one.rank) != from) {
            return false;
        }
        if let Some(watch) = self.watches.get_mut(&instance) {
            watch.answer(out.now, from, ranks);
            out.touch(members.handle, instance);
        }
        true
    }
}

impl Endpoint {
    /// A rank has called, and may want an end in time.
    pub(super) fn set_deadline(&mut self, call: &Call) {
        let watch = self.groups.get_mut(&call.group).and_then(|g| g.watches.get_mut(&call.instance));
        if let (Some(watch), Some(after)) = (watch, call.deadline) {
            watch.set_deadline(self.out.now, after);
        }
    }

    /// Time has passed for a collective.
    pub(super) fn watch_over(&mut self, group: GroupHandle, instance: InstanceId) {
        let now = self.out.now;
        // Asked with nobody to answer, it is told at once: twice is enough.
        for _ in 0..2 {
            let Some(g) = self.groups.get_mut(&group) else { return };
            let Some(i) = g.instance(instance).filter(|i| i.alive()) else { return };
            let wanted = g.members.locals.iter().any(|rank| i.in_flight(*rank));
            match g.watches.get_mut(&instance).and_then(|watch| watch.handle_timeout(now, wanted)) {
                None => return,
                Some(Turn::Ask) => {
                    let others: BTreeSet<SpId> = g.members.others().collect();
                    let message = Message::instance(group, instance, InstanceMessage::Inquire);
                    self.out.messages.extend(others.iter().map(|sp| (*sp, message.clone())));
                    let local = g.absent(instance);
                    g.watches.get_mut(&instance).into_iter().for_each(|w| w.ask(now, others.clone(), local.clone()));
                }
                Some(Turn::Tell(found)) => return self.tell_overdue(group, instance, found),
            }
        }
    }

    fn tell_overdue(&mut self, group: GroupHandle, instance: InstanceId, found: Found) {
        let Some(g) = self.groups.get(&group) else { return };
        let Some(i) = g.instance(instance) else { return };
        let flight = i.in_flight_now(self.out.now, &g.members, &g.transfer);
        let Found { missing, silent, deadline } = found;
        match deadline {
            Some(after) => {
                let after_ms = u64::try_from(after.as_millis()).unwrap_or(u64::MAX);
                let (signature, awaited) = (flight.signature, flight.awaits.first().copied());
                let missed = DeadlineMissed { instance, signature, after_ms, missing, awaited };
                self.break_group(group, CollectiveError::Deadline(Box::new(missed)), true);
            }
            None => {
                let lowest = |sp: &SpId| g.members.index_of(*sp).map(|at| g.members.lowest_rank(at));
                let silent: Vec<Rank> = silent.iter().filter_map(lowest).collect();
                self.out.events.push_back(Event::Overdue(Box::new(Overdue { flight, missing, silent })));
            }
        }
    }
}
