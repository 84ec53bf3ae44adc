//! Gathers and scatters: the root has one block for each rank, the other ranks have one block.
//!
//! These are exchanges without a barrier (SP-5): ranks other than the root wait only for the root.

use super::{BlockList, Contribution, Group};
use crate::error::Error;
use crate::request::Request;
use outboard_call::{Call, CallKind, Rank};

/// The place where a rank receives its block of a scatter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// In a separate buffer.
    At(*mut u8),
    /// The root's block stays in place in the send buffer, as with `MPI_IN_PLACE`.
    InPlace,
}

impl Group {
    /// Posts a gather: `bytes_per_rank` bytes of each rank go to `receive` of rank `root`, in the order of ranks. Other
    /// ranks' `receive` is ignored, and only the root can contribute in place. Never blocks; a rank that is not the
    /// ranks' `receive` is ignored, and only the root can contribute in place. Never blocks; a rank that is not the
    /// root ends when its block has been read, whether or not other ranks have called.
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn igather(
        &self,
        root: u32,
        contribution: Contribution,
        receive: *mut u8,
        bytes_per_rank: u64,
    ) -> Result<Request, Error> {
        let call = Call { bytes: bytes_per_rank, ..Call::new(CallKind::Gather { root: Rank(root) }) };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(call, contribution, Destination::At(receive), &[], "bytes_per_rank") }
    }

    /// Posts a scatter: block `i` of `bytes_per_rank` bytes at `send` of rank `root` goes to rank `i`. Other ranks'
    /// `send` is ignored, and only the root's block can stay in place. Never blocks; a rank waits only for the root,
    /// and the root waits for no rank.
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
        let call = Call { bytes: bytes_per_rank, ..Call::new(CallKind::Scatter { root: Rank(root) }) };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(call, Contribution::At(send), destination, &[], "bytes_per_rank") }
    }

    /// Posts a gather of blocks of different sizes: the `bytes` of rank `i` go to block `i` of `received` at rank
    /// `root`; rank and root must name the same size. Gaps between the blocks stay untouched. Otherwise as
    /// [`Group::igather`]; `bytes` is ignored for a contribution in place.
    ///
    /// # Errors
    /// As for [`Group::iallgather`]; [`Error::Argument`] for a list without one entry for each rank, and for a root
    /// without a list.
    ///
    /// # Safety
    /// As for [`Group::iallgather`], for all blocks; no two blocks share a byte.
    pub unsafe fn igatherv(
        &self,
        root: u32,
        contribution: Contribution,
        bytes: u64,
        receive: *mut u8,
        received: Option<BlockList<'_>>,
    ) -> Result<Request, Error> {
        let call = Call { bytes, ..Call::new(CallKind::Gatherv { root: Rank(root) }) };
        let table = &self.table_of_root(root, received, "receive")?;
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, contribution, Destination::At(receive), table, "receive") }
    }

    /// Posts a scatter of blocks of different sizes: block `i` of `sent` of rank `root` goes to rank `i`, which expects
    /// `bytes`; root and rank must name the same size. Otherwise as [`Group::iscatter`]; `bytes` is ignored if the
    /// root's block stays in place.
    ///
    /// # Errors
    /// As for [`Group::igatherv`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`], for all blocks.
    pub unsafe fn iscatterv(
        &self,
        root: u32,
        send: *const u8,
        sent: Option<BlockList<'_>>,
        destination: Destination,
        bytes: u64,
    ) -> Result<Request, Error> {
        let call = Call { bytes, ..Call::new(CallKind::Scatterv { root: Rank(root) }) };
        let table = &self.table_of_root(root, sent, "send")?;
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, Contribution::At(send), destination, table, "send") }
    }

    /// The table of all ranks' blocks, which only the root must pass.
    fn table_of_root(&self, root: u32, list: Option<BlockList<'_>>, argument: &'static str) -> Result<Vec<u64>, Error> {
        if self.rank != root {
            return Ok(Vec::new());
        }
        let problem = || format!("has no blocks: rank {root}, the root, gives those of all ranks");
        list.ok_or_else(|| Error::argument(argument, problem()))?.numbers(self.ranks, argument)
    }
}
