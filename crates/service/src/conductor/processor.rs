//! What the kernel says of the processor that the conductor runs on: whether somebody else waits for one.
//!
//! `/proc/loadavg` counts the threads of the machine that can run; this thread's `schedstat` has how long it was ready
//! and did not run, which rises too where it is bound to one processor, or its control group has used up its share.
//!
//! Never guesses: where the kernel does not tell there are no figures.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use crate::conductor::looking::Figures;

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

fn read<T>(file: &File, number: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    let mut line = [0; LINE];
    let length = file.read_at(&mut line, 0).ok()?;
    number(std::str::from_utf8(&line[..length]).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

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
