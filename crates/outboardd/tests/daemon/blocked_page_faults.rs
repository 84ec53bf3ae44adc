//! Ranks with page faults that nobody serves.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};

use outboard::{Contribution, Group, Request, Status};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};

use crate::support::scenarios::LIMIT;
use crate::support::{Daemon, group};

const BYTES: usize = 1 << 20;

/// Memory without pages. Its page faults are reported to a descriptor that nobody serves.
struct Unserved {
    start: *mut u8,
    faults: File,
}

impl Unserved {
    fn new() -> Unserved {
        const API: libc::c_ulong = 0xc018_aa3f;
        const REGISTER: libc::c_ulong = 0xc020_aa00;
        const MISSING: u64 = 1;
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the descriptor is fresh, and both structures match the kernel's interface. The mapping is used only
        // as an address, and stays until the process ends.
        unsafe {
            let faults = libc::syscall(libc::SYS_userfaultfd, libc::O_CLOEXEC);
            assert!(faults >= 0, "this user may use userfaultfd");
            let faults = File::from_raw_fd(faults as i32);
            let start = mmap_anonymous(std::ptr::null_mut(), BYTES, rights, MapFlags::PRIVATE).expect("memory");
            let (mut version, mut range) = ([0xaa_u64, 0, 0], [start as u64, BYTES as u64, MISSING, 0]);
            assert_eq!(libc::ioctl(faults.as_raw_fd(), API, &raw mut version), 0);
            assert_eq!(libc::ioctl(faults.as_raw_fd(), REGISTER, &raw mut range), 0);
            Unserved { start: start.cast(), faults }
        }
    }

    /// Waits until a process has hit a page fault in this memory, which blocks that process forever.
    fn is_met(&mut self) {
        self.faults.read_exact(&mut [0; 32]).expect("the kernel tells");
    }
}

fn allgather(group: &Group, send: *const u8, receive: &mut [u8], bytes: usize) -> Request {
    // SAFETY: each test keeps the buffers until the request has ended.
    unsafe { group.iallgather(Contribution::At(send), receive.as_mut_ptr(), bytes as u64) }.expect("posted")
}

/// The daemon hangs while it accesses that memory, and still ends when it is ordered to end.
#[test]
#[ignore = "needs userfaultfd: make test as root"]
fn a_daemon_that_hangs_in_memory_of_a_rank_ends_when_it_is_told_to() {
    let mut unserved = Unserved::new();
    let daemon = Daemon::start(&["--errand-bytes", "0", "--log", "off"]);
    let (group, mut receive) = (&group(&daemon, 1)[0], vec![0; BYTES]);
    let mut request = allgather(group, unserved.start, &mut receive, BYTES);
    unserved.is_met();
    daemon.request_stop();
    assert!(daemon.ends_within(LIMIT), "it hangs");
    let error = request.wait(Some(LIMIT)).expect("within the limit").expect_err("nobody is left");
    assert_eq!(error.status(), Status::ServiceLost, "{error}");
}
