//! Spans of a call's buffers, one block for each rank.
//!
//! Invariant of [`Extents`]: blocks lie one after another, and all together fit 64 bits. Entries of [`Blocks`] may be
//! hostile until [`Blocks::check`] has accepted them.

use std::fmt;
use std::sync::Arc;

use thiserror::Error;

use crate::rank::{MAX_RANKS, Rank};

/// The buffer of a rank that a span lies in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Buffer {
    /// The rank's contribution. Absent (length 0) when the call is in place.
    Input,
    Output,
    /// Working memory of the engine, not of the program.
    Scratch,
}

/// `len` bytes from `offset` of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Span {
    pub buffer: Buffer,
    pub offset: u64,
    /// Bytes. May be 0: a message of no bytes is a signal.
    pub len: u64,
}

impl Span {
    /// `len` bytes from `offset` of `Input`.
    pub const fn input(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Input, offset, len }
    }

    /// `len` bytes from `offset` of `Output`.
    pub const fn output(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Output, offset, len }
    }

    /// `len` bytes from `offset` of `Scratch`.
    pub const fn scratch(offset: u64, len: u64) -> Self {
        Self { buffer: Buffer::Scratch, offset, len }
    }

    /// The span of a signal: no bytes, in a buffer that every rank has.
    pub const fn signal() -> Self {
        Self::scratch(0, 0)
    }

    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The offset behind the last byte, or `None` if that offset exceeds 64 bits.
    pub const fn end(&self) -> Option<u64> {
        self.offset.checked_add(self.len)
    }
}

impl fmt::Display for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Buffer::Input => "input",
            Buffer::Output => "output",
            Buffer::Scratch => "scratch",
        })
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // 128 bits, because the end of an unverified span may exceed 64 bits.
        let end = u128::from(self.offset) + u128::from(self.len);
        write!(f, "{}[{}..{}]", self.buffer, self.offset, end)
    }
}

/// The sizes of all ranks' blocks, and the place of each in `Output`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Extents(ExtentTable);

#[derive(Debug, Clone, PartialEq, Eq)]
enum ExtentTable {
    Even {
        ranks: u32,
        bytes: u64,
    },
    /// The start of each block, and the end of the last.
    Uneven(Arc<[u64]>),
}

impl Extents {
    /// Blocks of `bytes` each; `None` if together they exceed 64 bits.
    #[must_use]
    pub fn even(ranks: u32, bytes: u64) -> Option<Extents> {
        bytes.checked_mul(ranks.into())?;
        Some(Extents(ExtentTable::Even { ranks, bytes }))
    }

    /// Blocks of these bytes, by rank; `None` if together they exceed 64 bits or there are more than [`MAX_RANKS`].
    #[must_use]
    pub fn uneven(bytes: impl IntoIterator<Item = u64>) -> Option<Extents> {
        let mut starts = vec![0u64];
        for bytes in bytes {
            starts.push(starts.last()?.checked_add(bytes)?);
        }
        (starts.len() <= MAX_RANKS as usize + 1).then(|| Extents(ExtentTable::Uneven(starts.into())))
    }

    #[must_use]
    pub fn ranks(&self) -> u32 {
        match &self.0 {
            ExtentTable::Even { ranks, .. } => *ranks,
            ExtentTable::Uneven(starts) => starts.len() as u32 - 1,
        }
    }

    /// The span of the block of `rank` in `Output`.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn block(&self, rank: Rank) -> Span {
        match &self.0 {
            ExtentTable::Even { ranks, bytes } => {
                assert!(rank.0 < *ranks, "{rank} of {ranks}");
                Span::output(u64::from(rank.0) * bytes, *bytes)
            }
            ExtentTable::Uneven(starts) => {
                let (start, end) = (starts[rank.0 as usize], starts[rank.0 as usize + 1]);
                Span::output(start, end - start)
            }
        }
    }

    /// The rank whose block holds byte `offset` of `Output`.
    #[must_use]
    pub fn rank_at(&self, offset: u64) -> Rank {
        match &self.0 {
            ExtentTable::Even { bytes, .. } => Rank((offset / (*bytes).max(1)) as u32),
            ExtentTable::Uneven(starts) => Rank(starts.partition_point(|start| *start <= offset) as u32 - 1),
        }
    }

    #[must_use]
    pub fn total(&self) -> u64 {
        match &self.0 {
            ExtentTable::Even { ranks, bytes } => u64::from(*ranks) * bytes,
            ExtentTable::Uneven(starts) => *starts.last().expect("there is always an end"),
        }
    }

    /// Bytes of each block, by rank.
    pub fn sizes(&self) -> impl Iterator<Item = u64> + '_ {
        (0..self.ranks()).map(|rank| self.block(Rank(rank)).len)
    }
}

/// The bytes that one rank exchanges with each rank of the group, itself included.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blocks {
    /// Spans of `Input`, by destination.
    pub send: Vec<Span>,
    /// Spans of `Output`, by source. No two spans share a byte.
    pub receive: Vec<Span>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum BlocksError {
    #[error("blocks of {rank} among {ranks} ranks: a group has 1 to {MAX_RANKS} ranks, which count from 0")]
    Ranks { rank: Rank, ranks: u32 },
    #[error("{send} blocks to send and {receive} to receive among {ranks} ranks: give one of each for every rank")]
    Count { send: usize, receive: usize, ranks: u32 },
    #[error("{rank} sends itself {send} bytes and receives {receive} from itself: make both equal")]
    Own { rank: Rank, send: u64, receive: u64 },
    #[error("a block of {len} bytes at {offset} exceeds the address space")]
    Range { offset: u64, len: u64 },
}

impl Blocks {
    /// Blocks of `bytes` each for each of `ranks`, in the order of ranks; `None` if together they exceed 64 bits.
    #[must_use]
    pub fn even(ranks: u32, bytes: u64) -> Option<Blocks> {
        bytes.checked_mul(ranks.into())?;
        let spans = |span: fn(u64, u64) -> Span| (0..u64::from(ranks)).map(|at| span(at * bytes, bytes)).collect();
        Some(Blocks { send: spans(Span::input), receive: spans(Span::output) })
    }

    /// The blocks of `rank` in a gather at `root`. Each rank contributes `bytes`. The root holds the blocks in the
    /// order of ranks; the root's own block moves only with `own`. `None` if the blocks exceed 64 bits together.
    #[must_use]
    pub fn gather(ranks: u32, root: Rank, rank: Rank, bytes: u64, own: bool) -> Option<Blocks> {
        let (many, one) = rooted(ranks, root, rank, bytes, own)?;
        Some(Blocks { send: spans(one, Span::input), receive: spans(many, Span::output) })
    }

    /// The blocks of `rank` in a scatter from `root`. Arguments and result are like the arguments and result of
    /// [`Blocks::gather`].
    #[must_use]
    pub fn scatter(ranks: u32, root: Rank, rank: Rank, bytes: u64, own: bool) -> Option<Blocks> {
        let (many, one) = rooted(ranks, root, rank, bytes, own)?;
        Some(Blocks { send: spans(many, Span::input), receive: spans(one, Span::output) })
    }

    /// Whether these blocks fit `rank` in a gather at `root`: only the root receives, and all send to the root alone.
    #[must_use]
    pub fn fit_gather(&self, root: Rank, rank: Rank) -> bool {
        empty_except(&self.send, root) && (rank == root || self.receive.iter().all(|span| span.is_empty()))
    }

    /// Whether these blocks fit `rank` in a scatter from `root`: only the root sends, all receive from the root alone.
    #[must_use]
    pub fn fit_scatter(&self, root: Rank, rank: Rank) -> bool {
        empty_except(&self.receive, root) && (rank == root || self.send.iter().all(|span| span.is_empty()))
    }

    /// Bytes of `Input` and of `Output` up to the end of the last block.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let end = |spans: &[Span]| spans.iter().filter(|s| !s.is_empty()).filter_map(Span::end).max().unwrap_or(0);
        (end(&self.send), end(&self.receive))
    }

    /// Whether `rank` of `ranks` can exchange these blocks.
    ///
    /// # Errors
    /// The first defect; see [`BlocksError`].
    pub fn check(&self, ranks: u32, rank: Rank) -> Result<(), BlocksError> {
        let Blocks { send, receive } = self;
        if ranks == 0 || ranks > MAX_RANKS || rank.0 >= ranks {
            return Err(BlocksError::Ranks { rank, ranks });
        }
        if send.len() != ranks as usize || receive.len() != ranks as usize {
            return Err(BlocksError::Count { send: send.len(), receive: receive.len(), ranks });
        }
        if let Some(&Span { offset, len, .. }) = send.iter().chain(receive).find(|span| span.end().is_none()) {
            return Err(BlocksError::Range { offset, len });
        }
        let (send, receive) = (send[rank.0 as usize].len, receive[rank.0 as usize].len);
        if send != receive {
            return Err(BlocksError::Own { rank, send, receive });
        }
        Ok(())
    }
}

/// Offset and bytes of each block.
type BlockRanges = Vec<(u64, u64)>;

/// The blocks of all ranks, which only the root has, and the block that every rank exchanges with the root.
fn rooted(ranks: u32, root: Rank, rank: Rank, bytes: u64, own: bool) -> Option<(BlockRanges, BlockRanges)> {
    bytes.checked_mul(ranks.into())?;
    let moves = |other: u32| own || rank != root || other != root.0;
    let place = |at: u64, has: bool| if has { (at, bytes) } else { (0, 0) };
    let many = (0..ranks).map(|other| place(u64::from(other) * bytes, rank == root && moves(other))).collect();
    let one = (0..ranks).map(|other| place(0, other == root.0 && moves(other))).collect();
    Some((many, one))
}

fn spans(ranges: BlockRanges, span: fn(u64, u64) -> Span) -> Vec<Span> {
    ranges.into_iter().map(|(offset, len)| span(offset, len)).collect()
}

/// Whether only the block of `root` has bytes.
fn empty_except(spans: &[Span], root: Rank) -> bool {
    spans.iter().zip(0..).all(|(span, other)| span.is_empty() || Rank(other) == root)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_lies_in_exactly_one_block() {
        let extents = Extents::uneven([0, 3, 0, 0, 2, 0]).unwrap();
        assert_eq!((0..extents.total()).map(|at| extents.rank_at(at).0).collect::<Vec<_>>(), [1, 1, 1, 4, 4]);
        assert_eq!(extents.sizes().collect::<Vec<_>>(), [0, 3, 0, 0, 2, 0]);
        assert_eq!(Extents::uneven([u64::MAX, 1]), None);
        let even = Extents::even(3, 2).unwrap();
        assert_eq!((0..6).map(|at| even.rank_at(at).0).collect::<Vec<_>>(), [0, 0, 1, 1, 2, 2]);
    }
}
