//! The machine with its memory and its clock: whatever is handed in, the orders that follow are carried out at once.
//!
//! Invariant: between two calls of this module no order is left undone, except by what waits for ranks
//! ([`crate::memory::backlog`]), and no memory fault unreported; a call's end is not told before its bytes are in
//! place.

use std::time::{Duration, Instant as WallInstant};

use outboard_fabric::PeerLoss;
use outboard_plan::Rank;
use outboard_proto::{
    CallId, CollectiveError, Config, Endpoint, Event, GroupHandle, GroupSpec, InFlight, InstanceId, Instant, MemRef,
    OfferId, Payload, PostedCall, ReceivedDatagram, RecordError, Recording, Refusal, SpId, Transmit,
};
use outboard_shm::memory::{Resident, Residents};

use crate::memory::backlog::Backlog;
use crate::memory::{Buffers, Cause, Fault, Memory, Payloads, Place};
use crate::ranks::ConnectionId;
use crate::telemetry::statistics::Copies;
use crate::telemetry::turns::TurnLength;

/// Faults are reported in rounds, since the report of one may order work that meets another.
const FAULT_ROUNDS: u32 = 64;

#[derive(Debug)]
pub(crate) struct Engine {
    machine: Endpoint,
    memory: Memory,
    origin: WallInstant,
}

impl Engine {
    /// `errands` is the smallest copy that is left to a rank, 0 for none.
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

    /// What is in flight and what it waits for.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = InFlight> + '_ {
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

    /// A rank asks for no group by this offer any more.
    pub(crate) fn withdraw(&mut self, offer: OfferId, refused: Option<Refusal>) {
        self.tell(|machine, now| machine.handle_offer_withdrawn(now, offer, refused));
    }

    pub(crate) fn refuse_group(&mut self, spec: &GroupSpec, rank: Rank, why: Refusal) {
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

    /// A rank calls a recording no more; false while it does.
    pub(crate) fn free_recording(&mut self, group: GroupHandle, rank: Rank, number: u32) -> bool {
        self.machine.handle_free(group, rank, number)
    }

    /// The call has ended: its buffers belong to the rank again.
    pub(crate) fn forget_call(&mut self, call: CallId) {
        self.memory.remove(call);
    }

    /// This rank, whose call this is, is gone: its memory is not touched any more.
    pub(crate) fn forget_memory(&mut self, call: CallId, rank: Rank) {
        for missing in self.memory.cut_off(call, true) {
            self.machine.handle_cut_off(missing, CollectiveError::RankLost(rank));
        }
    }

    /// The rank has copied the buffers of a call in flight (GP-9); false when they would not fit there.
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

    /// Where the payload of a frame may be read to of which only the header is here.
    pub(crate) fn landing(&self, from: SpId, header: &[u8], length: usize) -> Option<Residents> {
        let pieces = self.machine.destination(from, header, u32::try_from(length).ok()?);
        if pieces.is_empty() { None } else { self.memory.landing(&pieces) }
    }

    /// A frame whose payload lies where [`Self::landing`] has just said.
    pub(crate) fn landed(&mut self, from: SpId, header: &[u8], length: usize) {
        let length = u32::try_from(length).expect("the fabric bounds payloads");
        self.memory.set_landed(self.machine.destination(from, header, length));
        let now = self.now();
        self.machine.handle_frame(now, from, header, length);
        self.settle(&[]);
        self.memory.set_landed(Payload::Empty);
    }

    /// Bytes of payload that no one has copied here.
    pub(crate) fn bytes_landed(&self) -> u64 {
        self.memory.bytes_landed
    }

    /// Whether memory was withdrawn since the last time to which payload may be on its way.
    pub(crate) fn take_withdrawn(&mut self) -> bool {
        self.memory.take_withdrawn()
    }

    pub(crate) fn datagrams(&mut self, batch: &[ReceivedDatagram<'_>], payloads: Payloads<'_>) {
        let now = self.now();
        self.machine.handle_datagrams(now, batch);
        self.settle(payloads);
    }

    /// The memory of a multicast batch has been read, or could not be.
    pub(crate) fn multicast_done(&mut self, token: u64, read: Result<(), Fault>) {
        // First the fault: the batch may be the last that its collective waits for.
        if let Err(fault) = read {
            self.fault(fault);
        }
        self.tell(|machine, now| machine.handle_multicast_done(now, token));
    }

    pub(crate) fn peer_lost(&mut self, peer: SpId) {
        self.tell(|machine, now| machine.handle_peer_lost(now, peer));
    }

    /// The fabric has lost a peer. Without a descriptor for a connection this service process is to blame.
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

    /// The engine beside the machine has carried out the list of a call, or has failed to.
    pub(crate) fn offloaded(&mut self, place: (GroupHandle, InstanceId, CallId), carried_out: bool) {
        self.tell(|machine, now| machine.handle_offloaded(now, place, carried_out));
    }

    /// Memory of this process where a piece lies, for the engine.
    pub(crate) fn resident(&mut self, piece: MemRef) -> Result<Resident, Fault> {
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

    /// When the machine wants to be called, for its timers or, with `room` to send, for what it will have to send.
    pub(crate) fn next_call(&self, room: bool) -> Option<Instant> {
        let transmit = self.machine.next_transmit().filter(|_| room);
        self.machine.poll_timeout().into_iter().chain(transmit).min()
    }

    /// The next event. A call that fails takes bytes along that others wait for, if its rank alone could copy them.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self.machine.poll_event_beside(|call, failed| self.memory.backlog.holds_back(call, failed))?;
        if let Event::Completed { call, result: Err(error) } = &event {
            for missing in self.memory.cut_off(*call, false) {
                self.machine.handle_cut_off(missing, error.clone());
            }
            self.settle(&[]);
        }
        Some(event)
    }

    /// The next thing to send; its payload is to be read before [`Self::transmitted`] or a fault is reported.
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        let now = self.now();
        self.machine.poll_transmit(now)
    }

    /// Whether work on memory follows what was polled.
    pub(crate) fn has_orders(&self) -> bool {
        self.machine.has_orders()
    }

    /// All that was polled has been read: work on memory that follows it may be done.
    pub(crate) fn transmitted(&mut self) {
        self.settle(&[]);
    }

    pub(crate) fn place(&mut self, piece: MemRef) -> Result<Place, Fault> {
        self.memory.place_to_read(piece)
    }

    /// Looks what ranks have done of their errands; whether there was anything.
    pub(crate) fn attend_errands(&mut self) -> bool {
        let found = self.memory.attend();
        if found {
            self.settle(&[]);
        }
        found
    }

    /// Work on memory that is not done, to be looked at.
    pub(crate) fn backlog(&self) -> &Backlog {
        &self.memory.backlog
    }

    pub(crate) fn copies(&self) -> Copies {
        self.memory.errands.copies
    }

    /// This rank is gone, behind the memory of all its calls.
    pub(crate) fn forget_runner(&mut self, id: ConnectionId) {
        self.memory.errands.forget_runner(id);
    }

    /// A turn of this process has outlasted the silence after which peers count it as dead; its timers are not called
    /// yet. Called once for each such turn.
    pub(crate) fn stalled(&mut self, turn: TurnLength) {
        let (limit, seconds) = (self.machine.config().dead_after, turn.ns as f64 / 1e9);
        let off_processor = Duration::from_nanos(turn.off_processor_ns);
        tracing::error!(
            ?off_processor,
            "this service process stalled for {seconds:.1} s in {}; other hosts count it as dead after {limit:?}",
            turn.part
        );
    }

    /// A read failed: reported to the machine at once.
    pub(crate) fn fault(&mut self, fault: Fault) {
        self.memory.note(fault);
        self.settle(&[]);
    }
}
