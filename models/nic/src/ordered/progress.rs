//! Progress of tasks: binding units, starting sequences, carrying out descriptors, granting room.

use super::buffer::{PacketKey, PacketName};
use super::descriptor::{DescriptorAddress, DescriptorPiece, Flags, PULSES, PortAddress};
use super::direct::DirectState;
use super::task::{Retry, RoomRequest, RunningSequence, Task};
use super::{OrderedContent, OrderedEngine, TaskKey};
use crate::engine::{AddressSpace, Executor, JobFailure, MemorySegment, NicOrder, Output, Port};

impl OrderedEngine {
    pub(super) fn task(&mut self, key: TaskKey) -> &mut Task {
        self.tasks.get_mut(&key).expect("a task that goes on is open")
    }

    /// The unit of a task; binds the least loaded unit if the task has none.
    pub(super) fn bind(&mut self, key: TaskKey) -> usize {
        if let Some(unit) = self.tasks[&key].unit {
            return unit;
        }
        let least = (0..self.units.len()).min_by_key(|unit| self.units[*unit].load()).expect("a NIC has units");
        self.units[least].tasks += 1;
        assert!(self.units[least].tasks <= self.settings.tasks_per_unit(), "as many tasks as there is room for");
        self.task(key).unit = Some(least);
        least
    }

    /// Unbinds the unit of a task that is idle.
    pub(super) fn unbind_idle(&mut self, key: TaskKey) {
        let task = &self.tasks[&key];
        if let Some(unit) = task.unit
            && task.is_idle(&self.settings)
        {
            self.units[unit].tasks -= 1;
            self.task(key).unit = None;
        }
    }

    /// Progresses all ready tasks as far as possible.
    pub(super) fn run(&mut self, now: u64) {
        while let Some(key) = self.ready.pop_first() {
            while self.tasks.get(&key).is_some_and(|task| task.failed.is_none()) && self.progress_task(now, key) {}
            if self.tasks.contains_key(&key) {
                self.unbind_idle(key);
            }
        }
    }

    /// Starts a sequence if possible and carries out one chunk of each pulse that can progress. Returns whether any
    /// sequence or pulse progressed.
    fn progress_task(&mut self, now: u64, key: TaskKey) -> bool {
        let mut went = self.start(now, key);
        let pulses: Vec<u64> = self.tasks[&key].running.keys().copied().collect();
        for pulse in pulses {
            if self.step(key, pulse) {
                went = true;
                let running = &self.tasks[&key].running[&pulse];
                if running.at == running.sequence.descriptors.len() {
                    self.finish(key, pulse);
                }
            }
        }
        went
    }

    /// Gives the first sequence of the queue a DMA counter. If the task runs a sequence already, one counter stays free
    /// for each task that holds none.
    fn start(&mut self, now: u64, key: TaskKey) -> bool {
        let task = &self.tasks[&key];
        let Some(unit) = task.unit.filter(|_| !task.queue.is_empty()) else { return false };
        let (oldest, first) = (task.queue_has_oldest(), task.running.is_empty());
        let left = &mut self.units[unit];
        let others = self.settings.tasks_per_unit() - left.busy;
        if left.counters.len() <= if first { 0 } else { others } {
            if oldest {
                self.retry(now, key);
            }
            return false;
        }
        left.busy += usize::from(first);
        let counter = left.counters.pop().expect("more than none");
        let task = self.task(key);
        let pulse = task.next - task.queue.len() as u64;
        let sequence = task.queue.pop_front().expect("looked at above");
        task.retry = None;
        task.running.insert(pulse, RunningSequence { sequence, at: 0, chunk: 0, counter });
        true
    }

    /// Schedules a retry after the oldest sequence of a task found no counter (TH-5).
    fn retry(&mut self, now: u64, key: TaskKey) {
        let (after, retries) = (self.settings.retry_after, self.settings.retries);
        let retry = self.task(key).retry;
        if retry.is_some_and(|retry| retry.at > now) {
            return;
        }
        let tries = retry.map_or(0, |retry| retry.tries + 1);
        if tries > retries {
            let (counters, tasks) = (self.settings.counters, self.settings.tasks_per_unit());
            self.fail(key, JobFailure::Counters { node: self.node, counters, tasks });
            return;
        }
        self.task(key).retry = Some(Retry { at: now + after, tries });
    }

    /// Carries out one chunk of the next descriptor in a pulse, unless the descriptor has to wait.
    fn step(&mut self, key: TaskKey, pulse: u64) -> bool {
        let task = &self.tasks[&key];
        let running = &task.running[&pulse];
        let descriptor = &running.sequence.descriptors[running.at];
        if let Some(to) = running.sequence.dest(running.at).filter(|to| task.peers[to].granted <= pulse) {
            self.request_room(key, to, pulse);
            return false;
        }
        let unit = task.unit.expect("a task that runs has a unit");
        let name = |source: &PortAddress| PacketName {
            job: key.0,
            source: source.node,
            source_port: source.port,
            seq: descriptor.await_seq,
            port: key.1,
            pulse: (pulse % PULSES) as u16,
            chunk: running.chunk as u16,
        };
        let keys: Vec<PacketKey> =
            running.sequence.sources_of(running.at).iter().map(name).map(PacketKey::from).collect();
        if keys.iter().any(|key| self.units[unit].buffer.find(*key).is_none()) {
            return false;
        }
        let slots: Vec<usize> = keys.iter().filter_map(|key| self.units[unit].buffer.remove(*key)).collect();
        self.execute_chunk(key, pulse, &slots);
        self.count_read(key, pulse, slots.len());
        let packets = self.settings.packets(self.length(key, pulse));
        let running = self.task(key).running.get_mut(&pulse).expect("it runs");
        running.chunk += 1;
        if running.chunk == packets {
            (running.at, running.chunk) = (running.at + 1, 0);
        }
        true
    }

    fn length(&self, key: TaskKey, pulse: u64) -> u64 {
        let running = &self.tasks[&key].running[&pulse];
        running.sequence.descriptors[running.at].length.into()
    }

    /// Counts packets that were read.
    fn count_read(&mut self, key: TaskKey, pulse: u64, count: usize) {
        let held = &mut self.task(key).held;
        if let Some(left) = held.get_mut(&pulse) {
            *left -= count;
            if *left == 0 {
                held.remove(&pulse);
            }
        }
    }

    /// Emits the orders and the message of one chunk; `slots` are its packets in the order of reading (TH-2).
    fn execute_chunk(&mut self, key: TaskKey, pulse: u64, slots: &[usize]) {
        let task = &self.tasks[&key];
        let running = &task.running[&pulse];
        let descriptor = &running.sequence.descriptors[running.at];
        let (flags, chunk) = (descriptor.flags, running.chunk);
        let unit = task.unit.expect("a task that runs has a unit");
        let intermediate = self.intermediate(unit, running.counter);
        let (start, len) = self.settings.packet(descriptor.length.into(), chunk);
        let places = |pieces: &[DescriptorPiece]| cut(pieces, (start, len), Port(key.1), intermediate);
        let [operand, result, message] =
            [&descriptor.operand, &descriptor.result, &descriptor.message].map(|pieces| places(pieces));
        let slots = slots.iter().map(|slot| [self.slot(unit, *slot, len)]);
        let copy = |(from, to)| NicOrder::Copy { from, to };
        let mut orders: Vec<NicOrder> = Vec::new();
        if let Some(reduction) = descriptor.reduction {
            if operand != result {
                orders.extend(pairs(&operand, &result).map(copy));
            }
            let from_left = descriptor.packet_left;
            for slot in slots {
                orders.extend(pairs(&slot, &result).map(|(from, into)| NicOrder::Reduce {
                    reduction,
                    from,
                    into,
                    from_left,
                }));
            }
        } else if flags.has(Flags::SWAP_LOCAL_DATA) {
            slots.for_each(|slot| orders.extend(pairs(&slot, &result).map(copy)));
        } else if operand != result {
            orders.extend(pairs(&operand, &result).map(copy));
        }
        let content = OrderedContent::Data {
            seq: descriptor.seq,
            pulse: descriptor.pulse,
            chunk: chunk as u16,
            bytes: len as u32,
        };
        let (to, inline, by) =
            (running.sequence.dest(running.at), descriptor.inline.clone(), Executor::Nic(unit as u16));
        self.outputs.extend(orders.into_iter().map(|order| Output::Order { by, order }));
        if let Some(to) = to {
            let message = if inline.is_empty() { message } else { self.write_inline(by, &inline, (start, len)) };
            self.transmit(key, to, content, message);
        }
    }

    /// Ends a pulse: frees its counter, and the room of all oldest pulses that are done.
    fn finish(&mut self, key: TaskKey, pulse: u64) {
        let task = self.task(key);
        let unit = task.unit.expect("a task that runs has a unit");
        let running = task.running.remove(&pulse).expect("it has run");
        let oldest = task.running.keys().next().copied().unwrap_or(task.next - task.queue.len() as u64);
        let over = task.done..oldest;
        let last = task.running.is_empty();
        let unit_state = &mut self.units[unit];
        unit_state.counters.push(running.counter);
        unit_state.busy -= usize::from(last);
        for pulse in over {
            self.free_pulse(key, unit, pulse);
        }
        self.report_ended(key);
        self.rearm_tasks(unit);
    }

    /// Frees the room of the oldest pulse of a task.
    fn free_pulse(&mut self, key: TaskKey, unit: usize, pulse: u64) {
        let always = self.settings.granted();
        let task = self.task(key);
        task.done = pulse + 1;
        if task.granted - task.done < always {
            task.granted += 1
        } else {
            self.units[unit].spare += 1
        }
        assert!(!self.task(key).held.contains_key(&pulse), "a pulse reads all that is sent in it");
    }

    /// Reports calls that have ended, in the order in which they were posted.
    pub(super) fn report_ended(&mut self, key: TaskKey) {
        while self.tasks[&key].has_ended() {
            self.task(key).ends.pop_front();
            self.outputs.push_back(Output::completed(key, Ok(())));
        }
    }

    /// Makes the tasks of a unit ready after counters or room have become free.
    fn rearm_tasks(&mut self, unit: usize) {
        self.distribute_grants(unit);
        let of_unit = self.tasks.iter().filter(|(_, task)| task.unit == Some(unit));
        self.ready.extend(of_unit.map(|(key, _)| *key));
    }

    /// Requests room at a peer once for all posted pulses, so that grants need no round trip for each pulse.
    fn request_room(&mut self, key: TaskKey, to: PortAddress, pulse: u64) {
        let task = self.task(key);
        let last = task.next - 1;
        let peer = task.peers.get_mut(&to).expect("checked when it was posted");
        if peer.requested.is_none_or(|requested| requested < pulse) {
            peer.requested = Some(last);
            self.transmit(key, to, OrderedContent::RequestRoom { pulse: last }, Vec::new());
        }
    }

    /// Handles a peer's request for room.
    pub(super) fn handle_room_request(&mut self, key: TaskKey, from: PortAddress, pulse: u64) {
        let unit = self.bind(key);
        let last_grant = self.settings.granted();
        let request = self.task(key).room_requests.entry(from).or_insert(RoomRequest { most: pulse, last_grant });
        request.most = request.most.max(pulse);
        self.distribute_grants(unit);
        self.unbind_idle(key);
    }

    /// Grants the spare pulses of a unit to tasks with open requests; tasks with the fewest pulses granted ahead come
    /// first.
    fn distribute_grants(&mut self, unit: usize) {
        while self.units[unit].spare > 0 {
            let wants = |(key, task): (&TaskKey, &Task)| {
                let short =
                    task.unit == Some(unit) && task.room_requests.values().any(|request| request.most >= task.granted);
                short.then(|| (task.granted - task.done, *key))
            };
            let Some((_, key)) = self.tasks.iter().filter_map(wants).min() else { break };
            self.units[unit].spare -= 1;
            self.task(key).granted += 1;
        }
        let requested = |task: &Task| task.unit == Some(unit) && !task.room_requests.is_empty();
        let requested: Vec<TaskKey> =
            self.tasks.iter().filter(|(_, task)| requested(task)).map(|(key, _)| *key).collect();
        requested.into_iter().for_each(|key| self.send_grants(key));
    }

    /// Sends new grants to the peers that wait for room.
    fn send_grants(&mut self, key: TaskKey) {
        let task = self.task(key);
        let before = task.granted;
        let outdated = task.room_requests.iter_mut().filter(|(_, request)| request.last_grant < before);
        let to: Vec<PortAddress> = outdated
            .map(|(peer, request)| {
                request.last_grant = before;
                *peer
            })
            .collect();
        task.room_requests.retain(|_, request| request.most >= before);
        for peer in to {
            self.transmit(key, peer, OrderedContent::Grant { before }, Vec::new());
        }
    }

    /// Handles a peer's grant.
    pub(super) fn handle_grant(&mut self, key: TaskKey, from: PortAddress, before: u64) {
        let peer = self.task(key).peers.get_mut(&from).expect("it is in the job");
        peer.granted = peer.granted.max(before);
        self.ready.insert(key);
    }

    /// Fails a job on this port: its calls end, its peers are notified, and its resources become free.
    pub(super) fn fail(&mut self, key: TaskKey, failure: JobFailure) {
        if self.tasks[&key].failed.is_some() {
            return;
        }
        self.release(key);
        let task = self.task(key);
        task.failed = Some(failure);
        task.done = task.next;
        let (calls, peers) = (std::mem::take(&mut task.ends).len(), task.peers.keys().copied().collect::<Vec<_>>());
        self.outputs.extend((0..calls).map(|_| Output::completed(key, Err(failure))));
        for peer in peers {
            let gone = matches!(failure, JobFailure::Dead { node } if node.0 == peer.node);
            if !gone && (peer.node, peer.port) != (self.node.0, key.1) {
                self.transmit(key, peer, OrderedContent::Abort(failure), Vec::new());
            }
        }
    }

    /// Takes a task's share of its unit away.
    pub(super) fn release(&mut self, key: TaskKey) {
        let always = self.settings.granted();
        let task = self.task(key);
        task.direct = DirectState::default();
        let Some(number) = task.unit.take() else { return };
        let running = std::mem::take(&mut task.running);
        let beyond = task.granted - task.done - always;
        (task.queue, task.room_requests, task.retry) = Default::default();
        task.held.clear();
        let unit = &mut self.units[number];
        unit.spare += beyond;
        unit.tasks -= 1;
        unit.busy -= usize::from(!running.is_empty());
        unit.counters.extend(running.into_values().map(|running| running.counter));
        unit.buffer.remove_all(|other| other.task() == key);
        self.rearm_tasks(number);
    }
}

/// The places of `len` bytes in these pieces, from byte `start` of their bytes on.
pub(super) fn cut(
    pieces: &[DescriptorPiece],
    (start, len): (u64, u64),
    port: Port,
    intermediate: u64,
) -> Vec<MemorySegment> {
    let (mut skip, mut left, mut places) = (start, len, Vec::new());
    for piece in pieces {
        let take = piece.len.saturating_sub(skip).min(left);
        if take > 0 {
            let (region, address) = match piece.address {
                DescriptorAddress::Host(at) => (AddressSpace::Host(port), at),
                DescriptorAddress::Intermediate(at) => (AddressSpace::Nic, intermediate + at),
            };
            places.push(MemorySegment { region, address: address + skip, len: take });
        }
        skip = skip.saturating_sub(piece.len);
        left -= take;
    }
    places
}

/// Matches two lists of places byte by byte, in pieces that cross no boundary of either list.
pub(super) fn pairs<'a>(
    from: &'a [MemorySegment],
    to: &'a [MemorySegment],
) -> impl Iterator<Item = (MemorySegment, MemorySegment)> + 'a {
    let rest =
        |place: MemorySegment, len| MemorySegment { address: place.address + len, len: place.len - len, ..place };
    let (mut from, mut to) = (from.iter().copied(), to.iter().copied());
    let mut next = (from.next(), to.next());
    std::iter::from_fn(move || {
        let (Some(a), Some(b)) = next else { return None };
        let len = a.len.min(b.len);
        next.0 = if a.len > len { Some(rest(a, len)) } else { from.next() };
        next.1 = if b.len > len { Some(rest(b, len)) } else { to.next() };
        Some((MemorySegment { len, ..a }, MemorySegment { len, ..b }))
    })
}
