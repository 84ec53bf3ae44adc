//! `--stage ordered`: the descriptors that each rank posts to an order-triggered NIC.

use std::fmt::Write as _;

use outboard_nic::ordered::OrderedSettings;
use outboard_nic::ordered::descriptor::{Descriptor, PortAddress};
use outboard_plan::{Element, Operator, Rank, Reduction, Span};
use outboard_plan_tools::ordered::{self, LoweredCall};
use serde::Serialize;
use serde_json::json;

use super::plans::{PlannedCall, ShownPlan};
use super::{Format, views};
use crate::error::CliError;

pub(super) fn show(format: Format, planned: &ShownPlan) -> Result<String, CliError> {
    let requested = planned.call.as_ref().ok_or_else(|| {
        CliError::Failed("--file: pulses are cut from calls; name a collective for --stage ordered".into())
    })?;
    let reduction = sum(requested.element_bytes)?;
    let lowered = ordered::lower(requested.choice, &requested.arguments(), &OrderedSettings::default())
        .map_err(CliError::failed)?;
    let members = members(requested);
    let posted = |rank: &Rank| {
        // Example addresses: the output lies behind the input.
        let output = planned.programs[rank.0 as usize].input_bytes;
        let bytes = |span: Span| vec![0; span.len as usize];
        let (members, reduction) = (members.as_slice(), Some(reduction));
        let call = ordered::OrderedCall { job: 0, members, reduction, input: 0, output, bytes: &bytes };
        lowered.post(*rank, &call, 0)
    };
    let ranks = (0..members.len() as u32).map(Rank);
    if format == Format::Json {
        let view = |rank: Rank| {
            let PortAddress { node, port } = members[rank.0 as usize];
            let (from, lines) = (sources(&lowered, rank), posted(&rank).iter().map(line).collect::<Vec<_>>());
            json!({ "rank": rank.0, "node": node, "port": port, "sources": from, "descriptors": lines })
        };
        #[derive(Serialize)]
        struct PostsView<R> {
            pulses: usize,
            posts: R,
        }
        let rows = views::LazyRows(|| ranks.clone().map(view));
        return views::view(planned, PostsView { pulses: lowered.pulses(), posts: rows });
    }
    let way = match lowered.pulses() {
        0 => "from point to point".to_owned(),
        1 => "1 pulse".to_owned(),
        pulses => format!("{pulses} pulses"),
    };
    let mut text = format!("{}\n{way}\n", planned.title);
    for rank in ranks {
        let PortAddress { node, port } = members[rank.0 as usize];
        let from = sources(&lowered, rank);
        let from = if from.is_empty() { String::new() } else { format!(", sources {}", from.join(", ")) };
        let _ = writeln!(text, "\n{rank}: node {node} port {port}{from}");
        for descriptor in posted(&rank) {
            let _ = writeln!(text, "  {}", line(&descriptor));
        }
    }
    Ok(text)
}

/// The reduction that the descriptors name: a sum of elements of this size.
fn sum(element_bytes: u64) -> Result<Reduction, CliError> {
    let element = match element_bytes {
        1 => Element::U8,
        2 => Element::F16,
        4 => Element::F32,
        8 => Element::F64,
        16 => Element::ComplexF64,
        other => {
            let said = format!("--element-bytes {other}: a NIC combines elements of 1, 2, 4, 8 or 16 bytes");
            return Err(CliError::Failed(said));
        }
    };
    Reduction::new(Operator::Sum, element).map_err(CliError::failed)
}

/// The members by rank. A member's node is the rank's host; the port is the rank's number among the ranks of the host.
fn members(requested: &PlannedCall) -> Vec<PortAddress> {
    let topology = &requested.topology;
    let member = |rank: Rank| {
        let node = topology.host_of(rank);
        let port = topology.ranks_of(node).iter().position(|other| *other == rank).unwrap_or(0);
        PortAddress { node, port: port as u16 }
    };
    (0..topology.ranks()).map(|rank| member(Rank(rank))).collect()
}

fn sources(lowered: &LoweredCall, rank: Rank) -> Vec<String> {
    let sources = match lowered {
        LoweredCall::Pulses(pulses) => pulses[0][rank.0 as usize].sources.as_slice(),
        LoweredCall::Exchange(_) => &[],
    };
    sources.iter().map(ToString::to_string).collect()
}

fn line(descriptor: &Descriptor) -> String {
    let pulse = if descriptor.pulse == 0 { String::new() } else { format!("pulse {}: ", descriptor.pulse) };
    format!("{pulse}{descriptor}")
}
