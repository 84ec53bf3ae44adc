//! Shadows: memory on the service process's machine that stands for buffers of ranks elsewhere (GP-9).
//!
//! Each rank's shadows are parts of one memfd, which is registered with the service process at [`START`] and paged in
//! as it is used. Invariant: shadows of one rank do not overlap.

use std::sync::Arc;

use outboard_shm::region::{MemfdRegion, RegionError};

use crate::spans::Spans;

/// Alignment of shadows: a cache line.
const ALIGN: u64 = 64;
/// Address of the memory for the service process.
pub(crate) const START: u64 = 1 << 40;

/// No shadow is left.
#[derive(Debug, thiserror::Error)]
#[error("a call of {bytes} bytes exceeds what is left of the {quota} bytes for a rank's calls; raise --relay-memory")]
pub(crate) struct QuotaError {
    bytes: u64,
    quota: u64,
}

#[derive(Debug)]
pub(crate) struct Shadow {
    region: Arc<MemfdRegion>,
    offset: u64,
    bytes: u64,
}

impl Shadow {
    /// Address of the shadow for the service process.
    pub(crate) fn address(&self) -> u64 {
        START + self.offset
    }

    /// Bytes of the shadow: the requested bytes, rounded up.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset of a part of the shadow in the memfd. It fits `usize`, since a shadow is mapped.
    fn at(&self, offset: u64, bytes: usize) -> usize {
        let end = offset.checked_add(bytes as u64);
        assert!(end.is_some_and(|end| end <= self.bytes), "{bytes} bytes at {offset} of {self:?}");
        (self.offset + offset) as usize
    }

    pub(crate) fn write(&self, offset: u64, from: &[u8]) {
        self.region.write(self.at(offset, from.len()), from);
    }

    pub(crate) fn read(&self, offset: u64, into: &mut [u8]) {
        self.region.read(self.at(offset, into.len()), into);
    }
}

#[derive(Debug)]
pub(crate) struct Shadows {
    /// Memory to be registered at [`START`].
    pub(crate) region: Arc<MemfdRegion>,
    quota: u64,
    /// Offsets without a shadow.
    free: Spans,
}

impl Shadows {
    pub(crate) fn new(quota: u64) -> Result<Shadows, RegionError> {
        let length = usize::try_from(quota).expect("a quota of an address space");
        let region = Arc::new(MemfdRegion::create("outboard-shadows", length)?);
        let mut free = Spans::default();
        free.insert(0, quota);
        Ok(Shadows { region, quota, free })
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Result<Shadow, QuotaError> {
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGN);
        let found = rounded.and_then(|rounded| Some((self.free.first_of(rounded)?.0, rounded)));
        let (offset, rounded) = found.ok_or(QuotaError { bytes, quota: self.quota })?;
        self.free.remove(offset, offset + rounded);
        Ok(Shadow { region: Arc::clone(&self.region), offset, bytes: rounded })
    }

    pub(crate) fn give_back(&mut self, shadow: Shadow) {
        self.free.insert(shadow.offset, shadow.offset + shadow.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_never_overlap_and_the_quota_holds() {
        let quota = 16 << 20;
        let mut shadows = Shadows::new(quota).expect("memory");
        let [first, second] = [1000, 100].map(|bytes| shadows.take(bytes).expect("room"));
        assert_eq!((first.address(), second.address()), (START, START + 1024));
        first.write(990, b"0123456789");
        second.write(0, b"next");
        let mut back = [0; 10];
        first.read(990, &mut back);
        assert_eq!(&back, b"0123456789");
        for bytes in [quota, u64::MAX] {
            let refused = shadows.take(bytes).expect_err("another has a part of it");
            assert!(refused.to_string().contains("--relay-memory"), "{refused}");
        }
        shadows.give_back(first);
        shadows.give_back(second);
        let _all = shadows.take(quota).expect("neighbours are one again");
        assert!(shadows.take(1).is_err());
    }
}
