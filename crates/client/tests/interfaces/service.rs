//! A service process for tests: the attach protocol and collectives among the ranks attached to it, in one thread.

use outboard::{Reduction, Status};
use outboard_arithmetic::reduce;
use outboard_call::{Call, CallKind, Footprint, MemoryRange, Span};
use outboard_shm::attach::{
    AttachChannel, AttachReply, AttachRequest, ChannelError, GroupReady, OFFER_BYTES, ReceivedMessage, Welcome,
};
use outboard_shm::control::{Completer, ServiceSide};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{CrossMemory, MemoryDescriptor, Proof, RankMemory, TieredMemory, copy_between};
use outboard_shm::region::unseal;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

/// The tiers by which the service process can access ranks' memory.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) enum Reach {
    #[default]
    All,
    /// By the memory descriptor that the rank passes.
    Descriptor,
    None,
}

/// How the service process behaves.
#[derive(Debug, Clone, Default)]
pub(crate) struct Behaviour {
    /// The access to ranks' memory.
    pub(crate) reach: Reach,
    /// Whether collectives wait until `release`.
    pub(crate) holding: bool,
    /// If set, every collective ends with this error.
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
        let (family, flags) = (AddressFamily::UNIX, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK);
        let listener = rustix::net::socket_with(family, SocketType::SEQPACKET, flags, None).unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 128).unwrap();
        let (orders, taken) = UnixStream::pair().unwrap();
        taken.set_nonblocking(true).unwrap();
        let state = ServiceState::default();
        let mut service = Service { behaviour, listener, orders: taken, ranks: Vec::new(), state };
        let thread = std::thread::spawn(move || while service.turn() {});
        FakeService { socket, orders, thread: Some(thread), _directory: directory }
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Carries out the held collectives and holds no more.
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
    channel: AttachChannel,
    attached: Option<(ServiceSide, TieredMemory)>,
    offers: u32,
    texts: HashMap<u32, (Status, String)>,
}

/// A member of a group: its connection and its identifier.
struct Member {
    connection: usize,
    rank: u32,
    token: u64,
}

#[derive(Default)]
struct ServiceState {
    /// Groups being made, by the offers of all members.
    forming: HashMap<Vec<u8>, Vec<Member>>,
    /// The connections of each group in rank order.
    groups: HashMap<u64, Vec<usize>>,
    last_group: u64,
    calls: HashMap<(u64, u64), Vec<(usize, SubmissionEntry)>>,
}

struct Service {
    behaviour: Behaviour,
    listener: OwnedFd,
    orders: UnixStream,
    ranks: Vec<Option<Rank>>,
    state: ServiceState,
}

impl Service {
    /// One turn of the loop; false when the service should end.
    fn turn(&mut self) -> bool {
        if !self.take_orders() {
            return false;
        }
        while let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
            let channel = AttachChannel::from(socket);
            self.ranks.push(Some(Rank { channel, attached: None, offers: 0, texts: HashMap::new() }));
        }
        for connection in 0..self.ranks.len() {
            self.serve(connection);
            self.submissions(connection);
        }
        self.perform();
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
            // The fake service polls ranks, so it only has to read the doorbell for a level-triggered poll.
            let _ = rustix::io::read(side.doorbell(), &mut [0u8; 8]);
        }
    }

    fn serve(&mut self, connection: usize) {
        while let Some(rank) = &mut self.ranks[connection] {
            match rank.channel.receive::<AttachRequest>() {
                Ok(None) => return,
                Ok(Some(request)) => self.answer(connection, request),
                Err(ChannelError::Closed) => self.ranks[connection] = None,
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn answer(&mut self, connection: usize, request: ReceivedMessage<AttachRequest>) {
        let ReceivedMessage { token, message, mut descriptors } = request;
        let rank = self.ranks[connection].as_mut().unwrap();
        let reply = match message {
            AttachRequest::Hello(hello) => {
                let pid = rank.channel.peer().unwrap().pid.unwrap();
                let proof = Proof { address: hello.probe_address, nonce: hello.nonce };
                let descriptor = MemoryDescriptor::attach(descriptors.remove(0), hello.pid as i32).unwrap();
                let memory = match self.behaviour.reach {
                    Reach::All => TieredMemory::proven(Some(CrossMemory::of(pid)), Some(descriptor), proof),
                    Reach::Descriptor => TieredMemory::proven(None, Some(descriptor), proof),
                    Reach::None => TieredMemory::default(),
                };
                let side = ServiceSide::create().unwrap();
                let welcome = Welcome { tier: memory.tier(), config_digest: 5, most_ranges: 8, link_rate: 1 };
                rank.channel.send(token, &AttachReply::Welcome(welcome), &side.descriptors()).unwrap();
                rank.attached = Some((side, memory));
                return;
            }
            AttachRequest::Offer => {
                let mut offer = Box::new([0; OFFER_BYTES]);
                rank.offers += 1;
                offer[..8].copy_from_slice(&(connection as u64).to_le_bytes());
                offer[8..12].copy_from_slice(&rank.offers.to_le_bytes());
                AttachReply::Offer(offer)
            }
            AttachRequest::CreateGroup { ranks, rank } => {
                let bytes = ranks as usize * OFFER_BYTES;
                let offers = unseal(descriptors.remove(0), bytes).unwrap();
                self.join(offers, ranks, Member { connection, rank, token });
                return;
            }
            AttachRequest::DestroyGroup { .. } | AttachRequest::SetDeadline { .. } | AttachRequest::Detach => {
                AttachReply::Done
            }
            AttachRequest::RegisterMemory { address, bytes, .. } => {
                let memory = &rank.attached.as_ref().unwrap().1;
                memory.ranges().register(address, bytes, descriptors.remove(0)).unwrap();
                AttachReply::Done
            }
            AttachRequest::UnregisterMemory { address } => {
                rank.attached.as_ref().unwrap().1.ranges().unregister(address).unwrap();
                AttachReply::Done
            }
            AttachRequest::Restage(_) | AttachRequest::RefuseRestage { .. } => panic!("no tier is withdrawn here"),
            AttachRequest::Record { .. } | AttachRequest::FreeRecording { .. } => panic!("nothing is recorded here"),
            AttachRequest::ErrorText { slot } => {
                let (status, text) = rank.texts.remove(&slot).unwrap();
                AttachReply::ErrorText { status, text }
            }
        };
        rank.channel.send(token, &reply, &[]).unwrap();
    }

    /// Adds a member to a group that forms; the last member completes it.
    fn join(&mut self, offers: Vec<u8>, ranks: u32, member: Member) {
        let members = self.state.forming.entry(offers.clone()).or_default();
        members.push(member);
        if members.len() < ranks as usize {
            return;
        }
        let mut members = self.state.forming.remove(&offers).unwrap();
        members.sort_by_key(|member| member.rank);
        self.state.last_group += 1;
        let group = self.state.last_group;
        for member in &members {
            let most = 1 << 20;
            let ready = GroupReady { group, handle: 77, offloads_from: 1, offloads_up_to: most, reduction_most: most };
            let rank = self.ranks[member.connection].as_ref().unwrap();
            rank.channel.send(member.token, &AttachReply::GroupReady(ready), &[]).unwrap();
        }
        self.state.groups.insert(group, members.iter().map(|member| member.connection).collect());
    }

    fn submissions(&mut self, connection: usize) {
        let Some(Rank { attached: Some((side, _)), .. }) = &mut self.ranks[connection] else { return };
        while let Some(entry) = side.pop() {
            let entry = entry.unwrap();
            self.state.calls.entry((entry.group, entry.instance)).or_default().push((connection, entry));
        }
    }

    fn perform(&mut self) {
        if self.behaviour.holding {
            return;
        }
        let groups = &self.state.groups;
        let whole = |(group, _): &(u64, u64), calls: &mut Vec<_>| calls.len() == groups[group].len();
        let ready: Vec<_> = self.state.calls.extract_if(whole).collect();
        for ((group, _), calls) in ready {
            let members = &self.state.groups[&group];
            if self.behaviour.failing.is_none() {
                self.collective(members, &calls);
            }
            for (connection, entry) in calls {
                let Some(rank) = &mut self.ranks[connection] else { continue };
                let status = self.behaviour.failing.map_or(Status::Ok, |(status, _)| status);
                if let Some((status, text)) = self.behaviour.failing {
                    rank.texts.insert(entry.slot, (status, text.to_owned()));
                }
                completions(rank).complete(entry.slot, status);
            }
        }
    }

    fn memory(&self, connection: usize) -> &TieredMemory {
        &self.ranks[connection].as_ref().unwrap().attached.as_ref().unwrap().1
    }

    /// The footprint of the call of the member with this rank.
    fn footprint(&self, members: &[usize], rank: usize, calls: &[(usize, SubmissionEntry)]) -> (Call, Footprint) {
        let call = calls.iter().find(|(caller, _)| *caller == members[rank]).unwrap().1.call;
        let (rank, ranks) = (outboard_call::Rank(rank as u32), members.len() as u32);
        let mut table = vec![0; 8 * call.table_numbers(rank, ranks)];
        if !table.is_empty() {
            self.memory(members[rank.0 as usize]).read(call.table, &mut table).unwrap();
        }
        let numbers: Vec<u64> = table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
        (call, call.footprint(rank, ranks, &numbers).unwrap())
    }

    /// Carries out a call that all members have made.
    fn collective(&self, members: &[usize], calls: &[(usize, SubmissionEntry)]) {
        let footprints: Vec<_> = (0..members.len()).map(|rank| self.footprint(members, rank, calls)).collect();
        let signature = footprints[0].1.signature;
        assert!(footprints.iter().all(|(_, footprint)| footprint.signature == signature), "all call the same");
        if let Some(reduction) = signature.kind.reduction() {
            return self.reduction(members, reduction, &footprints);
        }
        for (from, to) in (0..members.len()).flat_map(|from| (0..members.len()).map(move |to| (from, to))) {
            let ((source, sender), (target, receiver)) = (&footprints[from], &footprints[to]);
            let (send, sent) = block(sender.reads, sender.blocks.as_ref().map(|b| &b.send), to, source.bytes);
            let (receive, expected) =
                block(receiver.writes, receiver.blocks.as_ref().map(|b| &b.receive), from, target.bytes);
            if sent > 0 && expected > 0 && (from != to || send != receive) {
                assert_eq!(sent, expected);
                let (source, target) = (self.memory(members[from]), self.memory(members[to]));
                copy_between(source, send, target, receive, sent, &mut Vec::new()).unwrap();
            }
        }
    }

    /// Combines in the order of ranks.
    fn reduction(&self, members: &[usize], reduction: Reduction, footprints: &[(Call, Footprint)]) {
        let vector = |(&member, (_, footprint)): (&usize, &(Call, Footprint))| {
            let mut vector = vec![0; footprint.reads.bytes as usize];
            self.memory(member).read(footprint.reads.address, &mut vector).unwrap();
            vector
        };
        let vectors: Vec<Vec<u8>> = members.iter().zip(footprints).map(vector).collect();
        let combined = |members: usize| {
            let mut result = vectors[0].clone();
            vectors[1..members].iter().for_each(|vector| reduce(reduction, vector, &mut result, false));
            result
        };
        for (rank, (call, footprint)) in footprints.iter().enumerate() {
            let bytes = footprint.writes.bytes as usize;
            if bytes == 0 {
                continue;
            }
            let result = match call.kind {
                CallKind::Scan { inclusive, .. } => combined(rank + usize::from(inclusive)),
                CallKind::ReduceScatter { .. } => {
                    let start = footprint.blocks.as_ref().unwrap().send[rank].offset as usize;
                    combined(members.len())[start..][..bytes].to_vec()
                }
                CallKind::ReduceScatterBlock { .. } => combined(members.len())[rank * bytes..][..bytes].to_vec(),
                _ => combined(members.len()),
            };
            self.memory(members[rank]).write(footprint.writes.address, &result).unwrap();
        }
    }
}

/// Address and bytes of the block with rank `other` on a side of a call; even blocks have `bytes` each.
fn block(side: MemoryRange, blocks: Option<&Vec<Span>>, other: usize, bytes: u64) -> (u64, u64) {
    let (offset, bytes) = match blocks {
        Some(spans) if spans.len() == 1 => (0, spans[0].len),
        Some(spans) => (spans[other].offset, spans[other].len),
        None if side.bytes <= bytes => (0, side.bytes),
        None => (other as u64 * bytes, bytes),
    };
    (side.address + offset, bytes)
}

fn completions(rank: &Rank) -> Completer {
    rank.attached.as_ref().unwrap().0.completions()
}
