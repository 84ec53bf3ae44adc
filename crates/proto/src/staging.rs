//! The sizes in which memory of the service process is allocated.

/// Alignment of buffers in staging and scratch; it suits every element type.
pub(crate) const ALIGN: u64 = 64;
/// Smallest allocation of staging.
const MIN_STAGING: u64 = 256;

/// The size of an allocation for `bytes` of staging, which counts to quotas. The size exceeds `bytes` by an eighth at
/// most: there are eight sizes from one power of two to the next, so that freed memory can be reused for similar sizes.
/// `None` when the size overflows.
pub fn staging_size(bytes: u64) -> Option<u64> {
    let bytes = bytes.max(MIN_STAGING);
    bytes.checked_next_multiple_of(bytes.checked_next_power_of_two()? / 16)
}
