//! Messages between two ranks of a group (GP-1), and groups of operations that are recorded once and called again and
//! again (GP-2).
//!
//! Messages are matched by source and tag, in the order in which they are posted; there are no wildcards. A recording
//! goes to the service process once, as a program with dependencies. Each call of a recording is one small entry in the
//! ring (GP-5). Invariant: a recording keeps only addresses; the program lends the memory with each call.

use crate::attachment::AttachmentParts;
use crate::call_sequence::{CallSequence, PostedRequest};
use crate::error::Error;
use crate::lock::lock;
use crate::request::Request;
use crate::slots::PostedCall;
use crate::staging::{BufferPieces, MemoryPiece, RecordedPieces, RequestBuffers};
use outboard_call::{Call, CallKind, Rank, Reduction, Span, TaggedCall};
use outboard_plan::{Op, ProgramBuilder};
use outboard_proto::Recording;
use outboard_proto::wire::RecordedMemory;
use outboard_shm::attach;
use outboard_shm::region::seal_bytes;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};

/// State shared by messages and recordings of one group.
#[derive(Debug)]
pub(crate) struct TaggedMessages {
    call_sequence: CallSequence,
    ranks: u32,
    rank: u32,
    /// The number of the last recording, equal on all ranks.
    recordings: Mutex<u32>,
}

impl TaggedMessages {
    pub(crate) fn new(call_sequence: CallSequence, ranks: u32, rank: u32) -> TaggedMessages {
        TaggedMessages { call_sequence, ranks, rank, recordings: Mutex::default() }
    }

    pub(crate) fn peer(&self, rank: u32, argument: &'static str) -> Result<Rank, Error> {
        if rank < self.ranks {
            return Ok(Rank(rank));
        }
        Err(Error::argument(argument, format!("is {rank}: the group has ranks 0 to {}", self.ranks - 1)))
    }

    /// # Safety
    /// As for [`crate::Group::isend`].
    pub(crate) unsafe fn message(
        &self,
        call: TaggedCall,
        buffers: &RequestBuffers,
        bytes: u64,
    ) -> Result<Request, Error> {
        let call = Call { bytes, ..Call::new(CallKind::Tagged(call)) };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.call_sequence.post(buffers, call, &[]) }.map(|posted| posted.request)
    }
}

/// Checks a buffer and exposes its address to the code that copies it.
pub(crate) fn piece(start: *const u8, bytes: u64, argument: &'static str) -> Result<MemoryPiece, Error> {
    let Ok(length) = isize::try_from(bytes).map(isize::unsigned_abs) else {
        return Err(Error::argument("bytes", format!("is {bytes}, more than the address space")));
    };
    if start.is_null() && length > 0 {
        return Err(Error::argument(argument, "is NULL"));
    }
    let address = start.expose_provenance();
    if address.checked_add(length).is_none() {
        return Err(Error::argument(argument, format!("with {bytes} bytes exceeds the address space")));
    }
    Ok(MemoryPiece { address, length })
}

/// Two pieces of `bytes` bytes that do not overlap.
fn disjoint_pieces(from: *const u8, into: *mut u8, bytes: u64) -> Result<(MemoryPiece, MemoryPiece), Error> {
    let (from, into) = (piece(from, bytes, "from")?, piece(into, bytes, "into")?);
    if bytes > 0 && from.address < into.address + into.length && into.address < from.address + from.length {
        return Err(Error::argument("into", "overlaps `from`"));
    }
    Ok((from, into))
}

#[derive(Debug, Clone, Copy)]
enum RecordedStep {
    Send { to: Rank, tag: u32, from: MemoryPiece },
    Receive { from: Rank, tag: u32, into: MemoryPiece },
    Copy { from: MemoryPiece, into: MemoryPiece },
    Reduce { from: MemoryPiece, into: MemoryPiece, reduction: Reduction },
    Barrier,
}

impl RecordedStep {
    fn reads(&self) -> Option<MemoryPiece> {
        match self {
            RecordedStep::Send { from, .. } | RecordedStep::Copy { from, .. } | RecordedStep::Reduce { from, .. } => {
                Some(*from)
            }
            RecordedStep::Receive { .. } | RecordedStep::Barrier => None,
        }
    }

    fn writes(&self) -> Option<MemoryPiece> {
        match self {
            RecordedStep::Receive { into, .. }
            | RecordedStep::Copy { into, .. }
            | RecordedStep::Reduce { into, .. } => Some(*into),
            RecordedStep::Send { .. } | RecordedStep::Barrier => None,
        }
    }
}

/// A group of operations under construction (GP-2). Operations between two barriers may be done in any order and at the
/// same time, so none of them may touch bytes that another writes. Invalid operations are an [`Error::Argument`].
#[derive(Debug)]
pub struct Recorder {
    tagged: Arc<TaggedMessages>,
    steps: Vec<RecordedStep>,
}

impl Recorder {
    pub(crate) fn new(tagged: &Arc<TaggedMessages>) -> Recorder {
        Recorder { tagged: Arc::clone(tagged), steps: Vec::new() }
    }

    /// Whether this process is the one that records.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        self.tagged.call_sequence.attachment.parts().map(drop)
    }

    /// Records a message to rank `to`. The n-th message of a tag that a call sends matches the n-th receive of the tag
    /// in the same call of rank `to`; both must name the same size.
    pub fn send(&mut self, to: u32, tag: u32, buffer: *const u8, bytes: u64) -> Result<(), Error> {
        let (to, from) = (self.tagged.peer(to, "to")?, piece(buffer, bytes, "buffer")?);
        self.steps.push(RecordedStep::Send { to, tag, from });
        Ok(())
    }

    /// Records the receive of a message from rank `from`.
    pub fn receive(&mut self, from: u32, tag: u32, buffer: *mut u8, bytes: u64) -> Result<(), Error> {
        let (from, into) = (self.tagged.peer(from, "from")?, piece(buffer, bytes, "buffer")?);
        self.steps.push(RecordedStep::Receive { from, tag, into });
        Ok(())
    }

    /// Records a copy within this rank's memory, between pieces that do not overlap.
    pub fn copy(&mut self, from: *const u8, into: *mut u8, bytes: u64) -> Result<(), Error> {
        let (from, into) = disjoint_pieces(from, into, bytes)?;
        self.steps.push(RecordedStep::Copy { from, into });
        Ok(())
    }

    /// Records that `count` elements at `from` are combined into the elements at `into`, in this rank's memory. The
    /// elements at `into` are the left operands and are replaced by the results. The pieces must not overlap.
    pub fn reduce(&mut self, reduction: Reduction, from: *const u8, into: *mut u8, count: u64) -> Result<(), Error> {
        let bytes = count.checked_mul(reduction.element().bytes());
        let bytes = bytes.ok_or_else(|| Error::argument("count", format!("is {count}, beyond the address space")))?;
        let (from, into) = disjoint_pieces(from, into, bytes)?;
        self.steps.push(RecordedStep::Reduce { from, into, reduction });
        Ok(())
    }

    /// Records a local barrier: operations recorded after the barrier start when all operations recorded before it are
    /// done on this rank. The barrier orders nothing on other ranks, and only the operations behind it wait.
    pub fn barrier(&mut self) {
        self.steps.push(RecordedStep::Barrier);
    }

    /// Ends the recording and sends it to the service process, which keeps it. All ranks of the group that call the
    /// recording end it in the same order among their recordings. A rank without operations in the recording ends an
    /// empty one. After an error this rank has no part in the recording.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`], or the error that the service process reports.
    pub fn end(self) -> Result<Recorded, Error> {
        let Recorder { tagged, steps } = self;
        let parts = tagged.call_sequence.attachment.parts()?;
        let memory = StepMemory::of(&steps);
        let program = memory.program(&tagged, &steps);
        let reduction = |step: &RecordedStep| match step {
            RecordedStep::Reduce { reduction, .. } => Some(*reduction),
            RecordedStep::Send { .. }
            | RecordedStep::Receive { .. }
            | RecordedStep::Copy { .. }
            | RecordedStep::Barrier => None,
        };
        let reductions = steps.iter().filter_map(reduction).collect();
        let recording = Recording { program: Arc::new(program), reductions };
        let pieces = memory.pieces.iter().map(|piece| (piece.address as u64, piece.length as u64)).collect();
        let encoded = RecordedMemory { recording, pieces }.encode();
        let number = {
            let mut last = lock(&tagged.recordings);
            // A recording that fails from here on keeps its number, since the other ranks count it.
            *last += 1;
            let (group, recording) = (tagged.call_sequence.group, *last);
            let sealed = seal_bytes("outboard-recording", &encoded)?;
            let request = attach::AttachRequest::Record { group, recording, bytes: encoded.len() as u64 };
            // The lock is held, so that recordings of several threads arrive in the order of their numbers.
            parts.connection.execute(&request, &[sealed.as_fd()])?;
            recording
        };
        let written = steps.iter().filter_map(RecordedStep::writes).filter(|piece| piece.length > 0);
        let written = written.map(|piece| (memory.offset(piece.address), piece)).collect();
        let pieces = Arc::new(BufferPieces::Recorded(RecordedPieces { all: memory.pieces, written }));
        Ok(Recorded {
            tagged,
            number,
            buffers: RequestBuffers::recorded(pieces),
            calls: Mutex::default(),
            freed: false,
        })
    }
}

/// The memory of the steps: disjoint pieces, by address, that stand for one buffer.
struct StepMemory {
    pieces: Vec<MemoryPiece>,
    /// Offset of each piece in the buffer.
    offsets: Vec<usize>,
}

impl StepMemory {
    fn of(steps: &[RecordedStep]) -> StepMemory {
        let named = steps.iter().flat_map(|step| [step.reads(), step.writes()]).flatten();
        let mut named: Vec<MemoryPiece> = named.filter(|piece| piece.length > 0).collect();
        named.sort_unstable();
        let mut pieces: Vec<MemoryPiece> = Vec::new();
        for piece in named {
            match pieces.last_mut() {
                Some(last) if piece.address <= last.address + last.length => {
                    last.length = last.length.max(piece.address + piece.length - last.address);
                }
                _ => pieces.push(piece),
            }
        }
        let mut end = 0;
        let offset = |piece: &MemoryPiece| {
            end += piece.length;
            end - piece.length
        };
        let offsets = pieces.iter().map(offset).collect();
        StepMemory { pieces, offsets }
    }

    /// Offset in the buffer of the byte at `address`.
    fn offset(&self, address: usize) -> usize {
        let at = self.pieces.partition_point(|piece| piece.address <= address) - 1;
        self.offsets[at] + (address - self.pieces[at].address)
    }

    fn span(&self, MemoryPiece { address, length }: MemoryPiece) -> Span {
        // An empty piece gets offset 0.
        let offset = if length > 0 { self.offset(address) } else { 0 };
        Span::output(offset as u64, length as u64)
    }

    fn program(&self, tagged: &TaggedMessages, steps: &[RecordedStep]) -> outboard_plan::Program {
        let mut builder = ProgramBuilder::new(Rank(tagged.rank), tagged.ranks);
        builder.buffers(0, self.pieces.iter().map(|piece| piece.length as u64).sum(), 0);
        for step in steps {
            let op = match *step {
                RecordedStep::Send { to, tag, from } => Op::Send { to, index: tag, span: self.span(from) },
                RecordedStep::Receive { from, tag, into } => Op::Recv { from, index: tag, span: self.span(into) },
                RecordedStep::Copy { from, into } => Op::Copy { from: self.span(from), to: self.span(into) },
                RecordedStep::Reduce { from, into, .. } => {
                    Op::Reduce { from: self.span(from), into: self.span(into), from_left: false }
                }
                RecordedStep::Barrier => {
                    builder.barrier();
                    continue;
                }
            };
            builder.push(op, &[]);
        }
        builder.build()
    }
}

/// A recorded group of operations, to be called again and again.
#[derive(Debug)]
pub struct Recorded {
    tagged: Arc<TaggedMessages>,
    number: u32,
    buffers: RequestBuffers,
    /// Calls that may be in flight.
    calls: Mutex<Vec<PostedCall>>,
    freed: bool,
}

impl Recorded {
    /// Whether this process is the one that has recorded.
    pub(crate) fn check_not_forked(&self) -> Result<(), Error> {
        self.tagged.call_sequence.attachment.parts().map(drop)
    }

    /// Runs the recorded operations once more: one entry in the ring (GP-5). The n-th call matches the n-th calls of
    /// the other ranks, whatever other calls are in between. Calls of one recording are done one after the other. Never
    /// blocks.
    ///
    /// # Safety
    /// All recorded memory is valid until the request has completed, also when the request is dropped before. Until
    /// then nothing else writes to that memory or reads written pieces.
    pub unsafe fn call(&self) -> Result<Request, Error> {
        // The entry carries only the number of the recording.
        let call = Call::new(CallKind::Tagged(TaggedCall::Recorded { recording: self.number }));
        // SAFETY: the caller's promise.
        let PostedRequest { request, call } = unsafe { self.tagged.call_sequence.post(&self.buffers, call, &[]) }?;
        let mut calls = lock(&self.calls);
        if let Ok(parts) = self.tagged.call_sequence.attachment.parts() {
            calls.retain(|call| in_flight(parts, *call));
        }
        calls.push(call);
        Ok(request)
    }

    /// Forgets the recording, after waiting for its calls in flight. Local.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`]; the recording is gone also after an error.
    pub fn free(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.freed, true) {
            return Ok(());
        }
        let parts = self.tagged.call_sequence.attachment.parts()?;
        let calls = std::mem::take(&mut *lock(&self.calls));
        parts.wait_until(None, None, || !calls.iter().any(|call| in_flight(parts, *call)))?;
        parts.progress();
        let (group, recording) = (self.tagged.call_sequence.group, self.number);
        parts.drain(&calls);
        match parts.connection.execute(&attach::AttachRequest::FreeRecording { group, recording }, &[]) {
            // The recording went with its group.
            Err(Error::Service { status: outboard_shm::status::Status::Argument, .. }) => Ok(()),
            other => other,
        }
    }
}

fn in_flight(parts: &AttachmentParts, call: PostedCall) -> bool {
    lock(&parts.slots).holds(call) && parts.control.result(call.slot).is_none()
}

impl Drop for Recorded {
    fn drop(&mut self) {
        // A program that needs the error calls `free`.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recorded_memory_is_one_buffer_of_disjoint_pieces() {
        let piece = |address, length| MemoryPiece { address, length };
        let send = |address, length| RecordedStep::Send { to: Rank(0), tag: 0, from: piece(address, length) };
        let receive = |address, length| RecordedStep::Receive { from: Rank(0), tag: 0, into: piece(address, length) };
        let steps = [send(100, 10), receive(200, 5), send(105, 10), send(0, 0), receive(115, 3)];
        let memory = StepMemory::of(&steps);
        assert_eq!(memory.pieces, [piece(100, 18), piece(200, 5)]);
        assert_eq!([100, 117, 200, 204].map(|address| memory.offset(address)), [0, 17, 18, 22]);
        assert_eq!(memory.span(piece(105, 10)), Span::output(5, 10));
        assert_eq!(memory.span(piece(7, 0)), Span::output(0, 0));
    }
}
