//! Converts a GOAL schedule into a plan.
//!
//! | schedule | plan |
//! |---|---|
//! | `send` | a send of its own bytes of `Input` |
//! | `recv` | a receive into its own bytes of `Output`, posted at once (MC-4) |
//! | `calc` | an empty copy: it takes no time but keeps the order |
//! | `a requires b` | `a` follows `b`; if `b` is a receive, `a` also follows all that `b` requires |
//! | `a irequires b` | `a` follows all that `b` requires |
//!
//! If each of several steps would follow the same set of steps, one empty copy joins this set. So a plan is at most a
//! few times as long as its schedule.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use super::read::{GoalAction, GoalError, GoalMessage, GoalOperation, GoalReason, read};
use crate::tokens::{TextPosition, error_at};
use crate::verify::{Contract, ContributionSpan, PromisedSpan};
use outboard_plan::ProgramBuilder;
use outboard_plan::{OpId, Program, Rank, Span};

/// A plan made from a schedule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Import {
    pub programs: Vec<Program>,
    /// By rank, a contract for [`crate::verify()`]: every message ends in the bytes of its receive.
    pub contracts: Vec<Contract>,
}

/// Makes a plan from a schedule.
///
/// Messages from one rank to another are indexed in the order in which the text sends them. This function accepts ranks
/// that wait for each other in a circle; [`crate::verify()`] detects them.
pub fn import(text: &str) -> Result<Import, GoalError> {
    let operations = read(text)?;
    let matched = match_messages(&operations)?;
    let ranks = operations.len() as u32;
    let mut import = Import { programs: Vec::new(), contracts: Vec::new() };
    for (rank, (operations, placed)) in (0..).map(Rank).zip(operations.iter().zip(&matched)) {
        let program = Planning::new(rank, ranks, operations, placed).program()?;
        let whole = ContributionSpan { span: Span::input(0, program.input_bytes), source: rank, from: 0 };
        let received =
            operations.iter().zip(placed).filter_map(|(operation, placed)| match (operation.action, placed) {
                (GoalAction::Recv(GoalMessage { peer, .. }), Some(PlacedMessage { span, sent_from, .. }))
                    if !span.is_empty() =>
                {
                    Some(PromisedSpan::of_one(*span, peer, *sent_from))
                }
                _ => None,
            });
        import.contracts.push(Contract {
            element_bytes: None,
            input_bytes: program.input_bytes,
            output_bytes: program.output_bytes,
            before: vec![whole],
            after: received.collect(),
        });
        import.programs.push(program);
    }
    Ok(import)
}

/// The name of a message and its bytes at one end.
#[derive(Debug, Clone, Copy)]
struct PlacedMessage {
    index: u32,
    span: Span,
    /// Offset of the first byte in the sender's `Input`.
    sent_from: u64,
}

struct UnmatchedSend {
    at: TextPosition,
    bytes: u64,
    placed: PlacedMessage,
}

/// The placement of each operation's message, by rank; sends and receives are matched one to one.
fn match_messages(ranks: &[Vec<GoalOperation>]) -> Result<Vec<Vec<Option<PlacedMessage>>>, GoalError> {
    let mut matched: Vec<Vec<Option<PlacedMessage>>> =
        ranks.iter().map(|operations| vec![None; operations.len()]).collect();
    let mut waiting: BTreeMap<(Rank, Rank, u32), VecDeque<UnmatchedSend>> = BTreeMap::new();
    let mut sent: BTreeMap<(Rank, Rank), u32> = BTreeMap::new();
    for (me, operations, matched) in each(ranks, &mut matched) {
        let mut end = 0;
        for (operation, matched) in operations.iter().zip(matched) {
            let GoalAction::Send(GoalMessage { peer, tag, bytes }) = operation.action else { continue };
            let span = next_span(Span::input, &mut end, bytes, me, operation.at)?;
            let index = sent.entry((me, peer)).or_default();
            let placed = PlacedMessage { index: *index, span, sent_from: span.offset };
            *index += 1;
            *matched = Some(placed);
            waiting.entry((me, peer, tag)).or_default().push_back(UnmatchedSend { at: operation.at, bytes, placed });
        }
    }
    for (me, operations, matched) in each(ranks, &mut matched) {
        let mut end = 0;
        for (operation, matched) in operations.iter().zip(matched) {
            let GoalAction::Recv(GoalMessage { peer, tag, bytes: received }) = operation.action else { continue };
            let Some(sent) = waiting.get_mut(&(peer, me, tag)).and_then(VecDeque::pop_front) else {
                return Err(error_at(operation.at, GoalReason::Unmatched { counterpart: "send", peer: peer.0, tag }));
            };
            if sent.bytes != received {
                let (sent, line) = (sent.bytes, sent.at.line);
                return Err(error_at(operation.at, GoalReason::Bytes { received, sent, line }));
            }
            let span = next_span(Span::output, &mut end, received, me, operation.at)?;
            *matched = Some(PlacedMessage { span, ..sent.placed });
        }
    }
    let left = waiting.iter().filter_map(|(name, sends)| sends.front().map(|send| (name, send)));
    match left.min_by_key(|(_, send)| send.at.line) {
        Some((&(_, Rank(peer), tag), send)) => {
            Err(error_at(send.at, GoalReason::Unmatched { counterpart: "recv", peer, tag }))
        }
        None => Ok(matched),
    }
}

/// Each rank with its operations and the placements of their messages.
fn each<'a>(
    ranks: &'a [Vec<GoalOperation>],
    matched: &'a mut [Vec<Option<PlacedMessage>>],
) -> impl Iterator<Item = (Rank, &'a [GoalOperation], &'a mut [Option<PlacedMessage>])> {
    let each = (0..).map(Rank).zip(ranks.iter().zip(matched));
    each.map(|(rank, (operations, matched))| (rank, operations.as_slice(), matched.as_mut_slice()))
}

/// Allocates the next bytes of a buffer for a message of rank `me`.
fn next_span(
    buffer: fn(u64, u64) -> Span,
    end: &mut u64,
    bytes: u64,
    me: Rank,
    at: TextPosition,
) -> Result<Span, GoalError> {
    if bytes == 0 {
        return Ok(Span::signal());
    }
    let span = buffer(*end, bytes);
    *end = span.end().ok_or_else(|| error_at(at, GoalReason::TooLarge { rank: me.0 }))?;
    Ok(span)
}

/// The program of one rank under construction.
struct Planning<'a> {
    builder: ProgramBuilder,
    operations: &'a [GoalOperation],
    placed: &'a [Option<PlacedMessage>],
    /// By planned operation, the steps after which the operation starts; an empty copy joins them if needed.
    starts: Vec<Vec<OpId>>,
    /// By planned operation, the step whose completion is the operation's completion.
    done: Vec<Option<OpId>>,
}

impl<'a> Planning<'a> {
    fn new(rank: Rank, ranks: u32, operations: &'a [GoalOperation], placed: &'a [Option<PlacedMessage>]) -> Self {
        let builder = ProgramBuilder::new(rank, ranks);
        Self {
            builder,
            operations,
            placed,
            starts: vec![Vec::new(); operations.len()],
            done: vec![None; operations.len()],
        }
    }

    fn program(mut self) -> Result<Program, GoalError> {
        let (mut input, mut output) = (0, 0);
        for (operation, placed) in self.operations.iter().zip(self.placed) {
            let end = placed.and_then(|placed| placed.span.end()).unwrap_or(0);
            match operation.action {
                GoalAction::Send(_) => input = input.max(end),
                GoalAction::Recv(_) => output = output.max(end),
                GoalAction::Calc => {}
            }
        }
        self.builder.buffers(input, output, 0);
        for number in in_order(self.operations)? {
            self.plan(number);
        }
        Ok(self.builder.build())
    }

    fn plan(&mut self, number: usize) {
        let operation = &self.operations[number];
        let mut start: Vec<OpId> = Vec::new();
        for on in &operation.requires {
            start.extend(self.done[*on]);
        }
        for on in &operation.requires_start {
            if self.starts[*on].len() > 1 {
                let joined = self.join(&self.starts[*on].clone());
                self.starts[*on] = vec![joined];
            }
            start.extend(&self.starts[*on]);
        }
        start.sort_unstable();
        start.dedup();
        let placed = self.placed[number];
        let done = match (operation.action, placed) {
            (GoalAction::Send(message), Some(placed)) => {
                self.builder.send(message.peer, placed.index, placed.span, &start)
            }
            (GoalAction::Recv(message), Some(placed)) if placed.span.is_empty() => {
                self.builder.recv(message.peer, placed.index, placed.span, &start)
            }
            (GoalAction::Recv(message), Some(placed)) => {
                let received = self.builder.recv(message.peer, placed.index, placed.span, &[]);
                if start.is_empty() { received } else { self.join(&[start.as_slice(), &[received]].concat()) }
            }
            (GoalAction::Calc, _) => self.join(&start),
            (GoalAction::Send(_) | GoalAction::Recv(_), None) => unreachable!("every message was matched"),
        };
        self.starts[number] = start;
        self.done[number] = Some(done);
    }

    /// Adds a step that takes no time after all of `steps`.
    fn join(&mut self, steps: &[OpId]) -> OpId {
        self.builder.copy(Span::signal(), Span::signal(), steps)
    }
}

/// The operations of a rank, each after the operations that it requires, otherwise in the order of the text.
fn in_order(operations: &[GoalOperation]) -> Result<Vec<usize>, GoalError> {
    let mut waits = vec![0usize; operations.len()];
    let mut followers: Vec<Vec<usize>> = vec![Vec::new(); operations.len()];
    for (number, operation) in operations.iter().enumerate() {
        for on in operation.requires.iter().chain(&operation.requires_start) {
            waits[number] += 1;
            followers[*on].push(number);
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..operations.len()).filter(|number| waits[*number] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(operations.len());
    while let Some(Reverse(number)) = ready.pop() {
        order.push(number);
        for follower in &followers[number] {
            waits[*follower] -= 1;
            if waits[*follower] == 0 {
                ready.push(Reverse(*follower));
            }
        }
    }
    if order.len() == operations.len() {
        return Ok(order);
    }
    Err(error_at(operations[on_a_circle(operations, &waits)].at, GoalReason::Circle))
}

/// An operation that requires itself, directly or through others. The search walks back from an operation that waits
/// for ever, until an operation repeats.
fn on_a_circle(operations: &[GoalOperation], waits: &[usize]) -> usize {
    let mut number = waits.iter().position(|waits| *waits > 0).expect("some operation waits for ever");
    let mut seen = vec![false; operations.len()];
    while !std::mem::replace(&mut seen[number], true) {
        let operation = &operations[number];
        let mut before = operation.requires.iter().chain(&operation.requires_start);
        number = *before.find(|on| waits[**on] > 0).expect("what waits for ever waits for another that does");
    }
    number
}
