//! The outcome of a sequence of calls for any order of messages: the reference for the machines.
//!
//! Programs run as data flows. A step is done after the steps that it follows. A message holds the bytes that its span
//! has when the send is done. Operations without an order leave each other's bytes alone, so there is one outcome. More
//! calls may end than must end: a send may end before its message is received, or only afterwards. Pure; knows nothing
//! of service processes.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use outboard_arithmetic::reduce;
use outboard_plan::{Op, ProgramBuilder, Rank, Span};
use outboard_proto::{CallId, Recording, TaggedCall};

/// A call that its service process had to accept.
#[derive(Debug, Clone)]
pub(super) struct AcceptedCall {
    pub(super) id: CallId,
    pub(super) group: usize,
    pub(super) rank: Rank,
    pub(super) call: TaggedCall,
    /// The called recording, or the single message as a recording of one step.
    pub(super) recording: Arc<Recording>,
    /// The initial contents of the call's buffer.
    pub(super) before: Vec<u8>,
}

/// Whether sends end by themselves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SendRule {
    /// A send ends when it is received: calls that end under this rule must end.
    Received,
    /// A send ends at once: calls that do not end under this rule must not end.
    AtOnce,
}

/// A message that does not fit its receive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misfit {
    pub(super) group: usize,
    /// The call that receives.
    pub(super) call: CallId,
    pub(super) source: Rank,
    pub(super) destination: Rank,
    pub(super) tag: u32,
    pub(super) sent: u64,
    pub(super) expected: u64,
    /// Whether a recording receives the message; then the message breaks the group.
    pub(super) recorded: bool,
}

#[derive(Debug, Default)]
pub(super) struct Reference {
    /// The final buffers of the calls that end.
    pub(super) ended: BTreeMap<CallId, Vec<u8>>,
    pub(super) misfits: Vec<Misfit>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct MessageKey {
    group: usize,
    source: Rank,
    destination: Rank,
    /// The recording and its call, by number; 0 for single messages.
    number: (u32, u64),
    tag: u32,
    occurrence: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum StepState {
    Waits,
    UnderWay,
    Done,
}

#[derive(Debug)]
struct CallState {
    posted: AcceptedCall,
    number: (u32, u64),
    ordinals: Vec<u32>,
    steps: Vec<StepState>,
    begun: bool,
    buffer: Vec<u8>,
}

#[derive(Debug, Default)]
struct MatchQueues {
    /// Each message, behind the call and the step that send it.
    messages: VecDeque<((usize, usize), Vec<u8>)>,
    receives: VecDeque<(usize, usize)>,
}

#[derive(Debug)]
struct DataFlow {
    sends: SendRule,
    calls: Vec<CallState>,
    /// Unfinished calls of each recording, by group, rank and number.
    behind: BTreeMap<(usize, Rank, u32), VecDeque<usize>>,
    matching: BTreeMap<MessageKey, MatchQueues>,
    ready_calls: VecDeque<usize>,
    outcome: Reference,
}

/// A single message as its own recording.
pub(super) fn single(rank: Rank, ranks: u32, call: TaggedCall, bytes: u64) -> Recording {
    let mut builder = ProgramBuilder::new(rank, ranks);
    builder.buffers(0, bytes, 0);
    match call {
        TaggedCall::Send { to, tag } => builder.send(to, tag, Span::output(0, bytes), &[]),
        TaggedCall::Receive { from, tag } => builder.recv(from, tag, Span::output(0, bytes), &[]),
        TaggedCall::Recorded { .. } => unreachable!("no single message"),
    };
    Recording { program: builder.build().into(), reductions: Vec::new() }
}

impl Reference {
    /// The outcome of these calls; each rank calls in the order of the list.
    pub(super) fn of(posted: &[AcceptedCall], sends: SendRule) -> Reference {
        let mut flow = DataFlow {
            sends,
            calls: Vec::new(),
            behind: BTreeMap::new(),
            matching: BTreeMap::new(),
            ready_calls: VecDeque::new(),
            outcome: Reference::default(),
        };
        let mut counts: BTreeMap<(usize, Rank, u32), u64> = BTreeMap::new();
        for (at, posted) in posted.iter().enumerate() {
            let mut number = (0, 0);
            if let TaggedCall::Recorded { recording } = posted.call {
                let name = (posted.group, posted.rank, recording);
                let count = counts.entry(name).or_default();
                *count += 1;
                number = (recording, *count);
                flow.behind.entry(name).or_default().push_back(at);
            }
            let steps = vec![StepState::Waits; posted.recording.program.steps.len()];
            let (ordinals, buffer) = (occurrences(&posted.recording), posted.before.clone());
            flow.calls.push(CallState { posted: posted.clone(), number, ordinals, steps, begun: false, buffer });
            if number.1 <= 1 {
                flow.begin(at);
            }
        }
        while let Some(at) = flow.ready_calls.pop_front() {
            flow.advance(at);
        }
        flow.outcome
    }
}

/// By step: the number of its message among messages with its peer and tag, or the number of its reduction.
pub(super) fn occurrences(recording: &Recording) -> Vec<u32> {
    let steps = &recording.program.steps;
    let alike = |one: Op, other: Op| match (one, other) {
        (Op::Send { to, index, .. }, Op::Send { to: peer, index: tag, .. }) => (to, index) == (peer, tag),
        (Op::Recv { from, index, .. }, Op::Recv { from: peer, index: tag, .. }) => (from, index) == (peer, tag),
        (Op::Reduce { .. }, Op::Reduce { .. }) => true,
        _ => false,
    };
    let before = |at: usize| steps[..at].iter().filter(|step| alike(step.op, steps[at].op)).count() as u32;
    (0..steps.len()).map(before).collect()
}

fn range(span: Span) -> std::ops::Range<usize> {
    span.offset as usize..(span.offset + span.len) as usize
}

impl DataFlow {
    fn begin(&mut self, at: usize) {
        self.calls[at].begun = true;
        self.ready_calls.push_back(at);
    }

    /// Does everything that this call can do now.
    fn advance(&mut self, at: usize) {
        let program = self.calls[at].posted.recording.program.clone();
        for (number, step) in program.steps.iter().enumerate() {
            let call = &self.calls[at];
            let ready = step.after.iter().all(|after| call.steps[after.0 as usize] == StepState::Done);
            if call.begun && ready && call.steps[number] == StepState::Waits {
                self.calls[at].steps[number] = StepState::UnderWay;
                self.start(at, number, step.op);
            }
        }
        self.end_if_done(at);
    }

    fn start(&mut self, at: usize, step: usize, op: Op) {
        let call = &mut self.calls[at];
        let (me, occurrence) = (call.posted.rank, call.ordinals[step]);
        let name = |source, destination, tag| MessageKey {
            group: call.posted.group,
            source,
            destination,
            number: call.number,
            tag,
            occurrence,
        };
        match op {
            Op::Send { to, index, span } => {
                let (name, bytes) = (name(me, to, index), call.buffer[range(span)].to_vec());
                self.matching.entry(name).or_default().messages.push_back(((at, step), bytes));
                if self.sends == SendRule::AtOnce {
                    self.done(at, step);
                }
                self.match_messages(name);
            }
            Op::Recv { from, index, .. } => {
                let name = name(from, me, index);
                self.matching.entry(name).or_default().receives.push_back((at, step));
                self.match_messages(name);
            }
            Op::Copy { from, to } => {
                call.buffer.copy_within(range(from), to.offset as usize);
                self.done(at, step);
            }
            Op::Reduce { from, into, from_left } => {
                let operand = call.buffer[range(from)].to_vec();
                let reduction = call.posted.recording.reductions[occurrence as usize];
                reduce(reduction, &operand, &mut call.buffer[range(into)], from_left);
                self.done(at, step);
            }
            Op::Multicast { .. } | Op::MulticastRecv { .. } => unreachable!("no recording has them"),
        }
    }

    fn done(&mut self, at: usize, step: usize) {
        self.calls[at].steps[step] = StepState::Done;
        self.ready_calls.push_back(at);
    }

    /// Matches the first message and the first receive of a key, if both exist.
    fn match_messages(&mut self, name: MessageKey) {
        let queues = self.matching.get_mut(&name).expect("somebody came");
        let (Some((sender, bytes)), Some(&(at, step))) = (queues.messages.front().cloned(), queues.receives.front())
        else {
            return;
        };
        queues.messages.pop_front();
        queues.receives.pop_front();
        let call = &mut self.calls[at];
        let Op::Recv { span, .. } = call.posted.recording.program.steps[step].op else { unreachable!("it receives") };
        let (sent, recorded) = (bytes.len() as u64, name.number.0 != 0);
        if sent > span.len || (recorded && sent < span.len) {
            let MessageKey { group, source, destination, tag, .. } = name;
            let (call, expected) = (call.posted.id, span.len);
            self.outcome.misfits.push(Misfit { group, call, source, destination, tag, sent, expected, recorded });
            if !recorded {
                self.done(sender.0, sender.1);
            }
            return;
        }
        call.buffer[range(Span { len: sent, ..span })].copy_from_slice(&bytes);
        self.done(at, step);
        self.done(sender.0, sender.1);
    }

    fn end_if_done(&mut self, at: usize) {
        let call = &mut self.calls[at];
        let id = call.posted.id;
        if !call.begun || call.steps.iter().any(|step| *step != StepState::Done) || self.outcome.ended.contains_key(&id)
        {
            return;
        }
        self.outcome.ended.insert(id, std::mem::take(&mut call.buffer));
        let name = (call.posted.group, call.posted.rank, call.number.0);
        if let Some(behind) = self.behind.get_mut(&name) {
            behind.pop_front();
            if let Some(next) = behind.front().copied() {
                self.begin(next);
            }
        }
    }
}
