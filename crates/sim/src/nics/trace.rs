//! What was done when on a clock, and who waited for whom.
//!
//! Invariants: spans of one row never overlap, and come in the order of time; a wait names a row other than its own. A
//! trace never has more than `MOST_SPANS`. Never does IO, and never changes what happens.

use std::collections::HashMap;

use outboard_nic::{Node, Port};

/// Spans of one trace; about 100 MB.
const MOST_SPANS: usize = 1 << 20;

/// In which direction, seen from the memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Out,
    In,
}

/// A part of a machine beside its processors that does one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A part of the NIC that sends, and works on memory, by its number.
    Sender(u16),
    /// What receives.
    Receiver,
    /// Between memory and NIC.
    Bus(Direction),
    /// By port of the NIC.
    Link(u32, Direction),
}

/// Who does something.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// The process behind a port of a node.
    Process(Node, Port),
    /// What the nodes of a machine share, by the machine's number, which is the node's where it has one.
    Shared(usize, Component),
}

/// What something waits for.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cause {
    /// Who brings it about.
    pub by: Row,
    /// For a packet, who was busy with sending it, and from when on: nobody if that took no time.
    pub sent: Option<(Row, f64)>,
}

impl From<Row> for Cause {
    fn from(by: Row) -> Self {
        Cause { by, sent: None }
    }
}

/// What is done in a span.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Doing {
    /// Nothing, until this came.
    Wait(Cause),
    /// Work, in a word.
    Work(&'static str),
}

/// What someone did; times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub row: Row,
    pub from: f64,
    pub until: f64,
    pub doing: Doing,
}

/// What everyone did.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// By row in the order of time.
    pub spans: Vec<Span>,
    /// Spans that came when the trace was full.
    pub left_out: u64,
    /// Until when each row has been told.
    until: HashMap<Row, f64>,
}

impl Trace {
    /// Someone does `work` in that time, and before it waited for `cause`, if there is a time before it.
    pub(super) fn note(&mut self, row: Row, (from, until): (f64, f64), work: &'static str, cause: Option<Cause>) {
        let free = self.until.insert(row, until).unwrap_or(0.0);
        if let Some(cause) = cause.filter(|cause| cause.by != row) {
            self.push(Span { row, from: free, until: from, doing: Doing::Wait(cause) });
        }
        self.push(Span { row, from, until, doing: Doing::Work(work) });
    }

    fn push(&mut self, span: Span) {
        if span.from < span.until {
            let room = self.spans.len() < MOST_SPANS;
            self.left_out += u64::from(!room);
            self.spans.extend(room.then_some(span));
        }
    }
}
