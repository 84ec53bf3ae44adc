//! A service process for tests: the attach protocol and collectives among the ranks attached to it, in one thread.

use outboard::{Reduction, Status};
use outboard_arithmetic::reduce;
use outboard_shm::attach::{Channel, ChannelError, GroupReady, OFFER_BYTES, Received, Reply, Request, Welcome};
use outboard_shm::control::{Completions, ServiceSide};
use outboard_shm::entry::{AllgatherEntry, BlockSizes, Direction, Entry, Reduced, RootedBlocks, RootedEntry};
use outboard_shm::memory::{CrossMemory, MemoryDescriptor, Proof, RankMemory, TieredMemory, copy_between};
use outboard_shm::region::read_sealed;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// By which tiers the service process reaches ranks' memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reach {
    #[default]
    All,
    /// By the descriptor that the rank hands over.
    Descriptor,
    None,
}

/// How the service process behaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// How it can reach ranks' memory.
    pub(crate) reach: Reach,
    /// Carries nothing out until released.
    pub(crate) holding: bool,
    /// Ends every collective like this.
    pub(crate) failing: Option<(Status, &'static str)>,
}

/// A running service process; dropping it ends it as a crash does: every connection closes.
pub(crate) struct FakeService {
    socket: PathBuf,
    orders: UnixStream,
    thread: Option<JoinHandle<()>>,
    _directory: tempfile::TempDir,
}

impl FakeService {
    pub(crate) fn start(behaviour: Behaviour) -> FakeService {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = Channel::listen(&socket).unwrap();
        let (orders, taken) = UnixStream::pair().unwrap();
        taken.set_nonblocking(true).unwrap();
        let pieces = Pieces::default();
        let mut service = Service { behaviour, listener, orders: taken, ranks: Vec::new(), pieces };
        let thread = std::thread::spawn(move || while service.turn() {});
        FakeService { socket, orders, thread: Some(thread), _directory: directory }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Carries out what was held and holds no more.
    pub(crate) fn release(&self) {
        (&self.orders).write_all(b"r").unwrap();
    }
}

impl Drop for FakeService {
    fn drop(&mut self) {
        self.orders.shutdown(std::net::Shutdown::Both).unwrap();
        let ended = self.thread.take().unwrap().join();
        assert!(ended.is_ok() || std::thread::panicking(), "the service process failed");
    }
}

struct Rank {
    channel: Channel,
    attached: Option<(ServiceSide, TieredMemory)>,
    offers: u32,
    texts: HashMap<u32, (Status, String)>,
}

/// A member of a group: the connection and the identifier it was given.
struct Member {
    connection: usize,
    rank: u32,
    token: u64,
}

#[derive(Default)]
struct Pieces {
    /// By the members' offers.
    forming: HashMap<Vec<u8>, Vec<Member>>,
    /// The connections of each group in rank order.
    groups: HashMap<u64, Vec<usize>>,
    last_group: u64,
    calls: HashMap<(u64, u64), Vec<(usize, Entry)>>,
}

struct Service {
    behaviour: Behaviour,
    listener: OwnedFd,
    orders: UnixStream,
    ranks: Vec<Option<Rank>>,
    pieces: Pieces,
}

impl Service {
    /// One turn of the loop; false when it is time to end.
    fn turn(&mut self) -> bool {
        if !self.take_orders() {
            return false;
        }
        while let Some(channel) = Channel::accept(self.listener.as_fd()).unwrap() {
            self.ranks.push(Some(Rank { channel, attached: None, offers: 0, texts: HashMap::new() }));
        }
        for connection in 0..self.ranks.len() {
            self.serve(connection);
            self.submissions(connection);
        }
        self.carry_out();
        self.sleep();
        true
    }

    fn take_orders(&mut self) -> bool {
        let mut order = [0];
        match self.orders.read(&mut order) {
            Ok(0) => return false,
            Ok(_) => self.behaviour.holding = false,
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock),
        }
        true
    }

    fn sleep(&self) {
        let ranks = || self.ranks.iter().flatten();
        let sides = || ranks().filter_map(|rank| rank.attached.as_ref()).map(|(side, _)| side);
        if sides().all(ServiceSide::prepare_sleep) {
            let mut watched =
                vec![PollFd::new(&self.listener, PollFlags::IN), PollFd::new(&self.orders, PollFlags::IN)];
            watched.extend(ranks().map(|rank| PollFd::new(&rank.channel, PollFlags::IN)));
            watched.extend(sides().map(|side| PollFd::new(side.doorbell(), PollFlags::IN)));
            let limit = Timespec { tv_sec: 60, tv_nsec: 0 };
            assert!(poll(&mut watched, Some(&limit)).unwrap() > 0, "nothing happened for a minute");
        }
        for side in sides() {
            side.stay_awake();
            // Ranks in tests do nothing to the doorbell, and a level-triggered poll needs it read.
            let _ = rustix::io::read(side.doorbell(), &mut [0u8; 8]);
        }
    }

    fn serve(&mut self, connection: usize) {
        while let Some(rank) = &mut self.ranks[connection] {
            match rank.channel.receive::<Request>() {
                Ok(None) => return,
                Ok(Some(request)) => self.answer(connection, request),
                Err(ChannelError::Closed) => self.ranks[connection] = None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&mut self, connection: usize, request: Received<Request>) {
        let Received { token, message, mut descriptors } = request;
        let rank = self.ranks[connection].as_mut().unwrap();
        let reply = match message {
            Request::Hello(hello) => {
                let pid = rank.channel.peer().unwrap().pid.unwrap();
                let proof = Proof { address: hello.probe_address, nonce: hello.nonce };
                let memory = match self.behaviour.reach {
                    Reach::All => TieredMemory::proven(Some(CrossMemory::open(pid).unwrap()), None, proof),
                    Reach::Descriptor => {
                        let descriptor = MemoryDescriptor::attach(descriptors.remove(0), hello.pid as i32).unwrap();
                        TieredMemory::proven(None, Some(descriptor), proof)
                    }
                    Reach::None => TieredMemory::staged(),
                };
                let side = ServiceSide::create().unwrap();
                let welcome =
                    Welcome { service_version: "test".into(), tier: memory.tier(), config_digest: 5, most_ranges: 8 };
                rank.channel.send(token, &Reply::Welcome(welcome), &side.descriptors()).unwrap();
                rank.attached = Some((side, memory));
                return;
            }
            Request::Offer => {
                let mut offer = Box::new([0; OFFER_BYTES]);
                rank.offers += 1;
                offer[..8].copy_from_slice(&(connection as u64).to_le_bytes());
                offer[8..12].copy_from_slice(&rank.offers.to_le_bytes());
                Reply::Offer(offer)
            }
            Request::CreateGroup { ranks, rank } => {
                let offers = read_sealed(descriptors.remove(0).as_fd(), ranks as usize * OFFER_BYTES).unwrap();
                self.join(offers, ranks, Member { connection, rank, token });
                return;
            }
            Request::DestroyGroup { .. } | Request::SetDeadline { .. } | Request::Detach => Reply::Done,
            Request::RegisterMemory { address, bytes, .. } => {
                let memory = &rank.attached.as_ref().unwrap().1;
                memory.ranges().register(address, bytes, descriptors.remove(0)).unwrap();
                Reply::Done
            }
            Request::UnregisterMemory { address } => {
                rank.attached.as_ref().unwrap().1.ranges().unregister(address).unwrap();
                Reply::Done
            }
            Request::Restage(_) => panic!("no tier is withdrawn here"),
            Request::Record { .. } | Request::FreeRecording { .. } => panic!("nothing is recorded here"),
            Request::ErrorText { slot } => {
                let (status, text) = rank.texts.remove(&slot).unwrap();
                Reply::ErrorText { status, text }
            }
        };
        rank.channel.send(token, &reply, &[]).unwrap();
    }

    /// Lets a member into a group that forms; the last one makes it.
    fn join(&mut self, offers: Vec<u8>, ranks: u32, member: Member) {
        let members = self.pieces.forming.entry(offers.clone()).or_default();
        members.push(member);
        if members.len() < ranks as usize {
            return;
        }
        let mut members = self.pieces.forming.remove(&offers).unwrap();
        members.sort_by_key(|member| member.rank);
        self.pieces.last_group += 1;
        let group = self.pieces.last_group;
        for member in &members {
            let ready = GroupReady { group, handle: 77, allgather_least: 1, allgather_most: 1 << 20 };
            let rank = self.ranks[member.connection].as_ref().unwrap();
            rank.channel.send(member.token, &Reply::GroupReady(ready), &[]).unwrap();
        }
        self.pieces.groups.insert(group, members.iter().map(|member| member.connection).collect());
    }

    fn submissions(&mut self, connection: usize) {
        let Some(Rank { attached: Some((side, _)), .. }) = &mut self.ranks[connection] else { return };
        while let Some(entry) = side.take() {
            let entry = entry.unwrap();
            self.pieces.calls.entry((entry.group(), entry.instance())).or_default().push((connection, entry));
        }
    }

    fn carry_out(&mut self) {
        if self.behaviour.holding {
            return;
        }
        let groups = &self.pieces.groups;
        let whole = |(group, _): &(u64, u64), calls: &mut Vec<_>| calls.len() == groups[group].len();
        let ready: Vec<_> = self.pieces.calls.extract_if(whole).collect();
        for ((group, _), calls) in ready {
            let members = &self.pieces.groups[&group];
            if self.behaviour.failing.is_none() {
                self.collective(members, &calls);
            }
            for (connection, entry) in calls {
                let Some(rank) = &mut self.ranks[connection] else { continue };
                let status = self.behaviour.failing.map_or(Status::Ok, |(status, _)| status);
                if let Some((status, text)) = self.behaviour.failing {
                    rank.texts.insert(entry.slot(), (status, text.to_owned()));
                }
                completions(rank).complete(entry.slot(), status);
            }
        }
    }

    /// What all members have called.
    fn collective(&self, members: &[usize], calls: &[(usize, Entry)]) {
        let allgathers: Vec<_> = calls
            .iter()
            .filter_map(|(connection, entry)| match entry {
                Entry::Allgather(entry) => Some((*connection, *entry)),
                Entry::Broadcast(_)
                | Entry::Alltoall(_)
                | Entry::Allgatherv(_)
                | Entry::Rooted(_)
                | Entry::Barrier(_)
                | Entry::Reduction(_) => None,
                Entry::Recorded(_) | Entry::Message(_) => panic!("collectives alone are called here"),
            })
            .collect();
        match calls[0].1 {
            Entry::Allgather(_) => {
                assert_eq!(allgathers.len(), calls.len(), "all call the same");
                self.allgather(members, &allgathers);
            }
            Entry::Broadcast(_) => self.broadcast(members, calls),
            Entry::Alltoall(_) => self.alltoall(members, calls),
            Entry::Allgatherv(_) => self.allgatherv(members, calls),
            Entry::Rooted(entry) => self.rooted(members, calls, entry.root),
            Entry::Barrier(_) => assert!(calls.iter().all(|(_, call)| matches!(call, Entry::Barrier(_)))),
            Entry::Reduction(_) => self.reduction(members, calls),
            Entry::Recorded(_) | Entry::Message(_) => unreachable!("refused above"),
        }
    }

    /// Combines in the order of ranks.
    fn reduction(&self, members: &[usize], calls: &[(usize, Entry)]) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        let entry = |connection: usize| match calls.iter().find(|(caller, _)| *caller == connection) {
            Some((_, Entry::Reduction(entry))) => *entry,
            other => panic!("{other:?}"),
        };
        // Bytes of the block of each rank, where there are blocks.
        let blocks = |connection: usize| -> Vec<u64> {
            match entry(connection).result {
                Reduced::ReduceScatter { table: address } => {
                    let mut table = vec![0; 8 * members.len()];
                    memory(connection).read(address, &mut table).unwrap();
                    table.as_chunks::<8>().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect()
                }
                Reduced::ReduceScatterBlock { bytes } => vec![bytes; members.len()],
                Reduced::Reduce { bytes, .. }
                | Reduced::Allreduce { bytes }
                | Reduced::Scan { bytes }
                | Reduced::Exscan { bytes } => vec![bytes],
            }
        };
        let vector = |connection: usize| {
            let mut vector = vec![0; blocks(connection).iter().sum::<u64>() as usize];
            let entry = entry(connection);
            memory(connection).read(if entry.in_place { entry.receive } else { entry.send }, &mut vector).unwrap();
            vector
        };
        let vectors: Vec<Vec<u8>> = members.iter().map(|member| vector(*member)).collect();
        let combined = |members: usize| {
            let mut result = vectors[0].clone();
            let reduction = Reduction::from_code(entry(calls[0].0).code).unwrap();
            vectors[1..members].iter().for_each(|vector| reduce(reduction, vector, &mut result, false));
            result
        };
        for (rank, &member) in members.iter().enumerate() {
            let (all, blocks) = (members.len(), blocks(member));
            let result = match entry(member).result {
                Reduced::Reduce { root, .. } if root as usize != rank => continue,
                Reduced::Exscan { .. } if rank == 0 => continue,
                Reduced::Reduce { .. } | Reduced::Allreduce { .. } => combined(all),
                Reduced::Scan { .. } => combined(rank + 1),
                Reduced::Exscan { .. } => combined(rank),
                Reduced::ReduceScatter { .. } | Reduced::ReduceScatterBlock { .. } => {
                    let start = blocks[..rank].iter().sum::<u64>() as usize;
                    combined(all)[start..][..blocks[rank] as usize].to_vec()
                }
            };
            memory(member).write(entry(member).receive, &result).unwrap();
        }
    }

    fn allgatherv(&self, members: &[usize], calls: &[(usize, Entry)]) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        let entry = |connection: usize| match calls.iter().find(|(caller, _)| *caller == connection) {
            Some((_, Entry::Allgatherv(entry))) => *entry,
            other => panic!("{other:?}"),
        };
        // Bytes of the block of `of`, and where it belongs at the rank of this connection.
        let block = |connection: usize, of: usize| {
            let mut table = vec![0; 2 * 8 * members.len()];
            memory(connection).read(entry(connection).table, &mut table).unwrap();
            let number = |at: usize| u64::from_le_bytes(table[8 * at..][..8].try_into().unwrap());
            (number(of), entry(connection).receive + number(of + members.len()))
        };
        for (from, &source) in members.iter().enumerate() {
            let (bytes, own) = block(source, from);
            let send = if entry(source).in_place { own } else { entry(source).send };
            for &target in members.iter().filter(|target| !(entry(source).in_place && **target == source)) {
                let (expected, receive) = block(target, from);
                assert_eq!(bytes, expected);
                copy_between(memory(source), send, memory(target), receive, bytes).unwrap();
            }
        }
    }

    /// Gathers and scatters: between the block of each rank and its place among those of the root.
    fn rooted(&self, members: &[usize], calls: &[(usize, Entry)], root: u32) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        let entry = |connection: usize| match calls.iter().find(|(caller, _)| *caller == connection) {
            Some((_, Entry::Rooted(entry))) => *entry,
            other => panic!("{other:?}"),
        };
        let at_root = members[root as usize];
        let root_entry: RootedEntry = entry(at_root);
        let gathers = root_entry.direction == Direction::Gather;
        for (rank, &connection) in members.iter().enumerate() {
            let own = entry(connection);
            assert_eq!((own.root, own.direction), (root, root_entry.direction), "all call the same");
            let (bytes, offset) = match root_entry.blocks {
                RootedBlocks::Even { bytes } => (bytes, rank as u64 * bytes),
                RootedBlocks::Own { .. } => panic!("the root has a table"),
                RootedBlocks::Table { address } => {
                    let mut table = vec![0; 2 * 8 * members.len()];
                    memory(at_root).read(address, &mut table).unwrap();
                    let number = |at: usize| u64::from_le_bytes(table[8 * at..][..8].try_into().unwrap());
                    (number(rank), number(rank + members.len()))
                }
            };
            match own.blocks {
                RootedBlocks::Even { bytes: own } | RootedBlocks::Own { bytes: own } => assert_eq!(own, bytes),
                RootedBlocks::Table { .. } => assert_eq!(connection, at_root),
            }
            if own.in_place {
                assert_eq!(connection, at_root);
            } else if gathers {
                let place = root_entry.receive + offset;
                copy_between(memory(connection), own.send, memory(at_root), place, bytes).unwrap();
            } else {
                let place = root_entry.send + offset;
                copy_between(memory(at_root), place, memory(connection), own.receive, bytes).unwrap();
            }
        }
    }

    fn alltoall(&self, members: &[usize], calls: &[(usize, Entry)]) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        let entry = |connection: usize| match calls.iter().find(|(caller, _)| *caller == connection) {
            Some((_, Entry::Alltoall(entry))) => *entry,
            other => panic!("{other:?}"),
        };
        // Bytes and address of the block with `other` of the list that begins at `list` of the table.
        let block = |connection: usize, start: u64, list: usize, other: usize| match entry(connection).blocks {
            BlockSizes::Even { bytes } => (bytes, start + other as u64 * bytes),
            BlockSizes::Table { address } => {
                let mut table = vec![0; 4 * 8 * members.len()];
                memory(connection).read(address, &mut table).unwrap();
                let number = |at: usize| u64::from_le_bytes(table[8 * at..][..8].try_into().unwrap());
                let first = list * members.len() + other;
                (number(first), start + number(first + members.len()))
            }
        };
        for (from, &source) in members.iter().enumerate() {
            for (to, &target) in members.iter().enumerate() {
                let (sent, send) = block(source, entry(source).send, 0, to);
                let (expected, receive) = block(target, entry(target).receive, 2, from);
                assert_eq!(sent, expected);
                copy_between(memory(source), send, memory(target), receive, sent).unwrap();
            }
        }
    }

    fn broadcast(&self, members: &[usize], calls: &[(usize, Entry)]) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        let entry = |connection: usize| match calls.iter().find(|(caller, _)| *caller == connection) {
            Some((_, Entry::Broadcast(entry))) => *entry,
            other => panic!("{other:?}"),
        };
        for &target in members {
            let source = members[entry(target).root as usize];
            if source != target {
                let (from, to) = (entry(source), entry(target));
                copy_between(memory(source), from.buffer, memory(target), to.buffer, from.bytes).unwrap();
            }
        }
    }

    fn allgather(&self, members: &[usize], calls: &[(usize, AllgatherEntry)]) {
        let memory = |connection: usize| &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1;
        for (source, from) in calls {
            let at = members.iter().position(|member| member == source).unwrap() as u64 * from.bytes_per_rank;
            let send = if from.in_place { from.receive + at } else { from.send };
            for (target, to) in calls {
                if !(from.in_place && source == target) {
                    let receive = to.receive + at;
                    copy_between(memory(*source), send, memory(*target), receive, from.bytes_per_rank).unwrap();
                }
            }
        }
    }
}

fn completions(rank: &Rank) -> Completions {
    rank.attached.as_ref().unwrap().0.completions()
}
