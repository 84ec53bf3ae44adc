//! Requests of a rank whose buffers only the rank reaches, so that the rank must stage them.
//!
//! The service process sets the bit of the request's completion word, then counts, then wakes the rank. The rank
//! compares the count with the count of requests that it has carried out. It clears the bit when it uses the word
//! again. A rank that falsifies either misleads only itself.

use crate::sync::{AtomicU32, Ordering};

/// A view of the requests, for either side.
#[derive(Debug, Clone, Copy)]
pub(super) struct StagingRequests<'a> {
    count: &'a AtomicU32,
    bits: &'a [AtomicU32],
}

impl<'a> StagingRequests<'a> {
    pub(super) fn new(count: &'a AtomicU32, bits: &'a [AtomicU32]) -> StagingRequests<'a> {
        StagingRequests { count, bits }
    }

    /// The word of the slot's bit, and the bit. None for a slot that only another release has.
    fn bit(&self, slot: u32) -> Option<(&AtomicU32, u32)> {
        self.bits.get((slot / u32::BITS) as usize).map(|word| (word, 1 << (slot % u32::BITS)))
    }

    pub(super) fn request(&self, slot: u32) {
        if let Some((word, bit)) = self.bit(slot) {
            word.fetch_or(bit, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Release);
    }

    pub(super) fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    pub(super) fn contains(&self, slot: u32) -> bool {
        self.bit(slot).is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }

    /// The rank uses the completion word for another request.
    pub(super) fn end(&self, slot: u32) {
        if let Some((word, bit)) = self.bit(slot).filter(|_| self.contains(slot)) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }
}
