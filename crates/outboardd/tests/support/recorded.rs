//! Recorded groups and single messages as the ranks of the tests call them (GP-1, GP-2, GP-8).

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;

use outboard::{Context, Group, Recorded, Request, Status};
use outboard_plan::{Element, Operator, Reduction};

use super::scenarios::{LIMIT, block, is_lost, me, pause, print_line, wait_for_death};

/// Sizes below and above the limit up to which a payload is sent with its announcement.
const SIZES: [usize; 4] = [0, 100, 8 << 10, 300_000];
/// Number of calls of a recording, in the tests that count calls.
pub(crate) const CALLS: usize = 10;

fn end(mut request: Request) {
    request.wait(Some(LIMIT)).expect("within the limit").expect("success");
}

fn call(recorded: &Recorded) -> Request {
    // SAFETY: every test keeps its buffers until its requests have ended.
    unsafe { recorded.call() }.expect("posted")
}

/// Records a ring: the bytes of rank 0 travel from rank to rank.
fn record_ring(group: &Group, buffer: &mut [u8]) -> Recorded {
    let (rank, ranks) = me(group);
    let (start, bytes) = (buffer.as_mut_ptr(), buffer.len() as u64);
    let mut recorder = group.record();
    if rank > 0 {
        recorder.receive(rank as u32 - 1, 7, start, bytes).expect("a rank before");
        recorder.barrier();
    }
    if rank + 1 < ranks {
        recorder.send(rank as u32 + 1, 7, start, bytes).expect("a rank behind");
    }
    recorder.end().expect("recorded")
}

/// Records an exchange: each rank sends a block to every other rank, and copies one block locally.
fn record_exchange(group: &Group, send: &[u8], receive: &mut [u8]) -> Recorded {
    let (rank, ranks) = me(group);
    let bytes = send.len() / ranks;
    let mut recorder = group.record();
    for step in 1..ranks {
        let (to, from) = ((rank + step) % ranks, (rank + ranks - step) % ranks);
        recorder.receive(from as u32, 0, receive[from * bytes..].as_mut_ptr(), bytes as u64).expect("a rank");
        recorder.send(to as u32, 0, send[to * bytes..].as_ptr(), bytes as u64).expect("a rank");
    }
    let own = rank * bytes;
    recorder.copy(send[own..].as_ptr(), receive[own..].as_mut_ptr(), bytes as u64).expect("apart");
    recorder.end().expect("recorded")
}

/// Calls recordings of all sizes several times, each time with other bytes.
pub(crate) fn patterns(group: &Group) {
    let (rank, ranks) = me(group);
    for bytes in SIZES {
        let mut ring = vec![0; bytes];
        let broadcast = record_ring(group, &mut ring);
        let (mut send, mut receive) = (vec![0; bytes * ranks], vec![0xee; bytes * ranks]);
        let exchange = record_exchange(group, &send, &mut receive);
        for count in 0..3 {
            if rank == 0 {
                ring.copy_from_slice(&block(0, count, bytes));
            }
            for to in 0..ranks {
                send[to * bytes..][..bytes].copy_from_slice(&block(rank * ranks + to, count, bytes));
            }
            // The ranks may call in any order, because the calls are independent.
            let mut requests =
                if rank % 2 == 0 { [call(&broadcast), call(&exchange)] } else { [call(&exchange), call(&broadcast)] };
            requests.reverse();
            requests.into_iter().for_each(end);
            assert!(ring == block(0, count, bytes), "{bytes} bytes round the ring");
            for from in 0..ranks {
                let expected = block(from * ranks + rank, count, bytes);
                assert!(receive[from * bytes..][..bytes] == expected, "{bytes} bytes from rank {from}");
            }
        }
        broadcast.free().expect("no call is in flight");
        exchange.free().expect("no call is in flight");
    }
    pause("done");
}

/// Every rank adds the received numbers to its own numbers, and passes the result to the next rank of the ring. The
/// last rank gets the total. Every other rank gets the sum of the ranks up to itself.
pub(crate) fn sums(group: &Group) {
    let (rank, ranks) = me(group);
    let sum = Reduction::new(Operator::Sum, Element::I64).expect("numbers are added");
    for count in [1, 50_000] {
        let (mut own, mut come) = (vec![0i64; count], vec![0i64; count]);
        let bytes = (count * 8) as u64;
        let mut recorder = group.record();
        if rank > 0 {
            recorder.receive(rank as u32 - 1, 0, come.as_mut_ptr().cast(), bytes).expect("a rank before");
            recorder.barrier();
            recorder.reduce(sum, come.as_ptr().cast(), own.as_mut_ptr().cast(), count as u64).expect("apart");
            recorder.barrier();
        }
        if rank + 1 < ranks {
            recorder.send(rank as u32 + 1, 0, own.as_ptr().cast(), bytes).expect("a rank behind");
        }
        let recorded = recorder.end().expect("recorded");
        for round in 0..3 {
            own.iter_mut().zip(0..).for_each(|(own, at)| *own = at + rank as i64 * round);
            end(call(&recorded));
            let below: i64 = (0..=rank as i64).sum();
            let expected = |at: i64| at * (rank as i64 + 1) + below * round;
            assert!(own.iter().zip(0..).all(|(own, at)| *own == expected(at)), "{count} numbers, round {round}");
        }
        recorded.free().expect("no call is in flight");
    }
    pause("done");
}

/// Starts of one recording run in order, though all are posted at once: each start adds to the result of the start
/// before.
pub(crate) fn accumulated(group: &Group) {
    let (rank, _) = me(group);
    let sum = Reduction::new(Operator::Sum, Element::I64).expect("numbers are added");
    for count in [1, 50_000] {
        let (step, mut own) = (vec![rank as i64 + 1; count], vec![7i64; count]);
        let mut recorder = group.record();
        recorder.reduce(sum, step.as_ptr().cast(), own.as_mut_ptr().cast(), count as u64).expect("apart");
        let recorded = recorder.end().expect("recorded");
        let mut other = vec![0; 1000];
        let message = receive(group, rank, 5, &mut other);
        let starts: Vec<Request> = (0..CALLS).map(|_| call(&recorded)).collect();
        // The message is posted after all starts, and does not wait for the starts.
        let sent = [3; 1000];
        [send(group, rank, 5, &sent), message].into_iter().chain(starts).for_each(end);
        assert!(other == sent && own.iter().all(|own| *own == 7 + CALLS as i64 * (rank as i64 + 1)), "{count} numbers");
        recorded.free().expect("no call is in flight");
    }
    pause("done");
}

/// The kernel withdraws access to the memory of ranks after the first rank has posted all its starts. The other ranks
/// post then. Each start adds the numbers received from the ring to the result of the start before.
pub(crate) fn withdrawn(context: &Context, group: &Group) {
    let (rank, ranks) = me(group);
    let (count, to, from) = (50_000, (rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let sum = Reduction::new(Operator::Sum, Element::I64).expect("numbers are added");
    let (step, mut come, mut own) = (vec![rank as i64 + 1; count], vec![0i64; count], vec![7i64; count]);
    let bytes = 8 * count as u64;
    let mut recorder = group.record();
    recorder.send(to as u32, 3, step.as_ptr().cast(), bytes).expect("a rank");
    recorder.receive(from as u32, 3, come.as_mut_ptr().cast(), bytes).expect("a rank");
    recorder.barrier();
    recorder.reduce(sum, come.as_ptr().cast(), own.as_mut_ptr().cast(), count as u64).expect("apart");
    let recorded = recorder.end().expect("recorded");
    let starts = || (0..CALLS).map(|_| call(&recorded)).collect::<Vec<Request>>();
    let early = (rank == 0).then(starts);
    pause("ready");
    // The wait for the last start comes first: the result of the last start is the final result.
    early.unwrap_or_else(starts).into_iter().rev().for_each(end);
    assert!(own.iter().all(|own| *own == 7 + CALLS as i64 * (from as i64 + 1)));
    own.fill(0);
    end(call(&recorded));
    assert!(own.iter().all(|own| *own == from as i64 + 1), "what the program writes between its starts is seen");
    recorded.free().expect("no call is in flight");
    pause(context.memory_tier().name());
}

/// Starts wait, in order, for ranks that never start. Then the service process is lost.
pub(crate) fn without_service(group: &Group) {
    let mut buffer = vec![0; 10];
    let mut recorder = group.record();
    recorder.receive(me(group).0 as u32, 1, buffer.as_mut_ptr(), 10).expect("a rank");
    let recorded = recorder.end().expect("recorded");
    let starts: Vec<Request> = (0..3).map(|_| call(&recorded)).collect();
    print_line("posted");
    for mut start in starts {
        let error = start.wait(Some(LIMIT)).expect("within the limit").expect_err("nobody is left");
        assert_eq!(error.status(), Status::ServiceLost, "{error}");
        print_line(&error.to_string());
    }
}

/// Calls a recording once before the test continues, and [`CALLS`] times afterwards.
pub(crate) fn repeated(group: &Group) {
    let (_, ranks) = me(group);
    let (send, mut receive) = (vec![1; 4096 * ranks], vec![0; 4096 * ranks]);
    let exchange = record_exchange(group, &send, &mut receive);
    end(call(&exchange));
    pause("ready");
    // All calls but the first wait for the call before.
    (0..CALLS).map(|_| call(&exchange)).collect::<Vec<_>>().into_iter().for_each(end);
    pause("done");
    assert!(receive == send);
}

/// Two recordings, which the ranks call in opposite orders. In each recording, one of two ranks first receives and then
/// sends, and the other rank first sends.
pub(crate) fn crossed(group: &Group) {
    let (rank, ranks) = me(group);
    let (bytes, peer) = (100_000, (rank + ranks / 2) % ranks);
    let mut buffers: Vec<Vec<u8>> = (0..4).map(|at| block(rank, at, bytes)).collect();
    let record = |first: bool, buffers: &mut [Vec<u8>]| {
        let [send, receive] = buffers else { panic!("two buffers") };
        let mut recorder = group.record();
        let sends = |recorder: &mut outboard::Recorder| {
            recorder.send(peer as u32, 1, send.as_ptr(), bytes as u64).expect("a rank");
        };
        let mut receives = |recorder: &mut outboard::Recorder| {
            recorder.receive(peer as u32, 1, receive.as_mut_ptr(), bytes as u64).expect("a rank");
        };
        // In one of the recordings this rank sends only after it has received; in the other it sends first.
        if (rank < peer) == first {
            receives(&mut recorder);
            recorder.barrier();
            sends(&mut recorder);
        } else {
            sends(&mut recorder);
            recorder.barrier();
            receives(&mut recorder);
        }
        recorder.end().expect("recorded")
    };
    let (one, other) = buffers.split_at_mut(2);
    let (one, other) = (record(true, one), record(false, other));
    for _ in 0..3 {
        let requests = if rank < peer { [call(&one), call(&other)] } else { [call(&other), call(&one)] };
        requests.into_iter().for_each(end);
    }
    assert!(buffers[1] == block(peer, 0, bytes) && buffers[3] == block(peer, 2, bytes));
}

/// Rank 1's first recording fails for lack of a descriptor. Then both ranks make another recording and call it.
pub(crate) fn unrecorded() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let groups = super::group_at(None, 2);
    let (sent, mut received) = ([[1u8; 8], [2; 8]], [0u8; 8]);
    let sends = |bytes: &[u8; 8]| {
        let mut recorder = groups[0].record();
        recorder.send(1, 3, bytes.as_ptr(), 8).expect("a rank");
        recorder.end().expect("recorded")
    };
    let mut receives = || {
        let mut recorder = groups[1].record();
        recorder.receive(0, 3, received.as_mut_ptr(), 8).expect("a rank");
        recorder.end()
    };
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(0), ..limit }).expect("it may be lowered");
    let refused = receives().expect_err("no descriptor is left");
    setrlimit(Resource::Nofile, limit).expect("it may be raised again");
    assert_eq!(refused.status(), Status::Resource, "{refused}");
    let (_first, second, third) = (sends(&sent[0]), sends(&sent[1]), receives().expect("recorded"));
    [call(&second), call(&third)].into_iter().for_each(end);
    assert_eq!(received, sent[1]);
}

/// One thread calls a recording of staged memory. Another thread posts receives in that group until a receive is
/// refused.
pub(crate) fn posting_threads() {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        post_and_call();
        done.send(())
    });
    ended.recv_timeout(LIMIT).expect("neither holds the other up");
}

fn post_and_call() {
    let groups = super::group_at(None, 2);
    let (from, mut into) = (vec![7u8; 1 << 20], vec![0u8; 1 << 20]);
    let mut recorder = groups[0].record();
    recorder.copy(from.as_ptr(), into.as_mut_ptr(), from.len() as u64).expect("apart");
    let recorded = recorder.end().expect("recorded");
    let room = Box::leak(Box::new([0u8; 8]));
    let (group, enough) = (&groups[0], AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !enough.load(Ordering::Relaxed) {
                // SAFETY: the buffer stays until the process ends, and nobody sends a message for it. A dropped receive
                // stays in flight.
                drop(unsafe { group.ireceive(1, 0, room.as_mut_ptr(), 8) });
            }
        });
        let mut refused = 0;
        while refused < 200 {
            // SAFETY: the buffers stay until the request has ended.
            match unsafe { recorded.call() } {
                Ok(request) => end(request),
                Err(_) => refused += 1,
            }
        }
        enough.store(true, Ordering::Relaxed);
    });
    assert!(into == from);
    // The receives never end, so nothing that they use may be dropped.
    std::mem::forget((recorded, groups));
}

fn send(group: &Group, to: usize, tag: u32, buffer: &[u8]) -> Request {
    // SAFETY: every test keeps its buffers until its requests have ended.
    unsafe { group.isend(to as u32, tag, buffer.as_ptr(), buffer.len() as u64) }.expect("posted")
}

fn receive(group: &Group, from: usize, tag: u32, buffer: &mut [u8]) -> Request {
    // SAFETY: every test keeps its buffers until its requests have ended.
    unsafe { group.ireceive(from as u32, tag, buffer.as_mut_ptr(), buffer.len() as u64) }.expect("posted")
}

/// Messages of all sizes with two tags. They are received in another order than sent, by receives posted before and
/// after the sends.
pub(crate) fn messages(group: &Group) {
    let (rank, ranks) = me(group);
    let (to, from) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    for early in [true, false] {
        let sent: Vec<Vec<u8>> = (0..8).map(|at| block(rank, at, SIZES[at % 4])).collect();
        // The buffers are longer than the messages.
        let mut received: Vec<Vec<u8>> = (0..8).map(|at| vec![0xee; SIZES[at % 4] + 3]).collect();
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        let mut post = |receives: &mut Vec<Request>| {
            // The receives of the second tag are posted first.
            for at in (4..8).chain(0..4) {
                receives.push(receive(group, from, at as u32 / 4, &mut received[at]));
            }
        };
        if early {
            post(&mut receives);
        }
        for (at, buffer) in sent.iter().enumerate() {
            sends.push(send(group, to, at as u32 / 4, buffer));
        }
        if !early {
            // By now the first small message has arrived, although no receive waits for it.
            sends.remove(1).wait(Some(LIMIT)).expect("small messages end without their receives").expect("success");
            post(&mut receives);
        }
        receives.into_iter().chain(sends).for_each(end);
        for (at, buffer) in received.iter().enumerate() {
            let bytes = SIZES[at % 4];
            assert!(buffer[..bytes] == block(from, at, bytes) && buffer[bytes..] == [0xee; 3], "message {at}");
        }
    }
    pause("done");
}

/// Rank 1's receive is too small for rank 0's message: only that receive fails, and rank 0's next message arrives.
pub(crate) fn truncated(group: &Group) {
    let (rank, _) = me(group);
    for bytes in [50, 200_000] {
        match rank {
            0 => {
                let long = block(0, 1, bytes);
                [send(group, 1, 9, &long), send(group, 1, 9, &[5])].into_iter().for_each(end);
            }
            1 => {
                let (mut short, mut next) = (vec![0xee; bytes - 1], [0]);
                let (mut failed, well) = (receive(group, 0, 9, &mut short), receive(group, 0, 9, &mut next));
                let error = failed.wait(Some(LIMIT)).expect("within the limit").expect_err("it is too short");
                assert_eq!(error.status(), Status::Mismatch, "{error}");
                let words = ["rank 0".to_owned(), "tag 9".to_owned(), bytes.to_string(), (bytes - 1).to_string()];
                assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
                end(well);
                assert_eq!((short, next), (vec![0xee; bytes - 1], [5]));
            }
            _ => {}
        }
    }
}

/// The last rank expects one byte more from the ring than is sent: all unfinished ranks get an error with both sizes.
pub(crate) fn disagreeing(group: &Group) {
    let (rank, ranks) = me(group);
    let mut buffer = vec![0; 10_000 + usize::from(rank == ranks - 1)];
    let ring = record_ring(group, &mut buffer);
    match call(&ring).wait(Some(LIMIT)).expect("within the limit") {
        // The first ranks may finish before the last rank has announced its size.
        Ok(()) => assert!(rank < ranks - 1),
        Err(error) => {
            assert_eq!(error.status(), Status::Mismatch, "{error}");
            assert!(error.to_string().contains("10000") && error.to_string().contains("10001"), "{error}");
        }
    }
    ring.free().expect("no call is in flight");
}

/// The last rank dies without calling: the ranks that need its bytes get an error.
pub(crate) fn one_dies(group: &Group) {
    let (rank, ranks) = me(group);
    let (send, mut receive) = (vec![1; 100 * ranks], vec![0; 100 * ranks]);
    let exchange = record_exchange(group, &send, &mut receive);
    if rank == ranks - 1 {
        wait_for_death();
    }
    let mut request = call(&exchange);
    print_line("posted");
    let error = request.wait(Some(LIMIT)).expect("within the limit").expect_err("a rank has died");
    is_lost(&error, ranks - 1);
}

/// The last rank dies without sending: ranks that receive from it get an error, and continue with the other ranks.
pub(crate) fn source_dies(group: &Group) {
    let (rank, ranks) = me(group);
    if rank == ranks - 1 {
        pause("ready");
        unreachable!("killed by the test");
    }
    let mut buffer = vec![0; 100];
    let mut request = receive(group, ranks - 1, 3, &mut buffer);
    print_line("posted");
    let error = request.wait(Some(LIMIT)).expect("within the limit").expect_err("a rank has died");
    is_lost(&error, ranks - 1);
    let (to, from) = ((rank + 1) % (ranks - 1), (rank + ranks - 2) % (ranks - 1));
    let sent = block(rank, 0, 100_000);
    let mut received = vec![0; 100_000];
    [send(group, to, 4, &sent), receive(group, from, 4, &mut received)].into_iter().for_each(end);
    assert!(received == block(from, 0, 100_000));
}
