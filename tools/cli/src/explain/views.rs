//! The output of `explain --format json`. Rows are made one by one during writing, because a plan may have millions.

use std::fmt::Write as _;

use outboard_plan::{Op, Program, Span, Step};
use outboard_plan_tools::rounds::{RankLoad, RoundMessage, Rounds};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};

use super::plans::ShownPlan;
use crate::error::CliError;

/// The object to write: the plan's call, and the fields of `body`.
#[derive(Serialize)]
struct View<'a, T> {
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    ranks: usize,
    bytes: u64,
    #[serde(flatten)]
    body: T,
}

/// The text of an object with the fields of `body`.
pub(super) fn view(planned: &ShownPlan, body: impl Serialize) -> Result<String, CliError> {
    let ShownPlan { of, bytes, programs, .. } = planned;
    let (collective, algorithm) = of.as_ref().map(|(collective, algorithm)| (&**collective, &**algorithm)).unzip();
    let view = View { collective, algorithm, ranks: programs.len(), bytes: *bytes, body };
    let mut text = serde_json::to_string_pretty(&view).map_err(CliError::failed)?;
    let _ = writeln!(text);
    Ok(text)
}

/// Rows that are made during writing.
pub(super) struct LazyRows<F>(pub(super) F);

impl<I: IntoIterator<Item = Value>, F: Fn() -> I> Serialize for LazyRows<F> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq((self.0)())
    }
}

/// `--stage plan`
pub(super) fn plan(planned: &ShownPlan) -> impl Serialize {
    #[derive(Serialize)]
    struct Plan<P> {
        programs: P,
    }
    Plan { programs: LazyRows(|| planned.programs.iter().map(program)) }
}

fn program(program: &Program) -> Value {
    json!({
        "rank": program.rank.0,
        "input_bytes": program.input_bytes,
        "output_bytes": program.output_bytes,
        "scratch_bytes": program.scratch_bytes,
        "chains": program.chains,
        "subgroups": program.subgroups,
        "steps": program.steps.iter().map(step).collect::<Vec<_>>(),
    })
}

fn step(step: &Step) -> Value {
    let after: Vec<u32> = step.after.iter().map(|id| id.0).collect();
    let bytes = |Span { buffer, offset, len }| json!({ "buffer": buffer.to_string(), "offset": offset, "bytes": len });
    match step.op {
        Op::Send { to, index, span } => {
            json!({ "op": "send", "to": to.0, "index": index, "span": bytes(span), "after": after })
        }
        Op::Recv { from, index, span } => {
            json!({ "op": "receive", "from": from.0, "index": index, "span": bytes(span), "after": after })
        }
        Op::Multicast { span } => json!({ "op": "multicast", "span": bytes(span), "after": after }),
        Op::MulticastRecv { root, span } => {
            json!({ "op": "receive-multicast", "root": root.0, "span": bytes(span), "after": after })
        }
        Op::Copy { from, to } => json!({ "op": "copy", "from": bytes(from), "to": bytes(to), "after": after }),
        Op::Reduce { from, into, from_left } => {
            let (from, into) = (bytes(from), bytes(into));
            json!({ "op": "reduce", "from": from, "into": into, "from_left": from_left, "after": after })
        }
    }
}

/// `--stage rounds`; `totals` are over all rounds, by rank.
pub(super) fn rounds(rounds: &Rounds, totals: Vec<RankLoad>) -> impl Serialize {
    #[derive(Serialize)]
    struct All<R> {
        rounds: R,
        totals: Vec<Value>,
    }
    let load = |RankLoad { sent, received }| json!({ "sent": sent, "received": received });
    let round = move |round| {
        let messages: Vec<Value> = rounds.of_round(round).iter().map(message).collect();
        let ranks: Vec<Value> = rounds.loads(round).into_iter().map(load).collect();
        json!({ "messages": messages, "ranks": ranks })
    };
    All { rounds: LazyRows(move || (0..rounds.count()).map(round)), totals: totals.into_iter().map(load).collect() }
}

/// A message that is multicast has no index.
fn message(message: &RoundMessage) -> Value {
    let RoundMessage { from, to, index, bytes, send, receive, .. } = *message;
    json!({
        "from": from.0, "to": to.0, "index": index, "bytes": bytes, "send_step": send.0, "receive_step": receive.0,
    })
}
