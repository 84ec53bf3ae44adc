//! Progress of calls: steps of the host, requests of the management queue, messages.

use std::sync::Arc;

use super::list::{HostStep, PeerConnection, Purpose, TemplatePlace, WorkAction, WorkRequest};
use super::member::{ListPhase, TriggeredCall};
use super::queue::{ArrivalOutcome, PostedSend};
use super::{MemberKey, TriggeredContent, TriggeredEngine, TriggeredPacket};
use crate::engine::{AddressSpace, Executor, JobFailure, MemorySegment, NicOrder, Output};

impl TriggeredEngine {
    /// Progresses all ready members as far as possible.
    pub(super) fn run(&mut self) {
        while let Some(key) = self.ready.pop_first() {
            while self.advance(key) {}
        }
    }

    /// Progresses one phase of the running call as far as possible; returns whether the phase is over.
    fn advance(&mut self, key: MemberKey) -> bool {
        let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) else {
            return false;
        };
        let Some(running) = &member.running else { return self.begin(key) };
        let (template, phase) = (Arc::clone(&running.post.template), running.phase);
        let next = match phase {
            ListPhase::Before(at) => match self.run_host_steps(key, &template.before, at) {
                at if at < template.before.len() => ListPhase::Before(at),
                _ => {
                    template.tasks.iter().for_each(|request| self.post_request(key, request));
                    ListPhase::List(0)
                }
            },
            ListPhase::List(at) => match self.run_management_queue(key, &template.tasks, at) {
                at if at < template.tasks.len() => ListPhase::List(at),
                _ => ListPhase::Behind(0),
            },
            ListPhase::Behind(at) => match self.run_host_steps(key, &template.after, at) {
                at if at < template.after.len() => ListPhase::Behind(at),
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
    fn begin(&mut self, key: MemberKey) -> bool {
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
        member.running = Some(TriggeredCall::new(post, address));
        true
    }

    fn end(&mut self, key: MemberKey) {
        let post = self.members.get_mut(&key).expect("it runs").end();
        let ranks = post.template.sharing.ranks;
        if ranks > 0 {
            self.regions.get_mut(&key.0).expect("it shares").leave(ranks, &mut self.memory);
            self.wake_siblings(key);
        }
        self.outputs.push_back(Output::completed(key, Ok(())));
    }

    fn wake_siblings(&mut self, key: MemberKey) {
        let siblings = self.members.range((key.0, 0)..=(key.0, u16::MAX)).map(|(other, _)| *other);
        self.ready.extend(siblings.filter(|other| *other != key));
    }

    /// Carries out the steps of the host from `at` on; returns the next step.
    fn run_host_steps(&mut self, key: MemberKey, steps: &[HostStep], mut at: usize) -> usize {
        while let Some(step) = steps.get(at) {
            let member = &self.members[&key];
            let reduction = member.running.as_ref().and_then(|running| running.post.reduction);
            match *step {
                HostStep::Copy { from, to } => {
                    let (from, to) = (member.place(from), member.place(to));
                    self.outputs.push_back(Output::by_process(key.1, NicOrder::Copy { from, to }));
                }
                HostStep::Reduce { from, into, from_left } => {
                    let (from, into) = (member.place(from), member.place(into));
                    let reduction = reduction.expect("a plan that combines is posted with what it combines by");
                    self.outputs
                        .push_back(Output::by_process(key.1, NicOrder::Reduce { reduction, from, into, from_left }));
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

    fn post_request(&mut self, key: MemberKey, request: &WorkRequest) {
        let (connection, purpose) = (request.on.connection, request.on.purpose);
        match &request.action {
            WorkAction::Receive(into) => {
                let member = self.members.get_mut(&key).expect("it runs");
                let into = into.map(|place| member.place(place));
                let pair = member.pair(connection, purpose);
                pair.post_receive(into);
                if purpose != Purpose::Data {
                    pair.enable_receives(1);
                }
            }
            WorkAction::Send { from, present } => {
                let send = self.gather(key, from, *present);
                self.members.get_mut(&key).expect("it runs").pair(connection, purpose).post_send(send);
            }
            WorkAction::WaitReceived(_)
            | WorkAction::WaitSent(_)
            | WorkAction::SendEnable(_)
            | WorkAction::ReceiveEnable(_) => {}
        }
    }

    /// Gathers a send: from its memory, or from a place in the NIC to which its few bytes are copied at once.
    fn gather(&mut self, key: MemberKey, from: &[TemplatePlace], present: bool) -> PostedSend {
        let member = &self.members[&key];
        let from: Vec<MemorySegment> = from.iter().map(|place| member.place(*place)).collect();
        let bytes: u64 = from.iter().map(|place| place.len).sum();
        let fits = present && (1..=self.settings.inline_bytes).contains(&bytes);
        let Some(inline) = fits.then(|| self.inline.pop()).flatten() else { return PostedSend { from, inline: None } };
        let start = MemorySegment {
            region: AddressSpace::Nic,
            address: u64::from(inline) * self.settings.inline_bytes,
            len: bytes,
        };
        let mut address = start.address;
        for from in from {
            let to = MemorySegment { address, len: from.len, ..start };
            address += from.len;
            self.outputs.push_back(Output::by_process(key.1, NicOrder::Copy { from, to }));
        }
        PostedSend { from: vec![start], inline: Some(inline) }
    }

    /// Runs the management queue from request `at` on; returns the next request.
    fn run_management_queue(&mut self, key: MemberKey, tasks: &[WorkRequest], mut at: usize) -> usize {
        while let Some(request) = tasks.get(at) {
            let (connection, purpose) = (request.on.connection, request.on.purpose);
            let pair = self.members.get_mut(&key).expect("it runs").pair(connection, purpose);
            let left = match request.action {
                WorkAction::WaitReceived(count) => pair.received.checked_sub(count).map(|left| pair.received = left),
                WorkAction::WaitSent(count) => pair.sent.checked_sub(count).map(|left| pair.sent = left),
                WorkAction::SendEnable(count) => {
                    pair.enable_sends(count);
                    let operation = self.members[&key].running.as_ref().expect("it runs").post.operation;
                    self.send(key, operation, connection, purpose);
                    Some(())
                }
                WorkAction::ReceiveEnable(count) => {
                    pair.enable_receives(count);
                    Some(())
                }
                WorkAction::Receive(_) | WorkAction::Send { .. } => Some(()),
            };
            if left.is_none() {
                return at;
            }
            at += 1;
        }
        at
    }

    pub(super) fn send(&mut self, key: MemberKey, operation: u16, connection: PeerConnection, purpose: Purpose) {
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
            let content = TriggeredContent::Message { purpose, number, bytes };
            let packet = TriggeredPacket { job: key.0, port, operation, connection, link, content };
            self.outputs.push_back(Output::Transmit { by: Executor::Nic(0), to, packet, payload });
        }
    }

    /// Sends the peer of a connection a packet without payload.
    pub(super) fn send_control(
        &mut self,
        key: MemberKey,
        operation: u16,
        connection: PeerConnection,
        content: TriggeredContent,
    ) {
        let member = &self.members[&key];
        let (to, port) = member.membership.port_of(connection.peer);
        let link = member.channels[&(operation, connection)].link;
        let connection = connection.seen_from_peer(member.membership.rank);
        let packet = TriggeredPacket { job: key.0, port, operation, connection, link, content };
        self.outputs.push_back(Output::Transmit { by: Executor::Nic(0), to, packet, payload: Vec::new() });
    }

    pub(super) fn handle_content(&mut self, now: u64, key: MemberKey, packet: &TriggeredPacket) {
        let TriggeredPacket { operation, connection, content, .. } = *packet;
        let member = self.members.get_mut(&key).expect("looked up");
        let Some(channel) = member.channels.get_mut(&(operation, connection)) else {
            assert_eq!(content, TriggeredContent::Connect, "nobody answers before the queue pairs are made");
            return;
        };
        match content {
            TriggeredContent::Connect | TriggeredContent::Accept => {
                channel.connected = true;
                if content == TriggeredContent::Connect {
                    self.send_control(key, operation, connection, TriggeredContent::Accept);
                }
                Purpose::ALL.into_iter().for_each(|purpose| self.send(key, operation, connection, purpose));
            }
            TriggeredContent::Message { purpose, number, bytes } => {
                let answer = match channel.pairs[purpose as usize].handle_arrival(number, bytes) {
                    ArrivalOutcome::Taken(into) => {
                        self.outputs.extend(into.map(|to| Output::by_nic(NicOrder::Deliver { to })));
                        self.ready.insert(key);
                        TriggeredContent::Taken { purpose, number }
                    }
                    ArrivalOutcome::NotReady => {
                        self.counters.refused += 1;
                        TriggeredContent::NotReady { purpose, number }
                    }
                    ArrivalOutcome::Behind => return,
                };
                self.send_control(key, operation, connection, answer);
            }
            TriggeredContent::Taken { purpose, number } => {
                self.inline.extend(channel.pairs[purpose as usize].acknowledge(number).inline);
                self.ready.insert(key);
            }
            TriggeredContent::NotReady { purpose, number } => {
                let until = now + self.settings.retry_after;
                channel.pairs[purpose as usize].handle_not_ready(number, until);
                self.resting.insert((until, (key, operation, connection, purpose)));
            }
        }
    }

    /// Fails a job on this port: its calls end, and its resources become free.
    pub(super) fn fail(&mut self, key: MemberKey, failure: JobFailure) {
        let member = self.members.get_mut(&key).expect("it is open");
        let channels = std::mem::take(&mut member.channels);
        self.pairs -= channels.len() * Purpose::ALL.len();
        for channel in channels.into_values() {
            self.inline.extend(channel.pairs.iter().flat_map(|pair| pair.inline()));
            self.memory.free(channel.ring.part);
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
