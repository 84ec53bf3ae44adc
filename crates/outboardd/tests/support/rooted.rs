//! Gathers, scatters and small broadcasts as the ranks of the tests call them (SP-5, SP-6, MC-9).

use std::time::Duration;

use outboard::{Contribution, Destination, Group, Request, Status};

use super::exchanges::{Buffer, GAP, UNTOUCHED, check_exchange, content, post_uneven};
use super::scenarios::{LIMIT, check, me, pause, post, print_line, wait_for_line};

/// If a small call takes this long, it is waiting for a rank.
const HELD_UP: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kind {
    gathers: bool,
    even: bool,
    in_place: bool,
}

struct Posted {
    /// The buffers from which this rank sends and into which it receives.
    send: Buffer,
    receive: Buffer,
    request: Request,
    call: usize,
    root: usize,
    kind: Kind,
}

/// Bytes that a rank exchanges with the root of a call.
fn length(call: usize, even: bool, rank: usize) -> u64 {
    let sizes = [0, 1, 1447, 10_000, 70_003];
    sizes[if even { call % 5 } else { (rank * 3 + call) % 5 }]
}

/// Posts a call in which every rank but the root exchanges a block with the root.
fn rooted(group: &Group, call: usize, root: usize, kind: Kind, length: impl Fn(usize) -> u64) -> Posted {
    let (rank, ranks) = me(group);
    let is_root = rank == root;
    let many = || {
        let bytes: Vec<u64> = (0..ranks).map(|other| if is_root { length(other) } else { 0 }).collect();
        if kind.even { Buffer::in_order(bytes) } else { Buffer::new(bytes, GAP) }
    };
    let one = || Buffer::in_order((0..ranks).map(|other| if other == root { length(rank) } else { 0 }).collect());
    let (mut send, mut receive) = if kind.gathers { (one(), many()) } else { (many(), one()) };
    for to in 0..ranks {
        let bytes = send.bytes[to];
        send.block(to).copy_from_slice(&content(rank, to, call, bytes));
    }
    let in_place = kind.in_place && is_root;
    if in_place && kind.gathers {
        let own = send.block(rank).to_vec();
        receive.block(rank).copy_from_slice(&own);
        send.block(rank).fill(UNTOUCHED);
    }
    let from = if in_place { Contribution::InPlace } else { Contribution::At(send.memory.as_ptr()) };
    let to = if in_place { Destination::InPlace } else { Destination::At(receive.memory.as_mut_ptr()) };
    let (at, bytes, root_number) = (receive.memory.as_mut_ptr(), length(rank), root as u32);
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let posted = unsafe {
        match (kind.gathers, kind.even) {
            (true, true) => group.igather(root_number, from, at, bytes),
            (true, false) => group.igatherv(root_number, from, bytes, at, is_root.then(|| receive.list())),
            (false, true) => group.iscatter(root_number, send.memory.as_ptr(), to, bytes),
            (false, false) => {
                let sent = is_root.then(|| send.list());
                group.iscatterv(root_number, send.memory.as_ptr(), sent, to, bytes)
            }
        }
    };
    Posted { send, receive, request: posted.expect("posted"), call, root, kind }
}

fn check_rooted(group: &Group, mut posted: Posted) {
    let (rank, ranks) = me(group);
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect("success");
    let Posted { receive, call, root, kind, .. } = &mut posted;
    for from in 0..ranks {
        let bytes = receive.bytes[from];
        let stays = kind.in_place && !kind.gathers && (rank, from) == (*root, *root);
        let expected = if stays { vec![UNTOUCHED; bytes as usize] } else { content(from, rank, *call, bytes) };
        assert!(*receive.block(from) == expected, "block of rank {from} in call {call}, {kind:?} with root {root}");
        receive.block(from).fill(UNTOUCHED);
    }
    assert!(receive.memory.iter().all(|byte| *byte == UNTOUCHED), "something was written between the blocks");
    drop(posted.send);
}

const GATHERV: Kind = Kind { gathers: true, even: false, in_place: false };
const SCATTER: Kind = Kind { gathers: false, even: true, in_place: false };

fn kinds() -> impl Iterator<Item = Kind> {
    (0..8).map(|bits| Kind { gathers: bits & 1 != 0, even: bits & 2 != 0, in_place: bits & 4 != 0 })
}

/// Calls of all kinds, with blocks of all sizes and with several roots. Several calls are in flight at once, with
/// allgathers and all-to-alls among them.
pub(crate) fn all_kinds(group: &Group) {
    let (_, ranks) = me(group);
    for round in 0..5 {
        let call = |at: usize| round * 10 + at;
        let post_kind = |(at, kind): (usize, Kind)| {
            let call = call(at);
            rooted(group, call, call % ranks, kind, |rank| length(call, kind.even, rank))
        };
        let all: Vec<Posted> = kinds().enumerate().map(post_kind).collect();
        let (allgather, exchange) = (post(group, call(8), 3000, false), post_uneven(group, call(9)));
        check_exchange(group, exchange);
        // The calls are checked in another order than they were posted.
        all.into_iter().rev().for_each(|posted| check_rooted(group, posted));
        check(allgather, ranks);
    }
    pause("done");
}

/// SP-6: the root of a gather posts after all other ranks have ended: their blocks are staged at the root's host. The
/// last rank of a scatter, which the other ranks do not need, also posts after they have ended.
pub(crate) fn late_root(group: &Group) {
    let (rank, ranks) = me(group);
    let last = ranks - 1;
    for (call, root, kind) in [(1, last, GATHERV), (2, 0, SCATTER)] {
        print_line("ready");
        if rank == last {
            wait_for_line();
        }
        check_rooted(group, rooted(group, call, root, kind, |_| 50_000));
        pause("done");
    }
}

/// The root expects another number of bytes than rank 1 sends.
pub(crate) fn mismatch(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 1, false), ranks);
    let bytes = |from: usize| if from == 1 && rank == 0 { 5_000 } else { 6_000 };
    let mut posted = rooted(group, 1, 0, GATHERV, bytes);
    let result = posted.request.wait(Some(LIMIT)).expect("within the limit");
    // A rank may succeed if its block was read before the root called.
    if rank > 0 && result.is_ok() {
        return;
    }
    let error = result.expect_err("a failure");
    assert_eq!(error.status(), Status::Mismatch, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 1 sends 6000 bytes to rank 0, which expects 5000"), "{text}");
}

/// The root sends no bytes to ranks that expect some. The root may continue to its next call, and the other ranks get
/// the error.
pub(crate) fn nothing_for_who_waits(group: &Group) {
    let (rank, _) = me(group);
    let bytes = if rank == 0 { 0 } else { 8 };
    let mut result = rooted(group, 1, 0, SCATTER, |_| bytes).request.wait(Some(LIMIT)).expect("within the limit");
    if rank == 0 && result.is_ok() {
        result = rooted(group, 2, 0, GATHERV, |_| 8).request.wait(Some(LIMIT)).expect("within the limit");
    }
    let error = result.expect_err("a failure");
    assert_eq!(error.status(), Status::Mismatch, "{error}");
}

/// The root of small broadcasts continues until the last rank, which has not called, holds it up (MC-9).
pub(crate) fn held_up(group: &Group) {
    let (rank, ranks) = me(group);
    print_line("ready");
    if rank == ranks - 1 {
        wait_for_line();
    }
    let mut told = rank != 0;
    for call in 0..3000u64 {
        let mut bytes = if rank == 0 { call.to_le_bytes() } else { [0; 8] };
        // SAFETY: the buffer outlives the request.
        let mut request = unsafe { group.ibroadcast(0, bytes.as_mut_ptr(), 8) }.expect("posted");
        if !told && request.wait(Some(HELD_UP)).is_none() {
            told = true;
            print_line("held up");
        }
        request.wait(Some(LIMIT)).expect("within the limit").expect("success");
        assert_eq!(u64::from_le_bytes(bytes), call);
    }
    pause("done");
}
