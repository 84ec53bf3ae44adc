//! Sets socket options that rustix lacks. Never keeps a socket.

use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

pub(crate) fn set_option<T: Copy>(fd: BorrowedFd<'_>, level: i32, name: i32, value: T) -> Result<(), Errno> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the kernel reads `length` bytes of `value`, which lives during the call.
    let status = unsafe { libc::setsockopt(fd.as_raw_fd(), level, name, (&raw const value).cast(), length) };
    if status == 0 {
        Ok(())
    } else {
        Err(Errno::from_io_error(&std::io::Error::last_os_error()).expect("an error of the kernel"))
    }
}
