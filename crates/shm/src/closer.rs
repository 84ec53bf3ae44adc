//! Threads for operations that take the kernel long, such as releasing the pages of large memory.
//!
//! Invariants: [`Closer::submit`] does not wait for the task; a closer has at most `most` threads, and further tasks
//! wait for these threads. A thread ends after `REST` without a task.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Time that a thread waits for the next task.
const REST: Duration = Duration::from_secs(1);

/// Closes large memory. The kernel takes a second for some ten gigabytes.
pub static MEMORY_CLOSER: Closer = Closer::new(4);
/// Refuses connections of other users. A user who shares an end of a connection can delay the close of the connection
/// at will.
pub static REFUSAL_CLOSER: Closer = Closer::new(64);

type CloseTask = Box<dyn FnOnce() + Send>;

pub struct Closer {
    most: usize,
    state: Mutex<CloserState>,
    wake: Condvar,
}

struct CloserState {
    waiting: VecDeque<CloseTask>,
    threads: usize,
    idle: usize,
}

impl Closer {
    const fn new(most: usize) -> Self {
        let state = CloserState { waiting: VecDeque::new(), threads: 0, idle: 0 };
        Closer { most, state: Mutex::new(state), wake: Condvar::new() }
    }

    pub fn submit(&'static self, task: impl FnOnce() + Send + 'static) {
        let mut state = self.state();
        state.waiting.push_back(Box::new(task));
        if state.waiting.len() > state.idle && state.threads < self.most {
            let thread = std::thread::Builder::new().name("closer".to_owned()).spawn(|| self.work());
            state.threads += usize::from(thread.is_ok());
        }
        self.wake.notify_one();
    }

    fn state(&self) -> MutexGuard<'_, CloserState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        let mut state = self.state();
        loop {
            if let Some(task) = state.waiting.pop_front() {
                drop(state);
                task();
                state = self.state();
                continue;
            }
            state.idle += 1;
            let (guard, rest) = self.wake.wait_timeout(state, REST).unwrap_or_else(PoisonError::into_inner);
            state = guard;
            state.idle -= 1;
            if rest.timed_out() && state.waiting.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
