//! The driver of one service process: feeds the machine and carries out its orders.
//!
//! The driver follows the contract of [`outboard_proto::Order`] and [`outboard_proto::Transmit`] to the letter. After
//! every `handle_*` the driver first carries out the orders in turn, then reports faulted memory. Then the driver takes
//! events (so that `Connect` precedes the first frame), and finally transmissions while the fabric has room. Every
//! order is checked. The driver knows nothing of other hosts or of links; everything that leaves the host goes to the
//! outbox.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;

use outboard_plan::Rank;
use outboard_proto::{
    CallId, CollectiveError, Config, Endpoint, Event, GroupHandle, GroupRefusal, GroupSpec, Instant, MemRef, MemRegion,
    MulticastBatch, MulticastChannel, OfferId, Order, Overdue, RankCall, ReceivedDatagram, SpId, Transmit, wire,
};
use smallvec::SmallVec;

use crate::clock::Due;
use crate::cluster::{host_of, sp_id};
use crate::coverage::{Coverage, FaultKind};
use crate::deferred_engine::{DeferredEngine, Letter};
use crate::network::{NetworkPlan, Train, TransitFrame};
use crate::sabotage::{Sabotage, Saboteur};
use crate::store::{AccessResult, CallOutput, CheckedMemory, StoreKind};
use crate::violation::Violation;

#[derive(Debug, Clone)]
pub(crate) enum Input {
    CreateGroup {
        spec: Rc<GroupSpec>,
        rank: Rank,
    },
    /// A rank that offered itself for a group is gone before it requested the group.
    Withdraw(OfferId),
    /// The driver refuses a rank the group.
    Refuse {
        spec: Rc<GroupSpec>,
        rank: Rank,
        why: GroupRefusal,
    },
    Leave {
        group: GroupHandle,
        rank: Rank,
    },
    Call(Box<RankCall>),
    Frame(Rc<TransitFrame>),
    Datagrams(Rc<Train>, u64),
    /// A letter to the engine beside the service process.
    Letter(Box<Letter>),
    MulticastDone {
        token: u64,
    },
    PeerLost(SpId),
    /// The fabric has room again.
    Room,
    Timeout,
}

#[derive(Debug)]
pub(crate) enum HostAction {
    Frame(Rc<TransitFrame>),
    Batch(MulticastBatch),
    Letter(Box<Letter>),
    Connect(SpId),
    Join(MulticastChannel),
    Leave(MulticastChannel),
    GroupReady { group: GroupHandle, rank: Rank, result: Result<(), outboard_proto::GroupError> },
    Completed { call: CallId, result: Result<(), CollectiveError>, output: CallOutput },
    Late { group: GroupHandle, rank: Rank },
    Overdue(Box<Overdue>),
}

/// Inputs that have arrived at a host and are not handled yet. Every datagram checks all inboxes, so the inboxes lie
/// together in memory, apart from the hosts.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    pub(crate) waiting: Vec<(Due, Input)>,
    /// When the waiting inputs are handled, if nothing prevents it.
    pub(crate) wakes: Due,
}

impl Inbox {
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Adds an input that is due at this time. A timer input does not wait: as in a daemon, the timer is checked again
    /// when all other inputs have been handled.
    pub(crate) fn enqueue(&mut self, due: Due, input: Input) {
        if !matches!(input, Input::Timeout) {
            self.waiting.push((due, input));
        }
    }
}

/// How often the timer may be due at one instant.
const TIMER_SPINS: u32 = 1000;

/// One host with its service process and memory.
#[derive(Debug)]
pub(crate) struct SimulatedHost {
    pub(crate) sp: Endpoint,
    pub(crate) memory: CheckedMemory,
    pub(crate) engine: DeferredEngine,
    pub(crate) dead: bool,
    /// The service process handles nothing before this time.
    pub(crate) stalled_until: Instant,
    /// The earliest pending timer event.
    pub(crate) timer: Option<Instant>,
    pub(crate) outbox: VecDeque<HostAction>,
    pub(crate) connected: BTreeSet<SpId>,
    pub(crate) joined: BTreeSet<(MulticastChannel, GroupHandle)>,
    pub(crate) batches: BTreeMap<u64, MulticastBatch>,
    /// Counts of completed and of failed calls and group requests of the ranks, to check the machine's counters.
    pub(crate) completed: u64,
    pub(crate) failed: u64,
    /// Whether other hosts may violate the protocol.
    pub(crate) expects_violations: bool,
    /// Peers whose connections have ended.
    ended: BTreeSet<SpId>,
    /// Coverage of the inputs that the host has handled.
    pub(crate) coverage: Coverage,
    frames_outstanding: usize,
    frame_limit: usize,
    /// How many frames must leave before a full fabric has room.
    room: usize,
    is_full_of_frames: bool,
    batch_limit: usize,
    faulted: BTreeSet<CallId>,
    /// The destinations that the machine announced for the payload of the current frame, without the destinations to
    /// which an order has delivered already.
    announced: Vec<MemRef>,
    spins: (Instant, u32),
    saboteur: Saboteur,
}

/// Payloads of the inputs being handled, for `Order::Deliver`.
enum InputPayloads<'a> {
    None,
    Frame(&'a TransitFrame),
    /// Each datagram is (train, number within the train).
    Datagrams(&'a [(Rc<Train>, u32)]),
}

impl SimulatedHost {
    pub(crate) fn new(
        id: SpId,
        config: Config,
        seed: u64,
        store: StoreKind,
        plan: &NetworkPlan,
        sabotage: Option<Sabotage>,
    ) -> Self {
        let memory = CheckedMemory::new(store, config.staging_quota.saturating_add(config.scratch_quota));
        SimulatedHost {
            sp: Endpoint::new(id, config, seed),
            memory,
            engine: DeferredEngine::default(),
            dead: false,
            stalled_until: Instant(0),
            timer: None,
            outbox: VecDeque::new(),
            connected: BTreeSet::new(),
            joined: BTreeSet::new(),
            batches: BTreeMap::new(),
            completed: 0,
            failed: 0,
            expects_violations: false,
            ended: BTreeSet::new(),
            coverage: Coverage::default(),
            frames_outstanding: 0,
            frame_limit: plan.outstanding_frames,
            room: plan.room,
            is_full_of_frames: false,
            batch_limit: plan.outstanding_batches,
            faulted: BTreeSet::new(),
            announced: Vec::new(),
            spins: (Instant(0), 0),
            saboteur: Saboteur::new(sabotage),
        }
    }

    /// Whether some group of the host receives this channel.
    pub(crate) fn receives(&self, channel: MulticastChannel) -> bool {
        self.joined.range((channel, GroupHandle(0))..=(channel, GroupHandle(u32::MAX))).next().is_some()
    }

    /// Describes what groups left behind, if anything. Messages on links count only if `links` is set.
    pub(crate) fn left_over(&self, links: bool) -> Option<String> {
        let (groups, collectives, messages) = self.sp.load();
        let load = (groups, collectives, if links { messages } else { 0 });
        let (bytes, pieces) = self.memory.staged();
        Some(if pieces > 0 {
            format!("{pieces} pieces of staging, {bytes} bytes")
        } else if self.engine.lists() > 0 {
            format!("{} lists with the engine", self.engine.lists())
        } else if !self.batches.is_empty() {
            format!("{} multicast batches under way", self.batches.len())
        } else if !self.joined.is_empty() {
            format!("{} channels joined", self.joined.len())
        } else if load != (0, 0, 0) {
            format!("groups, collectives, messages: {load:?}")
        } else {
            return None;
        })
    }

    /// Notes that a frame has left the host. Returns whether the fabric was full until now, so that `Room` is due.
    pub(crate) fn frame_left(&mut self) -> bool {
        self.frames_outstanding -= 1;
        let has_room = self.frames_outstanding + self.room <= self.frame_limit;
        has_room && std::mem::take(&mut self.is_full_of_frames)
    }

    /// Reports a multicast batch that could not be read because of a fault of its rank.
    pub(crate) fn memory_fault(&mut self, now: Instant, call: CallId) -> Result<(), Violation> {
        self.sp.handle_memory_fault(now, call);
        self.drain(now, &InputPayloads::None)
    }

    /// Handles all waiting inputs, neighbouring datagrams in one batch. Datagrams beyond `buffer` bytes are lost.
    pub(crate) fn wake(
        &mut self,
        now: Instant,
        inbox: &mut Inbox,
        mut buffer: u64,
        batch: &mut Vec<(Rc<Train>, u32)>,
    ) -> Result<(), Violation> {
        inbox.waiting.sort_by_key(|(due, _)| *due);
        for (_, input) in inbox.waiting.drain(..) {
            let Input::Datagrams(train, mask) = input else {
                self.handle_datagrams(now, batch)?;
                self.handle(now, input)?;
                continue;
            };
            if let Some(left) = buffer.checked_sub(train.wire_bytes(mask)) {
                buffer = left;
                push_datagrams(batch, &train, mask);
            }
        }
        self.handle_datagrams(now, batch)
    }

    /// Handles the header of a frame. From then on the fabric may read the rest of the payload into place. The
    /// simulator writes other bytes there, because nobody may read that place before the frame is handled.
    pub(crate) fn handle_frame_header(&mut self, frame: &TransitFrame) -> Result<(), Violation> {
        if self.dead || frame.payload_len == 0 || self.ended.contains(&sp_id(frame.from)) {
            return Ok(());
        }
        let places = self.sp.destination(sp_id(frame.from), &frame.header, frame.payload_len);
        let mut offset = 0;
        for place in places.iter() {
            self.coverage.fault(FaultKind::PlacedEarly, 1);
            self.memory.write(*place, &frame.payload.part(offset, place.len).another(), 0)?;
            offset += place.len;
        }
        Ok(())
    }

    /// Feeds one input to the machine and carries out its orders.
    pub(crate) fn handle(&mut self, now: Instant, input: Input) -> Result<(), Violation> {
        match input {
            Input::CreateGroup { spec, rank } => self.sp.handle_create_group(now, &spec, rank),
            Input::Withdraw(offer) => self.sp.handle_offer_withdrawn(now, offer, None),
            Input::Refuse { spec, rank, why } => self.sp.handle_refusal(now, &spec, rank, why),
            Input::Leave { group, rank } => self.sp.handle_leave(now, group, rank),
            Input::Call(call) => self.sp.handle_call(now, *call),
            // Nothing arrives over an ended connection, unless a hostile peer has connected again.
            Input::Frame(frame) if self.ended.contains(&sp_id(frame.from)) && !self.expects_violations => {}
            Input::Frame(frame) => {
                self.coverage.frame(&frame.header, frame.payload_len);
                self.announced = self.sp.destination(sp_id(frame.from), &frame.header, frame.payload_len).to_vec();
                let announced = !self.announced.is_empty();
                self.sp.handle_frame(now, sp_id(frame.from), &frame.header, frame.payload_len);
                self.drain(now, &InputPayloads::Frame(&frame))?;
                return match self.announced.pop().filter(|_| announced) {
                    Some(at) => Err(Violation::Misplaced { at }),
                    None => Ok(()),
                };
            }
            Input::Datagrams(train, mask) => {
                let mut batch = Vec::with_capacity(mask.count_ones() as usize);
                push_datagrams(&mut batch, &train, mask);
                return self.handle_datagrams(now, &mut batch);
            }
            Input::Letter(letter) => self.engine.receive(&mut self.memory, *letter)?,
            Input::MulticastDone { token } => {
                self.batches.remove(&token);
                self.sp.handle_multicast_done(now, token);
            }
            Input::PeerLost(peer) => {
                self.ended.insert(peer);
                self.sp.handle_peer_lost(now, peer);
            }
            Input::Room => {}
            Input::Timeout => {
                self.spins = if self.spins.0 == now { (now, self.spins.1 + 1) } else { (now, 1) };
                if self.spins.1 > TIMER_SPINS {
                    return Err(Violation::TimerSpins(self.spins.1));
                }
                self.sp.handle_timeout(now);
            }
        }
        self.drain(now, &InputPayloads::None)
    }

    fn handle_datagrams(&mut self, now: Instant, batch: &mut Vec<(Rc<Train>, u32)>) -> Result<(), Violation> {
        if batch.is_empty() {
            return Ok(());
        }
        {
            let received = batch.iter().map(|(train, n)| ReceivedDatagram {
                header: &train.headers[*n as usize],
                payload_len: train.len_of(*n),
                payload: train.hashes[*n as usize],
                from: train.address,
            });
            self.sp.handle_datagrams(now, &received.collect::<SmallVec<[_; 64]>>());
        }
        self.drain(now, &InputPayloads::Datagrams(batch))?;
        batch.clear();
        Ok(())
    }

    fn drain(&mut self, now: Instant, payloads: &InputPayloads<'_>) -> Result<(), Violation> {
        // Whether nothing has happened since the machine last had nothing to send.
        let mut settled = false;
        loop {
            while let Some(order) = self.sp.poll_order() {
                settled = false;
                self.perform_order(order, payloads)?;
            }
            // Faults come before events, because a pending `Completed` may no longer be true.
            if let Some(call) = self.faulted.pop_first() {
                self.sp.handle_memory_fault(now, call);
                continue;
            }
            if let Some(event) = self.sp.poll_event() {
                settled = false;
                self.handle_event(event)?;
                continue;
            }
            self.outbox.extend(self.engine.outbox.drain(..).map(|letter| HostAction::Letter(Box::new(letter))));
            if let Some(ended) = self.engine.ended.pop_front() {
                self.sp.handle_offloaded(now, ended, true);
                continue;
            }
            if settled {
                return Ok(());
            }
            let transmit = if self.is_full() { None } else { self.sp.poll_transmit(now) };
            match transmit {
                Some(transmit) => self.handle_transmit(transmit)?,
                None => settled = true,
            }
        }
    }

    fn is_full(&self) -> bool {
        self.is_full_of_frames || self.batches.len() >= self.batch_limit
    }

    /// When the machine must be called next. A full fabric sends nothing: transmissions wait for room.
    pub(crate) fn due(&self, now: Instant) -> Option<Instant> {
        let transmit = self.sp.next_transmit().filter(|_| !self.is_full());
        self.sp.poll_timeout().into_iter().chain(transmit).min().map(|due| due.max(now))
    }

    fn perform_order(&mut self, order: Order, payloads: &InputPayloads<'_>) -> Result<(), Violation> {
        if let (Order::Deliver { to, .. }, false) = (order, self.announced.is_empty())
            && self.announced.remove(0) != to
        {
            return Err(Violation::Misplaced { at: to });
        }
        let Some(order) = self.saboteur.order(order) else { return Ok(()) };
        let access = match order {
            Order::Stage { id, bytes, .. } => AccessResult::Done(self.memory.stage(id, bytes)?),
            Order::Unstage { id } => {
                self.check_not_read(|region| region == MemRegion::Staging(id))?;
                AccessResult::Done(self.memory.unstage(id)?)
            }
            Order::Copy { from, to } => match self.memory.copy(from, to) {
                // Bytes that a fault left unwritten may be passed on before the fault is reported to the machine.
                Err(Violation::ReadsUndefined { .. }) if !self.faulted.is_empty() => return Ok(()),
                copied => copied?,
            },
            Order::Reduce { from, into, reduction, from_left } => {
                self.memory.reduce(reduction, (from, into), from_left)?
            }
            Order::Deliver { payload, offset, to } => {
                let missing = Violation::BadDeliver { payload, offset, len: to.len };
                let (bytes, start, len) = match payloads {
                    InputPayloads::None => return Err(missing),
                    InputPayloads::Frame(frame) if payload == 0 => (&frame.payload, 0, frame.payload_len),
                    InputPayloads::Frame(_) => return Err(missing),
                    InputPayloads::Datagrams(batch) => {
                        let (train, n) = batch.get(payload as usize).ok_or_else(|| missing.clone())?;
                        (&train.payload, u64::from(*n) * u64::from(train.chunk_bytes), train.len_of(*n))
                    }
                };
                if u64::from(offset).saturating_add(to.len) > u64::from(len) {
                    return Err(missing);
                }
                self.memory.write(to, bytes, start + u64::from(offset))?
            }
        };
        if let AccessResult::Fault(call) = access {
            self.faulted.insert(call);
        }
        Ok(())
    }

    fn handle_transmit(&mut self, transmit: Transmit) -> Result<(), Violation> {
        match transmit {
            Transmit::Frame { to, header, payload } => {
                if !self.connected.contains(&to) {
                    return Err(Violation::NotConnected(to));
                }
                if header.len() > wire::MAX_FRAME_HEADER {
                    return Err(Violation::LongHeader(header.len()));
                }
                let payload_len = payload.iter().map(|p| p.len).sum::<u64>() as u32;
                let payload = match self.memory.gather(&payload)? {
                    AccessResult::Done(payload) => payload,
                    // An unreadable payload is not sent, and the fault is reported to the machine.
                    AccessResult::Fault(call) => {
                        self.faulted.insert(call);
                        return Ok(());
                    }
                };
                self.frames_outstanding += 1;
                self.is_full_of_frames |= self.frames_outstanding >= self.frame_limit;
                let config = self.sp.config();
                let len = header.len() as u64 + u64::from(payload_len);
                let segments = len.div_ceil(u64::from(config.chunk_bytes)).max(1);
                let wire_bytes = len + segments * u64::from(config.datagram_overhead);
                let (from, to) = (host_of(self.sp.id()), host_of(to));
                let frame = TransitFrame { from, to, header, payload, payload_len, wire_bytes };
                self.outbox.push_back(HostAction::Frame(Rc::new(frame)));
            }
            Transmit::Multicast(batch) => {
                self.check_batch(&batch)?;
                self.batches.insert(batch.token, batch);
                self.outbox.push_back(HostAction::Batch(batch));
            }
        }
        Ok(())
    }

    fn check_batch(&self, batch: &MulticastBatch) -> Result<(), Violation> {
        let config = self.sp.config();
        let (chunks, size) = (u64::from(batch.chunks), u64::from(batch.chunk_bytes));
        let what = if self.batches.contains_key(&batch.token) {
            "its token is in use"
        } else if chunks == 0 || chunks > u64::from(config.batch_chunks) {
            "number of chunks"
        } else if size == 0 || size > u64::from(config.chunk_bytes) {
            "size of chunks"
        } else if batch.memory.len > chunks * size || batch.memory.len <= (chunks - 1) * size {
            "length of its memory"
        } else {
            return Ok(());
        };
        Err(Violation::BadBatch { token: batch.token, what })
    }

    fn handle_event(&mut self, event: Event) -> Result<(), Violation> {
        match event {
            Event::Connect { peer, .. } => {
                if !self.connected.insert(peer) {
                    return Err(Violation::ConnectTurn(peer));
                }
                self.ended.remove(&peer);
                self.outbox.push_back(HostAction::Connect(peer));
            }
            Event::Disconnect { peer } => {
                if !self.connected.remove(&peer) {
                    return Err(Violation::ConnectTurn(peer));
                }
            }
            Event::Join { channel, group, .. } => {
                let first = !self.receives(channel);
                if !self.joined.insert((channel, group)) {
                    return Err(Violation::JoinTurn(channel));
                }
                self.outbox.extend(first.then_some(HostAction::Join(channel)));
            }
            Event::Leave { channel, group } => {
                if !self.joined.remove(&(channel, group)) {
                    return Err(Violation::JoinTurn(channel));
                }
                self.outbox.extend((!self.receives(channel)).then_some(HostAction::Leave(channel)));
            }
            Event::GroupReady { group, rank, result } => {
                self.outbox.push_back(HostAction::GroupReady { group, rank, result });
            }
            Event::Completed { call, result } => {
                let Some(result) = self.saboteur.completed(result) else { return Ok(()) };
                self.check_not_read(|region| region == MemRegion::Input(call) || region == MemRegion::Output(call))?;
                let output = self.memory.end_call(call).ok_or(Violation::CompletedTwice(call))?;
                match result {
                    Ok(()) => self.completed += 1,
                    Err(_) => {
                        self.failed += 1;
                        self.engine.withdraw(call);
                    }
                }
                self.outbox.push_back(HostAction::Completed { call, result, output });
            }
            Event::Late { group, rank, .. } => self.outbox.push_back(HostAction::Late { group, rank }),
            Event::Offload(offload) => self.engine.begin(&mut self.memory, *offload)?,
            Event::Overdue(overdue) => self.outbox.push_back(HostAction::Overdue(overdue)),
            Event::Milestone { step, .. } => self.coverage.step(&step),
            Event::Violation { .. } if self.expects_violations => {}
            Event::Violation { what, .. } => return Err(Violation::FalseViolation(what)),
        }
        Ok(())
    }

    /// Checks that no pending batch reads a region that goes away now.
    fn check_not_read(&self, goes: impl Fn(MemRegion) -> bool) -> Result<(), Violation> {
        match self.batches.values().find(|b| goes(b.memory.region)) {
            Some(batch) => Err(Violation::StillRead { token: batch.token, memory: batch.memory }),
            None => Ok(()),
        }
    }
}

fn push_datagrams(batch: &mut Vec<(Rc<Train>, u32)>, train: &Rc<Train>, mask: u64) {
    let mut rest = mask;
    while rest != 0 {
        batch.push((Rc::clone(train), rest.trailing_zeros()));
        rest &= rest - 1;
    }
}
