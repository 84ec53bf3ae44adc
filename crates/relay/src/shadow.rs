//! Shadows: memory on the service process's machine that stands for buffers of ranks elsewhere (GP-9).
//!
//! Cut from arenas, each one memfd that is registered with the service process at an address of ours; the bytes of an
//! arena are paged in as they are used. Invariants: shadows of one rank do not overlap; arenas together never exceed
//! the quota; an arena without shadows is given up when another needs its room.

use std::collections::BTreeMap;
use std::sync::Arc;

use outboard_shm::region::{Region, RegionError};

use crate::spans::Spans;

/// Arenas that a quota is divided into at least: fewer than a rank may register ranges.
const MOST_ARENAS: u64 = 128;
/// Smallest arena.
const LEAST_ARENA: u64 = 4 << 20;
/// Shadows begin at multiples of a cache line.
const ALIGN: u64 = 64;
/// The first arena's address, which no rank's memory needs to have.
const FIRST_ADDRESS: u64 = 1 << 40;

/// Why there is no shadow.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShadowError {
    #[error(
        "a call of {bytes} bytes exceeds what is left of the {quota} bytes for a rank's calls; raise --relay-memory"
    )]
    Quota { bytes: u64, quota: u64 },
    #[error(transparent)]
    Region(#[from] RegionError),
}

/// Memory of one call.
#[derive(Debug)]
pub(crate) struct Shadow {
    region: Arc<Region>,
    arena: u64,
    offset: u64,
    bytes: u64,
}

impl Shadow {
    /// Its address for the service process.
    pub(crate) fn address(&self) -> u64 {
        self.arena + self.offset
    }

    /// Its bytes, some more than were asked for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Where it begins in the arena; a shadow is mapped, so this fits.
    fn at(&self, offset: u64, bytes: usize) -> usize {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {self:?}");
        (self.offset + offset) as usize
    }

    /// Copies in.
    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        self.region.write(self.at(offset, from.len()), from);
    }

    /// Copies out.
    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        self.region.read(self.at(offset, into.len()), into);
    }
}

#[derive(Debug)]
struct Arena {
    region: Arc<Region>,
    bytes: u64,
    registered: bool,
    /// Offsets that no shadow has.
    free: Spans,
}

impl Arena {
    fn is_empty(&self) -> bool {
        self.free.first_of(self.bytes).is_some()
    }

    fn take(&mut self, bytes: u64) -> Option<u64> {
        let (offset, _) = self.free.first_of(bytes)?;
        self.free.remove(offset, offset + bytes);
        Some(offset)
    }
}

/// A shadow, and what the service process is to be told first.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) shadow: Shadow,
    /// A new arena to register: address, bytes and memfd.
    pub(crate) register: Option<(u64, u64, Arc<Region>)>,
    /// Addresses of arenas that are given up.
    pub(crate) unregister: Vec<u64>,
}

/// All shadows of one rank.
#[derive(Debug)]
pub(crate) struct Shadows {
    arenas: BTreeMap<u64, Arena>,
    next: u64,
    held: u64,
    quota: u64,
}

impl Shadows {
    pub(crate) fn new(quota: u64) -> Shadows {
        Shadows { arenas: BTreeMap::new(), next: FIRST_ADDRESS, held: 0, quota }
    }

    /// A shadow of `bytes` bytes.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<Taken, ShadowError> {
        let quota = ShadowError::Quota { bytes, quota: self.quota };
        let Some(rounded) = bytes.max(1).checked_next_multiple_of(ALIGN).filter(|bytes| *bytes <= self.quota) else {
            return Err(quota);
        };
        for (&address, arena) in &mut self.arenas {
            if let Some(offset) = arena.take(rounded) {
                let shadow = Shadow { region: Arc::clone(&arena.region), arena: address, offset, bytes: rounded };
                return Ok(Taken { shadow, register: None, unregister: Vec::new() });
            }
        }
        let size = rounded.max(self.quota / MOST_ARENAS).max(LEAST_ARENA).min(self.quota);
        let unregister = if self.held + size > self.quota { self.drop_empty() } else { Vec::new() };
        if self.held + size > self.quota {
            return Err(quota);
        }
        let length = usize::try_from(size).expect("a quota of an address space");
        let region = Arc::new(Region::create("outboard-shadow", length)?);
        let address = self.next;
        // A page between arenas keeps accesses beyond the end of one out of the next.
        self.next += size.next_multiple_of(1 << 21) + (1 << 21);
        self.held += size;
        let mut free = Spans::default();
        free.insert(rounded, size);
        let arena = Arena { region: Arc::clone(&region), bytes: size, registered: false, free };
        self.arenas.insert(address, arena);
        let shadow = Shadow { region: Arc::clone(&region), arena: address, offset: 0, bytes: rounded };
        Ok(Taken { shadow, register: Some((address, size, region)), unregister })
    }

    /// Arenas that no shadow lies in, gone; those that are being registered stay.
    fn drop_empty(&mut self) -> Vec<u64> {
        let empty = |arena: &Arena| arena.registered && arena.is_empty();
        let gone: Vec<u64> =
            self.arenas.iter().filter(|(_, arena)| empty(arena)).map(|(address, _)| *address).collect();
        for address in &gone {
            self.held -= self.arenas.remove(address).map_or(0, |arena| arena.bytes);
        }
        gone
    }

    /// The service process has mapped the arena at this address.
    pub(crate) fn registered(&mut self, address: u64) {
        if let Some(arena) = self.arenas.get_mut(&address) {
            arena.registered = true;
        }
    }

    /// Whether the service process can reach the shadow.
    pub(crate) fn is_registered(&self, shadow: &Shadow) -> bool {
        self.arenas.get(&shadow.arena).is_some_and(|arena| arena.registered)
    }

    pub(crate) fn give_back(&mut self, shadow: Shadow) {
        if let Some(arena) = self.arenas.get_mut(&shadow.arena) {
            arena.free.insert(shadow.offset, shadow.offset + shadow.bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_share_arenas_and_never_overlap() {
        let mut shadows = Shadows::new(64 << 20);
        let first = shadows.take(1000).expect("room");
        let (address, bytes, _) = first.register.expect("the first needs an arena");
        assert_eq!((address, bytes, first.shadow.address()), (FIRST_ADDRESS, LEAST_ARENA, FIRST_ADDRESS));
        assert!(!shadows.is_registered(&first.shadow));
        shadows.registered(address);
        let second = shadows.take(100).expect("room");
        assert!(second.register.is_none() && shadows.is_registered(&second.shadow));
        assert_eq!(second.shadow.address(), FIRST_ADDRESS + 1024);
        first.shadow.write(990, b"0123456789");
        second.shadow.write(0, b"next");
        let mut back = [0; 10];
        first.shadow.read(990, &mut back);
        assert_eq!(&back, b"0123456789");
        shadows.give_back(first.shadow);
        shadows.give_back(second.shadow);
        assert!(shadows.arenas[&FIRST_ADDRESS].is_empty(), "neighbours are one again");
    }

    #[test]
    fn the_quota_holds_and_empty_arenas_make_room() {
        let quota = 16 << 20;
        let mut shadows = Shadows::new(quota);
        let small = shadows.take(100).expect("room");
        shadows.registered(FIRST_ADDRESS);
        assert!(matches!(shadows.take(quota), Err(ShadowError::Quota { .. })), "another has a part of it");
        assert!(matches!(shadows.take(u64::MAX), Err(ShadowError::Quota { .. })));
        shadows.give_back(small.shadow);
        let large = shadows.take(quota).expect("all of it");
        assert_eq!(large.unregister, [FIRST_ADDRESS]);
        assert!(large.register.is_some_and(|(address, bytes, _)| address > FIRST_ADDRESS && bytes == quota));
        assert!(matches!(shadows.take(1), Err(ShadowError::Quota { .. })));
    }
}
