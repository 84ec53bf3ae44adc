//! Reductions on memory of any tier: piece by piece through the second-level cache.
//!
//! Memory of a rank is never computed on where it lies, mapped or not, because the rank may write to it meanwhile: its bytes
//! are copied, combined and written back. Staging is combined in place. Invariant: an element is combined once, whatever
//! fails: what is left to do behind a piece that failed is named.

use outboard_plan::Reduction;
use outboard_proto::MemRef;
use outboard_shm::memory::RankMemory;

use crate::deferred::Work;
use crate::memory::{Fault, Place};

/// Bytes combined at a time: whole elements of any kind.
const PIECE: u64 = 64 << 10;

/// A reduction as the machine ordered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Combination {
    /// The operand that stays.
    pub(crate) from: MemRef,
    /// The operand that becomes the result.
    pub(crate) into: MemRef,
    /// How.
    pub(crate) reduction: Reduction,
    /// `from` is the left operand.
    pub(crate) from_left: bool,
}

/// Room for a piece of each operand. Grows once.
#[derive(Debug, Default)]
pub(crate) struct Bounces {
    from: Vec<u8>,
    into: Vec<u8>,
}

/// What stopped a reduction.
#[derive(Debug)]
pub(crate) struct Unfinished {
    /// Why.
    pub(crate) fault: Fault,
    /// What is left to do, in order.
    pub(crate) left: Vec<Work>,
}

impl Combination {
    /// What is left behind the first `done` bytes.
    fn behind(&self, done: u64) -> Option<Work> {
        let rest = |piece: MemRef| MemRef { offset: piece.offset + done, len: piece.len - done, ..piece };
        let left = Combination { from: rest(self.from), into: rest(self.into), ..*self };
        (left.from.len > 0).then_some(Work::Reduce(left))
    }

    /// Carries it out on operands that lie there.
    pub(crate) fn perform(&self, from: &Place, into: &Place, bounces: &mut Bounces) -> Result<(), Unfinished> {
        let mut done = 0;
        while done < self.into.len {
            let bytes = (self.into.len - done).min(PIECE);
            let operands = (&from.behind(done), &into.behind(done));
            self.piece(operands, bytes, bounces).map_err(|(fault, result)| {
                let to = MemRef { offset: self.into.offset + done, len: bytes, ..self.into };
                // A result that could not be written back, or not whole, is not made a second time.
                let put = result.map(|bytes| Work::Deliver { bytes, to });
                let rest = if put.is_some() { done + bytes } else { done };
                Unfinished { fault, left: put.into_iter().chain(self.behind(rest)).collect() }
            })?;
            done += bytes;
        }
        Ok(())
    }

    /// Combines a piece. A failed write gives back what was to be written.
    fn piece(
        &self,
        (from, into): (&Place, &Place),
        bytes: u64,
        bounces: &mut Bounces,
    ) -> Result<(), (Fault, Option<Vec<u8>>)> {
        let length = bytes as usize;
        bounces.from.resize(length, 0);
        from.read(&mut bounces.from).map_err(|fault| (fault, None))?;
        let combine =
            |into: &mut [u8]| outboard_arithmetic::reduce(self.reduction, &bounces.from, into, self.from_left);
        match into {
            Place::Staging { buffer, offset } => buffer.fill(*offset, length, combine),
            Place::Rank { call, memory, address } => {
                bounces.into.resize(length, 0);
                into.read(&mut bounces.into).map_err(|fault| (fault, None))?;
                combine(&mut bounces.into);
                memory
                    .write(*address, &bounces.into)
                    .map_err(|error| (Fault::Call { call: *call, error }, Some(bounces.into.clone())))?;
            }
        }
        Ok(())
    }
}
