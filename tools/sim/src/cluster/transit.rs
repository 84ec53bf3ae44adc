//! Frames and trains of datagrams on their way from host to host: uplink, switch, downlink.
//!
//! Every function here ends in a scheduled event, or in a loss, which is recorded. The dice decide what is lost, late
//! or doubled. Never touches a service process.

use std::rc::Rc;

use outboard_proto::wire::{DatagramHeader, PayloadHash};
use outboard_proto::{Instant, MulticastBatch, Reach};

use super::{Cluster, ClusterEvent, address_of, trace};
use crate::coverage::FaultKind;
use crate::faults::{Fate, LinkCut, RETRY_LIMIT};
use crate::host::Input;
use crate::network::{Train, TransitFrame};
use crate::store::AccessResult;
use crate::violation::Violation;

impl<P: std::fmt::Debug> Cluster<P> {
    /// Puts a frame on the uplink, or hands it to a sibling.
    pub(super) fn frame_out(&mut self, frame: Rc<TransitFrame>) {
        let (now, host, to) = (self.now(), frame.from, frame.to);
        let latency = self.plan.latency;
        let siblings = self.network.siblings(host, to);
        let link = self.network.uplink(host);
        let mut end = now;
        if siblings {
            self.queue.schedule(now + latency, ClusterEvent::Input { host: to, input: Input::Frame(frame) });
        } else if link.room(now) < frame.wire_bytes {
            link.drop_tail(frame.wire_bytes);
        } else {
            end = link.pass(now, frame.wire_bytes, now).end;
            self.queue.schedule(end + latency, ClusterEvent::FrameAtSwitch(frame));
        }
        self.queue.schedule(end + self.dice.slowness(now), ClusterEvent::FrameLeft { host });
    }

    /// Puts a batch on the uplink, cut into trains.
    pub(super) fn batch_out(&mut self, now: Instant, host: usize, batch: MulticastBatch) {
        let overhead = u64::from(self.hosts[host].sp.config().datagram_overhead);
        let size = u64::from(batch.chunk_bytes);
        let mut done = now;
        let mut first = 0;
        while first < batch.chunks {
            let count = (batch.chunks - first).min(self.plan.train);
            let start = u64::from(first) * size;
            let payload = (batch.memory.len - start).min(u64::from(count) * size);
            let wire_bytes = payload + u64::from(count) * overhead;
            let link = self.network.uplink(host);
            if batch.reach == Reach::Host {
                // Batches within the machine keep to the rate of the link, too, because the link's rate is the pace of
                // the machine.
                let end = done + link.duration(wire_bytes);
                let ready = end + self.plan.latency;
                let starts = ClusterEvent::TrainStarts { host, batch: Box::new(batch), first, count, ready };
                self.queue.schedule(done, starts);
                done = end;
            } else if link.room(now) < wire_bytes {
                link.drop_tail(wire_bytes);
            } else {
                let passage = link.pass(now, wire_bytes, now);
                let ready = passage.end + self.plan.latency;
                let starts = ClusterEvent::TrainStarts { host, batch: Box::new(batch), first, count, ready };
                self.queue.schedule(passage.start, starts);
                done = passage.end;
            }
            first += count;
        }
        done = done + self.dice.slowness(now);
        self.queue.schedule(done, ClusterEvent::Input { host, input: Input::MulticastDone { token: batch.token } });
    }

    pub(super) fn train_starts(
        &mut self,
        now: Instant,
        host: usize,
        batch: &MulticastBatch,
        (first, count): (u32, u32),
        ready: Instant,
    ) -> Result<(), Violation> {
        if self.hosts[host].dead {
            return Ok(());
        }
        let size = u64::from(batch.chunk_bytes);
        let start = u64::from(first) * size;
        let mut memory = batch.memory;
        memory.offset += start;
        memory.len = (memory.len - start).min(u64::from(count) * size);
        let payload = match self.hosts[host].memory.read(memory)? {
            AccessResult::Done(payload) => payload,
            AccessResult::Fault(call) => {
                self.hosts[host].memory_fault(now, call)?;
                self.begin_actions(host);
                return Ok(());
            }
        };
        let header = |i| DatagramHeader { chunk: batch.header.chunk.wrapping_add(first + i), ..batch.header };
        let hasher = batch.key.hasher();
        let part = |i| (u64::from(i) * size, (memory.len - u64::from(i) * size).min(size));
        let hash = |(offset, len)| payload.hash(&hasher, offset, len);
        let hashes: Vec<PayloadHash> = (0..count).map(part).map(hash).collect();
        let train = Train {
            from: host,
            channel: batch.channel,
            headers: (0..).zip(&hashes).map(|(i, hash)| header(i).encode(&batch.key, batch.instance, *hash)).collect(),
            hashes,
            key: batch.key,
            instance: batch.instance,
            address: address_of(self.network.link_of(host)),
            payload,
            payload_len: memory.len,
            chunk_bytes: batch.chunk_bytes,
            overhead: self.hosts[host].sp.config().datagram_overhead,
            ready,
        };
        let one = self.network.uplink(host).duration(train.wire_bytes(1));
        let train = Rc::new(train);
        if batch.reach != Reach::Network {
            self.loop_back(&train);
        }
        if batch.reach != Reach::Host {
            let at = now + one + self.plan.latency;
            self.queue.schedule(at, ClusterEvent::TrainAtSwitch(train));
        }
        Ok(())
    }

    /// Loops a train back to the sender's siblings, like copies by the kernel.
    fn loop_back(&mut self, train: &Rc<Train>) {
        for host in self.network.receivers(train.channel).iter().copied() {
            if host != train.from && self.network.siblings(host, train.from) {
                let input = Input::Datagrams(Rc::clone(train), train.all());
                self.queue.schedule(train.ready, ClusterEvent::Input { host, input });
            }
        }
    }

    pub(super) fn train_at_switch(&mut self, now: Instant, train: &Rc<Train>) {
        let among = self.dice.past_uplink(now, train.all());
        let (receivers, siblings) = (self.network.receivers(train.channel), self.plan.siblings);
        // Siblings share a downlink and its losses.
        for hosts in receivers.chunk_by(|one, other| one / siblings == other / siblings) {
            let link = self.network.link_of(hosts[0]);
            if link == self.network.link_of(train.from) {
                continue;
            }
            let (fit, at) = self.network.train_down(now, link, train, among);
            let fate = self.dice.datagrams(now, fit);
            for host in hosts {
                self.train_arrives(now, at, train, *host, &fate);
            }
        }
    }

    fn train_arrives(&mut self, now: Instant, at: Instant, train: &Rc<Train>, host: usize, fate: &Fate) {
        self.forge(now, train, host);
        let reached = if self.is_cut(now, train.from, host) { 0 } else { u64::MAX };
        let lost = train.all() & !(reached & (fate.pass | fate.late));
        if lost != 0 {
            self.note_loss(train.from, host, || trace::train(train, lost));
        }
        let at = at + self.plan.latency + fate.jitter;
        let late = at + fate.late_by;
        for (mask, at) in [(fate.pass, at), (fate.late, late), (fate.again, late)] {
            if reached & mask != 0 {
                self.reaches(at, host, Input::Datagrams(Rc::clone(train), mask));
            }
        }
        if reached & fate.replayed.0 != 0 {
            let input = Input::Datagrams(Rc::clone(train), fate.replayed.0);
            self.queue.schedule(at + fate.replayed.1, ClusterEvent::Input { host, input });
        }
    }

    /// An input that arrives before the host wakes only joins the inbox, so it needs no event.
    fn reaches(&mut self, at: Instant, host: usize, input: Input) {
        let inbox = &mut self.inboxes[host];
        if self.trace.is_none() && !inbox.is_empty() && at < inbox.wakes.0 {
            inbox.enqueue(self.queue.reserve(at), input);
        } else {
            self.queue.schedule(at, ClusterEvent::Input { host, input });
        }
    }

    pub(super) fn frame_at_switch(&mut self, now: Instant, frame: &Rc<TransitFrame>) {
        let Some(at) = self.network.frame_down(now, frame) else {
            return self.note_loss(frame.from, frame.to, || trace::frame(&frame.header, frame.payload_len));
        };
        let fate = self.dice.frame(now);
        let held = self.held_until(now, frame.from, frame.to);
        if held.is_none() && self.is_cut(now, frame.from, frame.to) || fate.pass | fate.late == 0 {
            return self.note_loss(frame.from, frame.to, || trace::frame(&frame.header, frame.payload_len));
        }
        let mut at = held.map_or(at, |until| until.max(at)) + self.plan.latency + fate.jitter;
        if self.dice.jitters() || !self.backoff.is_zero() {
            let in_order = self.in_order.entry((frame.from, frame.to)).or_default();
            at = at.max(*in_order);
            if fate.pass != 0 {
                *in_order = at;
            }
        }
        let later = at + fate.late_by;
        for (mask, at) in [(fate.pass, at), (fate.late, later), (fate.again, later)] {
            if mask != 0 {
                let (frame, connection) = (Rc::clone(frame), self.connection(frame));
                let event = match held {
                    Some(_) => ClusterEvent::FrameHeld { frame, connection },
                    None => ClusterEvent::Input { host: frame.to, input: Input::Frame(frame) },
                };
                self.queue.schedule(at, event);
            }
        }
    }

    /// The number of the connection by which a frame would leave now.
    pub(super) fn connection(&self, frame: &TransitFrame) -> u32 {
        self.connections.get(&(frame.from, frame.to)).copied().unwrap_or(0)
    }

    /// When a connection that waits behind a cut resumes; `None` if it does not wait.
    fn held_until(&mut self, now: Instant, from: usize, to: usize) -> Option<Instant> {
        let begun = |cut: &&LinkCut| (cut.from, cut.to) == (from, to) && Instant(0) + cut.at <= now;
        let goes_on = |cut: &LinkCut| Instant(0) + cut.end() + self.backoff;
        let until = self.cuts.iter().filter(begun).map(goes_on).max().filter(|_| !self.backoff.is_zero())?;
        let held = now < until && until.since(now) < RETRY_LIMIT;
        self.dice.coverage.fault(FaultKind::FrameHeld, held.into());
        held.then_some(until)
    }

    fn is_cut(&mut self, now: Instant, from: usize, to: usize) -> bool {
        let lasts = |at, until| at <= now && now < until;
        let black = self.blackouts.iter().any(|(host, at, until)| *host == to && lasts(*at, *until));
        let cut = self.cuts.iter().any(|cut| {
            let at = Instant(0) + cut.at;
            (cut.from, cut.to) == (from, to) && lasts(at, at + cut.lasting)
        });
        self.dice.coverage.fault(FaultKind::Blackout, black.into());
        self.dice.coverage.fault(FaultKind::Cut, cut.into());
        black || cut
    }
}
