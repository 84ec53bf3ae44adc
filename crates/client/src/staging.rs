//! Staging (GP-9): where the service process cannot reach the program's buffers, we copy through memory it can reach.
//!
//! The send buffer is copied in by the post, the receive buffer is filled by the call that sees the completion: both
//! while the rank is inside our library. Segments are memfds that the service process maps; they are kept for the next
//! call of a like size, within [`MOST_STAGED`].

use crate::connection::Connection;
use crate::error::Error;
use outboard_shm::attach::{Purpose, Request};
use outboard_shm::region::Region;

/// Bytes that one rank stages at most, in use or kept.
const MOST_STAGED: usize = 1 << 30;
const LEAST_SEGMENT: usize = 64 << 10;

/// Segments that are not in use, and how many bytes there are in all.
#[derive(Debug, Default)]
pub(crate) struct StagingPool {
    kept: Vec<Region>,
    bytes: usize,
}

/// A segment that stands in for the buffers of one request.
#[derive(Debug)]
pub(crate) struct Staged {
    segment: Region,
    receive: *mut u8,
    receive_bytes: usize,
}

// SAFETY: the pointer is the program's receive buffer, which it lends to us until the request ends, whatever the thread.
unsafe impl Send for Staged {}

/// The buffers of a collective as the program gave them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buffers {
    /// The contribution, wherever it lies.
    pub(crate) contribution: *const u8,
    pub(crate) bytes_per_rank: usize,
    pub(crate) receive: *mut u8,
    pub(crate) receive_bytes: usize,
    /// Where in the receive buffer the contribution lies if it is in place.
    pub(crate) in_place_at: Option<usize>,
}

impl StagingPool {
    /// Copies the contribution into a segment.
    ///
    /// # Safety
    /// `buffers` describes memory of the program that is valid until the request ends.
    pub(crate) unsafe fn stage(&mut self, connection: &Connection, buffers: Buffers) -> Result<Staged, Error> {
        let contribution_at = buffers.in_place_at.unwrap_or(buffers.receive_bytes);
        let needed = buffers.receive_bytes.max(contribution_at + buffers.bytes_per_rank);
        let segment = self.segment(connection, needed)?;
        if buffers.bytes_per_rank > 0 {
            // SAFETY: the caller's promise; the bytes go straight into the segment.
            let contribution = unsafe { std::slice::from_raw_parts(buffers.contribution, buffers.bytes_per_rank) };
            segment.write(contribution_at, contribution);
        }
        Ok(Staged { segment, receive: buffers.receive, receive_bytes: buffers.receive_bytes })
    }

    fn segment(&mut self, connection: &Connection, needed: usize) -> Result<Region, Error> {
        let fits = |kept: &Region| kept.bytes() >= needed && kept.bytes() / 4 <= needed.max(LEAST_SEGMENT);
        if let Some(at) = self.kept.iter().position(fits) {
            return Ok(self.kept.swap_remove(at));
        }
        let exhausted = || {
            Error::Resource(format!(
                "staging {needed} bytes would pass this rank's limit of {MOST_STAGED} bytes; wait for requests, or let \
                 the service process reach the rank's memory (outboard doctor tells how)"
            ))
        };
        let bytes = needed.checked_next_power_of_two().ok_or_else(exhausted)?.max(LEAST_SEGMENT);
        if self.bytes.saturating_add(bytes) > MOST_STAGED {
            self.release_kept(connection)?;
        }
        if self.bytes.saturating_add(bytes) > MOST_STAGED {
            return Err(exhausted());
        }
        let segment = Region::create("outboard-staging", bytes)?;
        segment.keep_from_children()?;
        let address = segment.start().as_ptr() as u64;
        let request = Request::RegisterMemory { address, bytes: bytes as u64, purpose: Purpose::Staging };
        connection.order(&request, &[segment.fd()])?;
        self.bytes += bytes;
        Ok(segment)
    }

    fn release_kept(&mut self, connection: &Connection) -> Result<(), Error> {
        while let Some(segment) = self.kept.pop() {
            self.bytes -= segment.bytes();
            connection.order(&Request::UnregisterMemory { address: segment.start().as_ptr() as u64 }, &[])?;
        }
        Ok(())
    }

    /// Takes the segment of a request back that has ended.
    pub(crate) fn give_back(&mut self, staged: Staged) {
        self.kept.push(staged.segment);
    }
}

impl Staged {
    /// Address of the contribution in the segment, for one that is not in place.
    pub(crate) fn send_address(&self) -> u64 {
        self.receive_address() + self.receive_bytes as u64
    }

    /// Address of the receive buffer in the segment.
    pub(crate) fn receive_address(&self) -> u64 {
        self.segment.start().as_ptr() as u64
    }

    /// Fills the program's receive buffer.
    pub(crate) fn deliver(&self) {
        if self.receive_bytes > 0 {
            // SAFETY: the program lends us the buffer until the request has ended, which it does with this call.
            let receive = unsafe { std::slice::from_raw_parts_mut(self.receive, self.receive_bytes) };
            self.segment.read(0, receive);
        }
    }
}
