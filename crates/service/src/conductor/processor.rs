//! The processor of the conductor: the kernel's figure of waiting time, and requests for exact timers and short time
//! slices.
//!
//! The thread's `schedstat` holds how long the thread was ready and did not run. The figure also rises if the thread is
//! bound to one processor, or if its control group has used up its share.
//!
//! This module never guesses: without the kernel's figure it returns `None`.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// Precision of this thread's timers in nanoseconds: paced batches are one to two milliseconds apart.
const TIMER_SLACK: libc::c_ulong = 10_000;
/// A short time slice in nanoseconds: the least that the kernel grants.
const SHORT: u64 = 100_000;
/// Size of the read buffer; the line of `schedstat` is shorter.
const LINE: usize = 128;

/// The kernel's figure for this thread, and the time slice that this thread has requested.
#[derive(Debug)]
pub(crate) struct Processor {
    schedstat: Option<File>,
    time_slice: TimeSlice,
}

/// Requested length of this thread's time slices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimeSlice {
    /// The usual length: after a yield every other ready thread runs about as often as this thread.
    Usual,
    /// As short as the kernel grants. If all processors compute, Linux 6.12 and later lets a thread with a shorter
    /// slice run first, at an unchanged share of time. With the usual length messages of ranks and peers would wait
    /// some milliseconds for the end of another thread's slice. Earlier kernels ignore the request.
    Short,
}

impl Processor {
    /// Requests exact timers and short time slices for this thread.
    pub(crate) fn for_this_thread() -> Self {
        // SAFETY: changes the precision of this thread's timers and nothing else.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK) };
        let mut processor =
            Processor { schedstat: File::open("/proc/thread-self/schedstat").ok(), time_slice: TimeSlice::Usual };
        processor.request_time_slice(TimeSlice::Short);
        processor
    }

    /// Time that this thread has waited for a processor since its start.
    pub(crate) fn delay(&self) -> Option<Duration> {
        let mut line = [0; LINE];
        let length = self.schedstat.as_ref()?.read_at(&mut line, 0).ok()?;
        let nanoseconds = std::str::from_utf8(&line[..length]).ok()?.split(' ').nth(1)?.parse().ok()?;
        Some(Duration::from_nanos(nanoseconds))
    }

    pub(crate) fn request_time_slice(&mut self, time_slice: TimeSlice) {
        if std::mem::replace(&mut self.time_slice, time_slice) == time_slice {
            return;
        }
        if let Some(mut attributes) = scheduling().filter(|found| found.sched_policy == libc::SCHED_OTHER as u32) {
            attributes.sched_runtime = match time_slice {
                TimeSlice::Usual => 0,
                TimeSlice::Short => SHORT,
            };
            // SAFETY: the kernel reads as many bytes as the `size` field of the structure counts.
            unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
        }
    }
}

/// The scheduling attributes of this thread, if the kernel reports them.
fn scheduling() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: zeros are a valid value, and the kernel writes no more than `size` bytes.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        (libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0).then_some(attributes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A kernel that is too old for short time slices reports a runtime of 0.
    #[test]
    fn requesting_a_short_time_slice_changes_only_the_slice() {
        let told = || scheduling().expect("Linux tells");
        let before = told();
        let mut processor = Processor::for_this_thread();
        assert!([0, SHORT].contains(&told().sched_runtime), "{}", told().sched_runtime);
        processor.request_time_slice(TimeSlice::Usual);
        let after = told();
        let all = |told: libc::sched_attr| (told.sched_policy, told.sched_nice, told.sched_runtime);
        assert_eq!(all(after), all(before));
    }

    #[test]
    fn scheduling_delay_grows_when_processors_are_oversubscribed() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let (processor, over) = (Processor::for_this_thread(), AtomicBool::new(false));
        let before = processor.delay().expect("Linux tells");
        std::thread::scope(|scope| {
            for _ in 0..2 * std::thread::available_parallelism().map_or(1, usize::from) {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            while processor.delay().is_some_and(|now| now == before) {}
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn without_schedstat_there_is_no_scheduling_delay() {
        assert_eq!(Processor { schedstat: None, time_slice: TimeSlice::Short }.delay(), None);
    }
}
