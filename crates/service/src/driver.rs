//! The protocol machine with its memory and its clock. The orders that follow an input are carried out at once.
//!
//! Invariant: between two calls of this module every order is carried out, except work that waits for ranks
//! ([`crate::memory::deferred_ops`]), and every memory fault is reported. The end of a collective call is reported
//! after the call's bytes are in place.

use std::time::{Duration, Instant as WallInstant};

use outboard_fabric::PeerLoss;
use outboard_plan::Rank;
use outboard_proto::{
    CallId, CollectiveError, Config, Endpoint, Event, FramePayload, GroupHandle, GroupRefusal, GroupSpec,
    InFlightInstance, Instant, MemRef, OfferId, OffloadedCall, RankCall, ReceivedDatagram, RecordError, Recording,
    SpId, Transmit,
};
use outboard_shm::memory::{AccessError, MappedBytes, ScatterList};

use crate::ConnectionId;
use crate::memory::deferred_ops::DeferredOps;
use crate::memory::{EndpointMemory, FaultCause, MemoryFault, MemoryLocation, PostedBuffers, ReceivedPayloads};
use crate::telemetry::statistics::CopyCounters;
use crate::telemetry::turns::TurnLength;

/// Limit on rounds of fault reports, since the report of a fault may order work that fails in turn.
const FAULT_ROUNDS: u32 = 64;

#[derive(Debug)]
pub(crate) struct EndpointDriver {
    machine: Endpoint,
    memory: EndpointMemory,
    origin: WallInstant,
}

impl EndpointDriver {
    /// `min_copy_bytes` is the smallest copy that is left to a rank; 0 disables such copies.
    pub(crate) fn new(id: SpId, config: Config, seed: u64, min_copy_bytes: u64) -> Self {
        let mut memory = EndpointMemory::default();
        memory.copy_offers.min_bytes = min_copy_bytes;
        EndpointDriver { machine: Endpoint::new(id, config, seed), memory, origin: WallInstant::now() }
    }

    /// Nanoseconds since the driver was made.
    pub(crate) fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    pub(crate) fn machine(&self) -> &Endpoint {
        &self.machine
    }

    /// Operations in flight, and the ranks or bytes that each operation waits for.
    pub(crate) fn in_flight(&self) -> impl Iterator<Item = InFlightInstance> + '_ {
        self.machine.in_flight(self.now())
    }

    fn drain_orders(&mut self, payloads: ReceivedPayloads<'_>) {
        self.memory.perform(&mut self.machine, payloads);
        for _ in 0..FAULT_ROUNDS {
            let (faults, unallocated) = (self.memory.take_faults(), self.memory.take_unallocated());
            if faults.is_empty() && unallocated.is_empty() {
                return;
            }
            let now = self.now();
            for (group, bytes) in unallocated {
                self.machine.handle_no_memory(now, group, bytes);
                self.memory.perform(&mut self.machine, &[]);
            }
            for (call, cause) in faults {
                match cause {
                    FaultCause::Buffer => self.machine.handle_memory_fault(now, call),
                    FaultCause::RankGone => self.machine.handle_rank_gone(now, call),
                }
                self.memory.perform(&mut self.machine, &[]);
            }
        }
    }

    fn apply(&mut self, input: impl FnOnce(&mut Endpoint, Instant)) {
        let now = self.now();
        input(&mut self.machine, now);
        self.drain_orders(&[]);
    }

    pub(crate) fn offer(&mut self, offer: OfferId) {
        self.machine.handle_offer(offer);
    }

    /// Withdraws an offer with which its rank will not request a group any more.
    pub(crate) fn withdraw(&mut self, offer: OfferId, refused: Option<GroupRefusal>) {
        self.apply(|machine, now| machine.handle_offer_withdrawn(now, offer, refused));
    }

    pub(crate) fn refuse_group(&mut self, spec: &GroupSpec, rank: Rank, why: GroupRefusal) {
        self.apply(|machine, now| machine.handle_refusal(now, spec, rank, why));
    }

    pub(crate) fn create_group(&mut self, spec: &GroupSpec, rank: Rank) {
        self.apply(|machine, now| machine.handle_create_group(now, spec, rank));
    }

    pub(crate) fn leave(&mut self, group: GroupHandle, rank: Rank) {
        self.apply(|machine, now| machine.handle_leave(now, group, rank));
    }

    pub(crate) fn call(&mut self, call: RankCall, buffers: PostedBuffers) {
        self.memory.insert(call.id, buffers);
        self.apply(|machine, now| machine.handle_call(now, call));
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

    /// Frees a recording that the rank no longer needs. Returns false while a call of the recording is in flight.
    pub(crate) fn free_recording(&mut self, group: GroupHandle, rank: Rank, number: u32) -> bool {
        self.machine.handle_free(group, rank, number)
    }

    /// Removes a call that has ended; the call's buffers belong to the rank again.
    pub(crate) fn forget_call(&mut self, call: CallId) {
        self.memory.remove(call);
    }

    /// Stops all access to the buffers of `call`, because the rank that posted the call is gone.
    pub(crate) fn forget_memory(&mut self, call: CallId, rank: Rank) {
        for missing in self.memory.drop_call_work(call, true) {
            self.machine.handle_bytes_lost(missing, CollectiveError::RankLost(rank));
        }
    }

    /// Notes the addresses to which the rank has copied the buffers of a call in flight (GP-9). Returns false if the
    /// buffers would exceed the address space there.
    #[must_use]
    pub(crate) fn restage(&mut self, call: CallId, send: u64, receive: u64) -> bool {
        let restaged = self.memory.restage(call, send, receive);
        self.drain_orders(&[]);
        restaged
    }

    /// Notes that the rank may not access the buffers of this call either: the call fails.
    pub(crate) fn refuse_restage(&mut self, call: CallId) {
        self.memory.refuse_restage(call);
        self.drain_orders(&[]);
    }

    /// Removes and returns the calls whose ranks must be requested to copy the buffers.
    pub(crate) fn take_to_be_staged(&mut self) -> Vec<CallId> {
        self.memory.take_to_be_staged()
    }

    /// The failed access because of which this call fails, if its rank's buffers are the reason.
    pub(crate) fn first_fault(&self, call: CallId) -> Option<AccessError> {
        self.memory.first_fault(call)
    }

    pub(crate) fn frame(&mut self, from: SpId, header: &[u8], payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("the fabric bounds payloads");
        let now = self.now();
        self.machine.handle_frame(now, from, header, length);
        self.drain_orders(&[payload]);
    }

    /// Finds memory for the payload of a frame whose header alone has arrived.
    pub(crate) fn direct_placement(&self, from: SpId, header: &[u8], length: usize) -> Option<ScatterList> {
        let pieces = self.machine.destination(from, header, u32::try_from(length).ok()?);
        if pieces.is_empty() { None } else { self.memory.direct_placement(&pieces) }
    }

    /// Handles a frame whose payload lies in the memory that [`Self::direct_placement`] has just returned.
    pub(crate) fn placed_frame(&mut self, from: SpId, header: &[u8], length: usize) {
        let length = u32::try_from(length).expect("the fabric bounds payloads");
        self.memory.set_placed(self.machine.destination(from, header, length));
        let now = self.now();
        self.machine.handle_frame(now, from, header, length);
        self.drain_orders(&[]);
        self.memory.set_placed(FramePayload::Empty);
    }

    /// Bytes of payload that were received in place, without a copy.
    pub(crate) fn bytes_landed(&self) -> u64 {
        self.memory.bytes_landed
    }

    /// Whether memory for incoming payloads was withdrawn since the last check.
    pub(crate) fn take_withdrawn(&mut self) -> bool {
        self.memory.take_withdrawn()
    }

    pub(crate) fn datagrams(&mut self, batch: &[ReceivedDatagram<'_>], payloads: ReceivedPayloads<'_>) {
        let now = self.now();
        self.machine.handle_datagrams(now, batch);
        self.drain_orders(payloads);
    }

    /// Reports that the memory of a multicast batch has been read, or that the read has failed.
    pub(crate) fn multicast_done(&mut self, token: u64, read: Result<(), MemoryFault>) {
        // The fault is reported first, because the batch may be the last that its collective waits for.
        if let Err(fault) = read {
            self.report_fault(fault);
        }
        self.apply(|machine, now| machine.handle_multicast_done(now, token));
    }

    pub(crate) fn report_peer_lost(&mut self, peer: SpId) {
        self.apply(|machine, now| machine.handle_peer_lost(now, peer));
    }

    /// Reports that the fabric has lost a peer. If descriptors ran out, this service process caused the loss.
    pub(crate) fn lose_peer(&mut self, peer: SpId, why: &PeerLoss) {
        match why {
            PeerLoss::Descriptors => self.apply(|machine, now| machine.handle_no_descriptors(now, peer)),
            _ => self.report_peer_lost(peer),
        }
    }

    /// Reports that the send queue is full of frames to this peer, or has room again.
    pub(crate) fn set_full(&mut self, peer: SpId, full: bool) {
        self.machine.handle_full(peer, full);
    }

    /// Reports that the engine beside the machine has carried out the list of a call, or that the list has failed.
    pub(crate) fn offloaded(&mut self, call: OffloadedCall, carried_out: bool) {
        self.apply(|machine, now| machine.handle_offloaded(now, call, carried_out));
    }

    /// Memory of this process that holds `piece`, for the engine.
    pub(crate) fn resident(&mut self, piece: MemRef) -> Result<MappedBytes, MemoryFault> {
        let place = self.memory.locate_to_read(piece)?;
        Ok(place.resident(piece.len).expect("the engine is given memory of this process alone"))
    }

    /// Calls the machine's timers if they are due; returns whether they were.
    pub(crate) fn timeout(&mut self) -> bool {
        let now = self.now();
        let due = self.machine.poll_timeout().is_some_and(|at| at <= now);
        if due {
            self.apply(Endpoint::handle_timeout);
        }
        due
    }

    /// The time of the next timer or, with `room` to send, of the next transmission, whichever is earlier.
    pub(crate) fn next_call(&self, room: bool) -> Option<Instant> {
        let transmit = self.machine.next_transmit().filter(|_| room);
        self.machine.poll_timeout().into_iter().chain(transmit).min()
    }

    /// The next event. If the event is a failed call, other calls fail too if only the rank of the failed call could
    /// copy their bytes.
    pub(crate) fn poll_event(&mut self) -> Option<Event> {
        let event = self
            .machine
            .poll_event_unless_deferred(|call, failed| self.memory.deferred_ops.holds_back(call, failed))?;
        if let Event::Completed { call, result: Err(error) } = &event {
            for missing in self.memory.drop_call_work(*call, false) {
                self.machine.handle_bytes_lost(missing, error.clone());
            }
            self.drain_orders(&[]);
        }
        Some(event)
    }

    /// The next transmission. Its payload must be read, or a fault reported, before [`Self::transmitted`].
    pub(crate) fn poll_transmit(&mut self) -> Option<Transmit> {
        let now = self.now();
        self.machine.poll_transmit(now)
    }

    /// Whether the machine has ordered work on memory since the last transmission.
    pub(crate) fn has_orders(&self) -> bool {
        self.machine.has_orders()
    }

    /// Does the work on memory that was ordered behind the transmissions; to be called once all polled payloads have
    /// been read.
    pub(crate) fn transmitted(&mut self) {
        self.drain_orders(&[]);
    }

    pub(crate) fn locate(&mut self, piece: MemRef) -> Result<MemoryLocation, MemoryFault> {
        self.memory.locate_to_read(piece)
    }

    /// Polls the rank copies and continues planned work; returns whether anything was done.
    pub(crate) fn poll_rank_copies(&mut self) -> bool {
        let found = self.memory.poll_rank_copies();
        if found {
            self.drain_orders(&[]);
        }
        found
    }

    /// Unfinished work on memory.
    pub(crate) fn deferred_ops(&self) -> &DeferredOps {
        &self.memory.deferred_ops
    }

    pub(crate) fn copies(&self) -> CopyCounters {
        self.memory.copy_offers.copies
    }

    /// Forgets a rank that is gone; the memory of all its calls must have been forgotten before.
    pub(crate) fn forget_copy_agent(&mut self, id: ConnectionId) {
        self.memory.copy_offers.forget_copy_agent(id);
    }

    /// Logs a turn that took longer than the silence after which peers count this process as dead. Called once for each
    /// such turn, before the timers.
    pub(crate) fn report_stall(&mut self, turn: TurnLength) {
        let (limit, seconds) = (self.machine.config().dead_after, turn.ns as f64 / 1e9);
        let off_processor = Duration::from_nanos(turn.off_processor_ns);
        tracing::error!(
            ?off_processor,
            "this service process stalled for {seconds:.1} s in {}; other hosts count it as dead after {limit:?}",
            turn.part
        );
    }

    /// Reports a failed read to the machine at once.
    pub(crate) fn report_fault(&mut self, fault: MemoryFault) {
        self.memory.note_fault(fault);
        self.drain_orders(&[]);
    }
}
