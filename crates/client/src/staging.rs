//! Staging (GP-9): copies through memory that the service process can access, if it cannot access the program's memory.
//!
//! The post copies the send buffer in, and the call that sees the completion fills the receive buffer; at both times
//! the rank is inside this library. If the kernel withdraws access while requests are in flight, the next call into
//! this library copies their buffers, including bytes received so far. It then notifies the service process. The same
//! happens to a single request whose buffers only the processor of this rank reaches. The memory comes from
//! [`SegmentCache`]; at most [`MOST_STAGED`] bytes are in use, or as many as a single request needs.
//!
//! All copies go by [`OwnMemory`]: a buffer that this rank may not access is an error, never a signal.
//!
//! Starts of one recording run one after the other, each on the memory as the previous start has left it (GP-2). So
//! starts in flight together share one segment: the first start copies in, the last start copies out.

use crate::connection::ServiceConnection;
use crate::error::Error;
use crate::lock::lock;
use crate::segment_cache::SegmentCache;
use outboard_call::{Blocks, Footprint, Span};
use outboard_shm::memory::OwnMemory;
use outboard_shm::plain::PlainMemory;
use outboard_shm::region::MemfdRegion;
use std::sync::{Arc, Mutex};

const MOST_STAGED: usize = 1 << 30;
const LEAST_SEGMENT: usize = 64 << 10;
const LEAST_TABLE: usize = 512;

/// The rank's shared memory, and the bytes used for staging.
#[derive(Debug)]
pub(crate) struct RankStaging {
    pub(crate) segments: SegmentCache,
    bytes: usize,
    /// Segments of recordings, which the next start of the same recording shares.
    recorded: Vec<Arc<StagedBuffers>>,
}

/// Stands in for the buffers of a request, or of all starts of one recording. Shared only under the pool's lock.
#[derive(Debug)]
pub(crate) struct StagedBuffers {
    segment: MemfdRegion,
    buffers: RequestBuffers,
    /// The last of the calls that use this segment.
    last: Mutex<u64>,
}

/// The buffers of a collective as the program gave them.
#[derive(Debug, Clone)]
pub(crate) struct RequestBuffers {
    /// The address of the contribution, in place or not.
    pub(crate) contribution: *const u8,
    pub(crate) bytes_per_rank: usize,
    pub(crate) receive: *mut u8,
    pub(crate) receive_bytes: usize,
    /// Offset of the contribution in the receive buffer, if it is in place.
    pub(crate) in_place_at: Option<usize>,
    /// The parts of the buffers that the request uses, if not all; the rest stays the program's.
    pub(crate) pieces: Option<Arc<BufferPieces>>,
}

/// The parts of its buffers that a request uses.
#[derive(Debug)]
pub(crate) enum BufferPieces {
    /// Blocks of different sizes.
    Blocks(Blocks),
    /// Recorded memory at any address; in a segment the pieces lie one after another.
    Recorded(RecordedPieces),
}

/// Memory of the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct MemoryPiece {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

/// The memory of a recorded group.
#[derive(Debug)]
pub(crate) struct RecordedPieces {
    /// Pieces that are read or written.
    pub(crate) all: Vec<MemoryPiece>,
    /// Pieces that are written, each with its offset in a segment.
    pub(crate) written: Vec<(usize, MemoryPiece)>,
}

impl RecordedPieces {
    fn bytes(&self) -> usize {
        self.all.iter().map(|piece| piece.length).sum()
    }
}

/// Tables of submissions, one for each completion word, in memory that the service process can access in every tier.
/// The service process has read a table when the request completes.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    /// The last memory is in use; the others may still hold tables of earlier submissions, of smaller groups.
    memory: Vec<TableMemory>,
    bytes_per_word: usize,
}

#[derive(Debug)]
pub(crate) enum TableMemory {
    Shared(MemfdRegion),
    /// No memory can be shared. The service process reads the copy as other memory of the program.
    Plain(PlainMemory),
}

impl TableMemory {
    fn write(&self, at: usize, bytes: &[u8]) -> u64 {
        let start = match self {
            TableMemory::Shared(region) => {
                region.write(at, bytes);
                region.start()
            }
            TableMemory::Plain(plain) => {
                plain.write(at, bytes);
                plain.start()
            }
        };
        start.as_ptr() as u64 + at as u64
    }
}

impl Tables {
    /// Copies `table` to the place of word `slot` of `slots`; returns its address. `make` makes memory.
    pub(crate) fn put(
        &mut self,
        make: impl FnOnce(usize) -> Result<TableMemory, Error>,
        slot: u32,
        slots: u32,
        table: &[u64],
    ) -> Result<u64, Error> {
        let bytes: Vec<u8> = table.iter().flat_map(|number| number.to_le_bytes()).collect();
        if bytes.len() > self.bytes_per_word {
            let each = bytes.len().next_power_of_two().max(LEAST_TABLE);
            let address_space = || Error::Resource(format!("{slots} tables of {each} bytes exceed the address space"));
            let memory = make(each.checked_mul(slots as usize).ok_or_else(address_space)?)?;
            self.memory.push(memory);
            self.bytes_per_word = each;
        }
        let memory = self.memory.last().expect("made above or before");
        Ok(memory.write(slot as usize * self.bytes_per_word, &bytes))
    }
}

// SAFETY: the pointers are the program's buffers, which the program lends until the request ends, to any thread.
unsafe impl Send for RequestBuffers {}
// SAFETY: the pointers are plain addresses to any thread that reads them; accesses to the memory rest on the program's
// promise.
unsafe impl Sync for RequestBuffers {}

impl RequestBuffers {
    /// No buffer at all.
    pub(crate) const NONE: RequestBuffers = RequestBuffers {
        contribution: std::ptr::null(),
        bytes_per_rank: 0,
        receive: std::ptr::null_mut(),
        receive_bytes: 0,
        in_place_at: None,
        pieces: None,
    };

    /// The buffers of a call with this footprint, at the addresses that the caller passes.
    pub(crate) fn of(footprint: Footprint, send: *const u8, receive: *mut u8) -> Result<RequestBuffers, Error> {
        let Footprint { reads, writes, in_place_at, blocks, .. } = footprint;
        // A footprint lies in the address space.
        let in_place_at = in_place_at.map(|at| at as usize);
        if send.is_null() && in_place_at.is_none() && reads.bytes > 0 {
            return Err(Error::argument("send", "is NULL"));
        }
        if receive.is_null() && (writes.bytes > 0 || in_place_at.is_some() && reads.bytes > 0) {
            return Err(Error::argument("receive", "is NULL"));
        }
        let contribution = in_place_at.map_or(send, |at| receive.wrapping_add(at).cast_const());
        let (bytes_per_rank, receive_bytes) = (reads.bytes as usize, writes.bytes as usize);
        let pieces = blocks.map(|blocks| Arc::new(BufferPieces::Blocks(blocks)));
        Ok(RequestBuffers { contribution, bytes_per_rank, receive, receive_bytes, in_place_at, pieces })
    }

    /// Offset of the contribution in a segment.
    fn contribution_at(&self) -> usize {
        self.in_place_at.unwrap_or(self.receive_bytes)
    }

    /// The buffers of a call of a recording. In a segment all pieces form one buffer.
    pub(crate) fn recorded(pieces: Arc<BufferPieces>) -> RequestBuffers {
        let receive_bytes = match &*pieces {
            BufferPieces::Recorded(recorded) => recorded.bytes(),
            BufferPieces::Blocks(_) => unreachable!("a recording"),
        };
        RequestBuffers { receive_bytes, in_place_at: Some(0), pieces: Some(pieces), ..RequestBuffers::NONE }
    }

    /// Offset in a segment, address and length of each non-empty piece of the contribution.
    fn contribution_pieces(&self) -> Vec<(usize, *const u8, usize)> {
        let block = |offset: usize, length: usize| {
            (self.contribution_at() + offset, self.contribution.wrapping_add(offset), length)
        };
        let span = |span: &Span| block(span.offset as usize, span.len as usize);
        let pieces: Vec<_> = match self.pieces.as_deref() {
            None => vec![block(0, self.bytes_per_rank)],
            Some(BufferPieces::Blocks(blocks)) => blocks.send.iter().map(span).collect(),
            Some(BufferPieces::Recorded(recorded)) => {
                let mut place = 0;
                let piece = |&MemoryPiece { address, length }: &MemoryPiece| {
                    place += length;
                    (place - length, std::ptr::with_exposed_provenance(address), length)
                };
                recorded.all.iter().map(piece).collect()
            }
        };
        pieces.into_iter().filter(|(.., length)| *length > 0).collect()
    }

    /// Offset in a segment, address and length of each non-empty piece that is received.
    fn received(&self) -> Vec<(usize, *mut u8, usize)> {
        let block = |offset: usize, length: usize| (offset, self.receive.wrapping_add(offset), length);
        let span = |span: &Span| block(span.offset as usize, span.len as usize);
        let pieces: Vec<_> = match self.pieces.as_deref() {
            None => vec![block(0, self.receive_bytes)],
            Some(BufferPieces::Blocks(blocks)) => blocks.receive.iter().map(span).collect(),
            Some(BufferPieces::Recorded(recorded)) => {
                let pieces = recorded.written.iter();
                pieces.map(|(at, to)| (*at, std::ptr::with_exposed_provenance_mut(to.address), to.length)).collect()
            }
        };
        pieces.into_iter().filter(|(.., length)| *length > 0).collect()
    }

    /// Address and length of each non-empty piece that is received.
    pub(crate) fn received_pieces(&self) -> Vec<(u64, usize)> {
        self.received().into_iter().map(|(_, start, length)| (start as u64, length)).collect()
    }

    /// Whether any received piece lies in memory for which `shared` returns true.
    pub(crate) fn any_received_in(&self, shared: impl Fn(*const u8, usize) -> bool) -> bool {
        match self.pieces.as_deref() {
            Some(BufferPieces::Recorded(recorded)) => {
                recorded.written.iter().any(|(_, to)| shared(std::ptr::without_provenance(to.address), to.length))
            }
            Some(BufferPieces::Blocks(_)) | None => self.receive_bytes > 0 && shared(self.receive, self.receive_bytes),
        }
    }

    /// Whether these buffers belong to a recording.
    pub(crate) fn are_recorded(&self) -> bool {
        matches!(self.pieces.as_deref(), Some(BufferPieces::Recorded(_)))
    }

    /// Whether both sets of buffers belong to the same recording.
    fn same_recording(&self, other: &RequestBuffers) -> bool {
        let both = self.pieces.as_ref().zip(other.pieces.as_ref());
        self.are_recorded() && both.is_some_and(|(own, others)| Arc::ptr_eq(own, others))
    }

    /// Whether all pieces lie in memory for which `shared` returns true.
    pub(crate) fn all_in(&self, shared: impl Fn(*const u8, usize) -> bool) -> bool {
        match self.pieces.as_deref() {
            Some(BufferPieces::Recorded(recorded)) => {
                recorded.all.iter().all(|piece| shared(std::ptr::without_provenance(piece.address), piece.length))
            }
            Some(BufferPieces::Blocks(_)) | None => {
                shared(self.receive, self.receive_bytes) && shared(self.contribution, self.bytes_per_rank)
            }
        }
    }
}

/// Whether `bytes` may be staged beside the bytes in use; any number may if none are in use.
fn fits_beside(in_use: usize, bytes: usize) -> bool {
    in_use == 0 || in_use.saturating_add(bytes) <= MOST_STAGED
}

impl RankStaging {
    pub(crate) fn new(segments: SegmentCache) -> RankStaging {
        RankStaging { segments, bytes: 0, recorded: Vec::new() }
    }

    /// Copies the contribution into a segment. A start of a recording uses the segment of earlier starts in flight, if
    /// there are any.
    ///
    /// # Safety
    /// `buffers` describes memory of the program that is valid until the request ends.
    pub(crate) unsafe fn stage(
        &mut self,
        (connection, own): (&ServiceConnection, &OwnMemory),
        buffers: &RequestBuffers,
    ) -> Result<Arc<StagedBuffers>, Error> {
        if let Some(shared) = self.shared(buffers) {
            return Ok(shared);
        }
        let staged = Arc::new(self.copy((connection, own), buffers)?);
        if buffers.are_recorded() {
            self.recorded.push(Arc::clone(&staged));
        }
        Ok(staged)
    }

    /// The segment of starts of the same recording that are in flight.
    fn shared(&self, buffers: &RequestBuffers) -> Option<Arc<StagedBuffers>> {
        self.recorded.iter().find(|staged| staged.buffers.same_recording(buffers)).map(Arc::clone)
    }

    fn copy(
        &mut self,
        (connection, own): (&ServiceConnection, &OwnMemory),
        buffers: &RequestBuffers,
    ) -> Result<StagedBuffers, Error> {
        let needed = buffers.receive_bytes.max(buffers.contribution_at() + buffers.bytes_per_rank);
        let segment = self.segment(connection, needed)?;
        for (place, start, length) in buffers.contribution_pieces() {
            if let Err(fault) = own.copy_in(start as u64, length, &segment, place) {
                self.give_back(connection, segment);
                return Err(fault.into());
            }
        }
        Ok(StagedBuffers { segment, buffers: buffers.clone(), last: Mutex::default() })
    }

    /// Copies the contribution of a request in flight, and the bytes that the request has received so far.
    ///
    /// # Errors
    /// [`Error::Memory`] if this rank may not access a buffer either.
    ///
    /// # Safety
    /// As for [`stage`](Self::stage), and nothing writes to the buffers meanwhile.
    pub(crate) unsafe fn restage(
        &mut self,
        (connection, own): (&ServiceConnection, &OwnMemory),
        buffers: &RequestBuffers,
    ) -> Result<Arc<StagedBuffers>, Error> {
        if let Some(shared) = self.shared(buffers) {
            return Ok(shared);
        }
        own.check_writable(buffers.received_pieces())?;
        // SAFETY: the caller's promise.
        let staged = unsafe { self.stage((connection, own), buffers) }?;
        for (place, start, length) in buffers.received() {
            // A contribution in place is part of these bytes.
            if let Err(fault) = own.copy_in(start as u64, length, &staged.segment, place) {
                self.release(connection, staged);
                return Err(fault.into());
            }
        }
        Ok(staged)
    }

    fn segment(&mut self, connection: &ServiceConnection, needed: usize) -> Result<MemfdRegion, Error> {
        let bytes = needed.checked_next_power_of_two().unwrap_or(usize::MAX).max(LEAST_SEGMENT);
        if !fits_beside(self.bytes, bytes) {
            return Err(Error::Resource(format!(
                "staging {needed} bytes would pass this rank's limit of {MOST_STAGED} bytes; wait for requests, or let \
                 the service process reach the rank's memory (outboard doctor tells how)"
            )));
        }
        let segment = self.segments.acquire(connection, needed, bytes)?;
        self.bytes += segment.bytes();
        Ok(segment)
    }

    /// Fills the program's receive buffer when this call has ended, if it is the last that uses the segment.
    ///
    /// # Errors
    /// [`Error::Memory`] if the program may not write to the buffer.
    pub(crate) fn deliver(&mut self, own: &OwnMemory, staged: &Arc<StagedBuffers>, instance: u64) -> Result<(), Error> {
        if *lock(&staged.last) != instance {
            // A later start of the recording continues in the segment, or has already delivered.
            return Ok(());
        }
        let copied = staged.copy_out(own);
        // The program may change its memory from here on: the next start copies it again.
        self.recorded.retain(|shared| !Arc::ptr_eq(shared, staged));
        copied
    }

    /// Takes back the segment of a request that has ended, if no other request needs the segment.
    pub(crate) fn release(&mut self, connection: &ServiceConnection, staged: Arc<StagedBuffers>) {
        if Arc::strong_count(&staged) == 2 {
            self.recorded.retain(|shared| !Arc::ptr_eq(shared, &staged));
        }
        if let Some(StagedBuffers { segment, .. }) = Arc::into_inner(staged) {
            self.give_back(connection, segment);
        }
    }

    fn give_back(&mut self, connection: &ServiceConnection, segment: MemfdRegion) {
        self.bytes -= segment.bytes();
        // Fails only if the service process is gone, which other calls report.
        let _ = self.segments.release(connection, segment);
    }
}

impl StagedBuffers {
    /// Address of the contribution in the segment.
    pub(crate) fn send_address(&self) -> u64 {
        self.receive_address() + self.buffers.contribution_at() as u64
    }

    /// Address of the receive buffer in the segment.
    pub(crate) fn receive_address(&self) -> u64 {
        self.segment.start().as_ptr() as u64
    }

    /// Records that the segment stands in for this call of its group.
    pub(crate) fn record_call(&self, instance: u64) {
        let mut last = lock(&self.last);
        *last = instance.max(*last);
    }

    fn copy_out(&self, own: &OwnMemory) -> Result<(), Error> {
        for (place, start, length) in self.buffers.received() {
            // SAFETY: the program lends the piece until the request has ended, and the request ends in this call.
            unsafe { own.copy_out(&self.segment, place, start as u64, length) }?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gp_9_a_single_request_stages_whatever_it_needs() {
        assert!(fits_beside(0, 5 * MOST_STAGED) && fits_beside(MOST_STAGED / 2, MOST_STAGED / 2));
        assert!(!fits_beside(MOST_STAGED / 2, MOST_STAGED / 2 + 1) && !fits_beside(MOST_STAGED, usize::MAX));
    }
}
