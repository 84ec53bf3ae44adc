//! Payload buffers: a bounded pool of slabs in three sizes.
//!
//! Invariant: slabs in use plus free slabs never exceed the pool's bound in bytes. Any thread may drop a
//! [`SendBuffer`], which returns the buffer's slab: datapath threads may fill buffers for the conductor.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::MAX_PAYLOAD;

/// Slab sizes in bytes: control messages, medium pieces, the largest payload.
const CLASSES: [usize; 3] = [4 << 10, 64 << 10, MAX_PAYLOAD];

/// Free slabs by class, and the bytes of all slabs, free and in use.
#[derive(Debug)]
struct PoolState {
    free: [Vec<Box<[u8]>>; CLASSES.len()],
    bytes: usize,
    bound: usize,
}

impl PoolState {
    /// Takes a free slab of `class`, or allocates a slab within the bound. Frees slabs of other classes if the bound
    /// requires that.
    fn allocate(&mut self, class: usize) -> Option<Box<[u8]>> {
        if let Some(slab) = self.free[class].pop() {
            return Some(slab);
        }
        for other in (0..CLASSES.len()).rev() {
            while self.bytes + CLASSES[class] > self.bound && self.free[other].pop().is_some() {
                self.bytes -= CLASSES[other];
            }
        }
        if self.bytes + CLASSES[class] > self.bound {
            return None;
        }
        self.bytes += CLASSES[class];
        Some(vec![0; CLASSES[class]].into_boxed_slice())
    }
}

/// Source of [`SendBuffer`]s, bounded in bytes.
#[derive(Clone, Debug)]
pub(crate) struct BufferPool(Arc<Mutex<PoolState>>);

impl BufferPool {
    /// A pool whose slabs never exceed `bound` bytes together.
    pub(crate) fn new(bound: usize) -> Self {
        Self(Arc::new(Mutex::new(PoolState { free: Default::default(), bytes: 0, bound })))
    }

    /// A buffer of `length` bytes with arbitrary content; none if the bound is reached or `length` is too long.
    pub(crate) fn buffer(&self, length: usize) -> Option<SendBuffer> {
        let class = CLASSES.iter().position(|&size| length <= size)?;
        let slab = lock(&self.0).allocate(class)?;
        Some(SendBuffer { slab: Some(slab), length, class, pool: Arc::clone(&self.0) })
    }
}

/// A poisoned pool is consistent: no code panics half way through a change.
fn lock(pool: &Mutex<PoolState>) -> MutexGuard<'_, PoolState> {
    pool.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A payload to fill and pass to [`Fabric::send`](crate::Fabric::send). Dropping it returns its slab to the pool.
pub struct SendBuffer {
    /// `None` only after `drop` has taken the slab.
    slab: Option<Box<[u8]>>,
    length: usize,
    class: usize,
    pool: Arc<Mutex<PoolState>>,
}

impl Deref for SendBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.slab.as_deref().map_or(&[], |slab| &slab[..self.length])
    }
}

impl DerefMut for SendBuffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        self.slab.as_deref_mut().map_or(&mut [], |slab| &mut slab[..self.length])
    }
}

impl Drop for SendBuffer {
    fn drop(&mut self) {
        if let Some(slab) = self.slab.take() {
            lock(&self.pool).free[self.class].push(slab);
        }
    }
}

impl fmt::Debug for SendBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SendBuffer({} bytes)", self.length)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bound_holds_and_slabs_change_class() {
        let pool = BufferPool::new(2 * MAX_PAYLOAD);
        let first = pool.buffer(MAX_PAYLOAD).expect("within the bound");
        let second = pool.buffer(MAX_PAYLOAD).expect("within the bound");
        assert!(pool.buffer(1).is_none());
        drop(first);
        let small = pool.buffer(1).expect("a free large slab makes way for a small one");
        assert_eq!(small.len(), 1);
        assert!(pool.buffer(MAX_PAYLOAD).is_none());
        drop((small, second));
        assert!(pool.buffer(MAX_PAYLOAD).is_some());
        assert!(pool.buffer(MAX_PAYLOAD + 1).is_none());
    }
}
