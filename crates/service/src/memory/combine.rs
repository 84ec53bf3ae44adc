//! Reductions on memory of any tier, in pieces that fit the second-level cache.
//!
//! The memory of a rank is never the operand of a computation, mapped or not, because the rank may write to it
//! meanwhile. The bytes are copied, combined and written back. If both operands are staging memory, which no other
//! process writes, they are combined in place.
//!
//! Invariant: each element is combined exactly once, even if an access fails: the failure names the work that is left.

use outboard_plan::Reduction;
use outboard_proto::MemRef;
use outboard_shm::memory::RankMemory;

use crate::memory::deferred_ops::MemoryWork;
use crate::memory::{MemoryFault, MemoryLocation};

/// Bytes combined at a time: a whole number of elements of any kind.
pub(super) const PIECE_BYTES: u64 = 64 << 10;

/// A reduction as the machine ordered it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OrderedReduction {
    /// The operand that stays unchanged.
    pub(crate) from: MemRef,
    /// The operand that becomes the result.
    pub(crate) into: MemRef,
    pub(crate) reduction: Reduction,
    /// `from` is the left operand.
    pub(crate) from_left: bool,
}

/// Buffers for a piece of each operand. The buffers grow only once, to the size of a piece.
#[derive(Debug, Default)]
pub(crate) struct BounceBuffers {
    from: Vec<u8>,
    into: Vec<u8>,
}

/// A stopped reduction: the fault, and the work that is left.
#[derive(Debug)]
pub(crate) struct UnfinishedWork {
    pub(crate) fault: MemoryFault,
    pub(crate) left: Vec<MemoryWork>,
}

impl OrderedReduction {
    /// The reduction of `len` bytes from `start` on, which must be whole elements.
    pub(super) fn piece(&self, start: u64, len: u64) -> OrderedReduction {
        let piece = |whole: MemRef| MemRef { offset: whole.offset + start, len, ..whole };
        OrderedReduction { from: piece(self.from), into: piece(self.into), ..*self }
    }

    /// The reduction of the bytes after the first `done` bytes, if any are left.
    fn behind(&self, done: u64) -> Option<MemoryWork> {
        let left = self.into.len - done;
        (left > 0).then(|| MemoryWork::Reduce(self.piece(done, left)))
    }

    /// Carries the reduction out on operands at these locations.
    pub(crate) fn perform(
        &self,
        from: &MemoryLocation,
        into: &MemoryLocation,
        bounce_buffers: &mut BounceBuffers,
    ) -> Result<(), UnfinishedWork> {
        let mut done = 0;
        while done < self.into.len {
            let bytes = (self.into.len - done).min(PIECE_BYTES);
            let operands = (&from.behind(done), &into.behind(done));
            self.combine_piece(operands, bytes, bounce_buffers).map_err(|(fault, result)| {
                let to = MemRef { offset: self.into.offset + done, len: bytes, ..self.into };
                // A result that was not written, or was written only in part, is delivered later, not computed a second
                // time.
                let put = result.map(|bytes| MemoryWork::Deliver { bytes, to });
                let rest = if put.is_some() { done + bytes } else { done };
                UnfinishedWork { fault, left: put.into_iter().chain(self.behind(rest)).collect() }
            })?;
            done += bytes;
        }
        Ok(())
    }

    /// Combines a piece. If the write fails, returns the fault and the bytes that were to be written.
    fn combine_piece(
        &self,
        (from, into): (&MemoryLocation, &MemoryLocation),
        bytes: u64,
        bounce_buffers: &mut BounceBuffers,
    ) -> Result<(), (MemoryFault, Option<Vec<u8>>)> {
        let length = bytes as usize;
        let BounceBuffers { from: copy, into: result } = bounce_buffers;
        if let MemoryLocation::Staging { buffer, offset } = from
            && !from.overlaps(into, bytes)
        {
            return buffer.lend(*offset, length, |operand| self.combine(operand, into, result));
        }
        copy.resize(length, 0);
        from.read(copy).map_err(|fault| (fault, None))?;
        self.combine(copy, into, result)
    }

    /// Combines a piece of the length of `operand`.
    fn combine(
        &self,
        operand: &[u8],
        into: &MemoryLocation,
        result: &mut Vec<u8>,
    ) -> Result<(), (MemoryFault, Option<Vec<u8>>)> {
        let combine = |into: &mut [u8]| outboard_arithmetic::reduce(self.reduction, operand, into, self.from_left);
        match into {
            MemoryLocation::Staging { buffer, offset } => buffer.fill(*offset, operand.len(), combine),
            MemoryLocation::Rank { call, memory, address } => {
                result.resize(operand.len(), 0);
                into.read(result).map_err(|fault| (fault, None))?;
                combine(result);
                memory
                    .write(*address, result)
                    .map_err(|error| (MemoryFault::Call { call: *call, error }, Some(result.clone())))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use outboard_plan::{Element, Operator};
    use outboard_proto::{CallId, MemRegion, StagingId};
    use outboard_shm::memory::{AccessError, RankMemory, TieredMemory};
    use outboard_shm::region::MemfdRegion as Shared;

    use super::*;
    use crate::memory::staging::{StagingBuffer, StagingBufferPool};

    const BYTES: u64 = PIECE_BYTES + 16;
    const AT: u64 = 0x10000;

    fn piece(region: MemRegion) -> MemRef {
        MemRef { region, offset: 0, len: BYTES }
    }

    fn combination_of_sums() -> OrderedReduction {
        let (from, into) = (piece(MemRegion::Staging(StagingId(1))), piece(MemRegion::Output(CallId(1))));
        let reduction = Reduction::new(Operator::Sum, Element::U32).expect("defined");
        OrderedReduction { from, into, reduction, from_left: true }
    }

    fn staged(number: u32) -> (Arc<StagingBuffer>, MemoryLocation) {
        let buffer = StagingBufferPool::default().take(BYTES).expect("memory");
        let bytes: Vec<u8> = (0..BYTES / 4).flat_map(|_| number.to_ne_bytes()).collect();
        buffer.copy_in(0, &bytes);
        (buffer.clone(), MemoryLocation::Staging { buffer, offset: 0 })
    }

    /// Memory of a rank; only this many bytes can be accessed.
    fn rank(bytes: u64) -> Arc<TieredMemory> {
        let memory = TieredMemory::default();
        let region = Shared::create("test", bytes as usize).expect("memory");
        let descriptor = region.fd().try_clone_to_owned().expect("a descriptor");
        memory.ranges().register(AT, bytes, descriptor).expect("free");
        Arc::new(memory)
    }

    fn numbers(bytes: &[u8]) -> Vec<u32> {
        bytes.as_chunks::<4>().0.iter().map(|number| u32::from_ne_bytes(*number)).collect()
    }

    #[test]
    fn every_element_is_combined_once_wherever_it_lies() {
        let (memory, mut bounce_buffers) = (rank(2 * PIECE_BYTES), BounceBuffers::default());
        let location = MemoryLocation::Rank { call: CallId(1), memory: Arc::clone(&memory), address: AT };
        let ((_, from), (into, there)) = (staged(3), staged(4));
        for target in [&location, &location, &there] {
            assert!(combination_of_sums().perform(&from, target, &mut bounce_buffers).is_ok());
        }
        let mut found = vec![0; BYTES as usize];
        memory.read(AT, &mut found).expect("reachable");
        assert!(numbers(&found).iter().all(|number| *number == 6));
        into.copy_out(0, &mut found);
        assert!(numbers(&found).iter().all(|number| *number == 7));
    }

    #[test]
    fn operands_in_one_buffer_may_overlap() {
        let (buffer, whole) = staged(5);
        let combination = OrderedReduction {
            from: MemRef { len: 64, ..combination_of_sums().from },
            into: MemRef { len: 64, ..combination_of_sums().into },
            ..combination_of_sums()
        };
        for at in [64, 32, 0] {
            assert!(combination.perform(&whole, &whole.behind(at), &mut BounceBuffers::default()).is_ok());
        }
        let mut found = vec![0; 128];
        buffer.copy_out(0, &mut found);
        let doubled: Vec<u32> = (0..32).map(|at| [10, 20, 15, 10][at / 8]).collect();
        assert_eq!(numbers(&found), doubled);
    }

    #[test]
    fn a_fault_returns_the_remaining_work() {
        let (memory, mut bounce_buffers) = (rank(PIECE_BYTES), BounceBuffers::default());
        let location = MemoryLocation::Rank { call: CallId(1), memory, address: AT };
        let combination = combination_of_sums();
        let UnfinishedWork { fault, left } = combination
            .perform(&staged(3).1, &location, &mut bounce_buffers)
            .expect_err("the second piece is out of reach");
        assert!(matches!(fault, MemoryFault::Call { error: AccessError::Unreachable { bytes: 16, .. }, .. }));
        let [MemoryWork::Reduce(rest)] = &left[..] else { panic!("{left:?}") };
        assert_eq!(
            (rest.from.offset, rest.from.len, rest.into.offset, rest.into.len),
            (PIECE_BYTES, 16, PIECE_BYTES, 16)
        );
        let unread = combination.perform(&location, &staged(3).1, &mut bounce_buffers).expect_err("read from there");
        assert_eq!(unread.left.len(), 1);
    }
}
