//! The timeline of a call on engines, by the simulator's clock, in the format of real runs. It has a process for each
//! rank and each NIC, a row for each of their parts, and an arrow from each sender to the waiting receiver.

use std::collections::{BTreeMap, BTreeSet};

use outboard_nic::costs::Costs;
use outboard_nic::{Node, Port};
use outboard_plan::Rank;
use outboard_plan::selection::Collective;
use outboard_proto::GroupHandle;
use outboard_sim::nics::trace::{Cause, Component, Direction, Doing, Row, Span};
use outboard_sim::nics::{Clock, Kind, Prepared, Timing};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::trace::Timeline;

/// Carries out the calls on a clock, and writes what every rank and NIC did meanwhile.
pub(super) fn write<S: Kind, C: Costs<S::Engine>>(
    mut file: Timeline,
    collective: Collective,
    prepared: &Prepared<'_, S>,
    clock: &Clock<C>,
) -> Result<Timing, CliError> {
    let (timing, trace) = prepared.time_and_trace(clock).map_err(CliError::said)?;
    let rows = Rows::new(prepared, &trace.spans);
    rows.events().iter().try_for_each(|event| file.write(event))?;
    for (id, (job, rank, node, port)) in prepared.members().enumerate() {
        let (pid, tid) = rows.places[&Row::Process(node, port)];
        let args = json!({ "group": group(job).to_string(), "instance": 1, "rank": rank.0 });
        for (ph, at) in [("b", 0.0), ("e", timing.calls[job][rank.0 as usize])] {
            let (name, ts, id) = (collective.to_string(), nanoseconds(at) / 1e3, id.to_string());
            file.write(&json!({
                "name": name, "cat": "call", "ph": ph, "id": id, "pid": pid, "tid": tid, "ts": ts, "args": args,
            }))?;
        }
    }
    for (number, span) in trace.spans.iter().enumerate() {
        rows.span(number, span).iter().try_for_each(|event| file.write(event))?;
    }
    file.end()?;
    if trace.left_out > 0 {
        println!("the trace is full: {} later spans are left out", trace.left_out);
    }
    Ok(timing)
}

/// Rounds to whole nanoseconds, so that a span begins exactly where the one before it ends.
fn nanoseconds(at: f64) -> f64 {
    at.round()
}

fn group(job: usize) -> GroupHandle {
    GroupHandle(job as u32)
}

/// The names of rows, and their numbers in the file.
struct Rows {
    ranks: BTreeMap<(Node, Port), (usize, Rank)>,
    /// The numbers of the process and of the row.
    places: BTreeMap<Row, (u64, u64)>,
}

impl Rows {
    fn new<S: Kind>(prepared: &Prepared<'_, S>, spans: &[Span]) -> Rows {
        let ranks: BTreeMap<_, _> =
            prepared.members().map(|(job, rank, node, port)| ((node, port), (job, rank))).collect();
        let mut rows: BTreeSet<Row> = ranks.keys().map(|(node, port)| Row::Process(*node, *port)).collect();
        for span in spans {
            rows.insert(span.row);
            if let Doing::Wait(cause) = span.doing {
                rows.insert(cause.by);
            }
        }
        let mut named = Rows { ranks, places: BTreeMap::new() };
        let mut processes = BTreeMap::new();
        for (tid, row) in (1..).zip(rows) {
            let next = processes.len() as u64 + 1;
            let pid = *processes.entry(named.process(row)).or_insert(next);
            named.places.insert(row, (pid, tid));
        }
        named
    }

    /// The name of a process, as in real runs.
    fn process(&self, row: Row) -> String {
        match row {
            Row::Process(node, port) => {
                let (job, rank) = self.ranks[&(node, port)];
                format!("{rank} of {}", group(job))
            }
            Row::Shared(machine, _) => format!("NIC of node {machine}"),
        }
    }

    /// The names of processes and rows.
    fn events(&self) -> Vec<Value> {
        let of = |(row, (pid, tid)): (&Row, &(u64, u64))| {
            let thread = match row {
                Row::Process(..) => "processor".to_owned(),
                Row::Shared(_, Component::Sender(part)) => format!("part {part}"),
                Row::Shared(_, Component::Receiver) => "receiver".to_owned(),
                Row::Shared(_, Component::Bus(Direction::Out)) => "bus from memory".to_owned(),
                Row::Shared(_, Component::Bus(Direction::In)) => "bus to memory".to_owned(),
                Row::Shared(_, Component::Link(port, Direction::Out)) => format!("link {port} out"),
                Row::Shared(_, Component::Link(port, Direction::In)) => format!("link {port} in"),
            };
            [("process_name", self.process(*row)), ("thread_name", thread)].map(|(kind, name)| {
                json!({ "name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": { "name": name } })
            })
        };
        self.places.iter().flat_map(of).collect()
    }

    /// A span; for a wait also the arrow from the sender of the packet that ends it.
    fn span(&self, number: usize, span: &Span) -> Vec<Value> {
        let (from, until) = (nanoseconds(span.from), nanoseconds(span.until));
        if from >= until {
            return Vec::new();
        }
        let (pid, tid) = self.places[&span.row];
        let cat = if matches!(span.row, Row::Process(..)) { "rank" } else { "NIC" };
        let (name, args) = match span.doing {
            Doing::Wait(Cause { by, .. }) => ("wait", json!({ "for": self.process(by) })),
            Doing::Work(work) => (work, json!({})),
        };
        let (ts, dur) = (from / 1e3, (until - from) / 1e3);
        let mut events = vec![json!({
            "name": name, "cat": cat, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
        })];
        // An arrow must end within a span, so this one ends just before the wait's end.
        if let Doing::Wait(Cause { sent: Some((row, at)), .. }) = span.doing {
            let mut arrow = |ph, (pid, tid): (u64, u64), at: f64| {
                events.push(json!({
                    "name": "packet", "cat": "packet", "ph": ph, "bp": "e", "id": number, "pid": pid, "tid": tid,
                    "ts": at / 1e3,
                }));
            };
            arrow("s", self.places[&row], nanoseconds(at));
            arrow("f", (pid, tid), until - 1.0);
        }
        events
    }
}
