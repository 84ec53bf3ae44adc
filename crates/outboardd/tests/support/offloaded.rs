//! Calls of the tests' ranks that an engine beside the service processes carries out.

use outboard::Group;

use super::exchanges::{check_exchange, even};
use super::scenarios::{LIMIT, block, check, me, pause, post};

/// Block sizes in bytes: empty, one byte, around the limit of an eager message, and several messages.
const SIZES: [usize; 5] = [0, 1, 16_383, 16_384, 70_001];
pub(crate) const ROUNDS: usize = 4;
/// Number of calls of one round for which the engine gets a list. For each size above 0: two allgathers, an alltoall,
/// and a broadcast from each of four ranks. For each size: a barrier.
pub(crate) const LISTS: usize = (SIZES.len() - 1) * (2 + 1 + 4) + SIZES.len();

/// Calls allgathers, alltoalls, broadcasts and barriers of several sizes one after the other, and checks the received
/// bytes.
pub(super) fn calls(group: &Group) {
    let (rank, ranks) = me(group);
    // The test counts the calls between these pauses.
    let wait = || {
        pause("done");
    };
    group.barrier().expect("success");
    wait();
    for round in 0..ROUNDS {
        for (at, bytes) in SIZES.into_iter().enumerate() {
            let call = round * SIZES.len() + at;
            for in_place in [false, true] {
                check(post(group, call, bytes, in_place), ranks);
            }
            check_exchange(group, even(group, call, bytes as u64));
            for root in 0..ranks {
                let mut buffer = if rank == root { block(root, call, bytes) } else { vec![0; bytes] };
                // SAFETY: nobody accesses the buffer before the request has ended.
                let request = unsafe { group.ibroadcast(root as u32, buffer.as_mut_ptr(), bytes as u64) };
                request.expect("posted").wait(Some(LIMIT)).expect("within the limit").expect("success");
                assert!(buffer == block(root, call, bytes), "broadcast of {bytes} bytes from {root}");
            }
            group.barrier().expect("success");
        }
    }
    wait();
}
