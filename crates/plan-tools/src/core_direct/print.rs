//! Task lists for people: the whole list, and what the tables of the paper show of it.
//!
//! The tables leave out what follows from the rest: enables, the sending of clear-to-sends, and the waits for delivery at the
//! end (CD-4, CD-5). They show a round in an order of their own: receives of clear-to-sends and the waits for them,
//! receives, sends, waits.

use std::fmt;

use super::{HostStep, Place, Purpose, QueuePair, Request, Serves, Task, Template};
use outboard_plan::Rank;

/// A line of the tables of the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TableLine {
    /// `recv CTS from 1`
    ReceiveClearToSend(Rank),
    /// `wait (1 CTS CQ) from 1`
    WaitClearToSend(u32, Rank),
    /// `recv from 1`
    Receive(Rank),
    /// `send to 1`
    Send(Rank),
    /// `wait (1 recv CQ) from 1`
    Wait(u32, Rank),
}

impl fmt::Display for TableLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            TableLine::ReceiveClearToSend(Rank(peer)) => write!(f, "recv CTS from {peer}"),
            TableLine::WaitClearToSend(count, Rank(peer)) => write!(f, "wait ({count} CTS CQ) from {peer}"),
            TableLine::Receive(Rank(peer)) => write!(f, "recv from {peer}"),
            TableLine::Send(Rank(peer)) => write!(f, "send to {peer}"),
            TableLine::Wait(count, Rank(peer)) => write!(f, "wait ({count} recv CQ) from {peer}"),
        }
    }
}

impl TableLine {
    fn of(request: &Request<Place>) -> Option<TableLine> {
        let peer = |on: &QueuePair| (on.connection.peer, on.purpose);
        match request {
            Request::Receive { on, .. } => Some(match peer(on) {
                (peer, Purpose::ClearToSend) => TableLine::ReceiveClearToSend(peer),
                (peer, Purpose::Eager | Purpose::Data) => TableLine::Receive(peer),
            }),
            Request::Send { on, .. } => match peer(on) {
                (_, Purpose::ClearToSend) => None,
                (peer, Purpose::Eager | Purpose::Data) => Some(TableLine::Send(peer)),
            },
            Request::WaitReceived { on, count } => Some(match peer(on) {
                (peer, Purpose::ClearToSend) => TableLine::WaitClearToSend(*count, peer),
                (peer, Purpose::Eager | Purpose::Data) => TableLine::Wait(*count, peer),
            }),
            Request::WaitSent { .. } | Request::SendEnable { .. } | Request::ReceiveEnable { .. } => None,
        }
    }

    /// Where the tables have the line within its round.
    fn place(&self) -> u8 {
        match self {
            TableLine::ReceiveClearToSend(_) => 0,
            TableLine::WaitClearToSend(..) => 1,
            TableLine::Receive(_) => 2,
            TableLine::Send(_) => 3,
            TableLine::Wait(..) => 4,
        }
    }
}

impl Template {
    /// What the tables of the paper show of the list, round by round.
    #[must_use]
    pub fn table(&self) -> Vec<Vec<TableLine>> {
        let mut rounds: Vec<Vec<TableLine>> = Vec::new();
        for Task { round, request } in &self.tasks {
            if let Some(line) = TableLine::of(request) {
                rounds.resize(rounds.len().max(*round as usize + 1), Vec::new());
                rounds[*round as usize].push(line);
            }
        }
        rounds.iter_mut().for_each(|round| round.sort_by_key(TableLine::place));
        rounds
    }
}

impl fmt::Display for QueuePair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = match self.purpose {
            Purpose::Eager => "eager",
            Purpose::ClearToSend => "CTS",
            Purpose::Data => "data",
        };
        let serves = match self.connection.serves {
            Serves::Both => "",
            Serves::Outgoing => ", outgoing",
            Serves::Incoming => ", incoming",
        };
        write!(f, "{purpose} QP of {}{serves}", self.connection.peer)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Memory(span) => write!(f, "{span}"),
            Place::Arrived { slot, offset, len } => write!(f, "eager buffer {slot}[{offset}..{}]", offset + len),
            Place::Next { slot } => write!(f, "eager buffer {slot} of the next call"),
        }
    }
}

impl<P: fmt::Display> fmt::Display for Request<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Request::Receive { on, into: None } => write!(f, "receive on {on}"),
            Request::Receive { on, into: Some(into) } => write!(f, "receive on {on} into {into}"),
            Request::Send { on, from } => {
                write!(f, "send on {on}")?;
                let joint = |i| if i == 0 { " from" } else { " and" };
                from.iter().enumerate().try_for_each(|(i, piece)| write!(f, "{} {piece}", joint(i)))
            }
            Request::WaitReceived { on, count } => write!(f, "wait for {count} received on {on}"),
            Request::WaitSent { on, count } => write!(f, "wait for {count} sent on {on}"),
            Request::SendEnable { on, count } => write!(f, "enable {count} to send on {on}"),
            Request::ReceiveEnable { on, count } => write!(f, "enable {count} to receive on {on}"),
        }
    }
}

impl<P: fmt::Display> fmt::Display for HostStep<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostStep::Copy { from, to } => write!(f, "copy {from} to {to}"),
            HostStep::Reduce { from, into, from_left: true } => write!(f, "reduce {from} from the left into {into}"),
            HostStep::Reduce { from, into, from_left: false } => write!(f, "reduce {from} from the right into {into}"),
        }
    }
}

/// The whole list: one line per task, with what the host does before and behind it.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for step in &self.before {
            writeln!(f, "  host: {step}")?;
        }
        let mut round = None;
        for task in &self.tasks {
            if round.replace(task.round) != Some(task.round) {
                writeln!(f, "  round {}", task.round)?;
            }
            writeln!(f, "    {}", task.request)?;
        }
        for step in &self.after {
            writeln!(f, "  host: {step}")?;
        }
        Ok(())
    }
}
