//! Memory of a program that is not as usual: protected, out of reach for other processes, beyond a limit of the
//! program, or in a forked child.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::{NonNull, null_mut};

use outboard::{Context, Contribution, Error, Group, Status};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mmap_anonymous, mprotect, munmap};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use super::exchanges::{check_exchange, post_uneven};
use super::reductions::{check_sums, post_sums};
use super::scenarios::{LIMIT, block, check, me, pause, post, print_line};

/// Content of memory into which nothing may be received.
const UNTOUCHED: u8 = 0x5a;
const RIGHTS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

/// The place of protected memory.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum Kind {
    Private,
    /// From outboard_alloc.
    Shared,
}

fn protect(start: *mut u8, bytes: usize, rights: MprotectFlags) {
    // SAFETY: whole pages of this test, which nothing uses while they are protected.
    unsafe { mprotect(start.cast(), bytes, rights) }.expect("a mapping");
}

/// The address that the error names.
fn named(error: &Error) -> u64 {
    let text = error.to_string();
    let digits = text.split("0x").nth(1).unwrap_or_else(|| panic!("no address: {text}"));
    let digits = digits.split(|digit: char| !digit.is_ascii_hexdigit()).next().expect("a word");
    u64::from_str_radix(digits, 16).expect("hexadecimal")
}

/// Makes another group of all ranks: a group fails with a call that fails.
fn another_group(context: &Context, world: &Group) -> Group {
    let (rank, ranks) = me(world);
    let own = context.offer().expect("an offer");
    let mut offers = vec![0; own.len() * ranks];
    world.allgather(&own[..], &mut offers).expect("success");
    context.create_group(&offers, ranks as u32, rank as u32).expect("the group is made")
}

/// Rank 1 receives into memory that it may not write. Its error names the memory, which stays as it was; other ranks
/// have their bytes or the error.
pub(super) fn unwritable(context: &Context, world: &Group, kind: Kind) {
    let (rank, ranks) = me(world);
    for (call, bytes) in [8, 5_000, 60_000, 300_000].into_iter().enumerate() {
        for rights in [MprotectFlags::READ, MprotectFlags::empty()] {
            let group = &another_group(context, world);
            let room = (bytes * ranks).next_multiple_of(4096);
            let memory = match kind {
                Kind::Shared => context.allocate(room).expect("room").as_ptr(),
                Kind::Private => {
                    // SAFETY: a fresh mapping.
                    unsafe { mmap_anonymous(null_mut(), room, RIGHTS, MapFlags::PRIVATE) }.expect("room").cast()
                }
            };
            // SAFETY: `room` bytes of this test.
            unsafe { memory.write_bytes(UNTOUCHED, room) };
            if rank == 1 {
                protect(memory, room, rights);
            }
            let send = block(rank, call, bytes);
            // SAFETY: both buffers outlive the request.
            let posted = unsafe { group.iallgather(Contribution::At(send.as_ptr()), memory, bytes as u64) };
            let ended = match posted {
                Ok(mut request) => request.wait(Some(LIMIT)).expect("within the limit"),
                Err(error) => {
                    // Nothing was posted, so other ranks still wait for this call.
                    check(post(group, call, bytes, false), ranks);
                    Err(error)
                }
            };
            protect(memory, room, MprotectFlags::READ | MprotectFlags::WRITE);
            // SAFETY: `room` bytes of this test, and the request has ended.
            let found = unsafe { std::slice::from_raw_parts(memory, room) };
            match ended {
                Err(error) => {
                    assert_eq!(error.status(), Status::Memory, "{error}");
                    let within = (memory as u64..memory as u64 + room as u64).contains(&named_of(rank, &error, memory));
                    assert!(within, "{bytes} bytes at {memory:p}: {error}");
                }
                Ok(()) => {
                    assert_ne!(rank, 1, "{bytes} bytes were received where the rank may not write");
                    let expected: Vec<u8> = (0..ranks).flat_map(|rank| block(rank, call, bytes)).collect();
                    assert!(found[..bytes * ranks] == expected, "{bytes} bytes");
                }
            }
            assert!(rank != 1 || found.iter().all(|byte| *byte == UNTOUCHED), "{bytes} bytes: the memory has changed");
            match kind {
                // SAFETY: nothing uses the memory any more.
                Kind::Shared => unsafe { context.deallocate(memory) }.expect("ours"),
                // SAFETY: nothing uses the memory any more.
                Kind::Private => unsafe { munmap(memory.cast(), room) }.expect("ours"),
            }
        }
    }
}

/// The address that the error names for rank 1; other ranks only have its number.
fn named_of(rank: usize, error: &Error, memory: *mut u8) -> u64 {
    if rank == 1 {
        return named(error);
    }
    assert!(error.to_string().contains("rank 1"), "{error}");
    memory as u64
}

/// Memory that the processor reaches and that the kernel lets no other process reach.
fn unreachable_memory() -> Vec<(&'static str, *mut u8)> {
    let secret = || {
        // SAFETY: makes a descriptor; its mapping is fresh.
        unsafe {
            let fd = libc::syscall(libc::SYS_memfd_secret, 0);
            let fd = OwnedFd::from_raw_fd(i32::try_from(fd).ok().filter(|fd| *fd >= 0)?);
            rustix::fs::ftruncate(&fd, REACHED as u64).ok()?;
            mmap(null_mut(), REACHED, RIGHTS, MapFlags::SHARED, &fd, 0).ok()
        }
    };
    // The submission entries of a ring: 16,384 of 64 bytes.
    let ring = || {
        let mut parameters = [0u32; 30];
        // SAFETY: makes a descriptor and fills the parameters; the mapping is fresh.
        unsafe {
            let fd = libc::syscall(libc::SYS_io_uring_setup, REACHED / 64, parameters.as_mut_ptr());
            let fd = OwnedFd::from_raw_fd(i32::try_from(fd).ok().filter(|fd| *fd >= 0)?);
            let entries = 0x1000_0000;
            mmap(null_mut(), REACHED, RIGHTS, MapFlags::SHARED.union(MapFlags::POPULATE), &fd, entries).ok()
        }
    };
    let kinds = [("secret", secret()), ("ring", ring())];
    kinds.into_iter().filter_map(|(name, memory)| Some((name, memory?.cast()))).collect()
}

const REACHED: usize = 1 << 20;

/// Calls on memory that only this rank's processor reaches, as send buffer, as receive buffer and as both.
pub(super) fn out_of_reach(group: &Group) {
    let (rank, ranks) = me(group);
    let kinds = unreachable_memory();
    for (_, memory) in &kinds {
        for (call, bytes) in [1, 8, 5_000, 100_000].into_iter().enumerate() {
            let expected: Vec<u8> = (0..ranks).flat_map(|rank| block(rank, call, bytes)).collect();
            let (mut send, mut receive) = (block(rank, call, bytes), vec![0; bytes * ranks]);
            for (sends, receives) in [(true, false), (false, true), (true, true)] {
                let from = if sends { *memory } else { send.as_mut_ptr() };
                let to = if receives { memory.wrapping_add(REACHED / 2) } else { receive.as_mut_ptr() };
                receive.fill(0);
                // SAFETY: the memory has room for both buffers, and the request ends before they are used.
                let found = unsafe {
                    if sends {
                        from.copy_from(send.as_ptr(), bytes);
                    }
                    let request = group.iallgather(Contribution::At(from), to, bytes as u64);
                    request.expect("posted").wait(Some(LIMIT)).expect("within the limit").expect("success");
                    std::slice::from_raw_parts(to, bytes * ranks)
                };
                assert!(found == expected, "{bytes} bytes, sent {sends}, received {receives}");
            }
        }
        check(post(group, 9, 10_000, false), ranks);
        check_sums(post_sums(group, 8, 50_003));
    }
    let names: Vec<&str> = kinds.iter().map(|(name, _)| *name).collect();
    pause(&names.join(" "));
}

/// Lowers a limit of this process.
fn limit(resource: Resource, most: u64) {
    setrlimit(resource, Rlimit { current: Some(most), ..getrlimit(resource) }).expect("it may be lowered");
}

/// Allocates memory, and gathers from it and into it.
fn gather_in_allocated(context: &Context, group: &Group, bytes: usize) {
    let (rank, ranks) = me(group);
    let memory = context.allocate(bytes * (ranks + 1)).expect("plain memory at least");
    let (send, receive) = (memory.as_ptr(), memory.as_ptr().wrapping_add(bytes));
    // SAFETY: the memory has room for both buffers, and is given back after the request.
    unsafe {
        send.copy_from(block(rank, 1, bytes).as_ptr(), bytes);
        let mut request = group.iallgather(Contribution::At(send), receive, bytes as u64).expect("posted");
        request.wait(Some(LIMIT)).expect("within the limit").expect("success");
        let expected: Vec<u8> = (0..ranks).flat_map(|rank| block(rank, 1, bytes)).collect();
        assert!(std::slice::from_raw_parts(receive, bytes * ranks) == expected);
        context.deallocate(memory.as_ptr()).expect("ours");
    }
}

/// A limit on files that no shared memory respects, then none on descriptors: all calls work.
pub(super) fn limited(context: &Context, group: &Group) {
    limit(Resource::Fsize, 20_480);
    gather_in_allocated(context, group, 1 << 20);
    // The tables of an uneven exchange are shared memory elsewhere.
    check_exchange(group, post_uneven(group, 3));
    check(post(group, 4, 300_000, false), me(group).1);
    limit(Resource::Fsize, u64::MAX >> 1);
    let descriptors = getrlimit(Resource::Nofile);
    // The kernel polls no more descriptors than this.
    limit(Resource::Nofile, 1);
    gather_in_allocated(context, group, 1 << 21);
    setrlimit(Resource::Nofile, descriptors).expect("it may be raised again");
    print_line("done");
}

/// Staging needs shared memory. Beyond the limit on files a post fails with a sentence, and no signal comes.
pub(super) fn limited_staging(group: &Group) {
    let ranks = me(group).1;
    check(post(group, 0, 1_000, false), ranks);
    limit(Resource::Fsize, 20_480);
    let (send, mut receive) = (vec![7u8; 200_000], vec![0u8; 200_000 * ranks]);
    let contribution = Contribution::At(send.as_ptr());
    // SAFETY: nothing is posted.
    let refused = unsafe { group.iallgather(contribution, receive.as_mut_ptr(), 200_000) }.expect_err("too large");
    assert_eq!(refused.status(), Status::Resource, "{refused}");
    assert!(refused.to_string().contains("ulimit -f"), "{refused}");
    // The memory of the first call is kept for calls of its size.
    check(post(group, 1, 1_000, false), ranks);
    print_line("done");
}

/// A process whose limit on files is low from the start attaches, and may work on its own.
pub(super) fn limited_from_the_start() {
    limit(Resource::Fsize, 20_480);
    let context = Context::attach(None).expect("the daemon makes the shared memory");
    let group = context.create_group(&context.offer().expect("an offer")[..], 1, 0).expect("the group is made");
    gather_in_allocated(&context, &group, 300_000);
    group.destroy().expect("no request is in flight");
    context.detach().expect("no group is left");
    print_line("done");
}

/// Whether the memory has this content; writes to all of it.
fn child_has(memory: NonNull<u8>, expected: &[u8]) -> bool {
    // SAFETY: the child's own copy.
    let found = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), expected.len()) };
    let right = found == expected;
    found.fill(0xcc);
    right && found.iter().all(|byte| *byte == 0xcc)
}

/// A child of fork has the memory as it was, and its own; so has the child's child. The parent gathers in the memory.
pub(super) fn forked(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    for (call, bytes) in [100, 65_536, 3_000_000].into_iter().enumerate() {
        let [send, receive] = [bytes, bytes * ranks].map(|bytes| context.allocate(bytes).expect("room"));
        let (contribution, before) = (block(rank, call, bytes), vec![0; bytes * ranks]);
        // SAFETY: the memory has room.
        unsafe {
            send.as_ptr().copy_from(contribution.as_ptr(), bytes);
            receive.as_ptr().write_bytes(0, bytes * ranks);
        }
        let (wait, go) = rustix::pipe::pipe().expect("descriptors");
        // SAFETY: the children read and write memory, wait, and end.
        let child = unsafe { libc::fork() };
        if child == 0 {
            drop(go);
            let _ = rustix::io::read(&wait, &mut [0; 1]);
            // SAFETY: as above.
            unsafe {
                let grandchild = libc::fork();
                let right = child_has(send, &contribution) && child_has(receive, &before);
                let mut status = i32::from(grandchild != 0 && libc::waitpid(grandchild, null_mut(), 0) < 0);
                if grandchild != 0 {
                    status |= 2 * i32::from(!right);
                }
                libc::_exit(if grandchild == 0 { i32::from(!right) } else { status });
            }
        }
        drop(wait);
        let contribution_at = Contribution::At(send.as_ptr());
        // SAFETY: the memory is given back after the request.
        let mut request = unsafe { group.iallgather(contribution_at, receive.as_ptr(), bytes as u64) }.expect("posted");
        request.wait(Some(LIMIT)).expect("within the limit").expect("success");
        rustix::io::write(&go, b"x").expect("the child reads");
        let mut status = 0;
        // SAFETY: our own child.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert_eq!(status, 0, "the child of {bytes} bytes");
        let expected: Vec<u8> = (0..ranks).flat_map(|rank| block(rank, call, bytes)).collect();
        // SAFETY: the request has ended, and nothing uses the memory afterwards.
        unsafe {
            assert!(std::slice::from_raw_parts(send.as_ptr(), bytes) == contribution, "the child wrote to it");
            assert!(std::slice::from_raw_parts(receive.as_ptr(), bytes * ranks) == expected);
            context.deallocate(send.as_ptr()).expect("ours");
            context.deallocate(receive.as_ptr()).expect("ours");
        }
    }
    print_line("done");
}
