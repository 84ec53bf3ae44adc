//! The cross-memory tier: system calls that copy between this process and the rank's.
//!
//! The process is known by a pidfd. Its number could be given to another process once it has been reaped, so every batch
//! asks the pidfd first, and a read asks again afterwards: bytes of a stranger are never returned. A write can hit a
//! stranger only if the rank dies and the kernel goes round all process numbers between two consecutive system calls.
//! A call can take as long as the rank's page faults do, which is up to the rank where it handles them itself.

use super::{AccessError, RankMemory, ReadPiece, WritePiece};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Pieces per system call, as many as the kernel takes (`UIO_MAXIOV`).
const PIECES: usize = 1024;

/// Memory of another process that this one may trace.
#[derive(Debug)]
pub struct CrossMemory {
    pid: Pid,
    pidfd: OwnedFd,
}

/// Which way a batch goes.
#[derive(Debug, Clone, Copy)]
enum Direction {
    FromRank,
    ToRank,
}

impl CrossMemory {
    /// Pins the process `pid`. The caller knows by other means that the number is right, at best by [`super::probe`].
    ///
    /// # Errors
    /// The kernel's reason: no such process, or descriptors exhausted.
    pub fn open(pid: Pid) -> rustix::io::Result<CrossMemory> {
        Ok(CrossMemory { pid, pidfd: pidfd_open(pid, PidfdFlags::empty())? })
    }

    /// Becomes readable when the process ends: evidence of death.
    pub fn pidfd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }

    fn alive(&self) -> Result<(), AccessError> {
        let mut watched = [PollFd::new(&self.pidfd, PollFlags::IN)];
        match poll(&mut watched, Some(&Timespec::default())) {
            Ok(0) | Err(Errno::INTR) => Ok(()),
            Ok(_) => Err(self.gone()),
            Err(errno) => Err(AccessError::Kernel { address: 0, errno }),
        }
    }

    fn gone(&self) -> AccessError {
        AccessError::Gone { pid: self.pid.as_raw_nonzero().get() }
    }

    /// Moves the pieces given, in as many calls as the kernel wants, going on where a call stopped short.
    fn transfer(&self, direction: Direction, pieces: &mut Pieces) -> Result<(), AccessError> {
        let (mut local, mut remote) = (pieces.local.as_mut_slice(), pieces.remote.as_mut_slice());
        while !remote.is_empty() {
            let moved = self.call(direction, local, remote)?;
            if moved == 0 {
                return Err(fault(&remote[0]));
            }
            (local, remote) = (without(local, moved), without(remote, moved));
        }
        Ok(())
    }

    fn call(&self, direction: Direction, local: &[libc::iovec], remote: &[libc::iovec]) -> Result<usize, AccessError> {
        let pid = self.pid.as_raw_nonzero().get();
        let (locals, remotes) = (local.len() as libc::c_ulong, remote.len() as libc::c_ulong);
        loop {
            // SAFETY: the local pieces were made from slices that the caller of `transfer` holds, mutably where the
            // kernel writes; the kernel checks the remote ones.
            let moved = unsafe {
                match direction {
                    Direction::FromRank => {
                        libc::process_vm_readv(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
                    }
                    Direction::ToRank => {
                        libc::process_vm_writev(pid, local.as_ptr(), locals, remote.as_ptr(), remotes, 0)
                    }
                }
            };
            if let Ok(moved) = usize::try_from(moved) {
                return Ok(moved);
            }
            let address = remote[0].iov_base as u64;
            match Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO) {
                Errno::INTR => {}
                Errno::FAULT => return Err(fault(&remote[0])),
                Errno::PERM => return Err(AccessError::Refused { address }),
                Errno::SRCH => return Err(self.gone()),
                errno => return Err(AccessError::Kernel { address, errno }),
            }
        }
    }
}

fn fault(remote: &libc::iovec) -> AccessError {
    AccessError::Fault { address: remote.iov_base as u64, bytes: remote.iov_len as u64 }
}

/// What is left of the pieces when their first `moved` bytes have been dealt with.
fn without(pieces: &mut [libc::iovec], mut moved: usize) -> &mut [libc::iovec] {
    let mut whole = 0;
    while whole < pieces.len() && moved >= pieces[whole].iov_len {
        moved -= pieces[whole].iov_len;
        whole += 1;
    }
    let left = &mut pieces[whole..];
    if moved > 0 {
        left[0].iov_base = left[0].iov_base.wrapping_byte_add(moved);
        left[0].iov_len -= moved;
    }
    left
}

/// Pieces of one system call, as many bytes here as there, none of them empty: those would look like a call that moved
/// nothing. Neighbours there become one piece, since the kernel looks up pages piece by piece.
struct Pieces {
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

impl Pieces {
    fn of(count: usize) -> Pieces {
        Pieces { local: Vec::with_capacity(count), remote: Vec::with_capacity(count) }
    }

    fn push(&mut self, local: *mut u8, address: u64, len: usize) {
        if len == 0 {
            return;
        }
        self.local.push(libc::iovec { iov_base: local.cast(), iov_len: len });
        match self.remote.last_mut() {
            Some(last) if last.iov_base as u64 + last.iov_len as u64 == address => last.iov_len += len,
            _ => self.remote.push(libc::iovec { iov_base: address as *mut libc::c_void, iov_len: len }),
        }
    }
}

impl RankMemory for CrossMemory {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        self.alive()?;
        for part in batch.chunks_mut(PIECES) {
            let mut pieces = Pieces::of(part.len());
            for piece in part {
                pieces.push(piece.local.as_mut_ptr(), piece.address, piece.local.len());
            }
            self.transfer(Direction::FromRank, &mut pieces)?;
        }
        self.alive()
    }

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        self.alive()?;
        for part in batch.chunks(PIECES) {
            let mut pieces = Pieces::of(part.len());
            for piece in part {
                pieces.push(piece.local.as_ptr().cast_mut(), piece.address, piece.local.len());
            }
            self.transfer(Direction::ToRank, &mut pieces)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    const PAGE: usize = 4096;

    fn own() -> CrossMemory {
        CrossMemory::open(rustix::process::getpid()).unwrap()
    }

    /// Pages of our own, the last of which cannot be accessed; left mapped until the test process ends.
    fn pages(count: usize) -> u64 {
        // SAFETY: a fresh mapping, of which only addresses are used.
        unsafe {
            let start = mmap_anonymous(
                std::ptr::null_mut(),
                count * PAGE,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
            .unwrap();
            mprotect(start.byte_add((count - 1) * PAGE), PAGE, MprotectFlags::empty()).unwrap();
            start as u64
        }
    }

    /// SP-4: more pieces than one system call takes, empty ones among them.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn batches_beyond_the_kernels_limit_arrive_whole() {
        let memory = own();
        let target = vec![0u8; 5 * 3000];
        let chunks: Vec<Vec<u8>> = (0..3000usize).map(|at| vec![at as u8; if at % 7 == 0 { 0 } else { 5 }]).collect();
        let batch: Vec<_> = chunks
            .iter()
            .enumerate()
            .map(|(at, chunk)| WritePiece { local: chunk, address: target.as_ptr() as u64 + 5 * at as u64 })
            .collect();
        memory.writev(&batch).unwrap();
        let mut back = vec![vec![0u8; 5]; 3000];
        let mut batch: Vec<_> = back
            .iter_mut()
            .enumerate()
            .map(|(at, local)| ReadPiece { local, address: target.as_ptr() as u64 + 5 * at as u64 })
            .collect();
        memory.readv(&mut batch).unwrap();
        for (at, bytes) in back.iter().enumerate() {
            let expected = if at % 7 == 0 { 0 } else { at as u8 };
            assert_eq!(bytes, &[expected; 5]);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn a_fault_names_the_piece_and_what_lies_before_is_moved() {
        let memory = own();
        let start = pages(3);
        let guard = start + 2 * PAGE as u64;
        let bytes = [7; 64];
        let batch = [
            WritePiece { local: &bytes, address: start },
            WritePiece { local: &bytes, address: guard },
            WritePiece { local: &bytes, address: start + 64 },
        ];
        assert_eq!(memory.writev(&batch), Err(AccessError::Fault { address: guard, bytes: 64 }));
        let mut back = [0; 64];
        memory.read(start, &mut back).unwrap();
        assert_eq!(back, bytes);
        // A piece that begins well and runs into the guard page is moved up to it.
        let across = memory.write(guard - 32, &bytes);
        assert!(matches!(across, Err(AccessError::Fault { address, .. }) if (guard - 32..=guard).contains(&address)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn a_process_that_ended_is_gone_and_not_its_successor() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let memory = CrossMemory::open(Pid::from_child(&child)).unwrap();
        memory.alive().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        let pid = child.id() as i32;
        assert_eq!(memory.read(4096, &mut [0; 8]), Err(AccessError::Gone { pid }));
        assert_eq!(memory.write(4096, &[0; 8]), Err(AccessError::Gone { pid }));
    }
}
