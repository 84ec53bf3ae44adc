//! Frames that arrive on an open connection, in records if the connection is encrypted. A machine without sockets.
//!
//! | payload of a frame | on | goes to |
//! |---|---|---|
//! | buffered | its header is here, and the receiver names a place | landing: the buffered part is copied there |
//! | landing | a check before a read finds no place, or another | buffered: copied back |
//! | either | its last byte | delivered |
//!
//! Invariants: a frame is delivered once it is complete and its records carry the other end's seal. At most one frame
//! and one record are buffered. Records are opened first, so their payloads never land. Never reads a header.

use outboard_shm::memory::Residents;

use crate::secured::{Forged, Opener, Unsealing};
use crate::tcp::frames::{Assembly, Oversized, Sink};

/// The stream breaks this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error(transparent)]
    Frame(#[from] Oversized),
    #[error(transparent)]
    Record(#[from] Forged),
}

/// Memory shared by all connections, because only one is read at a time.
pub(crate) struct Buffers {
    raw: Box<[u8]>,
    /// One opened record; empty if connections are not encrypted.
    opened: Box<[u8]>,
}

impl Buffers {
    pub(crate) fn new(raw: usize, encrypts: bool) -> Buffers {
        let buffer = |length| vec![0; length].into_boxed_slice();
        Buffers { raw: buffer(raw), opened: buffer(if encrypts { Unsealing::MOST } else { 0 }) }
    }
}

/// Bytes read at once when a landing payload is likely, and after one: the frame's head, and little of its payload.
const HEAD: usize = 4096;
/// Number of frames after a landed one during which another is likely.
const LIKELY: u8 = 8;

/// The incoming stream and its state.
pub(crate) struct Incoming {
    assembly: Assembly,
    records: Option<Unsealing>,
    /// Whether the last room was part of a frame's buffer.
    in_place: bool,
    /// The place that the payload is read into, and how many bytes are there.
    landing: Option<(Residents, usize)>,
    /// Frames until landing counts as unlikely.
    likely: u8,
}

impl Incoming {
    /// Starts at the first byte after the handshake. With an opener, frames arrive in records.
    pub(crate) fn new(opener: Option<Opener>) -> Incoming {
        let (assembly, records) = (Assembly::default(), opener.map(Unsealing::new));
        Incoming { assembly, records, in_place: false, landing: None, likely: 0 }
    }

    /// The buffer for the next bytes; [`Self::advance`] follows.
    pub(crate) fn room<'a>(&'a mut self, buffers: &'a mut Buffers) -> &'a mut [u8] {
        let rest = if self.records.is_none() { self.assembly.rest() } else { None };
        self.in_place = rest.is_some();
        let most = if self.likely > 0 { HEAD.min(buffers.raw.len()) } else { buffers.raw.len() };
        rest.unwrap_or(&mut buffers.raw[..most])
    }

    /// Requests the place of the present frame's payload. Returns the place, the first missing byte, and room for bytes
    /// after the payload; [`Self::advance_landing`] follows. Without a place, bytes go to [`Self::room`].
    pub(crate) fn landing<'a>(
        &'a mut self,
        buffers: &'a mut Buffers,
        sink: &mut Sink<'_>,
    ) -> Option<(&'a Residents, usize, &'a mut [u8])> {
        if self.records.is_some() {
            return None;
        }
        let fresh = self.assembly.landing(sink);
        if fresh.as_ref() != self.landing.as_ref().map(|(landing, _)| landing) {
            if let Some((before, there)) = self.landing.take() {
                before.take(self.assembly.take_back(there));
            }
            if let Some(fresh) = fresh {
                let here = self.assembly.payload();
                fresh.put(0, here);
                self.landing = Some((fresh, here.len()));
                self.assembly.keep_header();
            }
        }
        let (landing, there) = self.landing.as_ref()?;
        let most = HEAD.min(buffers.raw.len());
        Some((landing, *there, &mut buffers.raw[..most]))
    }

    /// Whether a payload is being read straight into place.
    pub(crate) fn lands(&self) -> bool {
        self.landing.is_some()
    }

    /// Bytes that must arrive before a read is useful.
    pub(crate) fn awaits(&self) -> usize {
        match &self.landing {
            Some((landing, there)) => landing.bytes() - there,
            // A partial record may already hold some missing bytes of the frame.
            None if self.records.is_some() => 1,
            None => self.assembly.awaits(),
        }
    }

    /// `taken` bytes are in the payload's place and behind it. Returns how many frames went to `sink`.
    pub(crate) fn advance_landing(
        &mut self,
        taken: usize,
        buffers: &Buffers,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Malformed> {
        let Some((landing, there)) = &mut self.landing else { unreachable!("it is landing") };
        let length = landing.bytes();
        let beyond = (*there + taken).saturating_sub(length);
        *there += taken - beyond;
        if *there < length {
            return Ok(0);
        }
        self.landing = None;
        self.assembly.landed(length, sink);
        self.likely = LIKELY;
        Ok(1 + self.assembly.handle(&buffers.raw[..beyond], sink)?)
    }

    /// `taken` bytes are in the room. Whole frames go to `sink`; returns how many.
    pub(crate) fn advance(
        &mut self,
        taken: usize,
        buffers: &mut Buffers,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Malformed> {
        let Incoming { assembly, records, in_place, likely, .. } = self;
        let Buffers { raw, opened } = buffers;
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
            Ok::<(), Malformed>(())
        })?;
        Ok(frames)
    }
}
