//! The machine with its memory and its clock: orders that follow an input are carried out at once.
//!
//! Invariant: between two calls of this module every order is carried out, except work that waits for ranks
//! ([`crate::memory::backlog`]), and every memory fault is reported. The end of a call is reported after its bytes are
//! in place.

use std::time::{Duration, Instant as WallInstant};

use outboard_fabric::PeerLoss;
use outboard_plan::Rank;
use outboard_proto::{
    CallId, CollectiveError, Config, Endpoint, Event, FramePayload, GroupHandle, GroupRefusal, GroupSpec,
    InFlightInstance, InstanceId, Instant, MemRef, OfferId, PostedCall, ReceivedDatagram, RecordError, Recording, SpId,
    Transmit,
};
use outboard_shm::memory::{MappedBytes, ScatterList};

use crate::memory::backlog::Backlog;
use crate::memory::{Buffers, Cause, Fault, Memory, Payloads, Place};
use crate::ranks::ConnectionId;
use crate::telemetry::statistics::Copies;
use crate::telemetry::turns::TurnLength;

/// Faults are reported in rounds, since the report of a fault may order work that fails in turn.
const FAULT_ROUNDS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Engine {
    machine: Endpoint,
    memory: Memory,
    origin: WallInstant,
}

impl Engine {
    /// `errands` is the smallest copy that is left to a rank; 0 disables such copies.
    pub(crate) fn new(id: SpId, config: Config, seed: u64, errands: u64) -> Self {
        let mut memory = Memory::default();
        memory.errands.least = errands;
        Engine { machine: Endpoint::new(id, config, seed), memory, origin: WallInstant::now() }
    }

    /// Nanoseconds since the start.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn machine(&self) -> &Endpoint {
        &self.machine
    }

    /// Operations in flight, and what each of them waits for.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = InFlightInstance> + '_ {
        self.machine.in_flight(self.now())
    }

    fn settle(&mut self, payloads: Payloads<'_>) {
        self.memory.perform(&mut self.machine, payloads);
        for _ in 0..FAULT_ROUNDS {
            let (faults, unmet) = (self.memory.take_faults(), self.memory.take_unmet());
            if faults.is_empty() && unmet.is_empty() {
                return;
            }
            let now = self.now();
            for (group, bytes) in unmet {
                self.machine.handle_no_memory(now, group, bytes);
                self.memory.perform(&mut self.machine, &[]);
            }
            for (call, cause) in faults {
                match cause {
                    Cause::Buffer => self.machine.handle_memory_fault(now, call),
                    Cause::RankGone => self.machine.handle_rank_gone(now, call),
                }
                self.memory.perform(&mut self.machine, &[]);
            }
        }
    }

    fn tell(&mut self, what: impl FnOnce(&mut Endpoint, Instant)) {
        let now = self.now();
        what(&mut self.machine, now);
        self.settle(&[]);
    }

    pub(crate) fn offer(&mut self, offer: OfferId) {
        self.machine.handle_offer(offer);
    }

    /// The rank no longer requests a group by this offer.
    pub(crate) fn withdraw(&mut self, offer: OfferId, refused: Option<GroupRefusal>) {
        self.tell(|machine, now| machine.handle_offer_withdrawn(now, offer, refused));
    }

    pub(crate) fn refuse_group(&mut self, spec: &GroupSpec, rank: Rank, why: GroupRefusal) {
        self.tell(|machine, now| machine.handle_refusal(now, spec, rank, why));
    }

    pub(crate) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        self.tell(|machine, now| machine.handle_create_group(now, spec, rank));
    }

    pub(crate) fn leave(&mut self, group: GroupHandle, rank: Rank) {
        self.tell(|machine, now| machine.handle_leave(now, group, rank));
    }

    pub(crate) fn call(&mut self, call: PostedCall, buffers: Buffers) {
        self.memory.insert(call.id, buffers);
        self.tell(|machine, now| machine.handle_call(now, call));
    }

    pub(crate) fn record(
        &mut self,
        group: GroupHandle,
        rank: Rank,
        number: u32,
        recording: Recording,
    ) -> Result<(), RecordError> {
        self.machine.handle_record(group, rank, number, recording)
    }

    /// The rank no longer needs a recording. Returns false while a call of the recording is in flight.
    pub(crate) fn free_recording(&mut self, group: GroupHandle, rank: Rank, number: u32) -> bool {
        self.machine.handle_free(group, rank, number)
    }

    /// The call has ended and its buffers belong to the rank again.
    pub(crate) fn forget_call(&mut self, call: CallId) {
        self.memory.remove(call);
    }

    /// `rank`, which posted this call, is gone. Its memory is not accessed any more.
    pub(crate) fn forget_memory(&mut self, call: CallId, rank: Rank) {
        for missing in self.memory.cut_off(call, true) {
            self.machine.handle_bytes_lost(missing, CollectiveError::RankLost(rank));
        }
    }

    /// The rank has copied the buffers of a call in flight (GP-9). Returns false if the buffers would not fit there.
    #[must_use]
    pub(crate) fn restage(&mut self, call: CallId, send: u64, receive: u64) -> bool {
        let restaged = self.memory.restage(call, send, receive);
        self.settle(&[]);
        restaged
    }

    pub(crate) fn frame(&mut self, from: SpId, header: &[u8], payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("the fabric bounds payloads");
        let now = self.now();
        self.machine.handle_frame(now, from, header, length);
        self.settle(&[payload]);
    }

    /// Finds memory for the payload of a frame whose header alone has arrived.
    pub(crate) fn landing(&self, from: SpId, header: &[u8], length: usize) -> Option<ScatterList> {
        let pieces = self.machine.destination(from, header, u32::try_from(length).ok()?);
        if pieces.is_empty() { None } else { self.memory.landing(&pieces) }
    }

    /// Handles a frame whose payload lies in the memory that [`Self::landing`] has just returned.
    pub(crate) fn landed(&mut self, from: SpId, header: &[u8], length: usize) {
        let length = u32::try_from(length).expect("the fabric bounds payloads");
        self.memory.set_landed(self.machine.destination(from, header, length));
        let now = self.now();
        self.machine.handle_frame(now, from, header, length);
        self.settle(&[]);
        self.memory.set_landed(FramePayload::Empty);
    }

    /// Bytes of payload that were received in place, without a copy.
    pub(crate) fn bytes_landed(&self) -> u64 {
        self.memory.bytes_landed
    }

    /// Whether memory that payload may be read into was withdrawn since the last check.
    pub(crate) fn take_withdrawn(&mut self) -> bool {
        self.memory.take_withdrawn()
    }

    pub(crate) fn datagrams(&mut self, batch: &[ReceivedDatagram<'_>], payloads: Payloads<'_>) {
        let now = self.now();
        self.machine.handle_datagrams(now, batch);
        self.settle(payloads);
    }

    /// The memory of a multicast batch has been read, or the read has failed.
    pub(crate) fn multicast_done(&mut self, token: u64, read: Result<(), Fault>) {
        // The fault comes first: the batch may be the last that its collective waits for.
        if let Err(fault) = read {
            self.fault(fault);
        }
        self.tell(|machine, now| machine.handle_multicast_done(now, token));
    }

    pub(crate) fn peer_lost(&mut self, peer: SpId) {
        self.tell(|machine, now| machine.handle_peer_lost(now, peer));
    }

    /// The fabric has lost a peer. If descriptors ran out, this service process caused the loss.
    pub(crate) fn lose(&mut self, peer: SpId, why: &PeerLoss) {
        match why {
            PeerLoss::Descriptors => self.tell(|machine, now| machine.handle_no_descriptors(now, peer)),
            _ => self.peer_lost(peer),
        }
    }

    /// The outbox is full of frames to this peer, or has room again.
    pub(crate) fn set_full(&mut self, peer: SpId, full: bool) {
        self.machine.handle_full(peer, full);
    }

    /// The engine beside the machine has carried out the list of a call, or the list has failed.
    pub(crate) fn offloaded(&mut self, place: (GroupHandle, InstanceId, CallId), carried_out: bool) {
        self.tell(|machine, now| machine.handle_offloaded(now, place, carried_out));
    }

    /// Memory of this process that holds a piece, for the engine.
    pub(crate) fn resident(&mut self, piece: MemRef) -> Result<MappedBytes, Fault> {
        let place = self.memory.place_to_read(piece)?;
        Ok(place.resident(piece.len).expect("the engine is given memory of this process alone"))
    }

    /// Calls the machine's timers if they are due; returns whether they were.
    pub(crate) fn timeout(&mut self) -> bool {
        let now = self.now();
        let due = self.machine.poll_timeout().is_some_and(|at| at <= now);
        if due {
            self.tell(Endpoint::handle_timeout);
        }
        due
    }

    /// The time of the next timer or, with `room` to send, of the next transmission, whichever is earlier.
    pub(crate) fn next_call(&self, room: bool) -> Option<Instant> {
        let transmit = self.machine.next_transmit().filter(|_| room);
        self.machine.poll_timeout().into_iter().chain(transmit).min()
    }

    /// The next event. If a call fails, calls that need bytes which its rank alone could copy fail too.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event =
            self.machine.poll_event_unless_deferred(|call, failed| self.memory.backlog.holds_back(call, failed))?;
        if let Event::Completed { call, result: Err(error) } = &event {
            for missing in self.memory.cut_off(*call, false) {
                self.machine.handle_bytes_lost(missing, error.clone());
            }
            self.settle(&[]);
        }
        Some(event)
    }

    /// The next transmission. Its payload must be read, or a fault reported, before [`Self::transmitted`].
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        let now = self.now();
        self.machine.poll_transmit(now)
    }

    /// Whether the machine has ordered work on memory behind the last transmission.
    pub(crate) fn has_orders(&self) -> bool {
        self.machine.has_orders()
    }

    /// All polled payloads have been read, so the work on memory behind them may be done.
    pub(crate) fn transmitted(&mut self) {
        self.settle(&[]);
    }

    pub(crate) fn place(&mut self, piece: MemRef) -> Result<Place, Fault> {
        self.memory.place_to_read(piece)
    }

    /// Polls the errands of ranks and continues planned work; returns whether anything was done.
    pub(crate) fn attend_errands(&mut self) -> bool {
        let found = self.memory.attend();
        if found {
            self.settle(&[]);
        }
        found
    }

    /// Work on memory that is not done.
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.memory.backlog
    }

    pub(crate) fn copies(&self) -> Copies {
        self.memory.errands.copies
    }

    /// The rank is gone, and the memory of all its calls has been forgotten before.
    pub(crate) fn forget_runner(&mut self, id: ConnectionId) {
        self.memory.errands.forget_runner(id);
    }

    /// A turn has outlasted the silence after which peers count this process as dead. It is called once for each such
    /// turn, before the timers.
    pub(crate) fn stalled(&mut self, turn: TurnLength) {
        let (limit, seconds) = (self.machine.config().dead_after, turn.ns as f64 / 1e9);
        let off_processor = Duration::from_nanos(turn.off_processor_ns);
        tracing::error!(
            ?off_processor,
            "this service process stalled for {seconds:.1} s in {}; other hosts count it as dead after {limit:?}",
            turn.part
        );
    }

    /// A read failed. The fault is reported to the machine at once.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.memory.note(fault);
        self.settle(&[]);
    }
}
