//! Bytes that a recording moves between a rank and a service process on another machine (GP-5, GP-9).
//!
//! A recording names pieces of the rank's memory that form one buffer, one after another. Both sides of the link derive
//! from the recording which ranges of the buffer cross with each start, and which cross when the start ends. So a start
//! carries only its number and the bytes.
//!
//! Invariant: if a step may read bytes before another step of that start has written them, the bytes cross with the
//! start. All bytes that a step writes cross at the end of the start. This module does no IO.

use outboard_call::{CallKind, TaggedCall};
use outboard_plan::{Op, Program};
use outboard_proto::RecordError;
use outboard_proto::wire::{DecodeError, RecordedMemory};

use outboard_service::MemoryPieces;
use outboard_shm::entry::SubmissionEntry;

use crate::spans::Spans;

/// Group and number of a recording, as the rank numbers them.
pub(super) type RecordingName = (u64, u32);

pub(super) fn recording_of(entry: &SubmissionEntry) -> Option<RecordingName> {
    match entry.call.kind {
        CallKind::Tagged(TaggedCall::Recorded { recording }) => Some((entry.group, recording)),
        _ => None,
    }
}

#[derive(Debug, thiserror::Error)]
pub(super) enum RecordingError {
    #[error("the recording is {0}")]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Check(#[from] RecordError),
}

/// A recording, as relay and dock use it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RelayedRecording {
    /// All memory of the rank that the recording names.
    pub(super) memory: MemoryPieces,
    /// Ranges of the buffer, in ascending order, that cross with a start.
    pub(super) reads: MemoryPieces,
    /// Ranges of the buffer that cross when a start ends.
    pub(super) writes: MemoryPieces,
}

impl RelayedRecording {
    /// Decodes the rank's encoding of a recording. The service process checks its owner and the rest of its content,
    /// and would refuse it with these errors too.
    pub(super) fn decode(bytes: &[u8]) -> Result<RelayedRecording, RecordingError> {
        let RecordedMemory { recording, pieces } = RecordedMemory::decode(bytes)?;
        recording.check(recording.program.rank, recording.program.ranks)?;
        let program = &recording.program;
        let mut written = Spans::default();
        for span in program.steps.iter().filter_map(|step| step.op.writes()) {
            written.insert(span.offset, span.offset + span.len);
        }
        let packed = |spans: &Spans| MemoryPieces::new(spans.iter().map(|(start, end)| (start, end - start)));
        Ok(RelayedRecording {
            memory: MemoryPieces::new(pieces),
            reads: packed(&read_first(program)),
            writes: packed(&written),
        })
    }

    /// Addresses of the ranges `packed` of the buffer in the rank's memory: in a copy of the whole buffer at `copy`, or
    /// in the original pieces if `copy` is 0.
    pub(super) fn located(&self, packed: &MemoryPieces, copy: u64) -> Vec<(u64, u64)> {
        if copy != 0 {
            // If the address has no memory, the access refuses it.
            return packed.iter().map(|(at, bytes)| (copy.wrapping_add(at), bytes)).collect();
        }
        packed.iter().flat_map(|(at, bytes)| self.memory.places(at, bytes)).collect()
    }
}

/// Bytes that a start may read before it has written them. A step certainly runs after a step that it follows, directly
/// or through other steps. This function counts only the longest run of first steps that a step follows. The steps
/// before a local barrier are such a run.
fn read_first(program: &Program) -> Spans {
    let (mut read, mut overwritten, mut behind) = (Spans::default(), Spans::default(), 0);
    let mut runs: Vec<usize> = Vec::with_capacity(program.steps.len());
    for step in &program.steps {
        let run = run_before(&step.after.iter().map(|id| id.0 as usize).collect::<Vec<_>>(), &runs);
        runs.push(run);
        while behind < run {
            // A reduction does not overwrite bytes: it reads the bytes that it writes.
            if let Op::Recv { .. } | Op::Copy { .. } = program.steps[behind].op
                && let Some(span) = program.steps[behind].op.writes()
            {
                overwritten.insert(span.offset, span.offset + span.len);
            }
            behind += 1;
        }
        let also = matches!(step.op, Op::Reduce { .. }).then(|| step.op.writes()).flatten();
        for span in step.op.reads().into_iter().chain(also) {
            let (start, end) = (span.offset, span.offset + span.len);
            // `overwritten` describes `behind` first steps. A step that follows fewer first steps may run earlier, so
            // all its reads count.
            let parts = if run < behind { vec![(start, end)] } else { overwritten.missing(start, end) };
            for (start, end) in parts {
                read.insert(start, end);
            }
        }
    }
    read
}

/// Number of first steps that a step with the predecessors `after` follows, directly or through others. `runs` has this
/// number for each earlier step.
fn run_before(after: &[usize], runs: &[usize]) -> usize {
    let mut run = after.iter().map(|&step| runs[step]).max().unwrap_or(0);
    let mut next: Vec<usize> = after.iter().copied().filter(|step| *step >= run).collect();
    next.sort_unstable();
    next.dedup();
    for step in next {
        if step != run {
            break;
        }
        run += 1;
    }
    run
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_plan::{Element, Operator, ProgramBuilder, Rank, Reduction, Span};
    use outboard_proto::Recording;

    /// A recording of pieces of 10, 20 and 30 bytes, which is encoded and decoded.
    fn recorded(build: impl FnOnce(&mut ProgramBuilder)) -> RelayedRecording {
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.buffers(0, 60, 0);
        build(&mut builder);
        let program = builder.build();
        let reductions = program.steps.iter().filter(|step| matches!(step.op, Op::Reduce { .. }));
        let sum = Reduction::new(Operator::Sum, Element::U8).expect("defined");
        let reductions = reductions.map(|_| sum).collect();
        let pieces = vec![(100, 10), (500, 20), (300, 30)];
        let memory = RecordedMemory { recording: Recording { program: program.into(), reductions }, pieces };
        RelayedRecording::decode(&memory.encode()).expect("can be recorded")
    }

    fn ranges(packed: &MemoryPieces) -> Vec<(u64, u64)> {
        packed.iter().collect()
    }

    /// GP-9: a byte crosses with a start only if a step may read the byte before it is written.
    #[test]
    fn bytes_that_a_start_overwrites_before_reading_do_not_cross() {
        let (first, second) = (Span::output(0, 10), Span::output(10, 10));
        let passed_on = recorded(|builder| {
            builder.recv(Rank(1), 0, first, &[]);
            builder.send(Rank(1), 1, second, &[]);
            builder.barrier();
            builder.send(Rank(1), 0, Span::output(5, 10), &[]);
        });
        assert_eq!((ranges(&passed_on.reads), ranges(&passed_on.writes)), (vec![(10, 10)], vec![(0, 10)]));
        let unordered = recorded(|builder| {
            builder.recv(Rank(1), 0, first, &[]);
            builder.send(Rank(1), 0, first, &[]);
        });
        assert_eq!(ranges(&unordered.reads), [(0, 10)]);
        let summed = recorded(|builder| {
            builder.recv(Rank(1), 0, first, &[]);
            builder.barrier();
            builder.reduce(first, second, false, &[]);
            builder.barrier();
            builder.send(Rank(1), 0, second, &[]);
        });
        assert_eq!((ranges(&summed.reads), ranges(&summed.writes)), (vec![(10, 10)], vec![(0, 20)]));
    }

    /// A step that follows few first steps does not certainly run after the other steps.
    #[test]
    fn only_steps_that_are_certainly_done_count() {
        let (first, second) = (Span::output(0, 10), Span::output(10, 10));
        let one_of_two = recorded(|builder| {
            let slow = builder.recv(Rank(1), 0, first, &[]);
            let other = builder.recv(Rank(1), 1, second, &[]);
            builder.send(Rank(1), 0, first, &[slow]);
            builder.send(Rank(1), 1, first, &[other]);
            builder.send(Rank(1), 2, second, &[slow, other]);
        });
        assert_eq!(ranges(&one_of_two.reads), [(0, 10)]);
        assert_eq!(run_before(&[2, 0], &[0, 0, 2]), 3);
        assert_eq!(run_before(&[1], &[0, 0]), 0);
    }

    #[test]
    fn ranges_lie_in_the_pieces_or_in_their_copy() {
        let sent = recorded(|builder| {
            builder.send(Rank(1), 0, Span::output(5, 40), &[]);
            builder.send(Rank(1), 1, Span::output(7, 1), &[]);
        });
        assert_eq!(sent.memory.total(), 60);
        assert_eq!(sent.located(&sent.reads, 0), [(105, 5), (500, 20), (300, 15)]);
        assert_eq!(sent.located(&sent.reads, 7000), [(7005, 40)]);
    }

    #[test]
    fn damaged_recordings_are_refused() {
        assert!(matches!(RelayedRecording::decode(&[7; 20]), Err(RecordingError::Decode(_))));
        let mut builder = ProgramBuilder::new(Rank(0), 2);
        builder.buffers(0, 8, 0);
        builder.send(Rank(1), 0, Span::output(5, 10), &[]);
        let recording = Recording { program: builder.build().into(), reductions: Vec::new() };
        let encoded = RecordedMemory { recording, pieces: vec![(1, 8)] }.encode();
        assert!(matches!(RelayedRecording::decode(&encoded), Err(RecordingError::Check(_))));
    }
}
