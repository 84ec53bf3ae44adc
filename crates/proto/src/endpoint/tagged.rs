//! Tagged messages of groups ([`crate::instance::tagged`]): calls and messages find those of their group, which take their turns
//! with the links while a call is in flight. What a recorded group cannot survive breaks its group. Never moves payload.

use std::sync::Arc;

use outboard_plan::Rank;

use super::Endpoint;
use super::groups::Group;
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, Instant};
use crate::instance::Context;
use crate::instance::recording::{RecordError, Recording};
use crate::instance::tagged::{TAGGED, TaggedCalls};
use crate::interface::{Call, InFlight};

impl Group {
    pub(super) fn tagged_in_flight(&self, now: Instant) -> Option<InFlight> {
        self.tagged.in_flight_now(now, &self.members, &self.transfer)
    }
}

impl Endpoint {
    /// Lets the tagged calls of a group handle something.
    pub(super) fn with_tagged(&mut self, handle: GroupHandle, f: impl FnOnce(&mut TaggedCalls, &mut Context<'_>)) {
        let Some(g) = self.groups.get_mut(&handle) else { return };
        let cx = &mut Context {
            config: &self.config,
            members: &mut g.members,
            out: &mut self.out,
            transfer: &mut g.transfer,
        };
        f(&mut g.tagged, cx);
        g.tagged.advance(cx);
        self.run_steps(handle);
    }

    /// Messages take turns as long as a call is in flight.
    pub(super) fn mind_turns(&mut self, handle: GroupHandle) {
        let Some(g) = self.groups.get_mut(&handle) else { return };
        let calls = g.tagged.in_flight();
        let before = std::mem::replace(&mut g.messages, calls);
        self.messages = self.messages - before + calls;
        self.out.touch(handle, TAGGED);
        match (before > 0, calls > 0) {
            (false, true) => {
                self.tagged_groups += 1;
                self.begin(handle, TAGGED);
            }
            (true, false) => {
                self.tagged_groups -= 1;
                self.turns.remove(self.out.now, handle, TAGGED);
            }
            (false, false) | (true, true) => {}
        }
    }

    pub(super) fn record(
        &mut self,
        handle: GroupHandle,
        rank: Rank,
        number: u32,
        recording: Arc<Recording>,
    ) -> Result<(), RecordError> {
        let g = self.groups.get_mut(&handle).ok_or(RecordError::Group)?;
        if !g.is_member(rank) {
            return Err(RecordError::Group);
        }
        g.tagged.record((rank, g.members.ranks()), number, recording)
    }

    pub(super) fn free_recording(&mut self, handle: GroupHandle, rank: Rank, number: u32) -> bool {
        self.groups.get_mut(&handle).is_none_or(|g| g.tagged.free(rank, number))
    }

    pub(super) fn try_tagged_call(&mut self, call: &Call) -> Result<(), CollectiveError> {
        let protocol = CollectiveError::Protocol(self.id);
        let g = self.groups.get_mut(&call.group).ok_or(protocol.clone())?;
        if let Some(error) = g.broken() {
            return Err(error.clone());
        }
        let sound = call.instance == TAGGED && !call.in_place && call.blocks.is_none();
        if !sound || !g.is_ready() || !g.is_member(call.rank) || !g.tagged.accepts(call, &g.members) {
            return Err(protocol);
        }
        let (owned, ranks) = (call.clone(), g.members.ranks());
        self.with_tagged(call.group, |tagged, cx| tagged.handle_call(cx, owned));
        self.note_load(call, ranks);
        Ok(())
    }
}
