//! Blocking collectives on slices. They need no `unsafe`, because the buffers stay borrowed until the collective has
//! ended.

use crate::error::Error;
use crate::group::{Contribution, Group, ReductionOutcome};
use crate::operator::ReductionOperator;
use crate::request::Request;

impl Group {
    /// Runs [`Group::iallgather`] of `send` into `receive`; returns when the collective has ended.
    ///
    /// # Errors
    /// As for [`Group::iallgather`] and the request; [`Error::Argument`] if `receive` does not have the bytes of all
    /// blocks.
    pub fn allgather(&self, send: &[u8], receive: &mut [u8]) -> Result<(), Error> {
        let expected = send.len().checked_mul(self.size()? as usize);
        if expected != Some(receive.len()) {
            let (blocks, block) = (self.size()?, send.len());
            let problem = format!("has {} bytes, not those of {blocks} blocks of {block}", receive.len());
            return Err(Error::argument("receive", problem));
        }
        // SAFETY: both slices are borrowed until the request has ended, just below.
        end(unsafe { self.iallgather(Contribution::At(send.as_ptr()), receive.as_mut_ptr(), send.len() as u64) }?)
    }

    /// Runs [`Group::ibroadcast`] of the root's `buffer` into the buffers of all other ranks; returns when the
    /// collective has ended.
    ///
    /// # Errors
    /// As for [`Group::ibroadcast`] and the request.
    pub fn broadcast(&self, root: u32, buffer: &mut [u8]) -> Result<(), Error> {
        // SAFETY: the slice is borrowed until the request has ended, just below.
        end(unsafe { self.ibroadcast(root, buffer.as_mut_ptr(), buffer.len() as u64) }?)
    }

    /// Runs [`Group::ibarrier`]; returns when all ranks have entered the barrier.
    ///
    /// # Errors
    /// As for [`Group::ibarrier`] and the request.
    pub fn barrier(&self) -> Result<(), Error> {
        end(self.ibarrier()?)
    }

    /// Runs [`Group::ireduction`] to all ranks, of the elements in `send` into `receive`; returns when the collective
    /// has ended.
    ///
    /// # Errors
    /// As for [`Group::ireduction`] and the request; [`Error::Argument`] if the slices differ in length or end within
    /// an element.
    pub fn allreduce(
        &self,
        combination: impl Into<ReductionOperator>,
        send: &[u8],
        receive: &mut [u8],
    ) -> Result<(), Error> {
        let combination = combination.into();
        let (bytes, element) = (send.len() as u64, combination.element_bytes());
        if send.len() != receive.len() || !bytes.is_multiple_of(element) {
            let problem = format!("has {} bytes, not those of {bytes} sent in elements of {element}", receive.len());
            return Err(Error::argument("receive", problem));
        }
        let (outcome, from) = (ReductionOutcome::Allreduce { count: bytes / element }, Contribution::At(send.as_ptr()));
        // SAFETY: both slices are borrowed until the request has ended, just below.
        end(unsafe { self.ireduction(outcome, combination, from, receive.as_mut_ptr()) }?)
    }
}

fn end(mut request: Request) -> Result<(), Error> {
    loop {
        if let Some(result) = request.wait(None) {
            return result;
        }
    }
}
