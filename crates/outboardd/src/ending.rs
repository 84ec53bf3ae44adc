//! The end of a daemon that hangs.
//!
//! Who drives the daemon takes an order to end within milliseconds, unless it hangs: the kernel lets nothing but the
//! end of the process interrupt an access to a rank's memory whose page faults nobody serves, of a file system that
//! blocks for instance. A thread here ends the process when an order has been left lying. It sleeps until there is one,
//! and touches nothing that the others have but the queue of the log.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// How long an order may lie: many times what a busy daemon takes.
const LIMIT: Duration = Duration::from_secs(5);
/// Between looks at an order that lies.
const LOOK: Duration = Duration::from_millis(100);

/// Sees to it that orders which can be read from `orders` are obeyed.
pub(crate) fn insist(orders: OwnedFd) -> std::io::Result<()> {
    std::thread::Builder::new().name("ending".into()).spawn(move || watch(&orders))?;
    Ok(())
}

fn watch(orders: &OwnedFd) {
    let mut left_since = None;
    loop {
        let lies =
            |limit: Option<&Timespec>| poll(&mut [PollFd::new(orders, PollFlags::IN)], limit).is_ok_and(|n| n > 0);
        // Fails only by an interruption, and then nothing is known to lie.
        if !lies(left_since.map(|_| &Timespec { tv_sec: 0, tv_nsec: 0 })) {
            left_since = None;
            continue;
        }
        if left_since.get_or_insert_with(Instant::now).elapsed() >= LIMIT {
            tracing::error!(
                "the daemon has not heard for {LIMIT:?} that it is to end: it hangs, perhaps in memory of a rank whose \
                 page faults nobody serves; it ends at once"
            );
            crate::log::finish();
            // SAFETY: ends the process; what others at exit would do could wait for the thread that hangs.
            unsafe { libc::_exit(1) };
        }
        std::thread::sleep(LOOK);
    }
}
