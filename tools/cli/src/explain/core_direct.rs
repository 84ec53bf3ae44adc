//! `--stage core-direct`: the task lists of all ranks for a triggered NIC, and the queue pairs that they need.

use std::fmt::Write as _;

use outboard_nic::triggered::TriggeredSettings;
use outboard_nic::triggered::list::{
    self, HostStep, ListTemplate, Purpose, QueuePairId, ServedDirection, WorkAction, WorkRequest,
};
use outboard_plan::{Rank, Topology};
use outboard_plan_tools::rounds::RoundMessage;
use outboard_plan_tools::triggered::Lowering;
use serde::Serialize;
use serde_json::{Value, json};

use super::plans::ShownPlan;
use super::{Format, PlanArgs, TaskListProtocol, views};
use crate::error::CliError;

/// The most eager buffers of all ranks together; longer lists are of no use to a reader.
const MAX_BUFFERS: u64 = 2_000_000;

pub(super) fn show(args: &PlanArgs, planned: &ShownPlan) -> Result<String, CliError> {
    let flat = Topology::flat(planned.programs.len() as u32);
    let topology = planned.call.as_ref().map_or(&flat, |call| &call.topology);
    let lowering = Lowering::new(&planned.programs, topology).map_err(CliError::failed)?;
    let rendezvous_bytes = TriggeredSettings::default().eager_bytes;
    let protocol = match args.protocol {
        Some(TaskListProtocol::Rendezvous) => list::TransferProtocol::Rendezvous,
        None if planned.bytes >= rendezvous_bytes => list::TransferProtocol::Rendezvous,
        // A buffer holds a block, as in the paper, up to the size from which blocks use a rendezvous.
        Some(TaskListProtocol::Eager) | None => {
            list::TransferProtocol::Eager { buffer: planned.bytes.clamp(1, rendezvous_bytes) }
        }
    };
    if let list::TransferProtocol::Eager { buffer } = protocol {
        let buffers = |message: &RoundMessage| message.bytes.div_ceil(buffer).max(1);
        let all = lowering.messages().iter().map(buffers).fold(0, u64::saturating_add);
        if all > MAX_BUFFERS {
            return Err(CliError::Failed(format!(
                "messages fill {all} eager buffers of {buffer} B, each with tasks of its own: choose --protocol rendezvous, \
                 fewer ranks or a smaller --size; at most {MAX_BUFFERS} are shown"
            )));
        }
    }
    let ranks = (0..planned.programs.len() as u32).map(Rank);
    let templates =
        ranks.map(|rank| lowering.template(rank, protocol)).collect::<Result<Vec<_>, _>>().map_err(CliError::failed)?;
    let queue_pairs: Vec<usize> = templates.iter().map(|template| lowering.queue_pairs(template.rank)).collect();
    if args.format == Format::Json {
        return views::view(planned, lists(protocol, &queue_pairs, &templates));
    }
    let mut text = format!("{}, {}\n", planned.title, described(protocol));
    let (least, most) = (queue_pairs.iter().min().unwrap_or(&0), queue_pairs.iter().max().unwrap_or(&0));
    let range = if least == most { format!("{most}") } else { format!("{least} to {most}") };
    let _ = writeln!(text, "{range} queue pairs per rank");
    if args.executed {
        for template in &templates {
            let _ = write!(text, "\n{}\n{template}", template.rank);
        }
    } else {
        tables(&mut text, &templates);
    }
    Ok(text)
}

fn described(protocol: list::TransferProtocol) -> String {
    match protocol {
        list::TransferProtocol::Eager { buffer } => format!("eager buffers of {buffer} B"),
        list::TransferProtocol::Rendezvous | list::TransferProtocol::Retry => "rendezvous".to_owned(),
    }
}

/// Ranks side by side in one table.
const COLUMNS: usize = 4;

/// The tables of the CORE-Direct paper: rounds downwards, ranks side by side.
fn tables(text: &mut String, templates: &[ListTemplate]) {
    for ranks in templates.chunks(COLUMNS) {
        let columns: Vec<Vec<Vec<String>>> = ranks.iter().map(ListTemplate::table).collect();
        let cells = columns.iter().flatten().flatten().map(String::len);
        let width = cells.max().unwrap_or(0).max("rank 65535".len());
        let mut row = |first: &str, cells: Vec<String>| {
            let row: String = cells.iter().map(|cell| format!("  {cell:<width$}")).collect();
            let _ = writeln!(text, "{}", format!("{first:<8}{row}").trim_end());
        };
        row("", Vec::new());
        row("", ranks.iter().map(|template| template.rank.to_string()).collect());
        let rounds = columns.iter().map(Vec::len).max().unwrap_or(0);
        for round in 0..rounds {
            let lines = columns.iter().map(|column| column.get(round).map_or(0, Vec::len)).max().unwrap_or(0);
            for line in 0..lines {
                let cell = |column: &Vec<Vec<String>>| {
                    column.get(round).and_then(|lines| lines.get(line)).cloned().unwrap_or_default()
                };
                let first = if line == 0 { format!("Step {round}") } else { String::new() };
                row(&first, columns.iter().map(cell).collect());
            }
        }
    }
}

/// The lists of all ranks, with the tables of the paper round by round.
fn lists(protocol: list::TransferProtocol, queue_pairs: &[usize], templates: &[ListTemplate]) -> impl Serialize {
    #[derive(Serialize)]
    struct TaskListView<L> {
        protocol: &'static str,
        /// Bytes of an eager buffer.
        #[serde(skip_serializing_if = "Option::is_none")]
        buffer: Option<u64>,
        lists: L,
    }
    let texts = |steps: &[HostStep]| -> Vec<String> { steps.iter().map(ToString::to_string).collect() };
    let list = move |(template, queue_pairs): (&ListTemplate, &usize)| {
        json!({
            "rank": template.rank.0,
            "queue_pairs": queue_pairs,
            "eager_buffers": template.slots.len(),
            "table": template.table(),
            "host_before": texts(&template.before),
            "tasks": template.tasks.iter().map(task).collect::<Vec<_>>(),
            "host_after": texts(&template.after),
        })
    };
    let (protocol, buffer) = match protocol {
        list::TransferProtocol::Eager { buffer } => ("eager", Some(buffer)),
        list::TransferProtocol::Rendezvous | list::TransferProtocol::Retry => ("rendezvous", None),
    };
    TaskListView { protocol, buffer, lists: views::LazyRows(move || templates.iter().zip(queue_pairs).map(list)) }
}

fn task(WorkRequest { round, on: QueuePairId { connection, purpose }, action }: &WorkRequest) -> Value {
    let (request, count, memory) = match action {
        WorkAction::Receive(into) => ("receive", None, into.as_slice()),
        WorkAction::Send { from, .. } => ("send", None, from.as_slice()),
        WorkAction::WaitReceived(count) => ("wait-received", Some(count), [].as_slice()),
        WorkAction::WaitSent(count) => ("wait-sent", Some(count), [].as_slice()),
        WorkAction::SendEnable(count) => ("send-enable", Some(count), [].as_slice()),
        WorkAction::ReceiveEnable(count) => ("receive-enable", Some(count), [].as_slice()),
    };
    let queue_pair = match purpose {
        Purpose::Eager => "eager",
        Purpose::ClearToSend => "clear-to-send",
        Purpose::Data => "data",
    };
    let serves = match connection.serves {
        ServedDirection::Both => "both",
        ServedDirection::Outgoing => "outgoing",
        ServedDirection::Incoming => "incoming",
    };
    let peer = connection.peer.0;
    let mut task =
        json!({ "round": round, "request": request, "peer": peer, "queue_pair": queue_pair, "serves": serves });
    if let Some(count) = count {
        task["count"] = json!(count);
    }
    if !memory.is_empty() {
        task["memory"] = memory.iter().map(ToString::to_string).collect();
    }
    task
}
