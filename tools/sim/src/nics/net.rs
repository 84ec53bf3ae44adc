//! A network of NICs: engines, the memory that they work on, and packets on their way.
//!
//! Packets arrive in any order, even packets of one source, but a flow keeps its order. Only multicast packets and
//! packets to dead nodes are lost. The player decides which packet is next, and which is lost. Memory is [`NicMemory`].

use std::collections::{BTreeMap, VecDeque};

use outboard_nic::{JobCompletion, NicEngine, NodeId, Output, Port};

use super::memory::NicMemory;

struct PacketInFlight<P> {
    from: NodeId,
    to: NodeId,
    packet: P,
    payload: Vec<u8>,
    multicast: bool,
}

/// A call that has ended, with its node and port.
pub(super) type CompletedCall = (NodeId, Port, JobCompletion);

/// A flow: packets between two nodes with one number, which keep their order.
type FlowKey = (NodeId, NodeId, u64);

pub(super) struct NicNetwork<E: NicEngine> {
    /// Engines by node; `None` for dead nodes.
    engines: Vec<Option<E>>,
    memory: NicMemory,
    /// Packets on their way, only the first of each flow.
    in_flight: Vec<PacketInFlight<E::Packet>>,
    /// Packets behind the first of their flow.
    behind: BTreeMap<FlowKey, VecDeque<PacketInFlight<E::Packet>>>,
    ended: Vec<CompletedCall>,
    now: u64,
    delivered: u64,
}

impl<E: NicEngine> NicNetwork<E> {
    pub(super) fn new(engines: Vec<E>, memory: NicMemory) -> Self {
        NicNetwork {
            memory,
            engines: engines.into_iter().map(Some).collect(),
            in_flight: Vec::new(),
            behind: BTreeMap::new(),
            ended: Vec::new(),
            now: 0,
            delivered: 0,
        }
    }

    /// Living engines with their nodes.
    pub(super) fn engines(&self) -> impl Iterator<Item = (NodeId, &E)> {
        (0..).map(NodeId).zip(&self.engines).filter_map(|(node, engine)| Some((node, engine.as_ref()?)))
    }

    fn engine(&mut self, node: NodeId) -> Option<&mut E> {
        self.engines[node.0 as usize].as_mut()
    }

    /// The memory of the process behind a port.
    pub(super) fn host(&mut self, node: NodeId, port: Port) -> &mut Vec<u8> {
        self.memory.host(node, port)
    }

    /// The number of packets that may be next.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    /// Calls that have ended since the last call of this function.
    pub(super) fn ended(&mut self) -> Vec<CompletedCall> {
        std::mem::take(&mut self.ended)
    }

    /// A process posts. Returns the NIC's answer, or `None` if the NIC is dead.
    pub(super) fn post(&mut self, node: NodeId, port: Port, post: &E::Post) -> Option<Result<(), E::Error>> {
        self.now += 1;
        let now = self.now;
        let posted = self.engine(node)?.post(now, port, post);
        self.drain(node, &[]);
        Some(posted)
    }

    /// Whether a packet on its way may be lost.
    pub(super) fn may_lose(&self, index: usize) -> bool {
        self.in_flight[index].multicast
    }

    pub(super) fn lose(&mut self, index: usize) {
        assert!(self.in_flight.swap_remove(index).multicast, "nothing else is lost");
    }

    /// One of the packets on their way arrives.
    pub(super) fn deliver(&mut self, index: usize) {
        let PacketInFlight { from, to, packet, payload, .. } = self.in_flight.swap_remove(index);
        if let Some(flow) = E::flow(&packet).map(|flow| (from, to, flow)) {
            let next = self.behind.get_mut(&flow).and_then(VecDeque::pop_front);
            if next.is_none() {
                self.behind.remove(&flow);
            }
            self.in_flight.extend(next);
        }
        self.now += 1;
        let now = self.now;
        let Some(engine) = self.engine(to) else { return };
        engine.handle_packet(now, from, packet);
        self.delivered += 1;
        self.drain(to, &payload);
    }

    /// A node dies, and packets on their way to it are lost.
    pub(super) fn die(&mut self, node: NodeId) {
        self.engines[node.0 as usize] = None;
        self.in_flight.retain(|in_flight| in_flight.to != node);
        self.behind.retain(|(_, to, _), _| *to != node);
    }

    /// Notifies a NIC that another node is dead.
    pub(super) fn notify_dead(&mut self, node: NodeId, dead: NodeId) {
        let now = self.now;
        if let Some(engine) = self.engine(node) {
            engine.handle_dead(now, dead);
            self.drain(node, &[]);
        }
    }

    /// Whether some engine waits for time to pass.
    pub(super) fn awaits_time(&self) -> bool {
        self.engines().any(|(_, engine)| engine.poll_timeout().is_some())
    }

    /// Lets time pass until the first timeout of an engine. Returns whether there is one.
    pub(super) fn pass_time(&mut self) -> bool {
        let Some(at) = self.engines().filter_map(|(_, engine)| engine.poll_timeout()).min() else { return false };
        self.now = self.now.max(at);
        let now = self.now;
        for node in (0..self.engines.len() as u32).map(NodeId) {
            if let Some(engine) = self.engine(node).filter(|engine| engine.poll_timeout().is_some_and(|at| at <= now)) {
                engine.handle_timeout(now);
                self.drain(node, &[]);
            }
        }
        true
    }

    fn drain(&mut self, node: NodeId, payload: &[u8]) {
        while let Some(output) = self.engine(node).and_then(E::poll) {
            match output {
                Output::Order { order, .. } => self.memory.perform(node, order, payload),
                Output::Transmit { to, packet, payload, .. } => {
                    let payload = self.memory.gather(node, &payload);
                    self.fly(PacketInFlight { from: node, to, packet, payload, multicast: false });
                }
                Output::Multicast { to, packet, payload } => {
                    let payload = self.memory.gather(node, &[payload]);
                    for to in to {
                        let (packet, payload) = (packet.clone(), payload.clone());
                        self.fly(PacketInFlight { from: node, to, packet, payload, multicast: true });
                    }
                }
                Output::Completed { port, completion } => self.ended.push((node, port, completion)),
            }
        }
    }

    /// A packet leaves, unless its receiver is dead. The packet waits behind earlier packets of its flow.
    fn fly(&mut self, in_flight: PacketInFlight<E::Packet>) {
        if self.engines[in_flight.to.0 as usize].is_none() {
            return;
        }
        let flow = E::flow(&in_flight.packet).map(|flow| (in_flight.from, in_flight.to, flow));
        match flow.and_then(|flow| self.behind.get_mut(&flow)) {
            Some(behind) => behind.push_back(in_flight),
            None => {
                self.behind.extend(flow.map(|flow| (flow, VecDeque::new())));
                self.in_flight.push(in_flight);
            }
        }
    }
}
