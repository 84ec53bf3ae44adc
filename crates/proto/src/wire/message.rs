//! The messages between service processes.
//!
//! Messages nest as their subjects do: a group, one of its collectives, the multicast blocks of the collective. Payload
//! follows repairs and messages with bytes from rank to rank. All other messages are complete.

use std::sync::Arc;

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_call::{Rank, Signature};

use super::transfer::TransferMessage;
use crate::error::{Absentee, Absentees, CollectiveError, DeadlineMissed, GroupRefusal, MAX_ABSENT};
use crate::ids::{GroupHandle, InstanceId, OfferId, SpId};

/// Most chunk ranges in one NAK or repair.
pub const MAX_RANGES: usize = 48;
/// Most sources in one [`MulticastMessage::Have`].
pub const MAX_SOURCES: usize = 96;
/// Most blocks in one [`InstanceMessage::Sizes`].
pub const MAX_BLOCKS: usize = 24;
/// Most offers in one [`GroupMessage::RequestStep`].
pub const MAX_OFFERS: usize = 12;
/// Longest address in one [`GroupMessage::RequestStep`].
pub const MAX_ADDRESS: usize = 256;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// No content: replaces a message whose collective has ended, or requests an acknowledgement.
    Void,
    Group {
        group: GroupHandle,
        body: GroupMessage,
    },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GroupMessage {
    /// One step of the barrier by which the group is made.
    Create {
        step: u8,
        /// Fingerprint of the sender's configuration.
        digest: u64,
        /// [`GroupSpec::fingerprint`](crate::GroupSpec::fingerprint) of the group that the sender makes.
        fingerprint: u64,
    },
    /// A rank takes part in nothing after instance `after`: it left or died.
    Lost {
        rank: Rank,
        /// The last instance that the rank completed.
        after: InstanceId,
        /// The rank whose loss fails later instances: the lost rank itself, unless the loss of another rank was known.
        cause: Rank,
    },
    Abort {
        /// Fingerprint of the aborted group, see [`crate::GroupSpec::fingerprint`].
        fingerprint: u64,
        error: CollectiveError,
    },
    /// Requests the receiver's step of the barrier by which the group is made, or the reason why the step cannot come.
    RequestStep {
        /// [`GroupSpec::fingerprint`](crate::GroupSpec::fingerprint) of the group that the sender makes.
        fingerprint: u64,
        /// Address of the sender, for an answer before the receiver knows the group; empty if longer than
        /// [`MAX_ADDRESS`].
        address: Arc<[u8]>,
        /// Ranks that the receiver serves, with their offers; 1 to [`MAX_OFFERS`] entries.
        offers: Vec<(Rank, OfferId)>,
    },
    /// The answer to [`Self::RequestStep`] when a rank cannot request the group any more. The receiver notifies the
    /// other members.
    Refuse {
        /// Fingerprint of the group in the request.
        fingerprint: u64,
        error: CollectiveError,
    },
    /// The sender waits long for instances, or for messages between ranks, and requests the receiver's failures.
    QueryFailures {
        /// Fingerprint of the group in flight, see [`crate::GroupSpec::fingerprint`].
        fingerprint: u64,
        /// The newest instance; 0 if only messages from rank to rank are in flight.
        newest: InstanceId,
        /// The oldest instance, its signature, and a rank that called with it. The receiver compares its own signature.
        oldest: Option<(InstanceId, Signature, Rank)>,
    },
    /// The answer to [`Self::QueryFailures`] if instances fail at the sender, but the group is not broken there.
    Failures {
        /// Fingerprint of the group in the query.
        fingerprint: u64,
        /// The instances after this instance fail.
        after: InstanceId,
        /// The rank whose loss failed these instances.
        cause: Rank,
    },
    Instance {
        instance: InstanceId,
        body: InstanceMessage,
    },
    Transfer(TransferMessage),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum InstanceMessage {
    /// One step of the ready barrier (MC-4). Carries the whole call signature.
    Ready {
        step: u8,
        signature: Signature,
        /// A rank that called with this signature.
        rank: Rank,
    },
    Multicast(MulticastMessage),
    /// Requests the sizes of an allgatherv's blocks.
    RequestSizes,
    /// Sizes of an allgatherv's blocks, in the order of ranks.
    Sizes {
        first: u32,
        /// Bytes of block `first` and of the next blocks; 1 to [`MAX_BLOCKS`] entries.
        sizes: Vec<u64>,
    },
    /// Requests the list of the receiver's ranks that have not called the instance (SP-9).
    Inquire,
    /// The answer to `Inquire`: ranks of the sender that have not called.
    Absent(Absentees),
}

/// A message about the multicast blocks of a collective. Ranges of chunks are (first, count): ascending, disjoint, none
/// empty, 1 to [`MAX_RANGES`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MulticastMessage {
    /// From right to left neighbour: chunks of `source`'s block that are missing (MC-6).
    Nak { source: Rank, ranges: Vec<(u32, u32)> },
    /// To the root: these chunks are missing here and at the right neighbour, so another multicast may be cheaper.
    NakRoot { source: Rank, ranges: Vec<(u32, u32)> },
    /// From left to right neighbour: chunks that a NAK named (MC-6). Payload follows, run after run.
    Repair { source: Rank, ranges: Vec<(u32, u32)> },
    /// From left to right neighbour: the sender has these blocks whole, so missing chunks can be requested.
    Have {
        /// Ranks of the blocks, at most [`MAX_SOURCES`].
        sources: Vec<Rank>,
    },
    /// From right to left neighbour: nothing is missing here any more (MC-7).
    Complete,
}

impl GroupMessage {
    /// The fingerprint of the group that the message is about, if the message carries it.
    pub(crate) fn fingerprint(&self) -> Option<u64> {
        match self {
            GroupMessage::Create { fingerprint, .. }
            | GroupMessage::Abort { fingerprint, .. }
            | GroupMessage::RequestStep { fingerprint, .. }
            | GroupMessage::Refuse { fingerprint, .. }
            | GroupMessage::QueryFailures { fingerprint, .. }
            | GroupMessage::Failures { fingerprint, .. } => Some(*fingerprint),
            GroupMessage::Lost { .. } | GroupMessage::Instance { .. } | GroupMessage::Transfer(_) => None,
        }
    }

    pub(crate) fn has_payload(&self) -> bool {
        match self {
            GroupMessage::Transfer(transfer) => transfer.has_payload(),
            GroupMessage::Instance { body, .. } => {
                matches!(body, InstanceMessage::Multicast(MulticastMessage::Repair { .. }))
            }
            _ => false,
        }
    }
}

impl InstanceMessage {
    /// Whether the message reports missing chunks.
    pub(crate) fn is_nak(&self) -> bool {
        matches!(self, InstanceMessage::Multicast(MulticastMessage::Nak { .. } | MulticastMessage::NakRoot { .. }))
    }
}

impl Message {
    pub fn instance(group: GroupHandle, instance: InstanceId, body: InstanceMessage) -> Message {
        Message::Group { group, body: GroupMessage::Instance { instance, body } }
    }

    pub(crate) fn abort(group: GroupHandle, fingerprint: u64, error: CollectiveError) -> Message {
        Message::Group { group, body: GroupMessage::Abort { fingerprint, error } }
    }

    pub fn transfer(group: GroupHandle, body: TransferMessage) -> Message {
        Message::Group { group, body: GroupMessage::Transfer(body) }
    }

    /// Whether an equal message in flight makes this one redundant. Such messages carry the group's fingerprint.
    pub(crate) fn is_repeatable(&self) -> bool {
        matches!(self, Message::Group { body, .. } if body.fingerprint().is_some())
    }

    /// The rest of the message when its payload cannot be read any more. Nothing is left, except of tagged messages: a
    /// later message must not take the place of a tagged message among messages of its name.
    pub fn without_payload(self) -> Message {
        match self {
            Message::Group { group, body: GroupMessage::Transfer(transfer) } => {
                transfer.without_payload().map_or(Message::Void, |transfer| Message::transfer(group, transfer))
            }
            Message::Group { .. } | Message::Void => Message::Void,
        }
    }

    /// Appends the message to `out`.
    ///
    /// # Panics
    /// When a list is longer than one message takes: callers split long lists.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut w = Writer::new(out);
        let Message::Group { group, body } = self else {
            w.u8(0);
            return;
        };
        let group = *group;
        match body {
            GroupMessage::Create { step, digest, fingerprint } => {
                w.head(1, group).u8(*step).u64(*digest).u64(*fingerprint)
            }
            GroupMessage::Lost { rank, after, cause } => w.head(2, group).u64(after.0).u32(rank.0).u32(cause.0),
            GroupMessage::Abort { fingerprint, error } => w.head(3, group).u64(*fingerprint).error(error),
            GroupMessage::RequestStep { fingerprint, address, offers } => {
                let w = w.head(4, group).u64(*fingerprint).u16(address.len() as u16).bytes(address);
                w.list(offers, MAX_OFFERS, |w, (rank, offer)| w.u32(rank.0).u64(offer.0))
            }
            GroupMessage::Refuse { fingerprint, error } => w.head(5, group).u64(*fingerprint).error(error),
            GroupMessage::QueryFailures { fingerprint, newest, oldest } => {
                let w = w.head(6, group).u64(*fingerprint).u64(newest.0).u8(oldest.is_some().into());
                match oldest {
                    Some((instance, signature, rank)) => w.u64(instance.0).signature(signature).u32(rank.0),
                    None => w,
                }
            }
            GroupMessage::Failures { fingerprint, after, cause } => {
                w.head(7, group).u64(*fingerprint).u64(after.0).u32(cause.0)
            }
            GroupMessage::Transfer(transfer) => transfer.encode(w.head(transfer.code(), group)),
            GroupMessage::Instance { instance, body } => {
                let w = w.head(body.code(), group).u64(instance.0);
                match body {
                    InstanceMessage::Ready { step, signature, rank } => w.u8(*step).signature(signature).u32(rank.0),
                    InstanceMessage::Sizes { first, sizes } => {
                        w.u32(*first).list(sizes, MAX_BLOCKS, |w, bytes| w.u64(*bytes))
                    }
                    InstanceMessage::RequestSizes | InstanceMessage::Inquire => w,
                    InstanceMessage::Absent(ranks) => w.absentees(ranks),
                    InstanceMessage::Multicast(multicast) => match multicast {
                        MulticastMessage::Nak { source, ranges }
                        | MulticastMessage::NakRoot { source, ranges }
                        | MulticastMessage::Repair { source, ranges } => w.ranges(*source, ranges),
                        MulticastMessage::Have { sources } => w.list(sources, MAX_SOURCES, |w, source| w.u32(source.0)),
                        MulticastMessage::Complete => w,
                    },
                }
            }
        };
    }

    /// Reads one message that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Message, DecodeError> {
        let mut r = Reader::new(bytes);
        let message = match r.u8()? {
            0 => Message::Void,
            kind => {
                let group = GroupHandle(r.u32()?);
                Message::Group { group, body: GroupMessage::decode(kind, &mut r)? }
            }
        };
        r.end()?;
        Ok(message)
    }
}

impl GroupMessage {
    fn decode(kind: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            1 => GroupMessage::Create { step: r.u8()?, digest: r.u64()?, fingerprint: r.u64()? },
            2 => {
                let (after, rank) = (InstanceId(r.u64()?), Rank(r.u32()?));
                GroupMessage::Lost { rank, after, cause: Rank(r.u32()?) }
            }
            3 => GroupMessage::Abort { fingerprint: r.u64()?, error: read_error(r)? },
            4 => {
                let (fingerprint, length) = (r.u64()?, usize::from(r.u16()?));
                if length > MAX_ADDRESS {
                    return Err(DecodeError::Value("address"));
                }
                let address = r.bytes(length)?.into();
                let offers = r.list(MAX_OFFERS, |r| Ok((Rank(r.u32()?), OfferId(r.u64()?))))?;
                GroupMessage::RequestStep { fingerprint, address, offers }
            }
            5 => GroupMessage::Refuse { fingerprint: r.u64()?, error: read_error(r)? },
            6 => {
                let (fingerprint, newest) = (r.u64()?, InstanceId(r.u64()?));
                let oldest =
                    if r.flag()? { Some((InstanceId(r.u64()?), Signature::decode(r)?, Rank(r.u32()?))) } else { None };
                GroupMessage::QueryFailures { fingerprint, newest, oldest }
            }
            7 => GroupMessage::Failures { fingerprint: r.u64()?, after: InstanceId(r.u64()?), cause: Rank(r.u32()?) },
            48.. => GroupMessage::Transfer(TransferMessage::decode(kind, r)?),
            _ => match r.u64()? {
                0 => return Err(DecodeError::Value("instance")),
                instance => {
                    let body = InstanceMessage::decode(kind, r)?;
                    GroupMessage::Instance { instance: InstanceId(instance), body }
                }
            },
        })
    }
}

impl InstanceMessage {
    fn code(&self) -> u8 {
        match self {
            InstanceMessage::Ready { .. } => 16,
            InstanceMessage::RequestSizes => 17,
            InstanceMessage::Sizes { .. } => 18,
            InstanceMessage::Inquire => 19,
            InstanceMessage::Absent(_) => 20,
            InstanceMessage::Multicast(multicast) => match multicast {
                MulticastMessage::Nak { .. } => 32,
                MulticastMessage::NakRoot { .. } => 33,
                MulticastMessage::Repair { .. } => 34,
                MulticastMessage::Have { .. } => 35,
                MulticastMessage::Complete => 36,
            },
        }
    }

    fn decode(kind: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let multicast = match kind {
            16 => {
                let step = r.u8()?;
                return Ok(InstanceMessage::Ready { step, signature: Signature::decode(r)?, rank: Rank(r.u32()?) });
            }
            17 => return Ok(InstanceMessage::RequestSizes),
            18 => return Ok(InstanceMessage::Sizes { first: r.u32()?, sizes: r.list(MAX_BLOCKS, Reader::u64)? }),
            19 => return Ok(InstanceMessage::Inquire),
            20 => return Ok(InstanceMessage::Absent(read_absentees(r)?)),
            32 => MulticastMessage::Nak { source: Rank(r.u32()?), ranges: read_ranges(r)? },
            33 => MulticastMessage::NakRoot { source: Rank(r.u32()?), ranges: read_ranges(r)? },
            34 => MulticastMessage::Repair { source: Rank(r.u32()?), ranges: read_ranges(r)? },
            35 => MulticastMessage::Have { sources: r.list(MAX_SOURCES, |r| r.u32().map(Rank))? },
            36 => MulticastMessage::Complete,
            _ => return Err(DecodeError::Value("message kind")),
        };
        Ok(InstanceMessage::Multicast(multicast))
    }
}

/// Encoders of fields that several messages share.
pub(super) trait Fields {
    fn head(&mut self, kind: u8, group: GroupHandle) -> &mut Self;
    fn signature(&mut self, signature: &Signature) -> &mut Self;
    fn absentees(&mut self, absent: &Absentees) -> &mut Self;
    fn ranges(&mut self, source: Rank, ranges: &[(u32, u32)]) -> &mut Self;
    fn error(&mut self, error: &CollectiveError) -> &mut Self;
}

impl Fields for Writer<'_> {
    fn head(&mut self, kind: u8, group: GroupHandle) -> &mut Self {
        self.u8(kind).u32(group.0)
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
            CollectiveError::Engine(rank) => self.u8(13).u32(rank.0),
            CollectiveError::Stalled { sp, rank, ms } => self.u8(14).u64(sp.0).u32(rank.0).u64(*ms),
            CollectiveError::GroupNotRequested { rank, after_ms } => self.u8(11).u32(rank.0).u64(*after_ms),
            CollectiveError::Refused { rank, why } => {
                let why = REFUSALS.iter().position(|one| one == why).expect("all of them are listed");
                self.u8(12).u32(rank.0).u8(why as u8)
            }
            CollectiveError::Message { source_rank, destination, tag, sent, expected } => {
                self.u8(48).u32(source_rank.0).u32(destination.0).u32(*tag).u64(*sent).u64(*expected)
            }
        }
    }
}

/// Refusals in the order of their numbers on the wire.
const REFUSALS: [GroupRefusal; 5] = [
    GroupRefusal::Groups,
    GroupRefusal::Descriptors,
    GroupRefusal::Forgotten,
    GroupRefusal::Peers,
    GroupRefusal::Tables,
];

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
        11 => CollectiveError::GroupNotRequested { rank: Rank(r.u32()?), after_ms: r.u64()? },
        12 => {
            let (rank, why) = (Rank(r.u32()?), usize::from(r.u8()?));
            let why = *REFUSALS.get(why).ok_or(DecodeError::Value("refusal"))?;
            CollectiveError::Refused { rank, why }
        }
        13 => CollectiveError::Engine(Rank(r.u32()?)),
        14 => CollectiveError::Stalled { sp: SpId(r.u64()?), rank: Rank(r.u32()?), ms: r.u64()? },
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
