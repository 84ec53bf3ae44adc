//! A plan on a clock: when its calls end, given a profile of the costs of machines and NICs.
//!
//! | what happens | what it takes |
//! |---|---|
//! | a process posts | its processor: the cost of posting |
//! | a process copies, combines, sends | its processor, and its share of the memory's rate; its input must be there |
//! | a NIC works on memory | its part, and the bus if the memory is behind it |
//! | a packet leaves | its part of the NIC, the bus for its payload, the link; no link within a machine |
//! | a packet arrives | the link, the NIC, the bus if it goes to memory |
//! | a process notices an arrival | its processor: the cost of noticing |
//!
//! Engines run ahead of the clock by the duration of their orders. The sends and ends that an engine reports wait until
//! its orders are done. Invariants: costs only delay, so the bytes result from some order of events. Packets of a flow
//! arrive in order. A run is a function of plan and clock. Never does IO.

use std::borrow::Borrow;
use std::collections::HashMap;

use outboard_nic::costs::{EngineCosts, Machine, WorkTime};
use outboard_nic::{AddressSpace, Executor, MemorySegment, NicEngine, NicOrder, NodeId, Output, Port};
use outboard_plan::Rank;

use super::events::{NicEvent, NicEventQueue, TimedPacket};
use super::memory::NicMemory;
use super::resources::{MachineResources, PendingWrites, behind_bus};
use super::trace::{Component, NicTrace, TraceRow, TransferDirection, WaitCause};
use super::{EngineSettings, NicViolation, PreparedPlan, refused};

/// The costs of machines and NICs, and what processes do beside their calls.
#[derive(Debug, Clone, Copy)]
pub struct TimingModel<C> {
    pub machine: Machine,
    /// The further costs of the engine's NICs.
    pub costs: C,
    /// Consecutive nodes that are one machine: 1, except for plans that know nothing of hosts.
    pub nodes_per_machine: u32,
    /// Nanoseconds for which a process computes after each post, without checking its call.
    pub compute: f64,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Timing {
    /// By job and rank, nanoseconds from the start of the last call to its end. All ranks start the last call together.
    pub calls: Vec<Vec<f64>>,
    /// By node, the bytes of the NIC's own memory in which packets have lain; no byte counts twice.
    pub used: Vec<u64>,
    pub packets: u64,
}

impl Timing {
    /// The mean over all ranks, in nanoseconds, as benchmarks of MPI report it.
    pub fn mean(&self) -> f64 {
        let all: Vec<f64> = self.calls.iter().flatten().copied().collect();
        all.iter().sum::<f64>() / all.len().max(1) as f64
    }

    /// The time until all ranks of all jobs have ended (TH Sec. 2.1).
    pub fn slowest(&self) -> f64 {
        self.calls.iter().flatten().copied().fold(0.0, f64::max)
    }
}

impl<S: EngineSettings> PreparedPlan<'_, S> {
    /// Plays the calls of all jobs on a clock. A call begins when all ranks of its job have ended the previous call.
    /// Bytes are judged if there are any.
    pub fn time<C: EngineCosts<S::Engine>>(&self, clock: &TimingModel<C>) -> Result<Timing, NicViolation> {
        self.time_and_watch(clock, |_, _| ())
    }

    /// Like [`Self::time`]; in the end, `watch` receives the engines of all nodes.
    pub fn time_and_watch<C: EngineCosts<S::Engine>>(
        &self,
        clock: &TimingModel<C>,
        mut watch: impl FnMut(NodeId, &S::Engine),
    ) -> Result<Timing, NicViolation> {
        let mut player = TimedRun::new(self, clock)?;
        let timing = player.time()?;
        (0..).map(NodeId).zip(&player.engines).for_each(|(node, engine)| watch(node, engine));
        Ok(timing)
    }

    /// Like [`Self::time`], with a trace of the work of every row.
    pub fn time_and_trace<C: EngineCosts<S::Engine>>(
        &self,
        clock: &TimingModel<C>,
    ) -> Result<(Timing, NicTrace), NicViolation> {
        let mut player = TimedRun { trace: Some(NicTrace::default()), ..TimedRun::new(self, clock)? };
        let timing = player.time()?;
        Ok((timing, player.trace.unwrap_or_default()))
    }
}

#[derive(Debug, Clone, Copy, Default)]
struct TimedProgress {
    called: usize,
    ended: usize,
}

struct TimedRun<'a, S: EngineSettings, C> {
    prepared: &'a PreparedPlan<'a, S>,
    clock: &'a TimingModel<C>,
    engines: Vec<S::Engine>,
    memory: Option<NicMemory>,
    machines: Vec<MachineResources>,
    written: Vec<PendingWrites>,
    events: NicEventQueue<<S::Engine as NicEngine>::Packet>,
    /// By flow, the times at which its last packet was handed to the sending NIC, left, reached the receiving NIC, and
    /// arrived.
    flows: HashMap<(NodeId, NodeId, u64), [f64; 4]>,
    /// By node, the time of its timeout among the events.
    timeouts: Vec<Option<u64>>,
    /// By node and address in the NIC, the bytes of the longest packet that has lain there.
    used: Vec<HashMap<u64, u64>>,
    began: Vec<f64>,
    progress: Vec<Vec<TimedProgress>>,
    calls: Vec<Vec<f64>>,
    packets: u64,
    /// By node, the latest post or packet. It counts as the cause of everything that happens by timeout alone.
    causes: Vec<Option<WaitCause>>,
    trace: Option<NicTrace>,
}

impl<'a, S: EngineSettings, C: EngineCosts<S::Engine>> TimedRun<'a, S, C> {
    fn new(prepared: &'a PreparedPlan<'a, S>, clock: &'a TimingModel<C>) -> Result<Self, NicViolation> {
        let (engines, memory) = prepared.machines()?;
        let filled = prepared.jobs.iter().flat_map(|job| &job.calls).all(|call| !call.inputs.is_empty());
        let machines = engines.len().div_ceil(clock.nodes_per_machine as usize);
        let of_ranks = |job: &super::PreparedJob<S::Post>| vec![TimedProgress::default(); job.members.len()];
        Ok(TimedRun {
            prepared,
            clock,
            memory: filled.then_some(memory),
            machines: (0..machines).map(|_| MachineResources::default()).collect(),
            written: engines.iter().map(|_| PendingWrites::default()).collect(),
            events: NicEventQueue::default(),
            flows: HashMap::new(),
            timeouts: vec![None; engines.len()],
            used: vec![HashMap::new(); engines.len()],
            causes: vec![None; engines.len()],
            trace: None,
            engines,
            began: vec![0.0; prepared.jobs.len()],
            progress: prepared.jobs.iter().map(of_ranks).collect(),
            calls: prepared.jobs.iter().map(|job| vec![0.0; job.members.len()]).collect(),
            packets: 0,
        })
    }

    fn time(&mut self) -> Result<Timing, NicViolation> {
        self.play()?;
        self.judge()?;
        let used = self.used.iter().map(|used| used.values().sum()).collect();
        Ok(Timing { calls: std::mem::take(&mut self.calls), used, packets: self.packets })
    }

    /// Plays until nothing happens any more.
    fn play(&mut self) -> Result<(), NicViolation> {
        for job in 0..self.prepared.jobs.len() {
            self.begin(job, 0.0, None);
        }
        while let Some((at, event)) = self.events.pop() {
            match event {
                NicEvent::Call(job, rank) => self.call(at, job, rank)?,
                NicEvent::Depart(flight) => self.depart(at, flight),
                NicEvent::Near(flight, long) => self.near(at, flight, long),
                NicEvent::Receive(flight) => self.receive(at, flight),
                NicEvent::Arrive(flight) => self.arrive(at, flight),
                NicEvent::Timeout(node) => self.timeout(at, node),
                NicEvent::End(job, rank) => self.end(at, job, rank)?,
            }
        }
        Ok(())
    }

    fn machine_of(&self, node: NodeId) -> usize {
        (node.0 / self.clock.nodes_per_machine) as usize
    }

    /// The row of a node's worker.
    fn row(&self, node: NodeId, by: Executor) -> TraceRow {
        match by {
            Executor::Processor(port) => TraceRow::Process(node, port),
            Executor::Nic(part) => TraceRow::Shared(self.machine_of(node), Component::Sender(part)),
        }
    }

    fn note(&mut self, row: TraceRow, span: (f64, f64), work: &'static str, cause: Option<WaitCause>) {
        if let Some(trace) = &mut self.trace {
            trace.note(row, span, work, cause);
        }
    }

    /// Occupies a component of a machine for `long`, from `at` or later. Returns the start and the end.
    fn take(
        &mut self,
        (machine, component): (usize, Component),
        (at, long): (f64, f64),
        work: &'static str,
        cause: Option<WaitCause>,
    ) -> (f64, f64) {
        let span = self.machines[machine].part(component).take(at, long);
        self.note(TraceRow::Shared(machine, component), span, work, cause);
        span
    }

    /// Occupies a processor for `long`, from `at` or later. Returns the start and the end.
    fn process(
        &mut self,
        (node, port): (NodeId, Port),
        (at, long): (f64, f64),
        work: &'static str,
        cause: Option<WaitCause>,
    ) -> (f64, f64) {
        let machine = self.machine_of(node);
        let span = self.machines[machine].processors.take((node, port), at, long);
        self.note(TraceRow::Process(node, port), span, work, cause);
        span
    }

    /// Begins the call of a job on all its ranks. Each rank posts when its processor has spent the cost of posting.
    fn begin(&mut self, job: usize, now: f64, cause: Option<WaitCause>) {
        self.began[job] = now;
        let prepared = &self.prepared.jobs[job];
        for (rank, (node, port)) in prepared.members.iter().enumerate() {
            let post = prepared.calls[self.progress[job][rank].called].posts[rank].borrow();
            let takes = self.clock.costs.post(&self.clock.machine, post);
            let (_, at) = self.process((*node, *port), (now, takes), "post", cause);
            self.events.push(at, NicEvent::Call(job, rank));
        }
    }

    fn call(&mut self, now: f64, job: usize, rank: usize) -> Result<(), NicViolation> {
        let prepared = &self.prepared.jobs[job];
        let (node, port) = prepared.members[rank];
        let progress = &mut self.progress[job][rank];
        let post = prepared.calls[progress.called].posts[rank].borrow();
        progress.called += 1;
        self.engines[node.0 as usize].post(now as u64, port, post).map_err(refused)?;
        self.causes[node.0 as usize] = Some(TraceRow::Process(node, port).into());
        self.drain(now, node, Some(port), &[]);
        self.process((node, port), (now, self.clock.compute), "compute", None);
        Ok(())
    }

    fn timeout(&mut self, now: f64, node: NodeId) {
        self.timeouts[node.0 as usize] = None;
        let whole = now as u64;
        let engine = &mut self.engines[node.0 as usize];
        if engine.poll_timeout().is_some_and(|due| due <= whole) {
            engine.handle_timeout(whole);
        }
        self.drain(now, node, None, &[]);
    }

    fn depart(&mut self, now: f64, mut flight: TimedPacket<<S::Engine as NicEngine>::Packet>) {
        let (from, to) = (self.machine_of(flight.from), self.machine_of(flight.to));
        let Machine { bus_rate, bus_latency, link_rate, link_latency, .. } = self.clock.machine;
        let mut at = now;
        if let Executor::Nic(part) = flight.by {
            let contexts = self.contexts(from);
            let WorkTime { busy, lag } = self.clock.costs.send(&flight.packet, contexts);
            let sender = (from, Component::Sender(part));
            let (start, done) = self.take(sender, (at, busy), "send", flight.cause);
            flight.sent = (busy > 0.0).then_some((TraceRow::Shared(from, Component::Sender(part)), start));
            at = done + lag;
        }
        let bytes = flight.bytes as f64;
        let mut long = 0.0;
        if flight.over_bus {
            let bus = (from, Component::Bus(TransferDirection::Out));
            let (start, _) = self.take(bus, (at + 2.0 * bus_latency, bytes / bus_rate), "read", None);
            (at, long) = (start, bytes / bus_rate);
        }
        at = self.in_order(1, at, &flight);
        if from == to {
            return self.come(at + long, flight);
        }
        let link = Component::Link(C::link(&flight.packet), TransferDirection::Out);
        let (start, _) = self.take((from, link), (at, bytes / link_rate), "packet", None);
        flight.sent = flight.sent.or((bytes > 0.0).then_some((TraceRow::Shared(from, link), start)));
        self.events.push(start + link_latency, NicEvent::Near(flight, long.max(bytes / link_rate)));
    }

    fn contexts(&self, machine: usize) -> usize {
        let (each, first) = (self.clock.nodes_per_machine as usize, machine * self.clock.nodes_per_machine as usize);
        self.engines[first..].iter().take(each).map(C::contexts).sum()
    }

    fn near(&mut self, now: f64, flight: TimedPacket<<S::Engine as NicEngine>::Packet>, long: f64) {
        let to = self.machine_of(flight.to);
        let link = (to, Component::Link(C::link(&flight.packet), TransferDirection::In));
        let (start, _) = self.take(link, (now, flight.bytes as f64 / self.clock.machine.link_rate), "packet", None);
        self.come(start + long, flight);
    }

    /// The last byte of a packet is at the receiving NIC at this time.
    fn come(&mut self, at: f64, flight: TimedPacket<<S::Engine as NicEngine>::Packet>) {
        let at = self.in_order(2, at, &flight);
        self.events.push(at, NicEvent::Receive(flight));
    }

    /// The NIC has received the whole packet.
    fn receive(&mut self, now: f64, flight: TimedPacket<<S::Engine as NicEngine>::Packet>) {
        let to = self.machine_of(flight.to);
        let WorkTime { busy, lag } = self.clock.costs.receive(&flight.packet, self.contexts(to));
        let (_, done) = self.take((to, Component::Receiver), (now, busy), "receive", None);
        let at = self.in_order(3, done + lag, &flight);
        self.events.push(at, NicEvent::Arrive(flight));
    }

    /// When a packet can be at this stage, given the earlier packets of its flow.
    fn in_order(&mut self, stage: usize, at: f64, flight: &TimedPacket<<S::Engine as NicEngine>::Packet>) -> f64 {
        let Some(flow) = S::Engine::flow(&flight.packet) else { return at };
        let last = &mut self.flows.entry((flight.from, flight.to, flow)).or_default()[stage];
        *last = last.max(at);
        *last
    }

    fn arrive(&mut self, now: f64, flight: TimedPacket<<S::Engine as NicEngine>::Packet>) {
        self.packets += 1;
        let by = self.row(flight.from, flight.by);
        self.causes[flight.to.0 as usize] = Some(WaitCause { by, sent: flight.sent });
        self.engines[flight.to.0 as usize].handle_packet(now as u64, flight.from, flight.packet);
        self.drain(now, flight.to, None, &flight.payload);
    }

    /// Carries out the orders of an engine on the clock. A process that has just posted spends no time on noticing.
    fn drain(&mut self, now: f64, node: NodeId, posted: Option<Port>, payload: &[u8]) {
        self.written[node.0 as usize].forget(now);
        let machine = self.machine_of(node);
        self.machines[machine].processors.forget(now);
        let mut pass =
            Pass { now, node, delivered: now, lag: now, placed: false, noticed: posted.into_iter().collect() };
        while let Some(output) = self.engines[node.0 as usize].poll() {
            match output {
                Output::Order { by, order } => {
                    if let Some(memory) = &mut self.memory {
                        memory.perform(node, order, payload);
                    }
                    match by {
                        Executor::Processor(port) => _ = self.by_processor(&mut pass, port, Some(order), &reads(order)),
                        Executor::Nic(part) => self.by_nic(&mut pass, part, order),
                    }
                }
                Output::Transmit { by, to, packet, payload } => self.transmit(&mut pass, by, &[to], packet, &payload),
                Output::Multicast { to, packet, payload } => {
                    self.transmit(&mut pass, Executor::Nic(0), &to, packet, &[payload]);
                }
                Output::Completed { port, completion } => {
                    let at = self.by_processor(&mut pass, port, None, &[]);
                    let job = usize::from(completion.job);
                    let rank = self.prepared.jobs[job].members.iter().position(|member| *member == (node, port));
                    self.events.push(at, NicEvent::End(job, rank.expect("a port of the job")));
                }
            }
        }
        if let Some(due) = self.engines[node.0 as usize].poll_timeout()
            && self.timeouts[node.0 as usize].is_none_or(|at| at > due)
        {
            self.timeouts[node.0 as usize] = Some(due);
            self.events.push(now.max(due as f64), NicEvent::Timeout(node));
        }
    }

    /// A processor carries out an order, or notices an end if there is no order. Returns when it is done.
    fn by_processor(&mut self, pass: &mut Pass, port: Port, order: Option<NicOrder>, reads: &[MemorySegment]) -> f64 {
        let machine = &self.clock.machine;
        let (work, rate, bytes) = match order {
            Some(NicOrder::Copy { from, .. }) => ("copy", machine.copy_rate, from.len),
            Some(NicOrder::Reduce { from, .. }) => ("combine", machine.combine_rate, from.len),
            Some(NicOrder::Deliver { .. } | NicOrder::Write { .. }) | None => ("copy", machine.copy_rate, 0),
        };
        let mut takes = 0.0;
        if !pass.noticed.contains(&port) {
            pass.noticed.push(port);
            takes += if pass.placed { machine.poll } else { machine.notice };
        }
        let node = pass.node;
        let (from, cause) = self.ready(pass, reads);
        let (_, from) = self.process((node, port), (from, takes), "notice", cause);
        let processors = &mut self.machines[(node.0 / self.clock.nodes_per_machine) as usize].processors;
        let span = processors.reach((node, port), from, bytes, [rate, machine.memory_rate]);
        self.note(TraceRow::Process(node, port), span, work, None);
        if let Some(NicOrder::Copy { to: into, .. } | NicOrder::Reduce { into, .. }) = order {
            self.written[node.0 as usize].note(into, span.1, port);
        }
        span.1
    }

    /// When the data that this pass reads is there, and the cause that brought the data there.
    fn ready(&self, pass: &Pass, reads: &[MemorySegment]) -> (f64, Option<WaitCause>) {
        let node = pass.node;
        let (at, writer) = self.written[node.0 as usize].since(reads, pass.delivered.max(pass.lag));
        let writer = writer.map(|port| TraceRow::Process(node, port).into());
        (at, writer.or(self.causes[node.0 as usize]))
    }

    fn by_nic(&mut self, pass: &mut Pass, part: u16, order: NicOrder) {
        let Machine { bus_rate, bus_latency, .. } = self.clock.machine;
        let machine = self.machine_of(pass.node);
        if let NicOrder::Deliver { to } = order {
            pass.placed |= matches!(to.region, AddressSpace::Host(_));
            if behind_bus(&to) {
                // Earlier bytes of the packet have crossed the bus by then, if the bus was free.
                let long = to.len as f64 / bus_rate;
                let bus = (machine, Component::Bus(TransferDirection::In));
                let (_, done) = self.take(bus, (pass.now - long, long), "write", None);
                pass.delivered = pass.delivered.max(done + bus_latency);
            } else {
                let longest = self.used[pass.node.0 as usize].entry(to.address).or_default();
                *longest = to.len.max(*longest);
            }
            return;
        }
        let takes = self.clock.costs.order(&order);
        let work = if matches!(order, NicOrder::Reduce { .. }) { "combine" } else { "copy" };
        let (sender, cause) = ((machine, Component::Sender(part)), self.causes[pass.node.0 as usize]);
        let (_, mut done) = self.take(sender, (pass.delivered, takes), work, cause);
        let (NicOrder::Copy { from, to: into } | NicOrder::Reduce { from, into, .. }) = order else { return };
        if behind_bus(&from) {
            let bus = (machine, Component::Bus(TransferDirection::Out));
            let (_, read) = self.take(bus, (pass.now, from.len as f64 / bus_rate), "read", None);
            done = done.max(read + 2.0 * bus_latency);
        }
        if behind_bus(&into) {
            let bus = (machine, Component::Bus(TransferDirection::In));
            let (_, wrote) = self.take(bus, (done, into.len as f64 / bus_rate), "write", None);
            done = wrote + bus_latency;
        }
        pass.lag = pass.lag.max(done);
    }

    fn transmit(
        &mut self,
        pass: &mut Pass,
        by: Executor,
        to: &[NodeId],
        packet: <S::Engine as NicEngine>::Packet,
        payload: &[MemorySegment],
    ) {
        let node = pass.node;
        let (at, cause, sent) = match by {
            Executor::Processor(port) => {
                self.by_processor(pass, port, None, payload);
                let takes = self.clock.machine.send;
                let (from, until) = self.process((node, port), (pass.now, takes), "send", None);
                (until, None, (takes > 0.0).then_some((self.row(node, by), from)))
            }
            Executor::Nic(_) => {
                let (at, cause) = self.ready(pass, payload);
                pass.lag = pass.now;
                (at, cause, None)
            }
        };
        let bytes = payload.iter().map(|place| place.len).sum();
        let over_bus = payload.iter().any(behind_bus);
        let held = self.memory.as_mut().map(|memory| memory.gather(node, payload)).unwrap_or_default();
        for to in to {
            let (packet, payload) = (packet.clone(), held.clone());
            let flight = TimedPacket { by, from: node, to: *to, packet, payload, bytes, over_bus, cause, sent };
            let at = self.in_order(0, at, &flight);
            self.events.push(at, NicEvent::Depart(flight));
        }
    }

    /// A rank notices that its call has ended.
    fn end(&mut self, now: f64, job: usize, rank: usize) -> Result<(), NicViolation> {
        let prepared = &self.prepared.jobs[job];
        let ((node, port), call) = (prepared.members[rank], self.progress[job][rank].ended);
        self.progress[job][rank].ended += 1;
        self.calls[job][rank] = now - self.began[job];
        let wrong =
            self.memory.as_mut().and_then(|memory| prepared.calls[call].wrong_byte(rank, memory.host(node, port)));
        if let Some((at, found, expected)) = wrong {
            return Err(NicViolation::Bytes { job, rank: Rank(rank as u32), call, at, found, expected });
        }
        if call + 1 < prepared.calls.len() && self.progress[job].iter().all(|progress| progress.ended == call + 1) {
            self.begin(job, now, Some(TraceRow::Process(node, port).into()));
        }
        Ok(())
    }

    /// Checks that all calls have ended, and that engines have all their resources back.
    fn judge(&self) -> Result<(), NicViolation> {
        for (job, (prepared, progress)) in self.prepared.jobs.iter().zip(&self.progress).enumerate() {
            let calls = prepared.calls.len();
            if let Some((rank, progress)) = (0..).map(Rank).zip(progress).find(|(_, progress)| progress.ended < calls) {
                return Err(NicViolation::Endless { job, rank, ended: progress.ended, calls });
            }
        }
        for (node, engine) in (0..).zip(&self.engines) {
            if !S::is_idle(engine) {
                return Err(NicViolation::Kept { node });
            }
        }
        Ok(())
    }
}

/// The state of one pass over the outputs of an engine.
struct Pass {
    now: f64,
    node: NodeId,
    /// When the arrived data lies in its place, and when the NIC has finished its work on memory.
    delivered: f64,
    lag: f64,
    /// Whether a message has gone straight to its place.
    placed: bool,
    /// Ports whose processes know of the arrival.
    noticed: Vec<Port>,
}

fn reads(order: NicOrder) -> [MemorySegment; 1] {
    match order {
        NicOrder::Deliver { to } | NicOrder::Write { to, .. } => [to],
        NicOrder::Copy { from, .. } | NicOrder::Reduce { from, .. } => [from],
    }
}
