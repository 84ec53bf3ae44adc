//! Messages between two ranks of a group (GP-1), and groups of operations that are recorded once and called again and
//! again (GP-2).
//!
//! Messages are matched by source and tag, in the order in which they are posted; there are no wildcards. A recording
//! goes to the service process once, as a program with dependencies. Each call of a recording is one small entry in the
//! ring (GP-5). Invariant: a recording keeps only addresses; the program lends the memory with each call.

use crate::call_sequence::{CallSequence, PostedRequest};
use crate::context::{AttachmentParts, lock};
use crate::error::Error;
use crate::group::Group;
use crate::request::Request;
use crate::staging::{BufferPieces, RecordedPieces, RequestBuffers};
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

    fn peer(&self, rank: u32, argument: &'static str) -> Result<Rank, Error> {
        if rank < self.ranks {
            return Ok(Rank(rank));
        }
        Err(Error::argument(argument, format!("is {rank}: the group has ranks 0 to {}", self.ranks - 1)))
    }

    /// # Safety
    /// As for [`Group::isend`].
    unsafe fn message(&self, call: TaggedCall, buffers: &RequestBuffers, bytes: u64) -> Result<Request, Error> {
        let call = Call { bytes, ..Call::new(CallKind::Tagged(call)) };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.call_sequence.post(buffers, call, &[]) }.map(|posted| posted.request)
    }
}

type MemoryPiece = (usize, usize);

/// Checks a buffer and exposes its address to the code that copies it.
fn piece(start: *const u8, bytes: u64, argument: &'static str) -> Result<MemoryPiece, Error> {
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
    Ok((address, length))
}

/// Two pieces of `bytes` bytes that do not overlap.
fn disjoint_pieces(from: *const u8, into: *mut u8, bytes: u64) -> Result<(MemoryPiece, MemoryPiece), Error> {
    let (from, into) = (piece(from, bytes, "from")?, piece(into, bytes, "into")?);
    if bytes > 0 && from.0 < into.0 + into.1 && into.0 < from.0 + from.1 {
        return Err(Error::argument("into", "overlaps `from`"));
    }
    Ok((from, into))
}

impl Group {
    /// Posts a message of `bytes` bytes at `buffer` to rank `to`, which receives it by naming this rank and `tag`. The
    /// request ends when the buffer may be used again, before or after the message is received (GP-1).
    ///
    /// # Safety
    /// The buffer is valid and left alone until the request has completed, also when the request is dropped before.
    pub unsafe fn isend(&self, to: u32, tag: u32, buffer: *const u8, bytes: u64) -> Result<Request, Error> {
        let peer = self.tagged.peer(to, "to")?;
        let (_, length) = piece(buffer, bytes, "buffer")?;
        let buffers = RequestBuffers { contribution: buffer, bytes_per_rank: length, ..RequestBuffers::NONE };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.tagged.message(TaggedCall::Send { to: peer, tag }, &buffers, bytes) }
    }

    /// Posts the receive of the next message that rank `from` sends to this rank with `tag`, of at most `bytes` bytes,
    /// into `buffer`. A longer message fails only this request, with an error that names both lengths. A shorter
    /// message leaves the rest of the buffer unchanged (GP-1).
    ///
    /// # Safety
    /// As for [`Group::isend`].
    pub unsafe fn ireceive(&self, from: u32, tag: u32, buffer: *mut u8, bytes: u64) -> Result<Request, Error> {
        let peer = self.tagged.peer(from, "from")?;
        let (_, length) = piece(buffer, bytes, "buffer")?;
        // A staged buffer is copied as a whole, so bytes beyond a shorter message are copied back unchanged.
        let buffers = RequestBuffers {
            contribution: buffer,
            bytes_per_rank: length,
            receive: buffer,
            receive_bytes: length,
            in_place_at: Some(0),
            ..RequestBuffers::NONE
        };
        // SAFETY: the caller's promise about the buffer.
        unsafe { self.tagged.message(TaggedCall::Receive { from: peer, tag }, &buffers, bytes) }
    }

    /// Begins to record. Nothing is done or sent before [`Recorder::end`].
    pub fn record(&self) -> Recorder {
        Recorder { tagged: Arc::clone(&self.tagged), steps: Vec::new() }
    }
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
        let pieces = memory.pieces.iter().map(|&(address, length)| (address as u64, length as u64)).collect();
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
        let written = steps.iter().filter_map(RecordedStep::writes).filter(|(_, length)| *length > 0);
        let written = written.map(|(address, length)| (memory.offset(address), address, length)).collect();
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
        let mut named: Vec<MemoryPiece> = named.filter(|(_, length)| *length > 0).collect();
        named.sort_unstable();
        let mut pieces: Vec<MemoryPiece> = Vec::new();
        for (address, length) in named {
            match pieces.last_mut() {
                Some((start, held)) if address <= *start + *held => *held = (*held).max(address + length - *start),
                _ => pieces.push((address, length)),
            }
        }
        let mut end = 0;
        let offset = |(_, length): &MemoryPiece| {
            end += length;
            end - length
        };
        let offsets = pieces.iter().map(offset).collect();
        StepMemory { pieces, offsets }
    }

    /// Offset in the buffer of the byte at `address`.
    fn offset(&self, address: usize) -> usize {
        let at = self.pieces.partition_point(|(start, _)| *start <= address) - 1;
        self.offsets[at] + (address - self.pieces[at].0)
    }

    fn span(&self, (address, length): MemoryPiece) -> Span {
        // An empty piece gets offset 0.
        let offset = if length > 0 { self.offset(address) } else { 0 };
        Span::output(offset as u64, length as u64)
    }

    fn program(&self, tagged: &TaggedMessages, steps: &[RecordedStep]) -> outboard_plan::Program {
        let mut builder = ProgramBuilder::new(Rank(tagged.rank), tagged.ranks);
        builder.buffers(0, self.pieces.iter().map(|(_, length)| *length as u64).sum(), 0);
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
    /// Word and number of calls that may be in flight.
    calls: Mutex<Vec<(u32, u64)>>,
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
        let PostedRequest { request, slot, instance } =
            unsafe { self.tagged.call_sequence.post(&self.buffers, call, &[]) }?;
        let mut calls = lock(&self.calls);
        if let Ok(parts) = self.tagged.call_sequence.attachment.parts() {
            calls.retain(|call| self.in_flight(parts, *call));
        }
        calls.push((slot, instance));
        Ok(request)
    }

    fn in_flight(&self, parts: &AttachmentParts, (slot, instance): (u32, u64)) -> bool {
        lock(&parts.slots).holds(slot, self.tagged.call_sequence.group, instance)
            && parts.control.result(slot).is_none()
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
        parts.wait_until(None, None, || !calls.iter().any(|call| self.in_flight(parts, *call)))?;
        parts.progress();
        let (group, recording) = (self.tagged.call_sequence.group, self.number);
        parts.drain(group, &calls);
        match parts.connection.execute(&attach::AttachRequest::FreeRecording { group, recording }, &[]) {
            // The recording went with its group.
            Err(Error::Service { status: outboard_shm::status::Status::Argument, .. }) => Ok(()),
            other => other,
        }
    }
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
        let send = |from| RecordedStep::Send { to: Rank(0), tag: 0, from };
        let receive = |into| RecordedStep::Receive { from: Rank(0), tag: 0, into };
        let steps = [send((100, 10)), receive((200, 5)), send((105, 10)), send((0, 0)), receive((115, 3))];
        let memory = StepMemory::of(&steps);
        assert_eq!(memory.pieces, [(100, 18), (200, 5)]);
        assert_eq!([100, 117, 200, 204].map(|address| memory.offset(address)), [0, 17, 18, 22]);
        assert_eq!(memory.span((105, 10)), Span::output(5, 10));
        assert_eq!(memory.span((7, 0)), Span::output(0, 0));
    }
}
