//! Processes that survive a rank: a child that holds the rank's socket, or a program that replaces the rank's program.

use std::os::unix::process::CommandExt;
use std::ptr::NonNull;

use outboard::{Contribution, Group};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
use rustix::process::{Signal, getpid, kill_process};

use super::scenarios::{LIMIT, block, check, failed, is_lost, me, pause, post, print_line};
use super::{SCENARIO, again};

/// Address of the buffers of the last rank, and of the memory of the program that replaces it.
const PLACE: usize = 0x6200_0000_0000;
/// Bytes of each block; every tier of memory access reads and writes blocks of this size.
const BYTES: usize = 1 << 20;
const MAPPED: usize = 4 * BYTES;
const UNTOUCHED: u8 = 0x5a;

fn map() -> NonNull<u8> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: nobody else maps memory there, as the kernel confirms.
    let mapped = unsafe {
        mmap_anonymous(PLACE as *mut _, MAPPED, rights, MapFlags::PRIVATE | MapFlags::FIXED_NOREPLACE).expect("free")
    };
    NonNull::new(mapped.cast()).expect("not null")
}

/// Leaves a child that holds all open descriptors except standard output and error, until the test closes the input.
fn leave_a_child() {
    // SAFETY: the child only makes system calls, and ends.
    unsafe {
        if libc::fork() == 0 {
            libc::close(1);
            libc::close(2);
            // The event comes when the last writer closes, even if unread bytes are left.
            let mut input = [PollFd::from_borrowed_fd(rustix::stdio::stdin(), PollFlags::empty())];
            while poll(&mut input, None).is_err() {}
            libc::_exit(0);
        }
    }
}

/// The last rank leaves a child, and dies when the test orders it to.
pub(super) fn dies(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    if rank == ranks - 1 {
        leave_a_child();
        pause("ready");
        kill_process(getpid(), Signal::KILL).expect("we live");
    }
    let posted = post(group, 1, 10_000, false);
    print_line("posted");
    is_lost(&failed(posted), ranks - 1);
}

/// The last rank calls or does not call, leaves a child and becomes another program. Then the other ranks call, and
/// their calls fail. Behind a relay they may succeed, because the relay may have read the bytes of the last rank by
/// then.
pub(super) fn follow(group: &Group, calls: bool, relayed: bool) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 10_000, false), ranks);
    if rank == ranks - 1 {
        let send = map();
        // SAFETY: `map` has mapped this many bytes.
        let receive = unsafe {
            send.copy_from(NonNull::from(&block(rank, 1, BYTES)[0]), BYTES);
            send.add(BYTES)
        };
        // SAFETY: the buffers stay mapped while this program runs.
        let request = calls.then(|| unsafe {
            let contribution = Contribution::At(send.as_ptr());
            group.iallgather(contribution, receive.as_ptr(), BYTES as u64).expect("posted")
        });
        leave_a_child();
        std::mem::forget(request);
        panic!("{}", again().env(SCENARIO, "follower").exec());
    }
    pause("ready");
    let mut posted = post(group, 1, BYTES, false);
    match posted.request.wait(Some(LIMIT)).expect("within the limit") {
        Ok(()) => assert!(calls && relayed, "nobody had the last rank's bytes"),
        Err(error) => is_lost(&error, ranks - 1),
    }
}

/// The process is not a rank any more: it maps memory at the address of the rank's buffers, and checks that nobody
/// writes to that memory.
pub(super) fn follower() {
    let memory = map();
    // SAFETY: `map` has mapped this many bytes, and only the kernel could write to them on behalf of other processes.
    let bytes = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), MAPPED) };
    bytes.fill(UNTOUCHED);
    pause("follows");
    let touched = std::hint::black_box(&*bytes).iter().filter(|byte| **byte != UNTOUCHED).count();
    assert_eq!(touched, 0, "bytes of a program that is no rank were written");
}
