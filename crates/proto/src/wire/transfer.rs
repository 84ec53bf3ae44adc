//! Messages that move data from rank to rank, for collectives and tagged calls (GP-1, GP-2, SP-5).
//!
//! A message is named (scope, source, destination, tag, occurrence). Behind a ready barrier the receive of a message is
//! posted, so its bytes travel under that name ([`TransferMessage::Expected`]). All other messages travel by
//! [`MessageNumber`]. The end that is first to send an RTS or an early CTS assigns the number.

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_call::{CallKind, Rank, Signature};
use smallvec::SmallVec;

use super::message::Fields;
use crate::ids::InstanceId;

/// Most bytes that the entries of one [`TransferMessage::Offer`] take, so that they fit the largest frame header.
const MAX_OFFER: usize = 420;
/// Most messages in one [`TransferMessage::Cts`].
pub const MAX_CTS: usize = 24;
/// Most pieces in one [`TransferMessage::Data`].
pub const MAX_PIECES_OF_DATA: usize = 20;
/// Most numbers in one [`TransferMessage::Done`].
pub const MAX_DONE: usize = 48;

/// The calls of source and destination that a message belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// Single tagged messages, matched in the order of sending (GP-1).
    Single,
    /// Calls of a recording (GP-2). Each end counts the calls from 1.
    Recorded {
        /// Number of the group's recording, from 1.
        recording: u32,
        /// Number of the recording's call.
        call: u64,
    },
    Instance(InstanceId),
}

/// The scope of an offer. A collective adds its signature, since the offer may be the first news of the collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OfferOrigin {
    Single,
    Recorded {
        /// Number of the group's recording, from 1.
        recording: u32,
        /// Number of the recording's call, from 1.
        call: u64,
    },
    Instance {
        instance: InstanceId,
        signature: Signature,
        /// A rank that called with this signature. The offering rank may have a stand-in, which forwards the signature
        /// of another rank.
        first_caller: Rank,
    },
}

impl OfferOrigin {
    /// The origin without the signature.
    pub fn scope(self) -> Scope {
        match self {
            OfferOrigin::Single => Scope::Single,
            OfferOrigin::Recorded { recording, call } => Scope::Recorded { recording, call },
            OfferOrigin::Instance { instance, .. } => Scope::Instance(instance),
        }
    }

    /// Bytes of an entry, in the list of RTS and in the list of early CTS. Messages of collectives have no occurrence.
    fn entry_bytes(self) -> (usize, usize) {
        match self {
            OfferOrigin::Single | OfferOrigin::Recorded { .. } => (21, 28),
            OfferOrigin::Instance { .. } => (17, 24),
        }
    }

    /// Whether this many entries fit one offer.
    pub fn fits(self, ready: usize, early: usize) -> bool {
        let (one_ready, one_early) = self.entry_bytes();
        ready * one_ready + early * one_early <= MAX_OFFER
    }
}

/// Ready to send: one message of the offering rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rts {
    pub destination: Rank,
    /// The tag at both ends.
    pub tag: u32,
    /// How many messages of the same scope, pair and tag precede this message; 0 for single messages.
    pub occurrence: u32,
    pub bytes: u64,
    /// The bytes follow in the payload, behind the bytes of the earlier messages.
    pub eager: bool,
}

/// Clear to send, ahead of the RTS: one message that the offering rank receives and whose size it knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EarlyCts {
    pub source: Rank,
    /// The tag at both ends.
    pub tag: u32,
    /// How many messages of the same scope, pair and tag precede this message.
    pub occurrence: u32,
    /// The message's bytes, at least 1.
    pub bytes: u64,
    /// The source may send the bytes up to here; with 0 it must offer the message.
    pub up_to: u64,
}

/// The number of a message between two service processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageNumber {
    /// The number that the source gave its RTS.
    Rts(u64),
    /// The number that the destination gave its early CTS.
    Early(u64),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cts {
    pub number: MessageNumber,
    /// The source may send the bytes up to here, more than before.
    pub up_to: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataPiece {
    pub number: MessageNumber,
    pub offset: u64,
    /// Number of bytes, at least 1. The bytes follow in the payload, behind the earlier pieces.
    pub bytes: u32,
}

/// A fragment of a message whose receive is posted behind a ready barrier: the message's name and the fragment's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment {
    pub instance: InstanceId,
    pub source: Rank,
    pub destination: Rank,
    /// The message's tag: the index in the plan.
    pub index: u32,
    pub total: u64,
    pub offset: u64,
}

/// Entries of a message that mostly has one entry. A small message needs no allocation at either end.
pub type Few<T> = SmallVec<[T; 1]>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransferMessage {
    /// The messages of one call of `rank` for ranks of the receiver, and the bytes that the receiver may send already.
    /// Payload follows if any message is eager. At least one list has entries.
    Offer {
        origin: OfferOrigin,
        rank: Rank,
        /// Number of the first entry of `ready`; the other entries have the following numbers.
        first_ready: u64,
        ready: Few<Rts>,
        /// Number of the first entry of `early`; the other entries have the following numbers.
        first_early: u64,
        early: Vec<EarlyCts>,
    },
    /// Permission for more bytes: 1 to [`MAX_CTS`] entries.
    Cts(Vec<Cts>),
    /// The next bytes of 1 to [`MAX_PIECES_OF_DATA`] messages. Payload follows.
    Data(Vec<DataPiece>),
    /// A fragment of a message behind a ready barrier. Payload follows.
    Expected(Fragment),
    /// These RTS are settled: the messages' bytes have come, or are not needed. 1 to [`MAX_DONE`] entries.
    Done(Few<u64>),
}

impl TransferMessage {
    pub(crate) fn has_payload(&self) -> bool {
        !matches!(self, TransferMessage::Cts(_) | TransferMessage::Done(_))
    }

    /// The rest of the message when its payload cannot be read any more. An offer remains, without the bytes of its
    /// messages, since single messages are matched in their order.
    pub(super) fn without_payload(self) -> Option<TransferMessage> {
        let TransferMessage::Offer { origin, rank, first_ready, mut ready, first_early, early } = self else {
            return None;
        };
        // A message of no bytes stays eager: it is complete.
        ready.iter_mut().for_each(|rts| rts.eager &= rts.bytes == 0);
        Some(TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early })
    }

    /// Appends all fields behind the group.
    pub(super) fn encode<'w, 'out>(&self, w: &'w mut Writer<'out>) -> &'w mut Writer<'out> {
        match self {
            TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early } => {
                assert!(origin.fits(ready.len(), early.len()), "the caller splits what does not fit");
                let tagged = !matches!(origin, OfferOrigin::Instance { .. });
                let w = match origin {
                    OfferOrigin::Single => w.u8(0),
                    OfferOrigin::Recorded { recording, call } => w.u8(1).u32(*recording).u64(*call),
                    OfferOrigin::Instance { instance, signature, first_caller } => {
                        w.u8(2).u64(instance.0).signature(signature).u32(first_caller.0)
                    }
                };
                let name = move |w: &mut Writer<'_>, rank: Rank, tag, occurrence| {
                    w.u32(rank.0).u32(tag);
                    if tagged {
                        w.u32(occurrence);
                    }
                };
                w.u32(rank.0).u64(*first_ready).list(ready, ready.len(), |w, rts| {
                    name(w, rts.destination, rts.tag, rts.occurrence);
                    w.u64(rts.bytes).u8(rts.eager.into())
                });
                w.u64(*first_early).list(early, early.len(), |w, cts| {
                    name(w, cts.source, cts.tag, cts.occurrence);
                    w.u64(cts.bytes).u64(cts.up_to)
                })
            }
            TransferMessage::Cts(all) => w.list(all, MAX_CTS, |w, cts| cts.number.encode(w).u64(cts.up_to)),
            TransferMessage::Data(pieces) => {
                w.list(pieces, MAX_PIECES_OF_DATA, |w, piece| piece.number.encode(w).u64(piece.offset).u32(piece.bytes))
            }
            TransferMessage::Expected(Fragment { instance, source, destination, index, total, offset }) => {
                w.u64(instance.0).u32(source.0).u32(destination.0).u32(*index).u64(*total).u64(*offset)
            }
            TransferMessage::Done(numbers) => w.list(numbers, MAX_DONE, |w, number| w.u64(*number)),
        }
    }

    pub(super) fn code(&self) -> u8 {
        match self {
            TransferMessage::Offer { .. } => 48,
            TransferMessage::Cts(_) => 49,
            TransferMessage::Data(_) => 50,
            TransferMessage::Expected(_) => 51,
            TransferMessage::Done(_) => 52,
        }
    }

    /// Decodes the message with this code that [`Self::encode`] wrote.
    pub(super) fn decode(code: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match code {
            48 => read_offer(r)?,
            49 => TransferMessage::Cts(r.list(MAX_CTS, |r| Ok(Cts { number: read_number(r)?, up_to: r.u64()? }))?),
            50 => {
                TransferMessage::Data(r.list(MAX_PIECES_OF_DATA, |r| match (read_number(r)?, r.u64()?, r.u32()?) {
                    (_, _, 0) => Err(DecodeError::Value("bytes of a piece")),
                    (number, offset, bytes) => Ok(DataPiece { number, offset, bytes }),
                })?)
            }
            51 => {
                let (instance, source, destination) = (read_instance(r)?, Rank(r.u32()?), Rank(r.u32()?));
                let (index, total, offset) = (r.u32()?, r.u64()?, r.u64()?);
                if offset > total {
                    return Err(DecodeError::Value("offset"));
                }
                TransferMessage::Expected(Fragment { instance, source, destination, index, total, offset })
            }
            52 => TransferMessage::Done(r.list(MAX_DONE, Reader::u64)?),
            _ => return Err(DecodeError::Value("message kind")),
        })
    }
}

impl MessageNumber {
    fn encode<'w, 'out>(self, w: &'w mut Writer<'out>) -> &'w mut Writer<'out> {
        match self {
            MessageNumber::Rts(number) => w.u8(0).u64(number),
            MessageNumber::Early(number) => w.u8(1).u64(number),
        }
    }
}

fn read_number(r: &mut Reader<'_>) -> Result<MessageNumber, DecodeError> {
    Ok(if r.flag()? { MessageNumber::Early(r.u64()?) } else { MessageNumber::Rts(r.u64()?) })
}

fn read_instance(r: &mut Reader<'_>) -> Result<InstanceId, DecodeError> {
    match r.u64()? {
        0 => Err(DecodeError::Value("instance")),
        instance => Ok(InstanceId(instance)),
    }
}

fn read_origin(r: &mut Reader<'_>) -> Result<OfferOrigin, DecodeError> {
    match r.u8()? {
        0 => Ok(OfferOrigin::Single),
        1 => match (r.u32()?, r.u64()?) {
            (0, _) | (_, 0) => Err(DecodeError::Value("call of a recording")),
            (recording, call) => Ok(OfferOrigin::Recorded { recording, call }),
        },
        2 => {
            let (instance, signature) = (read_instance(r)?, Signature::decode(r)?);
            if matches!(signature.kind, CallKind::Tagged(_)) {
                return Err(DecodeError::Value("call kind"));
            }
            Ok(OfferOrigin::Instance { instance, signature, first_caller: Rank(r.u32()?) })
        }
        _ => Err(DecodeError::Value("scope")),
    }
}

/// Checks the numbers of `entries` entries from `first` on; `first` is 0 if and only if there are no entries.
fn check_numbers(first: u64, entries: usize) -> Result<u64, DecodeError> {
    let sound = first.checked_add(entries as u64).is_some() && (first == 0) == (entries == 0);
    if sound { Ok(first) } else { Err(DecodeError::Value("number of messages")) }
}

fn read_offer(r: &mut Reader<'_>) -> Result<TransferMessage, DecodeError> {
    let (origin, rank, first_ready, n) = (read_origin(r)?, Rank(r.u32()?), r.u64()?, usize::from(r.u16()?));
    let name = |r: &mut Reader<'_>| {
        let rank = Rank(r.u32()?);
        let tag = r.u32()?;
        let occurrence = match origin {
            OfferOrigin::Instance { .. } => 0,
            OfferOrigin::Single | OfferOrigin::Recorded { .. } => r.u32()?,
        };
        if origin == OfferOrigin::Single && occurrence != 0 {
            Err(DecodeError::Value("occurrence"))
        } else {
            Ok((rank, tag, occurrence))
        }
    };
    if !origin.fits(n, 0) {
        return Err(DecodeError::Value("number of messages"));
    }
    let read_rts = |r: &mut Reader<'_>| {
        let (destination, tag, occurrence) = name(r)?;
        Ok(Rts { destination, tag, occurrence, bytes: r.u64()?, eager: r.flag()? })
    };
    let ready = (0..n).map(|_| read_rts(r)).collect::<Result<Few<Rts>, _>>()?;
    let (first_early, m) = (r.u64()?, usize::from(r.u16()?));
    if n + m == 0 || !origin.fits(n, m) {
        return Err(DecodeError::Value("number of messages"));
    }
    let read_early = |r: &mut Reader<'_>| {
        let (source, tag, occurrence) = name(r)?;
        let cts = EarlyCts { source, tag, occurrence, bytes: r.u64()?, up_to: r.u64()? };
        if cts.bytes == 0 || cts.up_to > cts.bytes { Err(DecodeError::Value("bytes of a message")) } else { Ok(cts) }
    };
    let early: Vec<EarlyCts> = (0..m).map(|_| read_early(r)).collect::<Result<_, _>>()?;
    if m > 0 && matches!(origin, OfferOrigin::Single | OfferOrigin::Recorded { call: 1, .. }) {
        return Err(DecodeError::Value("clear to send ahead of the first call"));
    }
    let (first_ready, first_early) = (check_numbers(first_ready, n)?, check_numbers(first_early, m)?);
    Ok(TransferMessage::Offer { origin, rank, first_ready, ready, first_early, early })
}
