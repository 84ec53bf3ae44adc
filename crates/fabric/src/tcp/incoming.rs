//! What comes on an open connection: frames, in records where connections are encrypted. A machine without sockets.
//!
//! Invariants: a frame is handed on when all of it has come and its records are what the other end has sealed; what is
//! kept is bounded by one frame and one record, whatever comes. Never looks into a header.

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
    /// As it comes.
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

/// The stream that comes, as far as it has come.
pub(crate) struct Incoming {
    assembly: Assembly,
    records: Option<Unsealing>,
    /// Whether the last room was that of a frame.
    in_place: bool,
}

impl Incoming {
    /// Begins where the handshake has ended; with an opener frames come in records.
    pub(crate) fn new(opener: Option<Opener>) -> Incoming {
        Incoming { assembly: Assembly::default(), records: opener.map(Unsealing::new), in_place: false }
    }

    /// Where the next bytes belong; [`Self::advance`] follows.
    pub(crate) fn room<'a>(&'a mut self, buffers: &'a mut Buffers) -> &'a mut [u8] {
        let rest = if self.records.is_none() { self.assembly.rest() } else { None };
        self.in_place = rest.is_some();
        rest.unwrap_or(&mut buffers.raw)
    }

    /// So many bytes were put there; whole frames go to `sink`. Returns how many did.
    pub(crate) fn advance(
        &mut self,
        taken: usize,
        buffers: &mut Buffers,
        sink: &mut Sink<'_>,
    ) -> Result<usize, Malformed> {
        let Incoming { assembly, records, in_place } = self;
        let Buffers { raw, opened } = buffers;
        let Some(records) = records else {
            let frames = if *in_place { assembly.advance(taken, sink) } else { assembly.handle(&raw[..taken], sink) };
            return Ok(frames?);
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
