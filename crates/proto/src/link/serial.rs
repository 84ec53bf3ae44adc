//! Serial-number arithmetic: short counters on the wire, 64-bit inside (RFC 1982 in spirit).
//!
//! A counter of `w` bits is expanded to the 64-bit value nearest to a known value. The expansion is correct while both
//! ends differ by less than half the short range.

use std::cmp::Ordering;

/// The 64-bit value whose low 16 bits are `low` that is nearest to `near`.
pub(crate) fn expand16(low: u16, near: u64) -> u64 {
    expand(u64::from(low), near, 16)
}

/// The 64-bit value whose low 32 bits are `low` that is nearest to `near`.
pub(crate) fn expand32(low: u32, near: u64) -> u64 {
    expand(u64::from(low), near, 32)
}

/// Compares two 32-bit serial numbers.
pub(crate) fn compare32(a: u32, b: u32) -> Ordering {
    (a.wrapping_sub(b) as i32).cmp(&0)
}

fn expand(low: u64, near: u64, bits: u32) -> u64 {
    let range = 1u64 << bits;
    let candidate = (near & !(range - 1)) | low;
    if candidate > near && candidate - near > range / 2 && candidate >= range {
        candidate - range
    } else if near > candidate && near - candidate > range / 2 && candidate <= u64::MAX - range {
        candidate + range
    } else {
        candidate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expands_to_the_nearest() {
        assert_eq!(expand16(0xffff, 0x1_0000), 0xffff);
        assert_eq!(expand16(1, 0xffff), 0x1_0001);
        assert_eq!(expand16(5, 5), 5);
        assert_eq!(expand32(0, 0xffff_ffff), 0x1_0000_0000);
        assert_eq!(expand32(7, 0x3_0000_0009), 0x3_0000_0007);
        assert_eq!(expand16(0xffff, 0), 0xffff, "never below zero");
        assert_eq!(expand16(0, u64::MAX), !0xffff, "never above the top");
    }
}
