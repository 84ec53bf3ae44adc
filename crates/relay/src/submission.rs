//! The bytes that a submission reads and writes in its rank's memory, so that they can cross to another machine and
//! back.

use std::sync::Arc;

use outboard_call::{Call, CallError, CallKind, MOST_BYTES, Rank, TaggedCall};
use outboard_service::{MemoryPieces, SubmissionError, footprint};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::RankMemory;

use crate::recording::RelayedRecording;

/// A submission that crosses to another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Submission {
    /// The call with separate input and output. Its addresses are meaningless.
    pub(super) entry: SubmissionEntry,
    /// Pieces that are read, in order.
    pub(super) input: Arc<MemoryPieces>,
    /// Pieces that are written, in order.
    pub(super) output: Arc<MemoryPieces>,
    /// Table of blocks that lie one after another without gaps; empty if the call has no table.
    pub(super) table: Vec<u8>,
    /// Base addresses of input and output, which are needed if the rank copies its buffers.
    bases: (u64, u64),
    /// The recording if the submission starts one. Pieces of a recording may lie anywhere.
    recorded: Option<Arc<RelayedRecording>>,
}

impl Submission {
    /// Finds the bytes that a submission of rank `me` among `ranks` ranks moves. `recorded` is the recording, if the
    /// submission starts one. A table is read from the rank's memory.
    pub(super) fn of(
        entry: &SubmissionEntry,
        ranks: u32,
        me: u32,
        recorded: Option<Arc<RelayedRecording>>,
        memory: &dyn RankMemory,
    ) -> Result<Submission, SubmissionError> {
        let (entry, call, rank) = (*entry, entry.call, Rank(me));
        if let CallKind::Tagged(TaggedCall::Recorded { recording }) = call.kind {
            let (recorded, copy) = (recorded.ok_or(SubmissionError::Recording(recording))?, call.receive);
            let sides = [&recorded.reads, &recorded.writes].map(|places| recorded.located(places, copy));
            return Submission::within_space(entry, sides, Vec::new(), (copy, copy), Some(recorded));
        }
        let footprint = footprint(&call, rank, ranks, memory)?;
        let bases = (footprint.reads.address, footprint.writes.address);
        let input = footprint.read_pieces().map(|(at, bytes)| (bases.0 + at, bytes)).collect();
        let output = footprint.write_pieces().map(|(at, bytes)| (bases.1 + at, bytes)).collect();
        let packed = footprint.blocks.as_ref().map(|blocks| call.packed_table(rank, blocks)).unwrap_or_default();
        let table = packed.iter().flat_map(|number| number.to_le_bytes()).collect();
        // Input that is read in place crosses as input. A block that stays in its place does not move on the other
        // machine, either.
        let in_place = call.in_place && footprint.in_place_at.is_none();
        let entry = SubmissionEntry { call: Call { in_place, ..call }, ..entry };
        Submission::within_space(entry, [input, output], table, bases, None)
    }

    /// A collective that moves nothing. Every service process refuses it, because its number is never the next one.
    pub(super) fn out_of_turn(entry: &SubmissionEntry) -> Submission {
        let entry = SubmissionEntry { instance: u64::MAX, call: Call::new(CallKind::Barrier), ..*entry };
        let (input, output) = (Arc::default(), Arc::default());
        Submission { entry, input, output, table: Vec::new(), bases: (0, 0), recorded: None }
    }

    /// Makes a submission, unless its pieces exceed the address space. `sides` holds address and bytes of input and
    /// output pieces.
    fn within_space(
        entry: SubmissionEntry,
        sides: [Vec<(u64, u64)>; 2],
        table: Vec<u8>,
        bases: (u64, u64),
        recorded: Option<Arc<RelayedRecording>>,
    ) -> Result<Submission, SubmissionError> {
        let pieces = || sides.iter().flatten();
        let total = pieces().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let in_space = pieces().all(|(address, bytes)| address.checked_add(*bytes).is_some());
        if !in_space || total.is_none_or(|total| total > MOST_BYTES) {
            let (send, receive) = bases;
            return Err(CallError::Range { bytes: total.unwrap_or(u64::MAX), send, receive }.into());
        }
        let [input, output] = sides.map(|side| Arc::new(MemoryPieces::new(side)));
        Ok(Submission { entry, input, output, table, bases, recorded })
    }

    /// Moves the pieces after the rank has copied its buffers to `send` and `receive`.
    pub(super) fn moved(&mut self, send: u64, receive: u64) {
        let (from, to) = (self.bases, (send, receive));
        let sides = match &self.recorded {
            // A recording has a single copy of all its memory.
            Some(recorded) => [&recorded.reads, &recorded.writes].map(|places| recorded.located(places, receive)),
            None => [(&self.input, from.0, to.0), (&self.output, from.1, to.1)].map(|(pieces, from, to)| {
                // If the address has no memory, the access refuses it.
                pieces.iter().map(|(address, bytes)| (address.wrapping_sub(from).wrapping_add(to), bytes)).collect()
            }),
        };
        [self.input, self.output] = sides.map(|side| Arc::new(MemoryPieces::new(side)));
        self.bases = (send, receive);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_shm::memory::TieredMemory;
    use outboard_shm::region::MemfdRegion;

    fn memory(numbers: &[u64]) -> TieredMemory {
        let region = MemfdRegion::create("test", 4096).expect("memory");
        region.write(0, &numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>());
        let memory = TieredMemory::default();
        memory.ranges().register(0x1000, 4096, region.fd().try_clone_to_owned().expect("a descriptor")).expect("free");
        memory
    }

    fn of(kind: CallKind, in_place: bool, table: u64, numbers: &[u64]) -> Result<Submission, SubmissionError> {
        let call = Call { in_place, bytes: 7, send: 0x8000, receive: 0x9000, table, ..Call::new(kind) };
        Submission::of(&SubmissionEntry { group: 1, instance: 1, slot: 0, call }, 3, 2, None, &memory(numbers))
    }

    fn list(pieces: &MemoryPieces) -> Vec<(u64, u64)> {
        pieces.iter().collect()
    }

    fn numbers(table: &[u8]) -> Vec<u64> {
        table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect()
    }

    #[test]
    fn in_place_input_is_carried_and_follows_restaged_buffers() {
        let mut found = of(CallKind::Allgather, true, 0, &[]).expect("fits");
        assert_eq!((list(&found.input), list(&found.output)), (vec![(0x9000 + 14, 7)], vec![(0x9000, 21)]));
        assert!(!found.entry.call.in_place);
        found.moved(0x1000, 0x2000);
        assert_eq!((list(&found.input), list(&found.output)), (vec![(0x1000, 7)], vec![(0x2000, 21)]));
    }

    /// In a gather or scatter with different sizes, a root's block that is in place does not cross in either direction.
    #[test]
    fn blocks_are_carried_without_the_gaps_between_them() {
        // The sizes of the blocks come first, then their offsets.
        let blocks = [3u64, 0, 7, 40, 999, 500];
        let at = |start: u64| vec![(start + 40, 3), (start + 500, 7)];
        let (gather, scatter) = (CallKind::Gatherv { root: Rank(2) }, CallKind::Scatterv { root: Rank(2) });
        let packed = (vec![3, 0, 7, 0, 3, 3], vec![3, 0, 0, 0, 3, 3]);
        for (kind, in_place, input, output, table) in [
            (CallKind::Allgatherv { sizes: 0 }, false, vec![(0x8000, 7)], at(0x9000), &packed.0),
            (CallKind::Allgatherv { sizes: 0 }, true, vec![(0x9000 + 500, 7)], at(0x9000), &packed.0),
            (gather, false, vec![(0x8000, 7)], at(0x9000), &packed.0),
            (gather, true, vec![], vec![(0x9000 + 40, 3)], &packed.1),
            (scatter, false, at(0x8000), vec![(0x9000, 7)], &packed.0),
            (scatter, true, vec![(0x8000 + 40, 3)], vec![], &packed.1),
        ] {
            let found = of(kind, in_place, 0x1000, &blocks).expect("readable");
            let carried = (list(&found.input), list(&found.output), &numbers(&found.table));
            assert_eq!(carried, (input, output, table), "{kind:?}");
        }
        let both = [&blocks[..], &[1, 0, 7, 0, 0, 8]].concat();
        let found = of(CallKind::Alltoallv, false, 0x1000, &both).expect("readable");
        assert_eq!((list(&found.input), list(&found.output)), (at(0x8000), vec![(0x9000, 1), (0x9000 + 8, 7)]));
        assert_eq!(numbers(&found.table), [3, 0, 7, 0, 3, 3, 1, 0, 7, 0, 1, 1]);
        assert!(matches!(of(gather, false, 0x9_0000, &blocks), Err(SubmissionError::Table { .. })));
    }

    #[test]
    fn repeated_reads_that_exceed_the_address_space_are_refused() {
        let huge = u64::MAX / 3;
        let list = [huge, huge, 7, 0, 0, 0, 0, 0, 7, 0, 0, 0];
        let refused = of(CallKind::Alltoallv, false, 0x1000, &list);
        assert!(matches!(refused, Err(SubmissionError::Call(CallError::Range { .. }))), "{refused:?}");
    }
}
