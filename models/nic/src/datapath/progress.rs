//! Progress of a call: the ready barrier, steps that may start, messages between ranks, the end.

use outboard_plan::{Op, OpId, Rank, Span};

use super::call::{DatapathCall, MessageId, ReceiveState};
use super::packet::{DatapathContent, DatapathPacket, ReliableMessage};
use super::{DatapathEngine, DatapathMember, MemberKey};
use crate::engine::{Executor, MemorySegment, NicOrder, NodeId, Output};

/// The relation of a packet's call to the calls of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CallTiming {
    Late,
    Now,
    Next,
}

impl DatapathMember {
    pub(super) fn timing_of(&self, call: u64) -> CallTiming {
        match call.checked_sub(self.begun) {
            None if call + 1 == self.begun && self.running.is_some() => CallTiming::Now,
            None => CallTiming::Late,
            Some(ahead) => {
                assert_eq!(ahead, 0, "nobody is two calls ahead");
                CallTiming::Next
            }
        }
    }

    /// The left and right neighbours in the ring.
    pub(super) fn neighbours(&self) -> (Rank, Rank) {
        let (rank, ranks) = (self.membership.rank.0, self.membership.ranks());
        (Rank((rank + ranks - 1) % ranks), Rank((rank + 1) % ranks))
    }

    pub(super) fn place(&self, span: Span) -> MemorySegment {
        let memory = self.running.as_ref().expect("a call runs").post.memory;
        self.membership.place(memory, span, 1)
    }
}

impl DatapathEngine {
    /// The running call of a member, which must exist.
    pub(super) fn running(&mut self, key: MemberKey) -> &mut DatapathCall {
        let member = self.members.get_mut(&key).expect("it is open");
        member.running.as_mut().expect("a call runs")
    }

    /// Progresses the calls of a member as far as possible.
    pub(super) fn advance(&mut self, key: MemberKey) {
        loop {
            let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) else {
                return;
            };
            let (left, _) = member.neighbours();
            let Some(running) = &mut member.running else {
                if member.queue.is_empty() {
                    return;
                }
                self.begin(key);
                continue;
            };
            if !running.barrier.done() {
                return;
            }
            if running.completion_unsent && running.has_all_streams() {
                running.completion_unsent = false;
                self.send_message(key, left, ReliableMessage::Complete, None);
            } else if let Some(id) = running.run.next_ready() {
                self.start(key, id);
            } else if running.has_ended() {
                self.end(key);
            } else {
                return;
            }
        }
    }

    /// Begins the next call of a member, which enters its ready barrier.
    fn begin(&mut self, key: MemberKey) {
        let member = self.members.get_mut(&key).expect("it is open");
        let post = member.queue.pop_front().expect("a call is queued");
        let mut running =
            DatapathCall::new(post, member.begun, self.settings.chunk_bytes(), || self.accelerator.assign_queue());
        member.begun += 1;
        let mut ready = Vec::new();
        running.barrier.enter(&mut ready);
        for (from, round) in std::mem::take(&mut member.early) {
            assert!(running.barrier.handle(from.0, round, &mut ready), "it was looked at when it came");
        }
        member.running = Some(running);
        self.send_ready(key, ready);
    }

    fn send_ready(&mut self, key: MemberKey, ready: Vec<(u32, u8)>) {
        for (to, round) in ready {
            self.send_message(key, Rank(to), ReliableMessage::Ready(round), None);
        }
    }

    fn end(&mut self, key: MemberKey) {
        let member = self.members.get_mut(&key).expect("it is open");
        let running = member.running.take().expect("a call runs");
        running.workers.values().for_each(|worker| self.accelerator.release_queue(worker.thread));
        self.outputs.push_back(Output::completed(key, Ok(())));
    }

    /// Sends a message to another rank of the running call.
    pub(super) fn send_message(
        &mut self,
        key: MemberKey,
        to: Rank,
        message: ReliableMessage,
        payload: Option<MemorySegment>,
    ) {
        let member = &self.members[&key];
        let call = member.running.as_ref().expect("a call runs").call;
        let (node, _) = member.membership.port_of(to);
        let packet = DatapathPacket {
            job: key.0,
            call,
            from: member.membership.rank,
            content: DatapathContent::Reliable { to, message },
        };
        self.outputs.push_back(Output::Transmit {
            by: Executor::Nic(0),
            to: node,
            packet,
            payload: payload.into_iter().collect(),
        });
    }

    fn start(&mut self, key: MemberKey, id: OpId) {
        let member = self.members.get_mut(&key).expect("it is open");
        let running = member.running.as_mut().expect("a call runs");
        if running.run.is_done(id) {
            return;
        }
        match running.run.op(id) {
            Op::Send { to, index, span } => {
                if span.is_empty() {
                    running.run.complete(id);
                } else {
                    running.sends.insert((to, index), id);
                }
                self.send_message(key, to, ReliableMessage::Offer(index), None);
            }
            Op::Recv { from, index, .. } => {
                let receive = running.receives.get_mut(&(from, index)).expect("it is a receive of the program");
                match receive.state {
                    ReceiveState::Offered => self.read(key, (from, index)),
                    ReceiveState::Idle => receive.state = ReceiveState::Posted,
                    ReceiveState::Posted | ReceiveState::Reading => unreachable!("a step starts once"),
                }
            }
            Op::Copy { from, to } => {
                running.run.complete(id);
                let (from, to) = (member.place(from), member.place(to));
                self.outputs.push_back(Output::by_nic(NicOrder::Copy { from, to }));
            }
            Op::Multicast { span } if span.is_empty() || running.post.program.ranks == 1 => running.run.complete(id),
            Op::Multicast { .. } => {
                let rank = running.post.program.rank;
                let own = running.blocks.iter_mut().filter(|(stream, _)| stream.source == rank);
                own.for_each(|(_, block)| block.start());
                self.queue_member(key);
            }
            Op::MulticastRecv { span, .. } if span.is_empty() => running.run.complete(id),
            Op::MulticastRecv { .. } => {}
            Op::Reduce { .. } => unreachable!("programs that combine are refused"),
        }
    }

    /// Reads a message that its sender has offered.
    fn read(&mut self, key: MemberKey, name: MessageId) {
        let running = self.running(key);
        let receive = running.receives.get_mut(&name).expect("it is a receive of the program");
        if receive.span.is_empty() {
            let op = receive.op;
            running.receives.remove(&name);
            running.run.complete(op);
        } else {
            receive.state = ReceiveState::Reading;
            self.send_message(key, name.0, ReliableMessage::Read(name.1), None);
        }
    }

    /// Handles a message from rank `from` to rank `to` of this node.
    pub(super) fn handle_message(
        &mut self,
        node: NodeId,
        (job, call, from): (u8, u64, Rank),
        to: Rank,
        message: ReliableMessage,
    ) {
        let mut of_job = self.members.range((job, 0)..=(job, u16::MAX));
        let named = of_job.find(|(_, member)| member.membership.rank == to);
        let key = *named.expect("it is a rank of this node").0;
        let member = self.members.get_mut(&key).expect("it is open");
        if !member.membership.accepts_from(from, node) {
            return;
        }
        match (member.timing_of(call), message) {
            (CallTiming::Next, ReliableMessage::Ready(round)) => {
                assert!(member.early.insert((from, round)), "{from} enters round {round} of a barrier once");
            }
            (CallTiming::Next, message) => unreachable!("{message:?} of {from} before this rank is in its call"),
            (CallTiming::Now, message) => {
                self.handle_current_message(key, from, message);
                self.advance(key);
            }
            (CallTiming::Late, _) => {}
        }
    }

    /// Handles a message about the running call.
    fn handle_current_message(&mut self, key: MemberKey, from: Rank, message: ReliableMessage) {
        match message {
            ReliableMessage::Ready(round) => {
                let mut ready = Vec::new();
                assert!(self.running(key).barrier.handle(from.0, round, &mut ready), "{from} enters each round once");
                self.send_ready(key, ready);
            }
            ReliableMessage::Offer(index) => self.handle_offer(key, (from, index)),
            ReliableMessage::Read(index) => self.handle_read(key, (from, index)),
            ReliableMessage::Data(index, bytes) => self.handle_data(key, (from, index), bytes),
            ReliableMessage::Nak(stream, ranges) => self.handle_nak(key, stream, &ranges),
            ReliableMessage::Missing(stream, ranges) => self.handle_missing(key, stream, &ranges),
            ReliableMessage::Repair(stream, run, bytes) => self.handle_repair(key, stream, run, bytes),
            ReliableMessage::StreamComplete(stream) => self.handle_stream_complete(key, stream),
            ReliableMessage::Complete => self.handle_complete(key),
        }
    }

    fn handle_offer(&mut self, key: MemberKey, name: MessageId) {
        let receive = self.running(key).receives.get_mut(&name).expect("it is a receive of the program");
        match receive.state {
            ReceiveState::Idle => receive.state = ReceiveState::Offered,
            ReceiveState::Posted => self.read(key, name),
            ReceiveState::Offered | ReceiveState::Reading => unreachable!("a message is offered once"),
        }
    }

    fn handle_read(&mut self, key: MemberKey, name: MessageId) {
        let running = self.running(key);
        let id = running.sends.remove(&name).expect("it was offered");
        let span = running.run.op(id).reads().expect("a send reads");
        running.run.complete(id);
        let from = self.members[&key].place(span);
        self.send_message(key, name.0, ReliableMessage::Data(name.1, span.len), Some(from));
    }

    fn handle_data(&mut self, key: MemberKey, name: MessageId, bytes: u64) {
        let running = self.running(key);
        let receive = running.receives.remove(&name).expect("it was asked for");
        assert_eq!(receive.span.len, bytes, "a message is as long as its receive");
        running.run.complete(receive.op);
        let to = self.members[&key].place(receive.span);
        self.outputs.push_back(Output::by_nic(NicOrder::Deliver { to }));
    }
}
