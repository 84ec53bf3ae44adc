//! The messages between service processes.
//!
//! Every message names its group; those of a collective name its instance. `Data` and `Repair` are followed by
//! payload, the others are whole.

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_call::{Rank, Signature};

use super::tagged::TaggedMessage;
use crate::error::CollectiveError;
use crate::ids::{GroupHandle, InstanceId, SpId};
use crate::overdue::{Absentee, Absentees, DeadlineMissed, MAX_ABSENT};

/// Most chunk ranges in one `Want`, `Miss` or `Repair`.
pub const MAX_RANGES: usize = 48;
/// Most sources in one `Have`.
pub const MAX_SOURCES: usize = 96;
/// Most blocks in one `Pull` or `Sizes`.
pub const MAX_BLOCKS: usize = 24;
/// Most ranks in one `Announce`.
pub const MAX_TERMS: usize = 12;

/// What a rank that calls an exchange has for another, and what of its bytes that one may send at once. Not all zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// The other.
    pub with: Rank,
    /// Bytes for it.
    pub sends: u64,
    /// Bytes expected of it, when some are asked for ahead of their announcement, else 0.
    pub expects: u64,
    /// Up to which of them they may come: 1 to `expects`, 0 where that is 0.
    pub up_to: u64,
}

impl Terms {
    /// Where the other has ended without any of it.
    pub(crate) fn unmet(&self, rank: Rank) -> CollectiveError {
        match *self {
            Terms { with, sends: 0, expects, .. } => {
                CollectiveError::Block { source_rank: with, sent: 0, destination: rank, expected: expects }
            }
            Terms { with, sends, .. } => {
                CollectiveError::Block { source_rank: rank, sent: sends, destination: with, expected: 0 }
            }
        }
    }
}

/// A message between service processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// Nothing: takes the place of a message whose collective has ended before the link delivered it, and is sent for the
    /// sake of its acknowledgement.
    Void,
    /// One step of the barrier by which a group is made (instance 0).
    Create {
        /// The group.
        group: GroupHandle,
        /// Step of the barrier.
        step: u8,
        /// Whose configuration `digest` is: the lowest service process heard of so far.
        sp: SpId,
        /// Its fingerprint.
        digest: u64,
        /// [`GroupSpec::fingerprint`](crate::GroupSpec::fingerprint) of the group that the sender makes.
        fingerprint: u64,
    },
    /// One step of the ready barrier (MC-4). Carries the whole call signature.
    Ready {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Step of the barrier.
        step: u8,
        /// What is called.
        signature: Signature,
        /// A rank that called it so.
        rank: Rank,
    },
    /// A fragment of a unicast message of the plan, named (source, destination, index). Payload follows.
    Data {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Sender.
        source: Rank,
        /// Receiver.
        destination: Rank,
        /// Index in the plan.
        index: u32,
        /// Bytes of the whole message.
        total: u64,
        /// Where this fragment lies in it.
        offset: u64,
    },
    /// Right to left neighbour: chunks of `source`'s block that are missing (MC-6), as (first, count).
    Want {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Whose block.
        source: Rank,
        /// Ascending, disjoint, none empty, at most [`MAX_RANGES`].
        ranges: Vec<(u32, u32)>,
    },
    /// To the service process of `source`: these chunks are missing here and at the right neighbour too, so that
    /// multicasting them again may be cheaper.
    Miss {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Whose block.
        source: Rank,
        /// As in `Want`.
        ranges: Vec<(u32, u32)>,
    },
    /// Left to right neighbour: chunks that it wanted (MC-6). Payload follows, run after run.
    Repair {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Whose block.
        source: Rank,
        /// As in `Want`.
        ranges: Vec<(u32, u32)>,
    },
    /// Left to right neighbour: these blocks lie here whole; what is missing of them can be had.
    Have {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Whose blocks, at most [`MAX_SOURCES`].
        sources: Vec<Rank>,
    },
    /// Right to left neighbour: nothing is missing here any more (MC-7).
    Complete {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
    },
    /// Blocks of an all-to-all that a rank has for ranks of the receiver (SP-5). Carries the whole call signature.
    Announce {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// What is called.
        signature: Signature,
        /// Who calls.
        rank: Rank,
        /// With ranks of the receiver; 1 to [`MAX_TERMS`] entries.
        terms: Vec<Terms>,
    },
    /// Asks for blocks that were announced, or for more of them; each comes as `Data` with index 0 (SP-5).
    Pull {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Source and destination of each, and up to which of its bytes it may come, more than before; 1 to [`MAX_BLOCKS`]
        /// entries.
        blocks: Vec<(Rank, Rank, u64)>,
    },
    /// Asks for the sizes of an allgatherv's blocks.
    AskSizes {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
    },
    /// Sizes of an allgatherv's blocks, in the order of ranks.
    Sizes {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// The first rank.
        first: u32,
        /// Bytes of its block and of those that follow; 1 to [`MAX_BLOCKS`] entries.
        sizes: Vec<u64>,
    },
    /// A rank takes part in nothing after instance `after`: it left or died.
    Lost {
        /// The group.
        group: GroupHandle,
        /// Who.
        rank: Rank,
        /// The last instance it completed.
        after: InstanceId,
        /// Its calls up to then ended without an error.
        well: bool,
    },
    /// The group is broken.
    Abort {
        /// The group.
        group: GroupHandle,
        /// Which group of that handle, see [`crate::GroupSpec::fingerprint`].
        fingerprint: u64,
        /// Why.
        error: CollectiveError,
    },
    /// Which of your ranks have not called this (SP-9)?
    Inquire {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
    },
    /// The answer.
    Absent {
        /// The group.
        group: GroupHandle,
        /// The collective.
        instance: InstanceId,
        /// Ranks of the sender.
        ranks: Absentees,
    },
    /// About tagged messages between ranks (GP-1, GP-2).
    Tagged {
        /// The group.
        group: GroupHandle,
        /// What.
        tagged: TaggedMessage,
    },
}

impl Message {
    /// The group that the message belongs to.
    #[must_use]
    pub fn group(&self) -> Option<GroupHandle> {
        match self {
            Message::Void => None,
            Message::Create { group, .. }
            | Message::Ready { group, .. }
            | Message::Data { group, .. }
            | Message::Want { group, .. }
            | Message::Miss { group, .. }
            | Message::Repair { group, .. }
            | Message::Have { group, .. }
            | Message::Complete { group, .. }
            | Message::Announce { group, .. }
            | Message::Pull { group, .. }
            | Message::AskSizes { group, .. }
            | Message::Sizes { group, .. }
            | Message::Lost { group, .. }
            | Message::Inquire { group, .. }
            | Message::Absent { group, .. }
            | Message::Tagged { group, .. }
            | Message::Abort { group, .. } => Some(*group),
        }
    }

    /// What is still to be said where the payload cannot be read any more: nothing, but for tagged messages, whose place
    /// among those of their name no later one may take.
    #[must_use]
    pub fn without_payload(self) -> Message {
        match self {
            Message::Tagged { group, tagged } => match tagged.without_payload() {
                Some(tagged) => Message::Tagged { group, tagged },
                None => Message::Void,
            },
            _ => Message::Void,
        }
    }

    /// Appends the message to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer::new(out);
        match self {
            Message::Void => w.u8(0),
            Message::Create { group, step, sp, digest, fingerprint } => {
                w.head(1, *group).u8(*step).u64(sp.0).u64(*digest).u64(*fingerprint)
            }
            Message::Ready { group, instance, step, signature, rank } => {
                w.call(2, *group, *instance).u8(*step).signature(signature).u32(rank.0)
            }
            Message::Data { group, instance, source, destination, index, total, offset } => {
                w.call(3, *group, *instance).u32(source.0).u32(destination.0).u32(*index).u64(*total).u64(*offset)
            }
            Message::Want { group, instance, source, ranges } => w.call(4, *group, *instance).ranges(*source, ranges),
            Message::Miss { group, instance, source, ranges } => w.call(5, *group, *instance).ranges(*source, ranges),
            Message::Repair { group, instance, source, ranges } => w.call(6, *group, *instance).ranges(*source, ranges),
            Message::Have { group, instance, sources } => {
                w.call(7, *group, *instance).list(sources, MAX_SOURCES, |w, source| w.u32(source.0))
            }
            Message::Complete { group, instance } => w.call(8, *group, *instance),
            Message::Lost { group, rank, after, well } => w.call(9, *group, *after).u32(rank.0).u8((*well).into()),
            Message::Abort { group, fingerprint, error } => w.head(10, *group).u64(*fingerprint).error(error),
            Message::Announce { group, instance, signature, rank, terms } => {
                let w = w.call(11, *group, *instance).signature(signature).u32(rank.0);
                w.list(terms, MAX_TERMS, |w, t| w.u32(t.with.0).u64(t.sends).u64(t.expects).u64(t.up_to))
            }
            Message::Pull { group, instance, blocks } => {
                w.call(12, *group, *instance).list(blocks, MAX_BLOCKS, |w, (source, destination, up_to)| {
                    w.u32(source.0).u32(destination.0).u64(*up_to)
                })
            }
            Message::AskSizes { group, instance } => w.call(13, *group, *instance),
            Message::Sizes { group, instance, first, sizes } => {
                w.call(14, *group, *instance).u32(*first).list(sizes, MAX_BLOCKS, |w, bytes| w.u64(*bytes))
            }
            Message::Inquire { group, instance } => w.call(15, *group, *instance),
            Message::Absent { group, instance, ranks } => w.call(16, *group, *instance).absentees(ranks),
            Message::Tagged { group, tagged } => tagged.encode(w.head(tagged.code(), *group)),
        };
    }

    /// Reads one message that fills `bytes`.
    ///
    /// # Errors
    /// Whatever is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut r = Reader::new(bytes);
        let kind = r.u8()?;
        if kind == 0 {
            r.end()?;
            return Ok(Message::Void);
        }
        let group = GroupHandle(r.u32()?);
        let message = match kind {
            1 => {
                let (step, sp) = (r.u8()?, SpId(r.u64()?));
                Message::Create { group, step, sp, digest: r.u64()?, fingerprint: r.u64()? }
            }
            10 => Message::Abort { group, fingerprint: r.u64()?, error: read_error(&mut r)? },
            48..=53 => Message::Tagged { group, tagged: TaggedMessage::decode(kind, &mut r)? },
            2..=9 | 11..=16 => Self::decode_call(kind, group, InstanceId(r.u64()?), &mut r)?,
            _ => return Err(DecodeError::Value("message kind")),
        };
        r.end()?;
        Ok(message)
    }

    fn decode_call(
        kind: u8,
        group: GroupHandle,
        instance: InstanceId,
        r: &mut Reader<'_>,
    ) -> Result<Message, DecodeError> {
        if instance.0 == 0 && kind != 9 {
            return Err(DecodeError::Value("instance"));
        }
        Ok(match kind {
            2 => {
                let step = r.u8()?;
                Message::Ready { group, instance, step, signature: Signature::decode(r)?, rank: Rank(r.u32()?) }
            }
            3 => {
                let (source, destination, index) = (Rank(r.u32()?), Rank(r.u32()?), r.u32()?);
                let (total, offset) = (r.u64()?, r.u64()?);
                if offset > total {
                    return Err(DecodeError::Value("offset"));
                }
                Message::Data { group, instance, source, destination, index, total, offset }
            }
            4 => Message::Want { group, instance, source: Rank(r.u32()?), ranges: read_ranges(r)? },
            5 => Message::Miss { group, instance, source: Rank(r.u32()?), ranges: read_ranges(r)? },
            6 => Message::Repair { group, instance, source: Rank(r.u32()?), ranges: read_ranges(r)? },
            7 => {
                let n = usize::from(r.u16()?);
                if n == 0 || n > MAX_SOURCES {
                    return Err(DecodeError::Value("number of sources"));
                }
                let sources = (0..n).map(|_| r.u32().map(Rank)).collect::<Result<_, _>>()?;
                Message::Have { group, instance, sources }
            }
            8 => Message::Complete { group, instance },
            9 => {
                let (rank, well) = (Rank(r.u32()?), r.u8()?);
                if well > 1 {
                    return Err(DecodeError::Value("flag"));
                }
                Message::Lost { group, rank, after: instance, well: well == 1 }
            }
            11 => {
                let (signature, rank) = (Signature::decode(r)?, Rank(r.u32()?));
                if !signature.kind.is_exchange() {
                    return Err(DecodeError::Value("call kind"));
                }
                Message::Announce { group, instance, signature, rank, terms: read_list(r, MAX_TERMS, read_terms)? }
            }
            12 => {
                let blocks = read_list(r, MAX_BLOCKS, |r| Ok((Rank(r.u32()?), Rank(r.u32()?), r.u64()?)))?;
                Message::Pull { group, instance, blocks }
            }
            13 => Message::AskSizes { group, instance },
            14 => Message::Sizes { group, instance, first: r.u32()?, sizes: read_list(r, MAX_BLOCKS, |r| r.u64())? },
            15 => Message::Inquire { group, instance },
            16 => Message::Absent { group, instance, ranks: read_absentees(r)? },
            _ => return Err(DecodeError::Value("message kind")),
        })
    }
}

/// Fields that several messages have.
trait Fields {
    fn head(&mut self, kind: u8, group: GroupHandle) -> &mut Self;
    fn call(&mut self, kind: u8, group: GroupHandle, instance: InstanceId) -> &mut Self;
    fn signature(&mut self, signature: &Signature) -> &mut Self;
    fn absentees(&mut self, absent: &Absentees) -> &mut Self;
    fn ranges(&mut self, source: Rank, ranges: &[(u32, u32)]) -> &mut Self;
    fn error(&mut self, error: &CollectiveError) -> &mut Self;
}

impl Fields for Writer<'_> {
    fn head(&mut self, kind: u8, group: GroupHandle) -> &mut Self {
        self.u8(kind).u32(group.0)
    }

    fn call(&mut self, kind: u8, group: GroupHandle, instance: InstanceId) -> &mut Self {
        self.head(kind, group).u64(instance.0)
    }

    fn signature(&mut self, signature: &Signature) -> &mut Self {
        signature.encode(self);
        self
    }

    fn absentees(&mut self, absent: &Absentees) -> &mut Self {
        self.u32(absent.more).list(&absent.named, MAX_ABSENT, |w, Absentee { rank, last }| {
            let (instance, signature) = last.as_ref().map_or((0, None), |(i, s)| (i.0, Some(s)));
            let w = w.u32(rank.0).u64(instance);
            if let Some(signature) = signature { w.signature(signature) } else { w }
        })
    }

    fn ranges(&mut self, source: Rank, ranges: &[(u32, u32)]) -> &mut Self {
        self.u32(source.0).list(ranges, MAX_RANGES, |w, (first, count)| w.u32(*first).u32(*count))
    }

    fn error(&mut self, error: &CollectiveError) -> &mut Self {
        match error {
            CollectiveError::RankLost(rank) => self.u8(1).u32(rank.0),
            CollectiveError::PeerLost { sp, rank } => self.u8(2).u64(sp.0).u32(rank.0),
            CollectiveError::Mismatch { a_rank, a, b_rank, b } => {
                self.u8(3).u32(a_rank.0).signature(a).u32(b_rank.0).signature(b)
            }
            CollectiveError::Memory(rank) => self.u8(4).u32(rank.0),
            CollectiveError::Protocol(sp) => self.u8(5).u64(sp.0),
            CollectiveError::Configuration { a, a_digest, b, b_digest } => {
                self.u8(6).u64(a.0).u64(*a_digest).u64(b.0).u64(*b_digest)
            }
            CollectiveError::HandleTaken(group) => self.u8(7).u32(group.0),
            CollectiveError::Block { source_rank, sent, destination, expected } => {
                self.u8(8).u32(source_rank.0).u64(*sent).u32(destination.0).u64(*expected)
            }
            CollectiveError::Deadline(missed) => {
                let awaited = missed.awaited.map_or(0, |rank| rank.0);
                self.u8(9).u64(missed.instance.0).signature(&missed.signature).u64(missed.after_ms);
                self.u8(missed.awaited.is_some().into()).u32(awaited).absentees(&missed.missing)
            }
            CollectiveError::Staging { rank, bytes } => self.u8(10).u32(rank.0).u64(*bytes),
            CollectiveError::Message { source_rank, destination, tag, sent, expected } => {
                self.u8(48).u32(source_rank.0).u32(destination.0).u32(*tag).u64(*sent).u64(*expected)
            }
        }
    }
}

fn read_ranges(r: &mut Reader<'_>) -> Result<Vec<(u32, u32)>, DecodeError> {
    let n = usize::from(r.u16()?);
    if n == 0 || n > MAX_RANGES {
        return Err(DecodeError::Value("number of ranges"));
    }
    let mut ranges = Vec::with_capacity(n);
    let mut free_from = 0u64;
    for _ in 0..n {
        let (first, count) = (r.u32()?, r.u32()?);
        let end = u64::from(first) + u64::from(count);
        if count == 0 || u64::from(first) < free_from || end > u64::from(u32::MAX) {
            return Err(DecodeError::Value("range"));
        }
        free_from = end;
        ranges.push((first, count));
    }
    Ok(ranges)
}

fn read_list<T>(
    r: &mut Reader<'_>,
    most: usize,
    item: impl Fn(&mut Reader<'_>) -> Result<T, DecodeError>,
) -> Result<Vec<T>, DecodeError> {
    let n = usize::from(r.u16()?);
    if n == 0 || n > most {
        return Err(DecodeError::Value("number of blocks"));
    }
    (0..n).map(|_| item(r)).collect()
}

fn read_terms(r: &mut Reader<'_>) -> Result<Terms, DecodeError> {
    let terms = Terms { with: Rank(r.u32()?), sends: r.u64()?, expects: r.u64()?, up_to: r.u64()? };
    let Terms { sends, expects, up_to, .. } = terms;
    let says = sends > 0 || expects > 0;
    if !says || up_to > expects || (up_to == 0) != (expects == 0) {
        return Err(DecodeError::Value("bytes of a block"));
    }
    Ok(terms)
}

fn read_absentees(r: &mut Reader<'_>) -> Result<Absentees, DecodeError> {
    let (more, n) = (r.u32()?, usize::from(r.u16()?));
    if n > MAX_ABSENT {
        return Err(DecodeError::Value("number of absent ranks"));
    }
    let mut absent = Absentees { named: Vec::with_capacity(n), more };
    for _ in 0..n {
        let (rank, instance) = (Rank(r.u32()?), r.u64()?);
        let last = if instance == 0 { None } else { Some((InstanceId(instance), Signature::decode(r)?)) };
        absent.named.push(Absentee { rank, last });
    }
    Ok(absent)
}

fn read_missed(r: &mut Reader<'_>) -> Result<DeadlineMissed, DecodeError> {
    let (instance, signature, after_ms) = (InstanceId(r.u64()?), Signature::decode(r)?, r.u64()?);
    let (named, rank) = (r.u8()?, Rank(r.u32()?));
    let awaited = match (named, rank.0) {
        (0, 0) => None,
        (1, _) => Some(rank),
        _ => return Err(DecodeError::Value("awaited rank")),
    };
    Ok(DeadlineMissed { instance, signature, after_ms, missing: read_absentees(r)?, awaited })
}

fn read_error(r: &mut Reader<'_>) -> Result<CollectiveError, DecodeError> {
    Ok(match r.u8()? {
        1 => CollectiveError::RankLost(Rank(r.u32()?)),
        2 => CollectiveError::PeerLost { sp: SpId(r.u64()?), rank: Rank(r.u32()?) },
        3 => {
            let (a_rank, a) = (Rank(r.u32()?), Signature::decode(r)?);
            let (b_rank, b) = (Rank(r.u32()?), Signature::decode(r)?);
            CollectiveError::Mismatch { a_rank, a, b_rank, b }
        }
        4 => CollectiveError::Memory(Rank(r.u32()?)),
        5 => CollectiveError::Protocol(SpId(r.u64()?)),
        6 => {
            let (a, a_digest) = (SpId(r.u64()?), r.u64()?);
            CollectiveError::Configuration { a, a_digest, b: SpId(r.u64()?), b_digest: r.u64()? }
        }
        7 => CollectiveError::HandleTaken(GroupHandle(r.u32()?)),
        8 => CollectiveError::Block {
            source_rank: Rank(r.u32()?),
            sent: r.u64()?,
            destination: Rank(r.u32()?),
            expected: r.u64()?,
        },
        9 => CollectiveError::Deadline(Box::new(read_missed(r)?)),
        10 => CollectiveError::Staging { rank: Rank(r.u32()?), bytes: r.u64()? },
        48 => CollectiveError::Message {
            source_rank: Rank(r.u32()?),
            destination: Rank(r.u32()?),
            tag: r.u32()?,
            sent: r.u64()?,
            expected: r.u64()?,
        },
        _ => return Err(DecodeError::Value("error kind")),
    })
}
