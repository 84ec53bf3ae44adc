//! `--stage core-direct`: the task lists of all ranks for a triggered NIC, and the queue pairs that they need.

use std::fmt::{Display, Write as _};

use outboard_plan::Rank;
use outboard_plan_tools::core_direct::{
    self, Lowering, Purpose, QueuePair, RENDEZVOUS_BYTES, Request, Serves, Template,
};
use outboard_plan_tools::rounds::Message;
use serde::Serialize;

use super::plans::Planned;
use super::{Format, PlanArgs, Protocol, json, views};
use crate::error::CliError;

/// Eager buffers of all ranks together beyond which nobody reads the lists any more.
const MAX_BUFFERS: u64 = 2_000_000;

pub(super) fn show(args: &PlanArgs, planned: &Planned) -> Result<String, CliError> {
    let failed = |error: core_direct::LowerError| CliError::Failed(error.to_string());
    let lowering = Lowering::new(&planned.programs).map_err(failed)?;
    let protocol = match args.protocol {
        Some(Protocol::Rendezvous) => core_direct::Protocol::Rendezvous,
        None if planned.bytes >= RENDEZVOUS_BYTES => core_direct::Protocol::Rendezvous,
        // A buffer takes a block, as in the paper, up to the size from which blocks are worth a rendezvous.
        Some(Protocol::Eager) | None => {
            core_direct::Protocol::Eager { buffer: planned.bytes.clamp(1, RENDEZVOUS_BYTES) }
        }
    };
    if let core_direct::Protocol::Eager { buffer } = protocol {
        let buffers = |message: &Message| message.bytes.div_ceil(buffer).max(1);
        let all = lowering.rounds().messages().iter().map(buffers).fold(0, u64::saturating_add);
        if all > MAX_BUFFERS {
            return Err(CliError::Failed(format!(
                "messages fill {all} eager buffers of {buffer} B, each with tasks of its own: choose --protocol rendezvous, \
                 fewer ranks or a smaller --size; at most {MAX_BUFFERS} are shown"
            )));
        }
    }
    let ranks = (0..planned.programs.len() as u32).map(Rank);
    let templates =
        ranks.map(|rank| lowering.template(rank, protocol)).collect::<Result<Vec<_>, _>>().map_err(failed)?;
    let queue_pairs: Vec<usize> = templates.iter().map(|template| lowering.queue_pairs(template.rank)).collect();
    if args.format == Format::Json {
        return json(&Lists::of(planned, protocol, &queue_pairs, &templates));
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

fn described(protocol: core_direct::Protocol) -> String {
    match protocol {
        core_direct::Protocol::Eager { buffer } => format!("eager buffers of {buffer} B"),
        core_direct::Protocol::Rendezvous => "rendezvous".to_owned(),
    }
}

/// Ranks side by side in one table.
const COLUMNS: usize = 4;

/// What the tables of the CORE-Direct paper show: rounds downwards, ranks side by side.
fn tables(text: &mut String, templates: &[Template]) {
    for ranks in templates.chunks(COLUMNS) {
        let columns: Vec<Vec<Vec<String>>> = ranks
            .iter()
            .map(|template| template.table().iter().map(|r| r.iter().map(ToString::to_string).collect()).collect())
            .collect();
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

/// The lists of all ranks.
#[derive(Debug, Serialize)]
struct Lists<'a> {
    #[serde(flatten)]
    summary: views::Summary<'a>,
    protocol: &'static str,
    /// Bytes of an eager buffer.
    #[serde(skip_serializing_if = "Option::is_none")]
    buffer: Option<u64>,
    lists: Vec<List>,
}

#[derive(Debug, Serialize)]
struct List {
    rank: u32,
    queue_pairs: usize,
    eager_buffers: u32,
    /// What the tables of the paper show, round by round.
    table: Vec<Vec<String>>,
    host_before: Vec<String>,
    tasks: Vec<TaskView>,
    host_after: Vec<String>,
}

#[derive(Debug, Serialize)]
struct TaskView {
    round: u32,
    request: &'static str,
    peer: u32,
    queue_pair: &'static str,
    serves: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    count: Option<u32>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    memory: Vec<String>,
}

impl TaskView {
    fn of<P: Display>(round: u32, request: &Request<P>) -> TaskView {
        let places = |places: &[P]| places.iter().map(ToString::to_string).collect();
        let (name, on, count, memory) = match request {
            Request::Receive { on, into } => ("receive", on, None, places(into.as_slice())),
            Request::Send { on, from } => ("send", on, None, places(from)),
            Request::WaitReceived { on, count } => ("wait-received", on, Some(*count), Vec::new()),
            Request::WaitSent { on, count } => ("wait-sent", on, Some(*count), Vec::new()),
            Request::SendEnable { on, count } => ("send-enable", on, Some(*count), Vec::new()),
            Request::ReceiveEnable { on, count } => ("receive-enable", on, Some(*count), Vec::new()),
        };
        let QueuePair { connection, purpose } = on;
        let queue_pair = match purpose {
            Purpose::Eager => "eager",
            Purpose::ClearToSend => "clear-to-send",
            Purpose::Data => "data",
        };
        let serves = match connection.serves {
            Serves::Both => "both",
            Serves::Outgoing => "outgoing",
            Serves::Incoming => "incoming",
        };
        TaskView { round, request: name, peer: connection.peer.0, queue_pair, serves, count, memory }
    }
}

impl<'a> Lists<'a> {
    fn of(
        planned: &'a Planned,
        protocol: core_direct::Protocol,
        queue_pairs: &[usize],
        templates: &[Template],
    ) -> Lists<'a> {
        let list = |(template, queue_pairs): (&Template, &usize)| List {
            rank: template.rank.0,
            queue_pairs: *queue_pairs,
            eager_buffers: template.slots,
            table: template.table().iter().map(|round| round.iter().map(ToString::to_string).collect()).collect(),
            host_before: template.before.iter().map(ToString::to_string).collect(),
            tasks: template.tasks.iter().map(|task| TaskView::of(task.round, &task.request)).collect(),
            host_after: template.after.iter().map(ToString::to_string).collect(),
        };
        let (name, buffer) = match protocol {
            core_direct::Protocol::Eager { buffer } => ("eager", Some(buffer)),
            core_direct::Protocol::Rendezvous => ("rendezvous", None),
        };
        let lists = templates.iter().zip(queue_pairs).map(list).collect();
        Lists { summary: views::Summary::of(planned), protocol: name, buffer, lists }
    }
}
