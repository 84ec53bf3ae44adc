use std::net::{SocketAddrV4, TcpStream};
use std::ptr::NonNull;

use outboard_plan::deferred::{DeferredAction, DeferredTask, Threshold, choice};
use outboard_plan::selection::Collective;
use outboard_plan::{Arguments, Rank, Span, Topology, program};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};

use super::*;

/// Debian's libfabric includes this provider.
const PROVIDER: &str = "sockets";
const LONG: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

fn open() -> Ofi {
    Ofi::open(PROVIDER, Ipv4Addr::LOCALHOST).expect("libfabric1 is installed")
}

/// Bytes that a list may read and write.
struct Bytes(Arc<Vec<u8>>);

impl Bytes {
    fn new(bytes: Vec<u8>) -> Bytes {
        Bytes(Arc::new(bytes))
    }

    fn part(&self, offset: usize, len: usize) -> Option<MappedBytes> {
        let start = NonNull::new(self.0[offset..offset + len].as_ptr().cast_mut())?;
        let keeper: Arc<Vec<u8>> = Arc::clone(&self.0);
        // SAFETY: the bytes stay as long as the vector; the tests read them after the list has ended.
        (len > 0).then(|| unsafe { MappedBytes::new(start, len, keeper) })
    }
}

fn wait(ofi: &Ofi) {
    let ready = poll(&mut [PollFd::from_borrowed_fd(ofi.event_fd(), PollFlags::IN)], Some(&LONG));
    assert_eq!(ready, Ok(1), "a list ends within a minute");
}

fn ended(ofi: &mut Ofi) -> Vec<(u64, Result<(), OfiError>)> {
    loop {
        wait(ofi);
        let ended = ofi.take_ended();
        if !ended.is_empty() {
            return ended;
        }
    }
}

fn list(tasks: Vec<DeferredTask>, value: u64) -> DeferredList {
    let end = Threshold { counter: 0, value };
    DeferredList { counters: 1, tasks, end, gathers: Vec::new(), delivers: Vec::new() }
}

fn receive(from: u32) -> DeferredTask {
    DeferredTask {
        after: None,
        action: DeferredAction::Receive { from: Rank(from), index: 0, span: Span::signal(), counts: 0 },
    }
}

/// An allgather round a ring of three endpoints: the providers pass blocks on, and each call wakes its process once.
#[test]
fn a_ring_passes_blocks_on_by_itself() {
    const RANKS: usize = 3;
    let mut engines: Vec<Ofi> = (0..RANKS).map(|_| open()).collect();
    let peers: Vec<Arc<[u8]>> = engines.iter().map(|engine| engine.address().into()).collect();
    let (topology, ring) = (Topology::flat(3), choice(Collective::Allgather, 3, 1).expect("taken"));
    for (call, bytes) in [1usize, 16_383, 70_001].into_iter().enumerate() {
        let arguments = Arguments { in_place: true, ..Arguments::of(&topology, bytes as u64) };
        let block = |rank: usize| vec![(call * 16 + rank + 1) as u8; bytes];
        let mut memories = Vec::new();
        for (rank, engine) in engines.iter_mut().enumerate() {
            let program = program(ring, &arguments, Rank(rank as u32)).expect("a plan");
            let list = DeferredList::lower(&program).expect("taken");
            let whole: Vec<u8> =
                (0..RANKS).flat_map(|at| if at == rank { block(at) } else { vec![0; bytes] }).collect();
            let memory = Bytes::new(whole);
            let message = |task: &DeferredTask| {
                let (peer, source, index, span) = match task.action {
                    DeferredAction::Send { to, index, span, .. } => (to, rank as u64, index, span),
                    DeferredAction::Receive { from, index, span, .. } => (from, u64::from(from.0), index, span),
                    DeferredAction::Add { .. } => return None,
                };
                let tag = (call as u64) << 32 | source << 16 | u64::from(index);
                let bytes = memory.part(span.offset as usize, span.len as usize);
                Some(DeferredMessage { peer: Arc::clone(&peers[peer.0 as usize]), tag, bytes })
            };
            let messages = list.tasks.iter().map(message).collect();
            engine.post(call as u64, &list, messages).expect("posted");
            memories.push(memory);
        }
        for (engine, memory) in engines.iter_mut().zip(memories) {
            let reported = ended(engine);
            assert!(matches!(reported[..], [(token, Ok(()))] if token == call as u64), "{reported:?}");
            assert_eq!(*memory.0, (0..RANKS).flat_map(block).collect::<Vec<u8>>());
        }
    }
    for engine in &mut engines {
        engine.take_ended();
        assert_eq!(engine.held(), 0, "nothing of a list that has ended stays");
    }
}

/// A receive that no message matches is cancelled, and the list releases its bytes.
#[test]
fn a_withdrawn_list_releases_its_bytes() {
    let mut engine = open();
    let (me, memory): (Arc<[u8]>, _) = (engine.address().into(), Bytes::new(vec![0; 8]));
    let message = DeferredMessage { peer: me, tag: 7, bytes: memory.part(0, 8) };
    engine.post(1, &list(vec![receive(0)], 1), vec![Some(message)]).expect("posted");
    engine.withdraw(1);
    while engine.held() > 0 {
        wait(&engine);
        assert!(engine.take_ended().is_empty(), "nothing is reported");
    }
    assert_eq!(Arc::strong_count(&memory.0), 1);
}

/// A peer that does not answer delays no other list.
#[test]
fn a_peer_that_is_silent_holds_up_no_other_list() {
    let mut engine = open();
    // The queue of this listener is full, so connecting to it gets no answer.
    let listener = socket(AddressFamily::INET, SocketType::STREAM, None).expect("a socket");
    bind(&listener, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0)).expect("a port");
    listen(&listener, 0).expect("it listens");
    let at = SocketAddrV4::try_from(getsockname(&listener).expect("bound")).expect("an address of IPv4");
    let _queued = TcpStream::connect(at).expect("the queue has room for one");
    let mut silent = engine.address().to_vec();
    silent[2..4].copy_from_slice(&at.port().to_be_bytes());
    let (silent, me): (Arc<[u8]>, Arc<[u8]>) = (silent.into(), engine.address().into());
    let send = DeferredAction::Send { to: Rank(0), index: 0, span: Span::signal(), counts: 0 };
    let send = DeferredTask { after: None, action: send };
    let message = |peer: &Arc<[u8]>, tag| Some(DeferredMessage { peer: Arc::clone(peer), tag, bytes: None });
    for token in [1, 2] {
        engine.post(token, &list(vec![send], 1), vec![message(&silent, token)]).expect("posted");
    }
    for token in 3..6 {
        let both = vec![message(&me, token), message(&me, token)];
        engine.post(token, &list(vec![receive(0), send], 2), both).expect("posted");
        let reported = ended(&mut engine);
        assert!(matches!(reported[..], [(ended, Ok(()))] if ended == token), "{reported:?}");
    }
    assert!(engine.shared.lists().unposted >= 2, "the provider still connects");
}

/// A missing peer fails the list, and the error names the provider. A message that is longer than the memory to receive
/// it fails the list, too.
#[test]
fn an_impossible_task_fails_its_list() {
    let mut engine = open();
    // The port of a listener that was closed.
    let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|at| at.local_addr()).expect("a port");
    let mut gone = engine.address().to_vec();
    gone[2..4].copy_from_slice(&port.port().to_be_bytes());
    let gone: Arc<[u8]> = gone.into();
    let (me, memory): (Arc<[u8]>, _) = (engine.address().into(), Bytes::new(vec![0; 64]));
    let send = DeferredAction::Send { to: Rank(0), index: 0, span: Span::signal(), counts: 0 };
    let send = DeferredTask { after: None, action: send };
    let message = DeferredMessage { peer: gone, tag: 1, bytes: memory.part(0, 64) };
    engine.post(1, &list(vec![send], 1), vec![Some(message)]).expect("posted");
    let reported = ended(&mut engine);
    assert!(matches!(&reported[..], [(1, Err(error))] if error.to_string().contains(PROVIDER)), "{reported:?}");
    let part = |len| Some(DeferredMessage { peer: Arc::clone(&me), tag: 2, bytes: memory.part(0, len) });
    engine.post(2, &list(vec![receive(0), send], 2), vec![part(8), part(64)]).expect("posted");
    let reported = ended(&mut engine);
    assert!(matches!(&reported[..], [(2, Err(OfiError::Task { .. }))]), "{reported:?}");
    let short = DeferredMessage { peer: me[..4].into(), tag: 3, bytes: None };
    let refused = engine.post(3, &list(vec![send], 1), vec![Some(short)]);
    assert!(matches!(refused, Err(OfiError::Address { length: 4, .. })), "{refused:?}");
}

#[test]
fn an_error_names_the_provider_and_the_missing_capability() {
    let reported = |provider| Ofi::open(provider, Ipv4Addr::LOCALHOST).err().expect("refused").to_string();
    let unknown = reported("nothing");
    assert!(unknown.contains("provider nothing") && unknown.contains("tagged messages"), "{unknown}");
    let tcp = reported("tcp");
    assert!(tcp.contains("provider tcp cannot"), "{tcp}");
}
