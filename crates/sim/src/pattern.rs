//! Which bytes of whom go where, for each kind of collective that a script may call.
//!
//! What [`CallPlan::parts`] says is what the oracles hold the machines to. Pure.

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Rank, Reduction, Span};
use outboard_proto::{CallKind, Signature, TaggedCall, sizes_digest};

use crate::combined::Combined;
use crate::graph::Graph;
use crate::scenario::CallPlan;

/// A kind of collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// Every member's bytes to all.
    Allgather,
    /// One member's bytes to all.
    Broadcast {
        /// Whose.
        root: usize,
    },
    /// Every member's bytes to all, of 0 to `bytes` each, which lie with gaps where they are received, drawn by this seed.
    Allgatherv {
        /// The seed.
        seed: u64,
    },
    /// A block of every member for every member.
    Alltoall,
    /// The same with counts of 0 to `bytes`, and displacements with gaps, drawn by this seed.
    Alltoallv {
        /// The seed.
        seed: u64,
    },
    /// A block of every member for one.
    Gather {
        /// Which.
        root: usize,
    },
    /// The same with counts as of an alltoallv.
    Gatherv {
        /// Which.
        root: usize,
        /// The seed.
        seed: u64,
    },
    /// A block of one member for every one.
    Scatter {
        /// Which.
        root: usize,
    },
    /// The same with counts as of an alltoallv.
    Scatterv {
        /// Which.
        root: usize,
        /// The seed.
        seed: u64,
    },
    /// Nothing but that all have called.
    Barrier,
    /// The vectors of all members are combined.
    Reduction {
        /// Who receives what.
        result: Combined,
        /// How.
        reduction: Reduction,
    },
    /// A recording of the group, with messages of up to `bytes`, drawn by this seed.
    Recorded {
        /// Which of the group's recordings, from 1.
        number: u32,
        /// The seed.
        seed: u64,
    },
    /// A tagged message, which nobody else calls (GP-1). The member that disagrees sends or receives another size.
    Message {
        /// Who sends it.
        from: usize,
        /// Who receives it, another member.
        to: usize,
        /// Its tag.
        tag: u32,
    },
}

impl Pattern {
    /// Whether it is a recording or a message: no instance of its group, and in no order with others.
    pub(crate) fn is_tagged(self) -> bool {
        match self {
            Pattern::Recorded { .. } | Pattern::Message { .. } => true,
            Pattern::Allgather
            | Pattern::Broadcast { .. }
            | Pattern::Allgatherv { .. }
            | Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Gather { .. }
            | Pattern::Gatherv { .. }
            | Pattern::Scatter { .. }
            | Pattern::Scatterv { .. }
            | Pattern::Barrier
            | Pattern::Reduction { .. } => false,
        }
    }

    /// Whether `member` calls it.
    pub(crate) fn is_called_by(self, member: usize) -> bool {
        match self {
            Pattern::Message { from, to, .. } => from == member || to == member,
            _ => true,
        }
    }

    /// Whether the receive buffer of `member` holds its contribution before, and is what it reads.
    pub(crate) fn starts_with_own(self, member: usize) -> bool {
        match self {
            Pattern::Recorded { .. } => true,
            Pattern::Message { from, .. } => from == member,
            _ => false,
        }
    }

    /// Whose bytes go to all, or who gets those of all, where that is one member.
    pub(crate) fn root(self) -> Option<usize> {
        match self {
            Pattern::Broadcast { root }
            | Pattern::Gather { root }
            | Pattern::Gatherv { root, .. }
            | Pattern::Scatter { root }
            | Pattern::Scatterv { root, .. } => Some(root),
            Pattern::Reduction { result: Combined::Reduce { root }, .. } => Some(root),
            Pattern::Allgather
            | Pattern::Allgatherv { .. }
            | Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Barrier
            | Pattern::Reduction { .. }
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => None,
        }
    }

    /// Whether `member` may call it with its own block in place.
    pub(crate) fn may_be_in_place(self, member: usize) -> bool {
        match self {
            Pattern::Allgather | Pattern::Allgatherv { .. } => true,
            Pattern::Gather { root }
            | Pattern::Gatherv { root, .. }
            | Pattern::Scatter { root }
            | Pattern::Scatterv { root, .. }
            | Pattern::Reduction { result: Combined::Reduce { root }, .. } => root == member,
            Pattern::Reduction { .. } => true,
            Pattern::Broadcast { .. }
            | Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Barrier
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => false,
        }
    }
}

/// A part of a receive buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// Where it begins.
    pub(crate) at: u64,
    pub(crate) len: u64,
    /// The member that contributes it.
    pub(crate) source: usize,
    /// Where it lies in what that contributes.
    pub(crate) from: u64,
}

impl CallPlan {
    /// What `member` of `members` calls.
    #[must_use]
    pub fn signature_of(&self, member: usize, members: usize) -> Signature {
        let bytes = self.bytes_of(member);
        match self.pattern {
            Pattern::Allgather => Signature { kind: CallKind::Allgather, bytes },
            Pattern::Broadcast { root } => Signature { kind: CallKind::Broadcast { root: Rank(root as u32) }, bytes },
            Pattern::Allgatherv { .. } => {
                let sizes = || (0..members).map(|from| self.sent(from, 0, member));
                Signature { kind: CallKind::Allgatherv { sizes: sizes_digest(sizes()) }, bytes: sizes().sum() }
            }
            Pattern::Alltoall => Signature { kind: CallKind::Alltoall, bytes },
            Pattern::Alltoallv { .. } => Signature { kind: CallKind::Alltoallv, bytes: 0 },
            Pattern::Gather { root } => Signature { kind: CallKind::Gather { root: Rank(root as u32) }, bytes },
            Pattern::Gatherv { root, .. } => {
                Signature { kind: CallKind::Gatherv { root: Rank(root as u32) }, bytes: 0 }
            }
            Pattern::Scatter { root } => Signature { kind: CallKind::Scatter { root: Rank(root as u32) }, bytes },
            Pattern::Scatterv { root, .. } => {
                Signature { kind: CallKind::Scatterv { root: Rank(root as u32) }, bytes: 0 }
            }
            Pattern::Barrier => Signature { kind: CallKind::Barrier, bytes: 0 },
            Pattern::Reduction { result, reduction } => self.combined_signature((result, reduction), member, members),
            Pattern::Recorded { number, .. } => {
                let kind = CallKind::Tagged(TaggedCall::Recorded { recording: number });
                Signature { kind, bytes: self.buffers(member, members).1 }
            }
            Pattern::Message { from, to, tag } => {
                let (from, to) = (Rank(from as u32), Rank(to as u32));
                let sends = member == from.0 as usize;
                let call = if sends { TaggedCall::Send { to, tag } } else { TaggedCall::Receive { from, tag } };
                Signature { kind: CallKind::Tagged(call), bytes }
            }
        }
    }

    /// The blocks that `member` of `members` hands over with its call, where it does.
    pub(crate) fn blocks(&self, member: usize, members: usize) -> Option<Arc<Blocks>> {
        match self.pattern {
            Pattern::Allgatherv { .. } | Pattern::Alltoallv { .. } => Some(Arc::new(self.exchanged(member, members))),
            Pattern::Gatherv { .. } | Pattern::Scatterv { .. } => {
                let mut blocks = self.exchanged(member, members);
                if self.in_place.contains(&member) {
                    (blocks.send[member].len, blocks.receive[member].len) = (0, 0);
                }
                Some(Arc::new(blocks))
            }
            Pattern::Reduction { result, reduction } => self.combined_blocks((result, reduction), member, members),
            Pattern::Allgather
            | Pattern::Broadcast { .. }
            | Pattern::Alltoall
            | Pattern::Gather { .. }
            | Pattern::Scatter { .. }
            | Pattern::Barrier
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => None,
        }
    }

    /// Whether the call of `member` says that its own block is in place. Uneven blocks of a root say so by being empty.
    pub(crate) fn says_in_place(&self, member: usize) -> bool {
        let by_blocks = matches!(self.pattern, Pattern::Gatherv { .. } | Pattern::Scatterv { .. });
        self.in_place.contains(&member) && !by_blocks
    }

    /// Bytes of the send and of the receive buffer of `member` of `members`.
    pub(crate) fn buffers(&self, member: usize, members: usize) -> (u64, u64) {
        let bytes = self.bytes_of(member);
        match self.pattern {
            Pattern::Allgather => (bytes, bytes * members as u64),
            Pattern::Broadcast { root } if root == member => (bytes, 0),
            Pattern::Broadcast { .. } => (0, bytes),
            Pattern::Barrier => (0, 0),
            Pattern::Message { .. } => (0, bytes),
            Pattern::Reduction { result, reduction } => self.combined_buffers((result, reduction), member, members),
            Pattern::Allgatherv { .. } => (self.sent(member, 0, member), self.exchanged(member, members).bytes().1),
            Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Gather { .. }
            | Pattern::Gatherv { .. }
            | Pattern::Scatter { .. }
            | Pattern::Scatterv { .. } => self.exchanged(member, members).bytes(),
            Pattern::Recorded { seed, .. } => {
                (0, Graph::draw(seed, members, self.bytes).recordings[member].program.output_bytes)
            }
        }
    }

    /// What the receive buffer of `member` of `members` holds in the end, of what others contribute.
    pub(crate) fn parts(&self, member: usize, members: usize) -> Vec<Part> {
        let len = self.bytes_of(member);
        match self.pattern {
            Pattern::Allgather => {
                (0..members).map(|source| Part { at: source as u64 * len, len, source, from: 0 }).collect()
            }
            Pattern::Broadcast { root } if root == member => Vec::new(),
            Pattern::Barrier | Pattern::Reduction { .. } => Vec::new(),
            Pattern::Broadcast { root } => vec![Part { at: 0, len, source: root, from: 0 }],
            Pattern::Message { from, .. } => {
                vec![Part { at: 0, len: len.min(self.bytes_of(from)), source: from, from: 0 }]
            }
            Pattern::Recorded { seed, .. } => Graph::draw(seed, members, self.bytes).parts.swap_remove(member),
            Pattern::Allgatherv { .. }
            | Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Gather { .. }
            | Pattern::Gatherv { .. }
            | Pattern::Scatter { .. }
            | Pattern::Scatterv { .. } => {
                let mine = self.exchanged(member, members);
                let to_all = matches!(self.pattern, Pattern::Allgatherv { .. });
                let part = |(source, span): (usize, &Span)| {
                    let from = if to_all { 0 } else { self.exchanged(source, members).send[member].offset };
                    Part { at: span.offset, len: span.len, source, from }
                };
                mine.receive.iter().enumerate().filter(|(_, span)| !span.is_empty()).map(part).collect()
            }
        }
    }

    /// Whether `member` of a disputed call cannot end before all who disagree have called. A rank that contributes nothing
    /// and receives nothing need not wait for anybody, and nobody waits for a rank that only receives a broadcast.
    pub(crate) fn needs_all_of(&self, member: usize, members: usize) -> bool {
        let odd = self.disagrees.map(|(odd, _)| odd);
        match self.pattern {
            Pattern::Allgather | Pattern::Alltoall => self.bytes_of(member) > 0,
            // Whoever disagrees is needed by the others for its bytes, and needs theirs.
            Pattern::Allgatherv { .. } => {
                let odd = odd.unwrap_or(member);
                let differ = |other| self.signature_of(other, members) != self.signature_of(odd, members);
                (0..members).any(differ)
                    && (0..members).any(|from| (member == odd) != (from == odd) && self.sent(from, 0, member) > 0)
            }
            Pattern::Broadcast { root } => {
                self.bytes_of(member) > 0 && member != root && (odd == Some(root) || odd == Some(member))
            }
            Pattern::Gather { root } => self.bytes_of(member) > 0 && member == root,
            Pattern::Scatter { root } => {
                self.bytes_of(member) > 0 && member != root && (odd == Some(root) || odd == Some(member))
            }
            Pattern::Barrier => false,
            Pattern::Reduction { result, reduction } => {
                self.combined_needs_all_of((result, reduction), member, members)
            }
            // What it sends to whoever has not called is staged.
            Pattern::Alltoallv { .. } | Pattern::Gatherv { .. } | Pattern::Scatterv { .. } => {
                (0..members).any(|other| self.sent(other, member, member) != self.sent(other, member, other))
            }
            // The sender need not know.
            Pattern::Message { from, to, .. } => member == to && self.bytes_of(from) > self.bytes_of(to),
            Pattern::Recorded { .. } => unreachable!("recordings are not disputed"),
        }
    }

    /// Whether nobody may end before all have called.
    pub(crate) fn is_barrier(&self) -> bool {
        match self.pattern {
            Pattern::Barrier => true,
            Pattern::Allgather
            | Pattern::Broadcast { .. }
            | Pattern::Allgatherv { .. }
            | Pattern::Alltoall
            | Pattern::Alltoallv { .. }
            | Pattern::Gather { .. }
            | Pattern::Gatherv { .. }
            | Pattern::Scatter { .. }
            | Pattern::Scatterv { .. }
            | Pattern::Reduction { .. }
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => false,
        }
    }

    /// Bytes that `seen_by` believes `from` to send to `to`. Whoever disagrees does so about how many bytes, not about
    /// whether there are any: nobody can tell ranks of which one sends nothing and the other waits for something.
    #[must_use]
    pub fn sent(&self, from: usize, to: usize, seen_by: usize) -> u64 {
        match self.pattern {
            Pattern::Gather { root } | Pattern::Gatherv { root, .. } if to != root => 0,
            Pattern::Scatter { root } | Pattern::Scatterv { root, .. } if from != root => 0,
            Pattern::Barrier => 0,
            Pattern::Allgather
            | Pattern::Broadcast { .. }
            | Pattern::Alltoall
            | Pattern::Gather { .. }
            | Pattern::Scatter { .. }
            | Pattern::Reduction { .. }
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => self.bytes_of(seen_by),
            Pattern::Allgatherv { seed }
            | Pattern::Alltoallv { seed }
            | Pattern::Gatherv { seed, .. }
            | Pattern::Scatterv { seed, .. } => {
                let name = seed ^ (from as u64) << 32 ^ (to as u64) << 48;
                let drawn = (name ^ (name >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 8;
                if drawn.is_multiple_of(4) { 0 } else { 1 + (drawn >> 4) % self.bytes_of(seen_by).max(1) }
            }
        }
    }

    /// Where the contribution of `member` of `members` lies in its receive buffer, where it is in place there.
    pub(crate) fn place(&self, member: usize, members: usize) -> Option<u64> {
        let scatters = matches!(self.pattern, Pattern::Scatter { .. } | Pattern::Scatterv { .. });
        let found = self.parts(member, members).iter().find(|part| part.source == member).map_or(0, |part| part.at);
        (self.in_place.contains(&member) && !scatters).then_some(found)
    }

    /// What `member` exchanges. Drawn blocks lie in the reverse order of ranks, with gaps. A block in place counts where it
    /// is received.
    fn exchanged(&self, member: usize, members: usize) -> Blocks {
        let seed = match self.pattern {
            Pattern::Allgatherv { seed }
            | Pattern::Alltoallv { seed }
            | Pattern::Gatherv { seed, .. }
            | Pattern::Scatterv { seed, .. } => Some(seed),
            Pattern::Allgather
            | Pattern::Broadcast { .. }
            | Pattern::Alltoall
            | Pattern::Gather { .. }
            | Pattern::Scatter { .. }
            | Pattern::Barrier
            | Pattern::Reduction { .. }
            | Pattern::Recorded { .. }
            | Pattern::Message { .. } => None,
        };
        let gap = seed.map_or(0, |seed| seed % 3);
        let spans = |len: &dyn Fn(usize) -> u64, span: fn(u64, u64) -> Span| {
            let mut at = 0;
            let place = |other: usize| {
                let placed = span(at, len(other));
                at += if len(other) == 0 { 0 } else { len(other) + gap };
                placed
            };
            if seed.is_none() {
                return (0..members).map(place).collect();
            }
            let mut spans: Vec<Span> = (0..members).rev().map(place).collect();
            spans.reverse();
            spans
        };
        if matches!(self.pattern, Pattern::Allgatherv { .. }) {
            let own = Span::input(0, self.sent(member, 0, member));
            return Blocks { send: vec![own], receive: spans(&|other| self.sent(other, 0, member), Span::output) };
        }
        let stays = self.in_place.contains(&member)
            && matches!(self.pattern, Pattern::Scatter { .. } | Pattern::Scatterv { .. });
        let received = |from| if stays && from == member { 0 } else { self.sent(from, member, member) };
        Blocks {
            send: spans(&|to| self.sent(member, to, member), Span::input),
            receive: spans(&received, Span::output),
        }
    }
}
