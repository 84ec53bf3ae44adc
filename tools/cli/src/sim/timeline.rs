//! The timeline of a call on engines, by the simulator's clock, in the format of real runs. The timeline has a process
//! for each rank and each NIC, a row for each part of a process, and an arrow from each sender to the waiting receiver.

use std::collections::{BTreeMap, BTreeSet};

use outboard_nic::costs::EngineCosts;
use outboard_nic::{NodeId, Port};
use outboard_plan::Rank;
use outboard_plan::selection::Collective;
use outboard_proto::GroupHandle;
use outboard_sim::nics::trace::{Activity, Component, TraceRow, TraceSpan, TransferDirection, WaitCause};
use outboard_sim::nics::{EngineSettings, PreparedPlan, Timing, TimingModel};
use serde_json::{Value, json};

use crate::error::CliError;
use crate::trace::Timeline;

/// Carries out the calls on a clock, and writes what every rank and NIC did meanwhile.
pub(super) fn write<S: EngineSettings, C: EngineCosts<S::Engine>>(
    mut file: Timeline,
    collective: Collective,
    prepared: &PreparedPlan<'_, S>,
    clock: &TimingModel<C>,
) -> Result<Timing, CliError> {
    let (timing, trace) = prepared.time_and_trace(clock).map_err(CliError::failed)?;
    let rows = TimelineRows::new(prepared, &trace.spans);
    rows.events().iter().try_for_each(|event| file.write(event))?;
    for (id, (job, rank, node, port)) in prepared.members().enumerate() {
        let (pid, tid) = rows.places[&TraceRow::Process(node, port)];
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
struct TimelineRows {
    ranks: BTreeMap<(NodeId, Port), (usize, Rank)>,
    /// The numbers of the process and of the row.
    places: BTreeMap<TraceRow, (u64, u64)>,
}

impl TimelineRows {
    fn new<S: EngineSettings>(prepared: &PreparedPlan<'_, S>, spans: &[TraceSpan]) -> TimelineRows {
        let ranks: BTreeMap<_, _> =
            prepared.members().map(|(job, rank, node, port)| ((node, port), (job, rank))).collect();
        let mut rows: BTreeSet<TraceRow> = ranks.keys().map(|(node, port)| TraceRow::Process(*node, *port)).collect();
        for span in spans {
            rows.insert(span.row);
            if let Activity::Wait(cause) = span.activity {
                rows.insert(cause.by);
            }
        }
        let mut named = TimelineRows { ranks, places: BTreeMap::new() };
        let mut processes = BTreeMap::new();
        for (tid, row) in (1..).zip(rows) {
            let next = processes.len() as u64 + 1;
            let pid = *processes.entry(named.process(row)).or_insert(next);
            named.places.insert(row, (pid, tid));
        }
        named
    }

    /// The name of a process, as in real runs.
    fn process(&self, row: TraceRow) -> String {
        match row {
            TraceRow::Process(node, port) => {
                let (job, rank) = self.ranks[&(node, port)];
                format!("{rank} of {}", group(job))
            }
            TraceRow::Shared(machine, _) => format!("NIC of node {machine}"),
        }
    }

    /// The names of processes and rows.
    fn events(&self) -> Vec<Value> {
        let of = |(row, (pid, tid)): (&TraceRow, &(u64, u64))| {
            let thread = match row {
                TraceRow::Process(..) => "processor".to_owned(),
                TraceRow::Shared(_, Component::Sender(part)) => format!("part {part}"),
                TraceRow::Shared(_, Component::Receiver) => "receiver".to_owned(),
                TraceRow::Shared(_, Component::Bus(TransferDirection::Out)) => "bus from memory".to_owned(),
                TraceRow::Shared(_, Component::Bus(TransferDirection::In)) => "bus to memory".to_owned(),
                TraceRow::Shared(_, Component::Link(port, TransferDirection::Out)) => format!("link {port} out"),
                TraceRow::Shared(_, Component::Link(port, TransferDirection::In)) => format!("link {port} in"),
            };
            [("process_name", self.process(*row)), ("thread_name", thread)].map(|(kind, name)| {
                json!({ "name": kind, "ph": "M", "pid": pid, "tid": tid, "ts": 0, "args": { "name": name } })
            })
        };
        self.places.iter().flat_map(of).collect()
    }

    /// A span; for a wait also the arrow from the sender of the packet that ends it.
    fn span(&self, number: usize, span: &TraceSpan) -> Vec<Value> {
        let (from, until) = (nanoseconds(span.from), nanoseconds(span.until));
        if from >= until {
            return Vec::new();
        }
        let (pid, tid) = self.places[&span.row];
        let cat = if matches!(span.row, TraceRow::Process(..)) { "rank" } else { "NIC" };
        let (name, args) = match span.activity {
            Activity::Wait(WaitCause { by, .. }) => ("wait", json!({ "for": self.process(by) })),
            Activity::Work(work) => (work, json!({})),
        };
        let (ts, dur) = (from / 1e3, (until - from) / 1e3);
        let mut events = vec![json!({
            "name": name, "cat": cat, "ph": "X", "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args,
        })];
        // An arrow must end within a span, so this one ends just before the wait's end.
        if let Activity::Wait(WaitCause { sent: Some((row, at)), .. }) = span.activity {
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
