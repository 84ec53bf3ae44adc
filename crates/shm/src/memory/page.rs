//! The page of a rank that holds its [`Probe`]: the one place that provably only this rank has.
//!
//! The page's address is drawn from 2^33 page addresses, far from the kernel's default places for mappings. So no
//! program that the rank executes later has memory there, and a write that begins here does not reach such a program
//! ([`CrossMemory`](super::CrossMemory)). If the kernel has no such addresses the page lies anywhere. Children do not
//! inherit the page, so a process in which the nonce is found there is the rank.

use super::Probe;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

const BYTES: usize = 4096;
/// Addresses from 2^41 to 2^46.
const FIRST: u64 = 1 << 41;
const BITS: u32 = 45;
const TRIES: usize = 8;

/// A [`Probe`] in a separate page.
#[derive(Debug)]
pub struct ProbePage(NonNull<Probe>);

// SAFETY: the page belongs to this value alone, and `Probe` is plain bytes.
unsafe impl Send for ProbePage {}
// SAFETY: shared access to the page only reads.
unsafe impl Sync for ProbePage {}

impl ProbePage {
    /// A fresh probe.
    ///
    /// # Errors
    /// The kernel has no random bytes or no memory.
    pub fn new() -> Result<ProbePage, Errno> {
        let probe = Probe::new()?;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let mut drawn = [0; TRIES * size_of::<u64>()];
        rustix::rand::getrandom(&mut drawn, rustix::rand::GetRandomFlags::empty())?;
        let placed = drawn.chunks_exact(size_of::<u64>()).find_map(|drawn| {
            let drawn = u64::from_ne_bytes(drawn.try_into().expect("eight bytes"));
            let address = (FIRST + drawn % (1 << BITS)) & !(BYTES as u64 - 1);
            // SAFETY: replaces no mapping.
            unsafe { mmap_anonymous(address as *mut _, BYTES, rights, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE) }
                .ok()
        });
        let page = match placed {
            Some(page) => page,
            // SAFETY: a new mapping wherever the kernel has room.
            None => unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, rights, MapFlags::PRIVATE)? },
        };
        // SAFETY: changes what a fork does with a page that is ours.
        unsafe { madvise(page, BYTES, Advice::LinuxDontFork)? };
        let page = NonNull::new(page.cast::<Probe>()).ok_or(Errno::NOMEM)?;
        // SAFETY: the page is ours, writable, aligned, and larger than a probe.
        unsafe { page.write(probe) };
        Ok(ProbePage(page))
    }
}

impl Deref for ProbePage {
    type Target = Probe;

    fn deref(&self) -> &Probe {
        // SAFETY: the page holds a probe while this value lives.
        unsafe { self.0.as_ref() }
    }
}

impl DerefMut for ProbePage {
    fn deref_mut(&mut self) -> &mut Probe {
        // SAFETY: the page holds a probe while this value lives, and no other reference exists.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for ProbePage {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives this value.
        if let Err(errno) = unsafe { munmap(self.0.as_ptr().cast(), BYTES) } {
            debug_assert!(false, "a page that was mapped is unmapped: {errno}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "maps memory at an address")]
    fn pages_lie_far_from_each_other_and_from_the_kernels() {
        let pages: Vec<ProbePage> = (0..50).map(|_| ProbePage::new().unwrap()).collect();
        let addresses: Vec<u64> = pages.iter().map(|page| &raw const **page as u64).collect();
        let spread = addresses.iter().max().unwrap() - addresses.iter().min().unwrap();
        assert!(spread > 1 << 43, "{addresses:x?}");
        assert!(pages.iter().all(|page| page.nonce() != [0; Probe::NONCE]));
    }
}
