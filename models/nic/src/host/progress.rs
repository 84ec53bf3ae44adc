//! Progress of processes: events of messages, steps that may start, the end of a call.

use outboard_plan::{Op, OpId, Span};

use super::member::{HostMember, MessageEvent};
use super::{HostContent, HostEngine, HostMessageName, HostPacket, MemberKey, ProgressMode};
use crate::engine::{AddressSpace, Executor, JobFailure, MemorySegment, NicOrder, Output, Port};
use crate::registered::RegisteredPart;

impl HostEngine {
    /// Handles a packet as the NIC does: the payload goes to staging or to its place; the process gets an event.
    pub(super) fn handle_arrival(&mut self, key: MemberKey, HostPacket { name, content, .. }: HostPacket) {
        let member = self.members.get_mut(&key).expect("looked up");
        let event = match content {
            HostContent::Message(bytes) => match self.staging.allocate(bytes) {
                Some(part) => {
                    self.outputs.extend((bytes > 0).then(|| Output::by_nic(NicOrder::Deliver { to: staged(part) })));
                    MessageEvent::Staged(part)
                }
                None => MessageEvent::Offered,
            },
            HostContent::Offer => MessageEvent::Offered,
            HostContent::Acknowledged => MessageEvent::Acknowledged,
            HostContent::Clear => MessageEvent::Cleared,
            HostContent::Data(bytes) => {
                let running = member.running.as_ref().expect("it runs");
                let id = running.cleared[&name];
                let span = running.run.op(id).writes().expect("a receive writes");
                assert_eq!(span.len, bytes, "a message is as long as its receive");
                let to = member.place(span);
                self.outputs.push_back(Output::by_nic(NicOrder::Deliver { to }));
                MessageEvent::Delivered
            }
        };
        member.inbox.push_back((name, event));
    }

    /// With a progress thread, handles all queued events now.
    pub(super) fn drain_inboxes(&mut self) {
        if self.settings.progress != ProgressMode::Thread {
            return;
        }
        let has_events = |member: &HostMember| member.running.is_some() && !member.inbox.is_empty();
        while let Some(key) = self.members.iter().find(|(_, member)| has_events(member)).map(|(key, _)| *key) {
            self.test(key);
        }
    }

    /// Progresses the calls of a process as far as possible.
    pub(super) fn test(&mut self, key: MemberKey) {
        loop {
            let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) else {
                return;
            };
            member.begin();
            let Some(running) = &mut member.running else { return };
            if let Some(id) = running.run.next_ready() {
                self.start(key, id);
            } else if running.run.finished() {
                member.running = None;
                self.outputs.push_back(Output::completed(key, Ok(())));
            } else if let Some((name, event)) = member.inbox.pop_front() {
                self.handle_event(key, name, event);
            } else {
                return;
            }
        }
    }

    fn start(&mut self, key: MemberKey, id: OpId) {
        let member = self.members.get_mut(&key).expect("it runs");
        let (rank, running) = (member.membership.rank, member.running.as_ref().expect("it runs"));
        let (call, reduction) = (running.call, running.post.reduction);
        match running.run.op(id) {
            Op::Send { to, index, span } => self.offer(key, id, HostMessageName { call, from: rank, to, index }, span),
            Op::Recv { from, index, .. } => {
                let name = HostMessageName { call, from, to: rank, index };
                match member.unexpected.remove(&name) {
                    Some(event) => self.receive(key, id, name, event),
                    None => _ = member.running.as_mut().expect("it runs").receives.insert(name, id),
                }
            }
            Op::Copy { from, to } => {
                let (from, to) = (member.place(from), member.place(to));
                self.outputs.push_back(Output::by_process(key.1, NicOrder::Copy { from, to }));
                self.complete(key, id);
            }
            Op::Reduce { from, into, from_left } => {
                let (from, into) = (member.place(from), member.place(into));
                let reduction = reduction.expect("a plan that combines is posted with what it combines by");
                self.outputs
                    .push_back(Output::by_process(key.1, NicOrder::Reduce { reduction, from, into, from_left }));
                self.complete(key, id);
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("plans that multicast are not posted"),
        }
    }

    /// Sends a message, or offers it to its receiver.
    fn offer(&mut self, key: MemberKey, id: OpId, name: HostMessageName, span: Span) {
        let member = self.members.get_mut(&key).expect("it runs");
        let from = member.place(span);
        member.running.as_mut().expect("it runs").sends.insert(name, id);
        let (node, port) = member.membership.port_of(name.to);
        if node == self.node {
            self.notify_local((key.0, port.0), name, MessageEvent::Local(from));
        } else if span.len < self.settings.eager_bytes {
            self.transmit(key, name, HostContent::Message(span.len), Some(from));
        } else {
            self.transmit(key, name, HostContent::Offer, None);
        }
    }

    /// Queues an event for another process of this host.
    fn notify_local(&mut self, key: MemberKey, name: HostMessageName, event: MessageEvent) {
        if let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) {
            member.inbox.push_back((name, event));
        }
    }

    fn transmit(
        &mut self,
        key: MemberKey,
        name: HostMessageName,
        content: HostContent,
        payload: Option<MemorySegment>,
    ) {
        let member = &self.members[&key];
        let peer = if member.membership.rank == name.from { name.to } else { name.from };
        let (to, port) = member.membership.port_of(peer);
        let packet = HostPacket { job: key.0, port, name, content };
        let by = Executor::Processor(Port(key.1));
        self.outputs.push_back(Output::Transmit { by, to, packet, payload: payload.into_iter().collect() });
    }

    /// Handles the event of a message.
    fn handle_event(&mut self, key: MemberKey, name: HostMessageName, event: MessageEvent) {
        let member = self.members.get_mut(&key).expect("it runs");
        let running = member.running.as_mut().expect("it runs");
        match event {
            MessageEvent::Staged(_) | MessageEvent::Offered | MessageEvent::Local(_) => {
                match running.receives.remove(&name) {
                    Some(id) => self.receive(key, id, name, event),
                    None => _ = member.unexpected.insert(name, event),
                }
            }
            MessageEvent::Acknowledged => {
                let id = running.sends.remove(&name).expect("it was sent");
                self.complete(key, id);
            }
            MessageEvent::Cleared => {
                let id = running.sends.remove(&name).expect("it was offered");
                let span = running.run.op(id).reads().expect("a send reads");
                let from = member.place(span);
                self.transmit(key, name, HostContent::Data(span.len), Some(from));
                self.complete(key, id);
            }
            MessageEvent::Delivered => {
                let id = running.cleared.remove(&name).expect("it was cleared");
                self.complete(key, id);
            }
        }
    }

    /// Copies a message for the receive `id`, or clears its sender to send it.
    fn receive(&mut self, key: MemberKey, id: OpId, name: HostMessageName, event: MessageEvent) {
        let member = self.members.get_mut(&key).expect("it runs");
        let running = member.running.as_mut().expect("it runs");
        let span = running.run.op(id).writes().expect("a receive writes");
        let (from, part) = match event {
            MessageEvent::Staged(part) => (staged(part), Some(part)),
            MessageEvent::Local(place) => (place, None),
            MessageEvent::Offered => {
                running.cleared.insert(name, id);
                return self.transmit(key, name, HostContent::Clear, None);
            }
            MessageEvent::Acknowledged | MessageEvent::Cleared | MessageEvent::Delivered => {
                unreachable!("{event:?} is for a sender, or names no message")
            }
        };
        let to = member.place(span);
        assert_eq!(from.len, to.len, "a message is as long as its receive");
        let copies = (!span.is_empty()).then_some(Output::by_process(key.1, NicOrder::Copy { from, to }));
        self.outputs.extend(copies);
        match part {
            Some(part) => {
                self.staging.free(part);
                self.transmit(key, name, HostContent::Acknowledged, None);
            }
            None => {
                let (_, port) = self.members[&key].membership.port_of(name.from);
                self.notify_local((key.0, port.0), name, MessageEvent::Acknowledged);
            }
        }
        self.complete(key, id);
    }

    fn complete(&mut self, key: MemberKey, id: OpId) {
        let member = self.members.get_mut(&key).expect("it runs");
        member.running.as_mut().expect("it runs").run.complete(id);
    }

    /// Fails a job on this port: its calls end, and its resources become free.
    pub(super) fn fail(&mut self, key: MemberKey, failure: JobFailure) {
        let member = self.members.get_mut(&key).expect("it is open");
        member.membership.failed = Some(failure);
        let calls = member.calls();
        (member.queue, member.running) = Default::default();
        let pending = std::mem::take(&mut member.inbox).into_iter().map(|(_, event)| event);
        for event in pending.chain(std::mem::take(&mut member.unexpected).into_values()) {
            if let MessageEvent::Staged(part) = event {
                self.staging.free(part);
            }
        }
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
    }
}

fn staged(part: RegisteredPart) -> MemorySegment {
    MemorySegment { region: AddressSpace::Shared, address: part.address, len: part.bytes }
}
