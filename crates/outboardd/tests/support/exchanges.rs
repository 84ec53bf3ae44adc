//! All-to-alls and uneven allgathers as the ranks of the tests call them (SP-5, SP-6).

use outboard::{BlockList, Context, Contribution, Group, Request, Status};

use super::scenarios::{LIMIT, block, check, me, pause, post, print_line, wait_for_line};

/// Bytes between two blocks, which no call may change.
pub(super) const GAP: usize = 3;
pub(super) const UNTOUCHED: u8 = 0xee;

pub(super) struct Buffer {
    pub(super) memory: Vec<u8>,
    pub(super) bytes: Vec<u64>,
    offsets: Vec<u64>,
}

impl Buffer {
    /// A buffer for blocks of these sizes, in reverse order of ranks and `gap` bytes apart.
    pub(super) fn new(bytes: Vec<u64>, gap: usize) -> Buffer {
        let mut at = 0;
        let mut offsets = vec![0; bytes.len()];
        for rank in (0..bytes.len()).rev() {
            offsets[rank] = at;
            at += bytes[rank] + gap as u64;
        }
        Buffer { memory: vec![UNTOUCHED; at as usize], bytes, offsets }
    }

    /// A buffer for blocks of these sizes, in order of ranks and without gaps.
    pub(super) fn in_order(bytes: Vec<u64>) -> Buffer {
        let offsets: Vec<u64> = (0..bytes.len()).map(|at| bytes[..at].iter().sum()).collect();
        Buffer { memory: vec![UNTOUCHED; bytes.iter().sum::<u64>() as usize], bytes, offsets }
    }

    pub(super) fn block(&mut self, rank: usize) -> &mut [u8] {
        &mut self.memory[self.offsets[rank] as usize..][..self.bytes[rank] as usize]
    }

    pub(super) fn list(&self) -> BlockList<'_> {
        BlockList { bytes: &self.bytes, offsets: &self.offsets }
    }
}

pub(crate) struct Posted {
    _send: Buffer,
    receive: Buffer,
    request: Request,
    call: usize,
}

pub(super) fn content(source: usize, destination: usize, call: usize, bytes: u64) -> Vec<u8> {
    block(source * 64 + destination, call, bytes as usize)
}

/// Posts an exchange in which rank `s` sends `count(s, d)` bytes to rank `d`.
fn exchange(group: &Group, call: usize, count: impl Fn(usize, usize) -> u64) -> Posted {
    let (rank, ranks) = me(group);
    let mut send = Buffer::new((0..ranks).map(|to| count(rank, to)).collect(), GAP);
    let mut receive = Buffer::new((0..ranks).map(|from| count(from, rank)).collect(), GAP);
    for to in 0..ranks {
        let bytes = send.bytes[to];
        send.block(to).copy_from_slice(&content(rank, to, call, bytes));
    }
    let into = receive.memory.as_mut_ptr();
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let posted = unsafe { group.ialltoallv(send.memory.as_ptr(), send.list(), into, receive.list()) };
    Posted { _send: send, receive, request: posted.expect("posted"), call }
}

pub(super) fn even(group: &Group, call: usize, bytes: u64) -> Posted {
    let (rank, ranks) = me(group);
    let send: Vec<u8> = (0..ranks).flat_map(|to| content(rank, to, call, bytes)).collect();
    let mut receive = Buffer::in_order(vec![bytes; ranks]);
    let send = Buffer { memory: send, ..Buffer::in_order(vec![bytes; ranks]) };
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let posted = unsafe { group.ialltoall(send.memory.as_ptr(), receive.memory.as_mut_ptr(), bytes) };
    Posted { _send: send, receive, request: posted.expect("posted"), call }
}

/// Posts an allgather of uneven blocks, in place or not. Every rank gets all contributions, so their content names rank
/// 0 as the receiver.
fn gather(group: &Group, call: usize, count: impl Fn(usize) -> u64, in_place: bool) -> Posted {
    let (rank, ranks) = me(group);
    let mut receive = Buffer::new((0..ranks).map(count).collect(), GAP);
    let own = content(rank, 0, call, receive.bytes[rank]);
    let send = Buffer { bytes: vec![own.len() as u64], offsets: vec![0], memory: own };
    let contribution = if in_place {
        receive.block(rank).copy_from_slice(&send.memory);
        Contribution::InPlace
    } else {
        Contribution::At(send.memory.as_ptr())
    };
    let into = receive.memory.as_mut_ptr();
    // SAFETY: the buffers live in the result and are read after the request has ended.
    let request = unsafe { group.iallgatherv(contribution, into, receive.list()) }.expect("posted");
    Posted { _send: send, receive, request, call }
}

pub(crate) fn check_exchange(group: &Group, posted: Posted) {
    check_blocks(group, posted, me(group).0);
}

/// Checks that all blocks hold the bytes that their senders meant for `rank`.
fn check_blocks(group: &Group, mut posted: Posted, rank: usize) {
    let (_, ranks) = me(group);
    posted.request.wait(Some(LIMIT)).expect("within the limit").expect("success");
    for from in 0..ranks {
        let expected = content(from, rank, posted.call, posted.receive.bytes[from]);
        assert!(*posted.receive.block(from) == expected, "block of rank {from} in call {}", posted.call);
        posted.receive.block(from).fill(UNTOUCHED);
    }
    assert!(posted.receive.memory.iter().all(|byte| *byte == UNTOUCHED), "something was written between the blocks");
}

pub(crate) fn post_uneven(group: &Group, call: usize) -> Posted {
    exchange(group, call, uneven(call))
}

fn uneven(call: usize) -> impl Fn(usize, usize) -> u64 {
    move |from, to| [0, 1, 1447, 10_000, 70_003][(from * 3 + to * 5 + call) % 5]
}

/// Even and uneven exchanges of all sizes; several are in flight at once, with allgathers among them.
pub(crate) fn alltoall(group: &Group) {
    let (_, ranks) = me(group);
    for (at, bytes) in [0, 1, 1448, 100_003].into_iter().enumerate() {
        let first = even(group, 4 * at, bytes);
        let second = exchange(group, 4 * at + 1, uneven(4 * at + 1));
        let third = post(group, 4 * at + 2, 3000, false);
        let fourth = exchange(group, 4 * at + 3, uneven(4 * at + 3));
        // The calls are checked in another order than they were posted.
        check_exchange(group, fourth);
        check(third, ranks);
        check_exchange(group, second);
        check_exchange(group, first);
    }
    pause("done");
}

pub(crate) const LANDING: u64 = 1 << 20;

/// Even exchanges into memory that the service process maps (SP-4).
pub(crate) fn landing(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    let memory = context.allocate(ranks * LANDING as usize).expect("memory");
    for call in 0..4 {
        let send: Vec<u8> = (0..ranks).flat_map(|to| content(rank, to, call, LANDING)).collect();
        // SAFETY: nobody accesses the buffers before the request has ended.
        let posted = unsafe { group.ialltoall(send.as_ptr(), memory.as_ptr(), LANDING) };
        posted.expect("posted").wait(Some(LIMIT)).expect("within the limit").expect("success");
        // SAFETY: the memory has this length, and belongs to this rank again.
        let received = unsafe { std::slice::from_raw_parts_mut(memory.as_ptr(), ranks * LANDING as usize) };
        for (from, block) in received.chunks(LANDING as usize).enumerate() {
            assert!(block == content(from, rank, call, LANDING), "block of rank {from} in call {call}");
        }
        received.fill(UNTOUCHED);
    }
    pause("done");
}

/// Uneven allgathers of all sizes, both in place and not in place, all in flight together.
pub(crate) fn allgatherv(group: &Group) {
    let sizes = |call: usize| move |of: usize| [0, 1, 1447, 10_000, 170_003][(of * 3 + call) % 5];
    for call in (0..12).step_by(2) {
        let posted = [gather(group, call, sizes(call), false), gather(group, call + 1, |_| 0, false)];
        let in_place = gather(group, call + 1, sizes(call + 1), true);
        check_blocks(group, in_place, 0);
        posted.into_iter().for_each(|posted| check_blocks(group, posted, 0));
    }
    pause("done");
}

/// The last rank, whose bytes no other rank needs, posts after all other ranks have ended (SP-6).
pub(crate) fn late(group: &Group) {
    let (rank, ranks) = me(group);
    let last = ranks - 1;
    print_line("ready");
    if rank == last {
        wait_for_line();
    }
    let count = |from: usize, to: usize| if from == last && to != last { 0 } else { 50_000 };
    check_exchange(group, exchange(group, 1, count));
    pause("done");
}

/// Rank 1 expects another number of bytes than rank 0 sends.
pub(crate) fn mismatch(group: &Group) {
    let (rank, ranks) = me(group);
    check(post(group, 0, 1, false), ranks);
    let bytes = |from: usize, to: usize| match (from, to, rank) {
        (0, 1, 1) => 5_000,
        _ => 6_000,
    };
    let error = exchange(group, 1, bytes).request.wait(Some(LIMIT)).expect("within the limit").expect_err("a failure");
    assert_eq!(error.status(), Status::Mismatch, "{error}");
    let text = error.to_string();
    assert!(text.contains("rank 0 sends 6000 bytes to rank 1, which expects 5000"), "{text}");
}
