//! Routes the tagged messages of groups ([`crate::instance::tagged`]). Calls and messages reach the state of their
//! group. While a call is in flight, the group takes turns on the links with other groups. A fatal error of a recording
//! breaks its group. Never moves payload.

use std::sync::Arc;

use outboard_plan::Rank;

use super::NodeState;
use super::groups::Group;
use super::turns::CallLoad;
use crate::effects::Effects;
use crate::error::CollectiveError;
use crate::ids::{InstanceId, Instant, TAGGED};
use crate::instance::tagged::TaggedCalls;
use crate::instance::{Context, Instance};
use crate::interface::{InFlightInstance, RankCall};
use crate::recording::{RecordError, Recording};

impl Group {
    pub(super) fn tagged_in_flight(&self, now: Instant) -> Option<InFlightInstance> {
        self.tagged.in_flight_now(now, &self.members, &self.transfer)
    }

    /// Runs `f` on the tagged calls, then advances them.
    pub(super) fn with_tagged(&mut self, node: &mut NodeState, f: impl FnOnce(&mut TaggedCalls, &mut Context<'_>)) {
        let (mut cx, _, tagged) = self.all(&node.config, &mut node.out);
        f(tagged, &mut cx);
        tagged.advance(&mut cx);
        self.run_steps(node);
    }

    /// Continues a collective, or recordings, whose allowance was used up.
    pub(super) fn resume(&mut self, node: &mut NodeState, instance: InstanceId) {
        match instance {
            TAGGED => self.with_tagged(node, |tagged, _| tagged.resume()),
            instance => _ = self.with_instance(node, instance, Instance::resume),
        }
    }

    /// Gives the group's messages turns while a tagged call is in flight.
    pub(super) fn update_turns(&mut self, node: &mut NodeState) {
        let (group, calls) = (self.members.handle, self.tagged.in_flight());
        let before = std::mem::replace(&mut self.messages, calls);
        node.messages = node.messages - before + calls;
        node.out.mark_changed(group, TAGGED);
        match (before > 0, calls > 0) {
            (false, true) => {
                node.tagged_groups += 1;
                node.begin(group, TAGGED);
            }
            (true, false) => {
                node.tagged_groups -= 1;
                node.turns.remove(node.out.now, group, TAGGED);
            }
            (false, false) | (true, true) => {}
        }
    }

    pub(super) fn record(
        &mut self,
        out: &mut Effects,
        rank: Rank,
        number: u32,
        recording: Arc<Recording>,
    ) -> Result<(), RecordError> {
        if !self.is_member(rank) {
            return Err(RecordError::Group);
        }
        self.tagged.record(out, rank, &self.members, number, recording)
    }

    pub(super) fn try_tagged_call(&mut self, node: &mut NodeState, call: RankCall) -> Result<(), CollectiveError> {
        if let Some(error) = self.broken() {
            return Err(error.clone());
        }
        let sound = call.instance == TAGGED && !call.in_place && call.blocks.is_none();
        if !sound || !self.is_ready() || !self.is_member(call.rank) || !self.tagged.accepts(&call, &self.members) {
            return Err(CollectiveError::Protocol(node.id));
        }
        let load = CallLoad::of(&call, self.members.ranks());
        self.with_tagged(node, |tagged, cx| tagged.handle_call(cx, call));
        node.note_load(self.members.handle, TAGGED, load);
        Ok(())
    }
}
