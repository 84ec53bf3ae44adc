//! What service processes say to each other about tagged messages between ranks (GP-1, GP-2).
//!
//! A message is named (recording, source, destination, call, tag, occurrence), see [`crate::messaging`]; between two
//! service processes it goes by the number under which the one of its source has posted it, or the other has asked for it.

use outboard_plan::Rank;

use outboard_call::codec::{DecodeError, Reader, Writer};

/// Most messages in one [`TaggedMessage::Post`]: as many as fit the largest frame header.
pub const MAX_POSTED: usize = 20;
/// Most numbers in one [`TaggedMessage::Took`] or [`TaggedMessage::Pull`].
pub const MAX_NUMBERS: usize = 48;

/// Most pieces in one [`TaggedMessage::Fill`].
pub const MAX_FILLED: usize = 20;

/// One message in a [`TaggedMessage::Post`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Posted {
    /// For whom.
    pub destination: Rank,
    /// The tag that both ends give it.
    pub tag: u32,
    /// How many messages of the same call, pair and tag precede it; 0 in recording 0.
    pub occurrence: u32,
    /// Its bytes.
    pub bytes: u64,
    /// They follow in the payload, behind those of the messages before it.
    pub eager: bool,
}

/// One message in a [`TaggedMessage::Ask`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wanted {
    /// Of whom.
    pub source: Rank,
    /// The tag that both ends give it.
    pub tag: u32,
    /// How many messages of the same call, pair and tag precede it.
    pub occurrence: u32,
    /// Its bytes.
    pub bytes: u64,
    /// They may come at once; else it is to be posted.
    pub room: bool,
}

/// Bytes of one message in a [`TaggedMessage::Fill`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Filled {
    /// The message, by the number under which it was asked for.
    pub number: u64,
    /// Where they lie in it.
    pub offset: u64,
    /// How many, at least 1. They follow in the payload, behind those before.
    pub bytes: u32,
}

/// See the module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TaggedMessage {
    /// Messages of one call of a rank, for ranks of the receiver. Payload follows if any is eager.
    Post {
        /// Whose.
        source: Rank,
        /// Which of the group's recordings; 0 for single messages, which are matched in the order in which they are posted.
        recording: u32,
        /// Which call of the recording, from 1; 0 in recording 0.
        call: u64,
        /// Number of the first message; the others follow.
        first: u64,
        /// 1 to [`MAX_POSTED`].
        messages: Vec<Posted>,
    },
    /// These messages are not needed any more: their bytes have been taken, or nobody wants them.
    Took {
        /// 1 to [`MAX_NUMBERS`].
        numbers: Vec<u64>,
    },
    /// Asks for the bytes of these messages.
    Pull {
        /// 1 to [`MAX_NUMBERS`].
        numbers: Vec<u64>,
    },
    /// The next bytes of a message that was asked for. Payload follows.
    Part {
        /// The message.
        number: u64,
        /// Where they lie in it.
        offset: u64,
    },
    /// Asks ranks of the receiver for messages of a recording whose sizes an earlier call has compared, posted or not (GP-5).
    Ask {
        /// Who receives.
        destination: Rank,
        /// Which of the group's recordings.
        recording: u32,
        /// Which call of it, from 2.
        call: u64,
        /// Number of the first message; the others follow.
        first: u64,
        /// 1 to [`MAX_POSTED`].
        messages: Vec<Wanted>,
    },
    /// The next bytes of messages that were asked for so. Payload follows.
    Fill {
        /// 1 to [`MAX_FILLED`].
        pieces: Vec<Filled>,
    },
}

impl TaggedMessage {
    /// The code of the message's kind on the wire.
    pub(super) fn code(&self) -> u8 {
        match self {
            TaggedMessage::Post { .. } => 48,
            TaggedMessage::Took { .. } => 49,
            TaggedMessage::Pull { .. } => 50,
            TaggedMessage::Part { .. } => 51,
            TaggedMessage::Ask { .. } => 52,
            TaggedMessage::Fill { .. } => 53,
        }
    }

    /// Whether payload may follow.
    pub(crate) fn carries(&self) -> bool {
        match self {
            TaggedMessage::Post { .. } | TaggedMessage::Part { .. } | TaggedMessage::Fill { .. } => true,
            TaggedMessage::Took { .. } | TaggedMessage::Pull { .. } | TaggedMessage::Ask { .. } => false,
        }
    }

    /// What is still said where the payload cannot be read any more: messages are announced in their order, since single
    /// ones are matched by it, and nobody hands their bytes out.
    pub(super) fn without_payload(self) -> Option<TaggedMessage> {
        let TaggedMessage::Post { source, recording, call, first, mut messages } = self else { return None };
        // One of no bytes is whole as it is.
        messages.iter_mut().for_each(|posted| posted.eager &= posted.bytes == 0);
        Some(TaggedMessage::Post { source, recording, call, first, messages })
    }

    /// Appends everything behind the group.
    pub(super) fn encode<'w, 'out>(&self, w: &'w mut Writer<'out>) -> &'w mut Writer<'out> {
        match self {
            TaggedMessage::Post { source, recording, call, first, messages } => {
                let w = w.u32(source.0).u32(*recording).u64(*call).u64(*first);
                w.list(messages, MAX_POSTED, |w, Posted { destination, tag, occurrence, bytes, eager }| {
                    w.u32(destination.0).u32(*tag).u32(*occurrence).u64(*bytes).u8((*eager).into())
                })
            }
            TaggedMessage::Took { numbers } | TaggedMessage::Pull { numbers } => {
                w.list(numbers, MAX_NUMBERS, |w, number| w.u64(*number))
            }
            TaggedMessage::Part { number, offset } => w.u64(*number).u64(*offset),
            TaggedMessage::Ask { destination, recording, call, first, messages } => {
                let w = w.u32(destination.0).u32(*recording).u64(*call).u64(*first);
                w.list(messages, MAX_POSTED, |w, Wanted { source, tag, occurrence, bytes, room }| {
                    w.u32(source.0).u32(*tag).u32(*occurrence).u64(*bytes).u8((*room).into())
                })
            }
            TaggedMessage::Fill { pieces } => w.list(pieces, MAX_FILLED, |w, Filled { number, offset, bytes }| {
                w.u64(*number).u64(*offset).u32(*bytes)
            }),
        }
    }

    /// Reads what [`Self::encode`] writes of the message with this code.
    pub(super) fn decode(code: u8, r: &mut Reader<'_>) -> Result<Self, DecodeError> {
        Ok(match code {
            48 => read_post(r)?,
            49 => TaggedMessage::Took { numbers: read_numbers(r)? },
            50 => TaggedMessage::Pull { numbers: read_numbers(r)? },
            51 => TaggedMessage::Part { number: r.u64()?, offset: r.u64()? },
            52 => read_ask(r)?,
            53 => read_fill(r)?,
            _ => return Err(DecodeError::Value("message kind")),
        })
    }
}

fn read_flag(r: &mut Reader<'_>) -> Result<bool, DecodeError> {
    match r.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(DecodeError::Value("flag")),
    }
}

/// As many entries as a list of at most so many has.
fn read_count(r: &mut Reader<'_>, most: usize) -> Result<usize, DecodeError> {
    let n = usize::from(r.u16()?);
    if (1..=most).contains(&n) { Ok(n) } else { Err(DecodeError::Value("number of messages")) }
}

fn read_ask(r: &mut Reader<'_>) -> Result<TaggedMessage, DecodeError> {
    let (destination, recording, call, first) = (Rank(r.u32()?), r.u32()?, r.u64()?, r.u64()?);
    if recording == 0 || call < 2 {
        return Err(DecodeError::Value("call of a recording"));
    }
    let n = read_count(r, MAX_POSTED)?;
    if first.checked_add(n as u64).is_none() {
        return Err(DecodeError::Value("number of messages"));
    }
    let message = |_| {
        let (source, tag, occurrence, bytes) = (Rank(r.u32()?), r.u32()?, r.u32()?, r.u64()?);
        Ok(Wanted { source, tag, occurrence, bytes, room: read_flag(r)? })
    };
    let messages = (0..n).map(message).collect::<Result<_, _>>()?;
    Ok(TaggedMessage::Ask { destination, recording, call, first, messages })
}

fn read_fill(r: &mut Reader<'_>) -> Result<TaggedMessage, DecodeError> {
    let n = read_count(r, MAX_FILLED)?;
    let piece = |_| match (r.u64()?, r.u64()?, r.u32()?) {
        (_, _, 0) => Err(DecodeError::Value("bytes of a piece")),
        (number, offset, bytes) => Ok(Filled { number, offset, bytes }),
    };
    Ok(TaggedMessage::Fill { pieces: (0..n).map(piece).collect::<Result<_, _>>()? })
}

fn read_post(r: &mut Reader<'_>) -> Result<TaggedMessage, DecodeError> {
    let (source, recording, call, first) = (Rank(r.u32()?), r.u32()?, r.u64()?, r.u64()?);
    if (recording == 0) != (call == 0) {
        return Err(DecodeError::Value("call of a recording"));
    }
    let n = read_count(r, MAX_POSTED)?;
    if first.checked_add(n as u64).is_none() {
        return Err(DecodeError::Value("number of messages"));
    }
    let message = |_| {
        let (destination, tag, occurrence, bytes) = (Rank(r.u32()?), r.u32()?, r.u32()?, r.u64()?);
        let eager = read_flag(r)?;
        if recording == 0 && occurrence != 0 {
            return Err(DecodeError::Value("occurrence"));
        }
        Ok(Posted { destination, tag, occurrence, bytes, eager })
    };
    let messages = (0..n).map(message).collect::<Result<_, _>>()?;
    Ok(TaggedMessage::Post { source, recording, call, first, messages })
}

fn read_numbers(r: &mut Reader<'_>) -> Result<Vec<u64>, DecodeError> {
    let n = read_count(r, MAX_NUMBERS)?;
    (0..n).map(|_| r.u64()).collect()
}
