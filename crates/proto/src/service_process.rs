//! The machine of one service process: its groups, its links, and everything in flight.

use outboard_plan::Rank;

use crate::config::Config;
use crate::ids::{CallId, GroupHandle, Instant, SpId};
use crate::interface::{Call, Counters, Event, GroupSpec, Order, ReceivedDatagram, Transmit};

/// The protocol of one service process. See the crate's documentation for how it is driven.
#[derive(Debug)]
pub struct ServiceProcess {
    id: SpId,
    config: Config,
    counters: Counters,
}

impl ServiceProcess {
    /// A service process without groups. `seed` feeds the jitter of its timers.
    #[must_use]
    pub fn new(id: SpId, config: Config, seed: u64) -> Self {
        let _ = seed;
        ServiceProcess { id, config, counters: Counters::default() }
    }

    /// Who this is.
    #[must_use]
    pub fn id(&self) -> SpId {
        self.id
    }

    /// What it was told at its start.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What it has counted.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// A local rank asks for a group. Answered by [`Event::GroupReady`] for every local rank that asks.
    pub fn handle_create_group(&mut self, now: Instant, spec: &GroupSpec, rank: Rank) {
        let _ = (now, spec, rank);
    }

    /// A local rank leaves a group in order (it has no call in flight there) or because its process died. Its calls in
    /// flight end with an error on all ranks that need it; `Completed` is still reported for each of them.
    pub fn handle_leave(&mut self, now: Instant, group: GroupHandle, rank: Rank) {
        let _ = (now, group, rank);
    }

    /// A local rank calls a collective. Answered by exactly one [`Event::Completed`].
    pub fn handle_call(&mut self, now: Instant, call: Call) {
        let _ = (now, call);
    }

    /// A frame has arrived: `header` without payload, and how many payload bytes came with it.
    pub fn handle_frame(&mut self, now: Instant, from: SpId, header: &[u8], payload_len: u32) {
        let _ = (now, from, header, payload_len);
    }

    /// Datagrams have arrived. Allocates nothing per datagram.
    pub fn handle_datagrams(&mut self, now: Instant, batch: &[ReceivedDatagram<'_>]) {
        let _ = (now, batch);
    }

    /// The memory of a multicast batch has been read.
    pub fn handle_multicast_done(&mut self, now: Instant, token: u64) {
        let _ = (now, token);
    }

    /// The buffers of a call cannot be accessed.
    pub fn handle_memory_fault(&mut self, now: Instant, call: CallId) {
        let _ = (now, call);
    }

    /// The fabric knows that a peer is gone.
    pub fn handle_peer_lost(&mut self, now: Instant, peer: SpId) {
        let _ = (now, peer);
    }

    /// Time has passed. Harmless when called early.
    pub fn handle_timeout(&mut self, now: Instant) {
        let _ = now;
    }

    /// The next work on memory, to be done before anything else. See [`Order`].
    pub fn poll_order(&mut self) -> Option<Order> {
        None
    }

    /// The next thing to send at `now`. Not polled while the fabric is full.
    pub fn poll_transmit(&mut self, now: Instant) -> Option<Transmit> {
        let _ = now;
        None
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        None
    }

    /// When [`Self::handle_timeout`] (followed by the polls) is due. To be asked again after every other call.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        None
    }
}
