//! Messages of the attach socket and their codec.
//!
//! A message is `magic (u32), version (u16), kind (u16), token (u64), body`, little-endian; a text is its length (u16)
//! and UTF-8. Requests count their tokens from 1, and a reply repeats the token of its request. An error with token 0
//! belongs to no request: it is the reason why the service process closes the connection. A decoder accepts a message
//! only if every field is in range and no bytes are left.

use outboard_call::codec::{self, Reader, Writer};

use crate::memory::{Probe, Tier};
use crate::status::Status;

/// Version of the messages; both ends must have the same.
pub const ATTACH_VERSION: u16 = 7;
/// Bytes of a group offer, as in `outboard.h`.
pub const OFFER_BYTES: usize = 1024;
/// Longest text in a message; longer texts are cut.
pub const TEXT_BYTES: usize = 2048;
pub(super) const MESSAGE_BYTES: usize = 4096;

const MAGIC: u32 = u32::from_le_bytes(*b"OBAT");

/// From rank to service process. Groups have the identifiers in [`GroupReady`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachRequest {
    /// First message of a connection. One descriptor if the rank passes its memory
    /// ([`crate::memory::MemoryDescriptor`]). Reply: [`AttachReply::Welcome`].
    Hello(Hello),
    /// Requests this rank's contribution to a group. Reply: [`AttachReply::Offer`].
    Offer,
    /// Creates a group. The request is collective, so the reply may take long. One descriptor: the offers of all ranks
    /// in rank order, written by [`crate::region::seal_bytes`]. Reply: [`AttachReply::GroupReady`].
    CreateGroup {
        ranks: u32,
        /// This rank's number, less than `ranks`.
        rank: u32,
    },
    /// Removes a group, which must have no requests in flight. Reply: [`AttachReply::Done`].
    DestroyGroup { group: u64 },
    /// Sets the deadline of this rank's later calls in the group. A call that misses it fails on all ranks (SP-9).
    /// Reply: [`AttachReply::Done`].
    SetDeadline {
        group: u64,
        /// Counted from the start of a call; 0 for no deadline.
        milliseconds: u64,
    },
    /// Stores a recording of the rank on a group (GP-5). Recording numbers begin at 1 and increase. One descriptor: the
    /// recording in the encoding of `outboard_proto::wire`, written by [`crate::region::seal_bytes`]. Reply:
    /// [`AttachReply::Done`].
    Record { group: u64, recording: u32, bytes: u64 },
    /// Removes a recording, which must have no call in flight. Reply: [`AttachReply::Done`].
    FreeRecording { group: u64, recording: u32 },
    /// Registers a memory range that lies in a memfd. One descriptor: the memfd, sealed. Reply: [`AttachReply::Done`].
    RegisterMemory {
        address: u64,
        /// Bytes of the whole memfd.
        bytes: u64,
    },
    /// Removes a range. Reply: [`AttachReply::Done`].
    UnregisterMemory { address: u64 },
    /// The service process cannot access the buffers of a call in flight, and the rank has copied them.
    /// Reply: [`AttachReply::Done`], or an error if the call has ended; the copy is then not used.
    Restage(RestagedBuffers),
    /// The rank may not access the buffers of a call in flight either, so it cannot copy them. Reply:
    /// [`AttachReply::Done`], or an error if the call has ended.
    RefuseRestage { group: u64, instance: u64, slot: u32 },
    /// Requests the error text of the failed request whose result is in `slot`. Reply: [`AttachReply::ErrorText`].
    ErrorText { slot: u32 },
    /// Last message of a connection that ends in good order. Reply: [`AttachReply::Done`].
    Detach,
}

/// Identity of the rank, and the proof of access to its memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hello {
    /// [`crate::control::LAYOUT_VERSION`] of the library.
    pub layout_version: u32,
    /// The rank's own process number; the socket's credentials take precedence.
    pub pid: u32,
    /// Address of a [`Probe`], which stays there while the rank is attached.
    pub probe_address: u64,
    pub nonce: [u8; Probe::NONCE],
    /// Whether a descriptor of the rank's memory follows.
    pub descriptor: bool,
}

/// The new addresses of the buffers of a call in flight, in registered memory; their lengths stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestagedBuffers {
    pub group: u64,
    pub instance: u64,
    pub slot: u32,
    /// Address of the send buffer, also for a call in place.
    pub send: u64,
    /// Address of the receive buffer, filled as far as data has been received.
    pub receive: u64,
}

/// From service process to rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AttachReply {
    /// The rank is attached. Two descriptors: control region, doorbell.
    Welcome(Welcome),
    /// The rank's contribution to the creation of a group; opaque to the rank.
    Offer(Box<[u8; OFFER_BYTES]>),
    GroupReady(GroupReady),
    Done,
    /// The reason why a collective failed.
    ErrorText {
        status: Status,
        text: String,
    },
    Error {
        /// The kind of failure; never [`Status::Ok`].
        status: Status,
        text: String,
    },
}

/// Properties of the service process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Welcome {
    /// The tier for memory of this rank that is not registered: never [`Tier::Memfd`].
    pub tier: Tier,
    /// Digest of the configuration, which the ranks of a group compare.
    pub config_digest: u64,
    /// Most memory ranges that the rank may register at once.
    pub most_ranges: u32,
    /// Rate of the link in bit/s.
    pub link_rate: u64,
}

/// Identifiers and limits of a group for its ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupReady {
    /// Identifies the group between this rank and its service process.
    pub group: u64,
    /// Identifies the group among the service processes, for messages to users.
    pub handle: u32,
    /// Fewest bytes of a rank's contribution to an offloaded call.
    pub offloads_from: u64,
    /// Most bytes of a rank's contribution to an offloaded call.
    pub offloads_up_to: u64,
    /// Largest contribution, in bytes, to a reduction for which this service process has scratch memory.
    pub reduction_most: u64,
}

/// A message that no release of this version writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AttachDecodeError {
    #[error(
        "the other side speaks version {theirs} of the attach protocol, this side {ATTACH_VERSION}; install both from one release"
    )]
    Version { theirs: u16 },
    #[error("malformed attach message: {0}")]
    Malformed(#[from] codec::DecodeError),
    #[error("attach message came with {actual} descriptors instead of {expected}")]
    Descriptors { expected: usize, actual: usize },
}

fn bad(field: &'static str) -> AttachDecodeError {
    AttachDecodeError::Malformed(codec::DecodeError::Value(field))
}

fn start<'w, 'out>(w: &'w mut Writer<'out>, kind: u16, token: u64) -> &'w mut Writer<'out> {
    w.u32(MAGIC).u16(ATTACH_VERSION).u16(kind).u64(token)
}

/// Checks the header; returns kind, token and a reader of the body.
fn read_start(message: &[u8]) -> Result<(u16, u64, Reader<'_>), AttachDecodeError> {
    let mut reader = Reader::new(message);
    if reader.u32()? != MAGIC {
        return Err(bad("magic number"));
    }
    let theirs = reader.u16()?;
    if theirs != ATTACH_VERSION {
        return Err(AttachDecodeError::Version { theirs });
    }
    Ok((reader.u16()?, reader.u64()?, reader))
}

fn read_text(reader: &mut Reader<'_>) -> Result<String, AttachDecodeError> {
    Ok(reader.text(TEXT_BYTES)?.to_owned())
}

fn read_failure(reader: &mut Reader<'_>) -> Result<Status, AttachDecodeError> {
    match Status::from_code(reader.u32()? as i32) {
        Some(Status::Ok) | None => Err(bad("status")),
        Some(failure) => Ok(failure),
    }
}

/// A message of one direction, which a [`super::AttachChannel`] carries.
pub trait AttachMessage: Sized {
    fn encode(&self, token: u64) -> Vec<u8>;

    fn decode(bytes: &[u8]) -> Result<(u64, Self), AttachDecodeError>;

    /// Number of descriptors that go with the message.
    fn descriptors(&self) -> usize;
}

impl AttachMessage for AttachRequest {
    fn encode(&self, token: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let w = &mut Writer::new(&mut bytes);
        match self {
            AttachRequest::Hello(hello) => start(w, 1, token)
                .u32(hello.layout_version)
                .u32(hello.pid)
                .u64(hello.probe_address)
                .bytes(&hello.nonce)
                .u32(hello.descriptor.into()),
            AttachRequest::Offer => start(w, 2, token),
            AttachRequest::CreateGroup { ranks, rank } => start(w, 3, token).u32(*ranks).u32(*rank),
            AttachRequest::DestroyGroup { group } => start(w, 4, token).u64(*group),
            AttachRequest::RegisterMemory { address, bytes } => start(w, 5, token).u64(*address).u64(*bytes),
            AttachRequest::UnregisterMemory { address } => start(w, 6, token).u64(*address),
            AttachRequest::ErrorText { slot } => start(w, 7, token).u32(*slot),
            AttachRequest::Detach => start(w, 8, token),
            AttachRequest::Restage(restaged) => start(w, 9, token)
                .u64(restaged.group)
                .u64(restaged.instance)
                .u32(restaged.slot)
                .u64(restaged.send)
                .u64(restaged.receive),
            AttachRequest::RefuseRestage { group, instance, slot } => {
                start(w, 10, token).u64(*group).u64(*instance).u32(*slot)
            }
            AttachRequest::Record { group, recording, bytes } => {
                start(w, 48, token).u64(*group).u32(*recording).u64(*bytes)
            }
            AttachRequest::FreeRecording { group, recording } => start(w, 49, token).u64(*group).u32(*recording),
            AttachRequest::SetDeadline { group, milliseconds } => start(w, 12, token).u64(*group).u64(*milliseconds),
        };
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<(u64, Self), AttachDecodeError> {
        let (kind, token, mut reader) = read_start(bytes)?;
        let request = match kind {
            1 => AttachRequest::Hello(Hello {
                layout_version: reader.u32()?,
                pid: reader.u32()?,
                probe_address: reader.u64()?,
                nonce: reader.array()?,
                descriptor: match reader.u32()? {
                    0 => false,
                    1 => true,
                    _ => return Err(bad("descriptor")),
                },
            }),
            2 => AttachRequest::Offer,
            3 => {
                let (ranks, rank) = (reader.u32()?, reader.u32()?);
                if rank >= ranks {
                    return Err(bad("rank"));
                }
                AttachRequest::CreateGroup { ranks, rank }
            }
            4 => AttachRequest::DestroyGroup { group: reader.u64()? },
            5 => AttachRequest::RegisterMemory { address: reader.u64()?, bytes: reader.u64()? },
            6 => AttachRequest::UnregisterMemory { address: reader.u64()? },
            7 => AttachRequest::ErrorText { slot: reader.u32()? },
            8 => AttachRequest::Detach,
            9 => AttachRequest::Restage(RestagedBuffers {
                group: reader.u64()?,
                instance: reader.u64()?,
                slot: reader.u32()?,
                send: reader.u64()?,
                receive: reader.u64()?,
            }),
            10 => AttachRequest::RefuseRestage { group: reader.u64()?, instance: reader.u64()?, slot: reader.u32()? },
            48 => AttachRequest::Record { group: reader.u64()?, recording: reader.u32()?, bytes: reader.u64()? },
            49 => AttachRequest::FreeRecording { group: reader.u64()?, recording: reader.u32()? },
            12 => AttachRequest::SetDeadline { group: reader.u64()?, milliseconds: reader.u64()? },
            _ => return Err(bad("kind")),
        };
        reader.end()?;
        Ok((token, request))
    }

    fn descriptors(&self) -> usize {
        match self {
            AttachRequest::Hello(hello) => hello.descriptor.into(),
            AttachRequest::CreateGroup { .. } | AttachRequest::RegisterMemory { .. } | AttachRequest::Record { .. } => {
                1
            }
            AttachRequest::Offer
            | AttachRequest::DestroyGroup { .. }
            | AttachRequest::SetDeadline { .. }
            | AttachRequest::FreeRecording { .. }
            | AttachRequest::UnregisterMemory { .. }
            | AttachRequest::ErrorText { .. }
            | AttachRequest::Restage(_)
            | AttachRequest::RefuseRestage { .. }
            | AttachRequest::Detach => 0,
        }
    }
}

impl AttachMessage for AttachReply {
    fn encode(&self, token: u64) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64);
        let w = &mut Writer::new(&mut bytes);
        match self {
            AttachReply::Welcome(welcome) => {
                let Welcome { tier, config_digest, most_ranges, link_rate } = welcome;
                start(w, 101, token).u32(tier.code()).u64(*config_digest).u32(*most_ranges).u64(*link_rate)
            }
            AttachReply::Offer(offer) => start(w, 102, token).bytes(&offer[..]),
            AttachReply::GroupReady(ready) => start(w, 103, token)
                .u64(ready.group)
                .u32(ready.handle)
                .u64(ready.offloads_from)
                .u64(ready.offloads_up_to)
                .u64(ready.reduction_most),
            AttachReply::Done => start(w, 104, token),
            AttachReply::ErrorText { status, text } | AttachReply::Error { status, text } => {
                let kind = if matches!(self, AttachReply::Error { .. }) { 106 } else { 105 };
                start(w, kind, token).u32(status.code() as u32).text(text, TEXT_BYTES)
            }
        };
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<(u64, Self), AttachDecodeError> {
        let (kind, token, mut reader) = read_start(bytes)?;
        let reply = match kind {
            101 => AttachReply::Welcome(Welcome {
                tier: match Tier::from_code(reader.u32()?) {
                    Some(tier @ (Tier::CrossMemory | Tier::MemoryDescriptor | Tier::Staging)) => tier,
                    Some(Tier::Memfd) | None => return Err(bad("tier")),
                },
                config_digest: reader.u64()?,
                most_ranges: reader.u32()?,
                link_rate: reader.u64()?,
            }),
            102 => AttachReply::Offer(Box::new(reader.array()?)),
            103 => AttachReply::GroupReady(GroupReady {
                group: reader.u64()?,
                handle: reader.u32()?,
                offloads_from: reader.u64()?,
                offloads_up_to: reader.u64()?,
                reduction_most: reader.u64()?,
            }),
            104 => AttachReply::Done,
            105 => AttachReply::ErrorText { status: read_failure(&mut reader)?, text: read_text(&mut reader)? },
            106 => AttachReply::Error { status: read_failure(&mut reader)?, text: read_text(&mut reader)? },
            _ => return Err(bad("kind")),
        };
        reader.end()?;
        Ok((token, reply))
    }

    fn descriptors(&self) -> usize {
        match self {
            AttachReply::Welcome(_) => 2,
            AttachReply::Offer(_)
            | AttachReply::GroupReady(_)
            | AttachReply::Done
            | AttachReply::ErrorText { .. }
            | AttachReply::Error { .. } => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<AttachRequest> {
        vec![
            AttachRequest::Hello(Hello {
                layout_version: 1,
                pid: 77,
                probe_address: 1 << 46,
                nonce: [9; 16],
                descriptor: true,
            }),
            AttachRequest::Offer,
            AttachRequest::CreateGroup { ranks: 4096, rank: 4095 },
            AttachRequest::DestroyGroup { group: 5 },
            AttachRequest::SetDeadline { group: 5, milliseconds: 1500 },
            AttachRequest::Record { group: 5, recording: 1, bytes: 1 << 33 },
            AttachRequest::FreeRecording { group: 5, recording: u32::MAX },
            AttachRequest::RegisterMemory { address: 1 << 40, bytes: 1 << 30 },
            AttachRequest::UnregisterMemory { address: 1 << 40 },
            AttachRequest::ErrorText { slot: 3 },
            AttachRequest::Detach,
            AttachRequest::Restage(RestagedBuffers { group: 1, instance: 2, slot: 3, send: 1 << 40, receive: 1 << 41 }),
            AttachRequest::RefuseRestage { group: 1, instance: 2, slot: 3 },
        ]
    }

    fn replies() -> Vec<AttachReply> {
        vec![
            AttachReply::Welcome(Welcome {
                tier: Tier::Staging,
                config_digest: u64::MAX,
                most_ranges: 7,
                link_rate: 9,
            }),
            AttachReply::Offer(Box::new([7; OFFER_BYTES])),
            AttachReply::GroupReady(GroupReady {
                group: 1,
                handle: 2,
                offloads_from: 3,
                offloads_up_to: u64::MAX,
                reduction_most: 4,
            }),
            AttachReply::Done,
            AttachReply::ErrorText { status: Status::RankLost, text: "rank 3 died".into() },
            AttachReply::Error { status: Status::Mismatch, text: "größer".into() },
        ]
    }

    /// Encoding and decoding preserve every message. A message that is cut anywhere or has a byte too many is an error,
    /// never a panic.
    fn check<M: AttachMessage + PartialEq + std::fmt::Debug>(messages: Vec<M>) {
        for (token, message) in messages.into_iter().enumerate() {
            let mut bytes = message.encode(token as u64);
            assert!(bytes.len() <= MESSAGE_BYTES);
            assert_eq!(M::decode(&bytes), Ok((token as u64, message)));
            // All positions take Miri an hour.
            for at in (0..bytes.len()).step_by(if cfg!(miri) { 101 } else { 1 }) {
                assert!(M::decode(&bytes[..at]).is_err(), "cut at {at}");
                for flip in [1, 0x80, 0xff] {
                    let mut flipped = bytes.clone();
                    flipped[at] ^= flip;
                    if let Ok((token, message)) = M::decode(&flipped) {
                        assert_eq!(message.encode(token), flipped, "flipped at {at}");
                    }
                }
            }
            bytes.push(0);
            assert_eq!(M::decode(&bytes), Err(AttachDecodeError::Malformed(codec::DecodeError::Trailing)));
        }
    }

    #[test]
    fn messages_survive_and_cut_ones_are_errors() {
        check(requests());
        check(replies());
    }

    #[test]
    fn bad_fields_are_named() {
        let mut other = AttachRequest::Offer.encode(1);
        other[4] = 9;
        assert_eq!(AttachRequest::decode(&other), Err(AttachDecodeError::Version { theirs: 9 }));
        other[0] = 0;
        assert_eq!(AttachRequest::decode(&other), Err(bad("magic number")));
        let rank = AttachRequest::CreateGroup { ranks: 2, rank: 2 }.encode(1);
        assert_eq!(AttachRequest::decode(&rank), Err(bad("rank")));
        assert_eq!(AttachReply::decode(&AttachRequest::Offer.encode(1)), Err(bad("kind")));
    }

    #[test]
    fn long_texts_are_cut_at_a_character() {
        let text = "ü".repeat(TEXT_BYTES);
        let bytes = AttachReply::Error { status: Status::Internal, text }.encode(1);
        let Ok((1, AttachReply::Error { text, .. })) = AttachReply::decode(&bytes) else {
            panic!("not an error reply")
        };
        assert_eq!(text, "ü".repeat(TEXT_BYTES / 2));
    }
}
