//! The submission ring: bounded, many threads of one rank produce, the service process consumes.
//!
//! A producer draws a ticket, fills the slot that the ticket names and publishes it by advancing the slot's turn. With
//! `round = ticket / capacity` a slot's turn is
//!
//! | turn | the slot is | next, by |
//! |---|---|---|
//! | `2 * round` | free for the ticket of `round` | `2 * round + 1`, the producer that holds the ticket |
//! | `2 * round + 1` | filled | `2 * (round + 1)`, the consumer |
//!
//! so that zeroed memory is an empty ring. The consumer keeps its position private: a rank that overwrites the ring can
//! only lose or damage its own entries.
//!
//! Sleeping: the producer stores its entry, fences, loads the flag; the consumer stores the flag, fences, checks the
//! ring again. One of the two sees the other (loom: `no_wake_up_is_lost`). The producer that lowers the flag rings.
//! Nothing here makes a system call or waits.

use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering, fence};
use std::cmp::Ordering::{Equal, Greater, Less};

/// Words of an entry; with the turn a slot is 128 bytes. Loom takes more time with each atomic, and one word proves as
/// much as 15.
pub const ENTRY_WORDS: usize = if cfg!(loom) { 1 } else { 15 };

/// An entry as it lies in the ring.
pub type EntryWords = [u64; ENTRY_WORDS];

/// One place of the ring.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct RingSlot {
    turn: AtomicU64,
    words: [AtomicU64; ENTRY_WORDS],
}

/// State that producers and consumer share beside the slots.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RingState {
    ticket: CachePadded<AtomicU64>,
    sleeping: CachePadded<AtomicU32>,
}

/// The ring is full: the service process has not taken the ring's entries yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("submission ring full: the service process has not taken its {capacity} entries; test or wait for requests")]
pub struct RingFull {
    pub capacity: usize,
}

/// Action of a producer after its push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use = "a sleeping consumer stays asleep unless the doorbell is rung"]
pub enum WakeAction {
    /// The consumer sleeps, and this producer must ring.
    Ring,
    /// The consumer is awake, or another producer rings.
    Awake,
}

/// A view of a ring, for either side.
#[derive(Debug, Clone, Copy)]
pub struct Ring<'a> {
    state: &'a RingState,
    slots: &'a [RingSlot],
}

impl<'a> Ring<'a> {
    /// A view of the ring made of these parts.
    ///
    /// # Panics
    /// If the number of slots is not a power of two.
    pub fn new(state: &'a RingState, slots: &'a [RingSlot]) -> Self {
        assert!(slots.len().is_power_of_two(), "{} slots", slots.len());
        Ring { state, slots }
    }

    fn slot_at(&self, position: u64) -> (&'a RingSlot, u64) {
        let capacity = self.slots.len() as u64;
        let round = position / capacity;
        (&self.slots[(position % capacity) as usize], round.wrapping_mul(2))
    }

    /// Producer: appends an entry. Never blocks; lock-free among producers.
    pub fn push(&self, words: &EntryWords) -> Result<WakeAction, RingFull> {
        let mut position = self.state.ticket.0.load(Ordering::Relaxed);
        let (slot, free) = loop {
            let (slot, free) = self.slot_at(position);
            match slot.turn.load(Ordering::Acquire).cmp(&free) {
                Less => {
                    return Err(RingFull { capacity: self.slots.len() });
                }
                Greater => position = self.state.ticket.0.load(Ordering::Relaxed),
                Equal => match self.state.ticket.0.compare_exchange_weak(
                    position,
                    position.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                ) {
                    Ok(_) => break (slot, free),
                    Err(current) => position = current,
                },
            }
        };
        for (cell, word) in slot.words.iter().zip(words) {
            cell.store(*word, Ordering::Relaxed);
        }
        slot.turn.store(free + 1, Ordering::Release);
        Ok(self.wake())
    }

    /// Producer: wakes a sleeping consumer, after an entry was pushed or other work was left for the consumer.
    pub fn wake(&self) -> WakeAction {
        fence(Ordering::SeqCst);
        let sleeping = &self.state.sleeping.0;
        if sleeping.load(Ordering::Relaxed) != 0 && sleeping.swap(0, Ordering::AcqRel) != 0 {
            WakeAction::Ring
        } else {
            WakeAction::Awake
        }
    }

    /// Consumer: copies the entry at `head` out and advances `head`; `None` if no entry is published there.
    pub fn pop(&self, head: &mut u64) -> Option<EntryWords> {
        let (slot, free) = self.slot_at(*head);
        if slot.turn.load(Ordering::Acquire) != free + 1 {
            return None;
        }
        let mut words = [0; ENTRY_WORDS];
        for (word, cell) in words.iter_mut().zip(&slot.words) {
            *word = cell.load(Ordering::Relaxed);
        }
        slot.turn.store(free + 2, Ordering::Release);
        *head += 1;
        Some(words)
    }

    /// Consumer: raises the sleeping flag and checks the ring once more. Returns `true` if the consumer may sleep: the
    /// next push rings. Returns `false` if an entry is there; the flag is lowered again.
    pub fn prepare_sleep(&self, head: u64) -> bool {
        // The proof needs a swap, not a store: the swap is ordered among the producers' swaps.
        self.state.sleeping.0.swap(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (slot, free) = self.slot_at(head);
        if slot.turn.load(Ordering::Acquire) == free + 1 {
            self.stay_awake();
            return false;
        }
        true
    }

    /// Consumer: lowers the sleeping flag after any wake-up, so that pushes make no system calls.
    pub fn stay_awake(&self) {
        self.state.sleeping.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ring(capacity: usize) -> (RingState, Vec<RingSlot>) {
        (RingState::default(), (0..capacity).map(|_| RingSlot::default()).collect())
    }

    fn entry(value: u64) -> EntryWords {
        let mut words = [0; ENTRY_WORDS];
        words[0] = value;
        words[ENTRY_WORDS - 1] = !value;
        words
    }

    #[test]
    fn a_slot_is_two_cache_lines() {
        assert_eq!(size_of::<RingSlot>(), 128);
        assert_eq!(size_of::<RingState>(), 256);
    }

    #[test]
    fn entries_come_out_in_order_over_many_rounds() {
        let (state, slots) = ring(4);
        let ring = Ring::new(&state, &slots);
        let mut head = 0;
        for value in 0..50 {
            assert_eq!(ring.push(&entry(value)), Ok(WakeAction::Awake));
            assert_eq!(ring.push(&entry(value + 1000)), Ok(WakeAction::Awake));
            assert_eq!(ring.pop(&mut head), Some(entry(value)));
            assert_eq!(ring.pop(&mut head), Some(entry(value + 1000)));
            assert_eq!(ring.pop(&mut head), None);
        }
    }

    #[test]
    fn a_full_ring_refuses_and_recovers() {
        let (state, slots) = ring(2);
        let ring = Ring::new(&state, &slots);
        let mut head = 0;
        assert!(ring.push(&entry(1)).is_ok());
        assert!(ring.push(&entry(2)).is_ok());
        assert_eq!(ring.push(&entry(3)), Err(RingFull { capacity: 2 }));
        assert_eq!(ring.pop(&mut head), Some(entry(1)));
        assert!(ring.push(&entry(3)).is_ok());
        assert_eq!(ring.pop(&mut head), Some(entry(2)));
        assert_eq!(ring.pop(&mut head), Some(entry(3)));
    }

    #[test]
    fn one_push_rings_for_a_sleeping_consumer() {
        let (state, slots) = ring(4);
        let ring = Ring::new(&state, &slots);
        let mut head = 0;
        assert!(ring.prepare_sleep(head));
        assert_eq!(ring.push(&entry(1)), Ok(WakeAction::Ring));
        assert_eq!(ring.push(&entry(2)), Ok(WakeAction::Awake));
        assert!(!ring.prepare_sleep(head), "entries are waiting");
        assert!(ring.pop(&mut head).is_some());
        assert!(ring.pop(&mut head).is_some());
        assert!(ring.prepare_sleep(head));
        ring.stay_awake();
        assert_eq!(ring.push(&entry(3)), Ok(WakeAction::Awake));
    }

    /// MC-9: several threads of a rank post at once. No entry is lost or doubled, and each thread's entries keep their
    /// order.
    #[test]
    fn threads_share_the_ring() {
        const THREADS: u64 = 3;
        let each = if cfg!(miri) { 20 } else { 5_000 };
        let (state, slots) = ring(8);
        let ring = Ring::new(&state, &slots);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                scope.spawn(move || {
                    for count in 0..each {
                        while ring.push(&entry(thread << 32 | count)).is_err() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let (mut head, mut next) = (0, [0; THREADS as usize]);
            while head < THREADS * each {
                let Some(words) = ring.pop(&mut head) else {
                    std::thread::yield_now();
                    continue;
                };
                let (thread, count) = (words[0] >> 32, words[0] & 0xffff_ffff);
                assert_eq!(words, entry(words[0]));
                assert_eq!(count, next[thread as usize]);
                next[thread as usize] += 1;
            }
        });
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::check_model;
    use loom::sync::{Arc, Condvar, Mutex};

    #[derive(Default)]
    struct RingModel {
        state: RingState,
        slots: [RingSlot; 2],
        bell: Mutex<bool>,
        rung: Condvar,
    }

    impl RingModel {
        fn push(&self, value: u64) {
            if Ring::new(&self.state, &self.slots).push(&[value]) == Ok(WakeAction::Ring) {
                *self.bell.lock().unwrap() = true;
                self.rung.notify_one();
            }
        }

        /// Sleeps as the service process does; after a lost wake-up loom has no thread to run.
        fn sleep(&self, head: u64) {
            if Ring::new(&self.state, &self.slots).prepare_sleep(head) {
                let mut bell = self.bell.lock().unwrap();
                while !*bell {
                    bell = self.rung.wait(bell).unwrap();
                }
                *bell = false;
            }
        }
    }

    fn drained(producers: u64) {
        check_model(move || {
            let shared = Arc::new(RingModel::default());
            let threads: Vec<_> = (1..=producers)
                .map(|value| {
                    let shared = shared.clone();
                    loom::thread::spawn(move || shared.push(value))
                })
                .collect();
            let (mut head, mut sum) = (0, 0);
            while head < producers {
                match Ring::new(&shared.state, &shared.slots).pop(&mut head) {
                    Some(words) => sum += words[0],
                    None => shared.sleep(head),
                }
            }
            assert_eq!(sum, producers * (producers + 1) / 2);
            for thread in threads {
                thread.join().unwrap();
            }
        });
    }

    #[test]
    fn loom_no_wake_up_is_lost() {
        drained(1);
    }

    #[test]
    fn loom_no_wake_up_is_lost_among_two_producers() {
        drained(2);
    }

    /// The consumer is also woken by another event, such as a timer, and lowers the flag while the producer reads the
    /// flag.
    #[test]
    fn loom_no_wake_up_is_lost_by_a_wake_without_a_push() {
        check_model(|| {
            let shared = Arc::new(RingModel::default());
            let (pushing, waking) = (shared.clone(), shared.clone());
            let producer = loom::thread::spawn(move || pushing.push(1));
            let timer = loom::thread::spawn(move || {
                *waking.bell.lock().unwrap() = true;
                waking.rung.notify_one();
            });
            let ring = || Ring::new(&shared.state, &shared.slots);
            let mut head = 0;
            while ring().pop(&mut head).is_none() {
                shared.sleep(head);
                ring().stay_awake();
            }
            producer.join().unwrap();
            timer.join().unwrap();
        });
    }

    /// More entries than slots: a slot is filled again only after it was emptied, and no entry is overwritten.
    #[test]
    fn loom_slots_are_used_again() {
        const ENTRIES: u64 = 3;
        check_model(|| {
            let shared = Arc::new(RingModel::default());
            let pushing = shared.clone();
            let producer = loom::thread::spawn(move || {
                for value in 1..=ENTRIES {
                    while Ring::new(&pushing.state, &pushing.slots).push(&[value]).is_err() {
                        loom::thread::yield_now();
                    }
                }
            });
            let mut head = 0;
            while head < ENTRIES {
                match Ring::new(&shared.state, &shared.slots).pop(&mut head) {
                    Some(words) => assert_eq!(words, [head], "in order, each once"),
                    None => loom::thread::yield_now(),
                }
            }
            producer.join().unwrap();
        });
    }
}
