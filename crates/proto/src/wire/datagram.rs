//! The 24-byte header of a multicast datagram (MC-1), with the proof that header and payload are its sender's.
//!
//! The header has an 8-byte name (group, epoch, source), a 32-bit chunk number, and a tag. The tag is SipHash-2-4 of
//! the name, the chunk number, the whole instance number and the payload's hash, which is the MAC of AEGIS-128L (RFC
//! 10032). Both functions are keyed, and neither needs a unique nonce. A chunk may be sent twice, with different bytes
//! if the program has written to the bytes in between. The two functions run in two places: the holder of the payload
//! hashes it, and the holder of the instance checks the tag.
//!
//! Invariant: the tags of two datagrams that differ in group, instance, source, chunk or payload differ, except with
//! probability 2^-64.

use std::hash::Hasher;

use aegis::aegis128l::Aegis128LMac;
use siphasher::sip::SipHasher24;
use siphasher::sip128::{self, Hasher128};

use crate::ids::{GroupHandle, InstanceId};

pub const DATAGRAM_HEADER_BYTES: usize = 24;
/// Bytes of the header before the tag.
const UNTAGGED: usize = 16;
const MAGIC: u8 = 0x4f;
const KIND_CHUNK: u8 = 1;

/// Names the contents of a datagram: one chunk of one block of one collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DatagramHeader {
    pub group: GroupHandle,
    /// The low 16 bits of the instance.
    pub epoch: u16,
    /// The block's rank in the group.
    pub source: u16,
    /// The low 32 bits of the chunk's number within the block (the PSN of MC-1).
    pub chunk: u32,
}

/// The keys of a group's datagrams. Only members can derive them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct MulticastKey {
    tag: [u64; 2],
    payload: Option<[u8; 16]>,
}

/// The keyed hash of a datagram's payload; constant where tags do not cover payloads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PayloadHash([u8; 16]);

/// Hashes the payloads of one group. Keeping a hasher is cheaper than making a new one.
#[derive(Debug, Clone)]
pub struct PayloadHasher(Option<Aegis128LMac<16>>);

#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DatagramError {
    #[error("datagram shorter than its header")]
    Short,
    /// The datagram is of another protocol, or of another version.
    #[error("datagram of another protocol or version")]
    Foreign,
    #[error("datagram with a wrong tag")]
    Tag,
}

impl MulticastKey {
    /// Derives the keys from a group's secret. Tags cover the payload if `covers_payload`.
    pub fn new(secret: [u64; 2], covers_payload: bool) -> Self {
        let derived = |purpose| {
            let mut h = sip128::SipHasher24::new_with_keys(secret[0], secret[1]);
            h.write_u8(purpose);
            h.finish128()
        };
        let (tag, payload) = (derived(1), derived(2));
        MulticastKey { tag: [tag.h1, tag.h2], payload: covers_payload.then(|| payload.as_bytes()) }
    }

    /// The hasher of payloads by this key.
    pub fn hasher(&self) -> PayloadHasher {
        PayloadHasher(self.payload.map(|key| Aegis128LMac::new(&key)))
    }

    fn tag(&self, header: &[u8; UNTAGGED], instance: InstanceId, payload: PayloadHash) -> u64 {
        let mut all = [0; UNTAGGED + 24];
        all[..UNTAGGED].copy_from_slice(header);
        all[UNTAGGED..UNTAGGED + 8].copy_from_slice(&instance.0.to_le_bytes());
        all[UNTAGGED + 8..].copy_from_slice(&payload.0);
        SipHasher24::new_with_keys(self.tag[0], self.tag[1]).hash(&all)
    }
}

impl std::fmt::Debug for MulticastKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Keys stay out of logs.
        f.debug_struct("MulticastKey").field("covers_payload", &self.payload.is_some()).finish()
    }
}

impl PayloadHasher {
    pub fn hash(&self, payload: &[u8]) -> PayloadHash {
        let Some(mut hash) = self.0.clone() else { return PayloadHash::default() };
        hash.update(payload);
        PayloadHash(hash.finalize())
    }
}

impl DatagramHeader {
    /// The header of a payload with this hash in this instance. The low bits of the instance are the epoch.
    pub fn encode(
        &self,
        key: &MulticastKey,
        instance: InstanceId,
        payload: PayloadHash,
    ) -> [u8; DATAGRAM_HEADER_BYTES] {
        let mut b = [0u8; UNTAGGED];
        b[0] = MAGIC;
        b[1] = super::VERSION;
        b[2] = KIND_CHUNK;
        b[4..8].copy_from_slice(&self.group.0.to_le_bytes());
        b[8..10].copy_from_slice(&self.epoch.to_le_bytes());
        b[10..12].copy_from_slice(&self.source.to_le_bytes());
        b[12..16].copy_from_slice(&self.chunk.to_le_bytes());
        let mut all = [0; DATAGRAM_HEADER_BYTES];
        all[..UNTAGGED].copy_from_slice(&b);
        all[UNTAGGED..].copy_from_slice(&key.tag(&b, instance, payload).to_le_bytes());
        all
    }

    /// Reads the header without checking the tag: the group in the header selects the key of the check.
    pub fn parse(bytes: &[u8]) -> Result<DatagramHeader, DatagramError> {
        let b: &[u8; DATAGRAM_HEADER_BYTES] = bytes.first_chunk().ok_or(DatagramError::Short)?;
        if b[0] != MAGIC || b[1] != super::VERSION || b[2] != KIND_CHUNK || b[3] != 0 {
            return Err(DatagramError::Foreign);
        }
        Ok(DatagramHeader {
            group: GroupHandle(u32::from_le_bytes([b[4], b[5], b[6], b[7]])),
            epoch: u16::from_le_bytes([b[8], b[9]]),
            source: u16::from_le_bytes([b[10], b[11]]),
            chunk: u32::from_le_bytes([b[12], b[13], b[14], b[15]]),
        })
    }

    /// Checks the tag of a header that [`Self::parse`] accepted, for a payload with this hash in this instance.
    pub fn check(
        bytes: &[u8],
        key: &MulticastKey,
        instance: InstanceId,
        payload: PayloadHash,
    ) -> Result<(), DatagramError> {
        let b: &[u8; DATAGRAM_HEADER_BYTES] = bytes.first_chunk().ok_or(DatagramError::Short)?;
        let (header, tag) = (b.first_chunk().expect("it is longer"), b.last_chunk().expect("it is longer"));
        if key.tag(header, instance, payload) == u64::from_le_bytes(*tag) { Ok(()) } else { Err(DatagramError::Tag) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: DatagramHeader =
        DatagramHeader { group: GroupHandle(0xdead_beef), epoch: 7, source: 300, chunk: 0x0102_0304 };
    const INSTANCE: InstanceId = InstanceId(0x1_0007);

    #[test]
    fn mc_1_header_round_trips_and_every_flipped_bit_is_refused() {
        let key = MulticastKey::new([11, 22], true);
        let mut payload: Vec<u8> = (0..100).collect();
        let hash = key.hasher().hash(&payload);
        let bytes = HEADER.encode(&key, INSTANCE, hash);
        let check = |bytes: &[u8], hash| DatagramHeader::check(bytes, &key, INSTANCE, hash);
        assert_eq!(DatagramHeader::parse(&bytes), Ok(HEADER));
        assert_eq!(check(&bytes, hash), Ok(()));
        let other = MulticastKey::new([11, 23], true);
        assert_eq!(DatagramHeader::check(&bytes, &other, INSTANCE, hash), Err(DatagramError::Tag));
        for bit in 0..bytes.len() * 8 {
            let mut b = bytes;
            b[bit / 8] ^= 1 << (bit % 8);
            let refused = DatagramHeader::parse(&b).is_err() || check(&b, hash).is_err();
            assert!(refused, "flipping bit {bit} of the header goes unnoticed");
        }
        for bit in 0..payload.len() * 8 {
            payload[bit / 8] ^= 1 << (bit % 8);
            let hash = key.hasher().hash(&payload);
            assert_eq!(check(&bytes, hash), Err(DatagramError::Tag), "bit {bit} of the payload");
            payload[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(DatagramHeader::parse(&bytes[..23]), Err(DatagramError::Short));
    }

    #[test]
    fn an_instance_with_the_same_epoch_has_other_tags() {
        for covers in [false, true] {
            let key = MulticastKey::new([11, 22], covers);
            let hash = key.hasher().hash(b"payload");
            let bytes = HEADER.encode(&key, INSTANCE, hash);
            for later in [1 << 16, 1 << 17, 1 << 32] {
                let instance = InstanceId(INSTANCE.0 + later);
                assert_eq!(DatagramHeader::check(&bytes, &key, instance, hash), Err(DatagramError::Tag));
            }
        }
    }

    #[test]
    fn payloads_that_differ_by_zeros_at_their_end_have_other_hashes() {
        let hasher = MulticastKey::new([1, 2], true).hasher();
        let hashes: Vec<PayloadHash> = (0..40).map(|length| hasher.hash(&vec![0; length])).collect();
        assert!(hashes.iter().enumerate().all(|(at, hash)| !hashes[..at].contains(hash)));
    }

    #[test]
    fn tags_exclude_the_payload_without_multicast_auth() {
        let hasher = MulticastKey::new([1, 2], false).hasher();
        assert_eq!(hasher.hash(b"one"), hasher.hash(b"another"));
    }
}
