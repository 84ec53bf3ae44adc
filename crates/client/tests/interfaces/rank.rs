//! Tests the Rust interface against a service process that carries out collectives among the ranks of this process.

use crate::operators::{all_outcomes, sums};
use crate::rooted::{GAP, RootBlocks, UNTOUCHED, gathers_and_scatters};
use crate::service::{Behaviour, FakeService, Reach};
use outboard::{BlockList, Context, Contribution, Error, Group, Request, Status, Tier, wait_some};
use std::time::{Duration, Instant};

/// Attaches `ranks` ranks and makes one group of them.
pub(crate) fn world(service: &FakeService, ranks: u32) -> Vec<(Context, Group)> {
    let contexts: Vec<Context> = (0..ranks).map(|_| Context::attach(Some(service.socket())).unwrap()).collect();
    let offers: Vec<u8> = contexts.iter().flat_map(|context| *context.offer().unwrap()).collect();
    std::thread::scope(|scope| {
        let create = |(context, rank): (Context, u32)| {
            let offers = &offers;
            scope.spawn(move || {
                let group = context.create_group(offers, ranks, rank).unwrap();
                (context, group)
            })
        };
        let joining: Vec<_> = contexts.into_iter().zip(0..).map(create).collect();
        joining.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

pub(crate) fn contribution(rank: u32, bytes: usize) -> Vec<u8> {
    (0..bytes).map(|at| (at * 7 + rank as usize * 31) as u8).collect()
}

fn gathered(ranks: u32, bytes: usize) -> Vec<u8> {
    (0..ranks).flat_map(|rank| contribution(rank, bytes)).collect()
}

pub(crate) fn post(group: &Group, send: &[u8], receive: &mut [u8]) -> Result<Request, Error> {
    // SAFETY: every test keeps its buffers until its requests have ended.
    unsafe { group.iallgather(Contribution::At(send.as_ptr()), receive.as_mut_ptr(), send.len() as u64) }
}

/// Posts an allgather on all ranks, out of place on even ranks and in place on odd ranks, and compares the results.
fn allgather(world: &[(Context, Group)], bytes: usize) {
    let ranks = world.len() as u32;
    let sends: Vec<_> = (0..ranks).map(|rank| contribution(rank, bytes)).collect();
    let mut receives: Vec<_> = (0..ranks).map(|_| vec![0; bytes * ranks as usize]).collect();
    let mut requests = Vec::new();
    for ((at, (_, group)), receive) in world.iter().enumerate().zip(&mut receives) {
        let in_place = at % 2 == 1;
        let from = if in_place {
            receive[at * bytes..(at + 1) * bytes].copy_from_slice(&sends[at]);
            Contribution::InPlace
        } else {
            Contribution::At(sends[at].as_ptr())
        };
        // SAFETY: the buffers outlive the loop below.
        requests.push(unsafe { group.iallgather(from, receive.as_mut_ptr(), bytes as u64) }.unwrap());
    }
    for request in &mut requests {
        assert_eq!(request.wait(None), Some(Ok(())));
        assert_eq!(request.test(), Some(Ok(())), "the request stays valid");
    }
    for receive in receives {
        assert!(receive == gathered(ranks, bytes), "{bytes} bytes");
    }
}

/// Posts a broadcast from `root` and a barrier on all ranks, and compares the received bytes.
fn broadcast(world: &[(Context, Group)], root: u32, bytes: usize) {
    let sent = contribution(root, bytes);
    let mut buffers: Vec<_> = (0..world.len()).map(|_| vec![0xee; bytes]).collect();
    buffers[root as usize].copy_from_slice(&sent);
    let mut requests = Vec::new();
    for ((_, group), buffer) in world.iter().zip(&mut buffers) {
        // SAFETY: the buffers outlive the loop below.
        requests.push(unsafe { group.ibroadcast(root, buffer.as_mut_ptr(), bytes as u64) }.unwrap());
        requests.push(group.ibarrier().unwrap());
    }
    for request in &mut requests {
        assert_eq!(request.wait(None), Some(Ok(())));
        assert_eq!(request.test(), Some(Ok(())), "the request stays valid");
    }
    assert!(buffers.iter().all(|buffer| *buffer == sent), "{bytes} bytes from rank {root}");
}

/// Posts an allgather of uneven blocks on all ranks, in place on odd ranks, and checks the gaps between them.
fn allgatherv(world: &[(Context, Group)], bytes: usize) {
    let lists = RootBlocks::new((0..world.len()).map(|rank| (rank % 3 * bytes) as u64).collect(), GAP);
    let sends: Vec<_> = (0..).zip(&lists.bytes).map(|(rank, bytes)| contribution(rank, *bytes as usize)).collect();
    let mut receives = vec![lists.laid_out(|_, bytes| vec![UNTOUCHED; bytes]); world.len()];
    let mut requests = Vec::new();
    for ((at, (_, group)), receive) in world.iter().enumerate().zip(&mut receives) {
        let from = if at % 2 == 1 {
            lists.block(receive, at).copy_from_slice(&sends[at]);
            Contribution::InPlace
        } else {
            Contribution::At(sends[at].as_ptr())
        };
        // SAFETY: the buffers outlive the loop below.
        requests.push(unsafe { group.iallgatherv(from, receive.as_mut_ptr(), lists.list()) }.unwrap());
    }
    for request in &mut requests {
        assert_eq!(request.wait(None), Some(Ok(())));
    }
    let expected = lists.laid_out(contribution);
    assert!(receives.iter().all(|receive| *receive == expected), "blocks of up to {} bytes", 2 * bytes);
}

/// Posts an even and an uneven exchange on all ranks, compares the blocks, and checks the gaps between the blocks.
fn exchange(world: &[(Context, Group)], bytes: usize) {
    let ranks = world.len();
    let content = |from: usize, to: usize, length: usize| contribution((from * 16 + to) as u32, length);
    for (lengths, gap) in [([1, 1, 1], 0), ([0, 1, 2], GAP)] {
        let length = |from: usize, to: usize| (lengths[(from + 2 * to) % 3] * bytes) as u64;
        let (mut buffers, mut requests) = (Vec::new(), Vec::new());
        for (me, (_, group)) in world.iter().enumerate() {
            let sent = RootBlocks::new((0..ranks).map(|to| length(me, to)).collect(), gap);
            let received = RootBlocks::new((0..ranks).map(|from| length(from, me)).collect(), gap);
            let send = sent.laid_out(|to, length| content(me, to as usize, length));
            let mut receive = received.laid_out(|_, length| vec![UNTOUCHED; length]);
            let (from, to) = (send.as_ptr(), receive.as_mut_ptr());
            // SAFETY: the buffers are kept until the requests have ended.
            let posted = unsafe {
                match gap {
                    0 => group.ialltoall(from, to, bytes as u64),
                    _ => group.ialltoallv(from, sent.list(), to, received.list()),
                }
            };
            requests.push(posted.unwrap());
            buffers.push((send, receive, received));
        }
        for request in &mut requests {
            assert_eq!(request.wait(None), Some(Ok(())));
        }
        for (me, (_, receive, received)) in buffers.into_iter().enumerate() {
            let expected = received.laid_out(|from, length| content(from as usize, me, length));
            assert!(receive == expected, "{bytes} bytes per pair, times {lengths:?}");
        }
    }
}

/// Runs all collectives on buffers of many sizes, in place and not; the service process accesses the buffers by `tier`.
fn all_collectives(reach: Reach, tier: Tier, ranks: u32) {
    let service = FakeService::start(Behaviour { reach, ..Behaviour::default() });
    let world = world(&service, ranks);
    assert_eq!((world[0].0.memory_tier(), world[0].0.config_digest()), (tier, Ok(5)));
    assert_eq!((world[2].1.rank(), world[2].1.size()), (Ok(2), Ok(ranks)));
    for bytes in [0, 1, 1000, 300_000, 1000] {
        allgather(&world, bytes);
        broadcast(&world, bytes as u32 % ranks, bytes);
        exchange(&world, bytes);
        all_outcomes(&world, bytes / 4, &sums());
        allgatherv(&world, bytes);
        gathers_and_scatters(&world, bytes as u32 % 3, bytes);
    }
}

/// SP-4: the service process accesses buffers at any address.
#[test]
fn ranks_gather_by_cross_memory_attach() {
    all_collectives(Reach::All, Tier::CrossMemory, 4);
}

/// SP-4: if the kernel allows no tracing, the service process uses the memory descriptor of the rank.
#[test]
fn ranks_gather_by_memory_descriptor() {
    all_collectives(Reach::Descriptor, Tier::MemoryDescriptor, 3);
}

/// GP-9: the service process can access no memory of the rank.
#[test]
fn ranks_gather_by_staging() {
    all_collectives(Reach::None, Tier::Staging, 3);
}

#[test]
fn allocated_memory_is_shared_and_needs_no_staging() {
    let service = FakeService::start(Behaviour { reach: Reach::None, ..Behaviour::default() });
    let world = world(&service, 1);
    let (context, group) = &world[0];
    let memory = context.allocate(8192).unwrap();
    // SAFETY: 8192 bytes were allocated, and the request ends before they are given back.
    unsafe {
        memory.write_bytes(9, 4096);
        let (send, receive) = (memory.as_ptr(), memory.as_ptr().add(4096));
        let mut request = group.iallgather(Contribution::At(send), receive, 4096).unwrap();
        assert_eq!(request.wait(None), Some(Ok(())));
        assert_eq!(receive.add(4095).read_volatile(), 9);
        context.deallocate(memory.as_ptr()).unwrap();
        assert_eq!(context.deallocate(memory.as_ptr()).unwrap_err().status(), Status::Argument);
    }
    assert_eq!(context.allocate(0).unwrap_err().status(), Status::Argument);
}

/// GP-4: registered memory is reused. Beyond the bound the oldest segment goes, but never one in use.
#[test]
fn shared_memory_is_registered_once_within_bounds() {
    let service = FakeService::start(Behaviour { reach: Reach::None, ..Behaviour::default() });
    let world = world(&service, 1);
    let (context, group) = &world[0];
    let first = context.allocate(100_000).unwrap();
    // SAFETY: nothing uses the memory.
    unsafe { context.deallocate(first.as_ptr()).unwrap() };
    assert_eq!(context.allocate(99_000).unwrap(), first, "kept for a like size");
    let sizes = [4096, 200_000, 400_000, 800_000, 1_600_000];
    let others: Vec<_> = sizes.map(|bytes| context.allocate(bytes).unwrap()).into();
    let full = context.allocate(1).unwrap_err();
    assert_eq!(full.status(), Status::Resource, "{full}");
    assert!(full.to_string().contains("6 pieces"), "{full}");
    // SAFETY: nothing uses the memory.
    others.iter().for_each(|memory| unsafe { context.deallocate(memory.as_ptr()).unwrap() });
    // Segments for staging replace kept ones, and all bytes are right.
    for bytes in [10, 100_000, 1_000_000] {
        let (send, mut receive) = (contribution(0, bytes), vec![0; bytes]);
        assert_eq!(post(group, &send, &mut receive).unwrap().wait(None), Some(Ok(())));
        assert_eq!(receive, send);
    }
    // SAFETY: nothing uses the memory.
    unsafe { context.deallocate(first.as_ptr()).unwrap() };
}

#[test]
fn wait_with_a_limit_ends_before_the_collective() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    let mut request = post(&world[0].1, &send, &mut receive).unwrap();
    assert_eq!(request.test(), None);
    assert_eq!(request.wait(Some(Duration::from_millis(3))), None);
    wait_some(&[&request], Some(Duration::from_millis(3))).unwrap();
    service.release();
    wait_some(&[&request], None).unwrap();
    assert_eq!(request.test(), Some(Ok(())));
    assert_eq!(receive, send);
}

#[test]
fn failed_collective_has_the_text_of_the_service_process() {
    let sentence = "rank 3 on host c died during allgather 1";
    let failing = Some((Status::RankLost, sentence));
    let service = FakeService::start(Behaviour { failing, ..Behaviour::default() });
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    let mut request = post(&world[0].1, &send, &mut receive).unwrap();
    let error = request.wait(None).unwrap().unwrap_err();
    assert_eq!((error.status(), error.to_string().as_str()), (Status::RankLost, sentence));
}

/// The collective of a freed request goes on and fills its buffer; destroying the group waits for it.
#[test]
fn dropped_request_still_fills_its_buffer() {
    for reach in [Reach::All, Reach::None] {
        let service = FakeService::start(Behaviour { reach, holding: true, ..Behaviour::default() });
        let mut world = world(&service, 1);
        let (context, group) = world.pop().unwrap();
        let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
        drop(post(&group, &send, &mut receive).unwrap());
        service.release();
        group.destroy().unwrap();
        assert_eq!(receive, send);
        context.detach().unwrap();
    }
}

#[test]
fn requests_in_flight_are_bounded_and_the_error_names_the_bound() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 8), vec![0; 8]);
    let mut requests: Vec<_> = (0..1024).map(|_| post(&world[0].1, &send, &mut receive).unwrap()).collect();
    let error = post(&world[0].1, &send, &mut receive).unwrap_err();
    assert_eq!(error.status(), Status::Resource);
    assert!(error.to_string().contains("1024"), "{error}");
    service.release();
    for request in &mut requests {
        assert_eq!(request.wait(None), Some(Ok(())));
    }
    // The rejected post has used no instance number: the next one still matches the service process's count.
    let mut request = post(&world[0].1, &send, &mut receive).unwrap();
    assert_eq!(request.wait(None), Some(Ok(())));
}

#[test]
fn the_death_of_the_service_process_ends_every_call() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let mut world = world(&service, 1);
    let (context, group) = world.pop().unwrap();
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    let mut waited = post(&group, &send, &mut receive).unwrap();
    let mut tested = post(&group, &send, &mut receive).unwrap();
    let lost = |result: Option<Result<(), Error>>| result.map(|result| result.unwrap_err().status());
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| waited.wait(None));
        drop(service);
        assert_eq!(lost(waiting.join().unwrap()), Some(Status::ServiceLost));
    });
    assert_eq!(lost(tested.test()), Some(Status::ServiceLost));
    assert_eq!(post(&group, &send, &mut receive).unwrap_err().status(), Status::ServiceLost);
    assert_eq!(context.offer().unwrap_err().status(), Status::ServiceLost);
    assert_eq!(group.destroy().unwrap_err().status(), Status::ServiceLost);
    context.detach().unwrap();
}

/// A test without a wait also notices that the service process has died.
#[test]
fn testing_notices_the_death_of_the_service_process() {
    let service = FakeService::start(Behaviour { holding: true, ..Behaviour::default() });
    let world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    let mut request = post(&world[0].1, &send, &mut receive).unwrap();
    drop(service);
    // Threads of the service close its descriptors, so its end shows a moment after the drop.
    let limit = Instant::now() + Duration::from_secs(60);
    let ended = std::iter::repeat_with(|| request.test()).take_while(|_| Instant::now() < limit).flatten().next();
    assert_eq!(ended.unwrap().unwrap_err().status(), Status::ServiceLost);
}

#[test]
fn forked_child_is_rejected_and_the_parent_continues() {
    let service = FakeService::start(Behaviour { reach: Reach::None, holding: true, ..Behaviour::default() });
    let mut world = world(&service, 1);
    let (send, mut receive) = (contribution(0, 64), vec![0; 64]);
    let mut request = post(&world[0].1, &send, &mut receive).unwrap();
    let mut other = vec![0; 64];
    let spare = post(&world[0].1, &send, &mut other).unwrap();
    // SAFETY: the child makes calls that must fail, drops what it inherited and leaves by _exit.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let (context, group) = world.pop().unwrap();
        let forked = |result: Result<(), Error>| result == Err(Error::Forked);
        let refused = [
            forked(context.offer().map(drop)),
            forked(context.allocate(1).map(drop)),
            forked(post(&group, &send, &mut receive).map(drop)),
            request.test() == Some(Err(Error::Forked)),
            request.wait(None) == Some(Err(Error::Forked)),
            forked(wait_some(&[&request], None)),
            forked(group.destroy()),
            forked(context.clone().detach()),
        ];
        drop((request, spare, context));
        let accepted = refused.iter().filter(|refused| !**refused).count();
        // SAFETY: ends the child without running the parent's destructors.
        unsafe { libc::_exit(accepted as i32) };
    }
    let mut status = 0;
    // SAFETY: `child` is our own child.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0, "so many calls were not refused, or a signal");
    service.release();
    for (mut request, receive) in [(request, receive), (spare, other)] {
        assert_eq!(request.wait(None), Some(Ok(())));
        assert_eq!(receive, send);
    }
}

#[test]
fn wrong_arguments_are_named() {
    let service = FakeService::start(Behaviour::default());
    let mut world = world(&service, 1);
    let (context, group) = world.pop().unwrap();
    let mut receive = [0; 8];
    let error = |send: *const u8, receive: *mut u8, bytes| {
        // SAFETY: the call is rejected before any buffer is touched.
        let posted = unsafe { group.iallgather(Contribution::At(send), receive, bytes) };
        posted.unwrap_err().to_string()
    };
    let null = std::ptr::null_mut();
    assert!(error(null, receive.as_mut_ptr(), 8).contains("`send` is NULL"));
    assert!(error(receive.as_ptr(), null, 8).contains("`receive` is NULL"));
    assert!(error(receive.as_ptr(), receive.as_mut_ptr(), u64::MAX).contains("`bytes_per_rank`"));
    let broadcast = |root, buffer: *mut u8, bytes| {
        // SAFETY: the call is rejected before the buffer is touched.
        unsafe { group.ibroadcast(root, buffer, bytes) }.unwrap_err().to_string()
    };
    assert!(broadcast(1, receive.as_mut_ptr(), 8).contains("`root` is 1: the group has ranks 0 to 0"));
    assert!(broadcast(0, null, 8).contains("`buffer` is NULL"));
    assert!(broadcast(0, receive.as_mut_ptr(), u64::MAX).contains("`bytes`"));
    let list = |bytes: &[u64], offsets: &[u64], buffer: *mut u8| {
        let list = BlockList { bytes, offsets };
        // SAFETY: the call is rejected before any buffer is touched.
        unsafe { group.ialltoallv(buffer, list, buffer, list) }.unwrap_err().to_string()
    };
    assert!(list(&[8], &[0], null).contains("`send` is NULL"));
    assert!(list(&[8, 8], &[0], receive.as_mut_ptr()).contains("2 counts and 1 offsets: the group has 1 ranks"));
    assert!(list(&[8], &[u64::MAX], receive.as_mut_ptr()).contains("more than the address space"));
    assert_eq!(context.create_group(&[0; 1024], 1, 1).unwrap_err().status(), Status::Argument);
    assert_eq!(context.create_group(&[0; 1023], 1, 0).unwrap_err().status(), Status::Argument);
    assert!(!group.offloads(0) && group.offloads(1 << 20));
    let busy = context.clone().detach().unwrap_err();
    assert_eq!(busy.status(), Status::Busy);
    drop(group);
    context.detach().unwrap();
}

#[test]
fn missing_socket_is_an_error_that_names_it() {
    let error = Context::attach(Some("/nonexistent/outboard.sock".as_ref())).unwrap_err();
    assert_eq!(error.status(), Status::NoService);
    assert!(error.to_string().contains("/nonexistent/outboard.sock"), "{error}");
}

/// Making a group takes as long as its slowest member; meanwhile other threads make their groups.
#[test]
fn concurrent_groups_form_in_any_order() {
    let service = FakeService::start(Behaviour::default());
    let attach = || Context::attach(Some(service.socket())).unwrap();
    let contexts = [attach(), attach()];
    let offers: Vec<Vec<u8>> =
        (0..4).map(|_| contexts.iter().flat_map(|context| *context.offer().unwrap()).collect()).collect();
    std::thread::scope(|scope| {
        let mut joining = Vec::new();
        for (rank, context) in contexts.iter().enumerate() {
            for at in 0..offers.len() {
                let offers = &offers[if rank == 0 { at } else { offers.len() - 1 - at }];
                joining.push(scope.spawn(move || context.create_group(offers, 2, rank as u32).unwrap()));
            }
        }
        let groups: Vec<_> = joining.into_iter().map(|one| one.join().unwrap()).collect();
        assert_eq!(groups.len(), 8);
    });
}

/// MC-9: threads of a rank post at once, each on a separate group.
#[test]
fn threads_post_concurrently_on_their_own_groups() {
    let service = FakeService::start(Behaviour::default());
    let context = Context::attach(Some(service.socket())).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let context = &context;
            scope.spawn(move || {
                let group = context.create_group(&context.offer().unwrap()[..], 1, 0).unwrap();
                for _ in 0..200 {
                    let (send, mut receive) = (contribution(thread, 100), vec![0; 100]);
                    let mut request = post(&group, &send, &mut receive).unwrap();
                    assert_eq!(request.wait(None), Some(Ok(())));
                    assert_eq!(receive, send);
                }
            });
        }
    });
}
