//! The control region of an attached rank: header, submission ring, completion words and rank copies in one memfd.
//!
//! The service process makes the region and passes its descriptor at attach. Layout, version [`LAYOUT_VERSION`],
//! little-endian, offsets in bytes:
//!
//! | at | content |
//! |---|---|
//! | 0 | magic (u64), layout version (u32), ring capacity (u32), completion words (u32) |
//! | 64 | the tier of memory access, 0 until it changes after the attach (u32) |
//! | 68 | the number of staging requests so far (u32) |
//! | 128 | one bit for each completion word: the rank must stage the request's buffers (u32 each 32) |
//! | 4096 | [`RingState`] |
//! | 4352 | [`Epoch`] |
//! | 4608 | [`rank_copy::RankCopyState`] |
//! | 4864 | rank copies, 64 bytes each |
//! | 8960 | ring slots, 128 bytes each |
//! | after these | completion words, 4 bytes each |
//!
//! Invariant: the service process never reads the header after writing it; it uses its own sizes.

mod staging_requests;

use outboard_call::MOST_IN_FLIGHT;
use outboard_call::codec::DecodeError;

use self::staging_requests::StagingRequests;
use crate::completion::{CompletionTable, CompletionWord, Epoch};
use crate::entry::SubmissionEntry;
use crate::memory::Tier;
use crate::rank_copy::{self, CopyOutcome, RANK_COPIES, RankCopy, RankCopyTable};
use crate::region::{MemfdRegion, RegionError};
use crate::ring::{Ring, RingFull, RingSlot, RingState, WakeAction};
use crate::status::Status;
use crate::sync::{AtomicU32, Ordering};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

/// Version of all structures that the two sides share in memory: control region and entries.
pub const LAYOUT_VERSION: u32 = 7;
/// Entries of the submission ring. Each entry owns a completion word until its request ends, so valid entries never
/// overflow the ring.
pub const RING_CAPACITY: u32 = COMPLETION_WORDS;
/// Completion words per rank, and so the most requests in flight per rank.
pub const COMPLETION_WORDS: u32 = MOST_IN_FLIGHT;

const MAGIC: u64 = u64::from_le_bytes(*b"OUTBOARD");
const TIER_AT: usize = 64;
const STAGING_REQUESTS_AT: usize = 68;
const STAGING_BITS_AT: usize = 128;
const STAGING_WORDS: usize = COMPLETION_WORDS.div_ceil(u32::BITS) as usize;
const _: () = assert!(STAGING_BITS_AT + STAGING_WORDS * size_of::<AtomicU32>() <= RING_STATE_AT);
const RING_STATE_AT: usize = 4096;
const EPOCH_AT: usize = RING_STATE_AT + size_of::<RingState>();
const RANK_COPY_STATE_AT: usize = EPOCH_AT + size_of::<Epoch>();
const RANK_COPIES_AT: usize = RANK_COPY_STATE_AT + size_of::<rank_copy::RankCopyState>();
const SLOTS_AT: usize = RANK_COPIES_AT + RANK_COPIES * size_of::<rank_copy::RankCopySlot>();
const MOST_SLOTS: u32 = 1 << 16;

#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    #[error(transparent)]
    Region(#[from] RegionError),
    #[error(
        "the service process shares memory in layout {theirs}, this library in layout {LAYOUT_VERSION}; install both from one release"
    )]
    Version { theirs: u32 },
    #[error("the control region's {0} cannot be")]
    Malformed(&'static str),
    #[error("cannot make an eventfd: {0}; check the limit on descriptors")]
    Doorbell(rustix::io::Errno),
}

/// Position and sizes of the parts of a control region. Views of the parts are made from these values.
#[derive(Debug, Clone, Copy)]
struct ControlParts {
    start: NonNull<u8>,
    capacity: u32,
    words: u32,
}

fn region_bytes(capacity: u32, words: u32) -> usize {
    SLOTS_AT + capacity as usize * size_of::<RingSlot>() + words as usize * size_of::<CompletionWord>()
}

impl ControlParts {
    /// # Safety
    /// At `start`, aligned as a [`RingSlot`], [`region_bytes`] initialised bytes live for `'a`. While a view lives,
    /// only atomics or other processes access these bytes.
    unsafe fn ring<'a>(self) -> Ring<'a> {
        let (start, slots) = (self.start.as_ptr(), self.capacity as usize);
        // SAFETY: both ranges lie within the bytes that the caller guarantees; the types are made of atomics, valid for
        // any bits, and their alignment divides the offsets.
        unsafe {
            Ring::new(
                &*start.add(RING_STATE_AT).cast::<RingState>(),
                std::slice::from_raw_parts(start.add(SLOTS_AT).cast::<RingSlot>(), slots),
            )
        }
    }

    /// # Safety
    /// The contract of [`Self::ring`] holds.
    unsafe fn tier<'a>(self) -> &'a AtomicU32 {
        // SAFETY: within the bytes that the caller guarantees, aligned, and any bits are valid for an atomic.
        unsafe { &*self.start.as_ptr().add(TIER_AT).cast::<AtomicU32>() }
    }

    /// # Safety
    /// The contract of [`Self::ring`] holds.
    unsafe fn staging_requests<'a>(self) -> StagingRequests<'a> {
        let start = self.start.as_ptr();
        // SAFETY: both ranges lie within the bytes that the caller guarantees, are aligned, and hold atomics, valid for
        // any bits.
        unsafe {
            StagingRequests::new(
                &*start.add(STAGING_REQUESTS_AT).cast::<AtomicU32>(),
                std::slice::from_raw_parts(start.add(STAGING_BITS_AT).cast::<AtomicU32>(), STAGING_WORDS),
            )
        }
    }

    /// # Safety
    /// The contract of [`Self::ring`] holds.
    unsafe fn table<'a>(self) -> RankCopyTable<'a> {
        let start = self.start.as_ptr();
        // SAFETY: both ranges lie within the bytes that the caller guarantees, are aligned, and hold atomics, valid for
        // any bits.
        unsafe {
            RankCopyTable::new(
                &*start.add(RANK_COPY_STATE_AT).cast::<rank_copy::RankCopyState>(),
                std::slice::from_raw_parts(start.add(RANK_COPIES_AT).cast::<rank_copy::RankCopySlot>(), RANK_COPIES),
            )
        }
    }

    /// # Safety
    /// The contract of [`Self::ring`] holds.
    unsafe fn completion_table<'a>(self) -> CompletionTable<'a> {
        let start = self.start.as_ptr();
        let words_at = SLOTS_AT + self.capacity as usize * size_of::<RingSlot>();
        // SAFETY: both ranges lie within the bytes that the caller guarantees, are aligned, and hold atomics, valid for
        // any bits.
        unsafe {
            CompletionTable::new(
                &*start.add(EPOCH_AT).cast::<Epoch>(),
                std::slice::from_raw_parts(start.add(words_at).cast::<CompletionWord>(), self.words as usize),
            )
        }
    }
}

#[derive(Debug)]
struct ControlRegion {
    region: MemfdRegion,
    capacity: u32,
    words: u32,
}

impl ControlRegion {
    fn parts(&self) -> ControlParts {
        ControlParts { start: self.region.start(), capacity: self.capacity, words: self.words }
    }

    fn ring(&self) -> Ring<'_> {
        // SAFETY: the mapping begins on a page, and its size was checked against `capacity` and `words`. The view
        // borrows from the mapping.
        unsafe { self.parts().ring() }
    }

    fn completion_table(&self) -> CompletionTable<'_> {
        // SAFETY: the mapping fulfils the contract, as `ring` explains.
        unsafe { self.parts().completion_table() }
    }

    fn tier(&self) -> &AtomicU32 {
        // SAFETY: the mapping fulfils the contract, as `ring` explains.
        unsafe { self.parts().tier() }
    }

    fn staging_requests(&self) -> StagingRequests<'_> {
        // SAFETY: the mapping fulfils the contract, as `ring` explains.
        unsafe { self.parts().staging_requests() }
    }

    fn table(&self) -> RankCopyTable<'_> {
        // SAFETY: the mapping fulfils the contract, as `ring` explains.
        unsafe { self.parts().table() }
    }
}

/// The service process's end of a rank's control region. The end has one owner and holds the consumer's position in the
/// ring.
#[derive(Debug)]
pub struct ServiceSide {
    control: Arc<ControlRegion>,
    /// The eventfd shared with the rank. The service process watches it edge-triggered (`EPOLLET`) and never reads it,
    /// which saves a system call.
    doorbell: OwnedFd,
    head: u64,
}

/// Completes a rank's requests; for any thread of the service process.
#[derive(Debug, Clone)]
pub struct Completer(Arc<ControlRegion>);

impl ServiceSide {
    /// Makes the control region and the doorbell for one rank.
    ///
    /// # Errors
    /// [`ControlError::Region`] or [`ControlError::Doorbell`] if memory or descriptors are exhausted.
    pub fn create() -> Result<ServiceSide, ControlError> {
        let region = MemfdRegion::create("outboard-control", region_bytes(RING_CAPACITY, COMPLETION_WORDS))?;
        let mut header = [0; 20];
        header[..8].copy_from_slice(&MAGIC.to_le_bytes());
        header[8..12].copy_from_slice(&LAYOUT_VERSION.to_le_bytes());
        header[12..16].copy_from_slice(&RING_CAPACITY.to_le_bytes());
        header[16..].copy_from_slice(&COMPLETION_WORDS.to_le_bytes());
        region.write(0, &header);
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        let doorbell = rustix::event::eventfd(0, flags).map_err(ControlError::Doorbell)?;
        let control = Arc::new(ControlRegion { region, capacity: RING_CAPACITY, words: COMPLETION_WORDS });
        Ok(ServiceSide { control, doorbell, head: 0 })
    }

    /// The two descriptors that the rank gets with its welcome: control region, doorbell.
    pub fn descriptors(&self) -> [BorrowedFd<'_>; 2] {
        [self.control.region.fd(), self.doorbell.as_fd()]
    }

    /// The doorbell, to be watched edge-triggered and never read.
    pub fn doorbell(&self) -> &OwnedFd {
        &self.doorbell
    }

    /// The next submission, or `None`. A malformed submission is removed and returned as an error.
    pub fn pop(&mut self) -> Option<Result<SubmissionEntry, DecodeError>> {
        let words = self.control.ring().pop(&mut self.head)?;
        Some(SubmissionEntry::decode(&words, self.control.words))
    }

    /// Raises the sleeping flag. Returns `true` if the ring is empty: the next entry rings the doorbell. Returns
    /// `false` if an entry waits: call [`pop`](Self::pop) again.
    #[must_use]
    pub fn prepare_sleep(&self) -> bool {
        self.control.ring().prepare_sleep(self.head)
    }

    /// Lowers the sleeping flag; to be called after every wake-up.
    pub fn stay_awake(&self) {
        self.control.ring().stay_awake();
    }

    /// Announces the new tier of memory access to the rank, and wakes the rank if it sleeps.
    pub fn announce_tier(&self, tier: Tier) {
        self.control.tier().store(tier.code(), Ordering::Release);
        self.control.completion_table().announce();
    }

    /// Requests that the rank stages the buffers of the request with this completion word, and wakes the rank if it
    /// sleeps.
    pub fn request_staging(&self, slot: u32) {
        self.control.staging_requests().request(slot);
        self.control.completion_table().announce();
    }

    /// A handle that completes this rank's requests.
    pub fn completions(&self) -> Completer {
        Completer(self.control.clone())
    }

    /// A handle that offers copies to this rank.
    pub fn rank_copies(&self) -> RankCopies {
        RankCopies(self.control.clone())
    }
}

/// Offers copies to a rank (SP-6); for one thread of the service process.
#[derive(Debug, Clone)]
pub struct RankCopies(Arc<ControlRegion>);

impl RankCopies {
    pub fn table(&self) -> RankCopyTable<'_> {
        self.0.table()
    }

    /// Offers the copies written to these slots, one bit each, and wakes the rank if it sleeps. Check
    /// [`RankCopyTable::has_waiters`] afterwards.
    pub fn offer(&self, slots: u64) {
        self.0.table().offer(slots);
        self.0.completion_table().announce();
    }
}

impl Completer {
    /// Stores the result of the request that owns `slot` and wakes the rank if it sleeps. A rank that sees the result
    /// also sees everything that was written to its memory before.
    ///
    /// # Panics
    /// If `slot` did not come from a decoded entry of this rank.
    pub fn complete(&self, slot: u32, status: Status) {
        self.0.completion_table().complete(slot, status);
    }
}

/// A rank's end of its control region; for any of its threads.
#[derive(Debug)]
pub struct RankSide {
    control: ControlRegion,
    /// The eventfd that wakes a sleeping service process.
    doorbell: OwnedFd,
}

impl RankSide {
    /// Maps the region of the service process.
    ///
    /// # Errors
    /// [`ControlError::Version`] if library and service process come from different releases,
    /// [`ControlError::Malformed`] or [`ControlError::Region`] if the descriptor is no control region.
    pub fn attach(region: OwnedFd, doorbell: OwnedFd) -> Result<RankSide, ControlError> {
        let size = rustix::fs::fstat(&region).map_err(|_| ControlError::Malformed("size"))?.st_size;
        let size = usize::try_from(size).map_err(|_| ControlError::Malformed("size"))?;
        if size < SLOTS_AT {
            return Err(ControlError::Malformed("size"));
        }
        let region = MemfdRegion::attach(region, size)?;
        region.keep_from_children()?;
        let word = |at| {
            let mut bytes = [0; 4];
            region.read(at, &mut bytes);
            u32::from_le_bytes(bytes)
        };
        let mut magic = [0; 8];
        region.read(0, &mut magic);
        if u64::from_le_bytes(magic) != MAGIC {
            return Err(ControlError::Malformed("magic number"));
        }
        if word(8) != LAYOUT_VERSION {
            return Err(ControlError::Version { theirs: word(8) });
        }
        let (capacity, words) = (word(12), word(16));
        if !capacity.is_power_of_two() || capacity > MOST_SLOTS {
            return Err(ControlError::Malformed("ring capacity"));
        }
        if words == 0 || words > MOST_SLOTS || region_bytes(capacity, words) != size {
            return Err(ControlError::Malformed("number of completion words"));
        }
        Ok(RankSide { control: ControlRegion { region, capacity, words }, doorbell })
    }

    /// Number of completion words: requests that can be in flight.
    pub fn slots(&self) -> u32 {
        self.control.words
    }

    /// Submits an entry; makes a system call only if the service process sleeps. The entry's completion word must have
    /// been made pending by [`arm`](Self::arm).
    ///
    /// # Errors
    /// [`RingFull`] when the service process is a whole ring behind.
    pub fn post(&self, entry: &SubmissionEntry) -> Result<(), RingFull> {
        let wake = self.control.ring().push(&entry.encode())?;
        self.ring_doorbell(wake);
        Ok(())
    }

    fn ring_doorbell(&self, wake: WakeAction) {
        if wake == WakeAction::Ring {
            // Fails only if the counter is at its maximum, and then the bell is readable already.
            let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
        }
    }

    /// A thread starts to wait, and claims copies until [`Self::end_wait`].
    pub fn begin_wait(&self) {
        self.control.table().begin_wait();
    }

    /// A thread stops waiting.
    pub fn end_wait(&self) {
        if self.control.table().end_wait() {
            self.ring_doorbell(self.control.ring().wake());
        }
    }

    pub fn has_copy_offers(&self) -> bool {
        self.control.table().has_offers()
    }

    /// Claims a copy. The caller reports the end of the copy by the returned slot.
    pub fn claim_copy(&self) -> Option<(u32, RankCopy)> {
        self.control.table().claim()
    }

    /// Reports the end of a copy that was claimed.
    pub fn report(&self, slot: u32, report: CopyOutcome) {
        if self.control.table().report(slot, report) {
            self.ring_doorbell(self.control.ring().wake());
        }
    }

    /// Clears all offers, because the service process is gone.
    pub fn clear_copy_offers(&self) {
        self.control.table().clear_offers();
    }

    /// The current tier of memory access, if it has changed since the attach.
    pub fn changed_tier(&self) -> Option<Tier> {
        Tier::from_code(self.control.tier().load(Ordering::Acquire))
    }

    /// The number of staging requests so far.
    pub fn staging_requests(&self) -> u32 {
        self.control.staging_requests().count()
    }

    /// Whether the service process has requested that this rank stages the buffers of this request.
    pub fn wants_staging(&self, slot: u32) -> bool {
        self.control.staging_requests().contains(slot)
    }

    /// Makes the completion word of `slot` pending.
    pub fn arm(&self, slot: u32) {
        self.control.staging_requests().end(slot);
        self.control.completion_table().arm(slot);
    }

    /// The result in `slot`, or `None` while pending.
    pub fn result(&self, slot: u32) -> Option<Status> {
        self.control.completion_table().result(slot)
    }

    /// Makes threads in [`wait`](Self::wait) check their condition again.
    pub fn nudge(&self) {
        self.control.completion_table().announce();
    }

    /// Sleeps until `done` holds or `limit` has passed; returns the last result of `done`. With `slot`, `done` may be
    /// called again only after that request has ended or after an announcement.
    pub fn wait(&self, slot: Option<u32>, limit: Option<Duration>, done: impl FnMut() -> bool) -> bool {
        self.control.completion_table().wait(slot, limit, done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_call::{Call, CallKind};
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use std::alloc::{Layout, alloc_zeroed, dealloc};

    fn both() -> (ServiceSide, RankSide) {
        let service = ServiceSide::create().unwrap();
        let [region, doorbell] = service.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
        let rank = RankSide::attach(region, doorbell).unwrap();
        (service, rank)
    }

    fn entry(slot: u32) -> SubmissionEntry {
        let call = Call { bytes: 16, send: 4096, receive: 8192, ..Call::new(CallKind::Allgather) };
        SubmissionEntry { group: 1, instance: 1, slot, call }
    }

    fn rung(service: &ServiceSide) -> bool {
        let mut watched = [PollFd::new(service.doorbell(), PollFlags::IN)];
        poll(&mut watched, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn offsets_are_aligned_and_as_documented() {
        assert_eq!((RING_STATE_AT, EPOCH_AT, SLOTS_AT), (4096, 4352, 8960));
        assert_eq!((RANK_COPY_STATE_AT, RANK_COPIES_AT), (4608, 4864));
        assert_eq!(region_bytes(1024, 1024), 8960 + 131_072 + 4096);
        for at in [RING_STATE_AT, EPOCH_AT, RANK_COPY_STATE_AT, RANK_COPIES_AT, SLOTS_AT] {
            assert_eq!(at % align_of::<RingSlot>(), 0);
        }
    }

    /// The views work on heap memory here, so that Miri checks their accesses.
    #[test]
    fn submissions_completions_and_rank_copies_cross_raw_memory() {
        let (capacity, words) = (4, 4);
        let layout = Layout::from_size_align(region_bytes(capacity, words), align_of::<RingSlot>()).unwrap();
        // SAFETY: the layout has a size above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap();
        let parts = ControlParts { start, capacity, words };
        // SAFETY: aligned, zeroed, freed below, and accessed through these views alone.
        let (ring, completion_table, table) = unsafe { (parts.ring(), parts.completion_table(), parts.table()) };
        let rank_copy = RankCopy { pid: 1, source: 2, target: 3, bytes: 4, mark: 5, nonce: [6; 16] };
        table.write(63, &rank_copy);
        table.offer(1 << 63);
        std::thread::scope(|scope| {
            scope.spawn(move || {
                for round in 0..20 {
                    let slot = round % words;
                    completion_table.arm(slot);
                    let _ = ring.push(&entry(slot).encode()).unwrap();
                    assert!(
                        completion_table.wait(Some(slot), None, || completion_table.result(slot) == Some(Status::Ok))
                    );
                }
                assert_eq!(table.claim(), Some((63, rank_copy)));
                assert!(table.report(63, CopyOutcome::Done));
            });
            let mut head = 0;
            while head < 20 {
                match ring.pop(&mut head).map(|taken| SubmissionEntry::decode(&taken, words)) {
                    Some(taken) => completion_table.complete(taken.unwrap().slot, Status::Ok),
                    None => std::thread::yield_now(),
                }
            }
        });
        assert_eq!(table.outcome(63), Some(CopyOutcome::Done));
        // SAFETY: allocated above with this layout; the views are not used any more.
        unsafe { dealloc(start.as_ptr(), layout) };
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_submission_and_its_completion_cross_the_region() {
        let (mut service, rank) = both();
        rank.arm(7);
        rank.post(&entry(7)).unwrap();
        assert!(!rung(&service), "an awake service process is not rung");
        assert_eq!(service.pop(), Some(Ok(entry(7))));
        assert_eq!(service.pop(), None);
        assert!(service.prepare_sleep());
        rank.post(&entry(8)).unwrap();
        assert!(rung(&service));
        service.stay_awake();
        assert_eq!(service.pop(), Some(Ok(entry(8))));
        assert_eq!(rank.result(7), None);
        let completions = service.completions();
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(rank.wait(Some(7), None, || rank.result(7) == Some(Status::Ok))));
            completions.complete(7, Status::Ok);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_change_of_tier_wakes_the_rank() {
        let (service, rank) = both();
        assert_eq!(rank.changed_tier(), None);
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(rank.wait(Some(7), None, || rank.changed_tier() == Some(Tier::Staging))));
            service.announce_tier(Tier::MemoryDescriptor);
            service.announce_tier(Tier::Staging);
        });
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_staging_request_wakes_the_rank_and_ends_with_the_word() {
        let (service, rank) = both();
        let wanted = |rank: &RankSide| [0, 32, 33, COMPLETION_WORDS - 1].map(|slot| rank.wants_staging(slot));
        assert_eq!((rank.staging_requests(), wanted(&rank)), (0, [false; 4]));
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(rank.wait(Some(33), None, || rank.staging_requests() == 2)));
            service.request_staging(33);
            service.request_staging(COMPLETION_WORDS - 1);
        });
        assert_eq!(wanted(&rank), [false, false, true, true]);
        rank.arm(33);
        assert_eq!(wanted(&rank), [false, false, false, true]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn garbage_from_a_rank_is_an_error_and_then_gone() {
        let (mut service, rank) = both();
        rank.post(&entry(COMPLETION_WORDS)).unwrap();
        rank.post(&entry(0)).unwrap();
        assert_eq!(service.pop().unwrap(), Err(DecodeError::Value("slot")));
        assert_eq!(service.pop(), Some(Ok(entry(0))));
        let size = rank.control.region.bytes();
        rank.control.region.write(0, &vec![0xff; size]);
        assert_eq!(service.pop(), None);
        service.completions().complete(0, Status::Ok);
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn another_layout_is_refused_by_name() {
        for (at, what) in [(0, "magic number"), (8, "layout"), (12, "ring capacity"), (16, "completion words")] {
            let service = ServiceSide::create().unwrap();
            service.control.region.write(at, &[0xff]);
            let [region, doorbell] = service.descriptors().map(|fd| fd.try_clone_to_owned().unwrap());
            let error = RankSide::attach(region, doorbell).unwrap_err().to_string();
            assert!(error.contains(what), "{error}");
        }
    }
}
