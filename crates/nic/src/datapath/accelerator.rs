//! The hardware threads of an accelerator: who works on which completion, and until when.
//!
//! Threads fill cores compactly, and each serves the completion queues of one or more subgroups, of one or more calls,
//! completion by completion (MC-10, MC-13, MC-15).
//!
//! | a thread | event | next |
//! |---|---|---|
//! | armed | completion | working, after its activation |
//! | polling | completion | working |
//! | working | completion | working; the completion is queued |
//! | working | time | working on the next one, or polling |
//! | polling | serves no queue any more | armed |
//!
//! Invariant: no thread has more completions than receives were posted; one that finds no receive is lost. Time comes
//! from the driver; [`Costs`] say how much of it a completion takes.

use std::collections::{BTreeSet, VecDeque};

use super::costs::Costs;
use super::settings::{Settings, Transport};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Armed,
    Polling,
    Working { until: u64 },
}

#[derive(Debug)]
struct Thread<C> {
    state: State,
    /// Completion queues that it serves.
    serves: u32,
    /// Completions, of which it works on the first, each with the receive that it has filled.
    queue: VecDeque<(u32, C)>,
    next_receive: u32,
}

/// A completion that a thread is done with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Done<C> {
    pub(super) thread: u32,
    /// The receive that it had filled, which is posted again.
    pub(super) receive: u32,
    pub(super) completion: C,
}

/// See the module. `C` is what a completion is about.
#[derive(Debug)]
pub(super) struct Accelerator<C> {
    costs: Costs,
    transport: Transport,
    receives: u32,
    threads: Vec<Thread<C>>,
    /// By core, its threads at work.
    working: Vec<u32>,
    /// When which thread is done with a completion.
    due: BTreeSet<(u64, u32)>,
}

impl<C> Accelerator<C> {
    pub(super) fn new(settings: &Settings) -> Self {
        let Settings { costs, transport, threads, receives, .. } = *settings;
        assert!((1..=costs.threads()).contains(&threads), "{threads} threads of {}", costs.threads());
        assert!(receives > 0, "a thread without a receive receives nothing");
        let thread = |_| Thread { state: State::Armed, serves: 0, queue: VecDeque::new(), next_receive: 0 };
        Accelerator {
            costs,
            transport,
            receives,
            threads: (0..threads).map(thread).collect(),
            working: vec![0; threads.div_ceil(costs.threads_per_core) as usize],
            due: BTreeSet::new(),
        }
    }

    /// A thread serves one more queue from now on: the first of those that serve fewest.
    pub(super) fn take(&mut self) -> u32 {
        let fewest = (0..).zip(&self.threads).min_by_key(|(_, thread)| thread.serves);
        let (number, _) = fewest.expect("there is a thread");
        self.threads[number as usize].serves += 1;
        number
    }

    /// It serves one queue less.
    pub(super) fn give_back(&mut self, number: u32) {
        let thread = &mut self.threads[number as usize];
        thread.serves -= 1;
        if thread.serves == 0 && thread.state == State::Polling {
            thread.state = State::Armed;
        }
    }

    /// A completion for a thread; the receive that it fills, if one is posted.
    pub(super) fn complete(&mut self, now: u64, number: u32, completion: C) -> Option<u32> {
        let thread = &mut self.threads[number as usize];
        if thread.queue.len() == self.receives as usize {
            return None;
        }
        let receive = thread.next_receive;
        thread.next_receive = (receive + 1) % self.receives;
        thread.queue.push_back((receive, completion));
        match thread.state {
            State::Armed => self.work(now.saturating_add(self.costs.activation), number),
            State::Polling => self.work(now, number),
            State::Working { .. } => {}
        }
        Some(receive)
    }

    fn core_of(&self, number: u32) -> usize {
        (number / self.costs.threads_per_core) as usize
    }

    /// A thread begins with its first completion.
    fn work(&mut self, from: u64, number: u32) {
        let core = self.core_of(number);
        self.working[core] += 1;
        let takes = self.costs.nanoseconds(self.transport, self.working[core]);
        let until = from.saturating_add(takes.round() as u64);
        self.threads[number as usize].state = State::Working { until };
        self.due.insert((until, number));
    }

    /// When a thread is done with a completion next.
    pub(super) fn next(&self) -> Option<u64> {
        self.due.first().map(|(until, _)| *until)
    }

    /// The next completion that a thread is done with by now, and when it was.
    pub(super) fn pop_done(&mut self, now: u64) -> Option<(u64, Done<C>)> {
        let until = self.next().filter(|until| *until <= now)?;
        let (_, number) = self.due.pop_first()?;
        let core = self.core_of(number);
        self.working[core] -= 1;
        let thread = &mut self.threads[number as usize];
        let (receive, completion) = thread.queue.pop_front().expect("it worked on one");
        thread.state = if thread.serves > 0 { State::Polling } else { State::Armed };
        if !thread.queue.is_empty() {
            self.work(until, number);
        }
        Some((until, Done { thread: number, receive, completion }))
    }

    /// Whether no thread has anything to do, or any queue to serve.
    pub(super) fn is_idle(&self) -> bool {
        self.due.is_empty() && self.threads.iter().all(|thread| thread.serves == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn accelerator(threads: u32, receives: u32, activation: u64) -> Accelerator<u32> {
        let costs = Costs { activation, ..Costs::bluefield3() };
        Accelerator::new(&Settings { threads, receives, costs, ..Settings::default() })
    }

    /// MC-15: the first event activates a thread, and it stays active while it has queues to serve.
    #[test]
    fn mc_15_a_thread_is_activated_by_its_first_completion() {
        let mut accelerator = accelerator(1, 4, 1_000);
        let alone = accelerator.costs.nanoseconds(Transport::Datagrams, 1).round() as u64;
        let done_at = |accelerator: &mut Accelerator<u32>, now| {
            accelerator.complete(now, 0, 0).expect("a receive");
            accelerator.pop_done(u64::MAX).expect("it was worked on").0 - now
        };
        accelerator.take();
        assert_eq!(done_at(&mut accelerator, 0), 1_000 + alone);
        assert_eq!(done_at(&mut accelerator, 10_000), alone, "it polls");
        accelerator.give_back(0);
        assert_eq!(done_at(&mut accelerator, 20_000), 1_000 + alone, "it was armed again");
        assert!(accelerator.is_idle());
    }

    /// MC-15: core by core; those of one core stall each other, those of others do not.
    #[test]
    fn mc_15_threads_fill_cores_compactly() {
        let mut accelerator = accelerator(32, 1, 0);
        assert_eq!((0..33).map(|_| accelerator.take()).collect::<Vec<_>>(), (0..32).chain([0]).collect::<Vec<_>>());
        let ends = [0, 1, 16].map(|thread| {
            accelerator.complete(0, thread, thread).expect("a receive");
            let State::Working { until } = accelerator.threads[thread as usize].state else { panic!("it works") };
            until
        });
        assert!(ends[1] > ends[0] && ends[2] == ends[0], "{ends:?}");
    }

    /// MC-4: a completion without a receive is lost; receives return in order.
    #[test]
    fn a_thread_has_as_many_completions_as_receives() {
        let mut accelerator = accelerator(1, 2, 0);
        assert_eq!([1, 2, 3].map(|at| accelerator.complete(0, 0, at)), [Some(0), Some(1), None]);
        let first = accelerator.pop_done(u64::MAX).expect("the first").1;
        assert_eq!(first, Done { thread: 0, receive: 0, completion: 1 });
        assert_eq!(accelerator.complete(0, 0, 4), Some(0));
        assert!(accelerator.pop_done(0).is_none(), "it takes time");
        let rest: Vec<u32> =
            std::iter::from_fn(|| accelerator.pop_done(u64::MAX)).map(|(_, done)| done.completion).collect();
        assert_eq!(rest, [2, 4]);
    }
}
