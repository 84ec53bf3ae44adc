//! What comes on an open connection: frames, in records where connections are encrypted. A machine without sockets.
//!
//! | the payload of a frame is | on | goes to |
//! |---|---|---|
//! | kept here | its header is here, the receiver has a place for it | landing: what is here is copied there |
//! | landing | the receiver has no place, or another, when it is asked before a read | kept here: copied back |
//! | either | its last byte | handed on |
//!
//! Invariants: a frame is handed on when all of it has come and its records are what the other end has sealed; what is
//! kept is bounded by one frame and one record, whatever comes. Records are opened first, so no payload of theirs
//! lands. Never looks into a header.

use outboard_shm::memory::Residents;

use crate::secured::{Forged, Opener, Unsealing};
use crate::tcp::frames::{Assembly, Oversized, Sink};

/// The stream is not one of this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub(crate) enum Malformed {
    #[error(transparent)]
    Frame(#[from] Oversized),
    #[error(transparent)]
    Record(#[from] Forged),
}

/// Memory that connections share, since one is read at a time.
pub(crate) struct Buffers {
    raw: Box<[u8]>,
    /// One opened record; empty where connections are not encrypted.
    opened: Box<[u8]>,
}

impl Buffers {
    pub(crate) fn new(raw: usize, encrypts: bool) -> Buffers {
        let buffer = |length| vec![0; length].into_boxed_slice();
        Buffers { raw: buffer(raw), opened: buffer(if encrypts { Unsealing::MOST } else { 0 }) }
    }
}

/// Bytes read at once where a payload that lands is likely to come, and behind one: what precedes the next, and little
/// of it.
const HEAD: usize = 4096;
/// So many frames after one that landed another is likely to come.
const LIKELY: u8 = 8;

/// The stream that comes, as far as it has come.
pub(crate) struct Incoming {
    assembly: Assembly,
    records: Option<Unsealing>,
    /// Whether the last room was that of a frame.
    in_place: bool,
    /// Where the payload is read to, and how much of it is there.
    landing: Option<(Residents, usize)>,
    /// Frames that may come before none lands.
    likely: u8,
}

impl Incoming {
    /// Begins where the handshake has ended; with an opener frames come in records.
    pub(crate) fn new(opener: Option<Opener>) -> Incoming {
        let (assembly, records) = (Assembly::default(), opener.map(Unsealing::new));
        Incoming { assembly, records, in_place: false, landing: None, likely: 0 }
    }

    /// Where the next bytes belong; [`Self::advance`] follows.
    pub(crate) fn room<'a>(&'a mut self, buffers: &'a mut Buffers) -> &'a mut [u8] {
        let rest = if self.records.is_none() { self.assembly.rest() } else { None };
        self.in_place = rest.is_some();
        let most = if self.likely > 0 { HEAD.min(buffers.raw.len()) } else { buffers.raw.len() };
        rest.unwrap_or(&mut buffers.raw[..most])
    }

    /// Where the payload of the frame belongs that is on its way, from which byte on, and room for what follows; asks
    /// anew. [`Self::advance_landing`] follows. Without one, bytes go to [`Self::room`].
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

    /// Whether a payload is read to where it belongs.
    pub(crate) fn lands(&self) -> bool {
        self.landing.is_some()
    }

    /// Bytes that are to come before reading is of use.
    pub(crate) fn awaits(&self) -> usize {
        match &self.landing {
            Some((landing, there)) => landing.bytes() - there,
            // Some of what is missing of the frame may be here, in a record that is not whole.
            None if self.records.is_some() => 1,
            None => self.assembly.awaits(),
        }
    }

    /// So many bytes were put to where the payload belongs, and behind it. Returns how many frames went to `sink`.
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

    /// So many bytes were put there; whole frames go to `sink`. Returns how many did.
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
