//! Posting barriers and reductions.

use super::{Contribution, Group, Placed};
use crate::error::Error;
use crate::request::Request;
use crate::staging::Buffers;
use outboard_plan::Reduction;
use outboard_shm::entry::{BarrierEntry, Entry, Reduced, ReductionEntry};

impl Group {
    /// Whether the group offloads barriers: equal on all ranks.
    pub fn offloads_barrier(&self) -> bool {
        self.ready.allgather_most > 0
    }

    /// Whether the group's agreed configuration offloads reductions to which each rank contributes so many bytes: equal on
    /// all ranks.
    pub fn offloads_reduction(&self, bytes: u64) -> bool {
        self.offloads_allgather(bytes)
    }

    /// Posts a barrier: the request completes when all ranks have posted theirs. Never blocks.
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    pub fn ibarrier(&self) -> Result<Request, Error> {
        let nothing = Buffers {
            contribution: std::ptr::null(),
            bytes_per_rank: 0,
            receive: std::ptr::null_mut(),
            receive_bytes: 0,
            in_place_at: None,
            pieces: None,
        };
        let entry =
            |Placed { group, instance, slot, .. }: Placed| Entry::Barrier(BarrierEntry { group, instance, slot });
        // SAFETY: there are no buffers.
        unsafe { self.post(&nothing, &[], entry) }
    }

    /// Posts a reduce: the vectors of `count` elements of all ranks are combined, and rank `root` receives the result at
    /// `receive`, which means nothing elsewhere. The root alone may contribute in place. Never blocks on other ranks.
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ireduce(
        &self,
        root: u32,
        contribution: Contribution,
        receive: *mut u8,
        count: u64,
        reduction: Reduction,
    ) -> Result<Request, Error> {
        if root >= self.ranks {
            return Err(Error::argument("root", format!("is {root}: the group has ranks 0 to {}", self.ranks - 1)));
        }
        if contribution == Contribution::InPlace && root != self.rank {
            return Err(Error::argument(
                "send",
                format!("is in place, which it can be on the root, rank {root}, alone"),
            ));
        }
        let bytes = vector(count, reduction)?;
        let received = if root == self.rank { bytes } else { 0 };
        let result = Reduced::Reduce { root, bytes: bytes as u64 };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine((contribution, bytes), (receive, received), (result, reduction)) }
    }

    /// Posts an allreduce: the vectors of `count` elements of all ranks are combined, and every rank receives the result at
    /// `receive`, where its contribution lies if it is in place. The result has the same bits on all ranks, and on every run
    /// with the same ranks, counts and settings (TH-2). Never blocks on other ranks.
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn iallreduce(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        count: u64,
        reduction: Reduction,
    ) -> Result<Request, Error> {
        let bytes = vector(count, reduction)?;
        let result = Reduced::Allreduce { bytes: bytes as u64 };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine((contribution, bytes), (receive, bytes), (result, reduction)) }
    }

    /// Posts a reduce-scatter: the vectors are combined, and block `i` of the result, of `counts[i]` elements, goes to
    /// rank `i`. All ranks name the same counts. In place the vector lies at `receive`, and the block comes to its start.
    /// Otherwise as [`Group::iallreduce`].
    ///
    /// # Errors
    /// As of [`Group::iallgather`]; a list that does not have one entry for each rank is an [`Error::Argument`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ireduce_scatter(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        counts: &[u64],
        reduction: Reduction,
    ) -> Result<Request, Error> {
        if counts.len() != self.ranks as usize {
            let problem = format!("has {} entries: the group has {} ranks", counts.len(), self.ranks);
            return Err(Error::argument("counts", problem));
        }
        let all = counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count));
        let bytes = vector(all.unwrap_or(u64::MAX), reduction)?;
        // All together fit, as just checked.
        let blocks: Vec<u64> = counts.iter().map(|count| count * reduction.element().bytes()).collect();
        let received = blocks[self.rank as usize] as usize;
        let result = |table| Reduced::ReduceScatter { table };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine_with((contribution, bytes), (receive, received), (result, reduction), &blocks) }
    }

    /// Posts a reduce-scatter of blocks of `count` elements. Otherwise as [`Group::ireduce_scatter`].
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ireduce_scatter_block(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        count: u64,
        reduction: Reduction,
    ) -> Result<Request, Error> {
        let all = count.checked_mul(u64::from(self.ranks));
        let bytes = vector(all.unwrap_or(u64::MAX), reduction)?;
        let received = bytes / self.ranks as usize;
        let result = Reduced::ReduceScatterBlock { bytes: received as u64 };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine((contribution, bytes), (receive, received), (result, reduction)) }
    }

    /// Posts a scan: every rank receives the combined vectors of itself and of all ranks before it. Otherwise as
    /// [`Group::iallreduce`].
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn iscan(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        count: u64,
        reduction: Reduction,
    ) -> Result<Request, Error> {
        let bytes = vector(count, reduction)?;
        let result = Reduced::Scan { bytes: bytes as u64 };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine((contribution, bytes), (receive, bytes), (result, reduction)) }
    }

    /// Posts an exclusive scan: every rank receives the combined vectors of all ranks before it; rank 0 receives nothing.
    /// Otherwise as [`Group::iallreduce`].
    ///
    /// # Errors
    /// As of [`Group::iallgather`].
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn iexscan(
        &self,
        contribution: Contribution,
        receive: *mut u8,
        count: u64,
        reduction: Reduction,
    ) -> Result<Request, Error> {
        let bytes = vector(count, reduction)?;
        let received = if self.rank == 0 { 0 } else { bytes };
        let result = Reduced::Exscan { bytes: bytes as u64 };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine((contribution, bytes), (receive, received), (result, reduction)) }
    }

    /// Posts a reduction whose result follows from its counts.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn combine(
        &self,
        contributed: (Contribution, usize),
        received: (*mut u8, usize),
        (result, reduction): (Reduced, Reduction),
    ) -> Result<Request, Error> {
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.combine_with(contributed, received, (|_| result, reduction), &[]) }
    }

    /// Posts a reduction; `result` gets the address of the table.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn combine_with(
        &self,
        (contribution, sent): (Contribution, usize),
        (receive, received): (*mut u8, usize),
        (result, reduction): (impl FnOnce(u64) -> Reduced, Reduction),
        table: &[u64],
    ) -> Result<Request, Error> {
        let in_place = contribution == Contribution::InPlace;
        if receive.is_null() && (received > 0 || in_place && sent > 0) {
            return Err(Error::argument("receive", "is NULL"));
        }
        let (contribution, in_place_at) = match contribution {
            Contribution::At(send) if send.is_null() && sent > 0 => return Err(Error::argument("send", "is NULL")),
            Contribution::At(send) => (send, None),
            Contribution::InPlace => (receive.cast_const(), Some(0)),
        };
        let buffers =
            Buffers { contribution, bytes_per_rank: sent, receive, receive_bytes: received, in_place_at, pieces: None };
        let entry = |placed: Placed| {
            let Placed { group, instance, slot, send, receive, table } = placed;
            let (send, code) = (if in_place { 0 } else { send }, reduction.code());
            let result = result(table);
            Entry::Reduction(ReductionEntry { group, instance, slot, result, code, in_place, send, receive })
        };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(&buffers, table, entry) }
    }
}

/// Bytes of a vector of `count` elements.
fn vector(count: u64, reduction: Reduction) -> Result<usize, Error> {
    let element = reduction.element();
    let bytes = count.checked_mul(element.bytes()).and_then(|bytes| isize::try_from(bytes).ok());
    let problem = || format!("is {count} of {element}, more than the address space");
    bytes.map(isize::unsigned_abs).ok_or_else(|| Error::argument("count", problem()))
}
