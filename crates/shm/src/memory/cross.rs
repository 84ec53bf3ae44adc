//! Large reads by cross-memory attach: a system call that takes the process by its number.
//!
//! A number is no proof of whose memory is read. The process executes another program, or ends and its number is given to
//! another, and the call reads a stranger. So each call reads two places: the bytes, and a mark that was written by the
//! memory descriptor just before. The call works on one address space from its start to its end, and the descriptor on that
//! of the rank for good. The mark is new with each call, so only the rank's address space holds it, and where it comes back
//! the bytes beside it are the rank's. Where anything else comes back, they are not looked at.
//!
//! Nothing is written this way. A write cannot be taken back, and behind any proof the process may become another program
//! before the write begins; the memory descriptor leaves no such gap. It is used where it pays, since below
//! [`LEAST`] bytes the mark costs more than the kernel's copy through a page of its own.

use super::{MemoryDescriptor, RankMemory};
use rustix::io::Errno;
use rustix::process::Pid;
use std::sync::{Mutex, PoisonError};

/// Bytes from which on it is faster than the memory descriptor.
pub(super) const LEAST: usize = 64 << 10;

/// Memory of another process that this one may trace.
#[derive(Debug)]
pub struct CrossMemory {
    pid: Pid,
}

impl CrossMemory {
    /// Memory of the process that has this number when it is read.
    pub const fn of(pid: Pid) -> CrossMemory {
        CrossMemory { pid }
    }

    /// Reads at several addresses of one address space, of whichever program the process runs now.
    ///
    /// # Errors
    /// The kernel's reason, [`Errno::FAULT`] too where it reads a part.
    pub fn read<const N: usize>(&self, pieces: [(u64, &mut [u8]); N]) -> Result<(), Errno> {
        let total: usize = pieces.iter().map(|(_, local)| local.len()).sum();
        let remote = pieces.each_ref().map(|(address, local)| iovec(*address as *mut u8, local.len()));
        let local = pieces.map(|(_, local)| iovec(local.as_mut_ptr(), local.len()));
        let count = N as libc::c_ulong;
        // SAFETY: the local pieces are slices that the caller holds mutably; the kernel checks the remote ones.
        let moved = unsafe {
            let pid = self.pid.as_raw_nonzero().get();
            libc::process_vm_readv(pid, local.as_ptr(), count, remote.as_ptr(), count, 0)
        };
        match usize::try_from(moved) {
            Ok(moved) if moved == total => Ok(()),
            Ok(_) => Err(Errno::FAULT),
            Err(_) => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)),
        }
    }
}

fn iovec(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

/// The place of the mark in the rank.
#[derive(Debug)]
pub(super) struct Marked {
    cross: CrossMemory,
    place: u64,
    /// The last mark. Held while one is written, so that a later reader's is never replaced by an earlier one's.
    last: Mutex<u64>,
}

impl Marked {
    pub(super) fn new(cross: CrossMemory, place: u64) -> Marked {
        Marked { cross, place, last: Mutex::new(0) }
    }

    /// Reads bytes that are the rank's, or returns false. `rank` is its memory descriptor.
    #[must_use]
    pub(super) fn read(&self, rank: &MemoryDescriptor, address: u64, into: &mut [u8]) -> bool {
        let own = {
            let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
            *last += 1;
            if rank.write(self.place, &last.to_ne_bytes()).is_err() {
                return false;
            }
            *last
        };
        let mut mark = [0; size_of::<u64>()];
        let read = self.cross.read([(address, into), (self.place, &mut mark)]);
        // A later one was written by another thread that reads this rank, after ours.
        read.is_ok() && u64::from_ne_bytes(mark) >= own
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    fn own() -> CrossMemory {
        CrossMemory::of(rustix::process::getpid())
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn marked_bytes_are_read_and_faults_are_not_believed() {
        let descriptor = MemoryDescriptor::attach(MemoryDescriptor::of_this_process().unwrap(), 1).unwrap();
        let (place, bytes) = (Box::new([0u64]), vec![7u8; 100_000]);
        let marked = Marked::new(own(), place.as_ptr() as u64);
        let mut found = vec![0; bytes.len()];
        for _ in 0..3 {
            assert!(marked.read(&descriptor, bytes.as_ptr() as u64, &mut found));
        }
        assert!(found == bytes);
        assert!(!marked.read(&descriptor, 8, &mut found));
        assert!(!Marked::new(own(), 8).read(&descriptor, bytes.as_ptr() as u64, &mut found), "nowhere to mark");
    }

    fn stranger() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    /// SP-4: the number names a process whose memory the kernel would let us read, and which is not the rank's.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn a_stranger_with_the_number_is_not_believed() {
        let descriptor = MemoryDescriptor::attach(MemoryDescriptor::of_this_process().unwrap(), 1).unwrap();
        let mut child = stranger();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let address = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let cross = CrossMemory::of(Pid::from_child(&child));
        cross.read([(address, &mut [0; 16])]).unwrap();
        let place = Box::new([0u64]);
        let marked = Marked::new(cross, place.as_ptr() as u64);
        assert!(!marked.read(&descriptor, address, &mut [0; 16]), "it has no such place, or another mark");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
