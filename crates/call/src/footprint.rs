//! The bytes that one rank's call reads and writes.
//!
//! Invariants: sizes, addresses and the numbers of the table are untrusted until this module has checked them. A
//! [`Footprint`] is valid, so its users check nothing again. Only [`Call::held_blocks`] and [`Call::in_place_at`]
//! treat kinds of calls differently.

use thiserror::Error;

use crate::blocks::{Blocks, BlocksError, Extents, Span};
use crate::call::Call;
use crate::kind::{BlockSizes, CallKind, CallMovement, ExchangePairs, TaggedCall};
use crate::rank::{MAX_RANKS, Rank};
use crate::signature::{Signature, sizes_digest};

/// The most requests that a rank has in flight.
pub const MOST_IN_FLIGHT: u32 = 1024;

/// The largest buffer that an address space can hold.
pub const MOST_BYTES: u64 = i64::MAX as u64;

/// Bytes of a rank's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryRange {
    pub address: u64,
    /// Bytes from `address` to the end of the last block.
    pub bytes: u64,
}

/// The bytes of a rank's memory that a call reads and writes, and the signature on which all ranks must agree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Footprint {
    pub signature: Signature,
    /// The rank's contribution, in place or not.
    pub reads: MemoryRange,
    /// The bytes that the rank receives.
    pub writes: MemoryRange,
    /// Offset of the contribution in the receive buffer, if it lies there.
    pub in_place_at: Option<u64>,
    /// The blocks on both sides, by rank, if their sizes differ. A rank sends one block in an allgatherv and receives
    /// one block in a reduce-scatter. A block that stays in place counts as empty.
    pub blocks: Option<Blocks>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum CallError {
    #[error("{bytes} bytes at {send:#x} and {receive:#x} are more than the address space holds")]
    Range { bytes: u64, send: u64, receive: u64 },
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    #[error("{bytes} bytes are not whole elements of {element} bytes")]
    Element { bytes: u64, element: u64 },
    #[error("{root} cannot be the root among {ranks} ranks; they count from 0")]
    Root { root: Rank, ranks: u32 },
    #[error("{peer} cannot be the other end of a message among {ranks} ranks; they count from 0")]
    Peer { peer: Rank, ranks: u32 },
    #[error("{rank} calls {kind} in place, which cannot be; of a gather, scatter or reduce the root alone can")]
    InPlace { kind: &'static str, rank: Rank },
    #[error(
        "{found} numbers in the table of blocks instead of {expected}; list bytes and offsets of each rank's block"
    )]
    Table { found: usize, expected: usize },
}

/// The blocks that a rank has on one side of its call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum HeldBlocks {
    Nothing,
    /// The rank's own block, or the block that it exchanges with the root.
    One,
    All,
}

impl HeldBlocks {
    /// Bytes of these blocks, if each has `bytes`.
    fn bytes(self, bytes: u64, ranks: u32) -> Option<u64> {
        match self {
            HeldBlocks::Nothing => Some(0),
            HeldBlocks::One => Some(bytes),
            HeldBlocks::All => bytes.checked_mul(ranks.into()),
        }
    }
}

impl Footprint {
    /// Bytes of the receive buffer: the written range, and the contribution if it lies in this buffer.
    #[must_use]
    pub fn output_bytes(&self) -> u64 {
        // No sum overflows: both ranges lie in the address space.
        self.in_place_at.map_or(0, |at| at + self.reads.bytes).max(self.writes.bytes)
    }

    /// Offset and bytes of each block that is read, within [`Self::reads`]; no such block is empty.
    pub fn read_pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        pieces(self.reads, self.blocks.as_ref().map(|blocks| &blocks.send[..]))
    }

    /// Offset and bytes of each block that is written, within [`Self::writes`]; no such block is empty.
    pub fn write_pieces(&self) -> impl Iterator<Item = (u64, u64)> {
        pieces(self.writes, self.blocks.as_ref().map(|blocks| &blocks.receive[..]))
    }
}

fn pieces(side: MemoryRange, blocks: Option<&[Span]>) -> impl Iterator<Item = (u64, u64)> {
    let whole = if blocks.is_none() { Some((0, side.bytes)) } else { None };
    let each = blocks.unwrap_or_default().iter().map(|span| (span.offset, span.len));
    whole.into_iter().chain(each).filter(|(_, bytes)| *bytes > 0)
}

impl CallKind {
    /// The sizes of all ranks' blocks, if the call has sizes on which all agree. `None` also if the sizes exceed 64
    /// bits together.
    #[must_use]
    pub fn extents(self, blocks: &Blocks) -> Option<Extents> {
        self.sizes()?;
        let spans = if self.reduction().is_some() { &blocks.send } else { &blocks.receive };
        Extents::uneven(spans.iter().map(|span| span.len))
    }

    /// The signature of a call with these blocks; `None` if the blocks exceed 64 bits together.
    #[must_use]
    pub fn signature_of(self, blocks: &Blocks) -> Option<Signature> {
        // Sizes that only pairs of ranks know are no part of the signature.
        if self.sizes().is_none() {
            return Some(Signature { kind: self, bytes: 0 });
        }
        let extents = self.extents(blocks)?;
        let sizes = sizes_digest(extents.sizes());
        let kind = match self {
            CallKind::ReduceScatter { reduction, .. } => CallKind::ReduceScatter { reduction, sizes },
            _ => CallKind::Allgatherv { sizes },
        };
        Some(Signature { kind, bytes: extents.total() })
    }
}

impl Call {
    /// The footprint of this call of `rank` among `ranks`. `table` holds the numbers at [`Call::table`], as many as
    /// [`Call::table_numbers`] returns.
    ///
    /// # Errors
    /// [`CallError`] names the first defect.
    pub fn footprint(&self, rank: Rank, ranks: u32, table: &[u64]) -> Result<Footprint, CallError> {
        if ranks == 0 || ranks > MAX_RANKS || rank.0 >= ranks {
            return Err(BlocksError::Ranks { rank, ranks }.into());
        }
        self.check_ranks(ranks)?;
        let held_blocks = self.held_blocks(rank);
        let expected = self.table_numbers(rank, ranks);
        if table.len() != expected {
            return Err(CallError::Table { found: table.len(), expected });
        }
        let range = |bytes| CallError::Range { bytes, send: self.send, receive: self.receive };
        let blocks = if self.is_even() { None } else { Some(self.blocks(rank, ranks, table)?) };
        let (sent, received) = match &blocks {
            None => {
                let [sent, received] =
                    held_blocks.map(|held_blocks| held_blocks.bytes(self.bytes, ranks).ok_or(range(self.bytes)));
                (sent?, received?)
            }
            Some(blocks) => blocks.bytes(),
        };
        let signature = self.signature(blocks.as_ref()).ok_or(range(u64::MAX))?;
        self.check_elements(signature.bytes, blocks.as_ref())?;
        let in_place_at = self.in_place_at(rank, blocks.as_ref())?;
        let bytes = sent.max(received).max(signature.bytes);
        let send = in_place_at.map_or(Some(self.send), |at| self.receive.checked_add(at)).ok_or(range(bytes))?;
        let (reads, writes) =
            (MemoryRange { address: send, bytes: sent }, MemoryRange { address: self.receive, bytes: received });
        let fits = |side: MemoryRange| side.bytes == 0 || side.address.checked_add(side.bytes).is_some();
        if bytes > MOST_BYTES || !fits(reads) || !fits(writes) {
            return Err(range(bytes));
        }
        Ok(Footprint { signature, reads, writes, in_place_at, blocks })
    }

    /// The length of this call's table at `rank` among `ranks`, in numbers.
    #[must_use]
    pub fn table_numbers(&self, rank: Rank, ranks: u32) -> usize {
        let lists = self
            .held_blocks(rank)
            .into_iter()
            .filter(|held_blocks| !self.is_even() && *held_blocks == HeldBlocks::All)
            .count();
        2 * lists * ranks as usize
    }

    /// The table that a relay sends for this call: `blocks` packed one after another on each side.
    #[must_use]
    pub fn packed_table(&self, rank: Rank, blocks: &Blocks) -> Vec<u64> {
        let sides = self.held_blocks(rank).into_iter().zip([&blocks.send, &blocks.receive]);
        let lists = sides.filter(|(held_blocks, _)| *held_blocks == HeldBlocks::All).flat_map(|(_, spans)| {
            let starts = spans.iter().scan(0, |end: &mut u64, span| {
                *end += span.len;
                Some(*end - span.len)
            });
            spans.iter().map(|span| span.len).chain(starts)
        });
        lists.collect()
    }

    fn is_even(&self) -> bool {
        matches!(self.kind.class().sizes, BlockSizes::Whole | BlockSizes::Even)
    }

    /// Checks that all ranks in the call belong to the group.
    fn check_ranks(&self, ranks: u32) -> Result<(), CallError> {
        match (self.kind, self.kind.root()) {
            (_, Some(root)) if root.0 >= ranks => Err(CallError::Root { root, ranks }),
            (CallKind::Tagged(TaggedCall::Send { to: peer, .. } | TaggedCall::Receive { from: peer, .. }), _)
                if peer.0 >= ranks =>
            {
                Err(CallError::Peer { peer, ranks })
            }
            _ => Ok(()),
        }
    }

    /// The blocks that `rank` sends, and the blocks that `rank` receives.
    fn held_blocks(&self, rank: Rank) -> [HeldBlocks; 2] {
        use HeldBlocks::{All, Nothing, One};
        let all_at = |root| if rank == root { All } else { Nothing };
        let own = if self.in_place { Nothing } else { One };
        match self.kind {
            CallKind::Allgather | CallKind::Allgatherv { .. } => [One, All],
            CallKind::Broadcast { root } if rank == root => [One, Nothing],
            CallKind::Broadcast { .. } => [Nothing, One],
            CallKind::Alltoall | CallKind::Alltoallv => [All, All],
            CallKind::Gather { root } => [One, all_at(root)],
            CallKind::Gatherv { root } => [own, all_at(root)],
            CallKind::Scatter { root } | CallKind::Scatterv { root } => [all_at(root), own],
            CallKind::Barrier => [Nothing, Nothing],
            CallKind::Reduce { root, .. } => [One, if rank == root { One } else { Nothing }],
            CallKind::Allreduce { .. } => [One, One],
            CallKind::ReduceScatter { .. } | CallKind::ReduceScatterBlock { .. } => [All, One],
            CallKind::Scan { inclusive, .. } => [One, if inclusive || rank != Rank(0) { One } else { Nothing }],
            CallKind::Tagged(TaggedCall::Send { .. }) => [One, Nothing],
            CallKind::Tagged(TaggedCall::Receive { .. } | TaggedCall::Recorded { .. }) => [Nothing, One],
        }
    }

    /// Offset of the contribution in the receive buffer, if the contribution lies there. In a gather or scatter of
    /// blocks of different sizes an in-place block is not moved at all.
    fn in_place_at(&self, rank: Rank, blocks: Option<&Blocks>) -> Result<Option<u64>, CallError> {
        if !self.in_place {
            return Ok(None);
        }
        let own = || match blocks {
            // No overflow: the bytes of all blocks together were checked before.
            None => u64::from(rank.0) * self.bytes,
            Some(blocks) => blocks.receive[rank.0 as usize].offset,
        };
        match (self.kind.class().moves, self.kind.root()) {
            (CallMovement::ToAll, None) => Ok(Some(own())),
            (CallMovement::Combined(_), None) => Ok(Some(0)),
            (CallMovement::Combined(_), Some(root)) if root == rank => Ok(Some(0)),
            (CallMovement::Blocks(ExchangePairs::To(root)), _) if root == rank && blocks.is_none() => Ok(Some(own())),
            (CallMovement::Blocks(ExchangePairs::To(root) | ExchangePairs::From(root)), _) if root == rank => Ok(None),
            _ => Err(CallError::InPlace { kind: self.kind.name(), rank }),
        }
    }

    /// The blocks of a call whose blocks differ in size.
    fn blocks(&self, rank: Rank, ranks: u32, table: &[u64]) -> Result<Blocks, CallError> {
        let [sends, receives] = self.held_blocks(rank);
        let mut lists = table.chunks_exact(2 * ranks as usize);
        let mut list = |held_blocks| match held_blocks {
            HeldBlocks::All => lists.next().map_or(Ok(Vec::new()), |list| self.places(rank, list)),
            HeldBlocks::Nothing | HeldBlocks::One => Ok(Vec::new()),
        };
        let (sent, received) = (list(sends)?, list(receives)?);
        let paired = matches!(self.kind.class().sizes, BlockSizes::Paired);
        let own = |others: &[(u64, u64)]| others.get(rank.0 as usize).map_or(0, |(_, bytes)| *bytes);
        let side =
            |held_blocks, places: &[(u64, u64)], others: &[(u64, u64)], span: fn(u64, u64) -> Span| match held_blocks {
                HeldBlocks::All => places.iter().map(|(offset, bytes)| span(*offset, *bytes)).collect(),
                HeldBlocks::One if !paired => vec![span(0, own(others))],
                HeldBlocks::One | HeldBlocks::Nothing => {
                    let bytes = |other| held_blocks == HeldBlocks::One && self.kind.root() == Some(Rank(other));
                    (0..ranks).map(|other| span(0, if bytes(other) { self.bytes } else { 0 })).collect()
                }
            };
        let blocks = Blocks {
            send: side(sends, &sent, &received, Span::input),
            receive: side(receives, &received, &sent, Span::output),
        };
        if paired {
            blocks.check(ranks, rank)?;
        }
        Ok(blocks)
    }

    /// Offset and bytes of each block of a list; an empty block counts as offset 0, whatever its entry.
    fn places(&self, rank: Rank, list: &[u64]) -> Result<Vec<(u64, u64)>, CallError> {
        let (bytes, offsets) = list.split_at(list.len() / 2);
        let stays =
            |other: usize| self.in_place && self.kind.root() == Some(Rank(other as u32)) && other == rank.0 as usize;
        let adjacent = matches!(self.kind, CallKind::ReduceScatter { .. });
        let mut end = 0;
        let place = |(other, (&bytes, &offset)): (usize, (&u64, &u64))| {
            let (offset, bytes) = match (if adjacent { end } else { offset }, bytes) {
                (_, bytes) if bytes == 0 || stays(other) => (0, 0),
                place => place,
            };
            let behind = offset.checked_add(bytes).filter(|behind| *behind <= MOST_BYTES);
            end = if bytes > 0 { behind.unwrap_or(end) } else { end };
            let error = CallError::Range { bytes, send: self.send, receive: self.receive };
            behind.map(|_| (offset, bytes)).ok_or(error)
        };
        bytes.iter().zip(offsets).enumerate().map(place).collect()
    }

    /// The signature; `None` if the blocks exceed 64 bits together.
    fn signature(&self, blocks: Option<&Blocks>) -> Option<Signature> {
        match blocks {
            Some(blocks) => self.kind.signature_of(blocks),
            None if self.kind == CallKind::Barrier => Some(Signature { kind: self.kind, bytes: 0 }),
            None => Some(Signature { kind: self.kind, bytes: self.bytes }),
        }
    }

    /// Checks that vectors and blocks of a reduction are whole elements.
    fn check_elements(&self, bytes: u64, blocks: Option<&Blocks>) -> Result<(), CallError> {
        let Some(reduction) = self.kind.reduction() else { return Ok(()) };
        let element = reduction.element().bytes();
        let blocks = blocks.iter().flat_map(|blocks| blocks.send.iter().map(|span| span.len));
        match blocks.chain([bytes]).find(|bytes| !bytes.is_multiple_of(element)) {
            Some(bytes) => Err(CallError::Element { bytes, element }),
            None => Ok(()),
        }
    }
}
