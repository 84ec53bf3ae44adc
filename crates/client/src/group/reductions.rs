//! Posting barriers and reductions.

use super::{BlockList, Contribution, Group, Placed};
use crate::error::Error;
use crate::operator::{Combination, Contributions, Fold, UserOperator};
use crate::request::Request;
use crate::staging::Buffers;
use outboard_plan::Reduction;
use outboard_shm::entry::{BarrierEntry, Entry, Reduced, ReductionEntry};

/// Who receives what of the combined vectors. All ranks name the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome<'a> {
    /// Rank `root` receives `count` elements. It alone may contribute in place, and elsewhere `receive` means nothing.
    Reduce {
        /// The rank.
        root: u32,
        /// Elements that each rank contributes.
        count: u64,
    },
    /// Every rank receives `count` elements, the same bits as all others.
    Allreduce {
        /// Elements that each rank contributes.
        count: u64,
    },
    /// Rank `i` receives block `i`, of `counts[i]` elements. In place, the whole vector lies at `receive`, and the block comes
    /// to its start.
    ReduceScatter {
        /// One entry for each rank.
        counts: &'a [u64],
    },
    /// The same with blocks of `count` elements.
    ReduceScatterBlock {
        /// Elements that each rank receives.
        count: u64,
    },
    /// Every rank receives the combined vectors, of `count` elements, of itself and of all ranks before it.
    Scan {
        /// Elements that each rank contributes.
        count: u64,
    },
    /// Every rank receives those of all ranks before it; rank 0 receives nothing.
    Exscan {
        /// Elements that each rank contributes.
        count: u64,
    },
}

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
        let entry =
            |Placed { group, instance, slot, .. }: Placed| Entry::Barrier(BarrierEntry { group, instance, slot });
        // SAFETY: there are no buffers.
        unsafe { self.post(&Buffers::NONE, &[], entry) }
    }

    /// Posts a reduction: the vectors that all ranks contribute are combined element by element, in an order that depends on
    /// nothing but ranks, counts and settings, so that the result has the same bits on every run (TH-2). A contribution in place
    /// lies at `receive`. Never blocks; a rank that posts late holds up only those whose result it is part of (SP-6).
    ///
    /// `combination` is a [`Reduction`], which the service process carries out, or a [`UserOperator`], which this rank calls
    /// itself, from the left in the order of ranks, in the call that sees the end: of its request, or, if that was dropped, of
    /// anything. All ranks pass the same; that they do is not checked of operators of the program's own.
    ///
    /// # Errors
    /// As of [`Group::iallgather`]; [`Error::Resource`] where there is no memory for what an operator of the program's own
    /// combines.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    pub unsafe fn ireduction(
        &self,
        outcome: Outcome<'_>,
        combination: impl Into<Combination>,
        contribution: Contribution,
        receive: *mut u8,
    ) -> Result<Request, Error> {
        let combination = combination.into();
        let element_bytes = combination.element_bytes();
        if let Outcome::Reduce { root, .. } = outcome {
            self.check_root(root)?;
            if contribution == Contribution::InPlace && root != self.rank {
                let problem = format!("is in place, which it can be on the root, rank {root}, alone");
                return Err(Error::argument("send", problem));
            }
        }
        let (sent, received) = self.lengths(outcome, element_bytes)?;
        let buffers = contribution.part_of(Buffers::NONE.receiving(receive, received)?, 0, sent)?;
        match combination {
            // SAFETY: the caller's promise about the buffers.
            Combination::Known(reduction) => unsafe { self.offload(outcome, reduction, &buffers) },
            // SAFETY: as above.
            Combination::User(operator) => unsafe { self.gather_and_fold(outcome, operator, &buffers) },
        }
    }

    /// Bytes that this rank contributes, and that it receives.
    fn lengths(&self, outcome: Outcome<'_>, element_bytes: u64) -> Result<(usize, usize), Error> {
        let elements = match outcome {
            Outcome::Reduce { count, .. }
            | Outcome::Allreduce { count }
            | Outcome::Scan { count }
            | Outcome::Exscan { count } => Some(count),
            Outcome::ReduceScatterBlock { count } => count.checked_mul(u64::from(self.ranks)),
            Outcome::ReduceScatter { counts } if counts.len() != self.ranks as usize => {
                let problem = format!("has {} entries: the group has {} ranks", counts.len(), self.ranks);
                return Err(Error::argument("counts", problem));
            }
            Outcome::ReduceScatter { counts } => counts.iter().try_fold(0u64, |sum, count| sum.checked_add(*count)),
        };
        let sent = vector(elements.unwrap_or(u64::MAX), element_bytes)?;
        let received = match outcome {
            Outcome::Reduce { root, .. } if root != self.rank => 0,
            Outcome::Exscan { .. } if self.rank == 0 => 0,
            Outcome::Reduce { .. } | Outcome::Allreduce { .. } | Outcome::Scan { .. } | Outcome::Exscan { .. } => sent,
            Outcome::ReduceScatterBlock { .. } => sent / self.ranks as usize,
            // No more than all together, which fit.
            Outcome::ReduceScatter { counts } => (counts[self.rank as usize] * element_bytes) as usize,
        };
        Ok((sent, received))
    }

    /// Hands a reduction to the service process.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn offload(&self, outcome: Outcome<'_>, reduction: Reduction, buffers: &Buffers) -> Result<Request, Error> {
        let table = if let Outcome::ReduceScatter { counts } = outcome {
            blocks(counts, reduction.element().bytes())
        } else {
            Vec::new()
        };
        let (bytes, received) = (buffers.bytes_per_rank as u64, buffers.receive_bytes as u64);
        let in_place = buffers.in_place_at.is_some();
        let entry = |placed: Placed| {
            let Placed { group, instance, slot, send, receive, table } = placed;
            let result = match outcome {
                Outcome::Reduce { root, .. } => Reduced::Reduce { root, bytes },
                Outcome::Allreduce { .. } => Reduced::Allreduce { bytes },
                Outcome::ReduceScatter { .. } => Reduced::ReduceScatter { table },
                Outcome::ReduceScatterBlock { .. } => Reduced::ReduceScatterBlock { bytes: received },
                Outcome::Scan { .. } => Reduced::Scan { bytes },
                Outcome::Exscan { .. } => Reduced::Exscan { bytes },
            };
            let (send, code) = (if in_place { 0 } else { send }, reduction.code());
            Entry::Reduction(ReductionEntry { group, instance, slot, result, code, in_place, send, receive })
        };
        // SAFETY: the caller's promise about the buffers.
        unsafe { self.post(buffers, &table, entry) }
    }

    /// Has the service process bring this rank what its result is made of, and combines that at the end. One collective, so
    /// that nobody waits for a rank that has called and computes.
    ///
    /// # Safety
    /// As for [`Group::iallgather`].
    unsafe fn gather_and_fold(
        &self,
        outcome: Outcome<'_>,
        operator: UserOperator,
        buffers: &Buffers,
    ) -> Result<Request, Error> {
        let (send, sent) = (buffers.contribution, buffers.bytes_per_rank as u64);
        let (ranks, me) = (self.ranks as usize, self.rank as usize);
        let members = match outcome {
            Outcome::Reduce { .. }
            | Outcome::Allreduce { .. }
            | Outcome::ReduceScatter { .. }
            | Outcome::ReduceScatterBlock { .. } => ranks,
            Outcome::Scan { .. } => me + 1,
            Outcome::Exscan { .. } => me,
        };
        let mut contributions = Contributions::new(members, buffers.receive_bytes)?;
        let room = contributions.start();
        let (from, each) = (Contribution::At(send), buffers.receive_bytes as u64);
        // One behind the other, as the room just made has it.
        let place = |rank| if rank < members as u64 { (each, rank * each) } else { (0, 0) };
        let (gathered, places): (Vec<u64>, Vec<u64>) = (0..ranks as u64).map(place).unzip();
        let gathered = (room, BlockList { bytes: &gathered, offsets: &places });
        // SAFETY: the caller's promise about the buffers; the room is kept with the request until it has ended.
        let request = unsafe {
            match outcome {
                Outcome::Reduce { root, .. } => self.igather(root, from, room, sent),
                Outcome::Allreduce { .. } => self.iallgather(from, room, sent),
                Outcome::ReduceScatterBlock { .. } => self.ialltoall(send, room, each),
                Outcome::ReduceScatter { counts } => {
                    let bytes = blocks(counts, operator.element_bytes());
                    let offsets = starts(&bytes);
                    self.ialltoallv((send, BlockList { bytes: &bytes, offsets: &offsets }), gathered)
                }
                // An exchange, so that nobody waits for ranks behind its own; all that comes after gets the same bytes.
                Outcome::Scan { .. } | Outcome::Exscan { .. } => {
                    let takes = |rank: usize| rank > me || rank == me && members > me;
                    let bytes: Vec<u64> = (0..ranks).map(|rank| if takes(rank) { sent } else { 0 }).collect();
                    self.ialltoallv((send, BlockList { bytes: &bytes, offsets: &vec![0; ranks] }), gathered)
                }
            }
        }?;
        request.fold(Fold { operator, contributions, receive: buffers.receive })?;
        Ok(request)
    }
}

/// Bytes of each block. All together fit.
fn blocks(counts: &[u64], element_bytes: u64) -> Vec<u64> {
    counts.iter().map(|count| count * element_bytes).collect()
}

/// Where each block begins, one behind the other.
fn starts(bytes: &[u64]) -> Vec<u64> {
    let mut end = 0;
    let start = |bytes: &u64| {
        end += bytes;
        end - bytes
    };
    bytes.iter().map(start).collect()
}

/// Bytes of a vector of `count` elements.
fn vector(count: u64, element_bytes: u64) -> Result<usize, Error> {
    let bytes = count.checked_mul(element_bytes).and_then(|bytes| isize::try_from(bytes).ok());
    let problem = || format!("is {count} elements of {element_bytes} bytes, more than the address space");
    bytes.map(isize::unsigned_abs).ok_or_else(|| Error::argument("count", problem()))
}
