//! Gathers and scatters: one rank has a block of every rank, the others have one.
//!
//! Exchanges without a barrier (SP-5): nobody but the root waits for anybody but the root.

use std::sync::Arc;

use super::{BlockList, Contribution, Group, Placed, length};
use crate::error::Error;
use crate::request::Request;
use crate::staging::{Buffers, Pieces};
use outboard_shm::entry::{Direction, Entry, RootedBlocks, RootedEntry};

/// Where a rank receives its block of a scatter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// In a buffer of its own.
    At(*mut u8),
    /// The root's block stays where it is in the send buffer, as with `MPI_IN_PLACE`.
    InPlace,
}

/// What all gathers and scatters say.
struct Call {
    direction: Direction,
    root: u32,
    in_place: bool,
}

impl Group {
    /// Whether the group's agreed configuration offloads a gather or scatter of blocks of this size: equal on all ranks.
    /// Those of blocks of different sizes are offloaded where [alltoallvs](Group::offloads_alltoallv) are.
    pub fn offloads_gather(&self, bytes_per_rank: u64) -> bool {
        self.offloads_allgather(bytes_per_rank)
    }

    /// Posts a gather: `bytes_per_rank` bytes of each rank come to rank `root`, in the order of ranks at its `receive`, which
    /// counts there alone. Only the root can contribute in place. Never blocks; a rank that is not the root ends when its
    /// block has been read, whether or not others have called.
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn igather(
        &self,
        root: u32,
        contribution: Contribution,
        receive: *mut u8,
        bytes_per_rank: u64,
    ) -> Result<Request, Error> {
        let in_place = contribution == Contribution::InPlace;
        let call = self.rooted(Direction::Gather, root, in_place)?;
        let buffers = if self.rank == root {
            self.buffers(contribution, receive, bytes_per_rank)?
        } else {
            sent(contribution, bytes_per_rank)?
        };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post_rooted(call, &buffers, Some(bytes_per_rank), &[]) }
    }

    /// Posts a scatter: block `i` of `bytes_per_rank` bytes at `send` of rank `root` goes to rank `i`; `send` counts there
    /// alone, and only there the block can stay in place. Never blocks; a rank waits for nobody but the root, and the root for
    /// nobody.
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn iscatter(
        &self,
        root: u32,
        send: *const u8,
        destination: Destination,
        bytes_per_rank: u64,
    ) -> Result<Request, Error> {
        let call = self.rooted(Direction::Scatter, root, destination == Destination::InPlace)?;
        let mut buffers = received(destination, bytes_per_rank)?;
        if self.rank == root {
            buffers = buffers.sending(send, self.length_of_all(bytes_per_rank, "bytes_per_rank")?)?;
        }
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post_rooted(call, &buffers, Some(bytes_per_rank), &[]) }
    }

    /// Posts a gather of blocks of different sizes: the `bytes` of this rank come to rank `root`, where block `i` of `received`
    /// is of rank `i`; both must name the same bytes. What lies between the blocks is left alone. Otherwise as
    /// [`Group::igather`]; of a contribution in place `bytes` does not count.
    ///
    /// # Errors
    /// As of [`Group::iallgather`]; a list that does not have one entry for each rank, and a root without one, is an
    /// [`Error::Argument`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`], of all blocks; no two blocks share a byte.
    pub unsafe fn igatherv(
        &self,
        root: u32,
        (contribution, bytes): (Contribution, u64),
        (receive, received): (*mut u8, Option<BlockList<'_>>),
    ) -> Result<Request, Error> {
        let call = self.rooted(Direction::Gather, root, contribution == Contribution::InPlace)?;
        if self.rank != root {
            let buffers = sent(contribution, bytes)?;
            // SAFETY: the caller's promise about the buffers.
            return unsafe { self.post_rooted(call, &buffers, None, &[]) };
        }
        let list = self.list_of_root(received, "receive")?;
        let (pieces, receive_bytes) = list.pieces(self.ranks, "receive")?;
        let (place, own) = self.own(list, (!call.in_place).then_some(bytes), "receive")?;
        let mut buffers = contribution.part_of(Buffers::NONE.receiving(receive, receive_bytes)?, place, own)?;
        let contribution = vec![(0, buffers.bytes_per_rank)];
        buffers.pieces = Some(Arc::new(Pieces::Blocks { contribution, receive: pieces }));
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post_rooted(call, &buffers, None, &[list.bytes, list.offsets].concat()) }
    }

    /// Posts a scatter of blocks of different sizes: block `i` of `sent` of rank `root` goes to rank `i`, which expects `bytes`;
    /// both must name the same. Otherwise as [`Group::iscatter`]; where the root's block stays in place `bytes` does not count.
    ///
    /// # Errors
    /// As of [`Group::igatherv`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`], of all blocks.
    pub unsafe fn iscatterv(
        &self,
        root: u32,
        (send, sent): (*const u8, Option<BlockList<'_>>),
        (destination, bytes): (Destination, u64),
    ) -> Result<Request, Error> {
        let call = self.rooted(Direction::Scatter, root, destination == Destination::InPlace)?;
        let mut buffers = received(destination, bytes)?;
        if self.rank != root {
            // SAFETY: the caller's promise about the buffers.
            return unsafe { self.post_rooted(call, &buffers, None, &[]) };
        }
        let list = self.list_of_root(sent, "send")?;
        let (contribution, send_bytes) = list.pieces(self.ranks, "send")?;
        self.own(list, (!call.in_place).then_some(bytes), "send")?;
        buffers = buffers.sending(send, send_bytes)?;
        let receive = vec![(0, buffers.receive_bytes)];
        buffers.pieces = Some(Arc::new(Pieces::Blocks { contribution, receive }));
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post_rooted(call, &buffers, None, &[list.bytes, list.offsets].concat()) }
    }

    /// Checks what all gathers and scatters have.
    fn rooted(&self, direction: Direction, root: u32, in_place: bool) -> Result<Call, Error> {
        self.check_root(root)?;
        if in_place && self.rank != root {
            let argument = if direction == Direction::Gather { "send" } else { "receive" };
            return Err(Error::argument(argument, format!("is in place: only on the root, rank {root}, it can be")));
        }
        Ok(Call { direction, root, in_place })
    }

    fn list_of_root<'a>(&self, list: Option<BlockList<'a>>, argument: &'static str) -> Result<BlockList<'a>, Error> {
        let problem = || format!("has no blocks: rank {}, the root, gives those of all ranks", self.rank);
        list.ok_or_else(|| Error::argument(argument, problem()))
    }

    /// Place and bytes of the root's own block of a checked list; where it moves, the root has said how many `bytes` it has.
    fn own(&self, list: BlockList<'_>, bytes: Option<u64>, argument: &'static str) -> Result<(usize, usize), Error> {
        let (own, place) = (list.bytes[self.rank as usize], list.offsets[self.rank as usize]);
        if let Some(bytes) = bytes.filter(|bytes| *bytes != own) {
            let problem = format!("names {own} bytes of the root itself, whose own buffer has {bytes}");
            return Err(Error::argument(argument, problem));
        }
        // Of a block with bytes the place fits, as checked; of another nothing is used.
        Ok(if own > 0 { (place as usize, own as usize) } else { (0, 0) })
    }

    /// Posts with `even` bytes per block, or the `table` of the root, or the one block of another rank.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn post_rooted(
        &self,
        call: Call,
        buffers: &Buffers,
        even: Option<u64>,
        table: &[u64],
    ) -> Result<Request, Error> {
        let Call { direction, root, in_place } = call;
        let one = match direction {
            Direction::Gather => buffers.bytes_per_rank,
            Direction::Scatter => buffers.receive_bytes,
        };
        let is_root = self.rank == root;
        let entry = |place: Placed| {
            let Placed { group, instance, slot, send, receive, table } = place;
            let blocks = match even {
                Some(bytes) => RootedBlocks::Even { bytes },
                None if is_root => RootedBlocks::Table { address: table },
                None => RootedBlocks::Own { bytes: one as u64 },
            };
            Entry::Rooted(RootedEntry { group, instance, slot, direction, root, in_place, send, receive, blocks })
        };
        // SAFETY: the caller's promise.
        unsafe { self.post(buffers, table, entry) }
    }
}

/// One block to send and nothing to receive.
fn sent(contribution: Contribution, bytes: u64) -> Result<Buffers, Error> {
    match contribution {
        Contribution::At(send) => Buffers::NONE.sending(send, length(bytes, "bytes")?),
        Contribution::InPlace => Ok(Buffers::NONE),
    }
}

/// One block to receive and nothing to send.
fn received(destination: Destination, bytes: u64) -> Result<Buffers, Error> {
    match destination {
        Destination::At(receive) => Buffers::NONE.receiving(receive, length(bytes, "bytes")?),
        Destination::InPlace => Ok(Buffers::NONE),
    }
}
