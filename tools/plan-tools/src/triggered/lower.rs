//! Makes templates from plans.

use std::collections::{BTreeMap, HashMap};

use outboard_nic::triggered::list::{
    HostStep, ListTemplate, PeerConnection, Prepost, Purpose, QueuePairId, TemplatePlace, TransferProtocol, WorkAction,
    WorkRequest,
};
use outboard_plan::{Op, OpId, PlanError, Program, Rank, Span, Topology};
use thiserror::Error;

use super::arrivals::{ArrivalPlace, ArrivedSpans};
use super::connections::{buffers, connection, pairwise, preposts};
use super::phases::{Phases, phases};
use crate::rounds::{RoundMessage, Rounds};
use crate::verify::{StepGraph, StepLocation, VerifyError};

#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum TriggeredLowerError {
    #[error(transparent)]
    Program(#[from] PlanError),
    #[error(transparent)]
    Plan(#[from] VerifyError),
    #[error("{at}: the queue pairs of a task list connect two ranks; choose an algorithm without multicast")]
    Multicast { at: Box<StepLocation> },
    #[error(
        "{at} stands between messages that arrive and messages that leave, where a NIC has only task lists: \
             choose an algorithm that passes on what it receives, or one for hosts of several ranks"
    )]
    Between { at: Box<StepLocation> },
    #[error("{rank} receives more than 2^32 eager buffers: enlarge them or choose the rendezvous protocol")]
    Buffers { rank: Rank },
    #[error("{bytes} B on each of {ranks} ranks do not fit a 64-bit address: lower the byte count")]
    Bytes { ranks: u32, bytes: u64 },
}

/// A plan whose messages have rounds and queue pairs, or stay within hosts.
#[derive(Debug)]
pub struct Lowering<'a> {
    programs: &'a [Program],
    /// The messages between hosts, in rounds without gaps.
    messages: Vec<RoundMessage>,
    rounds: u32,
    pairwise: bool,
    /// By rank, the indices of its sent and received messages between hosts.
    of_rank: Vec<Vec<usize>>,
    phases: Vec<Phases>,
}

impl<'a> Lowering<'a> {
    /// Prepares the programs of all ranks of a group, in rank order, on the hosts of `topology`.
    pub fn new(programs: &'a [Program], topology: &Topology) -> Result<Self, TriggeredLowerError> {
        assert_eq!(topology.ranks() as usize, programs.len(), "every rank has a host");
        let rounds = Rounds::of(programs)?;
        for program in programs {
            let multicast = program.steps.iter().position(|step| matches!(step.op, Op::Multicast { .. }));
            if let Some(step) = multicast {
                return Err(TriggeredLowerError::Multicast {
                    at: StepLocation::new(program, OpId(step as u32)).boxed(),
                });
            }
        }
        let between = |message: &&RoundMessage| topology.host_of(message.from) != topology.host_of(message.to);
        let mut messages: Vec<RoundMessage> = rounds.messages().iter().filter(between).copied().collect();
        let mut count = 0;
        for round in messages.chunk_by_mut(|a, b| a.round == b.round) {
            round.iter_mut().for_each(|message| message.round = count);
            count += 1;
        }
        let mut of_rank = vec![Vec::new(); programs.len()];
        for (number, message) in messages.iter().enumerate() {
            of_rank[message.from.0 as usize].push(number);
            of_rank[message.to.0 as usize].push(number);
        }
        let phases = phases(programs, &StepGraph::new(programs)?, topology)?;
        Ok(Self { programs, pairwise: pairwise(&messages), messages, rounds: count, of_rank, phases })
    }

    /// The messages between hosts, in their rounds.
    pub fn messages(&self) -> &[RoundMessage] {
        &self.messages
    }

    /// The messages of a rank to and from other hosts, by round.
    fn messages_of(&self, rank: Rank) -> impl Iterator<Item = &RoundMessage> {
        self.of_rank[rank.0 as usize].iter().map(|number| &self.messages[*number])
    }

    /// The connections of a rank, sorted by peer, with their preposts for one call; eager buffers have `buffer` bytes.
    pub fn connections(&self, rank: Rank, buffer: u64) -> Vec<Prepost> {
        preposts(self.messages_of(rank), (self.pairwise, buffer.max(1)), rank)
    }

    /// Number of queue pairs that a rank needs, whatever the protocol of a call (CD-6).
    pub fn queue_pairs(&self, rank: Rank) -> usize {
        Purpose::ALL.len() * self.connections(rank, 1).len()
    }

    pub fn template(&self, rank: Rank, protocol: TransferProtocol) -> Result<ListTemplate, TriggeredLowerError> {
        let (program, phases) = (&self.programs[rank.0 as usize], &self.phases[rank.0 as usize]);
        let buffer = match protocol {
            TransferProtocol::Eager { buffer } => buffer,
            TransferProtocol::Rendezvous | TransferProtocol::Retry => u64::MAX,
        };
        let mut writer = ListWriter {
            program,
            phases,
            protocol,
            pairwise: self.pairwise,
            tasks: Vec::new(),
            round: 0,
            parts: Vec::new(),
            arrivals: phases.arrivals.clone(),
            slots: Vec::new(),
            sent: BTreeMap::new(),
            sends: HashMap::new(),
            complete: vec![false; program.steps.len()],
        };
        let mine: Vec<RoundMessage> = self.messages_of(rank).copied().collect();
        for round in mine.chunk_by(|a, b| a.round == b.round) {
            writer.round = round[0].round;
            writer.round(round)?;
        }
        writer.round = self.rounds;
        writer.all_sent();
        // Flags come first, because siblings need not wait until this rank has copied landed data to its own memory.
        let landed = phases.landings.iter().map(|(receive, left)| (left, writer.span(*receive)));
        let raises = landed.clone().map(|(left, _)| HostStep::Raise { flag: left.flag });
        let own = landed.map(|(left, span)| (TemplatePlace::Shared { offset: left.offset, len: span.len }, span));
        let own = own.chain(phases.deferred.iter().copied());
        let own = own.map(|(from, span)| HostStep::Copy { from, to: TemplatePlace::Memory(span) });
        let parts = writer.parts.iter().map(|&(from, to)| HostStep::Copy { from, to });
        let after = parts.chain(raises).chain(own).chain(phases.after.iter().copied()).collect();
        Ok(ListTemplate {
            rank,
            protocol,
            connections: self.connections(rank, buffer),
            before: phases.before.clone(),
            after,
            tasks: writer.tasks,
            slots: writer.slots,
            sharing: phases.sharing,
        })
    }
}

/// The parts of a span, of at most `size` each; one part if the span is empty.
fn parts(span: Span, size: u64) -> impl Iterator<Item = Span> {
    (0..buffers(span.len, size)).map(move |i| Span {
        buffer: span.buffer,
        offset: span.offset + i * size,
        len: (span.len - i * size).min(size),
    })
}

/// A task list under construction.
struct ListWriter<'a> {
    program: &'a Program,
    phases: &'a Phases,
    protocol: TransferProtocol,
    pairwise: bool,
    tasks: Vec<WorkRequest>,
    /// The current round.
    round: u32,
    /// Copies from eager buffers, which the host makes after the list.
    parts: Vec<(TemplatePlace, TemplatePlace)>,
    arrivals: ArrivedSpans,
    /// The queue pair of each eager buffer used so far.
    slots: Vec<QueuePairId>,
    /// By queue pair, the numbers of messages that were sent and that were waited for.
    sent: BTreeMap<QueuePairId, (u32, u32)>,
    /// By send, its queue pair and the number of messages sent there, including this one.
    sends: HashMap<OpId, (QueuePairId, u32)>,
    /// By step, whether the list has waited for it.
    complete: Vec<bool>,
}

impl ListWriter<'_> {
    fn push(&mut self, on: QueuePairId, action: WorkAction) {
        self.tasks.push(WorkRequest { round: self.round, on, action });
    }

    fn on(&self, message: &RoundMessage, purpose: Purpose) -> QueuePairId {
        let connection: PeerConnection = connection(message, self.pairwise, self.program.rank);
        QueuePairId { connection, purpose }
    }

    fn span(&self, step: OpId) -> Span {
        match self.program.steps[step.0 as usize].op {
            Op::Send { span, .. } | Op::Recv { span, .. } => span,
            Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => {
                unreachable!("messages are sends and receives, multicasts were refused")
            }
        }
    }

    /// The place for a part of the message of a receive.
    fn place(&self, receive: OpId, part: Span) -> TemplatePlace {
        match self.phases.landings.get(&receive) {
            Some(left) => {
                let offset = left.offset + part.offset - self.span(receive).offset;
                TemplatePlace::Shared { offset, len: part.len }
            }
            None => TemplatePlace::Memory(part),
        }
    }

    /// Writes one round: all receives are made ready before the list waits for anything.
    fn round(&mut self, messages: &[RoundMessage]) -> Result<(), TriggeredLowerError> {
        let me = self.program.rank;
        let (outgoing, incoming): (Vec<&RoundMessage>, Vec<&RoundMessage>) =
            messages.iter().partition(|m| m.from == me);
        let mut arriving: Vec<(QueuePairId, u32)> = Vec::new();
        for message in &incoming {
            let (on, count) = match self.protocol {
                TransferProtocol::Eager { buffer } => self.receive_eager(message, buffer)?,
                TransferProtocol::Rendezvous | TransferProtocol::Retry => self.receive_ready(message),
            };
            match arriving.iter_mut().find(|(other, _)| *other == on) {
                Some((_, sum)) => *sum += count,
                None => arriving.push((on, count)),
            }
        }
        if self.protocol == TransferProtocol::Rendezvous {
            for message in &outgoing {
                self.push(self.on(message, Purpose::ClearToSend), WorkAction::Receive(None));
            }
        }
        for message in &outgoing {
            self.send(message);
        }
        for (on, count) in arriving {
            self.push(on, WorkAction::WaitReceived(count));
        }
        Ok(())
    }

    /// Posts buffers that receive the same message of the next call. Returns the completions to wait for in this call.
    fn receive_eager(&mut self, message: &RoundMessage, size: u64) -> Result<(QueuePairId, u32), TriggeredLowerError> {
        let span = self.span(message.receive);
        let on = self.on(message, Purpose::Eager);
        let first = self.slots.len() as u64;
        let count = buffers(span.len, size);
        if first.checked_add(count).is_none_or(|slots| slots > u32::MAX.into()) {
            return Err(TriggeredLowerError::Buffers { rank: self.program.rank });
        }
        let first = first as u32;
        self.slots.extend((0..count).map(|_| on));
        for (slot, part) in (first..).zip(parts(span, size)) {
            self.push(on, WorkAction::Receive(Some(TemplatePlace::Next { slot })));
            if !part.is_empty() {
                let to = self.place(message.receive, part);
                self.parts.push((TemplatePlace::Arrived { slot, offset: 0, len: part.len }, to));
            }
        }
        self.arrivals.insert(span, ArrivalPlace::Buffers { first, buffer: size });
        Ok((on, count as u32))
    }

    /// Enables the receive of a message; with rendezvous, sends a clear-to-send. Returns the completions to wait for.
    fn receive_ready(&mut self, message: &RoundMessage) -> (QueuePairId, u32) {
        let on = self.on(message, Purpose::Data);
        let span = self.span(message.receive);
        let into = Some(span).filter(|span| !span.is_empty()).map(|span| self.place(message.receive, span));
        if let Some(TemplatePlace::Shared { offset, .. }) = into {
            self.arrivals.insert(span, ArrivalPlace::Shared { offset });
        }
        self.push(on, WorkAction::Receive(into));
        self.push(on, WorkAction::ReceiveEnable(1));
        if self.protocol == TransferProtocol::Rendezvous {
            let ready = self.on(message, Purpose::ClearToSend);
            self.push(ready, WorkAction::Send { from: Vec::new(), present: true });
            self.push(ready, WorkAction::SendEnable(1));
            self.sent.entry(ready).or_default().0 += 1;
        }
        (on, 1)
    }

    /// Sends a message as soon as the plan and its receiver allow.
    fn send(&mut self, message: &RoundMessage) {
        let step = &self.program.steps[message.send.0 as usize];
        for on in &step.after {
            self.wait_for(*on);
        }
        let span = self.span(message.send);
        let (on, messages) = match self.protocol {
            TransferProtocol::Eager { buffer } => {
                let pieces: Vec<_> = parts(span, buffer).map(|part| self.arrivals.pieces(part)).collect();
                (self.on(message, Purpose::Eager), pieces)
            }
            TransferProtocol::Rendezvous | TransferProtocol::Retry => {
                if self.protocol == TransferProtocol::Rendezvous {
                    self.push(self.on(message, Purpose::ClearToSend), WorkAction::WaitReceived(1));
                }
                (self.on(message, Purpose::Data), vec![self.arrivals.pieces(span)])
            }
        };
        let (count, present) = (messages.len() as u32, self.phases.present[message.send.0 as usize]);
        for from in messages {
            self.push(on, WorkAction::Send { from, present });
        }
        self.push(on, WorkAction::SendEnable(count));
        let sent = &mut self.sent.entry(on).or_default().0;
        *sent += count;
        self.sends.insert(message.send, (on, *sent));
    }

    /// Waits until a step is complete. The list waits for arrivals at the end of their round, before they are needed.
    fn wait_for(&mut self, step: OpId) {
        let mut left = vec![step];
        while let Some(step) = left.pop() {
            if std::mem::replace(&mut self.complete[step.0 as usize], true) {
                continue;
            }
            if let Some(&(on, upto)) = self.sends.get(&step) {
                self.wait_sent(on, upto);
            }
            left.extend(&self.program.steps[step.0 as usize].after);
        }
    }

    /// Waits until the first `upto` messages of a queue pair are delivered.
    fn wait_sent(&mut self, on: QueuePairId, upto: u32) {
        let (_, waited) = self.sent.get_mut(&on).expect("a queue pair that has sent");
        let count = upto.saturating_sub(*waited);
        *waited += count;
        if count > 0 {
            self.push(on, WorkAction::WaitSent(count));
        }
    }

    /// Waits until all messages are delivered, because the buffers belong to the caller again after the list.
    fn all_sent(&mut self) {
        let queues: Vec<(QueuePairId, u32)> = self.sent.iter().map(|(on, (sent, _))| (*on, *sent)).collect();
        for (on, sent) in queues {
            self.wait_sent(on, sent);
        }
    }
}
