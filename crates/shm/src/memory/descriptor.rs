//! The memory descriptor tier: the rank's own `/proc/self/mem`, which it passes at attach.
//!
//! The kernel checks the right to trace when the file is opened, and a process may always open its own file. So this
//! tier needs no right of the service process, and works from another process namespace. The descriptor belongs to one
//! address space for good. After the rank has ended or executed another program, the descriptor reads and writes
//! nothing, never a stranger's bytes. Up to 16 KiB this tier takes less time than cross-memory attach. Large pieces
//! take more, since the kernel copies page by page through its own page. The kernel takes a list of pieces one by one,
//! so small neighbours are gathered here.
//!
//! The kernel lets this file write to pages that the rank has mapped read-only. So the rank checks its buffers before
//! it posts a call in this tier ([`super::OwnMemory`]).

use super::{AccessError, RankMemory, ReadPiece, WritePiece};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};

/// The page size of most kernels; a wrong one only costs time.
const PAGE: u64 = 4096;
/// An address that no process can have.
const BEYOND: i64 = i64::MAX & !0xfff;
/// From this size on a piece is written alone: a system call costs less than the copy.
const SMALL: usize = 16 << 10;
/// Bytes gathered for one system call: fits the second-level cache.
const GATHERED: usize = 64 << 10;
const PROCFS_MAGIC: i64 = 0x9fa0;

/// Reason why a descriptor was not accepted as a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the descriptor handed over is not a process's memory, open for reading and writing: {0}")]
pub struct NotMemory(&'static str);

/// Memory of the process that opened the descriptor.
#[derive(Debug)]
pub struct MemoryDescriptor {
    fd: OwnedFd,
    pid: i32,
}

impl MemoryDescriptor {
    /// Rank: the descriptor to pass to the service process.
    ///
    /// # Errors
    /// The kernel's reason: no `/proc`, or this process has been made undumpable and belongs to another user.
    pub fn of_this_process() -> std::io::Result<OwnedFd> {
        Ok(File::options().read(true).write(true).open("/proc/self/mem")?.into())
    }

    /// Service process: accepts a rank's descriptor, after checking that it is the memory of a process and nothing
    /// else, such as a pipe that blocks. A probe shows whose memory it is. `pid` is for messages.
    pub fn attach(fd: OwnedFd, pid: i32) -> Result<MemoryDescriptor, NotMemory> {
        #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
        let of_procfs = rustix::fs::fstatfs(&fd).is_ok_and(|found| found.f_type as i64 == PROCFS_MAGIC);
        if !of_procfs {
            return Err(NotMemory("it is not in procfs"));
        }
        // A process cannot rename files in procfs; in a foreign namespace the path may differ, but its end is the same.
        let link = std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd()));
        let path = link.map_err(|_| NotMemory("it has no path here; mount /proc where the service process runs"))?;
        let of_process = path.parent().and_then(|parent| parent.file_name()).and_then(|name| name.to_str());
        let numbered = of_process.is_some_and(|name| name.parse::<u32>().is_ok());
        if !numbered || path.file_name().is_none_or(|name| name != "mem") {
            return Err(NotMemory("it is another file"));
        }
        let flags = rustix::fs::fcntl_getfl(&fd).map_err(|_| NotMemory("it has no flags"))?;
        if flags & OFlags::ACCMODE != OFlags::RDWR {
            return Err(NotMemory("it is open for one way only"));
        }
        Ok(MemoryDescriptor { fd, pid })
    }

    /// Translates the result of a call for the piece at `address`.
    fn outcome(&self, moved: Result<usize, Errno>, address: u64, bytes: u64) -> Result<usize, AccessError> {
        match moved {
            // The address space has lost its last process.
            Ok(0) => Err(AccessError::Gone { pid: self.pid }),
            Ok(moved) => Ok(moved),
            Err(Errno::INTR) => Ok(0),
            // Addresses beyond the largest file offset are `INVAL`.
            Err(Errno::IO | Errno::FAULT | Errno::INVAL) => Err(AccessError::Fault { address, bytes }),
            Err(Errno::PERM | Errno::ACCESS) => Err(AccessError::Refused { address }),
            Err(errno) => Err(AccessError::Kernel { address, errno }),
        }
    }
}

impl MemoryDescriptor {
    /// Whether no process has the address space any more. Requests a write at an impossible address. While the address
    /// space exists, the kernel refuses the write before accessing the address space. So a holder of the address
    /// space's lock cannot block this call.
    pub(super) fn has_no_process(&self) -> bool {
        let nowhere: *const libc::c_void = std::ptr::without_provenance(size_of::<u64>());
        // SAFETY: no process has memory at its lowest addresses, so the kernel reads nothing.
        let moved = unsafe { libc::pwrite(self.fd.as_raw_fd(), nowhere, 1, BEYOND) };
        moved == 0
    }

    fn put(&self, mut bytes: &[u8], mut address: u64) -> Result<(), AccessError> {
        while !bytes.is_empty() {
            let moved = rustix::io::pwrite(&self.fd, &bytes[..at_once(address, bytes.len())], address);
            let moved = self.outcome(moved, address, bytes.len() as u64)?;
            (bytes, address) = (&bytes[moved..], address + moved as u64);
        }
        Ok(())
    }
}

/// The number of bytes from `address` on that one system call moves. The kernel copies a page's worth at a time. That
/// part lies in one page only if it begins at the start of a page. An extra call for the bytes before the page boundary
/// costs less than finding every page twice.
fn at_once(address: u64, bytes: usize) -> usize {
    let behind = (address % PAGE) as usize;
    if bytes < SMALL || behind == 0 { bytes } else { PAGE as usize - behind }
}

/// The pieces in the order of their addresses, so that neighbours meet. If pieces overlap, the given order stays, since
/// the last piece counts.
fn sorted<'a>(batch: &'a [WritePiece<'a>]) -> Vec<&'a WritePiece<'a>> {
    let in_order = || batch.iter().filter(|piece| !piece.local.is_empty());
    let mut pieces: Vec<_> = in_order().collect();
    pieces.sort_by_key(|piece| piece.address);
    let overlap = |pair: &[&WritePiece<'_>]| pair[1].address - pair[0].address < pair[0].local.len() as u64;
    if pieces.windows(2).any(overlap) { in_order().collect() } else { pieces }
}

/// Number of leading pieces that are small neighbours, to be written together; at least one.
fn neighbours(pieces: &[&WritePiece<'_>]) -> usize {
    let mut end = None;
    let mut total = 0;
    let joins = |piece: &&&WritePiece<'_>| {
        let joined = piece.local.len() < SMALL && end.is_none_or(|end| end == piece.address);
        end = piece.address.checked_add(piece.local.len() as u64);
        total += piece.local.len();
        joined && total <= GATHERED
    };
    pieces.iter().take_while(joins).count().max(1)
}

impl RankMemory for MemoryDescriptor {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        for ReadPiece { local, address } in batch {
            let mut read = 0;
            while read < local.len() {
                let (at, left) = (*address + read as u64, &mut local[read..]);
                let (now, length) = (at_once(at, left.len()), left.len() as u64);
                read += self.outcome(rustix::io::pread(&self.fd, &mut left[..now], at), at, length)?;
            }
        }
        Ok(())
    }

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        if let [WritePiece { local, address }] = batch {
            return self.put(local, *address);
        }
        let (pieces, mut gathered) = (sorted(batch), Vec::new());
        let mut left = pieces.as_slice();
        while let Some(first) = left.first() {
            let (now, later) = left.split_at(neighbours(left));
            left = later;
            if let [piece] = now {
                self.put(piece.local, piece.address)?;
                continue;
            }
            gathered.clear();
            now.iter().for_each(|piece| gathered.extend_from_slice(piece.local));
            self.put(&gathered, first.address)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect};

    fn own() -> MemoryDescriptor {
        MemoryDescriptor::attach(MemoryDescriptor::of_this_process().unwrap(), 1).unwrap()
    }

    /// SP-4: more pieces than one call takes, neighbours and not, empty ones among them.
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn batches_arrive_whole() {
        let (memory, target) = (own(), vec![0u8; 20_000]);
        let start = target.as_ptr() as u64;
        let chunks: Vec<Vec<u8>> = (0..3000usize).map(|at| vec![at as u8; if at % 7 == 0 { 0 } else { 5 }]).collect();
        // Gaps of one byte follow every hundredth piece; from the middle on the pieces run backwards.
        let address = |at: usize| start + if at < 2000 { 5 * at + at / 100 } else { 19_000 - 5 * (at - 2000) } as u64;
        let piece = |(at, chunk)| WritePiece { local: Vec::as_slice(chunk), address: address(at) };
        memory.writev(&chunks.iter().enumerate().map(piece).collect::<Vec<_>>()).unwrap();
        let mut back = vec![vec![0u8; 5]; 3000];
        let piece = |(at, local): (usize, _)| ReadPiece { local: Vec::as_mut_slice(local), address: address(at) };
        memory.readv(&mut back.iter_mut().enumerate().map(piece).collect::<Vec<_>>()).unwrap();
        for (at, bytes) in back.iter().enumerate() {
            assert_eq!(bytes, &[if at % 7 == 0 { 0 } else { at as u8 }; 5], "piece {at}");
        }
    }

    /// The pieces before the faulty one are moved.
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn faults_are_named() {
        const PAGE: usize = 4096;
        let memory = own();
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE);
        // An address that the kernel only gives on request, so nothing else is mapped behind it meanwhile.
        let place = std::ptr::without_provenance_mut(1 << 40);
        // SAFETY: a fresh mapping, of which only addresses are used; left mapped until the test process ends.
        let start = unsafe { mmap_anonymous(place, 2 * PAGE, rights, flags) }.unwrap() as u64;
        let (behind, bytes) = (start + 2 * PAGE as u64, [7; 64]);
        let batch = [start, behind, start + 64].map(|address| WritePiece { local: &bytes, address });
        assert_eq!(memory.writev(&batch), Err(AccessError::Fault { address: behind, bytes: 64 }));
        assert!(
            matches!(memory.write(behind - 32, &bytes), Err(AccessError::Fault { address, .. }) if address == behind)
        );
        let mut back = [0; 64];
        memory.read(start, &mut back).unwrap();
        assert_eq!(back, bytes);
        memory.read(behind - 32, &mut back[..32]).unwrap();
        assert_eq!(back[..32], bytes[..32]);
        for address in [0, behind, u64::MAX - 3, 1 << 63] {
            assert!(matches!(memory.read(address, &mut [0; 8]), Err(AccessError::Fault { .. })), "{address:#x}");
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/PID/mem")]
    fn the_memory_of_a_process_that_has_ended_is_gone() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let file = File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        let pid = child.id() as i32;
        let memory = MemoryDescriptor::attach(OwnedFd::from(file), pid).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(memory.read(4096, &mut [0; 8]), Err(AccessError::Gone { pid }));
        assert_eq!(memory.write(4096, &[0; 8]), Err(AccessError::Gone { pid }));
    }

    /// If pieces overlap the last one counts, in any order of their addresses.
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn overlapping_pieces_are_written_in_the_order_given() {
        let target = [0u8; 64];
        let start = target.as_ptr() as u64;
        let piece = |at: u64, local: &'static [u8]| WritePiece { local, address: start + at };
        let batch = [piece(8, b"abcd"), piece(4, b"123456"), piece(40, b"x"), piece(9, b"z")];
        own().writev(&batch).unwrap();
        let mut back = [0; 16];
        own().read(start, &mut back).unwrap();
        assert_eq!(&back[4..12], b"12345zcd");
    }

    /// The one difference from the other tiers (module documentation).
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn a_read_only_page_is_written() {
        let memory = own();
        // SAFETY: a fresh mapping, of which only addresses are used; left mapped until the test process ends.
        let start = unsafe {
            let (none, rights) = (std::ptr::null_mut(), ProtFlags::READ | ProtFlags::WRITE);
            let start = mmap_anonymous(none, 4096, rights, MapFlags::PRIVATE).unwrap();
            mprotect(start, 4096, MprotectFlags::READ).unwrap();
            start as u64
        };
        // A kernel with `proc_mem.force_override=never` refuses, as the other tiers do.
        match memory.write(start, b"seen") {
            Ok(()) => {
                let mut back = [0; 4];
                memory.read(start, &mut back).unwrap();
                assert_eq!(&back, b"seen");
            }
            Err(error) => assert!(matches!(error, AccessError::Fault { .. }), "{error}"),
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn other_files_are_refused() {
        let refused = |fd: OwnedFd| MemoryDescriptor::attach(fd, 1).unwrap_err();
        assert_eq!(refused(rustix::pipe::pipe().unwrap().0), NotMemory("it is not in procfs"));
        assert_eq!(refused(tempfile::tempfile().unwrap().into()), NotMemory("it is not in procfs"));
        assert_eq!(refused(File::open("/proc/self/maps").unwrap().into()), NotMemory("it is another file"));
        assert_eq!(refused(File::open("/proc/self/mem").unwrap().into()), NotMemory("it is open for one way only"));
    }
}
