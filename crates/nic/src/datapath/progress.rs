//! A call goes on: the ready barrier, steps that may start, what ranks say to each other, the end.

use outboard_plan::{Op, OpId, Rank, Span};
use outboard_proto::Barrier;

use super::call::{Name, Running, State};
use super::packet::{Content, Message, Packet};
use super::{Datapath, Key, Member};
use crate::engine::{Completion, Node, Order, Output, Place, Port, Worker};

/// When a packet is about which call of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Time {
    /// One that is over.
    Late,
    /// The one that runs.
    Now,
    /// The next one.
    Next,
    /// None that can be.
    Never,
}

impl Member {
    pub(super) fn time_of(&self, call: u64) -> Time {
        match call.checked_sub(self.begun) {
            None if call + 1 == self.begun && self.running.is_some() => Time::Now,
            None => Time::Late,
            Some(0) => Time::Next,
            Some(_) => Time::Never,
        }
    }

    /// Its neighbours in the ring: left and right.
    pub(super) fn neighbours(&self) -> (Rank, Rank) {
        let (rank, ranks) = (self.membership.rank.0, self.membership.ranks());
        (Rank((rank + ranks - 1) % ranks), Rank((rank + 1) % ranks))
    }

    /// Where a span of the call that runs is.
    pub(super) fn place(&self, span: Span) -> Place {
        let memory = self.running.as_ref().expect("a call runs").post.memory;
        self.membership.place(memory, span, 1)
    }
}

impl Datapath {
    /// The call that runs on a member of which that is known.
    pub(super) fn running(&mut self, key: Key) -> &mut Running {
        let member = self.members.get_mut(&key).expect("it is open");
        member.running.as_mut().expect("a call runs")
    }

    /// Goes on with the calls of a member as far as they can.
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

    /// The next call of a member enters its ready barrier.
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

    /// The host is told.
    fn end(&mut self, key: Key) {
        let member = self.members.get_mut(&key).expect("it is open");
        let running = member.running.take().expect("a call runs");
        running.workers.values().for_each(|worker| self.accelerator.give_back(worker.thread));
        let completion = Completion { job: key.0, result: Ok(()) };
        self.outputs.push_back(Output::Completed { port: Port(key.1), completion });
    }

    /// Says something to another rank of the call that runs.
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

    /// Starts a step that waits for nothing.
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

    /// The receiver reads a message that its sender has.
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

    /// A rank says something to a rank here. False when it cannot.
    pub(super) fn hear(&mut self, node: Node, packet: Packet) -> bool {
        let Packet { job, call, from, content: Content::Reliable { to, message } } = packet else { return false };
        let of_job = self.members.range((job, 0)..=(job, u16::MAX));
        let mut named = of_job.filter(|(_, member)| member.membership.rank == to).map(|(key, _)| *key);
        let Some(key) = named.next() else { return false };
        let member = self.members.get_mut(&key).expect("it is open");
        if !member.membership.hears(from, node) {
            return member.membership.failed.is_some();
        }
        match (member.time_of(call), message) {
            (Time::Next, Message::Ready(round)) => {
                let is_one = Barrier::round_between(member.membership.ranks(), from.0, to.0) == Some(round);
                is_one && member.early.insert((from, round))
            }
            (Time::Now, message) => {
                let known = self.hear_now(key, from, message);
                self.go_on(key);
                known
            }
            (Time::Late, _) => {
                self.counters.late += 1;
                true
            }
            (Time::Next | Time::Never, _) => false,
        }
    }

    /// About the call that runs.
    fn hear_now(&mut self, key: Key, from: Rank, message: Message) -> bool {
        match message {
            Message::Ready(round) => {
                let mut ready = Vec::new();
                let known = self.running(key).barrier.handle(from.0, round, &mut ready);
                self.tell_ready(key, ready);
                known
            }
            Message::Offer(index) => self.take_offer(key, (from, index)),
            Message::Read(index) => self.serve(key, (from, index)),
            Message::Data(index, bytes) => self.take_data(key, (from, index), bytes),
            Message::Nak(stream, ranges) => self.take_nak(key, from, stream, &ranges),
            Message::Missing(stream, ranges) => self.take_missing(key, stream, &ranges),
            Message::Repair(stream, run, bytes) => self.take_repair(key, from, stream, run, bytes),
            Message::Whole(stream) => self.take_whole(key, from, stream),
            Message::Complete => self.take_complete(key, from),
        }
    }

    fn take_offer(&mut self, key: Key, name: Name) -> bool {
        let Some(receive) = self.running(key).receives.get_mut(&name) else { return false };
        match receive.state {
            State::Idle => receive.state = State::Offered,
            State::Posted => self.read(key, name),
            State::Offered | State::Reading => return false,
        }
        true
    }

    fn serve(&mut self, key: Key, name: Name) -> bool {
        let running = self.running(key);
        let Some(id) = running.sends.remove(&name) else { return false };
        let span = running.run.op(id).reads().expect("a send reads");
        running.run.complete(id);
        let from = self.members[&key].place(span);
        self.tell(key, name.0, Message::Data(name.1, span.len), Some(from));
        true
    }

    fn take_data(&mut self, key: Key, name: Name, bytes: u64) -> bool {
        let running = self.running(key);
        let asked = running.receives.get(&name).filter(|receive| receive.state == State::Reading);
        let Some(receive) = asked.copied().filter(|receive| receive.span.len == bytes) else { return false };
        running.receives.remove(&name);
        running.run.complete(receive.op);
        let to = self.members[&key].place(receive.span);
        self.outputs.push_back(Output::by_nic(Order::Deliver { to }));
        true
    }
}
