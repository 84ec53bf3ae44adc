//! What the kernel says of the processor that the conductor runs on, whether somebody else waits for one, and what it
//! is asked for in return: exact timers and short turns.
//!
//! `/proc/loadavg` counts the threads of the machine that can run; this thread's `schedstat` has how long it was ready
//! and did not run, which rises too where it is bound to one processor, or its control group has used up its share.
//!
//! Never guesses: where the kernel does not tell there are no figures.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::conductor::looking::Figures;

/// Precision of this thread's timers in nanoseconds: paced batches are one to two milliseconds apart.
const TIMER_SLACK: libc::c_ulong = 10_000;
/// How long this thread wants to run at a time, in nanoseconds: the least that the kernel grants.
const TURN: u64 = 100_000;
/// More than a line of either file.
const LINE: usize = 128;

/// The files, open, of the thread that made this.
#[derive(Debug)]
pub(crate) struct Processor {
    load: Option<File>,
    waits: Option<File>,
    online: u64,
}

impl Processor {
    pub(crate) fn of_this_thread() -> Self {
        let open = |path| File::open(path).ok();
        // SAFETY: asks for a number.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        Processor {
            load: open("/proc/loadavg"),
            waits: open("/proc/thread-self/schedstat"),
            online: u64::try_from(online).unwrap_or(0),
        }
    }

    pub(crate) fn figures(&self) -> Option<Figures> {
        let runnable = read(self.load.as_ref()?, |line| line.split([' ', '/']).nth(3)?.parse::<u64>().ok())?;
        let delay = read(self.waits.as_ref()?, |line| line.split(' ').nth(1)?.parse().ok())?;
        // Whom a turn wakes needs a processor, too, and would else come to ours.
        Some(Figures { crowded: runnable >= self.online, delay: Duration::from_nanos(delay) })
    }
}

/// Asks for exact timers and short turns of this thread. Where others compute on all processors, Linux 6.12 and later
/// lets in who wants a shorter turn than the one that runs, and at the same share of time; else what ranks and peers
/// have to say waits for the end of that turn, some milliseconds. Earlier kernels take no notice.
pub(crate) fn be_prompt() {
    // SAFETY: changes the precision of this thread's timers and nothing else.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, TIMER_SLACK) };
    if let Some(mut attributes) = scheduling().filter(|found| found.sched_policy == libc::SCHED_OTHER as u32) {
        attributes.sched_runtime = TURN;
        // SAFETY: the kernel reads as many bytes as the structure says that it has.
        unsafe { libc::syscall(libc::SYS_sched_setattr, 0, &raw const attributes, 0) };
    }
}

/// How this thread is scheduled, if the kernel tells.
fn scheduling() -> Option<libc::sched_attr> {
    let size = size_of::<libc::sched_attr>();
    // SAFETY: zeros are a valid value, and the kernel writes no more than `size` bytes.
    unsafe {
        let mut attributes: libc::sched_attr = std::mem::zeroed();
        (libc::syscall(libc::SYS_sched_getattr, 0, &raw mut attributes, size, 0) == 0).then_some(attributes)
    }
}

fn read<T>(file: &File, number: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut line = [0; LINE];
    let length = file.read_at(&mut line, 0).ok()?;
    number(std::str::from_utf8(&line[..length]).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Also where the kernel is too old for short turns, which it shows by telling of none.
    #[test]
    fn whoever_is_prompt_has_short_turns_and_is_else_as_before() {
        let before = scheduling().expect("Linux tells");
        be_prompt();
        let after = scheduling().expect("as before");
        assert_eq!((after.sched_policy, after.sched_nice), (before.sched_policy, before.sched_nice));
        assert!([0, TURN].contains(&after.sched_runtime), "{}", after.sched_runtime);
    }

    #[test]
    fn more_threads_than_processors_are_a_crowd() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let processor = Processor::of_this_thread();
        let (before, over) = (processor.figures().expect("Linux tells"), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for _ in 0..2 * processor.online {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        std::hint::spin_loop()
                    }
                });
            }
            while !processor.figures().is_some_and(|now| now.crowded && now.delay > before.delay) {}
            over.store(true, Ordering::Relaxed);
        });
    }

    #[test]
    fn where_the_kernel_does_not_tell_there_are_no_figures() {
        let processor = Processor { load: None, ..Processor::of_this_thread() };
        assert_eq!(processor.figures(), None);
    }
}
