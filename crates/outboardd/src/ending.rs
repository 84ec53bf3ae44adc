//! Ends a daemon that hangs.
//!
//! The driving thread obeys an order to end within milliseconds, unless it hangs. It hangs while it accesses a rank's
//! memory whose page faults nobody serves, for example on a blocked file system. Only the end of the process interrupts
//! such an access. The thread of this module ends the process when an order stays unread. This thread sleeps until an
//! order comes, and shares only the log's queue with other threads.

use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// Time after which an unread order ends the process: many times the delay of a busy daemon.
const LIMIT: Duration = Duration::from_secs(5);
/// Interval of checks whether an order is still unread.
const CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Starts the thread that makes sure that orders readable from `orders` are obeyed.
pub(crate) fn enforce_orders(orders: OwnedFd) -> std::io::Result<()> {
    std::thread::Builder::new().name("ending".into()).spawn(move || watch(&orders))?;
    Ok(())
}

fn watch(orders: &OwnedFd) {
    let mut left_since = None;
    loop {
        let lies =
            |limit: Option<&Timespec>| poll(&mut [PollFd::new(orders, PollFlags::IN)], limit).is_ok_and(|n| n > 0);
        // The poll fails only if it is interrupted. In that case the order counts as read.
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
            // SAFETY: `_exit` ends the process at once. `exit` would run exit handlers, which could wait for the thread
            // that hangs.
            unsafe { libc::_exit(1) };
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
}
