//! Operators of the program, which only the rank itself can call.
//!
//! The service process gathers the contributions by a collective that moves bytes. The call of the rank that finds the
//! collective complete combines them. So no rank waits for calls of another rank into this library: a late rank delays
//! only its own result. Contributions are always combined from the left in the order of ranks. So results have the same
//! bits from run to run (TH-2), and operators need not commute. Memory: one contribution of each combined rank, until
//! the request has ended.

use crate::error::Error;
use outboard_call::Reduction;
use outboard_shm::memory::OwnMemory;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Bytes of each contribution combined at a time, so that the last result is still in a cache.
const PIECE: usize = 64 << 10;

/// Combines equally many left and right operands, pair by pair, into the right operands.
type CombineFunction = dyn Fn(&[u8], &mut [u8]) + Send + Sync;

/// An operator of the program on elements of the program. Must be associative; need not commute. Clones are equal.
#[derive(Clone)]
pub struct UserOperator {
    element_bytes: u64,
    function: Arc<CombineFunction>,
}

impl UserOperator {
    /// An operator on elements of `element_bytes` bytes. `function` gets vectors of equally many elements, combines
    /// them pair by pair, and leaves the results in the second vector, whose elements are the right operands. The
    /// thread that finds a request complete calls the function; if the function panics, the request fails.
    ///
    /// # Errors
    /// [`Error::Argument`] for elements of no bytes.
    pub fn new(
        element_bytes: usize,
        function: impl Fn(&[u8], &mut [u8]) + Send + Sync + 'static,
    ) -> Result<UserOperator, Error> {
        if element_bytes == 0 {
            return Err(Error::argument("element_bytes", "is 0: give the bytes from one element to the next"));
        }
        Ok(UserOperator { element_bytes: element_bytes as u64, function: Arc::new(function) })
    }

    /// Bytes from one element to the next.
    pub fn element_bytes(&self) -> u64 {
        self.element_bytes
    }

    /// The number of holders: the maker, and each request that has not ended.
    pub(crate) fn holders(&self) -> usize {
        Arc::strong_count(&self.function)
    }
}

impl fmt::Debug for UserOperator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("UserOperator").field("element_bytes", &self.element_bytes).finish_non_exhaustive()
    }
}

/// The operator that combines contributions, with the type of their elements.
#[derive(Debug, Clone)]
pub enum ReductionOperator {
    /// An operator that the service process knows.
    BuiltIn(Reduction),
    /// An operator of the program.
    User(UserOperator),
}

impl ReductionOperator {
    /// Bytes from one element to the next.
    pub fn element_bytes(&self) -> u64 {
        match self {
            ReductionOperator::BuiltIn(reduction) => reduction.element().bytes(),
            ReductionOperator::User(operator) => operator.element_bytes(),
        }
    }
}

impl From<Reduction> for ReductionOperator {
    fn from(reduction: Reduction) -> Self {
        ReductionOperator::BuiltIn(reduction)
    }
}

impl From<&UserOperator> for ReductionOperator {
    fn from(operator: &UserOperator) -> Self {
        ReductionOperator::User(operator.clone())
    }
}

/// Alignment for elements of any type.
#[repr(align(64))]
struct CacheLine(#[expect(dead_code, reason = "bytes are reached by address")] [u8; 64]);

/// Room for the contributions to one call, one behind the other in the order of ranks.
pub(crate) struct Contributions {
    /// Empty: only its capacity is used.
    lines: Vec<CacheLine>,
    count: usize,
    bytes_each: usize,
}

impl Contributions {
    /// Room for `count` contributions of `bytes_each` bytes.
    pub(crate) fn new(count: usize, bytes_each: usize) -> Result<Contributions, Error> {
        let mut lines = Vec::new();
        let bytes = count.checked_mul(bytes_each);
        let reserved = bytes.and_then(|bytes| lines.try_reserve_exact(bytes.div_ceil(size_of::<CacheLine>())).ok());
        reserved.ok_or_else(|| {
            let problem = "an operator of the program's own needs them all; reduce fewer elements at a time";
            Error::Resource(format!("no memory for {count} contributions of {bytes_each} bytes: {problem}"))
        })?;
        Ok(Contributions { lines, count, bytes_each })
    }

    pub(crate) fn start(&mut self) -> *mut u8 {
        self.lines.as_mut_ptr().cast()
    }
}

/// The work of a rank at the end of a request: combines the gathered contributions.
pub(crate) struct Fold {
    pub(crate) operator: UserOperator,
    pub(crate) contributions: Contributions,
    pub(crate) receive: *mut u8,
}

// SAFETY: the pointer is the program's buffer, which the program lends until the request ends, to any thread.
unsafe impl Send for Fold {}

impl fmt::Debug for Fold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Contributions { count, bytes_each, .. } = self.contributions;
        f.debug_struct("Fold").field("contributions", &count).field("bytes_each", &bytes_each).finish_non_exhaustive()
    }
}

impl Fold {
    /// Combines the contributions and writes the result to the program's buffer, or nothing if the operator panics or
    /// the program may not write to the buffer.
    ///
    /// # Safety
    /// The service process has filled the room and no longer accesses the room; the program still lends the buffer.
    pub(crate) unsafe fn run(mut self, own: &OwnMemory) -> Result<(), Error> {
        let Contributions { count, bytes_each: bytes, .. } = self.contributions;
        if count == 0 || bytes == 0 {
            return Ok(());
        }
        // A piece has whole elements, at least one.
        let element = self.operator.element_bytes as usize;
        let piece = (PIECE / element).max(1) * element;
        // SAFETY: this many bytes were reserved, and filled as the caller promises.
        let all = unsafe { std::slice::from_raw_parts_mut(self.contributions.start(), count * bytes) };
        let combine = || {
            for start in (0..bytes).step_by(piece) {
                let piece = start..bytes.min(start + piece);
                for at in 1..count {
                    // The left operand is the result of all ranks before.
                    let (before, behind) = all.split_at_mut(at * bytes);
                    let left = &before[(at - 1) * bytes..][piece.clone()];
                    (self.operator.function)(left, &mut behind[piece.clone()]);
                }
            }
            all[(count - 1) * bytes..].as_ptr()
        };
        let problem = |_| Error::argument("op", "panicked while it combined, and there is no result");
        let result = catch_unwind(AssertUnwindSafe(combine)).map_err(problem)?;
        own.check_writable([(self.receive as u64, bytes)])?;
        // SAFETY: the caller's promise about the buffer, which has room for one contribution and is not part of `all`.
        unsafe { std::ptr::copy_nonoverlapping(result, self.receive, bytes) };
        Ok(())
    }
}
