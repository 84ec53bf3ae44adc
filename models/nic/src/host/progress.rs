//! Progress of processes: events of messages, steps that may start, the end of a call.

use outboard_plan::{Op, OpId, Span};

use super::member::{Member, News};
use super::{Content, Host, Key, Name, Packet, Progress};
use crate::engine::{Failure, Order, Output, Place, Port, Region, Worker};
use crate::registered::Part;

impl Host {
    /// Handles a packet as the NIC does: the payload goes to staging or to its place; the process gets an event.
    pub(super) fn take_in(&mut self, key: Key, Packet { name, content, .. }: Packet) {
        let member = self.members.get_mut(&key).expect("looked up");
        let news = match content {
            Content::Message(bytes) => match self.staging.take(bytes) {
                Some(part) => {
                    self.outputs.extend((bytes > 0).then(|| Output::by_nic(Order::Deliver { to: staged(part) })));
                    News::Staged(part)
                }
                None => News::Offered,
            },
            Content::Offer => News::Offered,
            Content::Taken => News::Taken,
            Content::Clear => News::Cleared,
            Content::Data(bytes) => {
                let running = member.running.as_ref().expect("it runs");
                let id = running.cleared[&name];
                let span = running.run.op(id).writes().expect("a receive writes");
                assert_eq!(span.len, bytes, "a message is as long as its receive");
                let to = member.place(span);
                self.outputs.push_back(Output::by_nic(Order::Deliver { to }));
                News::Delivered
            }
        };
        member.inbox.push_back((name, news));
    }

    /// With a progress thread, handles all queued events now.
    pub(super) fn settle(&mut self) {
        if self.settings.progress != Progress::Thread {
            return;
        }
        let has_news = |member: &Member| member.running.is_some() && !member.inbox.is_empty();
        while let Some(key) = self.members.iter().find(|(_, member)| has_news(member)).map(|(key, _)| *key) {
            self.test(key);
        }
    }

    /// Progresses the calls of a process as far as possible.
    pub(super) fn test(&mut self, key: Key) {
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
            } else if let Some((name, news)) = member.inbox.pop_front() {
                self.hear(key, name, news);
            } else {
                return;
            }
        }
    }

    fn start(&mut self, key: Key, id: OpId) {
        let member = self.members.get_mut(&key).expect("it runs");
        let (rank, running) = (member.membership.rank, member.running.as_ref().expect("it runs"));
        let (call, reduction) = (running.call, running.post.reduction);
        match running.run.op(id) {
            Op::Send { to, index, span } => self.offer(key, id, Name { call, from: rank, to, index }, span),
            Op::Recv { from, index, .. } => {
                let name = Name { call, from, to: rank, index };
                match member.unexpected.remove(&name) {
                    Some(news) => self.receive(key, id, name, news),
                    None => _ = member.running.as_mut().expect("it runs").receives.insert(name, id),
                }
            }
            Op::Copy { from, to } => {
                let (from, to) = (member.place(from), member.place(to));
                self.outputs.push_back(Output::by_process(key.1, Order::Copy { from, to }));
                self.complete(key, id);
            }
            Op::Reduce { from, into, from_left } => {
                let (from, into) = (member.place(from), member.place(into));
                let reduction = reduction.expect("a plan that combines is posted with what it combines by");
                self.outputs.push_back(Output::by_process(key.1, Order::Reduce { reduction, from, into, from_left }));
                self.complete(key, id);
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("plans that multicast are not posted"),
        }
    }

    /// Sends a message, or offers it to its receiver.
    fn offer(&mut self, key: Key, id: OpId, name: Name, span: Span) {
        let member = self.members.get_mut(&key).expect("it runs");
        let from = member.place(span);
        member.running.as_mut().expect("it runs").sends.insert(name, id);
        let (node, port) = member.membership.port_of(name.to);
        if node == self.node {
            self.tell_here((key.0, port.0), name, News::Here(from));
        } else if span.len < self.settings.eager_bytes {
            self.transmit(key, name, Content::Message(span.len), Some(from));
        } else {
            self.transmit(key, name, Content::Offer, None);
        }
    }

    /// Queues an event for another process of this host.
    fn tell_here(&mut self, key: Key, name: Name, news: News) {
        if let Some(member) = self.members.get_mut(&key).filter(|member| member.membership.failed.is_none()) {
            member.inbox.push_back((name, news));
        }
    }

    fn transmit(&mut self, key: Key, name: Name, content: Content, payload: Option<Place>) {
        let member = &self.members[&key];
        let peer = if member.membership.rank == name.from { name.to } else { name.from };
        let (to, port) = member.membership.port_of(peer);
        let packet = Packet { job: key.0, port, name, content };
        let by = Worker::Processor(Port(key.1));
        self.outputs.push_back(Output::Transmit { by, to, packet, payload: payload.into_iter().collect() });
    }

    /// Handles the event of a message.
    fn hear(&mut self, key: Key, name: Name, news: News) {
        let member = self.members.get_mut(&key).expect("it runs");
        let running = member.running.as_mut().expect("it runs");
        match news {
            News::Staged(_) | News::Offered | News::Here(_) => match running.receives.remove(&name) {
                Some(id) => self.receive(key, id, name, news),
                None => _ = member.unexpected.insert(name, news),
            },
            News::Taken => {
                let id = running.sends.remove(&name).expect("it was sent");
                self.complete(key, id);
            }
            News::Cleared => {
                let id = running.sends.remove(&name).expect("it was offered");
                let span = running.run.op(id).reads().expect("a send reads");
                let from = member.place(span);
                self.transmit(key, name, Content::Data(span.len), Some(from));
                self.complete(key, id);
            }
            News::Delivered => {
                let id = running.cleared.remove(&name).expect("it was cleared");
                self.complete(key, id);
            }
        }
    }

    /// Copies a message for the receive `id`, or clears its sender to send it.
    fn receive(&mut self, key: Key, id: OpId, name: Name, news: News) {
        let member = self.members.get_mut(&key).expect("it runs");
        let running = member.running.as_mut().expect("it runs");
        let span = running.run.op(id).writes().expect("a receive writes");
        let (from, part) = match news {
            News::Staged(part) => (staged(part), Some(part)),
            News::Here(place) => (place, None),
            News::Offered => {
                running.cleared.insert(name, id);
                return self.transmit(key, name, Content::Clear, None);
            }
            News::Taken | News::Cleared | News::Delivered => unreachable!("{news:?} is for a sender, or is no news"),
        };
        let to = member.place(span);
        assert_eq!(from.len, to.len, "a message is as long as its receive");
        let copies = (!span.is_empty()).then_some(Output::by_process(key.1, Order::Copy { from, to }));
        self.outputs.extend(copies);
        match part {
            Some(part) => {
                self.staging.give_back(part);
                self.transmit(key, name, Content::Taken, None);
            }
            None => {
                let (_, port) = self.members[&key].membership.port_of(name.from);
                self.tell_here((key.0, port.0), name, News::Taken);
            }
        }
        self.complete(key, id);
    }

    fn complete(&mut self, key: Key, id: OpId) {
        let member = self.members.get_mut(&key).expect("it runs");
        member.running.as_mut().expect("it runs").run.complete(id);
    }

    /// Fails a job on this port: its calls end, and its resources become free.
    pub(super) fn fail(&mut self, key: Key, failure: Failure) {
        let member = self.members.get_mut(&key).expect("it is open");
        member.membership.failed = Some(failure);
        let calls = member.calls();
        (member.queue, member.running) = Default::default();
        let heard = std::mem::take(&mut member.inbox).into_iter().map(|(_, news)| news);
        for news in heard.chain(std::mem::take(&mut member.unexpected).into_values()) {
            if let News::Staged(part) = news {
                self.staging.give_back(part);
            }
        }
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
    }
}

fn staged(part: Part) -> Place {
    Place { region: Region::Shared, address: part.address, len: part.bytes }
}
