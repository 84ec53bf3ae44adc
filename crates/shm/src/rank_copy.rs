//! Rank copies: copies into a rank's memory that the rank does itself while it waits in the library (SP-6).
//!
//! The service process offers a copy that it would else do itself. A waiting thread of the rank claims the copy, copies
//! once where the service process would copy twice, and reports. A copy has one of [`RANK_COPIES`] slots, and each slot
//! has a bit in a word that both sides change. The side that clears the bit owns the copy:
//!
//! | a copy is | on | goes to |
//! |---|---|---|
//! | free | [`RankCopyTable::offer`] | offered: its bit is up |
//! | offered | [`RankCopyTable::claim`] by the rank | taken |
//! | offered | [`RankCopyTable::withdraw`] by the service process | free |
//! | taken | [`RankCopyTable::report`] by the rank | reported |
//! | reported | [`RankCopyTable::outcome`] by the service process | free |
//!
//! The service process offers, fences, checks for waiting threads. A thread that stops waiting lowers the count of
//! waiting threads, fences, checks for offers. One of the two sees the other, so no offer stays unnoticed (loom:
//! `loom_no_offered_copy_is_left_behind`). The epoch of [`crate::completion`] ensures that no sleeper misses an offer.
//! The service process keeps its own list of its offers and reads back only bit and report. So a rank that falsifies
//! this memory misleads only itself.

use crate::sync::{AtomicU32, AtomicU64, CachePadded, Ordering, fence};

/// Slots of copies, one for each bit of a word. Loom takes more time with each slot.
pub const RANK_COPIES: usize = if cfg!(loom) { 2 } else { 64 };

/// A copy: source, target and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RankCopy {
    /// The process that holds the bytes, by its number for the service process.
    pub pid: u32,
    pub source: u64,
    pub target: u64,
    pub bytes: u64,
    /// Address of `nonce` in the process that holds the bytes.
    pub mark: u64,
    /// Bytes that no other process has at `mark`.
    pub nonce: [u8; 16],
}

/// Words of a copy. For loom, one word proves as much as seven.
const WORDS: usize = if cfg!(loom) { 1 } else { 7 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyOutcome {
    Done,
    /// The copy has failed, for any reason.
    Failed,
}

/// One slot: the copy and the report on it. The report is 0 until the rank has reported.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct RankCopySlot {
    words: [AtomicU64; WORDS],
    report: AtomicU64,
}

/// State that all copies of a rank share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RankCopyState {
    offered: CachePadded<AtomicU64>,
    /// Number of threads of the rank that wait, asleep or not.
    waiting: CachePadded<AtomicU32>,
}

/// A view of a rank's copies, for either side.
#[derive(Debug, Clone, Copy)]
pub struct RankCopyTable<'a> {
    state: &'a RankCopyState,
    slots: &'a [RankCopySlot],
}

fn bit(slot: u32) -> u64 {
    1 << slot
}

impl<'a> RankCopyTable<'a> {
    /// A view of the table made of these parts.
    ///
    /// # Panics
    /// If there are more slots than bits.
    pub fn new(state: &'a RankCopyState, slots: &'a [RankCopySlot]) -> Self {
        assert!(slots.len() <= u64::BITS as usize, "{} slots", slots.len());
        RankCopyTable { state, slots }
    }

    /// Service process: writes a copy to a free slot, without offering it yet.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn write(&self, slot: u32, copy: &RankCopy) {
        let RankCopySlot { words, report } = &self.slots[slot as usize];
        let RankCopy { pid, source, target, bytes, mark, nonce } = *copy;
        let nonce = u128::from_ne_bytes(nonce);
        // `bytes` comes first, since loom's model has room for one word.
        let values = [bytes, u64::from(pid), source, target, mark, nonce as u64, (nonce >> 64) as u64];
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        report.store(0, Ordering::Relaxed);
    }

    /// Service process: offers the copies written to these slots, one bit each. Wake sleepers afterwards, and then
    /// check [`Self::has_waiters`].
    pub fn offer(&self, slots: u64) {
        self.state.offered.0.fetch_or(slots, Ordering::Release);
    }

    /// Service process: whether a thread of the rank waits, by the rank's own count.
    pub fn has_waiters(&self) -> bool {
        fence(Ordering::SeqCst);
        self.state.waiting.0.load(Ordering::Relaxed) != 0
    }

    /// Service process: withdraws an offer; returns false if the rank has taken it.
    pub fn withdraw(&self, slot: u32) -> bool {
        self.state.offered.0.fetch_and(!bit(slot), Ordering::Acquire) & bit(slot) != 0
    }

    /// Service process: the report on a copy that was taken, if there is one. The rank's writes before the report are
    /// visible.
    ///
    /// # Panics
    /// If the slot does not exist.
    pub fn outcome(&self, slot: u32) -> Option<CopyOutcome> {
        match self.slots[slot as usize].report.load(Ordering::Acquire) {
            0 => None,
            1 => Some(CopyOutcome::Done),
            _ => Some(CopyOutcome::Failed),
        }
    }

    /// Rank: a thread starts to wait.
    pub fn begin_wait(&self) {
        self.state.waiting.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Rank: a thread stops waiting. Returns whether the service process has offers to withdraw.
    #[must_use]
    pub fn end_wait(&self) -> bool {
        self.state.waiting.0.fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_offers()
    }

    pub fn has_offers(&self) -> bool {
        self.state.offered.0.load(Ordering::Relaxed) != 0
    }

    /// Rank: takes a copy. The caller reports the end of the copy by the returned slot.
    pub fn claim(&self) -> Option<(u32, RankCopy)> {
        loop {
            let offered = self.state.offered.0.load(Ordering::Relaxed);
            let slot = offered.trailing_zeros();
            let words = &self.slots.get(slot as usize)?.words;
            if self.state.offered.0.fetch_and(!bit(slot), Ordering::Acquire) & bit(slot) == 0 {
                continue;
            }
            let word = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            let copy = RankCopy {
                bytes: word(0),
                pid: word(1) as u32,
                source: word(2),
                target: word(3),
                mark: word(4),
                nonce: (u128::from(word(5)) | u128::from(word(6)) << 64).to_ne_bytes(),
            };
            return Some((slot, copy));
        }
    }

    /// Rank: reports the end of a copy that was taken. Returns true if no more offers are left: the caller must then
    /// wake a sleeping service process. Otherwise the thread that reports on the last offer wakes the service process.
    #[must_use]
    pub fn report(&self, slot: u32, report: CopyOutcome) -> bool {
        let word = match report {
            CopyOutcome::Done => 1,
            CopyOutcome::Failed => 2,
        };
        self.slots[slot as usize].report.store(word, Ordering::Release);
        fence(Ordering::SeqCst);
        !self.has_offers()
    }

    /// Rank: clears all offers, because the service process is gone.
    pub fn clear_offers(&self) {
        self.state.offered.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn copy(bytes: u64) -> RankCopy {
        RankCopy {
            pid: 7,
            source: 1 << 40,
            target: 1 << 41,
            bytes,
            mark: 1 << 42,
            nonce: std::array::from_fn(|at| at as u8),
        }
    }

    fn table() -> (RankCopyState, Vec<RankCopySlot>) {
        (RankCopyState::default(), (0..RANK_COPIES).map(|_| RankCopySlot::default()).collect())
    }

    #[test]
    fn a_slot_is_one_cache_line() {
        assert_eq!((size_of::<RankCopySlot>(), size_of::<RankCopyState>()), (64, 256));
    }

    #[test]
    fn sp_6_a_copy_is_claimed_once_and_reported() {
        let (state, slots) = table();
        let table = RankCopyTable::new(&state, &slots);
        assert_eq!(table.claim(), None);
        for slot in [0, 63] {
            table.write(slot, &copy(slot.into()));
        }
        assert_eq!(table.claim(), None, "nothing is offered yet");
        table.offer(1 | 1 << 63);
        assert_eq!(table.claim(), Some((0, copy(0))));
        assert!(!table.withdraw(0), "it is taken");
        assert_eq!(table.outcome(0), None);
        assert!(!table.report(0, CopyOutcome::Done), "there is another one");
        assert_eq!(table.outcome(0), Some(CopyOutcome::Done));
        assert!(table.withdraw(63));
        assert_eq!(table.claim(), None, "it is withdrawn");
        table.write(0, &copy(5));
        table.offer(1);
        assert_eq!((table.outcome(0), table.claim()), (None, Some((0, copy(5)))));
        assert!(table.report(0, CopyOutcome::Failed), "it was the last");
        assert_eq!(table.outcome(0), Some(CopyOutcome::Failed));
    }

    #[test]
    fn a_thread_that_stops_waiting_sees_open_offers() {
        let (state, slots) = table();
        let table = RankCopyTable::new(&state, &slots);
        assert!(!table.has_waiters());
        table.begin_wait();
        assert!(table.has_waiters());
        table.write(3, &copy(1));
        table.offer(1 << 3);
        assert!(table.end_wait() && !table.has_waiters());
        table.clear_offers();
        assert_eq!(table.claim(), None);
    }

    #[test]
    fn several_threads_claim_each_copy_once() {
        let (state, slots) = table();
        let table = RankCopyTable::new(&state, &slots);
        (0..64).for_each(|slot| table.write(slot, &copy(slot.into())));
        table.offer(u64::MAX);
        let taken = std::thread::scope(|scope| {
            let takers = [0; 3].map(|_| scope.spawn(|| std::iter::from_fn(|| table.claim()).collect::<Vec<_>>()));
            let mut taken = takers.map(|taker| taker.join().unwrap()).concat();
            taken.sort_unstable_by_key(|(slot, _)| *slot);
            taken
        });
        let expected: Vec<_> = (0..64).map(|slot| (slot, copy(slot.into()))).collect();
        assert_eq!(taken, expected);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::completion::{CompletionTable, CompletionWord, Epoch};
    use crate::ring::{Ring, RingSlot, RingState, WakeAction};
    use crate::status::Status;
    use crate::sync::check_model;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct RankCopyModel {
        state: RankCopyState,
        slots: [RankCopySlot; RANK_COPIES],
        epoch: Epoch,
        words: [CompletionWord; 1],
        ring: RingState,
        ring_slots: [RingSlot; 2],
        /// The rank's memory, written by the owner of the copy.
        memory: UnsafeCell<u64>,
    }

    impl RankCopyModel {
        fn table(&self) -> RankCopyTable<'_> {
            RankCopyTable::new(&self.state, &self.slots)
        }

        fn completion_table(&self) -> CompletionTable<'_> {
            CompletionTable::new(&self.epoch, &self.words)
        }

        fn offer(&self) {
            let copy = RankCopy { pid: 0, source: 0, target: 0, bytes: 9, mark: 0, nonce: [0; 16] };
            self.table().write(0, &copy);
            self.table().offer(1);
            self.completion_table().announce();
        }

        fn copy(&self, bytes: u64) {
            // SAFETY: no other thread has the copy, and the rank reads after the call is complete.
            self.memory.with_mut(|memory| unsafe { *memory += bytes });
        }
    }

    /// The service process offers a copy to a rank that sleeps or is about to sleep, and completes the rank's call
    /// after the report.
    #[test]
    fn loom_no_offered_copy_is_slept_through() {
        check_model(|| {
            let shared = Arc::new(RankCopyModel::default());
            let rank = shared.clone();
            let waiter = loom::thread::spawn(move || {
                let (table, completion_table) = (rank.table(), rank.completion_table());
                table.begin_wait();
                assert!(completion_table.wait(Some(0), None, || {
                    if let Some((slot, copy)) = table.claim() {
                        rank.copy(copy.bytes);
                        assert!(table.report(slot, CopyOutcome::Done));
                    }
                    completion_table.result(0).is_some()
                }));
                // SAFETY: the call is complete.
                rank.memory.with(|memory| assert_eq!(unsafe { *memory }, 9));
                assert!(!table.end_wait());
            });
            shared.offer();
            while shared.table().outcome(0).is_none() {
                loom::thread::yield_now();
            }
            shared.completion_table().complete(0, Status::Ok);
            waiter.join().unwrap();
        });
    }

    /// A thread stops waiting while a copy is offered. Either the thread takes the copy or the service process
    /// withdraws it, never both or neither. In both cases a sleeping service process is woken.
    #[test]
    fn loom_no_offered_copy_is_left_behind() {
        check_model(|| {
            let shared = Arc::new(RankCopyModel::default());
            shared.table().begin_wait();
            let rank = shared.clone();
            let leaver = loom::thread::spawn(move || {
                let table = rank.table();
                let taken = table.claim();
                let last = taken.is_some_and(|(slot, copy)| {
                    rank.copy(copy.bytes);
                    table.report(slot, CopyOutcome::Done)
                });
                let rings =
                    (table.end_wait() | last) && Ring::new(&rank.ring, &rank.ring_slots).wake() == WakeAction::Ring;
                (taken.is_some(), rings)
            });
            shared.offer();
            let table = shared.table();
            let asleep = table.has_waiters()
                && Ring::new(&shared.ring, &shared.ring_slots).prepare_sleep(0)
                && table.has_waiters()
                && table.outcome(0).is_none();
            let withdrawn = !asleep && table.withdraw(0);
            let (taken, rung) = leaver.join().unwrap();
            assert!(!(taken && withdrawn), "both have it");
            assert!(!asleep || rung, "the service process sleeps over it");
            assert!(taken || withdrawn || table.withdraw(0), "neither has it");
            if !taken {
                shared.copy(9);
            }
            // SAFETY: the rank's thread has ended.
            shared.memory.with(|memory| assert_eq!(unsafe { *memory }, 9));
        });
    }
}
