//! The ranks of this host: attached ranks, their groups, and their calls from the submission to the end.
//!
//! A connection goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | `Hello` accepted | attached |
//! | greeting | anything else, hang-up | gone |
//! | attached | `Detach`, hang-up, malformed message, end of the process or of its memory | gone |
//!
//! A membership is *making* until the machine reports the group ready, then *made*. A membership ends by
//! `DestroyGroup`, by a failure to make the group, or with the connection.
//!
//! Invariants: every value from a rank is checked against the rank's own state before the machine receives the value
//! ([`submission`]). Connection numbers are never reused. When a connection ends, the memory of its rank is forgotten
//! before the rank's groups are left.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_call::{CallKind, MOST_BYTES, Rank};
use outboard_fabric::limited;
use outboard_proto::{CallId, CollectiveError, Config, GroupError, GroupHandle, OfferId};
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, ChannelError, GroupReady, ReceivedMessage};
use outboard_shm::control::{Completer, ServiceSide};
use outboard_shm::memory::{Alarm, Tier, TieredMemory};
use outboard_shm::status::Status;
use rustix::io::Errno;
use rustix::process::Pid;

use crate::ConnectionId;
use crate::driver::EndpointDriver;
use crate::memory::MemoryPieces;
use crate::memory::rank_copies::CopyAgent;
use crate::poller::{Poller, Trigger, WakeToken};
use crate::ranks::admission::admit;
use crate::ranks::attach::PinnedProcess;
use crate::ranks::large_requests::RequestQueue;
use crate::rejection::reject_process;
use crate::telemetry::statistics::{EndedRankCall, TierBytes, TierCounts};
use crate::topology::{CpuBinding, CpuTopology, Seat};

pub(crate) mod admission;
pub(crate) mod attach;
mod counts;
pub(crate) mod docked;
pub(crate) mod failure;
pub(crate) mod large_requests;
pub mod offers;
mod rings;
pub(crate) mod submission;

/// Interval of checks whether a rank's process runs another program. Until the next check such a rank may delay other
/// ranks. A check takes a system call for each rank.
pub const MEMORY_CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Recordings of a rank on a group, by number.
pub(crate) type Recordings = BTreeMap<u32, Arc<MemoryPieces>>;

/// State of a membership.
#[derive(Debug)]
pub(crate) enum MembershipStage {
    /// The group is requested, and the request with this token waits for its reply.
    Making { token: u64 },
    Made {
        /// Recordings of the rank (GP-5).
        recordings: Recordings,
        in_flight: u32,
    },
}

/// A rank's membership in a group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) handle: GroupHandle,
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    /// Time limit of this rank's calls (SP-9).
    pub(crate) deadline: Option<Duration>,
    pub(crate) stage: MembershipStage,
}

impl Membership {
    /// Leaves the group in the machine, which also releases the rank's recordings. So the recordings are dropped here
    /// too, even if the rank has not destroyed the group.
    fn end(&mut self, driver: &mut EndpointDriver) {
        driver.leave(self.handle, self.rank);
        if let MembershipStage::Made { recordings, .. } = &mut self.stage {
            recordings.clear();
        }
    }
}

#[derive(Debug)]
pub(crate) struct AttachedRank {
    pub(crate) channel: AttachChannel,
    pub(crate) pid: u32,
    /// Process number, if the rank's process namespace is visible here.
    pub(crate) visible_pid: Option<Pid>,
    /// `None` if the kernel cannot provide a pidfd; then the socket and the rank's memory report the end of the
    /// process.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Seat of the rank, if it runs on another machine.
    pub(crate) seat: Option<Seat>,
    pub(crate) side: ServiceSide,
    pub(crate) completions: Completer,
    /// Present if the rank can do copies itself (SP-6).
    pub(crate) copy_agent: Option<Arc<CopyAgent>>,
    pub(crate) memory: Arc<TieredMemory>,
    /// The tier of `memory` that was last reported to the rank.
    pub(crate) tier: Tier,
    /// Groups by the rank's identifiers.
    pub(crate) groups: BTreeMap<u64, Membership>,
    pub(crate) next_group: u64,
    /// Unused offers, oldest first.
    pub(crate) offers: VecDeque<OfferId>,
    /// Status and text of failed requests, by completion word.
    pub(crate) failures: HashMap<u32, (Status, String)>,
    /// Completion words of requests in flight.
    pub(crate) busy: HashMap<u32, CallId>,
    /// A large request that waits for a later turn.
    pub(crate) deferred_request: Option<ReceivedMessage<AttachRequest>>,
}

#[derive(Debug)]
pub(crate) enum RankConnection {
    /// A connection without a greeting.
    Greeting(AttachChannel),
    AttachedRank(Box<AttachedRank>),
}

impl RankConnection {
    pub(crate) fn channel(&self) -> &AttachChannel {
        match self {
            RankConnection::Greeting(channel) => channel,
            RankConnection::AttachedRank(rank) => &rank.channel,
        }
    }

    /// Whether a request of this connection waits for a later turn.
    pub(crate) fn has_deferred_request(&self) -> bool {
        matches!(self, RankConnection::AttachedRank(rank) if rank.deferred_request.is_some())
    }
}

#[derive(Debug)]
struct CallInFlight {
    connection: ConnectionId,
    group: u64,
    slot: u32,
    instance: u64,
    since: Instant,
    place: (GroupHandle, Rank),
    kind: CallKind,
    bytes: u64,
}

/// All connections of the attach socket, and all calls in flight of their ranks.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    pub(crate) connections: BTreeMap<ConnectionId, RankConnection>,
    next_connection: ConnectionId,
    members: HashMap<(GroupHandle, Rank), (ConnectionId, u64)>,
    /// For each group: the number of its ranks that are served here, and the seats of all its ranks on all hosts
    /// (SP-1).
    seats: HashMap<GroupHandle, (u32, Vec<Seat>)>,
    calls: HashMap<CallId, CallInFlight>,
    next_call: u64,
    /// Number of ranks that are gone, by their last tier.
    departed: TierCounts,
    /// Bytes that were moved to and from the memory of ranks that are gone.
    moved: TierBytes,
    /// Time of the next check of the attached ranks' memory.
    next_memory_check: Option<Instant>,
    /// Raised by an access that finds changed memory of a rank.
    alarm: Arc<Alarm>,
    /// Requests that wait for a later turn.
    pub(crate) request_queue: RequestQueue,
    pub(crate) attached_once: bool,
    /// Submissions taken from rings, refused ones included (GP-5).
    pub(crate) submissions: u64,
    /// Submissions and messages that were refused.
    pub(crate) refused: u64,
    /// Number of times that the kernel has withdrawn a tier of access to a rank's memory.
    pub(crate) withdrawn: u64,
    /// Number of calls in flight whose buffers their ranks have copied.
    pub(crate) restaged: u64,
}

impl Ranks {
    /// Accepts a new connection if its process belongs to the user of this process.
    pub(crate) fn accept_connection(&mut self, channel: AttachChannel, poller: &Poller) -> Result<(), Errno> {
        let user = channel.peer()?.uid;
        if let Err(text) = admit(rustix::process::geteuid().as_raw(), user) {
            limited!(warn, text, "a process is turned away");
            self.refused += 1;
            reject_process(channel, text);
            return Ok(());
        }
        let id = self.next_connection + 1;
        poller.watch(&channel, WakeToken::Channel(id), Trigger::Level)?;
        self.next_connection = id;
        self.connections.insert(id, RankConnection::Greeting(channel));
        Ok(())
    }

    pub(crate) fn attached(&self) -> impl Iterator<Item = &AttachedRank> {
        self.connections.values().filter_map(|connection| match connection {
            RankConnection::Greeting(_) => None,
            RankConnection::AttachedRank(rank) => Some(&**rank),
        })
    }

    /// The rank of this connection, if it is attached.
    pub(crate) fn rank(&mut self, id: ConnectionId) -> Option<&mut AttachedRank> {
        match self.connections.get_mut(&id)? {
            RankConnection::Greeting(_) => None,
            RankConnection::AttachedRank(rank) => Some(rank),
        }
    }

    /// A made membership of the rank: the group's handle, the rank's number in the group, and its recordings.
    pub(crate) fn made_membership(
        &mut self,
        id: ConnectionId,
        group: u64,
    ) -> Option<(GroupHandle, Rank, &mut Recordings)> {
        match self.rank(id)?.groups.get_mut(&group)? {
            Membership { handle, rank, stage: MembershipStage::Made { recordings, .. }, .. } => {
                Some((*handle, *rank, recordings))
            }
            Membership { stage: MembershipStage::Making { .. }, .. } => None,
        }
    }

    /// The alarm that an access raises when it finds changed memory of a rank.
    pub(crate) fn alarm(&self) -> Arc<Alarm> {
        Arc::clone(&self.alarm)
    }

    /// Number of memberships of all ranks together.
    pub(crate) fn memberships(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    /// Whether this rank of the group is served here already.
    pub(crate) fn is_member(&self, handle: GroupHandle, rank: Rank) -> bool {
        self.members.contains_key(&(handle, rank))
    }

    /// Adds a membership that is about to be requested from the machine.
    pub(crate) fn join(&mut self, id: ConnectionId, membership: Membership, seats: Vec<Seat>) {
        let key = (membership.handle, membership.rank);
        let Some(rank) = self.rank(id) else { return };
        rank.next_group += 1;
        let group = rank.next_group;
        rank.groups.insert(group, membership);
        self.members.insert(key, (id, group));
        self.seats.entry(key.0).or_insert((0, seats)).0 += 1;
    }

    fn forget_member(&mut self, handle: GroupHandle, rank: Rank) {
        if self.members.remove(&(handle, rank)).is_none() {
            return;
        }
        if let Some((count, _)) = self.seats.get_mut(&handle) {
            *count -= 1;
            if *count == 0 {
                self.seats.remove(&handle);
            }
        }
    }

    pub(crate) fn seat(&self, handle: GroupHandle, rank: Rank) -> Option<&Seat> {
        self.seats.get(&handle)?.1.get(rank.0 as usize)
    }

    /// Ends a membership for whatever reason, and reports the end to the machine.
    pub(crate) fn leave(&mut self, id: ConnectionId, group: u64, driver: &mut EndpointDriver) {
        let Some(mut membership) = self.rank(id).and_then(|rank| rank.groups.remove(&group)) else { return };
        self.forget_member(membership.handle, membership.rank);
        membership.end(driver);
    }

    /// Withdraws the offers of a rank that is gone or was refused, so that no group waits for the rank.
    pub(crate) fn withdraw(
        &mut self,
        id: ConnectionId,
        refused: Option<outboard_proto::GroupRefusal>,
        driver: &mut EndpointDriver,
    ) {
        let offers = self.rank(id).map(|rank| std::mem::take(&mut rank.offers));
        offers.into_iter().flatten().for_each(|offer| driver.withdraw(offer, refused));
    }

    /// Removes a connection: the memory of its rank is forgotten, then the rank's groups are left.
    pub(crate) fn remove(&mut self, id: ConnectionId, poller: &Poller, driver: &mut EndpointDriver) {
        for (&call, in_flight) in self.calls.iter().filter(|(_, in_flight)| in_flight.connection == id) {
            driver.forget_memory(call, in_flight.place.1);
        }
        self.withdraw(id, None, driver);
        driver.forget_copy_agent(id);
        let Some(connection) = self.connections.get(&id) else { return };
        poller.unwatch(connection.channel());
        let mut groups = Vec::new();
        if let RankConnection::AttachedRank(rank) = connection {
            if let Some(pidfd) = &rank.pidfd {
                poller.unwatch(pidfd);
            }
            poller.unwatch(rank.side.doorbell());
            groups.extend(rank.groups.keys().copied());
            self.departed.add(rank.memory.tier());
            self.moved.add(rank.memory.moved());
            tracing::info!(pid = rank.pid, groups = groups.len(), "a rank is gone");
        }
        for group in groups {
            self.leave(id, group, driver);
        }
        self.connections.remove(&id);
    }

    /// Sends a reply. If the send fails, the caller removes the rank.
    pub(crate) fn reply(&mut self, id: ConnectionId, token: u64, reply: &AttachReply) -> Result<(), ChannelError> {
        match self.connections.get(&id) {
            None => Ok(()),
            Some(connection) => connection.channel().send(token, reply, &[]),
        }
    }

    /// Periodically checks whether the memory of ranks still exists, since others may wait for a rank whose memory is
    /// not accessed. If an access or check has raised the alarm, ranks whose memory is gone are removed. Neither
    /// process nor socket reports such ranks if a child holds the socket and the process runs another program. Ranks
    /// whose tier the kernel has withdrawn are notified. They may have to copy before anything else happens, so this
    /// check is the last step of a turn. Returns whether any ranks are gone.
    pub(crate) fn check_memory(&mut self, now: Instant, poller: &Poller, driver: &mut EndpointDriver) -> bool {
        if self.next_memory_check.is_none_or(|at| at <= now) {
            self.attached().for_each(|rank| rank.memory.check_address_space());
            self.next_memory_check = Some(now + MEMORY_CHECK_INTERVAL);
        }
        self.request_staging(driver);
        if !self.alarm.take() {
            return false;
        }
        let is_gone = |(id, connection): (&ConnectionId, &RankConnection)| match connection {
            RankConnection::AttachedRank(rank) => rank.memory.is_gone().then_some(*id),
            RankConnection::Greeting(_) => None,
        };
        let gone: Vec<_> = self.connections.iter().filter_map(is_gone).collect();
        gone.iter().for_each(|id| self.remove(*id, poller, driver));
        for connection in self.connections.values_mut() {
            if let RankConnection::AttachedRank(rank) = connection {
                self.withdrawn += u64::from(rank.notify_withdrawn_tier());
            }
        }
        !gone.is_empty()
    }

    /// Requests from ranks that they copy the buffers of calls, because nobody else reaches them.
    fn request_staging(&mut self, driver: &mut EndpointDriver) {
        for call in driver.take_to_be_staged() {
            let Some(&CallInFlight { connection, slot, .. }) = self.calls.get(&call) else { continue };
            if let Some(rank) = self.rank(connection) {
                rank.side.request_staging(slot);
            }
        }
    }

    /// Time of the next check of the ranks' memory.
    pub(crate) fn due(&self) -> Option<Instant> {
        self.next_memory_check.filter(|_| self.attached().next().is_some())
    }

    /// Raises the sleeping flags of all submission rings; returns false if a ring has an entry.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let asleep = self.attached().take_while(|rank| rank.side.prepare_sleep()).count();
        asleep == self.attached().count()
    }

    /// Lowers all sleeping flags.
    pub(crate) fn stay_awake(&self) {
        for rank in self.attached() {
            rank.side.stay_awake();
        }
    }

    /// The rank's call in flight with this completion word, if the call is this instance of the group.
    pub(crate) fn find_call(&mut self, id: ConnectionId, slot: u32, group: u64, instance: u64) -> Option<CallId> {
        let call = *self.rank(id)?.busy.get(&slot)?;
        let in_flight = self.calls.get(&call)?;
        (in_flight.group == group && in_flight.instance == instance).then_some(call)
    }

    /// Fails all calls in flight because the service process ends; returns their number. The memory of their ranks is
    /// no longer accessed. Otherwise the machine ends a call, after the call's batches have left and its orders are
    /// done. Here no time is left for that.
    pub(crate) fn fail_calls_in_flight(&mut self, driver: &mut EndpointDriver) -> usize {
        let calls: Vec<_> = self.calls.iter().map(|(call, in_flight)| (*call, in_flight.place.1)).collect();
        for &(call, rank) in &calls {
            driver.forget_memory(call, rank);
            let text = "the service process was told to end before the call had ended; attach again when it is back";
            self.end(call, Err((Status::ServiceLost, text.to_owned())));
        }
        calls.len()
    }

    /// Handles the machine's report that a call has ended.
    pub(crate) fn completed(
        &mut self,
        call: CallId,
        result: Result<(), CollectiveError>,
        driver: &mut EndpointDriver,
    ) -> Option<EndedRankCall> {
        let fault = driver.first_fault(call);
        driver.forget_call(call);
        let text = |error: &CollectiveError| match (error, fault) {
            (CollectiveError::Memory(_), Some(fault)) => format!("{error}: {fault}"),
            _ => error.to_string(),
        };
        self.end(call, result.map_err(|error| (failure::collective(&error), text(&error))))
    }

    /// Reports the end of a call to its rank, and removes the call.
    fn end(&mut self, call: CallId, result: Result<(), (Status, String)>) -> Option<EndedRankCall> {
        let CallInFlight { connection, group, slot, since, place, kind, bytes, .. } = self.calls.remove(&call)?;
        let ended = Some(EndedRankCall { place, kind, bytes, took: since.elapsed() });
        let Some(rank) = self.rank(connection) else { return ended };
        rank.busy.remove(&slot);
        if let Some(Membership { stage: MembershipStage::Made { in_flight, .. }, .. }) = rank.groups.get_mut(&group) {
            *in_flight -= 1;
        }
        let status = result.as_ref().map_or_else(|(status, _)| *status, |()| Status::Ok);
        if let Err(failure) = result {
            tracing::info!(pid = rank.pid, error = failure.1, "a collective failed");
            rank.failures.insert(slot, failure);
        }
        rank.completions.complete(slot, status);
        ended
    }

    /// Handles the machine's report that a group is made or has failed. Returns the connection if the reply cannot be
    /// sent.
    pub(crate) fn group_ready(
        &mut self,
        handle: GroupHandle,
        me: Rank,
        result: Result<(), GroupError>,
        config: &Config,
    ) -> Option<ConnectionId> {
        let &(id, group) = self.members.get(&(handle, me))?;
        let here = self.seats.get(&handle).map_or(1, |(here, _)| *here);
        let rank = self.rank(id)?;
        let membership = rank.groups.get_mut(&group)?;
        let made = MembershipStage::Made { recordings: BTreeMap::new(), in_flight: 0 };
        let MembershipStage::Making { token } = std::mem::replace(&mut membership.stage, made) else { return None };
        let ranks = membership.ranks;
        let reply = match result {
            Ok(()) => {
                tracing::info!(pid = rank.pid, group = %handle, rank = me.0, ranks, "a group is made");
                AttachReply::GroupReady(GroupReady {
                    group,
                    handle: handle.0,
                    offloads_from: config.offload_from,
                    offloads_up_to: MOST_BYTES / u64::from(ranks),
                    reduction_most: config.reduction_most(ranks, here),
                })
            }
            Err(error) => {
                limited!(warn, pid = rank.pid, group = %handle, rank = me.0, %error, "a group cannot be made");
                rank.groups.remove(&group);
                self.forget_member(handle, me);
                AttachReply::Error { status: failure::group(&error), text: error.to_string() }
            }
        };
        self.reply(id, token, &reply).is_err().then_some(id)
    }
}

impl AttachedRank {
    /// A rank without groups and calls.
    fn new(
        channel: AttachChannel,
        process: PinnedProcess,
        side: ServiceSide,
        copy_agent: Option<Arc<CopyAgent>>,
    ) -> AttachedRank {
        AttachedRank {
            channel,
            pid: process.pid,
            visible_pid: process.visible_pid,
            pidfd: process.pidfd,
            seat: process.seat,
            completions: side.completions(),
            side,
            copy_agent,
            tier: process.memory.tier(),
            memory: Arc::new(process.memory),
            groups: BTreeMap::new(),
            next_group: 0,
            offers: VecDeque::new(),
            failures: HashMap::new(),
            busy: HashMap::new(),
            deferred_request: None,
        }
    }

    /// Socket and core on which the process may run now; unknown if its process namespace is not visible.
    pub(crate) fn place(&self, topology: &CpuTopology) -> CpuBinding {
        if let Some(seat) = &self.seat {
            return seat.place;
        }
        self.visible_pid.map_or_else(CpuBinding::default, |pid| topology.binding_of(Some(pid)))
    }

    /// Notifies the rank if the kernel has withdrawn a tier of the rank's memory since the last call. Returns whether
    /// it has.
    fn notify_withdrawn_tier(&mut self) -> bool {
        let (before, now) = (self.tier, self.memory.tier());
        if before == now {
            return false;
        }
        self.tier = now;
        self.side.announce_tier(now);
        limited!(warn, pid = self.pid, %before, %now, "the kernel has withdrawn access to a rank's memory; nothing is lost");
        true
    }
}
