//! Sealed bytes after a handshake, in records. A record is a length and an authenticated ciphertext: a transport
//! message of Noise. A record's number is its nonce, so an omitted, repeated or reordered record fails like a changed
//! one.
//!
//! Invariants: each key seals each number once; the buffered part of a record never exceeds one record. Never does IO.

use std::sync::Arc;

use snow::StatelessTransportState;

pub(super) const TAG: usize = 16;
/// The length of the ciphertext with its tag, 16 bits, little-endian.
const PREFIX: usize = 2;
/// Most bytes in one record: a transport message has at most 65,535 bytes.
const PLAIN: usize = 65_535 - TAG;

/// The received record is not the record that the other end sealed next.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("what came was not sealed by the other end, or was changed, left out or repeated on its way")]
pub struct ForgedRecord;

#[derive(Debug)]
pub struct Keys {
    pub sealer: Sealer,
    pub opener: Opener,
}

impl Keys {
    pub(super) fn new(keys: StatelessTransportState) -> Keys {
        let keys = Arc::new(keys);
        Keys { sealer: Sealer { keys: Arc::clone(&keys), next: 0 }, opener: Opener { keys, next: 0 } }
    }

    /// The public key of the handshake's other end.
    pub(super) fn other(&self) -> Option<&[u8]> {
        self.opener.keys.get_remote_static()
    }
}

#[derive(Debug)]
pub struct Sealer {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl Sealer {
    fn write(&mut self, plain: &[u8], sealed: &mut [u8]) {
        let number = self.next;
        // The connection ends long before its record numbers run out.
        self.next += 1;
        let written = self.keys.write_message(number, plain, sealed);
        assert_eq!(written.ok(), Some(plain.len() + TAG), "a record has room for its tag");
    }

    /// A message that consists of its tag alone, without a length before it.
    pub(super) fn sign(&mut self) -> Vec<u8> {
        let mut tag = vec![0; TAG];
        self.write(&[], &mut tag);
        tag
    }

    fn seal_one(&mut self, plain: &[u8], out: &mut Vec<u8>) {
        let length = u16::try_from(plain.len() + TAG).expect("records are cut to size");
        out.extend(length.to_le_bytes());
        let start = out.len();
        out.resize(start + usize::from(length), 0);
        self.write(plain, &mut out[start..]);
    }

    /// Appends all pieces, concatenated, in as few records as possible; `gathered` is scratch memory.
    pub fn seal<'a>(&mut self, pieces: impl IntoIterator<Item = &'a [u8]>, gathered: &mut Vec<u8>, out: &mut Vec<u8>) {
        gathered.clear();
        for mut piece in pieces {
            while !piece.is_empty() {
                let (now, rest) = piece.split_at(piece.len().min(PLAIN - gathered.len()));
                piece = rest;
                if now.len() == PLAIN {
                    self.seal_one(now, out);
                    continue;
                }
                gathered.extend_from_slice(now);
                if gathered.len() == PLAIN {
                    self.seal_one(gathered, out);
                    gathered.clear();
                }
            }
        }
        if !gathered.is_empty() {
            self.seal_one(gathered, out);
        }
    }
}

#[derive(Debug)]
pub struct Opener {
    keys: Arc<StatelessTransportState>,
    next: u64,
}

impl Opener {
    fn read(&mut self, sealed: &[u8], plain: &mut [u8]) -> Result<(), ForgedRecord> {
        self.keys.read_message(self.next, sealed, plain).map_err(|_| ForgedRecord)?;
        self.next += 1;
        Ok(())
    }

    /// Verifies a tag from [`Sealer::sign`].
    pub(super) fn check(&mut self, tag: &[u8]) -> Result<(), ForgedRecord> {
        self.read(tag, &mut [])
    }
}

pub struct SealedRecord<'a> {
    opener: &'a mut Opener,
    sealed: &'a [u8],
}

impl SealedRecord<'_> {
    /// Bytes in the record, at least one.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "a record is never empty")]
    pub fn len(&self) -> usize {
        self.sealed.len() - TAG
    }

    /// Opens the record into `plain`, which has room for [`Self::len`] bytes. After an error the connection is useless.
    pub fn open(self, plain: &mut [u8]) -> Result<(), ForgedRecord> {
        self.opener.read(self.sealed, plain)
    }
}

/// Extracts records from a stream that arrives in pieces of any size.
#[derive(Debug)]
pub struct RecordReader {
    opener: Opener,
    partial: Vec<u8>,
}

/// The length of the ciphertext at the start of a stream, as soon as its bytes are there.
fn length(stream: &[u8]) -> Result<Option<usize>, ForgedRecord> {
    let Some((length, _)) = stream.split_first_chunk::<PREFIX>() else { return Ok(None) };
    let length = usize::from(u16::from_le_bytes(*length));
    if length > TAG { Ok(Some(length)) } else { Err(ForgedRecord) }
}

impl RecordReader {
    pub const MAX_PLAIN: usize = PLAIN;

    /// Starts at the first byte after the handshake.
    #[must_use]
    pub fn new(opener: Opener) -> RecordReader {
        RecordReader { opener, partial: Vec::new() }
    }

    /// Takes the stream's next bytes. Each completed record goes to `each`, which opens the record.
    pub fn take<E: From<ForgedRecord>>(
        &mut self,
        mut bytes: &[u8],
        mut each: impl FnMut(SealedRecord<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let RecordReader { opener, partial } = self;
        while !bytes.is_empty() {
            let record = |length: usize| PREFIX + length;
            if partial.is_empty()
                && let Some((record, rest)) = length(bytes)?.and_then(|length| bytes.split_at_checked(record(length)))
            {
                each(SealedRecord { opener, sealed: &record[PREFIX..] })?;
                bytes = rest;
                continue;
            }
            let whole = length(partial)?.map_or(PREFIX, record);
            let (now, rest) = bytes.split_at(bytes.len().min(whole - partial.len()));
            partial.extend_from_slice(now);
            bytes = rest;
            if length(partial)?.map(record) == Some(partial.len()) {
                each(SealedRecord { opener, sealed: &partial[PREFIX..] })?;
                partial.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::secured::handshake::tests::keys;

    /// The opened bytes of a stream that arrives in pieces of `cut` bytes.
    fn opened(opener: Opener, stream: &[u8], cut: usize) -> Result<Vec<u8>, ForgedRecord> {
        let (mut record_reader, mut plain) = (RecordReader::new(opener), Vec::new());
        for piece in stream.chunks(cut) {
            record_reader.take(piece, |sealed| {
                let start = plain.len();
                plain.resize(start + sealed.len(), 0);
                sealed.open(&mut plain[start..])
            })?;
        }
        Ok(plain)
    }

    fn seal(sealer: &mut Sealer, pieces: &[&[u8]]) -> Vec<u8> {
        let mut out = Vec::new();
        sealer.seal(pieces.iter().copied(), &mut Vec::new(), &mut out);
        out
    }

    #[test]
    fn bytes_come_out_however_pieces_and_stream_are_cut() {
        let bytes: Vec<u8> = (0..3 * PLAIN + 5).map(|at| (at * 7) as u8).collect();
        for (pieces, cut) in [(1, 1), (1000, 17), (PLAIN, 65_536), (PLAIN + 1, 4096), (bytes.len(), 1 << 20)] {
            let (mut a, b) = keys();
            let pieces: Vec<&[u8]> = bytes.chunks(pieces).collect();
            let stream = seal(&mut a.sealer, &pieces);
            assert_eq!(stream.len(), bytes.len() + 4 * (PREFIX + TAG), "as few records as can be");
            assert!(opened(b.opener, &stream, cut).expect("nobody has touched it") == bytes, "cut every {cut}");
        }
    }

    #[test]
    fn changed_omitted_repeated_or_reflected_records_are_rejected() {
        let records = |sealer: &mut Sealer| [b"one", b"two"].map(|plain| seal(sealer, &[plain]));
        for at in 0..3 + PREFIX + TAG {
            let (mut a, b) = keys();
            let [mut one, two] = records(&mut a.sealer);
            one[at] ^= 1;
            // If the changed byte makes the length larger, the reader first waits for more bytes.
            let rest = vec![0; 1024];
            assert_eq!(opened(b.opener, &[one, two, rest].concat(), 5), Err(ForgedRecord), "byte {at}");
        }
        let (mut a, b) = keys();
        let [_, two] = records(&mut a.sealer);
        assert_eq!(opened(b.opener, &two, 99), Err(ForgedRecord), "the first is missing");
        let (mut a, b) = keys();
        let [one, _] = records(&mut a.sealer);
        assert_eq!(opened(b.opener, &[&one[..], &one].concat(), 99), Err(ForgedRecord), "it comes again");
        let (mut a, _) = keys();
        let [one, _] = records(&mut a.sealer);
        assert_eq!(opened(a.opener, &one, 99), Err(ForgedRecord), "it comes back to its sender");
        let ((mut a, _), (_, other)) = (keys(), keys());
        let [one, _] = records(&mut a.sealer);
        assert_eq!(opened(other.opener, &one, 99), Err(ForgedRecord), "it is another connection's");
    }
}
