//! Errands: copies into a rank's memory that the rank does itself while it waits in the library (SP-6).
//!
//! The service process offers a copy that it would else do itself. A waiting thread of the rank takes it, copies once
//! where the service process copies twice, and reports. An errand is one of [`ERRANDS`] places, with a bit in a word
//! that both sides change. The side that clears the bit owns the errand:
//!
//! | an errand is | on | goes to |
//! |---|---|---|
//! | free | [`Table::offer`] | offered: its bit is up |
//! | offered | [`Table::take`] by the rank | taken |
//! | offered | [`Table::withdraw`] by the service process | free |
//! | taken | [`Table::report`] by the rank | reported |
//! | reported | [`Table::reported`] to the service process | free |
//!
//! The service process offers, fences, checks for waiting threads. A thread that stops waiting lowers their count,
//! fences, checks for offers. One of the two sees the other, so no offer stays unnoticed (loom:
//! `loom_no_errand_is_left_behind`). The epoch of [`crate::completion`] ensures that no sleeper misses an offer. The
//! service process keeps its own list of its offers and reads back only bit and report. So a rank that falsifies this
//! memory misleads only itself.

use crate::sync::{AtomicU32, AtomicU64, Lines, Ordering, fence};

/// Places of errands, one for each bit of a word. Loom pays for each place.
pub const ERRANDS: usize = if cfg!(loom) { 2 } else { 64 };

/// A copy: source, target and length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errand {
    /// The process that holds the bytes, by its number for the service process.
    pub pid: u32,
    pub source: u64,
    pub target: u64,
    pub bytes: u64,
    /// Address of `nonce` in that process.
    pub mark: u64,
    /// Bytes that no other process has at `mark`.
    pub nonce: [u8; 16],
}

/// Words of an errand; for loom one word is as good as seven.
const WORDS: usize = if cfg!(loom) { 1 } else { 7 };

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Report {
    Done,
    /// The copy has failed, for any reason.
    Failed,
}

/// One place: the errand, and its report, which is 0 until there is one.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Place {
    words: [AtomicU64; WORDS],
    report: AtomicU64,
}

/// State that all errands of a rank share.
#[derive(Debug, Default)]
#[repr(C)]
pub struct State {
    offered: Lines<AtomicU64>,
    /// Number of threads of the rank that wait, asleep or not.
    waiting: Lines<AtomicU32>,
}

/// A view of a rank's errands, for either side.
#[derive(Debug, Clone, Copy)]
pub struct Table<'a> {
    state: &'a State,
    places: &'a [Place],
}

fn bit(place: u32) -> u64 {
    1 << place
}

impl<'a> Table<'a> {
    /// A view of the table made of these parts.
    ///
    /// # Panics
    /// If there are more places than bits.
    pub fn new(state: &'a State, places: &'a [Place]) -> Self {
        assert!(places.len() <= u64::BITS as usize, "{} places", places.len());
        Table { state, places }
    }

    /// Service process: writes an errand to a free place, without offering it yet.
    ///
    /// # Panics
    /// If the place does not exist.
    pub fn write(&self, place: u32, errand: &Errand) {
        let Place { words, report } = &self.places[place as usize];
        let Errand { pid, source, target, bytes, mark, nonce } = *errand;
        let nonce = u128::from_ne_bytes(nonce);
        // `bytes` comes first, since loom's model has room for one word.
        let values = [bytes, u64::from(pid), source, target, mark, nonce as u64, (nonce >> 64) as u64];
        words.iter().zip(values).for_each(|(word, value)| word.store(value, Ordering::Relaxed));
        report.store(0, Ordering::Relaxed);
    }

    /// Service process: offers the errands written to these places, one bit each. Wake sleepers afterwards, and then
    /// check [`Self::waited_for`].
    pub fn offer(&self, places: u64) {
        self.state.offered.0.fetch_or(places, Ordering::Release);
    }

    /// Service process: whether a thread of the rank waits, by the rank's own count.
    pub fn waited_for(&self) -> bool {
        fence(Ordering::SeqCst);
        self.state.waiting.0.load(Ordering::Relaxed) != 0
    }

    /// Service process: withdraws an offer; returns false if the rank has taken it.
    pub fn withdraw(&self, place: u32) -> bool {
        self.state.offered.0.fetch_and(!bit(place), Ordering::Acquire) & bit(place) != 0
    }

    /// Service process: the report on an errand that was taken, if there is one. The rank's writes before it are
    /// visible.
    ///
    /// # Panics
    /// If the place does not exist.
    pub fn reported(&self, place: u32) -> Option<Report> {
        match self.places[place as usize].report.load(Ordering::Acquire) {
            0 => None,
            1 => Some(Report::Done),
            _ => Some(Report::Failed),
        }
    }

    /// Rank: a thread starts to wait.
    pub fn enter(&self) {
        self.state.waiting.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Rank: a thread stops waiting. Returns whether the service process has offers to withdraw.
    #[must_use]
    pub fn leave(&self) -> bool {
        self.state.waiting.0.fetch_sub(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.has_offers()
    }

    pub fn has_offers(&self) -> bool {
        self.state.offered.0.load(Ordering::Relaxed) != 0
    }

    /// Rank: takes an errand, to be reported by its place.
    pub fn take(&self) -> Option<(u32, Errand)> {
        loop {
            let offered = self.state.offered.0.load(Ordering::Relaxed);
            let place = offered.trailing_zeros();
            let words = &self.places.get(place as usize)?.words;
            if self.state.offered.0.fetch_and(!bit(place), Ordering::Acquire) & bit(place) == 0 {
                continue;
            }
            let word = |at: usize| words.get(at).map_or(0, |word| word.load(Ordering::Relaxed));
            let errand = Errand {
                bytes: word(0),
                pid: word(1) as u32,
                source: word(2),
                target: word(3),
                mark: word(4),
                nonce: (u128::from(word(5)) | u128::from(word(6)) << 64).to_ne_bytes(),
            };
            return Some((place, errand));
        }
    }

    /// Rank: reports the end of an errand that was taken. Returns true if no more offers are left: the caller must then
    /// wake the service process if it sleeps. Otherwise the thread that takes the next offer does so.
    #[must_use]
    pub fn report(&self, place: u32, report: Report) -> bool {
        let word = match report {
            Report::Done => 1,
            Report::Failed => 2,
        };
        self.places[place as usize].report.store(word, Ordering::Release);
        fence(Ordering::SeqCst);
        !self.has_offers()
    }

    /// Rank: clears all offers, because the service process is gone.
    pub fn refuse_all(&self) {
        self.state.offered.0.store(0, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn errand(bytes: u64) -> Errand {
        Errand {
            pid: 7,
            source: 1 << 40,
            target: 1 << 41,
            bytes,
            mark: 1 << 42,
            nonce: std::array::from_fn(|at| at as u8),
        }
    }

    fn table() -> (State, Vec<Place>) {
        (State::default(), (0..ERRANDS).map(|_| Place::default()).collect())
    }

    #[test]
    fn a_place_is_one_cache_line() {
        assert_eq!((size_of::<Place>(), size_of::<State>()), (64, 256));
    }

    #[test]
    fn sp_6_an_errand_is_taken_once_and_reported() {
        let (state, places) = table();
        let table = Table::new(&state, &places);
        assert_eq!(table.take(), None);
        for place in [0, 63] {
            table.write(place, &errand(place.into()));
        }
        assert_eq!(table.take(), None, "nothing is offered yet");
        table.offer(1 | 1 << 63);
        assert_eq!(table.take(), Some((0, errand(0))));
        assert!(!table.withdraw(0), "it is taken");
        assert_eq!(table.reported(0), None);
        assert!(!table.report(0, Report::Done), "there is another one");
        assert_eq!(table.reported(0), Some(Report::Done));
        assert!(table.withdraw(63));
        assert_eq!(table.take(), None, "it is withdrawn");
        table.write(0, &errand(5));
        table.offer(1);
        assert_eq!((table.reported(0), table.take()), (None, Some((0, errand(5)))));
        assert!(table.report(0, Report::Failed), "it was the last");
        assert_eq!(table.reported(0), Some(Report::Failed));
    }

    #[test]
    fn who_stops_waiting_hears_of_what_is_offered() {
        let (state, places) = table();
        let table = Table::new(&state, &places);
        assert!(!table.waited_for());
        table.enter();
        assert!(table.waited_for());
        table.write(3, &errand(1));
        table.offer(1 << 3);
        assert!(table.leave() && !table.waited_for());
        table.refuse_all();
        assert_eq!(table.take(), None);
    }

    #[test]
    fn several_threads_take_each_errand_once() {
        let (state, places) = table();
        let table = Table::new(&state, &places);
        (0..64).for_each(|place| table.write(place, &errand(place.into())));
        table.offer(u64::MAX);
        let taken = std::thread::scope(|scope| {
            let takers = [0; 3].map(|_| scope.spawn(|| std::iter::from_fn(|| table.take()).collect::<Vec<_>>()));
            let mut taken = takers.map(|taker| taker.join().unwrap()).concat();
            taken.sort_unstable_by_key(|(place, _)| *place);
            taken
        });
        let expected: Vec<_> = (0..64).map(|place| (place, errand(place.into()))).collect();
        assert_eq!(taken, expected);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::completion::{Board, Epoch, Word};
    use crate::ring::{Ring, RingState, Slot, Wake};
    use crate::status::Status;
    use crate::sync::explore;
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;

    #[derive(Default)]
    struct Shared {
        state: State,
        places: [Place; ERRANDS],
        epoch: Epoch,
        words: [Word; 1],
        ring: RingState,
        slots: [Slot; 2],
        /// The rank's memory, written by the owner of the errand.
        memory: UnsafeCell<u64>,
    }

    impl Shared {
        fn table(&self) -> Table<'_> {
            Table::new(&self.state, &self.places)
        }

        fn board(&self) -> Board<'_> {
            Board::new(&self.epoch, &self.words)
        }

        fn offer(&self) {
            let errand = Errand { pid: 0, source: 0, target: 0, bytes: 9, mark: 0, nonce: [0; 16] };
            self.table().write(0, &errand);
            self.table().offer(1);
            self.board().announce();
        }

        fn copy(&self, bytes: u64) {
            // SAFETY: no other thread has the errand, and the rank reads after the call is complete.
            self.memory.with_mut(|memory| unsafe { *memory += bytes });
        }
    }

    /// The service process offers to a rank that sleeps or is about to, and completes its call after the report.
    #[test]
    fn loom_no_errand_is_slept_through() {
        explore(|| {
            let shared = Arc::new(Shared::default());
            let rank = shared.clone();
            let waiter = loom::thread::spawn(move || {
                let (table, board) = (rank.table(), rank.board());
                table.enter();
                assert!(board.wait(Some(0), None, || {
                    if let Some((place, errand)) = table.take() {
                        rank.copy(errand.bytes);
                        assert!(table.report(place, Report::Done));
                    }
                    board.result(0).is_some()
                }));
                // SAFETY: the call is complete.
                rank.memory.with(|memory| assert_eq!(unsafe { *memory }, 9));
                assert!(!table.leave());
            });
            shared.offer();
            while shared.table().reported(0).is_none() {
                loom::thread::yield_now();
            }
            shared.board().complete(0, Status::Ok);
            waiter.join().unwrap();
        });
    }

    /// A thread stops waiting while an errand is offered. Either the thread takes the errand or the service process
    /// withdraws it, never both or neither. A sleeping service process is woken for it.
    #[test]
    fn loom_no_errand_is_left_behind() {
        explore(|| {
            let shared = Arc::new(Shared::default());
            shared.table().enter();
            let rank = shared.clone();
            let leaver = loom::thread::spawn(move || {
                let table = rank.table();
                let taken = table.take();
                let last = taken.is_some_and(|(place, errand)| {
                    rank.copy(errand.bytes);
                    table.report(place, Report::Done)
                });
                let rings = (table.leave() | last) && Ring::new(&rank.ring, &rank.slots).wake() == Wake::Ring;
                (taken.is_some(), rings)
            });
            shared.offer();
            let table = shared.table();
            let asleep = table.waited_for()
                && Ring::new(&shared.ring, &shared.slots).prepare_sleep(0)
                && table.waited_for()
                && table.reported(0).is_none();
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
