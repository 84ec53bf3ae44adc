//! Task lists as text: the whole list, and the excerpt that the tables of the paper show.
//!
//! The tables leave out requests that follow from others: enables, the sending of clear-to-sends, and the waits for
//! delivery at the end (CD-4, CD-5). They order the requests of a round in a way of their own: receives of
//! clear-to-sends and the waits for them, receives, sends, waits.

use std::fmt;

use super::list::{Action, HostStep, Place, Purpose, QueuePair, Request, Serves, Template};

/// The line of a request in the paper's tables, and its position within its round; `None` if they leave it out.
fn table_line(request: &Request) -> Option<(u8, String)> {
    let (peer, ready) = (request.on.connection.peer.0, request.on.purpose == Purpose::ClearToSend);
    match request.action {
        Action::Receive(_) if ready => Some((0, format!("recv CTS from {peer}"))),
        Action::WaitReceived(count) if ready => Some((1, format!("wait ({count} CTS CQ) from {peer}"))),
        Action::Receive(_) => Some((2, format!("recv from {peer}"))),
        Action::Send { .. } => (!ready).then(|| (3, format!("send to {peer}"))),
        Action::WaitReceived(count) => Some((4, format!("wait ({count} recv CQ) from {peer}"))),
        Action::WaitSent(_) | Action::SendEnable(_) | Action::ReceiveEnable(_) => None,
    }
}

impl Template {
    /// The list as the tables of the paper show it, by round.
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut rounds: Vec<Vec<(u8, String)>> = Vec::new();
        for request in &self.tasks {
            if let Some(line) = table_line(request) {
                let round = request.round as usize;
                rounds.resize(rounds.len().max(round + 1), Vec::new());
                rounds[round].push(line);
            }
        }
        rounds.iter_mut().for_each(|round| round.sort_by_key(|(place, _)| *place));
        rounds.into_iter().map(|round| round.into_iter().map(|(_, line)| line).collect()).collect()
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
            Place::Shared { offset, len } => write!(f, "shared region[{offset}..{}]", offset + len),
        }
    }
}

impl fmt::Display for Request {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.on;
        match &self.action {
            Action::Receive(None) => write!(f, "receive on {on}"),
            Action::Receive(Some(into)) => write!(f, "receive on {on} into {into}"),
            Action::Send { from, .. } => {
                write!(f, "send on {on}")?;
                let joint = |i| if i == 0 { " from" } else { " and" };
                from.iter().enumerate().try_for_each(|(i, piece)| write!(f, "{} {piece}", joint(i)))
            }
            Action::WaitReceived(count) => write!(f, "wait for {count} received on {on}"),
            Action::WaitSent(count) => write!(f, "wait for {count} sent on {on}"),
            Action::SendEnable(count) => write!(f, "enable {count} to send on {on}"),
            Action::ReceiveEnable(count) => write!(f, "enable {count} to receive on {on}"),
        }
    }
}

impl fmt::Display for HostStep {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostStep::Copy { from, to } => write!(f, "copy {from} to {to}"),
            HostStep::Reduce { from, into, from_left: true } => write!(f, "reduce {from} from the left into {into}"),
            HostStep::Reduce { from, into, from_left: false } => write!(f, "reduce {from} from the right into {into}"),
            HostStep::Raise { flag } => write!(f, "raise arrival flag {flag}"),
            HostStep::Await { flag } => write!(f, "await arrival flag {flag}"),
        }
    }
}

/// Writes the whole list: one line per task, with the steps of the host before and after it.
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
            writeln!(f, "    {task}")?;
        }
        for step in &self.after {
            writeln!(f, "  host: {step}")?;
        }
        Ok(())
    }
}
