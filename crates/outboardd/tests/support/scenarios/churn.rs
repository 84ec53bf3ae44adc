//! Buffers of every kind are made and freed at the same addresses, between calls that use them (GP-4).

use outboard::{Context, Contribution, Group, Tier};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::collections::BTreeSet;
use std::ptr::NonNull;

use super::{LIMIT, block, me, pause};

const ROUNDS: usize = 60;
/// More bytes than a rank keeps for reuse. When a piece of this size is freed, the rank unmaps all memory that it
/// keeps.
const MORE_THAN_KEPT: usize = 257 << 20;
const SIZES: [usize; 5] = [1, 4096, 10_000, 70_001, 300_000];

/// Calls an allgather from `send` into `receive` and checks the result.
fn gather(group: &Group, call: usize, bytes: usize, send: NonNull<u8>, receive: NonNull<u8>) {
    let (rank, ranks) = me(group);
    // SAFETY: the buffers hold that many bytes, and nobody else uses them before the request has ended.
    unsafe {
        std::slice::from_raw_parts_mut(send.as_ptr(), bytes).copy_from_slice(&block(rank, call, bytes));
        receive.write_bytes(0xee, bytes * ranks);
        let contribution = Contribution::At(send.as_ptr());
        let mut request = group.iallgather(contribution, receive.as_ptr(), bytes as u64).expect("posted");
        request.wait(Some(LIMIT)).expect("within the limit").expect("success");
        let received = std::slice::from_raw_parts(receive.as_ptr(), bytes * ranks);
        for from in 0..ranks {
            let found = &received[from * bytes..][..bytes];
            assert!(found == block(from, call, bytes), "block of rank {from} in call {call} of {bytes} bytes");
        }
    }
}

/// Makes a private mapping, at `address` unless that is NULL. Returns `None` if the address is in use.
fn map_at(address: *mut u8, bytes: usize) -> Option<NonNull<u8>> {
    let rights = ProtFlags::READ | ProtFlags::WRITE;
    let fixed = if address.is_null() { MapFlags::empty() } else { MapFlags::FIXED_NOREPLACE };
    // SAFETY: the mapping is fresh and replaces none.
    let start = unsafe { mmap_anonymous(address.cast(), bytes, rights, MapFlags::PRIVATE | fixed) };
    NonNull::new(start.ok()?.cast())
}

fn map(bytes: usize) -> NonNull<u8> {
    map_at(std::ptr::null_mut(), bytes).expect("memory")
}

fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: `map` made the mapping, and no request in flight names it.
    unsafe { munmap(start.as_ptr().cast(), bytes) }.expect("it was mapped");
}

/// Reports the tier that reached the rank's memory, and how often private memory lay at an address of earlier shared
/// memory.
pub(super) fn run(context: &Context, group: &Group) {
    let (_, ranks) = me(group);
    let mut grown: Vec<u8> = vec![0; 1];
    let (mut last, mut freed) = (std::ptr::null_mut(), BTreeSet::new());
    let mut taken_over = 0;
    for round in 0..ROUNDS {
        let bytes = SIZES[round % SIZES.len()];
        let whole = bytes * ranks;
        // Private memory at the address of the last round. Later in the round: private memory at the address of earlier
        // shared memory, if that address is free.
        let again = map_at(last, whole).unwrap_or_else(|| map(whole));
        let own = map(bytes);
        gather(group, 5 * round, bytes, own, again);
        unmap(own, bytes);
        unmap(again, whole);
        last = again.as_ptr();
        let where_shared_was = freed.iter().find_map(|&address| map_at(address, whole));
        taken_over += usize::from(where_shared_was.is_some());
        let receive = where_shared_was.unwrap_or_else(|| map(whole));
        let send = map(bytes);
        gather(group, 5 * round + 1, bytes, send, receive);
        unmap(receive, whole);
        // The vector of earlier calls has grown or shrunk, in place or by a move.
        grown.resize(whole, 0);
        grown.shrink_to_fit();
        let start = NonNull::new(grown.as_mut_ptr()).expect("not NULL");
        gather(group, 5 * round + 2, bytes, send, start);
        // First one buffer is shared memory, then both buffers are.
        let shared = context.allocate(whole).expect("within bounds");
        gather(group, 5 * round + 3, bytes, send, shared);
        let other = context.allocate(bytes).expect("within bounds");
        gather(group, 5 * round + 4, bytes, other, shared);
        unmap(send, bytes);
        let large = context.allocate(MORE_THAN_KEPT).expect("address space");
        for memory in [large, shared, other] {
            // SAFETY: no request in flight names the memory.
            unsafe { context.deallocate(memory.as_ptr()) }.expect("it was allocated");
            freed.insert(memory.as_ptr());
        }
    }
    let tier = if context.memory_tier() == Tier::Staging { "staging" } else { "direct" };
    pause(&format!("{tier} {taken_over}"));
}
