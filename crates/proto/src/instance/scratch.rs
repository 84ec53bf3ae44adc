//! Scratch of the local ranks' programs: memory of the service process. A collective takes scratch once, before its
//! barrier is entered, so that every message has a place (MC-4), and frees the scratch at the end.
//!
//! | state | event | next |
//! |---|---|---|
//! | Unneeded | - | - |
//! | Wanted | its turn in the group, whose window is open, and the [`Quota`] has room | Taken |
//! | Wanted | its turn, all ranks have called, and other groups hold the missing memory | the group breaks |
//! | Wanted, Taken | the end of the collective | Unneeded |
//!
//! Invariants: on every host the instances of a group take scratch in their order, so two of them never wait for each
//! other. An instance that all local ranks have called waits neither for another group nor for memory of late ranks,
//! because both may be waiting for the instance.

use super::{Context, Instance, Local};
use crate::effects::{Quota, Staging};
use crate::error::CollectiveError;
use crate::group::members::Members;
use crate::ids::{InstanceId, Instant};
use crate::staging::{ALIGN, staging_size};

#[derive(Debug, Default)]
enum ScratchState {
    /// No program uses scratch, or it has been freed.
    #[default]
    Unneeded,
    Wanted {
        bytes: u64,
    },
    Taken(Staging),
}

#[derive(Debug, Default)]
pub(super) struct Scratch {
    state: ScratchState,
    /// When to try again to take scratch that other instances of the group get first.
    retry_at: Option<Instant>,
}

/// The error of a call for which there is no scratch.
fn no_scratch(locals: &[Local], bytes: u64) -> CollectiveError {
    CollectiveError::Staging { rank: locals[0].rank, bytes }
}

impl Scratch {
    /// The scratch that the programs of `locals` need. Fails when it exceeds the address space.
    pub(super) fn new(members: &mut Members, instance: InstanceId, locals: &[Local]) -> Result<Self, &'static str> {
        let need = |sum: u64, local: &Local| sum.checked_add(room(local)?);
        let bytes = locals.iter().try_fold(0, need).ok_or("scratch beyond the address space")?;
        if bytes == 0 {
            return Ok(Scratch::default());
        }
        members.waiting_for_scratch.insert(instance);
        Ok(Scratch { state: ScratchState::Wanted { bytes }, retry_at: None })
    }

    /// Bytes that are still to be taken.
    pub(super) fn wanted(&self) -> u64 {
        match self.state {
            ScratchState::Wanted { bytes } => bytes,
            ScratchState::Unneeded | ScratchState::Taken(_) => 0,
        }
    }

    pub(super) fn retry_at(&self) -> Option<Instant> {
        self.retry_at
    }

    pub(super) fn cancel_retry(&mut self) {
        self.retry_at = None;
    }

    /// Takes the scratch of `locals`, if it is the turn of `instance` and `quota` has room.
    fn take(&mut self, cx: &mut Context<'_>, instance: InstanceId, locals: &mut [Local], quota: Quota) -> bool {
        let members = &cx.members;
        let turn = members.waiting_for_scratch.first() == Some(&instance) && instance.0 <= members.window_end;
        let staging = turn.then(|| cx.out.stage(quota, cx.members.handle, self.wanted())).flatten();
        let Some(staging) = staging else { return false };
        cx.members.waiting_for_scratch.remove(&instance);
        cx.members.holding_scratch += u32::from(quota == Quota::Calls);
        let mut start = 0;
        for local in locals {
            local.scratch = Some((staging.id, start));
            start += room(local).expect("the sum fits");
        }
        self.state = ScratchState::Taken(staging);
        true
    }

    /// Frees the scratch: it is not used any more.
    pub(super) fn free(&mut self, cx: &mut Context<'_>, instance: InstanceId) {
        cx.members.waiting_for_scratch.remove(&instance);
        if let ScratchState::Taken(staging) = std::mem::take(&mut self.state) {
            cx.members.holding_scratch -= u32::from(staging.quota == Quota::Calls);
            cx.out.unstage(staging);
        }
    }
}

/// The scratch of a rank's program, rounded up to the start of the next rank's.
fn room(local: &Local) -> Option<u64> {
    local.run.program().scratch_bytes.checked_next_multiple_of(ALIGN)
}

impl Instance {
    /// Refuses scratch that the quota can never provide.
    pub(super) fn check_scratch(&self, cx: &Context<'_>) -> Result<(), CollectiveError> {
        let bytes = self.scratch.wanted();
        let fits = bytes == 0 || staging_size(bytes).is_some_and(|size| size <= cx.config.scratch_quota);
        if fits { Ok(()) } else { Err(no_scratch(&self.locals, bytes)) }
    }

    /// Takes the scratch of a collective that all local ranks have called. False, with a retry later, while other
    /// instances of the group come first or hold a part of the quota: these instances free the quota at their end.
    /// Fails if only other groups hold the quota.
    pub(super) fn allocate_own_scratch(&mut self, cx: &mut Context<'_>) -> Result<bool, CollectiveError> {
        if self.allocate_scratch(cx, Quota::Calls) {
            return Ok(true);
        }
        let Members { waiting_for_scratch, holding_scratch, .. } = &cx.members;
        let waits = *holding_scratch > 0 || waiting_for_scratch.first() != Some(&self.id);
        if !waits {
            return Err(no_scratch(&self.locals, self.scratch.wanted()));
        }
        self.scratch.retry_at = Some(cx.out.now + cx.config.stand_in_after * 4);
        Ok(false)
    }

    /// Takes the scratch of all local ranks, if it is the collective's turn and `quota` has room.
    pub(super) fn allocate_scratch(&mut self, cx: &mut Context<'_>, quota: Quota) -> bool {
        if self.scratch.wanted() == 0 {
            return true;
        }
        let is_taken = self.scratch.take(cx, self.id, &mut self.locals, quota);
        if is_taken {
            self.retry_blocked(cx);
        }
        is_taken
    }
}
