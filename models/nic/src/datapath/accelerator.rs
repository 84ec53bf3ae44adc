//! The hardware threads of an accelerator: which completion each works on, and until when.
//!
//! Threads fill cores compactly. Each thread serves the completion queues of one or more subgroups, of one or more
//! calls, completion by completion (MC-10, MC-13, MC-15).
//!
//! | a thread | event | next |
//! |---|---|---|
//! | armed | completion | working, after its activation |
//! | polling | completion | working |
//! | working | completion | working; the completion is queued |
//! | working | time | working on the next completion, or polling |
//! | polling | its last queue is gone | armed |
//!
//! Invariant: no thread has more completions than posted receives; a completion without a receive is lost. Time comes
//! from the driver; [`DatapathCosts`] determine the time that a completion takes.

use std::collections::{BTreeSet, VecDeque};

use super::costs::DatapathCosts;
use super::settings::{DatapathSettings, Transport};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ThreadState {
    Armed,
    Polling,
    Working { until: u64 },
}

#[derive(Debug)]
struct Thread<C> {
    state: ThreadState,
    /// Number of completion queues that the thread serves.
    serves: u32,
    /// Completions, each with the receive that it has filled; the thread works on the first.
    queue: VecDeque<(u32, C)>,
    next_receive: u32,
}

/// A completion that a thread has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FinishedCompletion<C> {
    pub(super) thread: u32,
    /// The receive that the completion had filled; it is posted again.
    pub(super) receive: u32,
    pub(super) completion: C,
}

/// The hardware threads; the module describes their states. `C` is the content of a completion.
#[derive(Debug)]
pub(super) struct Accelerator<C> {
    costs: DatapathCosts,
    transport: Transport,
    receives: u32,
    threads: Vec<Thread<C>>,
    /// Number of working threads, by core.
    working: Vec<u32>,
    /// Time at which each working thread finishes its completion.
    due: BTreeSet<(u64, u32)>,
}

impl<C> Accelerator<C> {
    pub(super) fn new(settings: &DatapathSettings) -> Self {
        let DatapathSettings { costs, transport, threads, receives, .. } = *settings;
        assert!((1..=costs.threads()).contains(&threads), "{threads} threads of {}", costs.threads());
        assert!(receives > 0, "a thread without a receive receives nothing");
        let thread = |_| Thread { state: ThreadState::Armed, serves: 0, queue: VecDeque::new(), next_receive: 0 };
        Accelerator {
            costs,
            transport,
            receives,
            threads: (0..threads).map(thread).collect(),
            working: vec![0; threads.div_ceil(costs.threads_per_core) as usize],
            due: BTreeSet::new(),
        }
    }

    /// Assigns one more queue to the thread that serves the fewest, and returns the thread.
    pub(super) fn assign_queue(&mut self) -> u32 {
        let fewest = (0..).zip(&self.threads).min_by_key(|(_, thread)| thread.serves);
        let (number, _) = fewest.expect("there is a thread");
        self.threads[number as usize].serves += 1;
        number
    }

    /// Takes one queue from a thread.
    pub(super) fn release_queue(&mut self, number: u32) {
        let thread = &mut self.threads[number as usize];
        thread.serves -= 1;
        if thread.serves == 0 && thread.state == ThreadState::Polling {
            thread.state = ThreadState::Armed;
        }
    }

    /// Queues a completion for a thread; returns the receive that it fills, if one is posted.
    pub(super) fn complete(&mut self, now: u64, number: u32, completion: C) -> Option<u32> {
        let thread = &mut self.threads[number as usize];
        if thread.queue.len() == self.receives as usize {
            return None;
        }
        let receive = thread.next_receive;
        thread.next_receive = (receive + 1) % self.receives;
        thread.queue.push_back((receive, completion));
        match thread.state {
            ThreadState::Armed => self.work(now.saturating_add(self.costs.activation), number),
            ThreadState::Polling => self.work(now, number),
            ThreadState::Working { .. } => {}
        }
        Some(receive)
    }

    fn core_of(&self, number: u32) -> usize {
        (number / self.costs.threads_per_core) as usize
    }

    /// Starts a thread on its first completion.
    fn work(&mut self, from: u64, number: u32) {
        let core = self.core_of(number);
        self.working[core] += 1;
        let takes = self.costs.nanoseconds(self.transport, self.working[core]);
        let until = from.saturating_add(takes.round() as u64);
        self.threads[number as usize].state = ThreadState::Working { until };
        self.due.insert((until, number));
    }

    /// The time at which the next completion is finished.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// The next completion that is finished by now, with the time when it was finished.
    pub(super) fn pop_finished(&mut self, now: u64) -> Option<(u64, FinishedCompletion<C>)> {
        let until = self.next().filter(|until| *until <= now)?;
        let (_, number) = self.due.pop_first()?;
        let core = self.core_of(number);
        self.working[core] -= 1;
        let thread = &mut self.threads[number as usize];
        let (receive, completion) = thread.queue.pop_front().expect("it worked on one");
        thread.state = if thread.serves > 0 { ThreadState::Polling } else { ThreadState::Armed };
        if !thread.queue.is_empty() {
            self.work(until, number);
        }
        Some((until, FinishedCompletion { thread: number, receive, completion }))
    }

    /// Whether no thread has work or a queue to serve.
    pub(super) fn is_idle(&self) -> bool {
        self.due.is_empty() && self.threads.iter().all(|thread| thread.serves == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accelerator(threads: u32, receives: u32, activation: u64) -> Accelerator<u32> {
        let costs = DatapathCosts { activation, ..DatapathCosts::bluefield3() };
        Accelerator::new(&DatapathSettings { threads, receives, costs, ..DatapathSettings::default() })
    }

    /// MC-15: the first completion activates a thread, which stays active while it has queues to serve.
    #[test]
    fn mc_15_a_thread_is_activated_by_its_first_completion() {
        let mut accelerator = accelerator(1, 4, 1_000);
        let alone = accelerator.costs.nanoseconds(Transport::Datagrams, 1).round() as u64;
        let done_at = |accelerator: &mut Accelerator<u32>, now| {
            accelerator.complete(now, 0, 0).expect("a receive");
            accelerator.pop_finished(u64::MAX).expect("it was worked on").0 - now
        };
        accelerator.assign_queue();
        assert_eq!(done_at(&mut accelerator, 0), 1_000 + alone);
        assert_eq!(done_at(&mut accelerator, 10_000), alone, "it polls");
        accelerator.release_queue(0);
        assert_eq!(done_at(&mut accelerator, 20_000), 1_000 + alone, "it was armed again");
        assert!(accelerator.is_idle());
    }

    /// MC-15: threads fill core by core. Threads of one core stall each other, threads of different cores do not.
    #[test]
    fn mc_15_threads_fill_cores_compactly() {
        let mut accelerator = accelerator(32, 1, 0);
        assert_eq!(
            (0..33).map(|_| accelerator.assign_queue()).collect::<Vec<_>>(),
            (0..32).chain([0]).collect::<Vec<_>>()
        );
        let ends = [0, 1, 16].map(|thread| {
            accelerator.complete(0, thread, thread).expect("a receive");
            let ThreadState::Working { until } = accelerator.threads[thread as usize].state else { panic!("it works") };
            until
        });
        assert!(ends[1] > ends[0] && ends[2] == ends[0], "{ends:?}");
    }

    /// MC-4: a completion without a receive is lost; receives are reused in order.
    #[test]
    fn a_thread_has_as_many_completions_as_receives() {
        let mut accelerator = accelerator(1, 2, 0);
        assert_eq!([1, 2, 3].map(|at| accelerator.complete(0, 0, at)), [Some(0), Some(1), None]);
        let first = accelerator.pop_finished(u64::MAX).expect("the first").1;
        assert_eq!(first, FinishedCompletion { thread: 0, receive: 0, completion: 1 });
        assert_eq!(accelerator.complete(0, 0, 4), Some(0));
        assert!(accelerator.pop_finished(0).is_none(), "it takes time");
        let rest: Vec<u32> =
            std::iter::from_fn(|| accelerator.pop_finished(u64::MAX)).map(|(_, done)| done.completion).collect();
        assert_eq!(rest, [2, 4]);
    }
}
