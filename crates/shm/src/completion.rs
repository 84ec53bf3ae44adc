//! Completion words: results of requests, which a rank polls without a system call.
//!
//! Each request in flight owns a word. The service process stores the request's result in the word (GP-7), then
//! advances the epoch that all words share. The service process wakes the futex on the epoch only if a sleeper waits
//! for that word or for any word. So a rank that waits for one word names that word: a wake-up for another word costs
//! both sides more than all other work of a completion.
//!
//! The service process stores the word, advances the epoch, fences, loads the waiters. A rank enters itself among the
//! waiters, fences, loads the epoch, then checks its words. At least one of the two sees the store of the other (loom:
//! `loom_no_completion_is_slept_through`). The service process never reads a word, and a rank that falsifies its
//! waiters misleads only itself.

use crate::status::Status;
use crate::sync::{AtomicU32, CachePadded, Futex, Ordering, fence};
use std::time::{Duration, Instant};

/// State that all completion words of a rank share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Epoch {
    value: CachePadded<Futex>,
    waiters: CachePadded<CompletionWaiters>,
}

/// The sleepers. Each waiter is entered in one of the two fields.
#[derive(Debug, Default)]
#[repr(C)]
struct CompletionWaiters {
    /// Number of waiters for any completion.
    any_waiters: AtomicU32,
    /// The slot for which a single waiter waits, counted from 1; 0 if there is no such waiter.
    single_waiter: AtomicU32,
}

/// One completion word: 0 while pending, else a [`Status`].
#[derive(Debug, Default)]
#[repr(transparent)]
pub struct CompletionWord(AtomicU32);

/// A view of a rank's completion words, for either side.
#[derive(Debug, Clone, Copy)]
pub struct CompletionTable<'a> {
    epoch: &'a Epoch,
    words: &'a [CompletionWord],
}

impl<'a> CompletionTable<'a> {
    /// A view of the table made of these parts.
    pub fn new(epoch: &'a Epoch, words: &'a [CompletionWord]) -> Self {
        CompletionTable { epoch, words }
    }

    /// Service process: stores the result of the request that owns `slot` and wakes the rank if it sleeps. A rank that
    /// sees the result also sees everything that was written to its memory before.
    ///
    /// # Panics
    /// If `slot` is out of range: submissions are checked before they get this far.
    pub fn complete(&self, slot: u32, status: Status) {
        self.words[slot as usize].0.store(status.to_word(), Ordering::Release);
        self.wake(Some(slot));
    }

    /// Service process: wakes every sleeping thread of the rank. Each thread then sees everything that was stored
    /// before.
    pub fn announce(&self) {
        self.wake(None);
    }

    fn wake(&self, slot: Option<u32>) {
        self.epoch.value.0.word().fetch_add(1, Ordering::Release);
        fence(Ordering::SeqCst);
        if self.has_waiter_for(slot) {
            self.epoch.value.0.wake_all();
        }
    }

    /// Whether a waiter waits for the completion of `slot`. Without a slot: whether there is any waiter.
    fn has_waiter_for(&self, slot: Option<u32>) -> bool {
        let CompletionWaiters { any_waiters, single_waiter } = &self.epoch.waiters.0;
        let alone = single_waiter.load(Ordering::Relaxed);
        any_waiters.load(Ordering::Relaxed) != 0 || (alone != 0 && slot.is_none_or(|slot| alone == slot + 1))
    }

    /// Rank: makes the word of `slot` pending, before the request is submitted.
    pub fn arm(&self, slot: u32) {
        self.words[slot as usize].0.store(0, Ordering::Relaxed);
    }

    /// Rank: the result in `slot`, or `None` while pending.
    pub fn result(&self, slot: u32) -> Option<Status> {
        match self.words[slot as usize].0.load(Ordering::Acquire) {
            0 => None,
            word => Some(Status::from_word(word)),
        }
    }

    /// Rank: sleeps until `done` holds or `limit` has passed; returns the last result of `done`. `done` checks words of
    /// this table. Without `slot`, `done` is called again after each completion. With `slot`, `done` may be called
    /// again only after the completion of `slot` or an announcement.
    pub fn wait(&self, slot: Option<u32>, limit: Option<Duration>, mut done: impl FnMut() -> bool) -> bool {
        let deadline = limit.and_then(|limit| Instant::now().checked_add(limit));
        let CompletionWaiters { any_waiters, single_waiter } = &self.epoch.waiters.0;
        let enter =
            |slot: u32| single_waiter.compare_exchange(0, slot + 1, Ordering::Relaxed, Ordering::Relaxed).is_ok();
        let alone = slot.is_some_and(enter);
        if !alone {
            any_waiters.fetch_add(1, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
        let outcome = loop {
            let epoch = self.epoch.value.0.word().load(Ordering::Acquire);
            if done() {
                break true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                break false;
            }
            self.epoch.value.0.wait(epoch, left);
        };
        if alone {
            single_waiter.store(0, Ordering::Relaxed);
        } else {
            any_waiters.fetch_sub(1, Ordering::Relaxed);
        }
        outcome
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn words(count: usize) -> Vec<CompletionWord> {
        (0..count).map(|_| CompletionWord::default()).collect()
    }

    #[test]
    fn words_are_four_bytes_and_the_epoch_has_separate_cache_lines() {
        assert_eq!(size_of::<CompletionWord>(), 4);
        assert_eq!(size_of::<Epoch>(), 256);
    }

    #[test]
    fn a_result_is_seen_once_stored_and_gone_once_armed() {
        let (epoch, words) = (Epoch::default(), words(2));
        let completion_table = CompletionTable::new(&epoch, &words);
        assert_eq!(completion_table.result(1), None);
        completion_table.complete(1, Status::RankLost);
        assert_eq!(completion_table.result(1), Some(Status::RankLost));
        assert_eq!(completion_table.result(0), None);
        completion_table.arm(1);
        assert_eq!(completion_table.result(1), None);
    }

    #[test]
    fn a_wait_ends_at_its_limit() {
        let (epoch, words) = (Epoch::default(), words(1));
        let completion_table = CompletionTable::new(&epoch, &words);
        assert!(!completion_table.wait(None, Some(Duration::from_millis(1)), || completion_table.result(0).is_some()));
    }

    #[test]
    fn a_completion_wakes_waiters_for_its_word_or_for_any() {
        let (epoch, words) = (Epoch::default(), words(3));
        let completion_table = CompletionTable::new(&epoch, &words);
        let concerned = || {
            [
                completion_table.has_waiter_for(Some(0)),
                completion_table.has_waiter_for(Some(1)),
                completion_table.has_waiter_for(None),
            ]
        };
        let now = Some(Duration::ZERO);
        assert_eq!(concerned(), [false; 3]);
        completion_table.wait(Some(0), now, || {
            assert_eq!(concerned(), [true, false, true]);
            // Only one waiter can wait for a single word. A second such waiter waits for any word.
            completion_table.wait(Some(1), now, || {
                assert_eq!(concerned(), [true; 3]);
                false
            });
            assert_eq!(concerned(), [true, false, true]);
            false
        });
        completion_table.wait(None, now, || {
            assert_eq!(concerned(), [true; 3]);
            false
        });
        assert_eq!(concerned(), [false; 3]);
    }

    #[test]
    fn sleepers_wake_when_their_word_completes() {
        let (epoch, words) = (Epoch::default(), words(3));
        let completion_table = CompletionTable::new(&epoch, &words);
        std::thread::scope(|scope| {
            for slot in 0..3 {
                scope.spawn(move || {
                    assert!(completion_table.wait(Some(slot), None, || completion_table.result(slot).is_some()))
                });
            }
            for slot in 0..3 {
                completion_table.complete(slot, Status::Ok);
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::ring::{Ring, RingSlot, RingState, WakeAction};
    use crate::sync::check_model;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct CompletionModel {
        epoch: Epoch,
        words: [CompletionWord; 2],
    }

    fn slept_through(sleepers: u32, single_waiter: bool) {
        check_model(move || {
            let shared = Arc::new(CompletionModel::default());
            let threads: Vec<_> = (0..sleepers)
                .map(|slot| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || {
                        let completion_table = CompletionTable::new(&shared.epoch, &shared.words);
                        assert!(
                            completion_table
                                .wait(single_waiter.then_some(slot), None, || completion_table.result(slot).is_some())
                        );
                    })
                })
                .collect();
            for slot in 0..sleepers {
                CompletionTable::new(&shared.epoch, &shared.words).complete(slot, Status::Ok);
            }
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_no_completion_is_slept_through() {
        slept_through(1, false);
        slept_through(1, true);
    }

    #[test]
    fn loom_no_completion_is_slept_through_by_two_threads() {
        slept_through(2, false);
        slept_through(2, true);
    }

    /// Two requests use one word in turn. For each request the rank arms, submits and sleeps. The service process takes
    /// the request, writes the rank's memory and completes. The rank sees the written bytes, and no result of the round
    /// before.
    #[test]
    fn loom_a_reused_word_publishes_earlier_writes() {
        const ROUNDS: u64 = 2;
        #[derive(Default)]
        struct RequestModel {
            completion_table: CompletionModel,
            state: RingState,
            slots: [RingSlot; 2],
            /// Written only by the service process while a request is in flight.
            memory: UnsafeCell<u64>,
        }
        check_model(|| {
            let region = Arc::new(RequestModel::default());
            let serving = region.clone();
            let service = loom::thread::spawn(move || {
                let completion_table =
                    CompletionTable::new(&serving.completion_table.epoch, &serving.completion_table.words);
                let mut head = 0;
                while head < ROUNDS {
                    match Ring::new(&serving.state, &serving.slots).pop(&mut head) {
                        Some(words) => {
                            // SAFETY: the rank does not read before the request is complete.
                            serving.memory.with_mut(|memory| unsafe { *memory = words[0] });
                            completion_table.complete(0, Status::Ok);
                        }
                        None => loom::thread::yield_now(),
                    }
                }
            });
            let completion_table = CompletionTable::new(&region.completion_table.epoch, &region.completion_table.words);
            for round in 1..=ROUNDS {
                completion_table.arm(0);
                let pushed = Ring::new(&region.state, &region.slots).push(&[round]);
                assert_eq!(pushed, Ok(WakeAction::Awake), "the service process of this test does not sleep");
                assert!(completion_table.wait(Some(0), None, || completion_table.result(0).is_some()));
                // SAFETY: the request is complete, the next not submitted.
                region.memory.with(|memory| assert_eq!(unsafe { *memory }, round));
            }
            service.join().unwrap();
        });
    }
}
