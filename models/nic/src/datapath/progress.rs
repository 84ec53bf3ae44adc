//! Progress of a call: the ready barrier, steps that may start, messages between ranks, the end.

use outboard_plan::{Op, OpId, Rank, Span};

use super::call::{Name, Running, State};
use super::packet::{Content, Message, Packet};
use super::{Datapath, Key, Member};
use crate::engine::{Node, Order, Output, Place, Worker};

/// The relation of a packet's call to the calls of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    Late,
    Now,
    Next,
}

impl Member {
    pub(super) fn time_of(&self, call: u64) -> Time {
        match call.checked_sub(self.begun) {
            None if call + 1 == self.begun && self.running.is_some() => Time::Now,
            None => Time::Late,
            Some(ahead) => {
                assert_eq!(ahead, 0, "nobody is two calls ahead");
                Time::Next
            }
        }
    }

    /// The left and right neighbours in the ring.
    pub(super) fn neighbours(&self) -> (Rank, Rank) {
        let (rank, ranks) = (self.membership.rank.0, self.membership.ranks());
        (Rank((rank + ranks - 1) % ranks), Rank((rank + 1) % ranks))
    }

    pub(super) fn place(&self, span: Span) -> Place {
        let memory = self.running.as_ref().expect("a call runs").post.memory;
        self.membership.place(memory, span, 1)
    }
}

impl Datapath {
    /// The running call of a member, which must exist.
    pub(super) fn running(&mut self, key: Key) -> &mut Running {
        let member = self.members.get_mut(&key).expect("it is open");
        member.running.as_mut().expect("a call runs")
    }

    /// Progresses the calls of a member as far as possible.
    pub(super) fn go_on(&mut self, key: Key) {
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
            if running.owes_complete && running.lacks_nothing() {
                running.owes_complete = false;
                self.tell(key, left, Message::Complete, None);
            } else if let Some(id) = running.run.next_ready() {
                self.start(key, id);
            } else if running.is_over() {
                self.end(key);
            } else {
                return;
            }
        }
    }

    /// Begins the next call of a member, which enters its ready barrier.
    fn begin(&mut self, key: Key) {
        let member = self.members.get_mut(&key).expect("it is open");
        let post = member.queue.pop_front().expect("a call is queued");
        let mut running = Running::new(post, member.begun, self.settings.chunk_bytes(), || self.accelerator.take());
        member.begun += 1;
        let mut ready = Vec::new();
        running.barrier.enter(&mut ready);
        for (from, round) in std::mem::take(&mut member.early) {
            assert!(running.barrier.handle(from.0, round, &mut ready), "it was looked at when it came");
        }
        member.running = Some(running);
        self.tell_ready(key, ready);
    }

    fn tell_ready(&mut self, key: Key, ready: Vec<(u32, u8)>) {
        for (to, round) in ready {
            self.tell(key, Rank(to), Message::Ready(round), None);
        }
    }

    fn end(&mut self, key: Key) {
        let member = self.members.get_mut(&key).expect("it is open");
        let running = member.running.take().expect("a call runs");
        running.workers.values().for_each(|worker| self.accelerator.give_back(worker.thread));
        self.outputs.push_back(Output::completed(key, Ok(())));
    }

    /// Sends a message to another rank of the running call.
    pub(super) fn tell(&mut self, key: Key, to: Rank, message: Message, payload: Option<Place>) {
        let member = &self.members[&key];
        let call = member.running.as_ref().expect("a call runs").call;
        let (node, _) = member.membership.port_of(to);
        let packet =
            Packet { job: key.0, call, from: member.membership.rank, content: Content::Reliable { to, message } };
        self.outputs.push_back(Output::Transmit {
            by: Worker::Nic(0),
            to: node,
            packet,
            payload: payload.into_iter().collect(),
        });
    }

    fn start(&mut self, key: Key, id: OpId) {
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
                self.tell(key, to, Message::Offer(index), None);
            }
            Op::Recv { from, index, .. } => {
                let receive = running.receives.get_mut(&(from, index)).expect("it is a receive of the program");
                match receive.state {
                    State::Offered => self.read(key, (from, index)),
                    State::Idle => receive.state = State::Posted,
                    State::Posted | State::Reading => unreachable!("a step starts once"),
                }
            }
            Op::Copy { from, to } => {
                running.run.complete(id);
                let (from, to) = (member.place(from), member.place(to));
                self.outputs.push_back(Output::by_nic(Order::Copy { from, to }));
            }
            Op::Multicast { span } if span.is_empty() || running.post.program.ranks == 1 => running.run.complete(id),
            Op::Multicast { .. } => {
                let rank = running.post.program.rank;
                let own = running.blocks.iter_mut().filter(|(stream, _)| stream.source == rank);
                own.for_each(|(_, block)| block.start());
                self.will_send(key);
            }
            Op::MulticastRecv { span, .. } if span.is_empty() => running.run.complete(id),
            Op::MulticastRecv { .. } => {}
            Op::Reduce { .. } => unreachable!("programs that combine are refused"),
        }
    }

    /// Reads a message that its sender has offered.
    fn read(&mut self, key: Key, name: Name) {
        let running = self.running(key);
        let receive = running.receives.get_mut(&name).expect("it is a receive of the program");
        if receive.span.is_empty() {
            let op = receive.op;
            running.receives.remove(&name);
            running.run.complete(op);
        } else {
            receive.state = State::Reading;
            self.tell(key, name.0, Message::Read(name.1), None);
        }
    }

    /// Handles a message from rank `from` to rank `to` of this node.
    pub(super) fn hear(&mut self, node: Node, (job, call, from): (u8, u64, Rank), to: Rank, message: Message) {
        let mut of_job = self.members.range((job, 0)..=(job, u16::MAX));
        let named = of_job.find(|(_, member)| member.membership.rank == to);
        let key = *named.expect("it is a rank of this node").0;
        let member = self.members.get_mut(&key).expect("it is open");
        if !member.membership.hears(from, node) {
            return;
        }
        match (member.time_of(call), message) {
            (Time::Next, Message::Ready(round)) => {
                assert!(member.early.insert((from, round)), "{from} enters round {round} of a barrier once");
            }
            (Time::Next, message) => unreachable!("{message:?} of {from} before this rank is in its call"),
            (Time::Now, message) => {
                self.hear_now(key, from, message);
                self.go_on(key);
            }
            (Time::Late, _) => {}
        }
    }

    /// Handles a message about the running call.
    fn hear_now(&mut self, key: Key, from: Rank, message: Message) {
        match message {
            Message::Ready(round) => {
                let mut ready = Vec::new();
                assert!(self.running(key).barrier.handle(from.0, round, &mut ready), "{from} enters each round once");
                self.tell_ready(key, ready);
            }
            Message::Offer(index) => self.take_offer(key, (from, index)),
            Message::Read(index) => self.serve(key, (from, index)),
            Message::Data(index, bytes) => self.take_data(key, (from, index), bytes),
            Message::Nak(stream, ranges) => self.take_nak(key, stream, &ranges),
            Message::Missing(stream, ranges) => self.take_missing(key, stream, &ranges),
            Message::Repair(stream, run, bytes) => self.take_repair(key, stream, run, bytes),
            Message::Whole(stream) => self.take_whole(key, stream),
            Message::Complete => self.take_complete(key),
        }
    }

    fn take_offer(&mut self, key: Key, name: Name) {
        let receive = self.running(key).receives.get_mut(&name).expect("it is a receive of the program");
        match receive.state {
            State::Idle => receive.state = State::Offered,
            State::Posted => self.read(key, name),
            State::Offered | State::Reading => unreachable!("a message is offered once"),
        }
    }

    fn serve(&mut self, key: Key, name: Name) {
        let running = self.running(key);
        let id = running.sends.remove(&name).expect("it was offered");
        let span = running.run.op(id).reads().expect("a send reads");
        running.run.complete(id);
        let from = self.members[&key].place(span);
        self.tell(key, name.0, Message::Data(name.1, span.len), Some(from));
    }

    fn take_data(&mut self, key: Key, name: Name, bytes: u64) {
        let running = self.running(key);
        let receive = running.receives.remove(&name).expect("it was asked for");
        assert_eq!(receive.span.len, bytes, "a message is as long as its receive");
        running.run.complete(receive.op);
        let to = self.members[&key].place(receive.span);
        self.outputs.push_back(Output::by_nic(Order::Deliver { to }));
    }
}
