//! Posting barriers and reductions.

use super::{BlockList, Contribution, Destination, Group};
use crate::error::Error;
use crate::operator::{Contributions, Fold, ReductionOperator, UserOperator};
use crate::request::Request;
use crate::staging::RequestBuffers;
use outboard_call::{Call, CallKind, Element, Operator, Rank, Reduction};

/// The result of a reduction and its receivers. All ranks pass the same value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReductionOutcome<'a> {
    /// Rank `root` receives `count` elements. Only the root may contribute in place; other ranks' `receive` is ignored.
    Reduce {
        /// The receiving rank.
        root: u32,
        /// Elements that each rank contributes.
        count: u64,
    },
    /// Every rank receives `count` elements, with the same bits on all ranks.
    Allreduce {
        /// Elements that each rank contributes.
        count: u64,
    },
    /// Rank `i` receives block `i`, of `counts[i]` elements. In place, the whole vector lies at `receive`, and the
    /// block goes to its start.
    ReduceScatter {
        /// One entry for each rank.
        counts: &'a [u64],
    },
    /// As `ReduceScatter`, with blocks of `count` elements.
    ReduceScatterBlock {
        /// Elements that each rank receives.
        count: u64,
    },
    /// Every rank receives the combined vectors, of `count` elements, of all ranks before it. An inclusive scan adds
    /// the rank's own vector. In an exclusive scan rank 0 receives nothing.
    Scan {
        /// Elements that each rank contributes.
        count: u64,
        /// Whether a rank's own vector is part of its result.
        inclusive: bool,
    },
}

impl Group {
    /// Posts a barrier: the request completes when all ranks have posted theirs. Never blocks.
    pub fn ibarrier(&self) -> Result<Request, Error> {
        let call = Call::new(CallKind::Barrier);
        let (send, receive) = (Contribution::At(std::ptr::null()), Destination::At(std::ptr::null_mut()));
        // SAFETY: there are no buffers.
        unsafe { self.post(call, send, receive, &[], "group") }
    }

    /// Posts a reduction: the vectors of all ranks are combined element by element. The order depends only on ranks,
    /// counts and settings, so the result has the same bits on every run (TH-2). A contribution in place lies at
    /// `receive`. Never blocks; a rank that posts late delays only ranks whose result contains its vector (SP-6).
    ///
    /// `combination` is a [`Reduction`], which the service process carries out, or a [`UserOperator`], which this rank
    /// calls itself. The rank calls the operator from the left in the order of ranks, in the call that finds the
    /// request complete. If the request was dropped, a later call calls the operator. All ranks pass the same
    /// combination; for operators of the program this is not checked.
    ///
    /// # Errors
    /// As for [`Group::iallgather`]; [`Error::Resource`] if there is no memory for the contributions to an operator of
    /// the program.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ireduction(
        &self,
        outcome: ReductionOutcome<'_>,
        combination: impl Into<ReductionOperator>,
        contribution: Contribution,
        receive: *mut u8,
    ) -> Result<Request, Error> {
        let combination = combination.into();
        // For an operator of the program the service process sees vectors of bytes.
        let reduction = match &combination {
            ReductionOperator::BuiltIn(reduction) => *reduction,
            ReductionOperator::User(_) => Reduction::new(Operator::Sum, Element::U8).expect("bytes have sums"),
        };
        let (call, table) = self.call(outcome, reduction, combination.element_bytes())?;
        let (call, buffers) = self.checked(call, contribution, Destination::At(receive), &table, "count")?;
        let ReductionOperator::User(operator) = combination else {
            // SAFETY: the caller's promise about the buffers.
            return unsafe { self.collectives.post(&buffers, call, &table) }.map(|posted| posted.request);
        };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.gather_and_fold(outcome, operator, &buffers, &table) }
    }

    fn call(
        &self,
        outcome: ReductionOutcome<'_>,
        reduction: Reduction,
        element: u64,
    ) -> Result<(Call, Vec<u64>), Error> {
        let mut table = Vec::new();
        let (kind, count) = match outcome {
            ReductionOutcome::Reduce { root, count } => (CallKind::Reduce { root: Rank(root), reduction }, count),
            ReductionOutcome::Allreduce { count } => (CallKind::Allreduce { reduction }, count),
            ReductionOutcome::ReduceScatterBlock { count } => (CallKind::ReduceScatterBlock { reduction }, count),
            ReductionOutcome::Scan { count, inclusive } => (CallKind::Scan { reduction, inclusive }, count),
            ReductionOutcome::ReduceScatter { counts } if counts.len() != self.ranks as usize => {
                let problem = format!("has {} entries: the group has {} ranks", counts.len(), self.ranks);
                return Err(Error::argument("counts", problem));
            }
            ReductionOutcome::ReduceScatter { counts } => {
                let blocks = counts.iter().map(|count| vector(*count, element)).collect::<Result<Vec<_>, _>>()?;
                // Blocks lie one behind the other, whatever the offsets in the table.
                table = [blocks, vec![0; counts.len()]].concat();
                (CallKind::ReduceScatter { reduction, sizes: 0 }, 0)
            }
        };
        Ok((Call { bytes: vector(count, element)?, ..Call::new(kind) }, table))
    }

    /// Makes the service process gather the contributions to this rank's result, which this rank combines at the end.
    /// The gathering is one collective, so no rank waits for a rank that has called and computes.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn gather_and_fold(
        &self,
        outcome: ReductionOutcome<'_>,
        operator: UserOperator,
        buffers: &RequestBuffers,
        table: &[u64],
    ) -> Result<Request, Error> {
        let (send, sent) = (buffers.contribution, buffers.bytes_per_rank as u64);
        let (ranks, me) = (self.ranks as usize, self.rank as usize);
        let members = match outcome {
            ReductionOutcome::Reduce { .. }
            | ReductionOutcome::Allreduce { .. }
            | ReductionOutcome::ReduceScatter { .. }
            | ReductionOutcome::ReduceScatterBlock { .. } => ranks,
            ReductionOutcome::Scan { inclusive, .. } => me + usize::from(inclusive),
        };
        let mut contributions = Contributions::new(members, buffers.receive_bytes)?;
        let room = contributions.start();
        let (from, each) = (Contribution::At(send), buffers.receive_bytes as u64);
        // The contributions lie one behind the other in the room made above.
        let place = |rank| if rank < members as u64 { (each, rank * each) } else { (0, 0) };
        let (gathered, places): (Vec<u64>, Vec<u64>) = (0..ranks as u64).map(place).unzip();
        let gathered = BlockList { bytes: &gathered, offsets: &places };
        // SAFETY: the caller's promise about the buffers; the room is kept with the request until it has ended.
        let request = unsafe {
            match outcome {
                ReductionOutcome::Reduce { root, .. } => self.igather(root, from, room, sent),
                ReductionOutcome::Allreduce { .. } => self.iallgather(from, room, sent),
                ReductionOutcome::ReduceScatterBlock { .. } => self.ialltoall(send, room, each),
                ReductionOutcome::ReduceScatter { .. } => {
                    let bytes = &table[..ranks];
                    self.ialltoallv(send, BlockList { bytes, offsets: &starts(bytes) }, room, gathered)
                }
                // A scan gathers by an exchange, so that no rank waits for higher ranks. A rank sends all higher ranks
                // the same bytes.
                ReductionOutcome::Scan { .. } => {
                    let takes = |rank: usize| rank > me || rank == me && members > me;
                    let bytes: Vec<u64> = (0..ranks).map(|rank| if takes(rank) { sent } else { 0 }).collect();
                    self.ialltoallv(send, BlockList { bytes: &bytes, offsets: &vec![0; ranks] }, room, gathered)
                }
            }
        }?;
        request.fold(Fold { operator, contributions, receive: buffers.receive })?;
        Ok(request)
    }
}

/// The offset of each block if blocks lie one behind the other.
fn starts(bytes: &[u64]) -> Vec<u64> {
    let mut end = 0;
    let start = |bytes: &u64| {
        end += bytes;
        end - bytes
    };
    bytes.iter().map(start).collect()
}

/// Bytes of a vector of `count` elements.
fn vector(count: u64, element_bytes: u64) -> Result<u64, Error> {
    let problem = || format!("is {count} elements of {element_bytes} bytes, more than the address space");
    count.checked_mul(element_bytes).ok_or_else(|| Error::argument("count", problem()))
}
