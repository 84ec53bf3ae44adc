//! What a submission reads and writes in its rank, so that it can be carried to another machine and its result back.

use std::sync::Arc;

use outboard_shm::entry::{
    AllgatherEntry, AllgathervEntry, AlltoallEntry, BlockSizes, BroadcastEntry, Direction, Entry, MessageEnd,
    MessageEntry, RecordedEntry, Reduced, ReductionEntry, RootedBlocks, RootedEntry,
};
use outboard_shm::memory::{AccessError, RankMemory};

use crate::recording::Recorded;

/// Address and length of bytes in the rank.
pub(super) type Piece = (u64, u64);

/// A submission on its way to another machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Submission {
    /// Read one after the other.
    pub(super) input: Vec<Piece>,
    /// Written one after the other.
    pub(super) output: Vec<Piece>,
    /// Table of blocks, for blocks that lie one after the other; empty where there is none.
    pub(super) table: Vec<u8>,
    /// Addresses that those of input and output are meant relative to, should the rank copy its buffers.
    bases: (u64, u64),
    /// Of the start of a recording, whose pieces lie anywhere.
    recorded: Option<Arc<Recorded>>,
}

/// Why a submission cannot be carried on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum SubmissionError {
    /// Lengths or addresses.
    #[error("the buffers of this call exceed the address space")]
    Range,
    /// Not known, or not any more.
    #[error("recording {0} of this group is not one of this rank's; start what it has recorded and not freed")]
    Recording(u32),
    /// The table of blocks.
    #[error("the table of blocks at {address:#x} cannot be read: {error}")]
    Table {
        /// Where it should be.
        address: u64,
        /// What the kernel said.
        error: AccessError,
    },
}

/// The bytes of all pieces together.
pub(super) fn bytes_of(pieces: &[Piece]) -> u64 {
    pieces.iter().map(|(_, bytes)| bytes).sum()
}

impl Submission {
    /// Finds out what a submission of rank `me` among `ranks` moves, if it starts a recording, `recorded`; a table is read
    /// from its memory.
    ///
    /// # Errors
    /// [`SubmissionError`].
    pub(super) fn of(
        entry: &Entry,
        (ranks, me): (u32, u32),
        recorded: Option<Arc<Recorded>>,
        memory: &dyn RankMemory,
    ) -> Result<Submission, SubmissionError> {
        let bases;
        let (input, output, table) = match *entry {
            Entry::Allgather(entry) => {
                let (input, output) = allgather(&entry, ranks, me)?;
                bases = (input[0].0, output[0].0);
                (input, output, Vec::new())
            }
            Entry::Broadcast(BroadcastEntry { root, buffer, bytes, .. }) => {
                bases = (buffer, buffer);
                let whole = vec![(buffer, bytes)];
                if root == me { (whole, Vec::new(), Vec::new()) } else { (Vec::new(), whole, Vec::new()) }
            }
            Entry::Alltoall(AlltoallEntry { send, receive, blocks: BlockSizes::Even { bytes }, .. }) => {
                let total = bytes.checked_mul(u64::from(ranks)).ok_or(SubmissionError::Range)?;
                bases = (send, receive);
                (vec![(send, total)], vec![(receive, total)], Vec::new())
            }
            Entry::Alltoall(AlltoallEntry { send, receive, blocks: BlockSizes::Table { address }, .. }) => {
                bases = (send, receive);
                let (lists, table) = lists(address, [send, receive], ranks, memory)?;
                let [input, output] = lists.map(|list| list.into_iter().filter(|(_, bytes)| *bytes > 0).collect());
                (input, output, table)
            }
            Entry::Allgatherv(AllgathervEntry { in_place, send, receive, table, .. }) => {
                let ([output], table) = lists(table, [receive], ranks, memory)?;
                let (place, bytes) = output[me as usize];
                let own = (if in_place { place } else { send }, bytes);
                bases = (own.0, receive);
                (vec![own], output.into_iter().filter(|(_, bytes)| *bytes > 0).collect(), table)
            }
            Entry::Rooted(entry) => {
                let (input, output, table);
                (input, output, table, bases) = rooted(&entry, ranks, me, memory)?;
                (input, output, table)
            }
            Entry::Barrier(_) => {
                bases = (0, 0);
                (Vec::new(), Vec::new(), Vec::new())
            }
            Entry::Reduction(entry) => {
                let (sent, received, table) = reduction(&entry, (ranks, me), memory)?;
                let send = if entry.in_place { entry.receive } else { entry.send };
                bases = (send, entry.receive);
                (vec![(send, sent)], vec![(entry.receive, received)], table)
            }
            Entry::Message(MessageEntry { end, buffer, bytes, .. }) => {
                bases = (buffer, buffer);
                let whole = vec![(buffer, bytes)];
                match end {
                    MessageEnd::Send => (whole, Vec::new(), Vec::new()),
                    MessageEnd::Receive => (Vec::new(), whole, Vec::new()),
                }
            }
            Entry::Recorded(RecordedEntry { recording, copy, .. }) => {
                let recorded = recorded.as_deref().ok_or(SubmissionError::Recording(recording))?;
                copy.checked_add(recorded.total()).ok_or(SubmissionError::Range)?;
                bases = (copy, copy);
                let located = |packed| recorded.located(packed, copy);
                (located(recorded.reads()), located(recorded.writes()), Vec::new())
            }
        };
        Submission { input, output, table, bases, recorded }.in_space()
    }

    /// Itself, where all of its pieces lie in the address space. Sums of both directions together fit, so those of one do.
    fn in_space(self) -> Result<Submission, SubmissionError> {
        let pieces = || self.input.iter().chain(&self.output);
        let total = pieces().try_fold(0u64, |sum, (_, bytes)| sum.checked_add(*bytes));
        let in_space = pieces().all(|(address, bytes)| address.checked_add(*bytes).is_some());
        if in_space && total.is_some_and(|total| total <= i64::MAX as u64) {
            Ok(self)
        } else {
            Err(SubmissionError::Range)
        }
    }

    /// The rank has copied its buffers: the same pieces of those that begin at these addresses.
    pub(super) fn moved(&mut self, send: u64, receive: u64) {
        if let Some(recorded) = &self.recorded {
            // All of it is one copy.
            self.input = recorded.located(recorded.reads(), receive);
            self.output = recorded.located(recorded.writes(), receive);
            return;
        }
        let sides = [(&mut self.input, self.bases.0, send), (&mut self.output, self.bases.1, receive)];
        for (pieces, from, to) in sides {
            for (address, _) in pieces {
                // An address that no memory has is refused when it is accessed.
                *address = address.wrapping_sub(from).wrapping_add(to);
            }
        }
        self.bases = (send, receive);
    }
}

fn allgather(entry: &AllgatherEntry, ranks: u32, me: u32) -> Result<(Vec<Piece>, Vec<Piece>), SubmissionError> {
    let &AllgatherEntry { in_place, send, receive, bytes_per_rank: bytes, .. } = entry;
    let total = bytes.checked_mul(u64::from(ranks)).ok_or(SubmissionError::Range)?;
    // Part of the total, which fits.
    let own = u64::from(me) * bytes;
    let send = if in_place { receive.checked_add(own).ok_or(SubmissionError::Range)? } else { send };
    Ok((vec![(send, bytes)], vec![(receive, total)]))
}

/// Input, output, table and bases of a gather or scatter.
type Rooted = (Vec<Piece>, Vec<Piece>, Vec<u8>, (u64, u64));

/// The root has a block for every rank on one side and its own on the other, the others have one block. An own block that a
/// gather finds in place is carried as input all the same; one that a scatter leaves in place is no output.
fn rooted(entry: &RootedEntry, ranks: u32, me: u32, memory: &dyn RankMemory) -> Result<Rooted, SubmissionError> {
    let &RootedEntry { direction, root, in_place, send, receive, blocks, .. } = entry;
    let gathers = direction == Direction::Gather;
    let (many_at, one_at) = if gathers { (receive, send) } else { (send, receive) };
    let mut table = Vec::new();
    let (many, one) = match blocks {
        RootedBlocks::Own { bytes } => (Vec::new(), (one_at, bytes)),
        RootedBlocks::Even { bytes } if me != root => (Vec::new(), (one_at, bytes)),
        RootedBlocks::Even { bytes } => {
            let total = bytes.checked_mul(u64::from(ranks)).ok_or(SubmissionError::Range)?;
            // Part of the total, which fits.
            let place = many_at.checked_add(u64::from(me) * bytes).ok_or(SubmissionError::Range)?;
            (vec![(many_at, total)], (if in_place { place } else { one_at }, bytes))
        }
        RootedBlocks::Table { address } => {
            let ([list], packed) = lists(address, [many_at], ranks, memory)?;
            table = packed;
            let (place, bytes) = list[me as usize];
            let many = list.into_iter().filter(|(_, bytes)| *bytes > 0).collect();
            (many, (if in_place { place } else { one_at }, bytes))
        }
    };
    if gathers {
        return Ok((vec![one], many, table, (one.0, receive)));
    }
    let one = if in_place { Vec::new() } else { vec![one] };
    Ok((many, one, table, (send, receive)))
}

/// Bytes that a reduction reads and writes, and its table.
fn reduction(
    entry: &ReductionEntry,
    (ranks, me): (u32, u32),
    memory: &dyn RankMemory,
) -> Result<(u64, u64, Vec<u8>), SubmissionError> {
    let (sent, received) = match entry.result {
        Reduced::Reduce { root, bytes } => (bytes, if root == me { bytes } else { 0 }),
        Reduced::Exscan { bytes } => (bytes, if me == 0 { 0 } else { bytes }),
        Reduced::Allreduce { bytes } | Reduced::Scan { bytes } => (bytes, bytes),
        Reduced::ReduceScatterBlock { bytes } => {
            (bytes.checked_mul(u64::from(ranks)).ok_or(SubmissionError::Range)?, bytes)
        }
        Reduced::ReduceScatter { table: address } => {
            let mut table = vec![0; 8 * ranks as usize];
            memory.read(address, &mut table).map_err(|error| SubmissionError::Table { address, error })?;
            let blocks: Vec<u64> = table.as_chunks::<8>().0.iter().map(|block| u64::from_le_bytes(*block)).collect();
            let all = blocks.iter().try_fold(0u64, |sum, block| sum.checked_add(*block));
            return Ok((all.ok_or(SubmissionError::Range)?, blocks[me as usize], table));
        }
    };
    Ok((sent, received, Vec::new()))
}

/// The blocks of each buffer of a table, by rank, and the table for blocks without gaps between them. The buffers begin at
/// `starts`.
fn lists<const N: usize>(
    address: u64,
    starts: [u64; N],
    ranks: u32,
    memory: &dyn RankMemory,
) -> Result<([Vec<Piece>; N], Vec<u8>), SubmissionError> {
    let ranks = ranks as usize;
    let mut table = vec![0; N * 2 * 8 * ranks];
    memory.read(address, &mut table).map_err(|error| SubmissionError::Table { address, error })?;
    let mut numbers: Vec<u64> = table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    let mut lists = [const { Vec::new() }; N];
    for ((list, half), start) in lists.iter_mut().zip(numbers.chunks_exact_mut(2 * ranks)).zip(starts) {
        let (bytes, offsets) = half.split_at_mut(ranks);
        let mut packed = 0u64;
        for (bytes, offset) in bytes.iter().zip(offsets) {
            // An empty block lies nowhere, whatever its offset.
            let place = if *bytes == 0 { Some(start) } else { start.checked_add(*offset) };
            list.push((place.ok_or(SubmissionError::Range)?, *bytes));
            *offset = packed;
            packed = packed.checked_add(*bytes).ok_or(SubmissionError::Range)?;
        }
    }
    Ok((lists, numbers.iter().flat_map(|number| number.to_le_bytes()).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_shm::memory::MemfdRanges;
    use outboard_shm::region::Region;

    fn memory(content: &[u8]) -> MemfdRanges {
        let region = Region::create("test", 4096).expect("memory");
        region.write(0, content);
        let ranges = MemfdRanges::default();
        ranges.register(0x1000, 4096, region.fd().try_clone_to_owned().expect("a descriptor")).expect("free");
        ranges
    }

    #[test]
    fn an_allgather_in_place_sends_its_own_block() {
        let entry = AllgatherEntry {
            group: 1,
            instance: 1,
            slot: 0,
            in_place: true,
            send: 0,
            receive: 0x5000,
            bytes_per_rank: 16,
        };
        let found = Submission::of(&Entry::Allgather(entry), (4, 2), None, &memory(&[])).expect("fits");
        assert_eq!((&found.input, &found.output), (&vec![(0x5020, 16)], &vec![(0x5000, 64)]));
        let mut moved = found;
        moved.moved(0x1000, 0x2000);
        assert_eq!((moved.input, moved.output), (vec![(0x1000, 16)], vec![(0x2000, 64)]));
        let wide = Entry::Allgather(AllgatherEntry { bytes_per_rank: 1 << 62, ..entry });
        assert_eq!(Submission::of(&wide, (4, 2), None, &memory(&[])), Err(SubmissionError::Range));
    }

    #[test]
    fn only_the_root_of_a_broadcast_sends() {
        let entry = Entry::Broadcast(BroadcastEntry { group: 1, instance: 1, slot: 0, root: 1, buffer: 64, bytes: 9 });
        let root = Submission::of(&entry, (3, 1), None, &memory(&[])).expect("fits");
        assert_eq!((bytes_of(&root.input), bytes_of(&root.output)), (9, 0));
        let leaf = Submission::of(&entry, (3, 0), None, &memory(&[])).expect("fits");
        assert_eq!((bytes_of(&leaf.input), bytes_of(&leaf.output)), (0, 9));
    }

    #[test]
    fn a_reduction_in_place_sends_all_and_receives_its_part() {
        let table: Vec<u8> = [8u64, 0, 16].iter().flat_map(|n| n.to_le_bytes()).collect();
        let whole = ReductionEntry {
            group: 1,
            instance: 1,
            slot: 0,
            result: Reduced::Allreduce { bytes: 24 },
            code: 0x010c,
            in_place: true,
            send: 0,
            receive: 0x9000,
        };
        let scatter = ReductionEntry { result: Reduced::ReduceScatter { table: 0x1000 }, ..whole };
        for (entry, received, carried) in [(whole, 24, &[][..]), (scatter, 16, &table)] {
            let found = Submission::of(&Entry::Reduction(entry), (3, 2), None, &memory(&table)).expect("readable");
            assert_eq!((&found.input, &found.output), (&vec![(0x9000, 24)], &vec![(0x9000, received)]));
            assert_eq!(found.table, carried);
        }
        let wide = ReductionEntry { result: Reduced::ReduceScatterBlock { bytes: 1 << 63 }, ..whole };
        let refused = Submission::of(&Entry::Reduction(wide), (3, 2), None, &memory(&table));
        assert_eq!(refused, Err(SubmissionError::Range));
    }

    #[test]
    fn blocks_are_carried_without_the_gaps_between_them() {
        // Bytes to send, their offsets, bytes to receive, their offsets.
        let table: Vec<u8> = [3u64, 5, 100, 40, 7, 0, 10, 500].iter().flat_map(|n| n.to_le_bytes()).collect();
        let blocks = BlockSizes::Table { address: 0x1000 };
        let entry =
            Entry::Alltoall(AlltoallEntry { group: 1, instance: 1, slot: 0, send: 0x8000, receive: 0x9000, blocks });
        let found = Submission::of(&entry, (2, 0), None, &memory(&table)).expect("readable");
        assert_eq!(found.input, [(0x8000 + 100, 3), (0x8000 + 40, 5)]);
        assert_eq!(found.output, [(0x9000 + 10, 7)]);
        let packed: Vec<u8> = [3u64, 5, 0, 3, 7, 0, 0, 7].iter().flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(found.table, packed);
        let far = BlockSizes::Table { address: 0x9_0000 };
        let entry = Entry::Alltoall(AlltoallEntry { group: 1, instance: 1, slot: 0, send: 0, receive: 0, blocks: far });
        assert!(matches!(Submission::of(&entry, (2, 0), None, &memory(&table)), Err(SubmissionError::Table { .. })));
    }

    /// The root has the blocks of all on one side, and its own on the other unless it stays in place; others have one block.
    #[test]
    fn a_gather_carries_the_own_block_in_place_and_a_scatter_does_not() {
        let table: Vec<u8> = [3u64, 0, 7, 40, 999, 500].iter().flat_map(|n| n.to_le_bytes()).collect();
        let packed: Vec<u8> = [3u64, 0, 7, 0, 3, 3].iter().flat_map(|n| n.to_le_bytes()).collect();
        let (send, receive, many) = (0x8000, 0x9000, [(40, 3), (500, 7)]);
        let of = |direction, in_place, root, blocks| {
            let entry =
                RootedEntry { group: 1, instance: 1, slot: 0, direction, root, in_place, send, receive, blocks };
            let found = Submission::of(&Entry::Rooted(entry), (3, 2), None, &memory(&table)).expect("readable");
            (found.input, found.output, found.table)
        };
        let at = |start: u64| many.map(|(offset, bytes)| (start + offset, bytes)).to_vec();
        let (uneven, even, none) = (RootedBlocks::Table { address: 0x1000 }, RootedBlocks::Even { bytes: 8 }, Vec::new);
        let (gather, scatter) = (Direction::Gather, Direction::Scatter);
        assert_eq!(of(gather, false, 2, uneven), (vec![(send, 7)], at(receive), packed.clone()));
        assert_eq!(of(gather, true, 2, uneven), (vec![(receive + 500, 7)], at(receive), packed.clone()));
        assert_eq!(of(scatter, false, 2, uneven), (at(send), vec![(receive, 7)], packed.clone()));
        assert_eq!(of(scatter, true, 2, uneven), (at(send), vec![], packed));
        assert_eq!(of(gather, true, 2, even), (vec![(receive + 16, 8)], vec![(receive, 24)], none()));
        assert_eq!(of(scatter, false, 2, even), (vec![(send, 24)], vec![(receive, 8)], none()));
        let own = RootedBlocks::Own { bytes: 5 };
        assert_eq!(of(gather, false, 0, own), (vec![(send, 5)], vec![], none()));
        assert_eq!(of(scatter, false, 0, own), (vec![], vec![(receive, 5)], none()));
    }

    #[test]
    fn an_uneven_allgather_sends_one_block_and_receives_all() {
        let table: Vec<u8> = [3u64, 0, 7, 40, 999, 500].iter().flat_map(|n| n.to_le_bytes()).collect();
        for (in_place, own) in [(false, 0x8000), (true, 0x9000 + 500)] {
            let (send, receive, at) = (0x8000, 0x9000, 0x1000);
            let entry = AllgathervEntry { group: 1, instance: 1, slot: 0, in_place, send, receive, table: at };
            let found = Submission::of(&Entry::Allgatherv(entry), (3, 2), None, &memory(&table)).expect("readable");
            assert_eq!(found.input, [(own, 7)]);
            assert_eq!(found.output, [(0x9000 + 40, 3), (0x9000 + 500, 7)]);
            let packed: Vec<u8> = [3u64, 0, 7, 0, 3, 3].iter().flat_map(|n| n.to_le_bytes()).collect();
            assert_eq!(found.table, packed);
        }
    }
}
