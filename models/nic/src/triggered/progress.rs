//! Progress of calls: steps of the host, requests of the management queue, messages.

use std::sync::Arc;

use super::list::{Action, Connection, HostStep, Place as Unplaced, Purpose, Request};
use super::member::{Phase, Running};
use super::queue::{Arrival, Send};
use super::{Content, Key, Packet, Triggered};
use crate::engine::{Failure, Order, Output, Place, Region, Worker};

impl Triggered {
    /// Progresses all ready members as far as possible.
    pub(super) fn run(&mut self) {
        while let Some(key) = self.ready.pop_first() {
            while self.go_on(key) {}
        }
    }

    /// Progresses one phase of the running call as far as possible; whether the phase is over.
    fn go_on(&mut self, key: Key) -> bool {
        let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) else {
            return false;
        };
        let Some(running) = &member.running else { return self.begin(key) };
        let (template, phase) = (Arc::clone(&running.post.template), running.phase);
        let next = match phase {
            Phase::Before(at) => match self.work(key, &template.before, at) {
                at if at < template.before.len() => Phase::Before(at),
                _ => {
                    template.tasks.iter().for_each(|request| self.post_request(key, request));
                    Phase::List(0)
                }
            },
            Phase::List(at) => match self.manage(key, &template.tasks, at) {
                at if at < template.tasks.len() => Phase::List(at),
                _ => Phase::Behind(0),
            },
            Phase::Behind(at) => match self.work(key, &template.after, at) {
                at if at < template.after.len() => Phase::Behind(at),
                _ => {
                    self.end(key);
                    return true;
                }
            },
        };
        let running = self.members.get_mut(&key).and_then(|member| member.running.as_mut()).expect("it runs");
        running.phase = next;
        std::mem::discriminant(&phase) != std::mem::discriminant(&next)
    }

    /// Begins the next call, if there is one and no sibling still uses the shared region.
    fn begin(&mut self, key: Key) -> bool {
        let member = self.members.get_mut(&key).expect("it is ready");
        let Some(post) = member.queue.front() else { return false };
        let mut address = 0;
        if post.template.sharing.ranks > 0 {
            let region = &self.regions[&key.0];
            if region.call != member.sharing_begun {
                return false;
            }
            member.sharing_begun += 1;
            address = region.address();
        }
        let post = member.queue.pop_front().expect("looked at above");
        member.running = Some(Running::new(post, address));
        true
    }

    fn end(&mut self, key: Key) {
        let post = self.members.get_mut(&key).expect("it runs").end();
        let ranks = post.template.sharing.ranks;
        if ranks > 0 {
            self.regions.get_mut(&key.0).expect("it shares").leave(ranks, &mut self.memory);
            self.wake_siblings(key);
        }
        self.outputs.push_back(Output::completed(key, Ok(())));
    }

    fn wake_siblings(&mut self, key: Key) {
        let siblings = self.members.range((key.0, 0)..=(key.0, u16::MAX)).map(|(other, _)| *other);
        self.ready.extend(siblings.filter(|other| *other != key));
    }

    /// Carries out the steps of the host from `at` on; returns the next step.
    fn work(&mut self, key: Key, steps: &[HostStep], mut at: usize) -> usize {
        while let Some(step) = steps.get(at) {
            let member = &self.members[&key];
            let reduction = member.running.as_ref().and_then(|running| running.post.reduction);
            match *step {
                HostStep::Copy { from, to } => {
                    let (from, to) = (member.place(from), member.place(to));
                    self.outputs.push_back(Output::by_process(key.1, Order::Copy { from, to }));
                }
                HostStep::Reduce { from, into, from_left } => {
                    let (from, into) = (member.place(from), member.place(into));
                    let reduction = reduction.expect("a plan that combines is posted with what it combines by");
                    self.outputs
                        .push_back(Output::by_process(key.1, Order::Reduce { reduction, from, into, from_left }));
                }
                HostStep::Raise { flag } => {
                    self.regions.get_mut(&key.0).expect("it shares").raise(flag);
                    self.wake_siblings(key);
                }
                HostStep::Await { flag } => {
                    if !self.regions[&key.0].is_raised(flag) {
                        return at;
                    }
                }
            }
            at += 1;
        }
        at
    }

    fn post_request(&mut self, key: Key, request: &Request) {
        let (connection, purpose) = (request.on.connection, request.on.purpose);
        match &request.action {
            Action::Receive(into) => {
                let member = self.members.get_mut(&key).expect("it runs");
                let into = into.map(|place| member.place(place));
                let pair = member.pair(connection, purpose);
                pair.post_receive(into);
                if purpose != Purpose::Data {
                    pair.enable_receives(1);
                }
            }
            Action::Send { from, present } => {
                let send = self.gather(key, from, *present);
                self.members.get_mut(&key).expect("it runs").pair(connection, purpose).post_send(send);
            }
            Action::WaitReceived(_) | Action::WaitSent(_) | Action::SendEnable(_) | Action::ReceiveEnable(_) => {}
        }
    }

    /// Gathers a send: from its memory, or from a place in the NIC to which its few bytes are copied at once.
    fn gather(&mut self, key: Key, from: &[Unplaced], present: bool) -> Send {
        let member = &self.members[&key];
        let from: Vec<Place> = from.iter().map(|place| member.place(*place)).collect();
        let bytes: u64 = from.iter().map(|place| place.len).sum();
        let fits = present && (1..=self.settings.inline_bytes).contains(&bytes);
        let Some(inline) = fits.then(|| self.inline.pop()).flatten() else { return Send { from, inline: None } };
        let start = Place { region: Region::Nic, address: u64::from(inline) * self.settings.inline_bytes, len: bytes };
        let mut address = start.address;
        for from in from {
            let to = Place { address, len: from.len, ..start };
            address += from.len;
            self.outputs.push_back(Output::by_process(key.1, Order::Copy { from, to }));
        }
        Send { from: vec![start], inline: Some(inline) }
    }

    /// Runs the management queue from request `at` on; returns the next request.
    fn manage(&mut self, key: Key, tasks: &[Request], mut at: usize) -> usize {
        while let Some(request) = tasks.get(at) {
            let (connection, purpose) = (request.on.connection, request.on.purpose);
            let pair = self.members.get_mut(&key).expect("it runs").pair(connection, purpose);
            let left = match request.action {
                Action::WaitReceived(count) => pair.received.checked_sub(count).map(|left| pair.received = left),
                Action::WaitSent(count) => pair.sent.checked_sub(count).map(|left| pair.sent = left),
                Action::SendEnable(count) => {
                    pair.enable_sends(count);
                    let operation = self.members[&key].running.as_ref().expect("it runs").post.operation;
                    self.send(key, operation, connection, purpose);
                    Some(())
                }
                Action::ReceiveEnable(count) => {
                    pair.enable_receives(count);
                    Some(())
                }
                Action::Receive(_) | Action::Send { .. } => Some(()),
            };
            if left.is_none() {
                return at;
            }
            at += 1;
        }
        at
    }

    pub(super) fn send(&mut self, key: Key, operation: u16, connection: Connection, purpose: Purpose) {
        let Some(member) = self.members.get_mut(&key) else { return };
        let (rank, (to, port)) = (member.membership.rank, member.membership.port_of(connection.peer));
        let Some(channel) = member.channels.get_mut(&(operation, connection)).filter(|channel| channel.connected)
        else {
            return;
        };
        let (link, connection) = (channel.link, connection.seen_from_peer(rank));
        while let Some((number, send)) = channel.pairs[purpose as usize].next_message() {
            let bytes = send.from.iter().map(|place| place.len).sum();
            let payload = send.from.clone();
            let content = Content::Message { purpose, number, bytes };
            let packet = Packet { job: key.0, port, operation, connection, link, content };
            self.outputs.push_back(Output::Transmit { by: Worker::Nic(0), to, packet, payload });
        }
    }

    /// Sends the peer of a connection a packet without payload.
    pub(super) fn tell(&mut self, key: Key, operation: u16, connection: Connection, content: Content) {
        let member = &self.members[&key];
        let (to, port) = member.membership.port_of(connection.peer);
        let link = member.channels[&(operation, connection)].link;
        let connection = connection.seen_from_peer(member.membership.rank);
        let packet = Packet { job: key.0, port, operation, connection, link, content };
        self.outputs.push_back(Output::Transmit { by: Worker::Nic(0), to, packet, payload: Vec::new() });
    }

    pub(super) fn take_in(&mut self, now: u64, key: Key, packet: &Packet) {
        let Packet { operation, connection, content, .. } = *packet;
        let member = self.members.get_mut(&key).expect("looked up");
        let Some(channel) = member.channels.get_mut(&(operation, connection)) else {
            assert_eq!(content, Content::Connect, "nobody answers before the queue pairs are made");
            return;
        };
        match content {
            Content::Connect | Content::Accept => {
                channel.connected = true;
                if content == Content::Connect {
                    self.tell(key, operation, connection, Content::Accept);
                }
                Purpose::ALL.into_iter().for_each(|purpose| self.send(key, operation, connection, purpose));
            }
            Content::Message { purpose, number, bytes } => {
                let answer = match channel.pairs[purpose as usize].arrived(number, bytes) {
                    Arrival::Taken(into) => {
                        self.outputs.extend(into.map(|to| Output::by_nic(Order::Deliver { to })));
                        self.ready.insert(key);
                        Content::Taken { purpose, number }
                    }
                    Arrival::NotReady => {
                        self.counters.refused += 1;
                        Content::NotReady { purpose, number }
                    }
                    Arrival::Behind => return,
                };
                self.tell(key, operation, connection, answer);
            }
            Content::Taken { purpose, number } => {
                self.inline.extend(channel.pairs[purpose as usize].taken(number).inline);
                self.ready.insert(key);
            }
            Content::NotReady { purpose, number } => {
                let until = now + self.settings.retry_after;
                channel.pairs[purpose as usize].refused(number, until);
                self.resting.insert((until, (key, operation, connection, purpose)));
            }
        }
    }

    /// Fails a job on this port: its calls end, and its resources become free.
    pub(super) fn fail(&mut self, key: Key, failure: Failure) {
        let member = self.members.get_mut(&key).expect("it is open");
        let channels = std::mem::take(&mut member.channels);
        self.pairs -= channels.len() * Purpose::ALL.len();
        for channel in channels.into_values() {
            self.inline.extend(channel.pairs.iter().flat_map(|pair| pair.inline()));
            self.memory.give_back(channel.ring.part);
        }
        self.resting.retain(|(_, (other, ..))| *other != key);
        member.membership.failed = Some(failure);
        let calls = member.calls();
        (member.queue, member.running) = Default::default();
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
        if let Some(region) = self.regions.remove(&key.0) {
            region.free(&mut self.memory);
        }
    }
}
