//! Large calls among ranks of one host; the ranks wait for the calls, or test them (SP-6).

use outboard::{Contribution, Group, Status};

use super::exchanges::{UNTOUCHED, content};
use super::scenarios::{LIMIT, me, pause, print_line, wait_for_line};

const BYTES: usize = 1 << 20;

/// How ranks complete their calls: by waiting or by testing.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Meanwhile {
    Wait,
    Look,
}

/// Runs an exchange with blocks of `BYTES` bytes until it ends.
fn exchange(group: &Group, call: usize, meanwhile: Meanwhile) -> Result<(), Status> {
    let (rank, ranks) = me(group);
    let block = |from: usize, to: usize| content(from, to, call, BYTES as u64);
    let send: Vec<u8> = (0..ranks).flat_map(|to| block(rank, to)).collect();
    let mut receive = vec![UNTOUCHED; ranks * BYTES];
    // SAFETY: the buffers live until the end of the function, and the request ends before that.
    let posted = unsafe { group.ialltoall(send.as_ptr(), receive.as_mut_ptr(), BYTES as u64) };
    let mut request = posted.expect("posted");
    let ended = match meanwhile {
        Meanwhile::Wait => request.wait(Some(LIMIT)).expect("within the limit"),
        Meanwhile::Look => loop {
            match request.test() {
                Some(ended) => break ended,
                None => std::thread::yield_now(),
            }
        },
    };
    ended.map_err(|error| error.status())?;
    let receive = std::hint::black_box(receive);
    (0..ranks).for_each(|from| {
        assert!(receive[from * BYTES..][..BYTES] == block(from, rank), "block of rank {from} in call {call}");
    });
    Ok(())
}

/// Exchanges, with broadcasts and gathers between them if the ranks wait.
pub(crate) fn calls(group: &Group, meanwhile: Meanwhile) {
    let (rank, ranks) = me(group);
    for call in 0..10 {
        exchange(group, call, meanwhile).expect("success");
        if meanwhile == Meanwhile::Look {
            continue;
        }
        let root = call % ranks;
        let mut buffer = content(rank, root, call, BYTES as u64);
        group.broadcast(root as u32, &mut buffer).expect("success");
        assert!(buffer == content(root, root, call, BYTES as u64), "broadcast {call}");
        let own = content(rank, root, call, BYTES as u64);
        let mut all = vec![UNTOUCHED; if rank == root { ranks * BYTES } else { 0 }];
        // SAFETY: the buffers live until the end of the loop body, and the request ends before that.
        let posted =
            unsafe { group.igather(root as u32, Contribution::At(own.as_ptr()), all.as_mut_ptr(), BYTES as u64) };
        posted.expect("posted").wait(Some(LIMIT)).expect("within the limit").expect("success");
        for (from, block) in all.chunks(BYTES).enumerate() {
            assert!(block == content(from, root, call, BYTES as u64), "gather {call} of rank {from}");
        }
    }
    pause("done");
}

/// The last rank posts, waits and is stopped. Then the other ranks call.
pub(crate) fn stopped(group: &Group) {
    let (rank, ranks) = me(group);
    print_line("ready");
    if rank < ranks - 1 {
        wait_for_line();
    }
    exchange(group, 0, Meanwhile::Wait).expect("success");
    pause("done");
}

/// Runs exchanges until the last rank is killed during an exchange.
pub(crate) fn one_dies(group: &Group) {
    let (rank, ranks) = me(group);
    for call in 0.. {
        if let Err(status) = exchange(group, call, Meanwhile::Wait) {
            assert_eq!(status, Status::RankLost);
            return;
        }
        if call == 3 {
            print_line(if rank == ranks - 1 { "ready" } else { "posted" });
        }
    }
}
