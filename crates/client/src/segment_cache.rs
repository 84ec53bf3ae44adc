//! Memory that this rank has registered with its service process: the rank's half of the registration cache (GP-4).
//!
//! | a segment is | on | becomes |
//! |---|---|---|
//! | in use | `release` | kept, registered and mapped |
//! | kept | a request for a similar size | in use |
//! | kept | too many segments or kept bytes, the least recently used first | unregistered, then unmapped |
//!
//! Only these segments need registration. All other memory is accessed by address, so nothing is cached that an munmap
//! or a realloc of the program could make wrong. Invariants: no more segments are registered than the service
//! process allows. An address goes back to the kernel only after the service process has forgotten it.

use crate::connection::ServiceConnection;
use crate::error::Error;
use outboard_shm::attach::AttachRequest;
use outboard_shm::region::MemfdRegion;
use outboard_shm::status::Status;
use std::collections::VecDeque;

/// The most bytes of segments kept for their next use.
const MAX_KEPT_BYTES: usize = 256 << 20;
/// A kept segment is used only for requests of at least a fourth of its size.
const WASTE: usize = 4;

/// A fourth of the segments is reserved for this library.
const RESERVED: usize = 4;

fn exhausted(most: usize) -> Error {
    Error::Resource(format!(
        "{most} pieces of memory are shared with the service process, the limit; free some with outboard_dealloc"
    ))
}

#[derive(Debug)]
pub(crate) struct SegmentCache {
    /// Segments not in use; the least recently used first.
    kept: VecDeque<MemfdRegion>,
    kept_bytes: usize,
    registered: usize,
    most: usize,
}

impl SegmentCache {
    /// A cache without segments, for at most `most` segments.
    pub(crate) fn new(most: u32) -> SegmentCache {
        SegmentCache { kept: VecDeque::new(), kept_bytes: 0, registered: 0, most: most as usize }
    }

    /// Acquires a segment that the program may keep for any time. Some segments stay reserved for the library. None if
    /// a limit of either process, on files, descriptors or addresses, leaves no room for shared memory.
    pub(crate) fn allocate(
        &mut self,
        connection: &ServiceConnection,
        bytes: usize,
    ) -> Result<Option<MemfdRegion>, Error> {
        let room = self.most - self.most / RESERVED;
        if self.registered - self.kept.len() >= room {
            return Err(exhausted(room));
        }
        match self.acquire(connection, bytes, bytes) {
            Ok(segment) => Ok(Some(segment)),
            Err(error) if error.status() == Status::Resource && self.registered < self.most => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// A registered segment of at least `needed` bytes, of undefined content; a new segment has `fresh` bytes.
    pub(crate) fn acquire(
        &mut self,
        connection: &ServiceConnection,
        needed: usize,
        fresh: usize,
    ) -> Result<MemfdRegion, Error> {
        let fits = |kept: &MemfdRegion| kept.bytes() >= needed && kept.bytes() / WASTE <= fresh;
        if let Some(at) = self.kept.iter().rposition(fits)
            && let Some(segment) = self.kept.remove(at)
        {
            self.kept_bytes -= segment.bytes();
            return Ok(segment);
        }
        while self.registered >= self.most {
            if !self.unregister_oldest(connection)? {
                return Err(exhausted(self.most));
            }
        }
        let segment = MemfdRegion::create("outboard-memory", fresh)?;
        segment.keep_from_children()?;
        let address = segment.start().as_ptr() as u64;
        connection.execute(&AttachRequest::RegisterMemory { address, bytes: fresh as u64 }, &[segment.fd()])?;
        self.registered += 1;
        Ok(segment)
    }

    /// Takes back an unused segment. Without a service process nothing needs to be unregistered.
    pub(crate) fn release(&mut self, connection: &ServiceConnection, segment: MemfdRegion) -> Result<(), Error> {
        self.kept_bytes += segment.bytes();
        self.kept.push_back(segment);
        while self.kept_bytes > MAX_KEPT_BYTES {
            self.unregister_oldest(connection)?;
        }
        Ok(())
    }

    /// Unregisters the least recently used kept segment; false if none is kept.
    fn unregister_oldest(&mut self, connection: &ServiceConnection) -> Result<bool, Error> {
        let Some(segment) = self.kept.pop_front() else { return Ok(false) };
        self.kept_bytes -= segment.bytes();
        let ordered =
            connection.execute(&AttachRequest::UnregisterMemory { address: segment.start().as_ptr() as u64 }, &[]);
        match ordered {
            Ok(()) => {
                self.registered -= 1;
                Ok(true)
            }
            Err(error) => {
                // The service process may still write to the segment, so its address must not be reused.
                segment.leave_mapped();
                Err(error)
            }
        }
    }
}
