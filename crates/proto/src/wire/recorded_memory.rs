//! A rank's recording on its way to its service process: sent once, whole, in memory that is never changed afterwards
//! (GP-5).
//!
//! The encoding has the rank and the number of ranks, the pieces of memory (address and bytes of each), and the steps
//! (kind, peer or operator, tag, spans, preceding steps). The caller of the decoder checks everything that depends on
//! the group with [`Recording::check`].

use std::sync::Arc;

use outboard_plan::{Op, OpId, Program, Rank, Reduction, Span, Step};

use crate::recording::{MAX_STEPS, Recording};
use outboard_call::codec::{DecodeError, Reader, Writer};

/// Most pieces of memory of one recording.
pub const MAX_PIECES: usize = MAX_STEPS;

/// A recording with the memory that its spans lie in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecordedMemory {
    pub recording: Recording,
    /// Address and bytes of each piece of memory. In the recording's `Output` the pieces are concatenated.
    pub pieces: Vec<(u64, u64)>,
}

const SEND: u8 = 1;
const RECEIVE: u8 = 2;
const COPY: u8 = 3;
const REDUCE: u8 = 4;
const REDUCE_FROM_LEFT: u8 = 5;

impl RecordedMemory {
    /// Encodes the whole recording.
    ///
    /// # Panics
    /// When the recording multicasts or names other buffers than `Output`, which [`Recording::check`] refuses.
    pub fn encode(&self) -> Vec<u8> {
        let program = &self.recording.program;
        let mut out = Vec::with_capacity(64 + 16 * self.pieces.len() + 40 * program.steps.len());
        let mut w = Writer::new(&mut out);
        w.u32(program.rank.0).u32(program.ranks).u32(self.pieces.len() as u32);
        for (address, bytes) in &self.pieces {
            w.u64(*address).u64(*bytes);
        }
        w.u32(program.steps.len() as u32);
        let mut reductions = self.recording.reductions.iter();
        for step in &program.steps {
            match step.op {
                Op::Send { to: Rank(peer), index, span } | Op::Recv { from: Rank(peer), index, span } => {
                    let kind = if matches!(step.op, Op::Send { .. }) { SEND } else { RECEIVE };
                    w.u8(kind).u32(peer).u32(index).u64(span.offset).u64(span.len);
                }
                Op::Copy { from, to } => {
                    w.u8(COPY).u64(from.offset).u64(from.len).u64(to.offset);
                }
                Op::Reduce { from, into, from_left } => {
                    let kind = if from_left { REDUCE_FROM_LEFT } else { REDUCE };
                    let reduction = reductions.next().expect("a recording names an operator for each reduction");
                    w.u8(kind).u32(reduction.code().into()).u64(from.offset).u64(from.len).u64(into.offset);
                }
                Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("recordings do not multicast"),
            }
            w.u32(step.after.len() as u32);
            step.after.iter().for_each(|after| _ = w.u32(after.0));
        }
        out
    }

    /// Decodes a recording that fills `bytes`.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut r = Reader::new(bytes);
        let (rank, ranks) = (Rank(r.u32()?), r.u32()?);
        let count = r.u32()? as usize;
        if count > MAX_PIECES.min(bytes.len() / 16) {
            return Err(DecodeError::Value("number of pieces (65,536 at most)"));
        }
        let pieces = (0..count).map(|_| Ok((r.u64()?, r.u64()?))).collect::<Result<Vec<_>, DecodeError>>()?;
        let sum = |total: u64, (address, bytes): &(u64, u64)| {
            address.checked_add(*bytes)?;
            total.checked_add(*bytes)
        };
        let total = pieces.iter().try_fold(0, sum).ok_or(DecodeError::Value("pieces of memory"))?;
        let count = r.u32()? as usize;
        if count > MAX_STEPS.min(bytes.len() / 13) {
            return Err(DecodeError::Value("number of steps (65,536 at most)"));
        }
        // The quota counts the memory of pieces with the steps, so the steps bound the number of pieces.
        if pieces.len() > 2 * count {
            return Err(DecodeError::Value("number of pieces (no more than its steps name, two each)"));
        }
        let (mut steps, mut reductions) = (Vec::with_capacity(count), Vec::new());
        for _ in 0..count {
            steps.push(read_step(&mut r, bytes.len(), &mut reductions)?);
        }
        r.end()?;
        let program = Program {
            rank,
            ranks,
            steps,
            input_bytes: 0,
            output_bytes: total,
            scratch_bytes: 0,
            subgroups: 1,
            chains: 1,
        };
        Ok(RecordedMemory { recording: Recording { program: Arc::new(program), reductions }, pieces })
    }
}

fn read_step(r: &mut Reader<'_>, most: usize, reductions: &mut Vec<Reduction>) -> Result<Step, DecodeError> {
    let kind = r.u8()?;
    let op = match kind {
        SEND => Op::Send { to: Rank(r.u32()?), index: r.u32()?, span: read_span(r)? },
        RECEIVE => Op::Recv { from: Rank(r.u32()?), index: r.u32()?, span: read_span(r)? },
        COPY => {
            let from = read_span(r)?;
            Op::Copy { from, to: Span::output(r.u64()?, from.len) }
        }
        REDUCE | REDUCE_FROM_LEFT => {
            let code = u16::try_from(r.u32()?).ok();
            let reduction = code.and_then(|code| Reduction::from_code(code).ok());
            reductions.push(reduction.ok_or(DecodeError::Value("operator"))?);
            let from = read_span(r)?;
            Op::Reduce { from, into: Span::output(r.u64()?, from.len), from_left: kind == REDUCE_FROM_LEFT }
        }
        _ => return Err(DecodeError::Value("kind of step")),
    };
    let followed = r.u32()? as usize;
    if followed > most / 4 {
        return Err(DecodeError::Value("number of steps followed"));
    }
    let words = r.bytes(4 * followed)?.chunks_exact(4);
    let after = words.map(|word| OpId(u32::from_le_bytes(word.try_into().expect("four bytes")))).collect();
    Ok(Step { op, after })
}

fn read_span(r: &mut Reader<'_>) -> Result<Span, DecodeError> {
    Ok(Span::output(r.u64()?, r.u64()?))
}

#[cfg(test)]
mod tests {
    use outboard_plan::{Element, Operator, ProgramBuilder};

    use super::*;

    #[test]
    fn gp_5_recording_round_trips_and_truncated_ones_are_errors() {
        let mut builder = ProgramBuilder::new(Rank(1), 3);
        builder.buffers(0, 60, 0);
        builder.send(Rank(0), 7, Span::output(0, 16), &[]);
        builder.recv(Rank(2), u32::MAX, Span::output(16, 16), &[]);
        builder.barrier();
        builder.copy(Span::output(0, 16), Span::output(32, 16), &[]);
        let (from, into) = (Span::output(16, 16), Span::output(0, 16));
        builder.push(Op::Reduce { from, into, from_left: true }, &[]);
        let sum = Reduction::new(Operator::Sum, Element::F64).expect("numbers are added");
        let recording = Recording { program: builder.build().into(), reductions: vec![sum] };
        assert_eq!(recording.check(Rank(1), 3), Ok(()));
        let whole = RecordedMemory { recording, pieces: vec![(0x1000, 40), (u64::MAX - 30, 20)] };
        let bytes = whole.encode();
        assert_eq!(RecordedMemory::decode(&bytes), Ok(whole));
        for at in 0..bytes.len() {
            assert!(RecordedMemory::decode(&bytes[..at]).is_err(), "cut at {at}");
            let mut flipped = bytes.clone();
            flipped[at] ^= 0xff;
            if let Ok(other) = RecordedMemory::decode(&flipped) {
                assert_eq!(other.encode(), flipped, "flipped at {at}");
            }
        }
    }

    /// The quota counts the memory of pieces with the steps, so every piece must be named by a step.
    #[test]
    fn more_pieces_than_steps_are_rejected() {
        let mut builder = ProgramBuilder::new(Rank(1), 3);
        builder.buffers(0, 60, 0);
        builder.copy(Span::output(0, 8), Span::output(20, 8), &[]);
        let recording = Recording { program: builder.build().into(), reductions: Vec::new() };
        for (pieces, fits) in [(1, true), (2, true), (3, false), (MAX_PIECES, false)] {
            let pieces = vec![(0x1000, 60 / pieces as u64); pieces];
            let whole = RecordedMemory { recording: recording.clone(), pieces };
            assert_eq!(RecordedMemory::decode(&whole.encode()).is_ok(), fits, "{}", whole.pieces.len());
        }
    }
}
