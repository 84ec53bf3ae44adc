//! Large accesses by cross-memory attach: a system call that identifies the process by its number.
//!
//! The number does not prove whose memory is read. The process may execute another program, or end and leave its number
//! to another process, so the call may meet a stranger. So each call that reads has two places: the bytes, and a mark.
//! The memory descriptor has written the mark just before. One call works on one address space from its start to its
//! end, and the descriptor works on the rank's address space for good. The mark is new with each call, so only the
//! rank's address space holds that mark. If the mark comes back, the bytes beside it are the rank's; otherwise the
//! bytes are not used.
//!
//! A write cannot be undone, and after any proof the process may execute another program before the write begins. So
//! each call that writes begins with a guard, at an address where only the rank has memory ([`ProbePage`]). The address
//! is drawn from 2^33 addresses that no other program uses. If no memory is there, the kernel ends the call before it
//! writes anything else. The kernel permits access to processes of our own user only, so a user gains nothing by a
//! program with such a page.
//!
//! Below [`LEAST_READ`] bytes the mark costs more than the kernel's copy through its own page. Writes of every size go
//! this way: the memory descriptor also writes to pages that the rank itself may not write.
//!
//! [`ProbePage`]: super::ProbePage

use super::{MemoryDescriptor, RankMemory, WritePiece};
use crate::rank_copy::{CopyOutcome, RankCopy};
use rustix::io::Errno;
use rustix::process::Pid;
use smallvec::{SmallVec, smallvec};
use std::sync::{Mutex, PoisonError};

/// Bytes from which on a read by cross-memory attach is faster than by the memory descriptor.
pub(super) const LEAST_READ: usize = 56 << 10;

/// Most pieces that the kernel accepts in one call.
const MOST_PIECES: usize = 1024;

/// Memory of another process that this process may trace.
#[derive(Debug)]
pub struct CrossMemory {
    pid: Pid,
}

impl CrossMemory {
    /// Memory of the process that has this number at the time of the access.
    pub const fn of(pid: Pid) -> CrossMemory {
        CrossMemory { pid }
    }

    /// Reads at several addresses of one address space, of the program that the process runs now.
    ///
    /// # Errors
    /// The kernel's reason, also [`Errno::FAULT`] for a partial read.
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

    /// Performs a rank copy: copies bytes of the process with the number `pid` to this process by one call, which reads
    /// the nonce first. If another process has the number, or the process runs another program, the copy fails or is
    /// detected.
    ///
    /// # Safety
    /// The target of `rank_copy` is memory of this process that no thread reads or writes meanwhile.
    pub unsafe fn perform(rank_copy: &RankCopy) -> CopyOutcome {
        let Some(pid) = i32::try_from(rank_copy.pid).ok().and_then(Pid::from_raw) else { return CopyOutcome::Failed };
        let mut nonce = [0; 16];
        // SAFETY: the caller guarantees that no thread reads or writes the target meanwhile.
        let into = unsafe { std::slice::from_raw_parts_mut(rank_copy.target as *mut u8, rank_copy.bytes as usize) };
        let read = CrossMemory::of(pid).read([(rank_copy.mark, &mut nonce), (rank_copy.source, into)]);
        if read.is_ok() && nonce == rank_copy.nonce { CopyOutcome::Done } else { CopyOutcome::Failed }
    }

    /// Writes at several addresses of one address space, in order, up to the first page that cannot be written. Returns
    /// the number of bytes written.
    fn write(&self, pieces: &[WritePiece<'_>]) -> usize {
        let local: Iovecs = pieces.iter().map(|p| iovec(p.local.as_ptr().cast_mut(), p.local.len())).collect();
        let mut remote = Iovecs::new();
        for WritePiece { local, address } in pieces {
            match remote.last_mut() {
                // The kernel pins the pages of each place, so neighbours are joined to pin a page once.
                Some(last) if (last.iov_base as u64).wrapping_add(last.iov_len as u64) == *address => {
                    last.iov_len += local.len()
                }
                _ => remote.push(iovec(*address as *mut u8, local.len())),
            }
        }
        // SAFETY: the local pieces are slices, which the kernel only reads; the kernel checks the remote pieces.
        let moved = unsafe {
            let pid = self.pid.as_raw_nonzero().get();
            let [locals, remotes] = [&local, &remote].map(|pieces| pieces.len() as libc::c_ulong);
            libc::process_vm_writev(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
        };
        usize::try_from(moved).unwrap_or(0)
    }
}

type Iovecs = SmallVec<[libc::iovec; 64]>;

fn iovec(start: *mut u8, len: usize) -> libc::iovec {
    libc::iovec { iov_base: start.cast(), iov_len: len }
}

/// Cross-memory attach with proof. `place` is the address of the mark in the rank; the guard lies behind the mark.
#[derive(Debug)]
pub(super) struct VerifiedCrossMemory {
    cross: CrossMemory,
    place: u64,
    /// The last mark. The lock is held while a mark is written, so that no earlier mark replaces the mark of a later
    /// reader.
    last: Mutex<u64>,
}

impl VerifiedCrossMemory {
    pub(super) fn new(cross: CrossMemory, place: u64) -> VerifiedCrossMemory {
        VerifiedCrossMemory { cross, place, last: Mutex::new(0) }
    }

    /// Reads bytes that are proven to be the rank's, or returns false. `rank` is the rank's memory descriptor.
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
        // A larger mark comes from another thread that reads this rank and has written its mark after this thread.
        read.is_ok() && u64::from_ne_bytes(mark) >= own
    }

    /// Writes to the rank. Unless everything is written, a part may have been written, but only to the rank.
    pub(super) fn write(&self, batch: &[WritePiece<'_>]) -> WriteOutcome {
        let guard = WritePiece { local: &[0; size_of::<u64>()], address: self.place + size_of::<u64>() as u64 };
        for some in batch.chunks(MOST_PIECES - 1) {
            let mut pieces: SmallVec<[WritePiece<'_>; 64]> = smallvec![guard];
            pieces.extend_from_slice(some);
            // Behind the guard the memory is the rank's, so the rank causes every failure from there on.
            let Some(mut written) = self.cross.write(&pieces).checked_sub(guard.local.len()) else {
                return WriteOutcome::Refused;
            };
            for piece in some {
                if written < piece.local.len() {
                    return WriteOutcome::Fault {
                        address: piece.address + written as u64,
                        bytes: (piece.local.len() - written) as u64,
                    };
                }
                written -= piece.local.len();
            }
        }
        WriteOutcome::Written
    }
}

/// Outcome of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Written,
    /// The kernel refuses the access, or the process is not the rank; nothing was written.
    Refused,
    /// The rank itself may not write here.
    Fault {
        address: u64,
        bytes: u64,
    },
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
        let marked = VerifiedCrossMemory::new(own(), place.as_ptr() as u64);
        let mut found = vec![0; bytes.len()];
        for _ in 0..3 {
            assert!(marked.read(&descriptor, bytes.as_ptr() as u64, &mut found));
        }
        assert!(found == bytes);
        assert!(!marked.read(&descriptor, 8, &mut found));
        assert!(
            !VerifiedCrossMemory::new(own(), 8).read(&descriptor, bytes.as_ptr() as u64, &mut found),
            "nowhere to mark"
        );
    }

    /// SP-4: a write that would meet another program ends at the guard.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_writev")]
    fn a_write_ends_at_a_missing_guard() {
        let mut bytes = vec![1u8; 1000];
        let piece = |local, bytes: &mut [u8]| WritePiece { local, address: bytes.as_mut_ptr() as u64 };
        let place = Box::new([0u64; 2]);
        let marked = VerifiedCrossMemory::new(own(), place.as_ptr() as u64);
        assert_eq!(marked.write(&[piece(&[2; 500], &mut bytes)]), WriteOutcome::Written);
        assert!(bytes[..500] == [2; 500] && bytes[500..] == [1; 500]);
        let (first, second) = bytes.split_at_mut(500);
        let (near, far) = second.split_at_mut(250);
        let pieces = [piece(&[5; 250], near), piece(&[6; 250], far), piece(&[7; 500], first)];
        assert_eq!(marked.write(&pieces), WriteOutcome::Written, "neighbours and others");
        assert_eq!([bytes[0], bytes[499], bytes[500], bytes[749], bytes[750], bytes[999]], [7, 7, 5, 5, 6, 6]);
        let stranger = VerifiedCrossMemory::new(own(), 8);
        assert_eq!(stranger.write(&[piece(&[3; 1000], &mut bytes)]), WriteOutcome::Refused);
        assert!(!bytes.contains(&3));
        let nowhere = WritePiece { local: &[4; 8], address: 8 };
        assert_eq!(marked.write(&[nowhere]), WriteOutcome::Fault { address: 8, bytes: 8 });
        let many = vec![piece(&[9], &mut bytes); MOST_PIECES];
        assert_eq!(marked.write(&many), WriteOutcome::Written, "more pieces than one call takes");
    }

    fn stranger() -> Child {
        Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().unwrap()
    }

    /// SP-4: the number names a process that the kernel would let us read, but that is not the rank.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn another_process_with_the_rank_pid_is_not_read() {
        let descriptor = MemoryDescriptor::attach(MemoryDescriptor::of_this_process().unwrap(), 1).unwrap();
        let mut child = stranger();
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id())).unwrap();
        let address = u64::from_str_radix(maps.split('-').next().unwrap(), 16).unwrap();
        let cross = CrossMemory::of(Pid::from_child(&child));
        cross.read([(address, &mut [0; 16])]).unwrap();
        let place = Box::new([0u64]);
        let marked = VerifiedCrossMemory::new(cross, place.as_ptr() as u64);
        assert!(!marked.read(&descriptor, address, &mut [0; 16]), "it has no such place, or another mark");
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
