//! Requests whose work grows with what they hand over: groups, recordings, and what has to wait for calls that were
//! posted before it.
//!
//! A turn of the conductor does so much of this work for all connections together ([`TURN`]). The rest waits for later
//! turns, connection by connection. A connection whose request waits is not read: its next requests wait in the socket.
//!
//! | a request is | on | goes to |
//! |---|---|---|
//! | new | a turn with enough left | answered |
//! | new | a turn that is used up | waiting, last in line |
//! | waiting | its turn | answered, or waiting last in line; first in line when it needs a whole turn |
//! | any | the end of its connection | gone |

use std::collections::VecDeque;
use std::sync::Arc;

use outboard_plan::Rank;
use outboard_proto::Refusal;
use outboard_proto::wire::RecordedMemory;
use outboard_shm::attach::{ChannelError, Foreign, OFFER_BYTES, Reply, Restaged};
use outboard_shm::control::RING_CAPACITY;
use outboard_shm::region::Sealed;
use outboard_shm::status::Status;

use crate::memory::Pieces;
use crate::ranks::attach::{Desk, Next, Refused, handed, no_group, recorded_bytes, refuse};
use crate::ranks::gathering::Gathering;
use crate::ranks::offers::{Offer, OfferError, group_spec};
use crate::ranks::rings::SUBMISSIONS;
use crate::ranks::{ConnectionId, Membership, Stage, failure};

/// What a turn does, in bytes that requests hand over: less than a millisecond. One recording may be more.
const TURN: usize = 256 << 10;
/// What a submission counts as: it takes about as long as an offer.
const SUBMISSION: usize = OFFER_BYTES;

/// A request that may take more than is left of a turn.
#[derive(Debug)]
pub(crate) enum Lengthy {
    /// A group, whose offers are being read.
    Group { offers: Sealed, gathering: Gathering, me: u32 },
    /// A recording of a group, by number, encoded.
    Record { group: u64, number: u32, recording: Sealed },
    /// A large one that has been read.
    Decoded { group: u64, number: u32, recorded: RecordedMemory },
    /// Something to be done behind the calls in the rank's ring, of which there are so many at most.
    Behind { calls: u32, request: Behind },
}

/// What comes behind calls.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Behind {
    FreeRecording { group: u64, number: u32 },
    Restage(Restaged),
}

/// How far a request has come.
enum Progress {
    Answered(Reply),
    /// The reply comes by itself.
    AnsweredLater,
    Waits(Lengthy),
}

/// Whose requests wait, and what is left of the turn.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    left: usize,
    line: VecDeque<ConnectionId>,
    /// A request that cannot be divided needs more than the turn has left.
    refused: bool,
}

impl Waiting {
    pub(crate) fn is_empty(&self) -> bool {
        self.line.is_empty()
    }

    /// Takes as much of `bytes` as is left, in pieces of `unit`. What is not there ends the turn.
    fn take(&mut self, bytes: usize, unit: usize) -> usize {
        let taken = bytes.min(self.left / unit * unit);
        self.left = if taken < bytes { 0 } else { self.left - taken };
        taken
    }

    /// Takes what cannot be divided: it may be more than a turn, if that turn has done nothing else.
    fn take_whole(&mut self, bytes: usize) -> bool {
        let fits = bytes <= self.left || self.left == TURN;
        self.left = if fits { self.left.saturating_sub(bytes) } else { 0 };
        self.refused |= !fits;
        fits
    }
}

impl Desk<'_> {
    /// A new turn: goes on with what waits.
    pub(crate) fn go_on(&mut self) {
        self.ranks.waiting.left = TURN;
        while self.ranks.waiting.left > 0
            && let Some(id) = self.ranks.waiting.line.pop_front()
        {
            let Some((token, lengthy)) = self.ranks.rank(id).and_then(|rank| rank.lengthy.take()) else { continue };
            self.ranks.waiting.refused = false;
            let done = self.work_on(id, token, lengthy);
            let waits = self.ranks.rank(id).is_some_and(|rank| rank.lengthy.is_some());
            match (waits, self.ranks.waiting.refused) {
                (true, true) => self.ranks.waiting.line.push_front(id),
                (true, false) => self.ranks.waiting.line.push_back(id),
                (false, _) => {}
            }
            if let Err(error) = done {
                self.drop_connection(id, &error);
            }
        }
    }

    /// A new request: does as much of it as is left of this turn.
    pub(crate) fn begin(
        &mut self,
        id: ConnectionId,
        token: u64,
        lengthy: Result<Lengthy, Refused>,
    ) -> Result<Next, ChannelError> {
        match lengthy {
            Ok(lengthy) => self.work_on(id, token, lengthy)?,
            Err(refused) => self.ranks.reply(id, token, &refused.told(id))?,
        }
        if self.ranks.rank(id).is_some_and(|rank| rank.lengthy.is_some()) {
            self.ranks.waiting.line.push_back(id);
        }
        Ok(Next::Stay)
    }

    fn work_on(&mut self, id: ConnectionId, token: u64, lengthy: Lengthy) -> Result<(), ChannelError> {
        let progress = match lengthy {
            Lengthy::Group { offers, gathering, me } => self.gather(id, token, offers, gathering, me),
            Lengthy::Record { group, number, recording } => self.decode(id, group, number, recording),
            Lengthy::Decoded { group, number, recorded } => {
                // It takes as long again as it took to read.
                self.ranks.waiting.left = 0;
                self.record(id, group, number, recorded)
            }
            Lengthy::Behind { calls, request } => self.come_behind(id, calls, request),
        };
        match progress {
            Ok(Progress::AnsweredLater) => Ok(()),
            Ok(Progress::Waits(lengthy)) => {
                if let Some(rank) = self.ranks.rank(id) {
                    rank.lengthy = Some((token, lengthy));
                }
                Ok(())
            }
            Ok(Progress::Answered(reply)) => self.ranks.reply(id, token, &reply),
            Err(refused) => self.ranks.reply(id, token, &refused.told(id)),
        }
    }

    /// What the rank asks a group by, if its own offer is there.
    pub(crate) fn group(
        &mut self,
        id: ConnectionId,
        descriptors: Vec<Foreign>,
        (ranks, me): (u32, u32),
    ) -> Result<Lengthy, Refused> {
        if ranks > u32::from(u16::MAX) {
            return refuse(Status::Argument, format!("{ranks} ranks exceed the {} of a group", u16::MAX));
        }
        let bytes = ranks as usize * OFFER_BYTES;
        let offers = handed(descriptors, bytes)?;
        let gathering = Gathering::new(bytes, ranks, me)?;
        let own = offers.read(me as usize * OFFER_BYTES, OFFER_BYTES).map_err(Refused::argument)?;
        let (sp, drawn) = (self.host.id, &self.attached(id)?.offers);
        gathering.check_own(&own, |offer| offer.sp == sp && drawn.contains(&offer.id))?;
        Ok(Lengthy::Group { offers, gathering, me })
    }

    fn gather(
        &mut self,
        id: ConnectionId,
        token: u64,
        offers: Sealed,
        mut gathering: Gathering,
        me: u32,
    ) -> Result<Progress, Refused> {
        let missing = gathering.missing() * OFFER_BYTES;
        let taken = self.ranks.waiting.take(missing, OFFER_BYTES);
        gathering.push(&offers.read(offers.bytes() - missing, taken).map_err(Refused::argument)?)?;
        if taken < missing {
            return Ok(Progress::Waits(Lengthy::Group { offers, gathering, me }));
        }
        self.create_group(id, token, gathering.offers(), me)?;
        Ok(Progress::AnsweredLater)
    }

    fn create_group(&mut self, id: ConnectionId, token: u64, offers: &[Offer], me: u32) -> Result<(), Refused> {
        let (spec, seats) = group_spec(offers)?;
        let rank = self.attached(id)?;
        // Each offer makes one group.
        rank.offers.retain(|drawn| *drawn != spec.members[me as usize].offer);
        if self.ranks.is_member(spec.handle, Rank(me)) {
            let text = format!("rank {me} of {} is served already; make new offers for a new group", spec.handle);
            return refuse(Status::Argument, text);
        }
        let most = self.host.settings.max_groups as usize;
        if self.ranks.memberships() >= most {
            self.engine.refuse_group(&spec, Rank(me), Refusal::Groups);
            let text = format!(
                "the ranks of this service process hold {most} memberships in groups; destroy some groups, or raise \
                 --max-groups of outboardd"
            );
            return refuse(Status::Resource, text);
        }
        let (stage, ranks) = (Stage::Making { token }, offers.len() as u32);
        let membership = Membership { handle: spec.handle, rank: Rank(me), ranks, deadline: None, stage };
        self.ranks.join(id, membership, seats);
        self.engine.create_group(&spec, Rank(me));
        Ok(())
    }

    fn decode(&mut self, id: ConnectionId, group: u64, number: u32, recording: Sealed) -> Result<Progress, Refused> {
        if !self.ranks.waiting.take_whole(recording.bytes()) {
            return Ok(Progress::Waits(Lengthy::Record { group, number, recording }));
        }
        let encoded = recording.read(0, recording.bytes()).map_err(Refused::argument)?;
        let recorded =
            RecordedMemory::decode(&encoded).map_err(|error| Refused::argument(format!("the recording is {error}")))?;
        if self.ranks.waiting.left == 0 {
            return Ok(Progress::Waits(Lengthy::Decoded { group, number, recorded }));
        }
        self.record(id, group, number, recorded)
    }

    /// A rank has recorded something: it is kept whole, so that a call needs no more than its number (GP-5).
    fn record(
        &mut self,
        id: ConnectionId,
        group: u64,
        number: u32,
        recorded: RecordedMemory,
    ) -> Result<Progress, Refused> {
        let (handle, rank, recordings) = self.ranks.made(id, group).ok_or_else(|| no_group(group))?;
        self.engine
            .record(handle, rank, number, recorded.recording)
            .map_err(|error| Refused { status: failure::recording(&error), text: error.to_string() })?;
        recordings.insert(number, Arc::new(Pieces::new(recorded.pieces)));
        Ok(Progress::Answered(Reply::Done))
    }

    /// The calls that the rank posted before count, and may still lie in its ring.
    fn come_behind(&mut self, id: ConnectionId, calls: u32, request: Behind) -> Result<Progress, Refused> {
        let Desk { ranks, engine, trace, .. } = self;
        let most = ranks.waiting.take(SUBMISSIONS.min(calls as usize) * SUBMISSION, SUBMISSION) / SUBMISSION;
        let taken = ranks.take_submissions_of(id, most, engine, trace.as_deref_mut());
        ranks.waiting.left += (most - taken) * SUBMISSION;
        let calls = calls - taken as u32;
        // A ring that has given less than was asked for is empty.
        if taken == most && calls > 0 {
            return Ok(Progress::Waits(Lengthy::Behind { calls, request }));
        }
        match request {
            Behind::FreeRecording { group, number } => self.free_recording(id, group, number),
            Behind::Restage(restaged) => self.restage(id, &restaged),
        }
        .map(Progress::Answered)
    }

    fn free_recording(&mut self, id: ConnectionId, group: u64, number: u32) -> Result<Reply, Refused> {
        let made = self.ranks.made(id, group).filter(|(.., recordings)| recordings.contains_key(&number));
        let Some((handle, rank, recordings)) = made else {
            return refuse(Status::Argument, format!("recording {number} of group {group} is not one of this rank's"));
        };
        if !self.engine.free_recording(handle, rank, number) {
            return refuse(Status::Busy, "calls of the recording are in flight; wait for them");
        }
        recordings.remove(&number);
        Ok(Reply::Done)
    }

    /// A rank whose memory is out of reach has copied the buffers of a call in flight (GP-9).
    fn restage(&mut self, id: ConnectionId, restaged: &Restaged) -> Result<Reply, Refused> {
        let &Restaged { group, instance, slot, send, receive } = restaged;
        let Some(call) = self.ranks.call_of(id, slot, group, instance) else {
            return refuse(Status::Argument, format!("call {instance} of group {group} has ended"));
        };
        if self.engine.restage(call, send, receive) {
            self.ranks.restaged += 1;
            Ok(Reply::Done)
        } else {
            refuse(Status::Argument, "the copied buffers exceed the address space")
        }
    }
}

impl Lengthy {
    /// What a recording is read from.
    pub(crate) fn recording(
        descriptors: Vec<Foreign>,
        (group, number): (u64, u32),
        bytes: u64,
    ) -> Result<Lengthy, Refused> {
        Ok(Lengthy::Record { group, number, recording: handed(descriptors, recorded_bytes(bytes)?)? })
    }

    /// Calls may have been posted before the request was sent.
    pub(crate) fn behind(request: Behind) -> Lengthy {
        Lengthy::Behind { calls: RING_CAPACITY, request }
    }
}

impl From<OfferError> for Refused {
    fn from(error: OfferError) -> Self {
        Refused { status: failure::offer(&error), text: error.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_turn_does_so_much_and_no_more() {
        let mut waiting = Waiting { left: TURN, ..Waiting::default() };
        assert_eq!(waiting.take(3 * OFFER_BYTES, OFFER_BYTES), 3 * OFFER_BYTES);
        assert!(!waiting.take_whole(TURN), "it has begun with something else");
        assert_eq!((waiting.left, waiting.take(OFFER_BYTES, OFFER_BYTES)), (0, 0), "and nothing overtakes");
        waiting.left = TURN;
        assert!(waiting.take_whole(4 * TURN), "what cannot be divided has a turn of its own");
        assert_eq!(waiting.left, 0);
        waiting.left = TURN;
        assert_eq!(waiting.take(usize::MAX / 2, OFFER_BYTES), TURN);
    }
}
