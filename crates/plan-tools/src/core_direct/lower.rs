//! Makes templates of plans.

use std::collections::{BTreeMap, HashMap};

use thiserror::Error;

use super::queues::{self, Connection, PER_CONNECTION, Purpose, QueuePair};
use super::{Action, HostStep, Place, Protocol, Request, Template};
use crate::rounds::{Message, Rounds};
use crate::verify::{At, VerifyError};
use outboard_plan::{Op, OpId, Program, Rank, Span};

/// Why a plan has no task list.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum LowerError {
    /// The plan is malformed.
    #[error(transparent)]
    Plan(#[from] VerifyError),
    #[error("{at}: the queue pairs of a task list connect two ranks; choose an algorithm without multicast")]
    Multicast { at: Box<At> },
    #[error(
        "{at} stands between messages that arrive and messages that leave, where a NIC has only task lists: \
             choose an algorithm that passes on what it receives"
    )]
    Between { at: Box<At> },
    #[error("eager buffers of 0 bytes: give them room for a block")]
    NoBuffer,
    #[error("{rank} receives more than 2^32 eager buffers: enlarge them or choose the rendezvous protocol")]
    Buffers { rank: Rank },
}

/// A plan whose messages are in rounds and on queue pairs.
#[derive(Debug)]
pub struct Lowering<'a> {
    programs: &'a [Program],
    rounds: Rounds,
    pairwise: bool,
    /// By rank, its messages in the order of [`Rounds::messages`], both those that it sends and those that it receives.
    messages: Vec<Vec<usize>>,
}

impl<'a> Lowering<'a> {
    /// Prepares the programs of all ranks of a group, in the order of ranks.
    ///
    /// # Errors
    /// When the plan is malformed or multicasts.
    pub fn new(programs: &'a [Program]) -> Result<Self, LowerError> {
        let rounds = Rounds::of(programs)?;
        for program in programs {
            let multicast = program.steps.iter().position(|step| matches!(step.op, Op::Multicast { .. }));
            if let Some(step) = multicast {
                return Err(LowerError::Multicast { at: At::new(program, OpId(step as u32)).boxed() });
            }
        }
        let mut messages = vec![Vec::new(); programs.len()];
        for (number, message) in rounds.messages().iter().enumerate() {
            messages[message.from.0 as usize].push(number);
            messages[message.to.0 as usize].push(number);
        }
        let pairwise = queues::pairwise(&rounds);
        Ok(Self { programs, rounds, pairwise, messages })
    }

    /// The messages in their rounds.
    #[must_use]
    pub fn rounds(&self) -> &Rounds {
        &self.rounds
    }

    /// What a rank sends and receives, in the order of [`Rounds::messages`].
    fn messages_of(&self, rank: Rank) -> impl Iterator<Item = &Message> {
        self.messages[rank.0 as usize].iter().map(|number| &self.rounds.messages()[*number])
    }

    /// The connections of a rank, sorted by peer.
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn connections(&self, rank: Rank) -> Vec<Connection> {
        queues::connections(self.messages_of(rank), self.pairwise, rank)
    }

    /// Queue pairs that a rank needs, whatever the protocol of a call (CD-6).
    ///
    /// # Panics
    /// When there is no such rank.
    #[must_use]
    pub fn queue_pairs(&self, rank: Rank) -> usize {
        PER_CONNECTION * self.connections(rank).len()
    }

    /// The template of a rank.
    ///
    /// # Errors
    /// When the host would have to work between messages, or buffers do not fit.
    ///
    /// # Panics
    /// When there is no such rank.
    pub fn template(&self, rank: Rank, protocol: Protocol) -> Result<Template, LowerError> {
        let program = &self.programs[rank.0 as usize];
        if protocol == (Protocol::Eager { buffer: 0 }) {
            return Err(LowerError::NoBuffer);
        }
        let (before, after) = host_steps(program)?;
        let mut writer = Writer {
            program,
            protocol,
            pairwise: self.pairwise,
            tasks: Vec::new(),
            round: 0,
            parts: Vec::new(),
            arrivals: Arrivals::default(),
            sent: BTreeMap::new(),
            sends: HashMap::new(),
            complete: vec![false; program.steps.len()],
        };
        let mine: Vec<Message> = self.messages_of(rank).copied().collect();
        for round in mine.chunk_by(|a, b| a.round == b.round) {
            writer.round = round[0].round;
            writer.round(round)?;
        }
        writer.round = self.rounds.count() as u32;
        writer.all_sent();
        let copies = writer.parts.iter().map(|&(from, to)| HostStep::Copy { from, to: Place::Memory(to) });
        let after = copies.chain(after).collect();
        Ok(Template { rank, protocol, before, tasks: writer.tasks, after, slots: writer.arrivals.slots })
    }
}

/// Steps of the host before all messages, and those behind them.
type HostSteps = (Vec<HostStep>, Vec<HostStep>);

/// Tells copies and reductions that wait for no message from those that no message waits for.
fn host_steps(program: &Program) -> Result<HostSteps, LowerError> {
    let steps = &program.steps;
    let is_message = |op: Op| matches!(op, Op::Send { .. } | Op::Recv { .. });
    // Whether a message comes before each step; then, from the end, whether a send comes behind it.
    let mut behind_message = vec![false; steps.len()];
    for (id, step) in steps.iter().enumerate() {
        behind_message[id] =
            step.after.iter().any(|on| behind_message[on.0 as usize] || is_message(steps[on.0 as usize].op));
    }
    let mut before_send = vec![false; steps.len()];
    for (id, step) in steps.iter().enumerate().rev() {
        if before_send[id] || is_message(step.op) {
            step.after.iter().for_each(|on| before_send[on.0 as usize] = true);
        }
    }
    let (mut before, mut after) = (Vec::new(), Vec::new());
    for (id, step) in steps.iter().enumerate() {
        let host = match step.op {
            Op::Copy { from, to } => HostStep::Copy { from: Place::Memory(from), to: Place::Memory(to) },
            Op::Reduce { from, into, from_left } => {
                HostStep::Reduce { from: Place::Memory(from), into: Place::Memory(into), from_left }
            }
            Op::Send { .. } | Op::Recv { .. } | Op::Multicast { .. } | Op::MulticastRecv { .. } => continue,
        };
        match (behind_message[id], before_send[id]) {
            (true, true) => {
                return Err(LowerError::Between { at: At::new(program, OpId(id as u32)).boxed() });
            }
            (true, false) => after.push(host),
            (false, _) => before.push(host),
        }
    }
    Ok((before, after))
}

/// Which bytes of the plan's buffers lie in eager buffers until the host copies them.
#[derive(Debug, Default)]
struct Arrivals {
    /// By [`Buffer`] and where a message's span starts: its end, and its first eager buffer.
    spans: [BTreeMap<u64, (u64, u32)>; 3],
    /// Eager buffers so far.
    slots: u32,
}

impl Arrivals {
    /// Where the bytes of a span lie, in order, if eager buffers hold `size` each.
    fn pieces(&self, span: Span, size: u64) -> Vec<Place> {
        let spans = &self.spans[span.buffer as usize];
        let mut pieces = Vec::new();
        let mut at = span.offset;
        let end = span.offset + span.len;
        while at < end {
            let under = spans.range(..=at).next_back().filter(|(_, (end, _))| *end > at);
            let piece_end = match under {
                Some((start, (arrived_end, first))) => {
                    let (slot, offset) = ((at - start) / size, (at - start) % size);
                    let len = (size - offset).min(arrived_end - at).min(end - at);
                    pieces.push(Place::Arrived { slot: first + slot as u32, offset, len });
                    at + len
                }
                None => {
                    let next = spans.range(at..).next().map_or(end, |(start, _)| *start).min(end);
                    pieces.push(Place::Memory(Span { buffer: span.buffer, offset: at, len: next - at }));
                    next
                }
            };
            at = piece_end;
        }
        pieces
    }
}

/// The parts of a span of at most `size` each; one where it is empty.
fn parts(span: Span, size: u64) -> impl Iterator<Item = Span> {
    let count = span.len.div_ceil(size).max(1);
    (0..count).map(move |i| Span {
        buffer: span.buffer,
        offset: span.offset + i * size,
        len: (span.len - i * size).min(size),
    })
}

/// A task list in the making.
struct Writer<'a> {
    program: &'a Program,
    protocol: Protocol,
    pairwise: bool,
    tasks: Vec<Request>,
    /// The round that is being written.
    round: u32,
    /// What the host copies out of eager buffers at the end.
    parts: Vec<(Place, Span)>,
    arrivals: Arrivals,
    /// By queue pair, messages sent and those of them that were waited for.
    sent: BTreeMap<QueuePair, (u32, u32)>,
    /// For a send, its queue pair and the messages sent there, itself included.
    sends: HashMap<OpId, (QueuePair, u32)>,
    /// Whether the list has waited for the step.
    complete: Vec<bool>,
}

impl Writer<'_> {
    fn push(&mut self, on: QueuePair, action: Action) {
        self.tasks.push(Request { round: self.round, on, action });
    }

    fn outgoing(&self, message: &Message, purpose: Purpose) -> QueuePair {
        let connection = Connection { peer: message.to, serves: queues::outgoing(self.pairwise) };
        QueuePair { connection, purpose }
    }

    fn incoming(&self, message: &Message, purpose: Purpose) -> QueuePair {
        let connection = Connection { peer: message.from, serves: queues::incoming(self.pairwise) };
        QueuePair { connection, purpose }
    }

    fn span(&self, step: OpId) -> Span {
        match self.program.steps[step.0 as usize].op {
            Op::Send { span, .. } | Op::Recv { span, .. } => span,
            Op::Multicast { .. } | Op::MulticastRecv { .. } | Op::Copy { .. } | Op::Reduce { .. } => {
                unreachable!("messages are sends and receives, multicasts were refused")
            }
        }
    }

    /// One round: everything is made ready to receive before anything is waited for.
    fn round(&mut self, messages: &[Message]) -> Result<(), LowerError> {
        let me = self.program.rank;
        let (outgoing, incoming): (Vec<&Message>, Vec<&Message>) = messages.iter().partition(|m| m.from == me);
        let mut arriving: Vec<(QueuePair, u32)> = Vec::new();
        for message in &incoming {
            let (on, count) = match self.protocol {
                Protocol::Eager { buffer } => self.receive_eager(message, buffer)?,
                Protocol::Rendezvous => self.receive_ready(message),
            };
            match arriving.iter_mut().find(|(other, _)| *other == on) {
                Some((_, sum)) => *sum += count,
                None => arriving.push((on, count)),
            }
        }
        if self.protocol == Protocol::Rendezvous {
            for message in &outgoing {
                self.push(self.outgoing(message, Purpose::ClearToSend), Action::Receive(None));
            }
        }
        for message in &outgoing {
            self.send(message);
        }
        for (on, count) in arriving {
            self.push(on, Action::WaitReceived(count));
        }
        Ok(())
    }

    /// Posts buffers for the same message of the next call; says what to wait for.
    fn receive_eager(&mut self, message: &Message, size: u64) -> Result<(QueuePair, u32), LowerError> {
        let span = self.span(message.receive);
        let on = self.incoming(message, Purpose::Eager);
        let first = self.arrivals.slots;
        let too_many = || LowerError::Buffers { rank: self.program.rank };
        let count = u32::try_from(span.len.div_ceil(size).max(1)).map_err(|_| too_many())?;
        self.arrivals.slots = first.checked_add(count).ok_or_else(too_many)?;
        for (slot, part) in (first..).zip(parts(span, size)) {
            self.push(on, Action::Receive(Some(Place::Next { slot })));
            if !part.is_empty() {
                self.parts.push((Place::Arrived { slot, offset: 0, len: part.len }, part));
            }
        }
        if !span.is_empty() {
            self.arrivals.spans[span.buffer as usize].insert(span.offset, (span.offset + span.len, first));
        }
        Ok((on, count))
    }

    /// Makes the place of a message ready and tells its sender; says what to wait for.
    fn receive_ready(&mut self, message: &Message) -> (QueuePair, u32) {
        let on = self.incoming(message, Purpose::Data);
        let into = Some(self.span(message.receive)).filter(|span| !span.is_empty()).map(Place::Memory);
        self.push(on, Action::Receive(into));
        self.push(on, Action::ReceiveEnable(1));
        let ready = self.incoming(message, Purpose::ClearToSend);
        self.push(ready, Action::Send(Vec::new()));
        self.push(ready, Action::SendEnable(1));
        self.sent.entry(ready).or_default().0 += 1;
        (on, 1)
    }

    /// Sends a message as soon as the plan and its receiver allow.
    fn send(&mut self, message: &Message) {
        let step = &self.program.steps[message.send.0 as usize];
        for on in &step.after {
            self.wait_for(*on);
        }
        let span = self.span(message.send);
        let (on, messages) = match self.protocol {
            Protocol::Eager { buffer } => {
                let pieces: Vec<_> = parts(span, buffer).map(|part| self.arrivals.pieces(part, buffer)).collect();
                (self.outgoing(message, Purpose::Eager), pieces)
            }
            Protocol::Rendezvous => {
                let ready = self.outgoing(message, Purpose::ClearToSend);
                self.push(ready, Action::WaitReceived(1));
                let whole = Some(span).filter(|span| !span.is_empty()).map(Place::Memory);
                (self.outgoing(message, Purpose::Data), vec![whole.into_iter().collect()])
            }
        };
        let count = messages.len() as u32;
        for from in messages {
            self.push(on, Action::Send(from));
        }
        self.push(on, Action::SendEnable(count));
        let sent = &mut self.sent.entry(on).or_default().0;
        *sent += count;
        self.sends.insert(message.send, (on, *sent));
    }

    /// Waits until a step is complete. What arrived was waited for when its round ended, before any round that needs
    /// it.
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
    fn wait_sent(&mut self, on: QueuePair, upto: u32) {
        let (_, waited) = self.sent.get_mut(&on).expect("a queue pair that has sent");
        let count = upto.saturating_sub(*waited);
        *waited += count;
        if count > 0 {
            self.push(on, Action::WaitSent(count));
        }
    }

    /// Waits for all that is not known to be delivered: the buffers are the caller's again behind the list.
    fn all_sent(&mut self) {
        let queues: Vec<(QueuePair, u32)> = self.sent.iter().map(|(on, (sent, _))| (*on, *sent)).collect();
        for (on, sent) in queues {
            self.wait_sent(on, sent);
        }
    }
}
