//! The judgement of a sequence that has been played.
//!
//! Pure except for the delivery of pending events.

use outboard_plan::Rank;
use outboard_proto::{CallId, CollectiveError, InstanceId, TaggedCall};

use super::reference::{Reference, SendRule};
use super::{EndedCall, PATIENCE, SequencePlay};
use crate::cluster::{ScriptPlayer, handle};
use crate::violation::Violation;

impl SequencePlay {
    /// Calls that must end well.
    pub(super) fn owed(&self) -> Vec<CallId> {
        let possible = Reference::of(&self.posted, SendRule::AtOnce);
        let spoiled = |group: usize| {
            self.groups[group].members.iter().any(|member| member.left)
                || possible.misfits.iter().any(|misfit| misfit.recorded && misfit.group == group)
        };
        let must = Reference::of(&self.posted, SendRule::Received);
        let sound = self.posted.iter().filter(|posted| !spoiled(posted.group));
        sound.map(|posted| posted.id).filter(|id| must.ended.contains_key(id)).collect()
    }

    /// Runs without faults until every owed call has ended.
    pub(super) fn finish_owed_calls(&mut self) -> Result<(), Violation> {
        self.cluster.end_faults();
        let owed = self.owed();
        let open = |play: &SequencePlay| owed.iter().filter(|id| play.open.contains_key(id)).count();
        if !self.run_until(PATIENCE, |play| open(play) == 0)? {
            return Err(Violation::NotLive { open: open(self), after: PATIENCE });
        }
        Ok(())
    }

    /// Checks that owed calls have ended well.
    pub(super) fn judge(&self) -> Result<(), Violation> {
        for id in self.owed() {
            if let Some(Err(error)) = self.ended.get(&id).map(|ended| &ended.result) {
                return Err(self.false_error(id, error));
            }
        }
        Ok(())
    }

    fn false_error(&self, id: CallId, error: &CollectiveError) -> Violation {
        let posted = self.posted.iter().find(|posted| posted.id == id);
        let (group, rank) = posted.map_or((0, Rank(0)), |posted| (posted.group, posted.rank));
        let reason = format!("{error} ({:?})", posted.map(|posted| posted.call));
        Violation::FalseError { group: handle(group), rank, instance: InstanceId(id.0), reason }
    }

    /// Checks that every call has ended, with the right bytes or with a true error.
    pub(super) fn judge_ends(&mut self) -> Result<(), Violation> {
        if !self.open.is_empty() {
            return Err(Violation::NotLive { open: self.open.len(), after: PATIENCE });
        }
        let possible = Reference::of(&self.posted, SendRule::AtOnce);
        for (id, ended) in &self.ended {
            let Err(error) = &ended.result else { continue };
            self.tally.failed += 1;
            if !self.is_justified(&possible, *id, ended, error) {
                return Err(self.false_error(*id, error));
            }
        }
        for posted in &self.posted {
            let ended = &self.ended[&posted.id];
            if ended.result.is_err() {
                continue;
            }
            self.tally.completed += 1;
            self.tally.recorded_completed += u64::from(matches!(posted.call, TaggedCall::Recorded { .. }));
            let right = possible.ended.get(&posted.id);
            if right != Some(&ended.bytes) {
                let what = match right {
                    None => "it could not end".into(),
                    Some(right) => {
                        let at = right.iter().zip(&ended.bytes).position(|(right, found)| right != found);
                        format!("from byte {at:?} of {}, {:?}", right.len(), posted.call)
                    }
                };
                let (group, rank, instance) = (handle(posted.group), posted.rank, InstanceId(posted.id.0));
                return Err(Violation::WrongBytes { group, rank, instance, what });
            }
        }
        let well = |id: &&CallId| self.ended[*id].result.is_ok();
        self.unsound.iter().find(well).map_or(Ok(()), |id| Err(Violation::CompletedTwice(*id)))
    }

    /// Whether a call may end with this error.
    fn is_justified(&self, possible: &Reference, id: CallId, ended: &EndedCall, error: &CollectiveError) -> bool {
        let Some(posted) = self.posted.iter().find(|posted| posted.id == id) else {
            // The call was rejected at once, because it is unsound or its group is broken.
            return true;
        };
        match error {
            CollectiveError::RankLost(rank) => ended.left.contains(rank),
            CollectiveError::Message { source_rank, destination, tag, sent, expected } => {
                possible.misfits.iter().any(|misfit| {
                    let named = (misfit.group, misfit.source, misfit.destination, misfit.tag);
                    let sizes = (misfit.sent, misfit.expected);
                    (misfit.recorded || misfit.call == id)
                        && named == (posted.group, *source_rank, *destination, *tag)
                        && sizes == (*sent, *expected)
                })
            }
            _ => false,
        }
    }
}
