//! The hash buffer of a unit: packets wait in it, in any order of arrival, until a descriptor reads them (TH-4).
//!
//! The buffer uses open addressing with linear probing and a valid bitmap. A packet's slot is also its place in memory,
//! so entries never move, and removal only clears a bit. For each slot the buffer records the largest distance to an
//! entry whose key hashes to that slot. This distance bounds a search, and returns to 0 with the last such entry.
//!
//! Invariants: no key is stored twice; a tenth of the slots stays free. Never reads packets.

/// The key of a packet at its destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PacketKey(u128);

/// The fields of a key. JobID, source node, source port and SeqID are the 48 bits of TH-2. Destination port, pulse and
/// chunk distinguish ranks of one node, concurrent pulses and packets of one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacketName {
    pub job: u8,
    pub source: u32,
    pub source_port: u16,
    pub seq: u8,
    pub port: u16,
    pub pulse: u16,
    pub chunk: u16,
}

impl From<PacketName> for PacketKey {
    fn from(name: PacketName) -> PacketKey {
        let fields: [(u128, u32); 7] = [
            (name.job.into(), 8),
            (name.source.into(), 24),
            (name.source_port.into(), 11),
            (name.seq.into(), 5),
            (name.port.into(), 11),
            (name.pulse.into(), 12),
            (name.chunk.into(), 16),
        ];
        PacketKey(fields.iter().fold(0, |key, (value, bits)| {
            debug_assert!(*value < 1 << bits, "{name:?} fits its fields");
            key << bits | value
        }))
    }
}

impl PacketKey {
    /// The job and destination port of the packet.
    pub(super) fn task(self) -> (u8, u16) {
        ((self.0 >> 79) as u8, (self.0 >> 28) as u16 & 0x7ff)
    }

    fn hash(self) -> u64 {
        // Two rounds of multiplication that fold the upper half back in: every bit of the key reaches every bit used.
        let fold = |x: u64, by: u64| {
            let product = u128::from(x) * u128::from(by);
            product as u64 ^ (product >> 64) as u64
        };
        fold(
            fold(self.0 as u64 ^ 0x9e37_79b9_7f4a_7c15, 0xd6e8_feb8_6659_fd93) ^ (self.0 >> 64) as u64,
            0xa076_1d64_78bd_642f,
        )
    }
}

#[derive(Debug)]
pub struct HashBuffer {
    keys: Vec<PacketKey>,
    valid: Vec<u64>,
    /// By slot: number of valid entries whose keys hash to the slot, and the distance of the farthest such entry.
    homes: Vec<(u32, u32)>,
    len: usize,
    capacity: usize,
}

impl HashBuffer {
    /// An empty buffer of `slots` slots, of which a tenth stays free.
    pub fn new(slots: usize) -> Self {
        HashBuffer {
            keys: vec![PacketKey(0); slots],
            valid: vec![0; slots.div_ceil(64)],
            homes: vec![(0, 0); slots],
            len: 0,
            capacity: slots - slots.div_ceil(10),
        }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Most packets that the buffer holds.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    fn home(&self, key: PacketKey) -> usize {
        ((u128::from(key.hash()) * self.keys.len() as u128) >> 64) as usize
    }

    fn is_valid(&self, slot: usize) -> bool {
        self.valid[slot / 64] >> (slot % 64) & 1 == 1
    }

    /// The slot of a waiting packet.
    pub fn find(&self, key: PacketKey) -> Option<usize> {
        let home = self.home(key);
        let (entries, reach) = self.homes[home];
        let slots = (0..=reach as usize).map(|far| (home + far) % self.keys.len());
        slots.take_while(|_| entries > 0).find(|slot| self.is_valid(*slot) && self.keys[*slot] == key)
    }

    /// Allocates a slot for a packet.
    ///
    /// # Panics
    /// When a packet with this key waits already, or the buffer is full.
    pub fn insert(&mut self, key: PacketKey) -> usize {
        assert!(self.find(key).is_none(), "a packet comes once");
        assert!(self.len < self.capacity, "what is sent has room");
        let home = self.home(key);
        let free = (0..self.keys.len()).find(|far| !self.is_valid((home + far) % self.keys.len()));
        let far = free.expect("a tenth of the slots is free");
        let slot = (home + far) % self.keys.len();
        self.valid[slot / 64] |= 1 << (slot % 64);
        self.keys[slot] = key;
        let (entries, reach) = &mut self.homes[home];
        *entries += 1;
        *reach = (*reach).max(far as u32);
        self.len += 1;
        slot
    }

    /// Removes a packet; its bytes stay in the slot until the next packet gets the slot.
    pub fn remove(&mut self, key: PacketKey) -> Option<usize> {
        let slot = self.find(key)?;
        self.clear(slot);
        Some(slot)
    }

    fn clear(&mut self, slot: usize) {
        let home = self.home(self.keys[slot]);
        self.valid[slot / 64] &= !(1 << (slot % 64));
        let (entries, reach) = &mut self.homes[home];
        *entries -= 1;
        if *entries == 0 {
            *reach = 0;
        }
        self.len -= 1;
    }

    /// Removes all packets whose keys `which` selects.
    pub fn remove_all(&mut self, which: impl Fn(PacketKey) -> bool) {
        for slot in 0..self.keys.len() {
            if self.is_valid(slot) && which(self.keys[slot]) {
                self.clear(slot);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use rand::{Rng, SeedableRng};
    use rand_chacha::ChaCha8Rng;

    use super::*;

    fn key(rng: &mut ChaCha8Rng) -> PacketKey {
        let name = PacketName {
            job: rng.random(),
            source: rng.random_range(0..1 << 24),
            source_port: rng.random_range(0..1 << 11),
            seq: rng.random_range(0..1 << 5),
            port: rng.random_range(0..1 << 11),
            pulse: rng.random_range(0..1 << 12),
            chunk: rng.random(),
        };
        name.into()
    }

    /// TH-4: the buffer agrees with a map without collisions, up to full capacity.
    fn agrees_with_a_map(operations: u32, seed: u64) {
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut buffer = HashBuffer::new(512);
        assert_eq!(buffer.capacity(), 460);
        let (mut map, mut there): (HashMap<PacketKey, usize>, Vec<PacketKey>) = (HashMap::new(), Vec::new());
        let (mut used, mut full) = (vec![false; 512], 0);
        for _ in 0..operations {
            // Fills the buffer, then stays within a few packets of full.
            let known = (!there.is_empty()).then(|| rng.random_range(0..there.len()));
            match (rng.random_range(0..8), known) {
                (0..4, _) | (_, None) => {
                    let new = key(&mut rng);
                    if map.len() == buffer.capacity() || map.contains_key(&new) {
                        full += 1;
                        continue;
                    }
                    let slot = buffer.insert(new);
                    assert!(!std::mem::replace(&mut used[slot], true), "every packet has a slot of its own");
                    map.insert(new, slot);
                    there.push(new);
                }
                (4 | 5, Some(at)) => assert_eq!(buffer.find(there[at]), map.get(&there[at]).copied()),
                (6, _) => {
                    let absent = key(&mut rng);
                    assert_eq!(buffer.find(absent), map.get(&absent).copied());
                }
                (_, Some(at)) => {
                    let gone = there.swap_remove(at);
                    let slot = map.remove(&gone);
                    assert_eq!((buffer.remove(gone), buffer.remove(gone)), (slot, None));
                    used[slot.expect("it was there")] = false;
                }
            }
            assert_eq!(buffer.len(), map.len());
        }
        assert!(full > operations / 8, "it was full most of the time: {full}");
        buffer.remove_all(|key| map.contains_key(&key));
        assert!(buffer.is_empty());
    }

    #[test]
    fn th_4_the_buffer_agrees_with_a_map() {
        agrees_with_a_map(200_000, 1);
    }

    #[test]
    #[ignore = "10 million operations: for release builds (make soak)"]
    fn th_4_the_buffer_agrees_with_a_map_for_long() {
        agrees_with_a_map(10_000_000, 2);
    }

    /// Every field of a name is a part of its key.
    #[test]
    fn names_that_differ_have_other_keys() {
        let name = PacketName { job: 1, source: 2, source_port: 3, seq: 4, port: 5, pulse: 6, chunk: 7 };
        let others = [
            PacketName { job: 2, ..name },
            PacketName { source: 3, ..name },
            PacketName { source_port: 4, ..name },
            PacketName { seq: 5, ..name },
            PacketName { port: 6, ..name },
            PacketName { pulse: 7, ..name },
            PacketName { chunk: 8, ..name },
        ];
        for other in others {
            assert_ne!(PacketKey::from(other), PacketKey::from(name), "{other:?}");
        }
        let largest = PacketName { job: 0xff, port: 0x7ff, pulse: 0xfff, ..name };
        assert_eq!([largest, name].map(|name| PacketKey::from(name).task()), [(0xff, 0x7ff), (1, 5)]);
    }
}
