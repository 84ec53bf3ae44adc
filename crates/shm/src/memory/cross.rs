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
    use crate::memory::tests::{batches_arrive_whole, faults_are_named, the_end_is_noticed};

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn it_does_what_every_tier_does() {
        let memory = CrossMemory::open(rustix::process::getpid()).unwrap();
        batches_arrive_whole(&memory);
        let (behind, fault) = faults_are_named(&memory);
        let within = behind - 32..=behind;
        assert!(matches!(fault, AccessError::Fault { address, .. } if within.contains(&address)), "{fault}");
        the_end_is_noticed(|child| {
            let memory = CrossMemory::open(Pid::from_child(child)).unwrap();
            memory.alive().unwrap();
            memory
        });
    }
}
