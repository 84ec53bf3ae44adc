//! Gathers and scatters: one rank has a block of every rank, the others have one.
//!
//! Exchanges without a barrier (SP-5): nobody but the root waits for anybody but the root.

use super::{BlockList, Contribution, Group};
use crate::error::Error;
use crate::request::Request;
use outboard_call::{Call, CallKind, Rank};

/// Where a rank receives its block of a scatter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Destination {
    /// In a buffer of its own.
    At(*mut u8),
    /// The root's block stays where it is in the send buffer, as with `MPI_IN_PLACE`.
    InPlace,
}

impl Group {
    /// Posts a gather: `bytes_per_rank` bytes of each rank come to rank `root`, in the order of ranks at its `receive`,
    /// which counts there alone. Only the root can contribute in place. Never blocks; a rank that is not the root ends
    /// when its block has been read, whether or not others have called.
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
        let call = Call { bytes: bytes_per_rank, ..Call::new(CallKind::Gather { root: Rank(root) }) };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(call, (contribution, Destination::At(receive)), (&[], "bytes_per_rank")) }
    }

    /// Posts a scatter: block `i` of `bytes_per_rank` bytes at `send` of rank `root` goes to rank `i`; `send` counts
    /// there alone, and only there the block can stay in place. Never blocks; a rank waits for nobody but the root, and
    /// the root for nobody.
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
        unsafe { self.post(call, (Contribution::At(send), destination), (&[], "bytes_per_rank")) }
    }

    /// Posts a gather of blocks of different sizes: the `bytes` of this rank come to rank `root`, where block `i` of
    /// `received` is of rank `i`; both must name the same bytes. What lies between the blocks is left alone. Otherwise
    /// as [`Group::igather`]; of a contribution in place `bytes` does not count.
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
        let call = Call { bytes, ..Call::new(CallKind::Gatherv { root: Rank(root) }) };
        let table = &self.table_of_root(root, received, "receive")?;
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, (contribution, Destination::At(receive)), (table, "receive")) }
    }

    /// Posts a scatter of blocks of different sizes: block `i` of `sent` of rank `root` goes to rank `i`, which expects
    /// `bytes`; both must name the same. Otherwise as [`Group::iscatter`]; where the root's block stays in place
    /// `bytes` does not count.
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
        let call = Call { bytes, ..Call::new(CallKind::Scatterv { root: Rank(root) }) };
        let table = &self.table_of_root(root, sent, "send")?;
        // SAFETY: the caller's promise about the blocks.
        unsafe { self.post(call, (Contribution::At(send), destination), (table, "send")) }
    }

    /// The blocks of all ranks, which the root alone has to name.
    fn table_of_root(&self, root: u32, list: Option<BlockList<'_>>, argument: &'static str) -> Result<Vec<u64>, Error> {
        if self.rank != root {
            return Ok(Vec::new());
        }
        let problem = || format!("has no blocks: rank {root}, the root, gives those of all ranks");
        list.ok_or_else(|| Error::argument(argument, problem()))?.numbers(self.ranks, argument)
    }
}
