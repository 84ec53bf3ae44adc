//! A list at the provider: its counters, its tasks in libfabric's form, and its state (see [`super`]).
//!
//! Invariant: a task's structures do not move while the list exists, because the provider keeps pointers to them.

use std::ffi::{c_int, c_void};
use std::ptr;

use outboard_plan::deferred::{DeferredAction, DeferredList, DeferredTask, Threshold};
use outboard_shm::memory::MappedBytes;

use super::provider::{Counter, Provider};
use super::{OfiError, ffi};

/// A message of a list: the provider's name of the peer, the tag, and the bytes in local memory.
pub(super) type BoundMessage = (u64, u64, Option<MappedBytes>);

struct PostedTask {
    work: ffi::DeferredWork,
    tagged: ffi::OpTagged,
    add: ffi::OpCntr,
    bytes: libc::iovec,
    task: DeferredTask,
}

// SAFETY: the pointers point to the work itself and to objects of the provider, which belong to no thread.
unsafe impl Send for PostedTask {}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ListState {
    /// Index of the next task to pass to the provider.
    Posting(usize),
    Posted,
    /// `seen`: an earlier check saw the end. Only then has the provider surely finished with the counters.
    Ended {
        seen: bool,
    },
    /// Failed or withdrawn. `posting`: the posting thread may be passing a task.
    Abandoned {
        posting: bool,
    },
}

/// The next step of passing a list to the provider.
pub(super) enum PostStep {
    Task(usize, *mut ffi::DeferredWork),
    /// The provider has all tasks.
    Nothing,
    /// The list has failed or was withdrawn.
    Abandoned,
}

pub(super) struct PostedList {
    state: ListState,
    /// The list's counters, and a counter that stays 0, for tasks that begin at once.
    counters: Vec<Counter>,
    works: Box<[PostedTask]>,
    /// Tasks that the provider has.
    queued: usize,
    /// Messages that failed or were cancelled.
    failed: u64,
    end: Threshold,
    bytes: Vec<MappedBytes>,
    result: Option<Result<(), OfiError>>,
}

impl PostedList {
    /// A list with no task at the provider yet; `messages` holds the message of each send and receive.
    pub(super) fn new(
        provider: &Provider,
        list: &DeferredList,
        messages: Vec<Option<BoundMessage>>,
    ) -> Result<PostedList, OfiError> {
        let counters: Vec<Counter> = (0..=list.counters).map(|_| provider.counter()).collect::<Result<_, _>>()?;
        let notification = DeferredTask { after: Some(list.end), action: DeferredAction::Add { to: list.end.counter } };
        let mut works: Box<[PostedTask]> =
            list.tasks.iter().copied().chain([notification]).map(PostedTask::new).collect();
        for (work, message) in works.iter_mut().zip(messages.iter().map(Option::as_ref).chain([None])) {
            work.bind(provider, &counters, message);
        }
        // The last task adds to the counter of ended lists.
        works.last_mut().expect("the one behind all tasks").add.cntr = provider.ended;
        let bytes = messages.into_iter().flatten().filter_map(|(_, _, bytes)| bytes).collect();
        let (state, end) = (ListState::Posting(0), list.end);
        Ok(PostedList { state, counters, works, queued: 0, failed: 0, end, bytes, result: None })
    }

    pub(super) fn next_task(&mut self) -> PostStep {
        match &mut self.state {
            ListState::Posting(at) => {
                let now = *at;
                // Once the provider has the last task, it may end the list at any time.
                self.state = if now + 1 == self.works.len() { ListState::Posted } else { ListState::Posting(now + 1) };
                PostStep::Task(now, &raw mut self.works[now].work)
            }
            ListState::Abandoned { posting } => {
                *posting = false;
                PostStep::Abandoned
            }
            ListState::Posted | ListState::Ended { .. } => PostStep::Nothing,
        }
    }

    pub(super) fn queued(&mut self, provider: &Provider, at: usize) {
        self.queued = at + 1;
        if let ListState::Abandoned { .. } = self.state {
            self.cancel_receive(provider, at);
        }
    }

    pub(super) fn refuse(&mut self, provider: &Provider, error: OfiError) {
        self.abandon(provider, Some(error));
        self.state = ListState::Abandoned { posting: false };
    }

    /// Whether the task with this context belongs to this list.
    pub(super) fn has(&self, context: *mut c_void) -> bool {
        self.works.iter().any(|work| ptr::eq(work.work.context.as_ptr(), context.cast()))
    }

    pub(super) fn fail(&mut self, provider: &Provider, code: c_int) {
        self.failed += 1;
        let (provider_name, why) = (provider.name.clone(), provider.error_text(code));
        self.abandon(provider, Some(OfiError::Task { provider: provider_name, why }));
    }

    /// Withdraws the list, whose result nobody needs any more.
    pub(super) fn withdraw(&mut self, provider: &Provider) {
        self.abandon(provider, None);
        self.result = None;
    }

    fn abandon(&mut self, provider: &Provider, error: Option<OfiError>) {
        let posting = match self.state {
            ListState::Posting(_) => true,
            ListState::Posted => false,
            ListState::Ended { .. } | ListState::Abandoned { .. } => return,
        };
        self.state = ListState::Abandoned { posting };
        self.result = error.map(Err);
        (0..self.queued).for_each(|at| self.cancel_receive(provider, at));
    }

    fn cancel_receive(&mut self, provider: &Provider, at: usize) {
        if let DeferredAction::Receive { .. } = self.works[at].task.action {
            // SAFETY: the task has been queued, and its memory stays.
            unsafe { provider.cancel(self.works[at].work.context.as_mut_ptr().cast()) };
        }
    }

    /// Returns whether the list has ended since the last check. If so, releases the list's bytes.
    pub(super) fn poll_end(&mut self) -> bool {
        match &mut self.state {
            ListState::Posted if self.counters[self.end.counter as usize].read() >= self.end.value => {
                self.state = ListState::Ended { seen: false };
                self.result = Some(Ok(()));
                self.bytes.clear();
                return true;
            }
            ListState::Ended { seen } => *seen = true,
            ListState::Posting(_) | ListState::Posted | ListState::Abandoned { .. } => {}
        }
        false
    }

    pub(super) fn take_result(&mut self) -> Option<Result<(), OfiError>> {
        self.result.take()
    }

    /// The list has failed or was withdrawn, and the provider may still access the list.
    pub(super) fn is_abandoned(&self) -> bool {
        matches!(self.state, ListState::Abandoned { .. })
    }

    /// Whether the provider no longer accesses the list. `all_counted`: the provider's counter includes every ended
    /// list.
    pub(super) fn is_gone(&self, all_counted: bool) -> bool {
        match self.state {
            ListState::Posting(_) | ListState::Posted | ListState::Abandoned { posting: true } => false,
            ListState::Ended { seen } => seen && all_counted,
            ListState::Abandoned { posting: false } => self.is_quiet(),
        }
    }

    /// Whether every message that has begun is complete, failed or cancelled.
    fn is_quiet(&self) -> bool {
        // Counters first: a task that begins meanwhile then counts as begun and not complete.
        let counted: u64 = self.counters.iter().map(Counter::read).sum();
        let begun = |work: &&PostedTask| {
            work.task.after.is_none_or(|after| self.counters[after.counter as usize].read() >= after.value)
        };
        let (mut messages, mut added) = (0, 0);
        for work in self.works[..self.queued.min(self.works.len() - 1)].iter().filter(begun) {
            match work.task.action {
                DeferredAction::Send { .. } | DeferredAction::Receive { .. } => messages += 1,
                DeferredAction::Add { .. } => added += 1,
            }
        }
        counted + self.failed >= messages + added
    }
}

impl PostedTask {
    /// A task whose pointers are not set yet.
    fn new(task: DeferredTask) -> PostedTask {
        // SAFETY: all-zero bytes are a valid value: integers and null pointers.
        let (work, tagged, add, bytes) = unsafe { std::mem::zeroed() };
        PostedTask { work, tagged, add, bytes, task }
    }

    /// Sets all pointers of the task, which must not move from now on.
    fn bind(&mut self, provider: &Provider, counters: &[Counter], message: Option<&BoundMessage>) {
        let counter = |at: u32| counters[at as usize].raw();
        let still = counters.last().expect("one stays 0").raw();
        let PostedTask { work, tagged, add, bytes, task } = self;
        (work.triggering_cntr, work.threshold) =
            task.after.map_or((still, 0), |after| (counter(after.counter), after.value));
        match task.action {
            DeferredAction::Send { counts, .. } | DeferredAction::Receive { counts, .. } => {
                let (peer, tag, place) = message.expect("a message has a peer and a tag");
                *bytes = place.as_ref().map_or(*bytes, MappedBytes::iovec);
                tagged.ep = provider.ep;
                (tagged.msg.msg_iov, tagged.msg.iov_count) = (bytes, usize::from(place.is_some()));
                (tagged.msg.addr, tagged.msg.tag) = (*peer, *tag);
                // libfabric finds the work by the context of its message.
                tagged.msg.context = work.context.as_mut_ptr().cast();
                let sends = matches!(task.action, DeferredAction::Send { .. });
                work.op_type = if sends { ffi::FI_OP_TSEND } else { ffi::FI_OP_TRECV };
                (work.completion_cntr, work.op) = (counter(counts), (&raw mut *tagged).cast());
            }
            DeferredAction::Add { to } => {
                (add.cntr, add.value) = (counter(to), 1);
                (work.op_type, work.op) = (ffi::FI_OP_CNTR_ADD, (&raw mut *add).cast());
            }
        }
    }
}
