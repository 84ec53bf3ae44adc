//! One service process with the bookkeeping of its driver: buffers, staging, joined channels, calls.
//!
//! Invariant: whatever the machine names was handed to it and lies within its bounds, or this panics as the daemon would.

use std::collections::{BTreeMap, BTreeSet};

use outboard_plan::Rank;
use outboard_proto::wire::{DATAGRAM_HEADER_BYTES, DatagramHeader};
use outboard_proto::{
    Call, CallId, Channel, CollectiveError, Config, Event, GroupHandle, GroupSpec, Instant, MemRef, MulticastBatch,
    Order, ReceivedDatagram, Region, ServiceProcess, SpId, StagingId, Transmit,
};

/// Lengths of a call's buffers.
#[derive(Debug, Clone, Copy)]
pub(super) struct Buffers {
    pub(super) input: u64,
    pub(super) output: u64,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Machine {
    sp: ServiceProcess,
    quota: u64,
    calls: BTreeMap<CallId, (Call, Buffers)>,
    staging: BTreeMap<StagingId, u64>,
    joined: BTreeSet<Channel>,
    made: BTreeSet<(GroupHandle, u32)>,
    results: Vec<(Call, Result<(), CollectiveError>)>,
}

impl Machine {
    pub(super) fn new(id: SpId, config: Config) -> Self {
        Machine {
            quota: config.staging_quota + config.owner_scratch_quota,
            sp: ServiceProcess::new(id, config, id.0),
            calls: BTreeMap::new(),
            staging: BTreeMap::new(),
            joined: BTreeSet::new(),
            made: BTreeSet::new(),
            results: Vec::new(),
        }
    }

    pub(super) fn id(&self) -> SpId {
        self.sp.id()
    }

    pub(super) fn has_joined(&self, channel: Channel) -> bool {
        self.joined.contains(&channel)
    }

    pub(super) fn is_made(&self, group: GroupHandle, rank: Rank) -> bool {
        self.made.contains(&(group, rank.0))
    }

    pub(super) fn results(&self) -> impl Iterator<Item = (&Call, &Result<(), CollectiveError>)> {
        self.results.iter().map(|(call, result)| (call, result))
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.sp.poll_timeout().into_iter().chain(self.sp.next_transmit()).min()
    }

    pub(super) fn ask(&mut self, now: Instant, spec: &GroupSpec, rank: Rank) {
        self.sp.handle_create_group(now, spec, rank);
        self.settle(&[]);
    }

    pub(super) fn call(&mut self, now: Instant, call: Call, buffers: Buffers) {
        self.calls.insert(call.id, (call.clone(), buffers));
        self.sp.handle_call(now, call);
        self.settle(&[]);
    }

    pub(super) fn leave(&mut self, now: Instant, group: GroupHandle, rank: Rank) {
        self.sp.handle_leave(now, group, rank);
        self.settle(&[]);
    }

    pub(super) fn lose(&mut self, now: Instant, peer: SpId) {
        self.sp.handle_peer_lost(now, peer);
        self.settle(&[]);
    }

    pub(super) fn timeout(&mut self, now: Instant) {
        self.sp.handle_timeout(now);
        self.settle(&[]);
    }

    pub(super) fn frame(&mut self, now: Instant, from: SpId, header: &[u8], payload: u32) {
        self.sp.handle_frame(now, from, header, payload);
        self.settle(&[payload]);
    }

    pub(super) fn datagrams(&mut self, now: Instant, headers: &[[u8; DATAGRAM_HEADER_BYTES]], payloads: &[u32]) {
        let batch: Vec<_> = headers
            .iter()
            .zip(payloads)
            .map(|(header, payload_len)| ReceivedDatagram { header, payload_len: *payload_len })
            .collect();
        self.sp.handle_datagrams(now, &batch);
        self.settle(payloads);
    }

    pub(super) fn multicast_done(&mut self, now: Instant, token: u64) {
        self.sp.handle_multicast_done(now, token);
        self.settle(&[]);
    }

    pub(super) fn transmit(&mut self, now: Instant) -> Option<Transmit> {
        let transmit = self.sp.poll_transmit(now)?;
        match &transmit {
            Transmit::Frame { payload, .. } => payload.iter().for_each(|piece| self.check(piece)),
            Transmit::Multicast(batch) => self.check(&batch.memory),
        }
        self.settle(&[]);
        Some(transmit)
    }

    /// Orders, then events, as the daemon does.
    fn settle(&mut self, payloads: &[u32]) {
        while let Some(order) = self.sp.poll_order() {
            match order {
                Order::Stage { id, bytes } => {
                    assert!(self.staging.insert(id, bytes).is_none(), "{id:?} is staged twice");
                    assert!(self.staging.values().sum::<u64>() <= self.quota, "the quotas hold");
                }
                Order::Unstage { id } => assert!(self.staging.remove(&id).is_some(), "{id:?} is not staged"),
                Order::Copy { from, to } => {
                    assert_eq!(from.len, to.len, "copies have equal lengths");
                    self.check(&from);
                    self.check(&to);
                }
                Order::Reduce { from, into, reduction, .. } => {
                    assert_eq!(from.len, into.len, "operands have equal lengths");
                    assert!(from.len.is_multiple_of(reduction.element().bytes()), "operands are whole elements");
                    self.check(&from);
                    self.check(&into);
                }
                Order::Deliver { payload, offset, to } => {
                    let end = u64::from(offset) + to.len;
                    assert!(end <= u64::from(payloads[payload as usize]), "beyond the payload: {to:?} at {offset}");
                    self.check(&to);
                }
            }
        }
        while let Some(event) = self.sp.poll_event() {
            self.note(event);
        }
        let (groups, collectives, backlog) = self.sp.load();
        assert!(groups <= 2 && collectives <= 2 * 1024 && backlog <= 16_384, "bounds: {:?}", self.sp.load());
    }

    fn note(&mut self, event: Event) {
        match event {
            Event::Join(channel) => assert!(self.joined.insert(channel), "{channel:?} is joined twice"),
            Event::Leave(channel) => assert!(self.joined.remove(&channel), "{channel:?} was not joined"),
            Event::GroupReady { group, rank, result: Ok(()) } => {
                assert!(self.made.insert((group, rank.0)), "{rank} of {group} is answered twice");
            }
            Event::GroupReady { .. } => {}
            Event::Completed { call, result } => {
                let (call, _) = self.calls.remove(&call).unwrap_or_else(|| panic!("{call:?} is answered twice"));
                self.results.push((call, result));
            }
            Event::Connect { .. }
            | Event::Disconnect { .. }
            | Event::Late { .. }
            | Event::Overdue(_)
            | Event::Step { .. }
            | Event::Violation { .. } => {}
        }
    }

    fn check(&self, piece: &MemRef) {
        let length = match piece.region {
            Region::Input(call) => self.buffers(call).input,
            Region::Output(call) => self.buffers(call).output,
            Region::Staging(id) => *self.staging.get(&id).unwrap_or_else(|| panic!("{id:?} is not staged")),
        };
        let end = piece.offset.checked_add(piece.len);
        assert!(end.is_some_and(|end| end <= length), "{piece:?} reaches beyond {length} bytes");
    }

    fn buffers(&self, call: CallId) -> Buffers {
        self.calls.get(&call).unwrap_or_else(|| panic!("{call:?} is not in flight")).1
    }

    /// No call waits.
    pub(super) fn check_answered(&self) {
        let waiting: Vec<_> = self.calls.values().map(|(call, _)| call).collect();
        assert!(waiting.is_empty(), "never answered: {waiting:?}");
    }

    /// Nothing is left of groups that all ranks have left.
    pub(super) fn check_empty(&self) {
        self.check_answered();
        let (groups, collectives, _) = self.sp.load();
        assert_eq!((groups, collectives), (0, 0), "groups outlive their ranks");
        assert!(self.staging.is_empty(), "staging outlives its groups: {:?}", self.staging);
        assert!(self.joined.is_empty(), "channels outlive their groups");
    }
}

/// The datagrams of a batch as receivers get them.
pub(super) fn datagrams_of(batch: &MulticastBatch) -> (Vec<[u8; DATAGRAM_HEADER_BYTES]>, Vec<u32>) {
    let header = |at: u32| DatagramHeader { chunk: batch.header.chunk.wrapping_add(at), ..batch.header };
    let payload = |at: u32| {
        let start = u64::from(at) * u64::from(batch.chunk_bytes);
        (batch.memory.len - start).min(batch.chunk_bytes.into()) as u32
    };
    (0..batch.chunks).map(|at| (header(at).encode(batch.key), payload(at))).unzip()
}
