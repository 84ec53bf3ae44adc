//! Proxy buffers: memory on the service process's machine that stands for buffers of ranks on another machine (GP-9).
//!
//! The proxy buffers of each rank are parts of one memfd. The memfd is registered with the service process at [`START`]
//! and gets pages as it is used. Invariant: proxy buffers of one rank do not overlap.

use std::sync::Arc;

use outboard_shm::region::{MemfdRegion, RegionError};

use crate::spans::Spans;

/// Alignment of proxy buffers: a cache line.
const ALIGN: u64 = 64;
/// Address at which the service process finds the memory.
pub(crate) const START: u64 = 1 << 40;

/// The free memory is too small for a proxy buffer.
#[derive(Debug, thiserror::Error)]
#[error("a call of {bytes} bytes exceeds what is left of the {quota} bytes for a rank's calls; raise --relay-memory")]
pub(crate) struct QuotaError {
    bytes: u64,
    quota: u64,
}

#[derive(Debug)]
pub(crate) struct ProxyBuffer {
    region: Arc<MemfdRegion>,
    offset: u64,
    bytes: u64,
}

impl ProxyBuffer {
    /// Address at which the service process finds the proxy buffer.
    pub(crate) fn address(&self) -> u64 {
        START + self.offset
    }

    /// Length of the proxy buffer in bytes: the requested length, rounded up.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Offset in the memfd of a part of the proxy buffer. The offset fits `usize`, since the proxy buffer is mapped.
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
pub(crate) struct ProxyBuffers {
    /// The memory, which must be registered at [`START`].
    pub(crate) region: Arc<MemfdRegion>,
    quota: u64,
    /// Offsets that belong to no proxy buffer.
    free: Spans,
}

impl ProxyBuffers {
    pub(crate) fn new(quota: u64) -> Result<ProxyBuffers, RegionError> {
        let length = usize::try_from(quota).expect("a quota of an address space");
        let region = Arc::new(MemfdRegion::create("outboard-shadows", length)?);
        let mut free = Spans::default();
        free.insert(0, quota);
        Ok(ProxyBuffers { region, quota, free })
    }

    pub(crate) fn take(&mut self, bytes: u64) -> Result<ProxyBuffer, QuotaError> {
        let rounded = bytes.max(1).checked_next_multiple_of(ALIGN);
        let found = rounded.and_then(|rounded| Some((self.free.first_of(rounded)?.0, rounded)));
        let (offset, rounded) = found.ok_or(QuotaError { bytes, quota: self.quota })?;
        self.free.remove(offset, offset + rounded);
        Ok(ProxyBuffer { region: Arc::clone(&self.region), offset, bytes: rounded })
    }

    pub(crate) fn give_back(&mut self, proxy_buffer: ProxyBuffer) {
        self.free.insert(proxy_buffer.offset, proxy_buffer.offset + proxy_buffer.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shadows_never_overlap_and_the_quota_holds() {
        let quota = 16 << 20;
        let mut proxy_buffers = ProxyBuffers::new(quota).expect("memory");
        let [first, second] = [1000, 100].map(|bytes| proxy_buffers.take(bytes).expect("room"));
        assert_eq!((first.address(), second.address()), (START, START + 1024));
        first.write(990, b"0123456789");
        second.write(0, b"next");
        let mut back = [0; 10];
        first.read(990, &mut back);
        assert_eq!(&back, b"0123456789");
        for bytes in [quota, u64::MAX] {
            let refused = proxy_buffers.take(bytes).expect_err("another has a part of it");
            assert!(refused.to_string().contains("--relay-memory"), "{refused}");
        }
        proxy_buffers.give_back(first);
        proxy_buffers.give_back(second);
        let _all = proxy_buffers.take(quota).expect("neighbours are one again");
        assert!(proxy_buffers.take(1).is_err());
    }
}
