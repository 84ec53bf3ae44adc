//! The record of the work on a clock, and of which row waited for which.
//!
//! Invariants: spans of one row never overlap, and are in the order of time. A wait names a row other than its own. A
//! trace never has more than `MOST_SPANS`. Never does IO, and never changes what happens.

use std::collections::HashMap;

use outboard_nic::{Node, Port};

/// Spans of one trace; about 100 MB.
const MOST_SPANS: usize = 1 << 20;

/// The direction as seen from the memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    Out,
    In,
}

/// A part of a machine beside its processors that does one thing at a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A part of the NIC that sends and works on memory, by number.
    Sender(u16),
    Receiver,
    /// The bus between memory and NIC.
    Bus(Direction),
    /// The link at a port of the NIC.
    Link(u32, Direction),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Row {
    /// The process behind a port of a node.
    Process(Node, Port),
    /// A part shared by the nodes of a machine, by the machine's number. A node with its own machine has the same
    /// number.
    Shared(usize, Component),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cause {
    pub by: Row,
    /// For a packet: the row that was busy with sending it, and since when; `None` if that took no time.
    pub sent: Option<(Row, f64)>,
}

impl From<Row> for Cause {
    fn from(by: Row) -> Self {
        Cause { by, sent: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Doing {
    /// Waits for this cause.
    Wait(Cause),
    Work(&'static str),
}

/// An activity of one row; times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    pub row: Row,
    pub from: f64,
    pub until: f64,
    pub doing: Doing,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct Trace {
    /// Spans by row, in the order of time.
    pub spans: Vec<Span>,
    /// Spans that were dropped because the trace was full.
    pub left_out: u64,
    /// The end of the last span of each row.
    until: HashMap<Row, f64>,
}

impl Trace {
    /// Records that `row` does `work` in that time, and that it waited for `cause` in the free time before.
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
