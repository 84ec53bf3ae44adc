//! The record of the work on a clock, and of which row waited for which.
//!
//! Invariants: spans of one row never overlap, and are in the order of time. A wait names a row other than its own. A
//! trace never has more than `MOST_SPANS`. Never does IO, and never changes what happens.

use std::collections::HashMap;

use outboard_nic::{NodeId, Port};

/// Spans of one trace; about 100 MB.
const MOST_SPANS: usize = 1 << 20;

/// The direction as seen from the memory of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TransferDirection {
    Out,
    In,
}

/// A part of a machine that does one thing at a time. Processors are not among these parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// A part of the NIC that sends and works on memory, by number.
    Sender(u16),
    Receiver,
    /// The bus between memory and NIC.
    Bus(TransferDirection),
    /// The link at a port of the NIC.
    Link(u32, TransferDirection),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TraceRow {
    /// The process behind a port of a node.
    Process(NodeId, Port),
    /// A part shared by the nodes of a machine, by the machine's number. If a node does not share its machine, the
    /// machine has the node's number.
    Shared(usize, Component),
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WaitCause {
    pub by: TraceRow,
    /// For a packet: the row that was busy with sending the packet, and the start of that work; `None` if the work took
    /// no time.
    pub sent: Option<(TraceRow, f64)>,
}

impl From<TraceRow> for WaitCause {
    fn from(by: TraceRow) -> Self {
        WaitCause { by, sent: None }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activity {
    /// Waits for this cause.
    Wait(WaitCause),
    Work(&'static str),
}

/// An activity of one row; times are in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TraceSpan {
    pub row: TraceRow,
    pub from: f64,
    pub until: f64,
    pub activity: Activity,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub struct NicTrace {
    /// Spans by row, in the order of time.
    pub spans: Vec<TraceSpan>,
    /// Spans that were dropped because the trace was full.
    pub left_out: u64,
    /// The end of the last span of each row.
    until: HashMap<TraceRow, f64>,
}

impl NicTrace {
    /// Records that `row` does `work` in this time span, and that it waited for `cause` in the free time before the
    /// span.
    pub(super) fn note(
        &mut self,
        row: TraceRow,
        (from, until): (f64, f64),
        work: &'static str,
        cause: Option<WaitCause>,
    ) {
        let free = self.until.insert(row, until).unwrap_or(0.0);
        if let Some(cause) = cause.filter(|cause| cause.by != row) {
            self.push(TraceSpan { row, from: free, until: from, activity: Activity::Wait(cause) });
        }
        self.push(TraceSpan { row, from, until, activity: Activity::Work(work) });
    }

    fn push(&mut self, span: TraceSpan) {
        if span.from < span.until {
            let room = self.spans.len() < MOST_SPANS;
            self.left_out += u64::from(!room);
            self.spans.extend(room.then_some(span));
        }
    }
}
