//! Counts the system calls of every collective's common path: the rank's processor time per call depends on them.

use crate::rank::{contribution, post, world};
use crate::service::{Behaviour, FakeService};
use outboard::wait_some;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::ioctl::{Updater, ioctl, opcode};
use std::os::fd::{FromRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};

const RECEIVE: rustix::ioctl::Opcode = opcode::read_write::<libc::seccomp_notif>(b'!', 0);
const ANSWER: rustix::ioctl::Opcode = opcode::read_write::<libc::seccomp_notif_resp>(b'!', 1);

/// Counts the system calls of one thread. Each call waits until it is counted.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    /// The number of system calls in `part`.
    fn of<T>(&self, part: impl FnOnce() -> T) -> (u64, T) {
        let before = self.0.load(Ordering::SeqCst);
        let result = part();
        (self.0.load(Ordering::SeqCst) - before, result)
    }
}

/// Runs `body` in a thread whose system calls are counted.
fn counted(body: impl FnOnce(&Counter) + Send) {
    let (counter, listener) = (Counter::default(), AtomicI32::new(-1));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            listener.store(listen_to_this_thread(), Ordering::SeqCst);
            body(&counter);
        });
        // Polls: a system call that wakes this thread would itself wait until this thread counts it.
        while listener.load(Ordering::SeqCst) < 0 {
            std::thread::yield_now();
        }
        // SAFETY: the kernel has just made the descriptor, and nobody else closes it.
        count(&unsafe { OwnedFd::from_raw_fd(listener.load(Ordering::SeqCst)) }, &counter);
    });
}

/// Reports all further system calls of this thread to the returned descriptor.
fn listen_to_this_thread() -> RawFd {
    rustix::thread::set_no_new_privs(true).expect("every process may");
    let mut report =
        libc::sock_filter { code: (libc::BPF_RET | libc::BPF_K) as u16, jt: 0, jf: 0, k: libc::SECCOMP_RET_USER_NOTIF };
    let program = libc::sock_fprog { len: 1, filter: &raw mut report };
    let (filter, flags) = (libc::SECCOMP_SET_MODE_FILTER, libc::SECCOMP_FILTER_FLAG_NEW_LISTENER);
    // SAFETY: the program outlives the call.
    let listener = unsafe { libc::syscall(libc::SYS_seccomp, filter, flags, &raw const program) };
    assert!(listener >= 0, "no filter: {}", std::io::Error::last_os_error());
    listener as RawFd
}

/// Counts each system call and lets it pass, until the thread has ended.
fn count(listener: &OwnedFd, counter: &Counter) {
    loop {
        let mut watched = [PollFd::new(listener, PollFlags::IN)];
        poll(&mut watched, None).expect("a descriptor to poll");
        if !watched[0].revents().contains(PollFlags::IN) {
            return;
        }
        // SAFETY: any bits are valid, and the kernel requires zeroes.
        let mut call: libc::seccomp_notif = unsafe { std::mem::zeroed() };
        // SAFETY: the operation fills the structure that its number names.
        unsafe { ioctl(listener, Updater::<RECEIVE, _>::new(&mut call)) }.expect("a system call that waits");
        counter.0.fetch_add(1, Ordering::SeqCst);
        let flags = libc::SECCOMP_USER_NOTIF_FLAG_CONTINUE as u32;
        let mut pass = libc::seccomp_notif_resp { id: call.id, val: 0, error: 0, flags };
        // SAFETY: the operation reads the structure that its number names.
        unsafe { ioctl(listener, Updater::<ANSWER, _>::new(&mut pass)) }.expect("it still waits");
    }
}

#[test]
fn counter_counts_one_system_call() {
    counted(|counter| {
        assert_eq!(counter.of(|| ()).0, 0);
        assert_eq!(counter.of(rustix::process::getppid).0, 1);
    });
}

/// MC-9: a post rings the doorbell once at most; seeing and freeing a result makes no system call.
#[test]
fn post_makes_at_most_the_doorbell_system_call() {
    let service = FakeService::start(Behaviour::default());
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 4096), vec![0; 4096]);
    counted(|counter| {
        // The allocator keeps the memory that it fetches in the first round.
        for round in 0..20 {
            let (posting, request) = counter.of(|| post(&world[0].1, &send, &mut receive).unwrap());
            let mut request = request;
            wait_some(&[&request], None).unwrap();
            let result = if round % 2 == 0 { counter.of(|| request.test()) } else { counter.of(|| request.wait(None)) };
            assert_eq!(result.1, Some(Ok(())));
            let freeing = counter.of(|| drop(request)).0;
            if round >= 2 {
                assert!(posting <= 1, "{posting} to post");
                assert_eq!((result.0, freeing), (0, 0), "to see the result and to free the request");
            }
        }
    });
    assert_eq!(receive, send);
}

/// A test that finds nothing checks rarely whether the service process lives, and makes no other system call.
#[test]
fn unsuccessful_tests_rarely_make_system_calls() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    counted(|counter| {
        let mut request = post(&world[0].1, &send, &mut receive).unwrap();
        let testing = counter.of(|| (0..1024).all(|_| request.test().is_none()));
        assert_eq!(testing, (4, true));
        service.release();
        assert_eq!(request.wait(None), Some(Ok(())));
    });
    assert_eq!(receive, send);
}
