//! Frames that arrive on an open connection, in records if the connection is encrypted. A machine without sockets.
//!
//! | payload of a frame | on | goes to |
//! |---|---|---|
//! | buffered | the header has arrived, and the receiver names a place | placed: the buffered part is copied there |
//! | placed | a check before a read finds no place, or a new place | buffered: copied back |
//! | either | its last byte | delivered |
//!
//! Invariants: a frame is delivered once it is complete and its records carry the other end's seal. At most one frame
//! and one record are buffered. Records are opened first, so their payloads are never placed directly. Never
//! reads a header.

use outboard_shm::memory::ScatterList;

use crate::secured::{ForgedRecord, Opener, RecordReader};
use crate::tcp::frames::{Assembly, FrameSink, OversizedFrame};

/// The stream breaks this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum MalformedStream {
    #[error(transparent)]
    Frame(#[from] OversizedFrame),
    #[error(transparent)]
    Record(#[from] ForgedRecord),
}

/// Memory shared by all connections, because only one is read at a time.
pub(crate) struct ReadBuffers {
    raw: Box<[u8]>,
    /// One opened record; empty if connections are not encrypted.
    opened: Box<[u8]>,
}

impl ReadBuffers {
    pub(crate) fn new(raw: usize, encrypts: bool) -> ReadBuffers {
        let buffer = |length| vec![0; length].into_boxed_slice();
        ReadBuffers { raw: buffer(raw), opened: buffer(if encrypts { RecordReader::MAX_PLAIN } else { 0 }) }
    }
}

/// Most bytes of a read behind a placed payload, or before a payload that is likely to be placed. Such a read takes the
/// frame's head and little of its payload.
const HEAD: usize = 4096;
/// Number of frames after a placed payload during which the next payload is likely to be placed, too.
const LIKELY: u8 = 8;

/// The incoming stream and its state.
pub(crate) struct FrameReader {
    assembly: Assembly,
    records: Option<RecordReader>,
    /// Whether the last [`Self::room`] was part of a frame's buffer.
    in_place: bool,
    /// The place into which the payload is read, and the number of bytes in that place.
    placement: Option<(ScatterList, usize)>,
    /// Frames until direct placement counts as unlikely.
    likely: u8,
}

impl FrameReader {
    /// Starts at the first byte after the handshake. With an opener, frames arrive in records.
    pub(crate) fn new(opener: Option<Opener>) -> FrameReader {
        let (assembly, records) = (Assembly::default(), opener.map(RecordReader::new));
        FrameReader { assembly, records, in_place: false, placement: None, likely: 0 }
    }

    /// The buffer for the next bytes; [`Self::advance`] follows.
    pub(crate) fn room<'a>(&'a mut self, buffers: &'a mut ReadBuffers) -> &'a mut [u8] {
        let rest = if self.records.is_none() { self.assembly.rest() } else { None };
        self.in_place = rest.is_some();
        let most = if self.likely > 0 { HEAD.min(buffers.raw.len()) } else { buffers.raw.len() };
        rest.unwrap_or(&mut buffers.raw[..most])
    }

    /// Requests the place of the present frame's payload. Returns the place, the first missing byte, and room for bytes
    /// after the payload; [`Self::advance_placed`] follows. Without a place, bytes go to [`Self::room`].
    pub(crate) fn placement<'a>(
        &'a mut self,
        buffers: &'a mut ReadBuffers,
        sink: &mut FrameSink<'_>,
    ) -> Option<(&'a ScatterList, usize, &'a mut [u8])> {
        if self.records.is_some() {
            return None;
        }
        let fresh = self.assembly.placement(sink);
        if fresh.as_ref() != self.placement.as_ref().map(|(placement, _)| placement) {
            if let Some((before, there)) = self.placement.take() {
                before.take(self.assembly.take_back(there));
            }
            if let Some(fresh) = fresh {
                let here = self.assembly.payload();
                fresh.put(0, here);
                self.placement = Some((fresh, here.len()));
                self.assembly.keep_header();
            }
        }
        let (placement, there) = self.placement.as_ref()?;
        let most = HEAD.min(buffers.raw.len());
        Some((placement, *there, &mut buffers.raw[..most]))
    }

    /// Whether a payload is being read straight into place.
    pub(crate) fn is_placing(&self) -> bool {
        self.placement.is_some()
    }

    /// Bytes that must arrive before a read is useful.
    pub(crate) fn awaits(&self) -> usize {
        match &self.placement {
            Some((placement, there)) => placement.bytes() - there,
            // A partial record may already hold some missing bytes of the frame.
            None if self.records.is_some() => 1,
            None => self.assembly.awaits(),
        }
    }

    /// Handles `taken` bytes that were read into the payload's place, then into the room behind the payload. Returns
    /// how many frames went to `sink`.
    pub(crate) fn advance_placed(
        &mut self,
        taken: usize,
        buffers: &ReadBuffers,
        sink: &mut FrameSink<'_>,
    ) -> Result<usize, MalformedStream> {
        let Some((placement, there)) = &mut self.placement else { unreachable!("the payload has a place") };
        let length = placement.bytes();
        let beyond = (*there + taken).saturating_sub(length);
        *there += taken - beyond;
        if *there < length {
            return Ok(0);
        }
        self.placement = None;
        self.assembly.handle_placed(length, sink);
        self.likely = LIKELY;
        Ok(1 + self.assembly.handle(&buffers.raw[..beyond], sink)?)
    }

    /// Handles `taken` bytes that were read into [`Self::room`]. Whole frames go to `sink`; returns how many.
    pub(crate) fn advance(
        &mut self,
        taken: usize,
        buffers: &mut ReadBuffers,
        sink: &mut FrameSink<'_>,
    ) -> Result<usize, MalformedStream> {
        let FrameReader { assembly, records, in_place, likely, .. } = self;
        let ReadBuffers { raw, opened } = buffers;
        let Some(records) = records else {
            let frames = if *in_place { assembly.advance(taken, sink) } else { assembly.handle(&raw[..taken], sink) }?;
            *likely = likely.saturating_sub(frames.try_into().unwrap_or(u8::MAX));
            return Ok(frames);
        };
        let mut frames = 0;
        records.take(&raw[..taken], |sealed| {
            let length = sealed.len();
            frames += match assembly.rest() {
                Some(room) if room.len() >= length => {
                    sealed.open(&mut room[..length])?;
                    assembly.advance(length, sink)?
                }
                _ => {
                    sealed.open(&mut opened[..length])?;
                    assembly.handle(&opened[..length], sink)?
                }
            };
            Ok::<(), MalformedStream>(())
        })?;
        Ok(frames)
    }
}
