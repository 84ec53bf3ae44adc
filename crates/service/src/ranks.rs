//! The ranks of this host: who is attached, their groups and calls, and what they submit.
//!
//! A connection goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | greeting | `Hello` accepted | attached |
//! | greeting | anything else, hang-up | gone |
//! | attached | `Detach`, hang-up, malformed message, end of the process | gone |
//!
//! A membership is *making* until the machine reports the group ready, then *made*, and ends by `DestroyGroup`, by a
//! failure to make it, or with the connection.
//!
//! Invariants: everything a rank says is checked against what it owns before the machine hears of it; connection numbers
//! are never used twice; when a connection goes, its memory is forgotten before the machine is told.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use outboard_plan::alltoall::Blocks;
use outboard_plan::{AlltoallError, Extents, Rank, ReductionError, Span};
use outboard_proto::{
    Call, CallId, CallKind, CollectiveError, GroupError, GroupHandle, InstanceId, Signature, TaggedCall, sizes_digest,
};
use outboard_shm::attach::{Channel, ChannelError, GroupReady, Reply};
use outboard_shm::control::{Completions, ServiceSide};
use outboard_shm::entry::{
    AllgatherEntry, AllgathervEntry, AlltoallEntry, BlockSizes, BroadcastEntry, Entry, MessageEnd, MessageEntry,
    RecordedEntry,
};
use outboard_shm::memory::{AccessError, RankMemory, Tier, TieredMemory};
use outboard_shm::status::Status;
use rustix::process::Pid;

use crate::engine::Engine;
use crate::failure;
use crate::memory::{Buffers, Pieces};
use crate::poller::{Poller, Token, Trigger};
use crate::quotas::{Held, Job, QuotaError, Quotas};
use crate::statistics::{Ended, Seated, Tiers};
use crate::topology::{Place, Seat, Topology};
use crate::trace::Trace;

mod reductions;
mod rooted;

/// Submissions taken from one rank per turn, so that one rank does not starve the others.
const SUBMISSIONS: usize = 64;
/// Largest receive buffer that an address space can hold.
const MOST_BYTES: u64 = i64::MAX as u64;

/// Number of a connection.
pub(crate) type ConnectionId = u64;

/// Where a rank stands with a group.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Asked for; the request with this token waits for its reply.
    Making {
        /// Repeated in the reply.
        token: u64,
    },
    /// Usable.
    Made {
        /// Calls taken so far; the next is one more.
        calls: u64,
        /// The same of calls of recordings and messages.
        tagged: u64,
        /// What has been recorded, by number (GP-5).
        recordings: BTreeMap<u32, Arc<Pieces>>,
        /// Calls that have not ended.
        in_flight: u32,
    },
}

/// A rank's place in a group.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) handle: GroupHandle,
    pub(crate) rank: Rank,
    pub(crate) ranks: u32,
    /// Of this rank's calls (SP-9).
    pub(crate) deadline: Option<Duration>,
    pub(crate) stage: Stage,
}

/// An attached rank.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) channel: Channel,
    /// To whose quotas it counts.
    pub(crate) job: Job,
    pub(crate) pid: u32,
    /// None where the rank is in a process namespace that we do not see: then the socket alone tells of its end.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Where it runs, if on another machine.
    pub(crate) seat: Option<Seat>,
    pub(crate) side: ServiceSide,
    pub(crate) completions: Completions,
    pub(crate) memory: Arc<TieredMemory>,
    /// The tier of `memory` that was reported last.
    pub(crate) tier: Tier,
    /// By the identifier that the rank knows.
    pub(crate) groups: BTreeMap<u64, Membership>,
    pub(crate) next_group: u64,
    /// Handle and key of offers that have not been used, oldest first.
    pub(crate) offers: VecDeque<(GroupHandle, [u64; 2])>,
    /// Result and sentence of failed requests, by completion word.
    pub(crate) failures: HashMap<u32, (Status, String)>,
    /// Completion words that requests in flight own.
    pub(crate) busy: HashMap<u32, CallId>,
}

/// One connection of the attach socket.
#[derive(Debug)]
pub(crate) enum Connection {
    /// Has not said who it is.
    Greeting(Channel),
    /// A rank.
    Attached(Box<Attached>),
}

impl Connection {
    pub(crate) fn channel(&self) -> &Channel {
        match self {
            Connection::Greeting(channel) => channel,
            Connection::Attached(rank) => &rank.channel,
        }
    }
}

/// A call in flight.
#[derive(Debug)]
struct InFlight {
    connection: ConnectionId,
    group: u64,
    slot: u32,
    instance: u64,
    rank: Rank,
    since: Instant,
    place: (GroupHandle, Rank),
    kind: CallKind,
    bytes: u64,
    job: Job,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Ranks {
    pub(crate) connections: BTreeMap<ConnectionId, Connection>,
    next_connection: ConnectionId,
    members: HashMap<(GroupHandle, Rank), (ConnectionId, u64)>,
    /// Where the ranks of each group run, those of other hosts too, with how many of them are served here (SP-1).
    seats: HashMap<GroupHandle, (u32, Vec<Seat>)>,
    calls: HashMap<CallId, InFlight>,
    next_call: u64,
    /// Ranks that are gone, by the tier they had at last.
    departed: Tiers,
    /// Calls in flight of each job that has some.
    requests: HashMap<Job, u64>,
    /// Whether a rank ever attached.
    pub(crate) attached_once: bool,
    /// Submissions taken from rings, refused ones included (GP-5).
    pub(crate) submissions: u64,
    /// Submissions and messages refused.
    pub(crate) refused: u64,
    /// Times that the kernel has withdrawn a way to a rank's memory.
    pub(crate) withdrawn: u64,
    /// Calls in flight whose buffers their ranks copied for it.
    pub(crate) restaged: u64,
}

/// A submission that a rank may not make.
#[derive(Debug, thiserror::Error)]
enum Refusal {
    #[error("group {0} is not one of this rank's; use a group between its creation and its destruction")]
    Group(u64),
    #[error("call {found} of the group came where {expected} was due; a group's calls are posted in order")]
    Instance { found: u64, expected: u64 },
    #[error("{bytes} bytes at {send:#x} and {receive:#x} exceed the address space")]
    Range { bytes: u64, send: u64, receive: u64 },
    #[error("the table of blocks at {address:#x} cannot be read: {error}")]
    Table { address: u64, error: AccessError },
    #[error(transparent)]
    Blocks(#[from] AlltoallError),
    #[error(transparent)]
    Quota(#[from] QuotaError),
    #[error(transparent)]
    Reduction(#[from] ReductionError),
    #[error("{bytes} bytes are not whole elements of {element} bytes")]
    Element { bytes: u64, element: u64 },
    #[error("rank {root} cannot be the root among {ranks} ranks; they count from 0")]
    Root { root: u32, ranks: u32 },
    #[error("a gather, scatter or reduce is in place at a rank that is not its root; only the root's own block can be")]
    InPlace,
    #[error(
        "the root of a gatherv or scatterv names one block, or another rank a table; the root gives the blocks of all"
    )]
    Lists,
    #[error("rank {peer} cannot be the other end of a message among {ranks} ranks; they count from 0")]
    Peer { peer: u32, ranks: u32 },
    #[error("recording {0} of the group is not one of this rank's; call a recording between its end and its freeing")]
    Recording(u32),
}

impl Refusal {
    fn status(&self) -> Status {
        match self {
            Refusal::Quota(_) => Status::Resource,
            _ => Status::Argument,
        }
    }
}

impl Ranks {
    /// Takes a new connection in.
    pub(crate) fn greet(&mut self, channel: Channel, poller: &Poller) {
        self.next_connection += 1;
        let id = self.next_connection;
        match poller.watch(&channel, Token::Channel(id), Trigger::Level) {
            Ok(()) => {
                self.connections.insert(id, Connection::Greeting(channel));
            }
            Err(errno) => tracing::warn!(%errno, "cannot watch a new connection"),
        }
    }

    /// Attached ranks.
    pub(crate) fn attached(&self) -> impl Iterator<Item = &Attached> {
        self.connections.values().filter_map(|connection| match connection {
            Connection::Greeting(_) => None,
            Connection::Attached(rank) => Some(&**rank),
        })
    }

    /// The rank of this connection, if it is attached.
    pub(crate) fn rank(&mut self, id: ConnectionId) -> Option<&mut Attached> {
        match self.connections.get_mut(&id)? {
            Connection::Greeting(_) => None,
            Connection::Attached(rank) => Some(rank),
        }
    }

    pub(crate) fn calls_in_flight(&self) -> usize {
        self.calls.len()
    }

    pub(crate) fn memberships(&self) -> usize {
        self.members.len()
    }

    /// What the ranks of a job hold.
    pub(crate) fn held_by(&self, job: Job) -> Held {
        let ranks = self.attached().filter(|rank| rank.job == job);
        ranks.fold(Held::default(), |held, rank| {
            let ranges = rank.memory.ranges();
            Held {
                groups: held.groups + rank.groups.len() as u64,
                ranges: held.ranges + ranges.counts().0 as u64,
                bytes: held.bytes.saturating_add(ranges.bytes()),
            }
        })
    }

    /// Memory ranges that ranks have registered, and how many of them are mapped (GP-4).
    pub(crate) fn ranges(&self) -> (usize, usize) {
        let counts = self.attached().map(|rank| rank.memory.ranges().counts());
        counts.fold((0, 0), |sum, counts| (sum.0 + counts.0, sum.1 + counts.1))
    }

    pub(crate) fn tiers(&self) -> Tiers {
        let mut tiers = Tiers::default();
        self.attached().for_each(|rank| tiers.add(rank.memory.tier()));
        tiers
    }

    /// The same of all ranks since the start, those that are gone with the tier they had at last.
    pub(crate) fn tiers_ever(&self) -> Tiers {
        let mut tiers = self.departed;
        self.attached().for_each(|rank| tiers.add(rank.memory.tier()));
        tiers
    }

    /// Whether this rank of the group is served here already.
    pub(crate) fn is_member(&self, handle: GroupHandle, rank: Rank) -> bool {
        self.members.contains_key(&(handle, rank))
    }

    /// Notes a membership that the machine is about to be asked for.
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

    /// Where a rank of a group runs.
    pub(crate) fn seat(&self, handle: GroupHandle, rank: Rank) -> Option<&Seat> {
        self.seats.get(&handle)?.1.get(rank.0 as usize)
    }

    /// Where the ranks that are attached run now, by their ranks in the first group that each is in.
    pub(crate) fn seated(&self, topology: &Topology) -> Vec<Seated> {
        let seated = |rank: &Attached| {
            let first = rank.groups.values().next();
            let place = rank.place(topology);
            Seated { pid: rank.pid, group: first.map(|m| m.handle.0), rank: first.map(|m| m.rank.0), place }
        };
        self.attached().map(seated).collect()
    }

    /// Ends a membership in good order or not; the machine is told.
    pub(crate) fn leave(&mut self, id: ConnectionId, group: u64, engine: &mut Engine) {
        let Some(membership) = self.rank(id).and_then(|rank| rank.groups.remove(&group)) else { return };
        self.forget_member(membership.handle, membership.rank);
        engine.leave(membership.handle, membership.rank);
    }

    /// The connection is over: its memory is forgotten, then its groups are left.
    pub(crate) fn remove(&mut self, id: ConnectionId, poller: &Poller, engine: &mut Engine) {
        for (&call, in_flight) in self.calls.iter().filter(|(_, in_flight)| in_flight.connection == id) {
            engine.forget_memory(call, in_flight.rank);
        }
        let Some(connection) = self.connections.get(&id) else { return };
        poller.unwatch(connection.channel());
        let mut groups = Vec::new();
        if let Connection::Attached(rank) = connection {
            if let Some(pidfd) = &rank.pidfd {
                poller.unwatch(pidfd);
            }
            poller.unwatch(rank.side.doorbell());
            groups.extend(rank.groups.keys().copied());
            self.departed.add(rank.memory.tier());
            tracing::info!(pid = rank.pid, groups = groups.len(), "a rank is gone");
        }
        for group in groups {
            self.leave(id, group, engine);
        }
        self.connections.remove(&id);
    }

    /// Sends a reply; a rank that does not take it is removed.
    pub(crate) fn reply(&mut self, id: ConnectionId, token: u64, reply: &Reply) -> Result<(), ChannelError> {
        match self.connections.get(&id) {
            None => Ok(()),
            Some(connection) => connection.channel().send(token, reply, &[]),
        }
    }

    /// Takes what ranks have submitted, and looks whether they are reached as before; returns whether there was anything.
    pub(crate) fn take_submissions(
        &mut self,
        engine: &mut Engine,
        quotas: &Quotas,
        mut trace: Option<&mut Trace>,
    ) -> bool {
        let mut taken = Vec::new();
        for (&id, connection) in &mut self.connections {
            let Connection::Attached(rank) = connection else { continue };
            if rank.fell() {
                self.withdrawn += 1;
            }
            for _ in 0..SUBMISSIONS {
                match rank.side.take() {
                    None => break,
                    Some(Ok(entry)) => taken.push((id, entry)),
                    Some(Err(error)) => {
                        tracing::debug!(pid = rank.pid, %error, "a submission is refused");
                        self.refused += 1;
                    }
                }
            }
        }
        self.submissions += taken.len() as u64;
        for (id, entry) in &taken {
            self.submit((*id, entry), engine, quotas, trace.as_deref_mut());
        }
        !taken.is_empty()
    }

    /// Raises the sleeping flags of all submission rings; false when one has an entry.
    pub(crate) fn prepare_sleep(&self) -> bool {
        let asleep = self.attached().take_while(|rank| rank.side.prepare_sleep()).count();
        asleep == self.attached().count()
    }

    /// Takes all sleeping flags down.
    pub(crate) fn stay_awake(&self) {
        for rank in self.attached() {
            rank.side.stay_awake();
        }
    }

    fn submit(
        &mut self,
        (id, entry): (ConnectionId, &Entry),
        engine: &mut Engine,
        quotas: &Quotas,
        trace: Option<&mut Trace>,
    ) {
        self.next_call += 1;
        let call_id = CallId(self.next_call);
        let Some(job) = self.rank(id).map(|rank| rank.job) else { return };
        let in_flight = self.requests.get(&job).copied().unwrap_or(0);
        let Some(rank) = self.rank(id) else { return };
        let slot = entry.slot();
        if rank.busy.contains_key(&slot) {
            tracing::debug!(pid = rank.pid, slot, "a completion word is used twice at once");
            self.refused += 1;
            return;
        }
        match quotas.request(in_flight).map_err(Refusal::from).and_then(|()| rank.admit(entry)) {
            Ok(Admitted { group, rank: me, what: Asked { signature, in_place, blocks, .. }, deadline, buffers }) => {
                rank.failures.remove(&slot);
                rank.busy.insert(slot, call_id);
                // Messages are none of the group's instances.
                let tagged = matches!(signature.kind, CallKind::Tagged(_));
                let instance = InstanceId(if tagged { 0 } else { entry.instance() });
                let (since, bytes, kind) = (Instant::now(), buffers.received_bytes(), signature.kind);
                let (place, group_id, number) = ((group, me), entry.group(), entry.instance());
                let (connection, rank) = (id, me);
                let in_flight = InFlight {
                    connection,
                    group: group_id,
                    slot,
                    instance: number,
                    rank,
                    since,
                    place,
                    kind,
                    bytes,
                    job,
                };
                self.calls.insert(call_id, in_flight);
                *self.requests.entry(job).or_insert(0) += 1;
                if let Some(trace) = trace {
                    trace.called(call_id, (group, instance, me), signature);
                }
                let call = Call { id: call_id, group, rank: me, instance, signature, in_place, blocks, deadline };
                engine.call(call, buffers);
            }
            Err(refusal) => {
                tracing::debug!(pid = rank.pid, %refusal, "a submission is refused");
                let status = refusal.status();
                rank.failures.insert(slot, (status, refusal.to_string()));
                rank.completions.complete(slot, status);
                // The others wait for a call that will not come: they learn that this rank is out.
                let out = rank.groups.get(&entry.group()).filter(|_| matches!(refusal, Refusal::Quota(_)));
                if let Some((handle, me)) = out.map(|membership| (membership.handle, membership.rank)) {
                    engine.leave(handle, me);
                }
                self.refused += 1;
            }
        }
    }

    /// The call in flight of this rank with this completion word, if it is that one of the group.
    pub(crate) fn call_of(&mut self, id: ConnectionId, slot: u32, group: u64, instance: u64) -> Option<CallId> {
        let call = *self.rank(id)?.busy.get(&slot)?;
        let in_flight = self.calls.get(&call)?;
        (in_flight.group == group && in_flight.instance == instance).then_some(call)
    }

    /// Ends all calls in flight with an error, because the service process ends; how many they were. The memory of their
    /// ranks is theirs again.
    pub(crate) fn give_up(&mut self, engine: &mut Engine) -> usize {
        let calls = std::mem::take(&mut self.calls);
        self.requests.clear();
        for (&call, in_flight) in &calls {
            engine.forget_memory(call, in_flight.rank);
            let Some(rank) = self.rank(in_flight.connection) else { continue };
            rank.busy.remove(&in_flight.slot);
            let text = "the service process was told to end before the call had ended; attach again when it is back";
            rank.failures.insert(in_flight.slot, (Status::ServiceLost, text.to_owned()));
            rank.completions.complete(in_flight.slot, Status::ServiceLost);
        }
        calls.len()
    }

    /// The machine reports a call's end.
    pub(crate) fn completed(
        &mut self,
        call: CallId,
        result: Result<(), CollectiveError>,
        engine: &mut Engine,
    ) -> Option<Ended> {
        engine.forget_call(call);
        let InFlight { connection, group, slot, since, place, kind, bytes, job, .. } = self.calls.remove(&call)?;
        if let Some(requests) = self.requests.get_mut(&job) {
            *requests -= 1;
            if *requests == 0 {
                self.requests.remove(&job);
            }
        }
        let ended = Some(Ended { place, kind, bytes, took: since.elapsed() });
        let Some(rank) = self.rank(connection) else { return ended };
        rank.busy.remove(&slot);
        if let Some(Membership { stage: Stage::Made { in_flight, .. }, .. }) = rank.groups.get_mut(&group) {
            *in_flight -= 1;
        }
        let status = match result {
            Ok(()) => Status::Ok,
            Err(error) => {
                tracing::info!(pid = rank.pid, %error, "a collective failed");
                let status = failure::collective(&error);
                rank.failures.insert(slot, (status, error.to_string()));
                status
            }
        };
        rank.completions.complete(slot, status);
        ended
    }

    /// The machine reports that a group is made or cannot be; returns the connection that did not take the reply.
    pub(crate) fn group_ready(
        &mut self,
        handle: GroupHandle,
        me: Rank,
        result: Result<(), GroupError>,
        least: u64,
    ) -> Option<ConnectionId> {
        let &(id, group) = self.members.get(&(handle, me))?;
        let rank = self.rank(id)?;
        let membership = rank.groups.get_mut(&group)?;
        let made = Stage::Made { calls: 0, tagged: 0, recordings: BTreeMap::new(), in_flight: 0 };
        let Stage::Making { token } = std::mem::replace(&mut membership.stage, made) else { return None };
        let ranks = membership.ranks;
        let reply = match result {
            Ok(()) => {
                tracing::info!(pid = rank.pid, group = %handle, rank = me.0, ranks, "a group is made");
                let most = MOST_BYTES / u64::from(ranks);
                Reply::GroupReady(GroupReady { group, handle: handle.0, allgather_least: least, allgather_most: most })
            }
            Err(error) => {
                tracing::warn!(pid = rank.pid, group = %handle, rank = me.0, %error, "a group cannot be made");
                rank.groups.remove(&group);
                self.forget_member(handle, me);
                Reply::Error { status: failure::group(&error), text: error.to_string() }
            }
        };
        self.reply(id, token, &reply).is_err().then_some(id)
    }
}

/// A submission that has passed the checks.
struct Admitted {
    group: GroupHandle,
    rank: Rank,
    what: Asked,
    deadline: Option<Duration>,
    buffers: Buffers,
}

/// What a submission asks for.
struct Asked {
    signature: Signature,
    in_place: bool,
    blocks: Option<Arc<Blocks>>,
    send: Range,
    receive: Range,
}

/// A piece of a rank's memory: address and length.
type Range = (u64, u64);

impl Attached {
    /// Where its process may run now; unknown where that is in a process namespace that we do not see.
    pub(crate) fn place(&self, topology: &Topology) -> Place {
        if let Some(seat) = &self.seat {
            return seat.place;
        }
        let pid = self.pidfd.as_ref().and_then(|_| Pid::from_raw(self.pid.try_into().ok()?));
        pid.map_or_else(Place::default, |pid| topology.place_of(Some(pid)))
    }

    /// Whether the kernel has withdrawn a way to the rank's memory since the last time; says so.
    fn fell(&mut self) -> bool {
        let (before, now) = (self.tier, self.memory.tier());
        if before == now {
            return false;
        }
        self.tier = now;
        self.side.announce_tier(now);
        tracing::warn!(pid = self.pid, %before, %now, "the kernel has withdrawn access to a rank's memory; nothing is lost");
        true
    }

    /// Checks a submission against what this rank owns and counts it.
    fn admit(&mut self, entry: &Entry) -> Result<Admitted, Refusal> {
        let unknown = || Refusal::Group(entry.group());
        let Membership { handle, rank, ranks, deadline, stage } =
            self.groups.get_mut(&entry.group()).ok_or_else(unknown)?;
        let Stage::Made { calls, tagged, recordings, in_flight } = stage else {
            return Err(unknown());
        };
        let calls = if matches!(entry, Entry::Recorded(_) | Entry::Message(_)) { tagged } else { calls };
        let (found, expected) = (entry.instance(), *calls + 1);
        if found != expected {
            return Err(Refusal::Instance { found, expected });
        }
        let what = match entry {
            Entry::Allgather(entry) => allgather(entry, *rank, *ranks)?,
            Entry::Broadcast(entry) => broadcast(entry, *rank, *ranks)?,
            Entry::Alltoall(entry) => alltoall(entry, *rank, *ranks, &self.memory)?,
            Entry::Allgatherv(entry) => allgatherv(entry, *rank, *ranks, &self.memory)?,
            Entry::Rooted(entry) => rooted::rooted(entry, *rank, *ranks, &self.memory)?,
            Entry::Barrier(_) => reductions::barrier(),
            Entry::Reduction(entry) => reductions::reduction(entry, *rank, *ranks, &self.memory)?,
            Entry::Recorded(entry) => recorded(entry, recordings)?,
            Entry::Message(entry) => message(entry, *ranks)?,
        };
        *calls = expected;
        *in_flight += 1;
        let memory = Arc::clone(&self.memory);
        let buffers = match entry {
            Entry::Recorded(RecordedEntry { copy: 0, recording, .. }) => {
                Buffers::recorded(memory, Arc::clone(&recordings[recording]))
            }
            _ => Buffers::new(memory, what.send, what.receive),
        };
        Ok(Admitted { group: *handle, rank: *rank, what, deadline: *deadline, buffers })
    }
}

/// A recording that this rank has made; all its memory lies where it was recorded, or in one copy.
fn recorded(entry: &RecordedEntry, recordings: &BTreeMap<u32, Arc<Pieces>>) -> Result<Asked, Refusal> {
    let &RecordedEntry { recording, copy, .. } = entry;
    let bytes = recordings.get(&recording).ok_or(Refusal::Recording(recording))?.total();
    if copy.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: copy, receive: copy });
    }
    let signature = Signature { kind: CallKind::Tagged(TaggedCall::Recorded { recording }), bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send: (0, 0), receive: (copy, bytes) })
}

/// One buffer, read or written.
fn message(entry: &MessageEntry, ranks: u32) -> Result<Asked, Refusal> {
    let &MessageEntry { end, peer, tag, buffer, bytes, .. } = entry;
    if peer >= ranks {
        return Err(Refusal::Peer { peer, ranks });
    }
    if bytes > MOST_BYTES || buffer.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: buffer, receive: buffer });
    }
    let call = match end {
        MessageEnd::Send => TaggedCall::Send { to: Rank(peer), tag },
        MessageEnd::Receive => TaggedCall::Receive { from: Rank(peer), tag },
    };
    let signature = Signature { kind: CallKind::Tagged(call), bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send: (0, 0), receive: (buffer, bytes) })
}

fn allgather(entry: &AllgatherEntry, rank: Rank, ranks: u32) -> Result<Asked, Refusal> {
    let bytes = entry.bytes_per_rank;
    let range = Refusal::Range { bytes, send: entry.send, receive: entry.receive };
    let Some(total) = bytes.checked_mul(u64::from(ranks)).filter(|&total| total <= MOST_BYTES) else {
        return Err(range);
    };
    let own = entry.receive.checked_add(u64::from(rank.0) * bytes);
    let send = if entry.in_place { own } else { Some(entry.send) };
    let (Some(send), Some(_)) = (send, entry.receive.checked_add(total)) else { return Err(range) };
    if send.checked_add(bytes).is_none() {
        return Err(range);
    }
    let (send, receive) = ((send, bytes), (entry.receive, total));
    let signature = Signature { kind: CallKind::Allgather, bytes };
    Ok(Asked { signature, in_place: entry.in_place, blocks: None, send, receive })
}

/// The root sends from its buffer, all others receive into theirs.
fn broadcast(entry: &BroadcastEntry, rank: Rank, ranks: u32) -> Result<Asked, Refusal> {
    let &BroadcastEntry { root, buffer, bytes, .. } = entry;
    if root >= ranks {
        return Err(Refusal::Root { root, ranks });
    }
    let (own, none) = ((buffer, bytes), (0, 0));
    let (send, receive) = if rank.0 == root { (own, none) } else { (none, own) };
    if bytes > MOST_BYTES || buffer.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: send.0, receive: receive.0 });
    }
    let signature = Signature { kind: CallKind::Broadcast { root: Rank(root) }, bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send, receive })
}

/// The blocks as the entry or the rank's table says. The table is copied before it is looked at, and never again: the rank may
/// write to it.
fn alltoall(entry: &AlltoallEntry, rank: Rank, ranks: u32, memory: &TieredMemory) -> Result<Asked, Refusal> {
    let &AlltoallEntry { send, receive, .. } = entry;
    let (signature, blocks, (sent, received)) = match entry.blocks {
        // Even blocks follow from the signature.
        BlockSizes::Even { bytes } => {
            let total = bytes.checked_mul(ranks.into()).ok_or(Refusal::Range { bytes, send, receive })?;
            (Signature { kind: CallKind::Alltoall, bytes }, None, (total, total))
        }
        BlockSizes::Table { address } => {
            let [send, receive] = read_lists(address, ranks, memory)?;
            let blocks = Blocks { send: spans(&send, Span::input), receive: spans(&receive, Span::output) };
            blocks.check(ranks, rank)?;
            let bytes = blocks.bytes();
            (Signature { kind: CallKind::Alltoallv, bytes: 0 }, Some(Arc::new(blocks)), bytes)
        }
    };
    let bytes = sent.max(received);
    if bytes > MOST_BYTES || send.checked_add(sent).is_none() || receive.checked_add(received).is_none() {
        return Err(Refusal::Range { bytes, send, receive });
    }
    Ok(Asked { signature, in_place: false, blocks, send: (send, sent), receive: (receive, received) })
}

/// As [`alltoall`], with one block to send, whose bytes all ranks know.
fn allgatherv(entry: &AllgathervEntry, rank: Rank, ranks: u32, memory: &TieredMemory) -> Result<Asked, Refusal> {
    let &AllgathervEntry { send, receive, in_place, table, .. } = entry;
    let [list] = read_lists(table, ranks, memory)?;
    let own = list[rank.0 as usize];
    let range = |bytes| Refusal::Range { bytes, send, receive };
    let sizes = || list.iter().map(|(_, bytes)| *bytes);
    let extents = Extents::uneven(sizes()).filter(|extents| extents.total() <= MOST_BYTES);
    let total = extents.ok_or(range(u64::MAX))?.total();
    let end = list.iter().try_fold(0, |end: u64, (offset, bytes)| Some(end.max(offset.checked_add(*bytes)?)));
    let end = end.filter(|&end| end <= MOST_BYTES && receive.checked_add(end).is_some()).ok_or(range(total))?;
    let send = if in_place { receive + own.0 } else { send };
    if send.checked_add(own.1).is_none() {
        return Err(range(own.1));
    }
    let blocks = Blocks { send: vec![Span::input(0, own.1)], receive: spans(&list, Span::output) };
    let signature = Signature { kind: CallKind::Allgatherv { sizes: sizes_digest(sizes()) }, bytes: total };
    Ok(Asked { signature, in_place, blocks: Some(Arc::new(blocks)), send: (send, own.1), receive: (receive, end) })
}

/// Offset and bytes of the block of each rank.
type List = Vec<(u64, u64)>;

fn spans(list: &List, span: fn(u64, u64) -> Span) -> Vec<Span> {
    list.iter().map(|&(offset, bytes)| span(offset, bytes)).collect()
}

/// The lists of a table: bytes by rank, then offsets by rank, list after list.
fn read_lists<const N: usize>(address: u64, ranks: u32, memory: &TieredMemory) -> Result<[List; N], Refusal> {
    let ranks = ranks as usize;
    let mut table = vec![0; N * 2 * 8 * ranks];
    memory.read(address, &mut table).map_err(|error| Refusal::Table { address, error })?;
    let numbers: Vec<u64> = table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    Ok(std::array::from_fn(|at| {
        let (bytes, offsets) = numbers[2 * at * ranks..][..2 * ranks].split_at(ranks);
        // An empty block lies nowhere, whatever its offset.
        let block = |(&offset, &bytes)| if bytes == 0 { (0, 0) } else { (offset, bytes) };
        offsets.iter().zip(bytes).map(block).collect()
    }))
}
