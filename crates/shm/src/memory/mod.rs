//! Access to a rank's memory from the service process, without the rank's CPU (SP-4), in tiers.
//!
//! | tier | how | when |
//! |---|---|---|
//! | [`Tier::Memfd`] | the range lies in a memfd that is mapped here too ([`MemfdRanges`]) | the rank registered it |
//! | [`Tier::CrossMemory`] | [`CrossMemory`]; small reads by the memory descriptor | we may trace the rank |
//! | [`Tier::MemoryDescriptor`] | the rank's `/proc/self/mem`, passed ([`MemoryDescriptor`]) | the rank could open it |
//! | [`Tier::Staging`] | the rank copies through a memfd while it is inside our library (GP-9) | everything else |
//!
//! [`TieredMemory`] picks a tier per range, and falls to the next tier for good when the kernel withdraws the present
//! one. Only the first tier needs registration; the other tiers accept any address at any time and keep no state of
//! addresses. Staging needs no code here: its segments are registered memfd ranges, and work that waits for them waits
//! in the service process. Addresses come from the rank and are not trusted: an access that fails is a typed
//! [`AccessError`] and harms the rank alone.
//!
//! The kernel writes by [`CrossMemory`] only where the rank itself may write. In the first and third tier the rank
//! checks its buffers before it posts a call ([`OwnMemory`]), since the mapping here and the descriptor ignore its page
//! protections.
//!
//! Invariant: every byte read or written lies in the address space that the rank had when it attached. Changes of the
//! rank's process or process number do not matter.

mod cross;
mod descriptor;
mod memfd;
mod own;
mod page;
mod scatter_list;
mod tiered;

pub use cross::CrossMemory;
pub use descriptor::{MemoryDescriptor, NotMemory};
pub use memfd::{MOST_RANGES, MappedBytes, MemfdRanges, RangeError};
pub use own::{OwnFault, OwnMemory};
pub use page::ProbePage;
pub use scatter_list::{GatherList, ScatterList};
pub use tiered::{Alarm, Probe, ProbeOutcome, Proof, TieredMemory, WriteObserver, probe};

use std::fmt;

/// Way of access to memory of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Tier {
    /// Mapped in this process too.
    Memfd = 1,
    /// Writes and large reads by system calls on the rank's process, small reads by the memory descriptor.
    CrossMemory,
    /// By the descriptor of the rank's own memory, which the rank has passed.
    MemoryDescriptor,
    /// Through a memfd to which the rank copies.
    Staging,
}

impl Tier {
    pub const fn name(self) -> &'static str {
        match self {
            Tier::Memfd => "memfd",
            Tier::CrossMemory => "cross-memory attach",
            Tier::MemoryDescriptor => "memory descriptor",
            Tier::Staging => "staging",
        }
    }

    /// The tier as a number, to be stored or sent; never 0.
    pub(crate) const fn code(self) -> u32 {
        self as u32
    }

    /// The tier with this number.
    pub(crate) fn from_code(code: u32) -> Option<Tier> {
        let all = [Tier::Memfd, Tier::CrossMemory, Tier::MemoryDescriptor, Tier::Staging];
        all.into_iter().find(|tier| tier.code() == code)
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(self.name())
    }
}

/// Reason why memory of a rank could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    #[error(
        "the rank's {bytes} bytes at {address:#x} cannot be accessed (EFAULT): not mapped, or read-only where a result goes"
    )]
    Fault { address: u64, bytes: u64 },
    #[error("the kernel refuses access to the rank's memory at {address:#x} (EPERM); staging does in its place")]
    Refused { address: u64 },
    #[error("the rank's process {pid} has ended or runs another program")]
    Gone { pid: i32 },
    #[error(
        "the rank's {bytes} bytes at {address:#x} lie outside the memory shared with the service process, which can reach no other"
    )]
    Unreachable { address: u64, bytes: u64 },
    #[error(
        "the kernel has withdrawn access to the rank's {bytes} bytes at {address:#x}; its copy of them is waited for"
    )]
    Withdrawn { address: u64, bytes: u64 },
    #[error("access to the rank's memory at {address:#x} failed: {errno}")]
    Kernel { address: u64, errno: rustix::io::Errno },
}

/// One piece of a batch to be read: from `address` in the rank into `local`.
#[derive(Debug)]
pub struct ReadPiece<'a> {
    pub local: &'a mut [u8],
    pub address: u64,
}

/// One piece of a batch to be written: from `local` to `address` in the rank.
#[derive(Debug, Clone, Copy)]
pub struct WritePiece<'a> {
    pub local: &'a [u8],
    pub address: u64,
}

/// Memory of a rank. A batch that fails may have been carried out in part.
pub trait RankMemory: Send + Sync {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError>;

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError>;

    /// The range in this process's address space, if the range is mapped here, which saves a copy. The bytes of the
    /// range count as moved.
    fn resident(&self, _address: u64, _bytes: u64) -> Option<MappedBytes> {
        None
    }

    fn read(&self, address: u64, into: &mut [u8]) -> Result<(), AccessError> {
        self.readv(&mut [ReadPiece { local: into, address }])
    }

    fn write(&self, address: u64, from: &[u8]) -> Result<(), AccessError> {
        self.writev(&[WritePiece { local: from, address }])
    }
}

/// Bytes moved at a time between two memories that are not mapped here: fits the second-level cache.
const BOUNCE: usize = 256 << 10;

/// Copies `bytes` bytes from `source` at `from` to `target` at `to`: between two ranks of a host, or within one. The
/// ranges must not overlap. The content of `bounce` is meaningless; the buffer grows once, with the first copy that
/// needs it.
///
/// # Errors
/// The error of the side that failed.
pub fn copy_between(
    source: &dyn RankMemory,
    from: u64,
    target: &dyn RankMemory,
    to: u64,
    bytes: u64,
    bounce: &mut Vec<u8>,
) -> Result<(), (CopySide, AccessError)> {
    let (of_source, of_target) = (|error| (CopySide::Source, error), |error| (CopySide::Target, error));
    if let Some(resident) = source.resident(from, bytes) {
        // SAFETY: the rank may change the bytes while they are copied, and then garbage is copied, as MPI allows. The
        // slice goes directly to `copy` or to the kernel, and nothing depends on its content.
        return target.write(to, unsafe { resident.bytes() }).map_err(of_target);
    }
    bounce.resize(BOUNCE, 0);
    let mut moved = 0;
    while moved < bytes {
        let count = (bytes - moved).min(BOUNCE as u64);
        let piece = &mut bounce[..count as usize];
        source.read(from + moved, piece).map_err(of_source)?;
        target.write(to + moved, piece).map_err(of_target)?;
        moved += count;
    }
    Ok(())
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopySide {
    Source,
    Target,
}
