//! Messages of a plan on their way out, cut into fragments that share a link with everything else.
//!
//! A message is named (source, destination, index); its fragments leave in order, and links keep that order, as far as the
//! receiver has asked for them where it asks. Invariant: a message leaves once. What memory a fragment lies in is its
//! collective's affair.

use std::collections::VecDeque;

use outboard_plan::{OpId, Rank, Span};

use crate::group::Members;
use crate::ids::{InstanceId, SpId};
use crate::interface::{MemRef, Payload};
use crate::link::{Tag, Tagged};
use crate::wire::Message;

/// A message on its way out.
#[derive(Debug)]
pub(crate) struct Sending {
    /// Position of the source among the local ranks.
    pub(crate) local: usize,
    /// The step of its program.
    pub(crate) op: OpId,
    pub(crate) to: Rank,
    pub(crate) index: u32,
    pub(crate) span: Span,
    offset: u64,
    /// So much of it may leave.
    asked: u64,
}

/// The next piece of a message.
#[derive(Debug)]
pub(crate) struct Fragment {
    pub(crate) local: usize,
    pub(crate) op: OpId,
    /// The piece in the memory of the source.
    pub(crate) piece: Span,
    pub(crate) last: bool,
    to: Rank,
    index: u32,
    total: u64,
    offset: u64,
}

/// Something with payload, for a link.
pub(crate) struct Bulk {
    pub(crate) message: Message,
    pub(crate) payload: Payload,
    pub(crate) tag: Option<Tag>,
}

/// Messages on their way out, in the order in which they may leave.
#[derive(Debug, Default)]
pub(crate) struct Sends {
    queue: VecDeque<Sending>,
    /// Of how many there is something to send.
    leaving: usize,
}

impl Sends {
    pub(crate) fn push(&mut self, local: usize, op: OpId, (to, index, span): (Rank, u32, Span)) {
        self.queue.push_back(Sending { local, op, to, index, span, offset: 0, asked: span.len });
        self.leaving += 1;
    }

    /// The same of a message of which the first `up_to` bytes are asked for. False, and none may leave, when it has not as many.
    pub(crate) fn push_asked(&mut self, (local, op): (usize, OpId), message: (Rank, u32, Span), up_to: u64) -> bool {
        let (to, index, span) = message;
        let fits = up_to > 0 && up_to <= span.len;
        let asked = if fits { up_to } else { 0 };
        self.queue.push_back(Sending { local, op, to, index, span, offset: 0, asked });
        self.leaving += usize::from(fits);
        fits
    }

    /// Lets what the rank at `local` sends to `to` leave up to a byte beyond the last. False when it cannot.
    pub(crate) fn ask(&mut self, local: usize, to: Rank, up_to: u64) -> bool {
        let known = self.queue.iter_mut().find(|s| s.local == local && s.to == to);
        let Some(sending) = known.filter(|s| up_to > s.asked && up_to <= s.span.len) else { return false };
        self.leaving += usize::from(!sending.may_leave());
        sending.asked = up_to;
        true
    }

    pub(crate) fn clear(&mut self) {
        self.queue.clear();
        self.leaving = 0;
    }

    /// Whether there is something to send.
    pub(crate) fn may_leave(&self) -> bool {
        self.leaving > 0
    }

    /// To whom there is something to send, each named once.
    pub(crate) fn targets(&self, members: &Members) -> Vec<SpId> {
        let mut targets = Vec::new();
        for to in self.queue.iter().filter(|s| s.may_leave()).map(|s| members.sp_of(s.to)) {
            if !targets.contains(&to) {
                targets.push(to);
            }
        }
        targets
    }

    /// The next fragment for `to`, of `most` bytes at most.
    pub(crate) fn next(&mut self, members: &Members, to: SpId, most: u64) -> Option<Fragment> {
        let at = self.queue.iter().position(|s| s.may_leave() && members.sp_of(s.to) == to)?;
        let s = &mut self.queue[at];
        let offset = s.offset;
        let len = (s.asked - offset).min(most);
        s.offset += len;
        let piece = Span { offset: s.span.offset + offset, len, ..s.span };
        let last = s.offset == s.span.len;
        let fragment =
            Fragment { local: s.local, op: s.op, piece, last, to: s.to, index: s.index, total: s.span.len, offset };
        self.leaving -= usize::from(last || s.offset == s.asked);
        if last {
            self.queue.remove(at);
        }
        Some(fragment)
    }
}

impl Sending {
    /// There is something of it to send, if only that it has no bytes.
    fn may_leave(&self) -> bool {
        self.offset < self.asked || self.span.is_empty()
    }
}

impl Fragment {
    /// The fragment as it goes to the link. `source` is the rank at `local`, `payload` where the piece lies; the source is
    /// told when the last fragment has been acknowledged.
    pub(crate) fn bulk(&self, members: &Members, instance: InstanceId, source: Rank, payload: Option<MemRef>) -> Bulk {
        let &Fragment { local, op, to: destination, index, total, offset, .. } = self;
        let group = members.handle;
        let message = Message::Data { group, instance, source, destination, index, total, offset };
        let tag = (self.last && payload.is_some()).then_some(Tag {
            group,
            instance,
            what: Tagged::Send { local: local as u32, op },
        });
        Bulk { message, payload: payload.filter(|piece| piece.len > 0).map_or(Payload::Empty, Payload::Piece), tag }
    }
}
