//! The source and the destination of each rank's bytes, for each kind of collective that a script may call.
//!
//! The oracles hold the machines to [`CallPlan::parts`]. Pure.

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Element, Rank, Reduction, Span};
use outboard_proto::{CallId, CallKind, InstanceId, RankCall, Signature, TaggedCall, sizes_digest};

use crate::cluster::handle;
use crate::graph::RecordedGraph;
use crate::oracle::CallName;
use crate::reductions::{ReductionKind, mix};
use crate::scenario::CallPlan;
use crate::store::{CallOutput, CheckedMemory};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Allgather,
    Broadcast {
        root: usize,
    },
    /// All members receive 0 to `bytes` bytes of every member, placed with gaps; this seed draws sizes and gaps.
    Allgatherv {
        seed: u64,
    },
    /// Every member sends a block to every member.
    Alltoall,
    /// An all-to-all with counts of 0 to `bytes`, and displacements with gaps, drawn by this seed.
    Alltoallv {
        seed: u64,
    },
    /// One member receives a block of every member.
    Gather {
        root: usize,
    },
    /// A gather with counts like an alltoallv's.
    Gatherv {
        root: usize,
        seed: u64,
    },
    /// One member sends a block to every member.
    Scatter {
        root: usize,
    },
    /// A scatter with counts like an alltoallv's.
    Scatterv {
        root: usize,
        seed: u64,
    },
    Barrier,
    Reduction {
        result: ReductionKind,
        reduction: Reduction,
    },
    /// A recording of the group, with messages of up to `bytes`, drawn by this seed. Numbers start at 1.
    Recorded {
        number: u32,
        seed: u64,
    },
    /// A tagged message between two members (GP-1). The disagreeing member sends or receives another size.
    Message {
        from: usize,
        to: usize,
        tag: u32,
    },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DataMovement {
    /// All members receive the contributions of all members.
    FromEach,
    /// All members receive the contribution of this member.
    FromOne(usize),
    /// Members receive a different block from each other member.
    Blocks(BlockPairs),
    /// Members receive the combined vectors of all members.
    Reduction(ReductionKind, Reduction),
    /// Members exchange the messages of a recording drawn by this seed.
    Recorded(u64),
    /// One member receives a message from another member.
    Message {
        from: usize,
        to: usize,
    },
    Nothing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockPairs {
    All,
    To(usize),
    From(usize),
}

/// The properties by which code treats patterns alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PatternClass {
    pub(crate) moves: DataMovement,
    /// The seed of the sizes and places of blocks; `None`: blocks have one size and lie side by side.
    pub(crate) uneven: Option<u64>,
}

impl Pattern {
    /// One pattern for each collective, with this root, sizes drawn by this seed, and this reduction.
    pub(crate) fn all(root: usize, seed: u64, reduction: Reduction) -> Vec<Pattern> {
        let moved = [
            Pattern::Allgather,
            Pattern::Broadcast { root },
            Pattern::Alltoall,
            Pattern::Alltoallv { seed },
            Pattern::Gather { root },
            Pattern::Gatherv { root, seed },
            Pattern::Scatter { root },
            Pattern::Scatterv { root, seed },
            Pattern::Barrier,
            Pattern::Allgatherv { seed },
        ];
        let combined = ReductionKind::all(root, seed).map(|result| Pattern::Reduction { result, reduction });
        moved.into_iter().chain(combined).collect()
    }

    /// The only function that distinguishes all patterns, by the data that they move.
    pub(crate) fn class(self) -> PatternClass {
        let (moves, uneven) = match self {
            Pattern::Allgather => (DataMovement::FromEach, None),
            Pattern::Allgatherv { seed } => (DataMovement::FromEach, Some(seed)),
            Pattern::Broadcast { root } => (DataMovement::FromOne(root), None),
            Pattern::Alltoall => (DataMovement::Blocks(BlockPairs::All), None),
            Pattern::Alltoallv { seed } => (DataMovement::Blocks(BlockPairs::All), Some(seed)),
            Pattern::Gather { root } => (DataMovement::Blocks(BlockPairs::To(root)), None),
            Pattern::Gatherv { root, seed } => (DataMovement::Blocks(BlockPairs::To(root)), Some(seed)),
            Pattern::Scatter { root } => (DataMovement::Blocks(BlockPairs::From(root)), None),
            Pattern::Scatterv { root, seed } => (DataMovement::Blocks(BlockPairs::From(root)), Some(seed)),
            Pattern::Barrier => (DataMovement::Nothing, None),
            Pattern::Reduction { result, reduction } => (DataMovement::Reduction(result, reduction), None),
            Pattern::Recorded { seed, .. } => (DataMovement::Recorded(seed), None),
            Pattern::Message { from, to, .. } => (DataMovement::Message { from, to }, None),
        };
        PatternClass { moves, uneven }
    }

    /// Whether the pattern is a recording or a message. Such a call is no instance of its group, and has no order among
    /// other calls.
    pub(crate) fn is_tagged(self) -> bool {
        matches!(self.class().moves, DataMovement::Recorded(_) | DataMovement::Message { .. })
    }

    pub(crate) fn is_called_by(self, member: usize) -> bool {
        match self {
            Pattern::Message { from, to, .. } => from == member || to == member,
            _ => true,
        }
    }

    /// Whether the receive buffer of `member` holds its contribution before the call, and the call reads the
    /// contribution there.
    pub(crate) fn starts_with_own(self, member: usize) -> bool {
        match self {
            Pattern::Recorded { .. } => true,
            Pattern::Message { from, .. } => from == member,
            _ => false,
        }
    }

    /// The one member that sends to all, or that receives from all.
    pub(crate) fn root(self) -> Option<usize> {
        match self.class().moves {
            DataMovement::FromOne(root)
            | DataMovement::Blocks(BlockPairs::To(root) | BlockPairs::From(root))
            | DataMovement::Reduction(ReductionKind::Reduce { root }, _) => Some(root),
            _ => None,
        }
    }

    /// Whether `member` may call the pattern with its own block in place.
    pub(crate) fn may_be_in_place(self, member: usize) -> bool {
        match self.class().moves {
            DataMovement::FromEach
            | DataMovement::Reduction(..)
            | DataMovement::Blocks(BlockPairs::To(_) | BlockPairs::From(_)) => {
                self.root().is_none_or(|root| root == member)
            }
            _ => false,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpectedPart {
    pub(crate) at: u64,
    pub(crate) len: u64,
    pub(crate) source: usize,
    /// The start of the part in the contribution of `source`.
    pub(crate) from: u64,
}

impl CallPlan {
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

    /// The blocks that `member` of `members` passes with its call, if it passes any.
    pub(crate) fn blocks(&self, member: usize, members: usize) -> Option<Arc<Blocks>> {
        let class = self.pattern.class();
        match (class.moves, class.uneven) {
            (DataMovement::Reduction(result, reduction), _) => {
                self.combined_blocks((result, reduction), member, members)
            }
            (_, None) => None,
            (_, Some(_)) => {
                let mut blocks = self.exchanged(member, members);
                if self.in_place_by_blocks(member) {
                    (blocks.send[member].len, blocks.receive[member].len) = (0, 0);
                }
                Some(Arc::new(blocks))
            }
        }
    }

    /// Whether `member` declares "in place" by empty blocks, like a root with uneven blocks.
    fn in_place_by_blocks(&self, member: usize) -> bool {
        let class = self.pattern.class();
        let of_root = matches!(class.moves, DataMovement::Blocks(BlockPairs::To(_) | BlockPairs::From(_)));
        of_root && class.uneven.is_some() && self.in_place.contains(&member)
    }

    /// Whether the call of `member` declares that its own block is in place.
    pub(crate) fn declares_in_place(&self, member: usize) -> bool {
        self.in_place.contains(&member) && !self.in_place_by_blocks(member)
    }

    /// Bytes of the send and of the receive buffer of `member` of `members`.
    pub(crate) fn buffers(&self, member: usize, members: usize) -> (u64, u64) {
        let bytes = self.bytes_of(member);
        let class = self.pattern.class();
        match class.moves {
            DataMovement::FromEach if class.uneven.is_some() => {
                (self.sent(member, 0, member), self.exchanged(member, members).bytes().1)
            }
            DataMovement::FromEach => (bytes, bytes * members as u64),
            DataMovement::FromOne(root) if root == member => (bytes, 0),
            DataMovement::FromOne(_) | DataMovement::Message { .. } => (0, bytes),
            DataMovement::Blocks(_) => self.exchanged(member, members).bytes(),
            DataMovement::Reduction(result, reduction) => self.combined_buffers((result, reduction), member, members),
            DataMovement::Recorded(seed) => {
                (0, RecordedGraph::draw(seed, members, self.bytes).recordings[member].program.output_bytes)
            }
            DataMovement::Nothing => (0, 0),
        }
    }

    /// The final contents of the receive buffer of `member` of `members`, as parts of contributions.
    pub(crate) fn parts(&self, member: usize, members: usize) -> Vec<ExpectedPart> {
        let len = self.bytes_of(member);
        let class = self.pattern.class();
        match class.moves {
            DataMovement::FromEach if class.uneven.is_none() => {
                (0..members).map(|source| ExpectedPart { at: source as u64 * len, len, source, from: 0 }).collect()
            }
            DataMovement::FromEach | DataMovement::Blocks(_) => {
                let mine = self.exchanged(member, members);
                let part = |(source, span): (usize, &Span)| {
                    let of_all = class.moves == DataMovement::FromEach;
                    let from = if of_all { 0 } else { self.exchanged(source, members).send[member].offset };
                    ExpectedPart { at: span.offset, len: span.len, source, from }
                };
                mine.receive.iter().enumerate().filter(|(_, span)| !span.is_empty()).map(part).collect()
            }
            DataMovement::FromOne(root) if root == member => Vec::new(),
            DataMovement::FromOne(root) => vec![ExpectedPart { at: 0, len, source: root, from: 0 }],
            DataMovement::Message { from, .. } => {
                vec![ExpectedPart { at: 0, len: len.min(self.bytes_of(from)), source: from, from: 0 }]
            }
            DataMovement::Recorded(seed) => RecordedGraph::draw(seed, members, self.bytes).parts.swap_remove(member),
            DataMovement::Reduction(..) | DataMovement::Nothing => Vec::new(),
        }
    }

    /// Whether `member` of a disputed call cannot end before all disagreeing members have called. A rank that
    /// contributes and receives nothing need not wait for others. Nobody waits for a rank that only receives a
    /// broadcast.
    pub(crate) fn needs_all_of(&self, member: usize, members: usize) -> bool {
        let odd = self.disagrees.map(|(odd, _)| odd);
        match self.pattern {
            Pattern::Allgather | Pattern::Alltoall => self.bytes_of(member) > 0,
            // The other members need the bytes of the disagreeing member, and the disagreeing member needs the bytes of
            // the others.
            Pattern::Allgatherv { .. } => {
                let odd = odd.unwrap_or(member);
                let differ = |other| self.signature_of(other, members) != self.signature_of(odd, members);
                (0..members).any(differ)
                    && (0..members).any(|from| (member == odd) != (from == odd) && self.sent(from, 0, member) > 0)
            }
            Pattern::Gather { root } => self.bytes_of(member) > 0 && member == root,
            Pattern::Broadcast { root } | Pattern::Scatter { root } => {
                self.bytes_of(member) > 0 && member != root && (odd == Some(root) || odd == Some(member))
            }
            Pattern::Barrier => false,
            Pattern::Reduction { result, reduction } => {
                self.combined_needs_all_of((result, reduction), member, members)
            }
            // Bytes for ranks that have not called are staged.
            Pattern::Alltoallv { .. } | Pattern::Gatherv { .. } | Pattern::Scatterv { .. } => {
                (0..members).any(|other| self.sent(other, member, member) != self.sent(other, member, other))
            }
            // The sender need not learn of the mismatch.
            Pattern::Message { from, to, .. } => member == to && self.bytes_of(from) > self.bytes_of(to),
            Pattern::Recorded { .. } => unreachable!("recordings are not disputed"),
        }
    }

    /// Whether no member may end before all members have called.
    pub(crate) fn is_barrier(&self) -> bool {
        self.pattern.class().moves == DataMovement::Nothing
    }

    /// Bytes that `seen_by` believes `from` to send to `to`. Members disagree about the number of bytes, not about
    /// whether there are any: if one rank sends nothing to a waiting rank, nobody can detect the disagreement.
    pub fn sent(&self, from: usize, to: usize, seen_by: usize) -> u64 {
        let class = self.pattern.class();
        match (class.moves, class.uneven) {
            (DataMovement::Nothing, _) => 0,
            (DataMovement::Blocks(BlockPairs::To(root)), _) if to != root => 0,
            (DataMovement::Blocks(BlockPairs::From(root)), _) if from != root => 0,
            (_, None) => self.bytes_of(seen_by),
            (_, Some(seed)) => {
                let name = seed ^ (from as u64) << 32 ^ (to as u64) << 48;
                let drawn = mix(name);
                if drawn.is_multiple_of(4) { 0 } else { 1 + (drawn >> 4) % self.bytes_of(seen_by).max(1) }
            }
        }
    }

    /// The start of the contribution of `member` of `members` in its receive buffer, if the contribution is in place
    /// there.
    pub(crate) fn place(&self, member: usize, members: usize) -> Option<u64> {
        let scatters = matches!(self.pattern.class().moves, DataMovement::Blocks(BlockPairs::From(_)));
        let found = self.parts(member, members).iter().find(|part| part.source == member).map_or(0, |part| part.at);
        (self.in_place.contains(&member) && !scatters).then_some(found)
    }

    /// The blocks that `member` exchanges. Drawn blocks lie in the reverse order of ranks, with gaps. A block in place
    /// counts where it is received.
    fn exchanged(&self, member: usize, members: usize) -> Blocks {
        let PatternClass { moves, uneven: seed } = self.pattern.class();
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
        if moves == DataMovement::FromEach {
            let own = Span::input(0, self.sent(member, 0, member));
            return Blocks { send: vec![own], receive: spans(&|other| self.sent(other, 0, member), Span::output) };
        }
        let stays = self.in_place.contains(&member) && matches!(moves, DataMovement::Blocks(BlockPairs::From(_)));
        let received = |from| if stays && from == member { 0 } else { self.sent(from, member, member) };
        Blocks {
            send: spans(&|to| self.sent(member, to, member), Span::input),
            receive: spans(&received, Span::output),
        }
    }

    /// Makes the call of a rank, with its buffers in the memory of its host.
    pub(crate) fn make(&self, memory: &mut CheckedMemory, id: CallId, name: CallName, members: usize) -> RankCall {
        let CallName { group, member, instance } = name;
        let (sent, received) = self.buffers(member, members);
        let element = self.reduction().map_or(Element::U8, |(_, reduction)| reduction.element());
        // A recording reads and writes one buffer. A message is sent from the place where it would be received.
        let own = self.pattern.starts_with_own(member);
        let (sent, place) = if own { (received, Some(0)) } else { (sent, self.place(member, members)) };
        memory.add_call(id, (name.origin(), element), sent, received, place);
        RankCall {
            id,
            group: handle(group),
            rank: Rank(member as u32),
            instance: InstanceId(if self.pattern.is_tagged() { 0 } else { instance }),
            signature: self.signature_of(member, members),
            in_place: self.declares_in_place(member),
            blocks: self.blocks(member, members),
            deadline: self.deadline,
        }
    }

    /// Describes the received bytes of a call that are wrong, if any are.
    pub(crate) fn describe_wrong_bytes(&self, name: CallName, members: usize, output: &CallOutput) -> Option<String> {
        let origin = |member| CallName { member, ..name }.origin();
        let parts = self.parts(name.member, members).into_iter();
        if let Some(what) = output.difference(parts.map(|part| (part, origin(part.source)))) {
            return Some(what);
        }
        let expected = self.expected(name.member, members)?;
        expected.difference(output.bytes(expected.len())?, origin)
    }
}
