//! Shared memory regions: sealed memfds, so that no process can remove pages under a mapping.
//!
//! Invariants: a [`MemfdRegion`] maps exactly `len` bytes of a file that can neither shrink nor grow and that lies in
//! the kernel's own tmpfs. So no access to the mapping raises SIGBUS. Another process may change the bytes of a region
//! at any moment: the bytes are accessed through raw pointers, never as references, except for atomics.

use crate::plain::FileContent;
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags};
use rustix::process::Resource;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::ptr::NonNull;

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// The seals without which pages could be removed under a mapping.
fn size_seals() -> SealFlags {
    SealFlags::SHRINK | SealFlags::GROW
}

#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    #[error("cannot {what} a shared memory region of {bytes} bytes: {errno}; check limits on memory and descriptors")]
    Kernel { what: &'static str, bytes: u64, errno: Errno },
    #[error(
        "a shared memory region of {bytes} bytes would exceed the limit of {limit} bytes on files; raise it (`ulimit -f`)"
    )]
    FileLimit { bytes: u64, limit: u64 },
    #[error(
        "the descriptor received is not a memory region that we can trust ({0}); it must be a memfd sealed against shrinking and growing"
    )]
    Untrusted(&'static str),
    #[error("the region has {actual} bytes where {expected} were announced")]
    Size { expected: u64, actual: u64 },
}

/// A mapped, sealed memfd.
#[derive(Debug)]
pub struct MemfdRegion {
    start: NonNull<u8>,
    len: usize,
    fd: OwnedFd,
}

// SAFETY: the mapping belongs to the process, not to a thread, and is accessed through raw pointers and atomics only.
unsafe impl Send for MemfdRegion {}
// SAFETY: methods that copy bytes take raw addresses and never form references; atomics may be shared.
unsafe impl Sync for MemfdRegion {}

impl MemfdRegion {
    /// Makes a zeroed region of `len` bytes, seals its size and maps it.
    ///
    /// # Errors
    /// [`RegionError::Kernel`] if memory, descriptors or address space are exhausted, or `len` is 0.
    /// [`RegionError::FileLimit`] beyond the process's limit on files.
    pub fn create(name: &str, len: usize) -> Result<MemfdRegion, RegionError> {
        MemfdRegion::map(sealed(name, len)?, len)
    }

    /// Maps a region that another process made, after checking that it has `len` bytes and cannot shrink. Core dumps
    /// leave the region out: a dump would contain the other process's data, and would allocate memory for pages that
    /// have none.
    ///
    /// # Errors
    /// [`RegionError::Untrusted`] or [`RegionError::Size`] for any other file, [`RegionError::Kernel`] as in
    /// [`Self::create`].
    pub fn attach(fd: OwnedFd, len: usize) -> Result<MemfdRegion, RegionError> {
        MemfdRegion::check(&fd, len as u64)?;
        let region = MemfdRegion::map(fd, len)?;
        // If the advice fails, dumps are larger, and nothing else changes.
        // SAFETY: the whole of our own mapping; the advice does not change its content.
        let _ = unsafe { rustix::mm::madvise(region.start.as_ptr().cast(), len, Advice::LinuxDontDump) };
        Ok(region)
    }

    /// Checks whether [`attach`](Self::attach) would accept another process's region; the result cannot change later.
    pub fn check(fd: impl AsFd, len: u64) -> Result<(), RegionError> {
        check_seals(fd.as_fd(), len, size_seals())
    }

    fn map(fd: OwnedFd, len: usize) -> Result<MemfdRegion, RegionError> {
        let kernel = |errno| RegionError::Kernel { what: "map", bytes: len as u64, errno };
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no memory that Rust knows of.
        let start = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &fd, 0)
        }
        .map_err(kernel)?;
        let start = NonNull::new(start.cast()).ok_or(kernel(Errno::NOMEM))?;
        Ok(MemfdRegion { start, len, fd })
    }

    /// Keeps the mapping out of children that this process forks.
    ///
    /// # Errors
    /// [`RegionError::Kernel`] if the kernel does not support the advice.
    pub fn keep_from_children(&self) -> Result<(), RegionError> {
        // SAFETY: the range is the whole of our own mapping, and the advice does not change its content.
        unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.len, Advice::LinuxDontFork) }
            .map_err(|errno| RegionError::Kernel { what: "keep from children", bytes: self.len as u64, errno })
    }

    /// The content of the region, to be copied later; None if the kernel does not identify the file.
    pub fn content(&self) -> Option<FileContent> {
        FileContent::of(self.fd(), self.len)
    }

    /// Closes the descriptor and leaves the mapping to the process, for good.
    pub fn leave_mapped(self) {
        let this = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, as `this` is not used or dropped after.
        drop(unsafe { std::ptr::read(&this.fd) });
    }

    /// First byte of the mapping in this process.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub fn bytes(&self) -> usize {
        self.len
    }

    /// The descriptor to pass to another process.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn read(&self, offset: usize, into: &mut [u8]) {
        let from = self.at(offset, into.len());
        // SAFETY: the range was checked to be mapped; `into` is a unique borrow, so the two cannot overlap.
        unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), into.as_mut_ptr(), into.len()) }
    }

    pub fn write(&self, offset: usize, from: &[u8]) {
        let to = self.at(offset, from.len());
        // SAFETY: the range was checked to be mapped. `from` may lie in a mapping of the same file only if `from` was
        // made from a raw pointer elsewhere; `copy` allows the overlap.
        unsafe { std::ptr::copy(from.as_ptr(), to.as_ptr(), from.len()) }
    }

    pub(crate) fn at(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len).expect("range within the address space");
        assert!(end <= self.len, "bytes {offset}..{end} of a region of {}", self.len);
        // SAFETY: `offset` is within the mapping, which is one allocation.
        unsafe { self.start.add(offset) }
    }
}

impl Drop for MemfdRegion {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and without borrowers: views take a reference to the region.
        let _ = unsafe { rustix::mm::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn check_seals(fd: BorrowedFd<'_>, len: u64, wanted: SealFlags) -> Result<(), RegionError> {
    let seals = rustix::fs::fcntl_get_seals(fd).map_err(|_| RegionError::Untrusted("it has no seals"))?;
    if !seals.contains(wanted) {
        return Err(RegionError::Untrusted("seals are missing"));
    }
    let file_system = rustix::fs::fstatfs(fd).map_err(|_| RegionError::Untrusted("it has no file system"))?;
    // Huge page files can run out of pages under a mapping, which raises SIGBUS.
    #[allow(clippy::unnecessary_cast, reason = "the field's type differs between architectures")]
    if file_system.f_type as i64 != TMPFS_MAGIC {
        return Err(RegionError::Untrusted("it is not in tmpfs"));
    }
    let actual = rustix::fs::fstat(fd).map_err(|_| RegionError::Untrusted("it has no size"))?.st_size as u64;
    if actual != len {
        return Err(RegionError::Size { expected: len, actual });
    }
    Ok(())
}

/// Refuses a memfd beyond the limit on files: the kernel would end the process by SIGXFSZ.
fn check_file_limit(bytes: usize) -> Result<(), RegionError> {
    let bytes = bytes as u64;
    match rustix::process::getrlimit(Resource::Fsize).current {
        Some(limit) if limit < bytes => Err(RegionError::FileLimit { bytes, limit }),
        _ => Ok(()),
    }
}

/// A zeroed, unmapped memfd of `len` bytes with a sealed size. [`MemfdRegion::attach`] accepts the memfd in another
/// process.
///
/// # Errors
/// The errors of [`MemfdRegion::create`].
pub fn sealed(name: &str, len: usize) -> Result<OwnedFd, RegionError> {
    check_file_limit(len)?;
    let kernel = |what| move |errno| RegionError::Kernel { what, bytes: len as u64, errno };
    let fd =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(kernel("create"))?;
    rustix::fs::ftruncate(&fd, len as u64).map_err(kernel("size"))?;
    rustix::fs::fcntl_add_seals(&fd, size_seals() | SealFlags::SEAL).map_err(kernel("seal"))?;
    Ok(fd)
}

/// Puts `content` into an unmapped memfd that cannot change any more. Large arguments cross the attach socket in this
/// form.
pub fn seal_bytes(name: &str, content: &[u8]) -> Result<OwnedFd, RegionError> {
    check_file_limit(content.len())?;
    let kernel = |what| move |errno| RegionError::Kernel { what, bytes: content.len() as u64, errno };
    let fd =
        rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).map_err(kernel("create"))?;
    let file = File::from(fd);
    file.write_all_at(content, 0).map_err(|error| kernel("fill")(errno(&error)))?;
    rustix::fs::fcntl_add_seals(&file, size_seals() | SealFlags::WRITE | SealFlags::SEAL).map_err(kernel("seal"))?;
    Ok(file.into())
}

/// The content, `len` bytes, of a memfd that [`seal_bytes`] made in another process.
///
/// # Errors
/// [`RegionError::Untrusted`] or [`RegionError::Size`] for any other file, [`RegionError::Kernel`] if the kernel cannot
/// read it.
pub fn unseal(fd: OwnedFd, len: usize) -> Result<Vec<u8>, RegionError> {
    check_seals(fd.as_fd(), len as u64, size_seals() | SealFlags::WRITE)?;
    let mut content = vec![0; len];
    let failed = |error: std::io::Error| RegionError::Kernel { what: "read", bytes: len as u64, errno: errno(&error) };
    File::from(fd).read_exact_at(&mut content, 0).map_err(failed)?;
    Ok(content)
}

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn two_mappings_share_bytes() {
        let mine = MemfdRegion::create("test", 8192).unwrap();
        let theirs = MemfdRegion::attach(mine.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        mine.write(5000, b"hello");
        let mut bytes = [0; 5];
        theirs.read(5000, &mut bytes);
        assert_eq!(&bytes, b"hello");
        assert!(rustix::fs::ftruncate(mine.fd(), 0).is_err(), "sealed against shrinking");
    }

    /// Whether a core dump would leave the region out.
    fn is_kept_from_dumps(region: &MemfdRegion) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let start = format!("{:x}-", region.start().as_ptr().addr());
        let mut lines = maps.lines().skip_while(|line| !line.starts_with(&start));
        lines.find(|line| line.starts_with("VmFlags:")).unwrap().split(' ').any(|flag| flag == "dd")
    }

    #[test]
    #[cfg_attr(miri, ignore = "reads /proc")]
    fn core_dumps_include_own_regions_and_omit_attached_ones() {
        let mine = MemfdRegion::create("test", 8192).unwrap();
        let theirs = MemfdRegion::attach(mine.fd().try_clone_to_owned().unwrap(), 8192).unwrap();
        assert!(is_kept_from_dumps(&theirs) && !is_kept_from_dumps(&mine));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd_create")]
    fn a_mapping_may_stay_when_its_region_goes() {
        let region = MemfdRegion::create("test", 4096).unwrap();
        let start = region.start();
        region.write(0, b"stays");
        region.leave_mapped();
        // SAFETY: five bytes of a mapping that is never unmapped.
        assert_eq!(unsafe { std::slice::from_raw_parts(start.as_ptr(), 5) }, b"stays");
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd_create")]
    fn unsealed_foreign_and_short_files_are_refused() {
        let unsealed = rustix::fs::memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&unsealed, 4096).unwrap();
        assert!(matches!(MemfdRegion::attach(unsealed, 4096), Err(RegionError::Untrusted(_))));

        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[0; 4096]).unwrap();
        assert!(matches!(MemfdRegion::attach(file.into(), 4096), Err(RegionError::Untrusted(_))));

        let (pipe, _end) = rustix::pipe::pipe().unwrap();
        assert!(matches!(MemfdRegion::attach(pipe, 4096), Err(RegionError::Untrusted(_))));

        let short = MemfdRegion::create("test", 4096).unwrap().fd().try_clone_to_owned().unwrap();
        assert!(matches!(MemfdRegion::attach(short, 8192), Err(RegionError::Size { actual: 4096, .. })));
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs memfd_create")]
    fn sealed_bytes_arrive_whole_and_cannot_change() {
        let content: Vec<u8> = (0..10_000u32).map(|at| at as u8).collect();
        let fd = seal_bytes("test", &content).unwrap();
        assert!(rustix::io::pwrite(&fd, b"x", 0).is_err());
        assert_eq!(unseal(fd.try_clone().unwrap(), content.len()).unwrap(), content);
        assert!(matches!(unseal(fd, 9_999), Err(RegionError::Size { .. })));
        let writable = MemfdRegion::create("test", 4096).unwrap().fd().try_clone_to_owned().unwrap();
        assert!(matches!(unseal(writable, 4096), Err(RegionError::Untrusted(_))));
    }
}
