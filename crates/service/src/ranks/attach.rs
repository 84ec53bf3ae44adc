//! Requests at the attach socket: identity of a rank, its groups, its memory (SP-3).
//!
//! A rank may have a bug. So a rank's identity comes from the kernel (socket credentials, pidfd), and every number is
//! checked. A real read and a real write prove that the rank's memory can be accessed. A rank that breaks the protocol
//! loses its connection, and no other rank does.

use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use outboard_fabric::limited;
use outboard_fabric::multicast::Interface;
use outboard_proto::{GroupHandle, GroupRefusal, HostId, OfferId, SpId};
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, Hello, ReceivedMessage, Welcome};
use outboard_shm::control::{LAYOUT_VERSION, ServiceSide};
use outboard_shm::memory::{CrossMemory, MOST_RANGES, MemoryDescriptor, Proof, RangeError, TieredMemory};
use outboard_shm::region::unseal;
use outboard_shm::status::Status;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::ConnectionId;
use crate::driver::EndpointDriver;
use crate::memory::rank_copies::CopyAgent;
use crate::poller::{Poller, Trigger, WakeToken};
use crate::ranks::docked::{DockedRank, DockedRanks};
use crate::ranks::offers::Offer;
use crate::ranks::{AttachedRank, Membership, MembershipStage, RankConnection, Ranks};
use crate::settings::Settings;
use crate::telemetry::trace::TimelineFile;
use crate::topology::{CpuTopology, Seat};

/// Messages handled from one connection per wake-up; the rest wake the conductor again.
const MESSAGES: usize = 4;
/// Largest encoded recording; a recording is decoded in one step.
pub const MAX_RECORDING_BYTES: u64 = 8 << 20;
/// Most unused offers of a rank; the oldest is dropped first.
const MOST_OFFERS: usize = 256;

/// Remedy when a service process is out of descriptors, to be appended to the kernel's error.
pub(crate) const MORE_DESCRIPTORS: &str = "; raise its limit on descriptors (`ulimit -n`, LimitNOFILE in its unit)";

/// Properties of this host that the handling of requests needs.
#[derive(Debug)]
pub(crate) struct HostProperties {
    pub(crate) id: SpId,
    pub(crate) place: HostId,
    pub(crate) node: Arc<str>,
    pub(crate) topology: CpuTopology,
    pub(crate) settings: Settings,
    pub(crate) digest: u64,
    /// Address of this host in the unicast fabric.
    pub(crate) address: Arc<[u8]>,
    /// Address of the engine beside the service process; empty if there is no engine.
    pub(crate) engine: Arc<[u8]>,
    /// Source address of this host's multicast, if the interface has an address.
    pub(crate) sends_from: Option<Ipv4Addr>,
    /// Rate of the link in bit/s.
    pub(crate) link_rate: u64,
    pub(crate) docked: Arc<DockedRanks>,
}

/// A refused request: status and text of the reply.
#[derive(Debug)]
pub struct RefusedRequest {
    pub status: Status,
    pub text: String,
}

impl RefusedRequest {
    pub(crate) fn argument(text: impl ToString) -> RefusedRequest {
        RefusedRequest { status: Status::Argument, text: text.to_string() }
    }

    /// Logs the refusal and returns its reply.
    pub(crate) fn logged_reply(self, connection: ConnectionId) -> AttachReply {
        tracing::debug!(connection, status = ?self.status, text = self.text, "a request is refused");
        self.reply()
    }

    #[must_use]
    pub fn reply(self) -> AttachReply {
        AttachReply::Error { status: self.status, text: self.text }
    }
}

pub(crate) fn refuse<T>(status: Status, text: impl ToString) -> Result<T, RefusedRequest> {
    Err(RefusedRequest { status, text: text.to_string() })
}

/// State of the connection after a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AfterRequest {
    Stay,
    Close,
}

pub(crate) struct RequestHandler<'a> {
    pub(crate) ranks: &'a mut Ranks,
    pub(crate) driver: &'a mut EndpointDriver,
    pub(crate) poller: &'a Poller,
    pub(crate) host: &'a HostProperties,
    pub(crate) trace: Option<&'a mut TimelineFile>,
}

impl RequestHandler<'_> {
    pub(crate) fn serve_connection(&mut self, id: ConnectionId) {
        for _ in 0..MESSAGES {
            let Some(connection) = self.ranks.connections.get(&id).filter(|one| !one.has_deferred_request()) else {
                return;
            };
            match connection.channel().receive::<AttachRequest>() {
                Ok(None) => return,
                Ok(Some(received)) => {
                    let attached = self.ranks.rank(id).is_some();
                    if !attached || self.ranks.request_queue.admits(id, &received.message) {
                        self.handle_request(id, received);
                    } else if let Some(rank) = self.ranks.rank(id) {
                        rank.deferred_request = Some(received);
                    }
                }
                Err(error) => {
                    let farewell = match &error {
                        ChannelError::Decode(decode) => {
                            Some(RefusedRequest { status: Status::Version, text: decode.to_string() })
                        }
                        ChannelError::Descriptors => {
                            self.ranks.withdraw(id, Some(GroupRefusal::Descriptors), self.driver);
                            Some(kernel("take the descriptors of a request", Errno::MFILE))
                        }
                        ChannelError::Closed | ChannelError::Backlogged | ChannelError::Kernel(_) => None,
                    };
                    if let Some(refused) = farewell {
                        // The connection is dropped whether the reply is sent or not.
                        let _ = self.ranks.reply(id, 0, &refused.reply());
                    }
                    return self.drop_connection(id, &error);
                }
            }
        }
    }

    /// Answers a request, and removes the connection if the request ended it.
    pub(crate) fn handle_request(&mut self, id: ConnectionId, received: ReceivedMessage<AttachRequest>) {
        match self.dispatch(id, received) {
            Ok(AfterRequest::Stay) => {}
            Ok(AfterRequest::Close) => self.ranks.remove(id, self.poller, self.driver),
            Err(error) => self.drop_connection(id, &error),
        }
    }

    pub(crate) fn drop_connection(&mut self, id: ConnectionId, error: &ChannelError) {
        if !matches!(error, ChannelError::Closed) {
            limited!(warn, connection = id, %error, "a connection is given up");
            self.ranks.refused += 1;
        }
        self.ranks.remove(id, self.poller, self.driver);
    }

    fn dispatch(
        &mut self,
        id: ConnectionId,
        received: ReceivedMessage<AttachRequest>,
    ) -> Result<AfterRequest, ChannelError> {
        let ReceivedMessage { token, message, descriptors } = received;
        if let AttachRequest::Hello(hello) = message {
            return self.accept_greeting(id, token, &hello, descriptors);
        }
        if self.ranks.rank(id).is_none() {
            let text = "the first message of a connection is a greeting".to_owned();
            self.ranks.reply(id, token, &AttachReply::Error { status: Status::Protocol, text })?;
            return Ok(AfterRequest::Close);
        }
        let detaches = message == AttachRequest::Detach;
        let outcome = match message {
            AttachRequest::Hello(_) => unreachable!("answered above"),
            AttachRequest::Offer => self.offer(id),
            AttachRequest::CreateGroup { ranks, rank } => {
                match self.create_group(id, token, descriptors, ranks, rank) {
                    Ok(()) => return Ok(AfterRequest::Stay),
                    Err(refused) => Err(refused),
                }
            }
            AttachRequest::DestroyGroup { group } => self.destroy_group(id, group),
            AttachRequest::Record { group, recording, bytes } => self.record(id, descriptors, group, recording, bytes),
            AttachRequest::FreeRecording { group, recording } => self.free_recording(id, group, recording),
            AttachRequest::SetDeadline { group, milliseconds } => self.set_deadline(id, group, milliseconds),
            AttachRequest::RegisterMemory { address, bytes } => self.register_memory(id, descriptors, address, bytes),
            AttachRequest::UnregisterMemory { address } => self.unregister_memory(id, address),
            AttachRequest::Restage(restaged) => self.restage(id, &restaged),
            AttachRequest::RefuseRestage { group, instance, slot } => self.refuse_restage(id, (group, instance), slot),
            AttachRequest::ErrorText { slot } => self.error_text(id, slot),
            AttachRequest::Detach => self.detach(id),
        };
        let closes = detaches && outcome.is_ok();
        let reply = outcome.unwrap_or_else(|refused| refused.logged_reply(id));
        self.ranks.reply(id, token, &reply)?;
        Ok(if closes { AfterRequest::Close } else { AfterRequest::Stay })
    }

    fn accept_greeting(
        &mut self,
        id: ConnectionId,
        token: u64,
        hello: &Hello,
        descriptors: Vec<OwnedFd>,
    ) -> Result<AfterRequest, ChannelError> {
        let attached = match self.ranks.connections.get(&id) {
            Some(RankConnection::Greeting(_)) => self.attach(id, hello, descriptors),
            Some(RankConnection::AttachedRank(_)) | None => {
                refuse(Status::Protocol, "this connection is attached already")
            }
        };
        let (side, welcome, rank) = match attached {
            Ok(attached) => attached,
            Err(refused) => {
                limited!(warn, pid = hello.pid, text = refused.text, "a process may not attach");
                self.ranks.reply(id, token, &refused.reply())?;
                return Ok(AfterRequest::Close);
            }
        };
        let Some(RankConnection::Greeting(channel)) = self.ranks.connections.remove(&id) else {
            unreachable!("it was greeting a moment ago")
        };
        let sent = channel.send(token, &AttachReply::Welcome(welcome), &side.descriptors());
        // A rank of another host or process namespace has no process number here by which other ranks could read its
        // memory.
        let pid = rank.visible_pid.filter(|_| rank.seat.is_none());
        let copy_agent = pid.map(|pid| Arc::new(CopyAgent { id, pid, copies: side.rank_copies() }));
        let rank = AttachedRank::new(channel, rank, side, copy_agent);
        tracing::info!(pid = rank.pid, tier = %rank.tier, "a rank attached");
        self.ranks.connections.insert(id, RankConnection::AttachedRank(Box::new(rank)));
        self.ranks.attached_once = true;
        sent.map(|()| AfterRequest::Stay)
    }

    /// Checks the greeting process, pins it, and finds out how its memory can be accessed.
    fn attach(
        &self,
        id: ConnectionId,
        hello: &Hello,
        descriptors: Vec<OwnedFd>,
    ) -> Result<(ServiceSide, Welcome, PinnedProcess), RefusedRequest> {
        let most = self.host.settings.max_ranks;
        if self.ranks.attached().count() >= most as usize {
            return refuse(Status::Resource, format!("{most} ranks are attached already; raise --max-ranks"));
        }
        let mut process = pin_process(self.ranks.connections[&id].channel(), hello, descriptors)?;
        process.memory = process.memory.with_alarm(self.ranks.alarm());
        if let Some(DockedRank { pid, seat, watch }) = self.host.docked.take(&hello.nonce) {
            // The connecting process is the dock, so only the connection reports the end of the rank.
            (process.pid, process.visible_pid, process.pidfd, process.seat) = (pid, None, None, Some(seat));
            process.memory = process.memory.with_observer(watch);
        }
        let side = ServiceSide::create()
            .map_err(|error| RefusedRequest { status: Status::Resource, text: error.to_string() })?;
        let watch = |fd: BorrowedFd<'_>, token, trigger| {
            self.poller.watch(fd, token, trigger).map_err(|errno| kernel("watch the process", errno))
        };
        watch(side.doorbell().as_fd(), WakeToken::Doorbell(id), Trigger::Edge)?;
        if let Some(pidfd) = &process.pidfd
            && let Err(refused) = watch(pidfd.as_fd(), WakeToken::Process(id), Trigger::Level)
        {
            self.poller.unwatch(side.doorbell());
            return Err(refused);
        }
        let welcome = Welcome {
            tier: process.memory.tier(),
            config_digest: self.host.digest,
            most_ranges: MOST_RANGES,
            link_rate: self.host.link_rate,
        };
        Ok((side, welcome, process))
    }

    /// Refuses the request if the interface's address has changed, since other hosts would use the old address.
    fn check_address(&self) -> Result<(), RefusedRequest> {
        let (Some(before), Some(name)) = (self.host.sends_from, &self.host.settings.interface) else { return Ok(()) };
        let now = Interface::named(name).and_then(|interface| interface.address());
        let text = match now {
            Ok(now) if now == before => return Ok(()),
            Ok(now) => {
                format!("interface {name} had the address {before} when this service process started, now {now}")
            }
            Err(error) => {
                format!("interface {name} had the address {before} when this service process started: {error}")
            }
        };
        refuse(Status::NoService, format!("{text}; restart the service process"))
    }

    fn offer(&mut self, id: ConnectionId) -> Result<AttachReply, RefusedRequest> {
        self.check_address()?;
        let drawn: [u64; 4] = random_words().map_err(|errno| kernel("draw random numbers", errno))?;
        let (handle, key) = (GroupHandle(drawn[0] as u32), [drawn[1], drawn[2]]);
        let host = self.host;
        let rank = self.attached(id)?;
        let seat = rank.seat.clone();
        let here = || Seat { node: Arc::clone(&host.node), place: rank.place(&host.topology) };
        let seat = seat.unwrap_or_else(here);
        let &HostProperties { id: sp, place, digest, sends_from, link_rate, .. } = host;
        let (address, engine) = (Arc::clone(&host.address), Arc::clone(&host.engine));
        let id = OfferId(drawn[3]);
        let offer = Offer { sp, host: place, handle, key, digest, address, engine, sends_from, link_rate, seat, id };
        let forgotten = if rank.offers.len() >= MOST_OFFERS { rank.offers.pop_front() } else { None };
        rank.offers.push_back(id);
        self.driver.offer(id);
        forgotten.into_iter().for_each(|offer| self.driver.withdraw(offer, Some(GroupRefusal::Forgotten)));
        Ok(AttachReply::Offer(Box::new(offer.encode())))
    }

    fn destroy_group(&mut self, id: ConnectionId, group: u64) -> Result<AttachReply, RefusedRequest> {
        match self.membership(id, group)?.stage {
            MembershipStage::Making { .. } => refuse(Status::Busy, "the group is being made"),
            MembershipStage::Made { in_flight: 1.., .. } => refuse(Status::Busy, "requests of the group are in flight"),
            MembershipStage::Made { in_flight: 0, .. } => {
                self.ranks.leave(id, group, self.driver);
                Ok(AttachReply::Done)
            }
        }
    }

    fn set_deadline(&mut self, id: ConnectionId, group: u64, milliseconds: u64) -> Result<AttachReply, RefusedRequest> {
        self.membership(id, group)?.deadline = (milliseconds > 0).then(|| Duration::from_millis(milliseconds));
        Ok(AttachReply::Done)
    }

    fn register_memory(
        &mut self,
        id: ConnectionId,
        descriptors: Vec<OwnedFd>,
        address: u64,
        bytes: u64,
    ) -> Result<AttachReply, RefusedRequest> {
        let rank = self.attached(id)?;
        tracing::debug!(pid = rank.pid, address, bytes, "a rank shares memory");
        register_memory(&rank.memory, descriptors, address, bytes)
    }

    fn unregister_memory(&mut self, id: ConnectionId, address: u64) -> Result<AttachReply, RefusedRequest> {
        self.attached(id)?.memory.ranges().unregister(address).map_err(RefusedRequest::argument)?;
        Ok(AttachReply::Done)
    }

    fn error_text(&mut self, id: ConnectionId, slot: u32) -> Result<AttachReply, RefusedRequest> {
        match self.attached(id)?.failures.get(&slot) {
            Some((status, text)) => Ok(AttachReply::ErrorText { status: *status, text: text.clone() }),
            None => refuse(Status::Argument, format!("no failed request owns completion word {slot}")),
        }
    }

    fn detach(&mut self, id: ConnectionId) -> Result<AttachReply, RefusedRequest> {
        if self.attached(id)?.busy.is_empty() {
            Ok(AttachReply::Done)
        } else {
            refuse(Status::Busy, "requests are in flight; wait for them")
        }
    }

    pub(crate) fn attached(&mut self, id: ConnectionId) -> Result<&mut AttachedRank, RefusedRequest> {
        let refused = || RefusedRequest { status: Status::Protocol, text: "attach first".to_owned() };
        self.ranks.rank(id).ok_or_else(refused)
    }

    fn membership(&mut self, id: ConnectionId, group: u64) -> Result<&mut Membership, RefusedRequest> {
        self.attached(id)?.groups.get_mut(&group).ok_or_else(|| no_group(group))
    }
}

pub(crate) fn no_group(group: u64) -> RefusedRequest {
    RefusedRequest::argument(format!("group {group} is not one of this rank's"))
}

/// The descriptor that the codec requires with this request.
fn descriptor(descriptors: Vec<OwnedFd>) -> Result<OwnedFd, RefusedRequest> {
    descriptors.into_iter().next().ok_or_else(|| RefusedRequest::argument("the request has no descriptor"))
}

/// The `bytes` bytes of the sealed memory that a request passes.
///
/// # Errors
/// Fails with the reply to the rank if the memory is not sealed or its length is not `bytes`.
pub fn read_sealed(descriptors: Vec<OwnedFd>, bytes: usize) -> Result<Vec<u8>, RefusedRequest> {
    unseal(descriptor(descriptors)?, bytes).map_err(RefusedRequest::argument)
}

/// Reads an encoded recording with [`read_sealed`], after a check of its size.
///
/// # Errors
/// The reply to the rank.
pub fn read_sealed_recording(descriptors: Vec<OwnedFd>, bytes: u64) -> Result<Vec<u8>, RefusedRequest> {
    if bytes > MAX_RECORDING_BYTES {
        let text =
            format!("a recording of {bytes} bytes exceeds the limit of {MAX_RECORDING_BYTES}; record less at once");
        return refuse(Status::Resource, text);
    }
    read_sealed(descriptors, bytes as usize)
}

/// Registers a range of a rank's memory, which a request passes.
///
/// # Errors
/// The reply to a rank whose range cannot be registered.
pub fn register_memory(
    memory: &TieredMemory,
    descriptors: Vec<OwnedFd>,
    address: u64,
    bytes: u64,
) -> Result<AttachReply, RefusedRequest> {
    match memory.ranges().register(address, bytes, descriptor(descriptors)?) {
        Ok(()) => Ok(AttachReply::Done),
        Err(error @ RangeError::TooMany(_)) => refuse(Status::Resource, error),
        Err(error) => refuse(Status::Argument, error),
    }
}

#[derive(Debug)]
pub struct PinnedProcess {
    /// Process number in this namespace; `None` if the process namespace of the process is not visible here.
    pub visible_pid: Option<Pid>,
    /// Process number for log messages: `visible_pid`, or else the number that the process claims.
    pub pid: u32,
    /// Reports the end of the process; `None` if the kernel cannot provide a pidfd ([`AttachChannel::peer_pidfd`]).
    pub pidfd: Option<OwnedFd>,
    pub memory: TieredMemory,
    /// Seat of the rank, if it runs on another machine.
    pub seat: Option<Seat>,
}

/// Identifies the greeting process by the kernel's credentials, pins it and probes its memory.
///
/// # Errors
/// The reply to a process that may not attach.
pub fn pin_process(
    channel: &AttachChannel,
    hello: &Hello,
    descriptors: Vec<OwnedFd>,
) -> Result<PinnedProcess, RefusedRequest> {
    if hello.layout_version != LAYOUT_VERSION {
        let text = format!(
            "the library shares memory in layout {}, the daemon in layout {LAYOUT_VERSION}; install both from one release",
            hello.layout_version
        );
        return refuse(Status::Version, text);
    }
    let visible_pid = channel.peer().map_err(|errno| kernel("ask for the peer of the socket", errno))?.pid;
    let pidfd = match channel.peer_pidfd() {
        // The kernel returns one of these errors if the process has been reaped.
        Err(Errno::SRCH | Errno::INVAL | Errno::NODATA) => return refuse(Status::NoService, "the process has ended"),
        pinned => pinned.map_err(|errno| kernel("pin the process", errno))?,
    };
    let pid = visible_pid.map_or(hello.pid, |pid| pid.as_raw_nonzero().get().unsigned_abs());
    if visible_pid.is_none() {
        tracing::info!(pid, "a rank of another process namespace");
    }
    let descriptor = descriptors.into_iter().next().map(|given| MemoryDescriptor::attach(given, pid.cast_signed()));
    let descriptor = descriptor.transpose().map_err(RefusedRequest::argument)?;
    let cross = visible_pid.map(CrossMemory::of);
    let proof = Proof { address: hello.probe_address, nonce: hello.nonce };
    let memory = TieredMemory::proven(cross, descriptor, proof);
    Ok(PinnedProcess { visible_pid, pid, pidfd, memory, seat: None })
}

fn kernel(what: &'static str, errno: Errno) -> RefusedRequest {
    let remedy = if matches!(errno, Errno::MFILE | Errno::NFILE) { MORE_DESCRIPTORS } else { "" };
    RefusedRequest { status: Status::Resource, text: format!("the service process cannot {what}: {errno}{remedy}") }
}

pub fn random_words<const N: usize>() -> Result<[u64; N], Errno> {
    let mut words = [0; N];
    for word in &mut words {
        let mut bytes = [0; 8];
        // After it is seeded the kernel's generator returns eight bytes at once, and the call waits for the seed.
        rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
        *word = u64::from_ne_bytes(bytes);
    }
    Ok(words)
}
