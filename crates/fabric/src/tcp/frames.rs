//! Messages in a byte stream: a prefix with two lengths, header, payload. Pure.
//!
//! Invariant: the buffered part of a frame never exceeds [`FRAME`], whatever its prefix says. Never reads a header.

use outboard_shm::memory::ScatterList;

use crate::{FabricEvent, MAX_HEADER, MAX_PAYLOAD, MessageReceiver, PeerId};

/// Length of the header and of the payload, 32 bits each, little-endian.
pub(crate) const PREFIX: usize = 8;
const FRAME: usize = PREFIX + MAX_HEADER + MAX_PAYLOAD;
/// From this length on, the missing part of a frame is read into its buffer directly, which saves a copy.
const READ_DIRECTLY_FROM: usize = 4096;
/// From this length on, a payload is read straight into place. Below it, finding the place costs as much as a copy.
const PLACED_FROM: usize = 16 << 10;
/// Most bytes of memory allocated for bytes that a prefix promises and that have not arrived.
const AHEAD: usize = 64 << 10;

/// The stream does not consist of frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a frame of {header} + {payload} bytes exceeds {MAX_HEADER} + {MAX_PAYLOAD}")]
pub(crate) struct OversizedFrame {
    header: usize,
    payload: usize,
}

pub(crate) fn prefix(header: usize, payload: usize) -> [u8; PREFIX] {
    let lengths = [header, payload].map(|length| u32::try_from(length).expect("lengths are bounded").to_le_bytes());
    std::array::from_fn(|at| lengths[at / 4][at % 4])
}

/// The lengths of header and payload in a stream's first bytes, as soon as all those bytes are there.
fn lengths(bytes: &[u8]) -> Result<Option<(usize, usize)>, OversizedFrame> {
    let Some((prefix, _)) = bytes.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| prefix[at + byte])) as usize;
    let (header, payload) = (word(0), word(4));
    if header > MAX_HEADER || payload > MAX_PAYLOAD {
        return Err(OversizedFrame { header, payload });
    }
    Ok(Some((header, payload)))
}

pub(crate) struct FrameSink<'a> {
    pub(crate) from: PeerId,
    pub(crate) receiver: &'a mut dyn MessageReceiver,
}

impl FrameSink<'_> {
    fn take(&mut self, header: &[u8], payload: &[u8]) {
        self.receiver.event(FabricEvent::Message { from: self.from, header, payload });
    }
}

/// A frame that has arrived in part.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    /// Buffer of a partial frame, as long as the longest frame that arrived in pieces.
    partial: Vec<u8>,
    have: usize,
}

impl Assembly {
    /// Takes the stream's next bytes. Each whole frame goes to `sink`; returns how many.
    pub(super) fn handle(&mut self, mut bytes: &[u8], sink: &mut FrameSink<'_>) -> Result<usize, OversizedFrame> {
        let mut frames = 0;
        while !bytes.is_empty() {
            if self.have == 0
                && let Some((header, payload)) = lengths(bytes)?
                && let Some((frame, rest)) = bytes.split_at_checked(PREFIX + header + payload)
            {
                let (header, payload) = frame[PREFIX..].split_at(header);
                sink.take(header, payload);
                frames += 1;
                bytes = rest;
                continue;
            }
            let taken = self.missing()?.min(bytes.len());
            self.grow(self.have + taken);
            self.partial[self.have..self.have + taken].copy_from_slice(&bytes[..taken]);
            bytes = &bytes[taken..];
            frames += self.advance(taken, sink)?;
        }
        Ok(frames)
    }

    /// The buffer for the rest of a long frame; [`Self::advance`] follows. Missing bytes take at most as much memory as
    /// the bytes that have arrived, or [`AHEAD`] if that is more.
    pub(super) fn rest(&mut self) -> Option<&mut [u8]> {
        let missing = Some(self.awaits()).filter(|&missing| missing >= READ_DIRECTLY_FROM)?;
        let room = missing.min(self.have.max(AHEAD));
        self.grow(self.have + room);
        Some(&mut self.partial[self.have..self.have + room])
    }

    /// Handles `taken` bytes that were read into [`Self::rest`]. Returns how many frames went to `sink`.
    pub(super) fn advance(&mut self, taken: usize, sink: &mut FrameSink<'_>) -> Result<usize, OversizedFrame> {
        self.have += taken;
        let Some((header, payload)) = lengths(&self.partial[..self.have])? else { return Ok(0) };
        if self.have < PREFIX + header + payload {
            return Ok(0);
        }
        let (header, payload) = self.partial[PREFIX..self.have].split_at(header);
        sink.take(header, payload);
        self.have = 0;
        Ok(1)
    }

    /// The place of a payload whose header has arrived and whose bytes have not all arrived.
    pub(super) fn placement(&self, sink: &mut FrameSink<'_>) -> Option<ScatterList> {
        let (header, payload) = lengths(&self.partial[..self.have]).ok()??;
        let (head, here) = self.partial[..self.have].split_at_checked(PREFIX + header)?;
        if payload < PLACED_FROM || payload - here.len() < READ_DIRECTLY_FROM {
            return None;
        }
        let placement = sink.receiver.placement(sink.from, &head[PREFIX..], payload)?;
        assert_eq!(placement.bytes(), payload, "a place for all of it");
        Some(placement)
    }

    /// The part of the payload that has arrived.
    pub(super) fn payload(&self) -> &[u8] {
        let start = self.payload_start().expect("the header is here");
        &self.partial[start..self.have]
    }

    fn payload_start(&self) -> Option<usize> {
        let (header, _) = lengths(&self.partial[..self.have]).ok()??;
        Some(PREFIX + header)
    }

    /// Drops the buffered part of the payload, which was copied into place.
    pub(super) fn keep_header(&mut self) {
        self.have = self.payload_start().expect("the header is here");
    }

    /// Makes room for `bytes` bytes of the payload that return to the buffer.
    pub(super) fn take_back(&mut self, bytes: usize) -> &mut [u8] {
        let start = self.have;
        self.have += bytes;
        self.grow(self.have);
        &mut self.partial[start..self.have]
    }

    /// Delivers a payload that is complete in its place.
    pub(super) fn handle_placed(&mut self, length: usize, sink: &mut FrameSink<'_>) {
        sink.receiver.handle_placed(sink.from, &self.partial[PREFIX..self.have], length);
        self.have = 0;
    }

    /// Bytes that must arrive before there is work: more than one only inside a long frame.
    pub(super) fn awaits(&self) -> usize {
        self.missing().ok().filter(|&missing| self.have >= PREFIX && missing >= READ_DIRECTLY_FROM).unwrap_or(1)
    }

    /// The number of missing bytes of the prefix; once the prefix is complete, of the frame.
    fn missing(&self) -> Result<usize, OversizedFrame> {
        Ok(match lengths(&self.partial[..self.have])? {
            None => PREFIX - self.have,
            Some((header, payload)) => PREFIX + header + payload - self.have,
        })
    }

    fn grow(&mut self, length: usize) {
        assert!(length <= FRAME, "lengths are checked when they are read");
        if self.partial.len() < length {
            self.partial.resize(length, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(header: &[u8], payload: &[u8]) -> Vec<u8> {
        [&prefix(header.len(), payload.len()), header, payload].concat()
    }

    /// A stream yields the same frames however it is cut, by copies and by reads into place.
    #[test]
    fn frames_come_out_however_they_are_cut() {
        let sent = [(0, 0), (24, 9000), (MAX_HEADER, MAX_PAYLOAD), (1, 0), (0, 1), (40, 70_000)]
            .map(|(header, payload)| (vec![7; header], (0..payload).map(|at| at as u8).collect::<Vec<_>>()));
        let stream: Vec<u8> = sent.iter().flat_map(|(header, payload)| frame(header, payload)).collect();
        for cut in [1, 7, 8, 9, 1000, 65_536, stream.len()] {
            let mut assembly = Assembly::default();
            let mut seen = Vec::new();
            let mut bytes = &stream[..];
            while !bytes.is_empty() {
                let receiver = &mut |event: FabricEvent<'_>| match event {
                    FabricEvent::Message { header, payload, .. } => seen.push((header.to_vec(), payload.to_vec())),
                    other => panic!("{other:?}"),
                };
                let sink = &mut FrameSink { from: PeerId(1), receiver };
                let taken = match assembly.rest() {
                    Some(rest) => {
                        let taken = rest.len().min(cut).min(bytes.len());
                        rest[..taken].copy_from_slice(&bytes[..taken]);
                        assembly.advance(taken, sink).expect("good frames");
                        taken
                    }
                    None => {
                        let taken = cut.min(bytes.len());
                        assembly.handle(&bytes[..taken], sink).expect("good frames");
                        taken
                    }
                };
                bytes = &bytes[taken..];
            }
            assert_eq!(seen, sent, "cut every {cut} bytes");
        }
    }

    #[test]
    fn lengths_that_exceed_the_bounds_are_refused_before_anything_is_kept() {
        for (header, payload) in [(MAX_HEADER + 1, 0), (0, MAX_PAYLOAD + 1)] {
            let mut assembly = Assembly::default();
            let receiver = &mut |event: FabricEvent<'_>| panic!("no frame: {event:?}");
            let refused = assembly.handle(&prefix(header, payload), &mut FrameSink { from: PeerId(1), receiver });
            assert_eq!(refused, Err(OversizedFrame { header, payload }));
            assert!(assembly.partial.is_empty());
        }
    }
}
