//! Streams: sending and receiving chunks, detecting lost ones, and the ring that repairs them (MC-5 to MC-7).

use std::time::Duration;

use outboard_proto::Instant;
use outboard_proto::models::Patience;
use outboard_proto::wire::MAX_RANGES;

use super::accelerator::FinishedCompletion;
use super::packet::{ChunkRanges, ChunkStream, DatapathContent, DatapathPacket, ReliableMessage};
use super::progress::CallTiming;
use super::settings::Transport;
use super::{ArrivedChunk, DatapathEngine, MemberKey};
use crate::engine::{AddressSpace, MemorySegment, NicOrder, NodeId, Output};

impl DatapathEngine {
    fn patience(&self) -> Patience {
        let silence = Duration::from_nanos(self.settings.patience);
        Patience { middle: silence, end: silence, last: self.settings.batch }
    }

    /// The place in staging of a thread's receive.
    fn staged(&self, thread: u32, receive: u32, len: u64) -> MemorySegment {
        let number = u64::from(thread) * u64::from(self.settings.receives) + u64::from(receive);
        MemorySegment { region: AddressSpace::Nic, address: number * u64::from(self.settings.packet_bytes), len }
    }

    /// Hands a chunk to every rank of this node except its source.
    pub(super) fn handle_chunk(
        &mut self,
        node: NodeId,
        packet: &DatapathPacket,
        subgroup: u16,
        (psn, bytes): (u32, u32),
    ) {
        let stream = ChunkStream { source: packet.from, subgroup };
        let of_job = self.members.range((packet.job, 0)..=(packet.job, u16::MAX));
        let others = of_job.filter(|(_, member)| member.membership.rank != packet.from);
        let keys: Vec<MemberKey> = others.map(|(key, _)| *key).collect();
        for key in keys {
            let member = &self.members[&key];
            if member.membership.accepts_from(packet.from, node) {
                match member.timing_of(packet.call) {
                    CallTiming::Now => self.receive(key, packet.call, stream, (psn, bytes)),
                    CallTiming::Late => {}
                    CallTiming::Next => unreachable!("nobody multicasts before all have entered"),
                }
            }
        }
    }

    /// Puts a chunk into a receive of its thread, or straight into its place.
    fn receive(&mut self, key: MemberKey, call: u64, stream: ChunkStream, (psn, bytes): (u32, u32)) {
        let running = self.running(key);
        let worker = running.workers[&stream.subgroup];
        let span = running.span_of(stream, u64::from(psn)..u64::from(psn) + 1);
        assert_eq!(span.len, u64::from(bytes), "a chunk is as long as its place");
        let Some(receive) = self.accelerator.complete(self.now, worker.thread, ArrivedChunk { key, call, stream, psn })
        else {
            self.counters.not_ready += 1;
            return;
        };
        let to = match self.settings.transport {
            Transport::Datagrams => self.staged(worker.thread, receive, span.len),
            Transport::Writes { .. } => self.members[&key].place(span),
        };
        self.outputs.push_back(Output::by_nic(NicOrder::Deliver { to }));
    }

    /// Handles a finished completion: sets the chunk's bit, and copies a datagram to its place.
    pub(super) fn handle_finished(&mut self, done: &FinishedCompletion<ArrivedChunk>) {
        let ArrivedChunk { key, call, stream, psn } = done.completion;
        let instant = Instant(self.now);
        let runs = self.members.get(&key).is_some_and(|member| member.timing_of(call) == CallTiming::Now);
        let is_new = runs && self.running(key).block(stream).handle_chunk(instant, psn.into());
        if !is_new {
            return;
        }
        if self.settings.transport == Transport::Datagrams {
            let span = self.running(key).span_of(stream, u64::from(psn)..u64::from(psn) + 1);
            let (from, to) = (self.staged(done.thread, done.receive, span.len), self.members[&key].place(span));
            self.outputs.push_back(Output::by_nic(NicOrder::Copy { from, to }));
        }
        self.handle_new_chunks(key, stream);
    }

    /// Handles new chunks of another rank's stream.
    fn handle_new_chunks(&mut self, key: MemberKey, stream: ChunkStream) {
        self.rearm_loss_check(key, stream);
        self.schedule_repair(key, stream);
        let running = self.running(key);
        if running.block(stream).is_full() {
            running.finish_stream(stream);
            running.complete_for_worker(stream.subgroup);
            self.schedule_report(key, stream);
        }
        self.advance(key);
    }

    fn rearm_loss_check(&mut self, key: MemberKey, stream: ChunkStream) {
        let (now, patience) = (Instant(self.now), self.patience());
        let running = self.running(key);
        let (before, after) = running.block(stream).rearm_loss_check(now, patience);
        running.checks.change(stream, before, after);
    }

    /// Schedules a repair if the right neighbour has requested chunks that are here now.
    fn schedule_repair(&mut self, key: MemberKey, stream: ChunkStream) {
        let running = self.running(key);
        if running.block(stream).has_repair() {
            running.serving.insert(stream);
            self.queue_member(key);
        }
    }

    /// Schedules a report to the right neighbour that the stream is complete, unless the neighbour lacks nothing
    /// already.
    fn schedule_report(&mut self, key: MemberKey, stream: ChunkStream) {
        let at = self.now.saturating_add(self.settings.patience / 2);
        let running = self.running(key);
        if running.right_lacks {
            running.complete_streams.push(stream);
            running.report_at.get_or_insert(at);
        }
    }

    /// Handles what is due: requests lost chunks, and reports complete streams to the right neighbour.
    pub(super) fn handle_due(&mut self, key: MemberKey) {
        let (now, patience) = (Instant(self.now), self.patience());
        let (left, right) = self.members[&key].neighbours();
        let Some(running) = self.members.get_mut(&key).and_then(|member| member.running.as_mut()) else { return };
        let mut due = Vec::new();
        while let Some(stream) = running.checks.pop_due(now) {
            due.push(stream);
        }
        let mut naks: Vec<(ChunkStream, ChunkRanges)> = Vec::new();
        for stream in due {
            let asking = running.block(stream).detect_losses(now, patience);
            running.checks.change(stream, None, asking.next);
            naks.extend(asking.ranges.chunks(MAX_RANGES).map(|ranges| (stream, ranges.to_vec())));
        }
        let reports = running.report_at.take_if(|at| *at <= now.0).is_some();
        let complete_streams = if reports { std::mem::take(&mut running.complete_streams) } else { Vec::new() };
        naks.into_iter()
            .for_each(|(stream, ranges)| self.send_message(key, left, ReliableMessage::Nak(stream, ranges), None));
        complete_streams
            .into_iter()
            .for_each(|stream| self.send_message(key, right, ReliableMessage::StreamComplete(stream), None));
    }

    /// Handles a request of the right neighbour; chunks that are missing here, too, are reported to their source.
    pub(super) fn handle_nak(&mut self, key: MemberKey, stream: ChunkStream, ranges: &[(u32, u32)]) {
        let running = self.running(key);
        let mut lacking = Vec::new();
        let block = running.block(stream);
        for (first, count) in ranges {
            block.handle_nak(u64::from(*first)..u64::from(*first) + u64::from(*count), &mut lacking);
        }
        self.schedule_repair(key, stream);
        for ranges in lacking.chunks(MAX_RANGES) {
            self.send_message(key, stream.source, ReliableMessage::Missing(stream, ranges.to_vec()), None);
        }
    }

    /// Handles a leaf's report of chunks that the leaf and its right neighbour lack. Reports of half of the leaves
    /// trigger a resend.
    pub(super) fn handle_missing(&mut self, key: MemberKey, stream: ChunkStream, ranges: &[(u32, u32)]) {
        let running = self.running(key);
        let enough = (running.post.program.ranks - 1).div_ceil(2).max(2);
        let block = running.block(stream);
        for (first, count) in ranges {
            block.handle_nak_root(u64::from(*first)..u64::from(*first) + u64::from(*count), enough);
        }
        self.queue_member(key);
    }

    pub(super) fn handle_repair(
        &mut self,
        key: MemberKey,
        stream: ChunkStream,
        (first, count): (u32, u32),
        bytes: u64,
    ) {
        let running = self.running(key);
        let run = u64::from(first)..u64::from(first) + u64::from(count);
        let span = running.span_of(stream, run.clone());
        assert_eq!(span.len, bytes, "chunks are as long as their place");
        let mut new = Vec::new();
        running.block(stream).handle_repair(run, &mut new);
        if new.is_empty() {
            return;
        }
        let to = self.members[&key].place(span);
        self.outputs.push_back(Output::by_nic(NicOrder::Deliver { to }));
        self.handle_new_chunks(key, stream);
    }

    /// Handles the left neighbour's report that it has the complete stream.
    pub(super) fn handle_stream_complete(&mut self, key: MemberKey, stream: ChunkStream) {
        let now = Instant(self.now);
        self.running(key).block(stream).handle_have(now);
        self.rearm_loss_check(key, stream);
    }

    /// Handles the right neighbour's report that it lacks nothing (MC-7).
    pub(super) fn handle_complete(&mut self, key: MemberKey) {
        let running = self.running(key);
        assert!(std::mem::replace(&mut running.right_lacks, false), "the right neighbour says so once");
        (running.complete_streams, running.report_at) = Default::default();
        running.serving.clear();
        running.blocks.values_mut().for_each(|block| block.stop_serving());
    }

    /// Queues a member that may have something to send.
    pub(super) fn queue_member(&mut self, key: MemberKey) {
        if !self.sending.contains(&key) {
            self.sending.push_back(key);
        }
    }

    /// Sends repairs or a batch of the next queued member; members take turns. False when no member is queued.
    pub(super) fn send_next(&mut self) -> bool {
        let Some(key) = self.sending.pop_front() else { return false };
        if self.members[&key].running.is_some() && (self.repair(key) || self.multicast(key)) {
            self.queue_member(key);
        }
        true
    }

    /// Sends chunks to the right neighbour. False when no chunk that it requested is here.
    fn repair(&mut self, key: MemberKey) -> bool {
        let (_, right) = self.members[&key].neighbours();
        let most = self.settings.batch;
        let running = self.running(key);
        while let Some(stream) = running.serving.first().copied() {
            let runs = running.block(stream).next_repair(most);
            if runs.is_empty() {
                running.serving.remove(&stream);
                continue;
            }
            for run in runs {
                let from = self.running(key).span_of(stream, run.clone());
                let place = self.members[&key].place(from);
                self.counters.repaired += from.len;
                let chunks = (run.start as u32, (run.end - run.start) as u32);
                self.send_message(key, right, ReliableMessage::Repair(stream, chunks, from.len), Some(place));
            }
            return true;
        }
        false
    }

    /// Multicasts a batch. False when there is no batch.
    fn multicast(&mut self, key: MemberKey) -> bool {
        let member = self.members.get_mut(&key).expect("it is open");
        let running = member.running.as_mut().expect("a call runs");
        let source = running.post.program.rank;
        let own = ChunkStream { source, subgroup: 0 }..=ChunkStream { source, subgroup: u16::MAX };
        let Some((stream, block)) = running.blocks.range_mut(own).find(|(_, block)| block.has_batch()) else {
            return false;
        };
        let stream = *stream;
        let (run, _again) = block.next_batch(self.settings.batch, 1).expect("it has one");
        let now_full = block.handle_sent(run.clone());
        let (call, to) = (running.call, member.nodes.clone());
        for psn in run {
            let payload = member.place(member.running.as_ref().expect("a call runs").span_of(stream, psn..psn + 1));
            let content =
                DatapathContent::Chunk { subgroup: stream.subgroup, psn: psn as u32, bytes: payload.len as u32 };
            let packet = DatapathPacket { job: key.0, call, from: source, content };
            self.outputs.push_back(Output::Multicast { to: to.clone(), packet, payload });
        }
        self.schedule_repair(key, stream);
        if now_full {
            self.running(key).finish_stream(stream);
            self.schedule_report(key, stream);
            self.advance(key);
        }
        true
    }
}
