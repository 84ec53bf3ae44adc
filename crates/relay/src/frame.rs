//! The stream between a relay on a host and a service process on another machine: frames and their codec.
//!
//! A frame is `length (u32), kind (u8), body`, little-endian. The length counts the bytes after it, at most
//! [`MOST_BYTES`]. The first frame of a control connection is [`RelayFrame::Open`], which carries magic and version.
//! The first frame of a rank's connection is [`RelayFrame::Greeting`]. The dock's last frame may be
//! [`RelayFrame::Refused`]. Requests and replies of the attach socket cross in the attach socket's encoding, without
//! descriptors. The content of descriptors (control region, offers, recordings) crosses in separate frames.
//!
//! Invariants: no input makes the decoder panic or hold more than one frame of the largest size. A decoded frame
//! encodes to the same bytes. This module does no IO.

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_fabric::secured::{ForgedRecord, RecordReader, SealedRecord};
use outboard_service::topology::Seat;
use outboard_shm::ring::{ENTRY_WORDS, EntryWords};
use outboard_shm::status::Status;

/// Version of the frames, which must be equal at both ends.
pub(crate) const VERSION: u16 = 5;
pub(crate) const DATA_BYTES: usize = 256 << 10;
/// Longest frame, without its length field.
const MOST_BYTES: usize = DATA_BYTES + 64;
/// Most content of requests that one rank may have under way at once: the offers of the largest group.
pub(crate) const MOST_HANDED: usize = 64 << 20;
pub(crate) const READ: usize = 128 << 10;
const TEXT_BYTES: usize = 2048;
const LENGTH_BYTES: usize = 4;
/// Length of the secret from which the key of a relay's ranks is derived.
pub(crate) const SECRET_BYTES: usize = 32;
const MAGIC: u32 = u32::from_le_bytes(*b"OBRL");

/// One frame. Offsets and lengths are in bytes. A `slot` is a completion word of the rank, which identifies a call in
/// flight. A `token` identifies a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum RelayFrame<'a> {
    /// Sent by the relay: first frame on a control connection.
    Open,
    /// Sent by the dock: answer to `Open` with the port for this relay's ranks, and a secret that only this relay has.
    Opened { port: u16, secret: [u8; SECRET_BYTES] },
    /// Sent by the relay: first frame on a rank's connection, with the rank's process number on its host and its seat
    /// (SP-1).
    Greeting { pid: u32, seat: Seat },
    /// Sent by the relay: a request of the attach socket that has no descriptors.
    AttachRequest(&'a [u8]),
    /// Sent by the relay: the request to make a group. The `ranks` offers follow.
    CreateGroup { token: u64, ranks: u32, rank: u32 },
    /// Sent by the relay: more content of the last request's shared memory, either offers or a recording.
    Handed(&'a [u8]),
    /// Sent by the relay: a submission as it was in the ring; its addresses are meaningless. [`RelayFrame::Data`]
    /// follows with `input` bytes that the rank sends, then `table` bytes. The rank receives `output` bytes.
    Call { words: EntryWords, input: u64, table: u64, output: u64 },
    /// Sent by the relay: the missing bytes of the last call cannot be read; the call must fail on all ranks.
    Unreadable { slot: u32 },
    /// Sent by both sides: at most [`DATA_BYTES`] bytes of a call, from `offset` on. The relay sends bytes of the
    /// call's input and table, the dock of its output.
    Data { slot: u32, offset: u64, bytes: &'a [u8] },
    /// Sent by the dock: a reply of the attach socket.
    AttachReply(&'a [u8]),
    /// Sent by the dock: the call has ended; all of its output was sent before.
    Complete { slot: u32, status: Status },
    /// Sent by the relay: the request to store a recording of `bytes` encoded bytes, which follow (GP-5).
    Record { token: u64, group: u64, recording: u32, bytes: u64 },
    /// Sent by the dock as the last frame: the reason why this rank is not served, or not served any more.
    Refused { text: &'a str },
}

/// A frame that no release with this version writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error(
        "the other side speaks version {theirs} of the relay protocol, this side {VERSION}; install both from one release"
    )]
    Version { theirs: u16 },
    #[error("malformed relay frame: {0}")]
    Field(#[from] DecodeError),
}

impl RelayFrame<'_> {
    /// Appends the frame to `out`. Long texts are truncated. No piece of memory may be longer than [`DATA_BYTES`].
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        let start = out.len();
        let mut w = Writer::new(out);
        w.u32(0);
        match self {
            RelayFrame::Open => w.u8(1).u32(MAGIC).u16(VERSION),
            RelayFrame::Opened { port, secret } => w.u8(12).u16(*port).bytes(secret),
            RelayFrame::Greeting { pid, seat } => {
                seat.encode(w.u8(13).u32(*pid));
                &mut w
            }
            RelayFrame::AttachRequest(bytes) => w.u8(2).bytes(bytes),
            RelayFrame::CreateGroup { token, ranks, rank } => w.u8(3).u64(*token).u32(*ranks).u32(*rank),
            RelayFrame::Call { words, input, table, output } => {
                words.iter().chain([input, table, output]).fold(w.u8(5), |w, word| w.u64(*word))
            }
            RelayFrame::Handed(bytes) => w.u8(4).bytes(bytes),
            RelayFrame::Unreadable { slot } => w.u8(6).u32(*slot),
            RelayFrame::Data { slot, offset, bytes } => w.u8(7).u32(*slot).u64(*offset).bytes(bytes),
            RelayFrame::AttachReply(bytes) => w.u8(8).bytes(bytes),
            RelayFrame::Complete { slot, status } => w.u8(9).u32(*slot).u32(status.code().cast_unsigned()),
            RelayFrame::Refused { text } => w.u8(10).text(text, TEXT_BYTES),
            RelayFrame::Record { token, group, recording, bytes } => {
                w.u8(11).u64(*token).u64(*group).u32(*recording).u64(*bytes)
            }
        };
        let length = out.len() - start - LENGTH_BYTES;
        assert!(length <= MOST_BYTES, "a frame of {length} bytes");
        out[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
    }
}

fn decode(frame: &[u8]) -> Result<RelayFrame<'_>, FrameError> {
    let mut r = Reader::new(frame);
    let decoded = match r.u8()? {
        1 => {
            if r.u32()? != MAGIC {
                return Err(DecodeError::Foreign.into());
            }
            let theirs = r.u16()?;
            if theirs != VERSION {
                return Err(FrameError::Version { theirs });
            }
            RelayFrame::Open
        }
        2 => RelayFrame::AttachRequest(rest(&mut r, DATA_BYTES)?),
        3 => RelayFrame::CreateGroup { token: r.u64()?, ranks: r.u32()?, rank: r.u32()? },
        4 => RelayFrame::Handed(rest(&mut r, DATA_BYTES)?),
        5 => {
            let mut words = [0; ENTRY_WORDS];
            for word in &mut words {
                *word = r.u64()?;
            }
            RelayFrame::Call { words, input: r.u64()?, table: r.u64()?, output: r.u64()? }
        }
        6 => RelayFrame::Unreadable { slot: r.u32()? },
        7 => RelayFrame::Data { slot: r.u32()?, offset: r.u64()?, bytes: rest(&mut r, DATA_BYTES)? },
        8 => RelayFrame::AttachReply(rest(&mut r, DATA_BYTES)?),
        9 => {
            let (slot, status) = (r.u32()?, Status::from_code(r.u32()?.cast_signed()));
            RelayFrame::Complete { slot, status: status.ok_or(DecodeError::Value("status"))? }
        }
        10 => RelayFrame::Refused { text: r.text(TEXT_BYTES)? },
        11 => RelayFrame::Record { token: r.u64()?, group: r.u64()?, recording: r.u32()?, bytes: r.u64()? },
        12 => RelayFrame::Opened { port: r.u16()?, secret: r.array()? },
        13 => RelayFrame::Greeting { pid: r.u32()?, seat: Seat::decode(&mut r)? },
        _ => return Err(DecodeError::Value("kind").into()),
    };
    r.end()?;
    Ok(decoded)
}

/// The rest of the frame, which must be at most `most` bytes.
fn rest<'a>(r: &mut Reader<'a>, most: usize) -> Result<&'a [u8], DecodeError> {
    let rest = std::mem::replace(r, Reader::new(&[])).rest();
    if rest.len() <= most { Ok(rest) } else { Err(DecodeError::Value("length")) }
}

#[derive(Debug, Default)]
pub(crate) struct Decoder {
    bytes: Vec<u8>,
    start: usize,
    end: usize,
}

impl Decoder {
    /// Decrypts a record and appends it to the bytes that have arrived. After [`Decoder::next`] has returned `None`
    /// there is room for every record that [`READ`] bytes complete.
    pub(crate) fn take(&mut self, sealed: SealedRecord<'_>) -> Result<(), ForgedRecord> {
        let length = sealed.len();
        sealed.open(&mut self.room()[..length])?;
        self.filled(length);
        Ok(())
    }

    fn room(&mut self) -> &mut [u8] {
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        self.bytes.resize(LENGTH_BYTES + MOST_BYTES + RecordReader::MAX_PLAIN + READ, 0);
        &mut self.bytes[self.end..]
    }

    fn filled(&mut self, count: usize) {
        assert!(count <= self.bytes.len() - self.end, "{count} bytes beyond the room");
        self.end += count;
    }

    /// The next whole frame, or `None` until more bytes arrive. After an error the stream is unusable.
    pub(crate) fn next(&mut self) -> Result<Option<RelayFrame<'_>>, FrameError> {
        let Some((length, _)) = self.bytes[self.start..self.end].split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MOST_BYTES {
            return Err(DecodeError::Value("length").into());
        }
        let frame = self.start + LENGTH_BYTES;
        if self.end < frame + length {
            return Ok(None);
        }
        self.start = frame + length;
        decode(&self.bytes[frame..frame + length]).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_service::topology::CpuBinding;
    use proptest::prelude::*;

    fn text() -> impl Strategy<Value = String> {
        "[a-zü ]{0,30}"
    }

    /// Content from which any frame can be built.
    type FrameParts = (u8, [u64; 3], u32, EntryWords, Vec<u8>, String);

    fn parts() -> impl Strategy<Value = FrameParts> {
        let bytes = proptest::collection::vec(any::<u8>(), 0..600);
        (0..13u8, any::<[u64; 3]>(), any::<u32>(), any::<EntryWords>(), bytes, text())
    }

    fn frame(parts: &FrameParts) -> RelayFrame<'_> {
        let (kind, numbers, slot, words, bytes, text) = parts;
        let (&[input, table, output], &slot) = (numbers, slot);
        match kind {
            0 => RelayFrame::Greeting {
                pid: slot,
                seat: Seat { node: text.as_str().into(), place: CpuBinding { socket: None, core: Some(slot / 2) } },
            },
            1 => RelayFrame::AttachRequest(bytes),
            2 => RelayFrame::CreateGroup { token: input, ranks: slot, rank: table as u32 },
            3 => RelayFrame::Handed(bytes),
            4 => RelayFrame::Call { words: *words, input, table, output },
            5 => RelayFrame::Unreadable { slot },
            6 => RelayFrame::Data { slot, offset: input, bytes },
            7 => RelayFrame::AttachReply(bytes),
            8 => RelayFrame::Complete { slot, status: Status::RankLost },
            9 => RelayFrame::Record { token: input, group: table, recording: slot, bytes: output },
            10 => RelayFrame::Open,
            11 => RelayFrame::Opened { port: slot as u16, secret: [table as u8; SECRET_BYTES] },
            _ => RelayFrame::Refused { text },
        }
    }

    /// Passes a stream to a decoder, in pieces whose lengths cycle through `pieces`. Returns the decoded frames,
    /// encoded again.
    fn feed(stream: &[u8], pieces: &[usize]) -> Result<Vec<u8>, FrameError> {
        let mut decoder = Decoder::default();
        let (mut left, mut again, mut sizes) = (stream, Vec::new(), pieces.iter().cycle());
        while !left.is_empty() {
            let room = decoder.room();
            let count = left.len().min(room.len()).min(sizes.next().copied().unwrap_or(1));
            room[..count].copy_from_slice(&left[..count]);
            decoder.filled(count);
            left = &left[count..];
            while let Some(frame) = decoder.next()? {
                frame.encode(&mut again);
            }
        }
        Ok(again)
    }

    proptest! {
        #[test]
        fn frames_survive_however_the_stream_is_cut(
            all in proptest::collection::vec(parts(), 1..8),
            pieces in proptest::collection::vec(1usize..400, 1..8),
        ) {
            let mut stream = Vec::new();
            all.iter().for_each(|parts| frame(parts).encode(&mut stream));
            prop_assert_eq!(feed(&stream, &pieces), Ok(stream));
        }

        /// From any input the decoder returns frames that encode to the bytes of the input, or an error.
        #[test]
        fn damage_is_an_error_or_another_frame(parts in parts(), at in any::<prop::sample::Index>(), flip in 1u8..) {
            let mut stream = Vec::new();
            frame(&parts).encode(&mut stream);
            let at = at.index(stream.len());
            stream[at] ^= flip;
            if let Ok(again) = feed(&stream, &[64]) {
                prop_assert!(stream.starts_with(&again));
            }
        }
    }

    #[test]
    fn the_largest_piece_fits_and_longer_frames_are_refused() {
        let mut stream = Vec::new();
        RelayFrame::Data { slot: 1, offset: u64::MAX, bytes: &vec![7; DATA_BYTES] }.encode(&mut stream);
        assert_eq!(feed(&stream, &[4096]), Ok(stream));
        let long = (MOST_BYTES as u32 + 1).to_le_bytes();
        assert_eq!(feed(&long, &[4]), Err(FrameError::Field(DecodeError::Value("length"))));
        assert_eq!(feed(&[0; 4], &[4]), Err(FrameError::Field(DecodeError::Truncated)));
    }

    #[test]
    fn another_version_is_named() {
        let mut stream = Vec::new();
        RelayFrame::Open.encode(&mut stream);
        stream[9] = 9;
        assert_eq!(feed(&stream, &[64]), Err(FrameError::Version { theirs: 9 }));
        stream[5] = 0;
        assert_eq!(feed(&stream, &[64]), Err(FrameError::Field(DecodeError::Foreign)));
    }
}
