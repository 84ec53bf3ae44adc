//! Task lists as text: the whole list, and the excerpt that the tables of the paper show.
//!
//! The tables leave out requests that follow from others: enables, the sending of clear-to-sends, and the waits for
//! delivery at the end (CD-4, CD-5). They order the requests of a round in a way of their own: receives of
//! clear-to-sends and the waits for them, receives, sends, waits.

use std::fmt;

use super::list::{
    HostStep, ListTemplate, Purpose, QueuePairId, ServedDirection, TemplatePlace, WorkAction, WorkRequest,
};

/// The line of a request in the paper's tables, and its position within its round; `None` if they leave it out.
fn table_line(request: &WorkRequest) -> Option<(u8, String)> {
    let (peer, ready) = (request.on.connection.peer.0, request.on.purpose == Purpose::ClearToSend);
    match request.action {
        WorkAction::Receive(_) if ready => Some((0, format!("recv CTS from {peer}"))),
        WorkAction::WaitReceived(count) if ready => Some((1, format!("wait ({count} CTS CQ) from {peer}"))),
        WorkAction::Receive(_) => Some((2, format!("recv from {peer}"))),
        WorkAction::Send { .. } => (!ready).then(|| (3, format!("send to {peer}"))),
        WorkAction::WaitReceived(count) => Some((4, format!("wait ({count} recv CQ) from {peer}"))),
        WorkAction::WaitSent(_) | WorkAction::SendEnable(_) | WorkAction::ReceiveEnable(_) => None,
    }
}

impl ListTemplate {
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

impl fmt::Display for QueuePairId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let purpose = match self.purpose {
            Purpose::Eager => "eager",
            Purpose::ClearToSend => "CTS",
            Purpose::Data => "data",
        };
        let serves = match self.connection.serves {
            ServedDirection::Both => "",
            ServedDirection::Outgoing => ", outgoing",
            ServedDirection::Incoming => ", incoming",
        };
        write!(f, "{purpose} QP of {}{serves}", self.connection.peer)
    }
}

impl fmt::Display for TemplatePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TemplatePlace::Memory(span) => write!(f, "{span}"),
            TemplatePlace::Arrived { slot, offset, len } => {
                write!(f, "eager buffer {slot}[{offset}..{}]", offset + len)
            }
            TemplatePlace::Next { slot } => write!(f, "eager buffer {slot} of the next call"),
            TemplatePlace::Shared { offset, len } => write!(f, "shared region[{offset}..{}]", offset + len),
        }
    }
}

impl fmt::Display for WorkRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let on = self.on;
        match &self.action {
            WorkAction::Receive(None) => write!(f, "receive on {on}"),
            WorkAction::Receive(Some(into)) => write!(f, "receive on {on} into {into}"),
            WorkAction::Send { from, .. } => {
                write!(f, "send on {on}")?;
                let joint = |i| if i == 0 { " from" } else { " and" };
                from.iter().enumerate().try_for_each(|(i, piece)| write!(f, "{} {piece}", joint(i)))
            }
            WorkAction::WaitReceived(count) => write!(f, "wait for {count} received on {on}"),
            WorkAction::WaitSent(count) => write!(f, "wait for {count} sent on {on}"),
            WorkAction::SendEnable(count) => write!(f, "enable {count} to send on {on}"),
            WorkAction::ReceiveEnable(count) => write!(f, "enable {count} to receive on {on}"),
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
impl fmt::Display for ListTemplate {
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
