//! What `explain --format json` writes.

use outboard_plan::{Op, Program, Span, Step};
use outboard_plan_tools::rounds::{Load, Message, Rounds};
use serde::Serialize;

use super::plans::Planned;

/// What the plan is the plan of.
#[derive(Debug, Serialize)]
pub(super) struct Summary<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    algorithm: Option<&'a str>,
    ranks: usize,
    bytes: u64,
}

impl<'a> Summary<'a> {
    pub(super) fn of(planned: &'a Planned) -> Self {
        let Planned { of, bytes, programs, .. } = planned;
        let (collective, algorithm) = of.as_ref().map(|(collective, algorithm)| (&**collective, &**algorithm)).unzip();
        Summary { collective, algorithm, ranks: programs.len(), bytes: *bytes }
    }
}

/// `--stage plan`
#[derive(Debug, Serialize)]
pub(super) struct Plan<'a> {
    #[serde(flatten)]
    summary: Summary<'a>,
    programs: Vec<ProgramView>,
}

#[derive(Debug, Serialize)]
struct ProgramView {
    rank: u32,
    input_bytes: u64,
    output_bytes: u64,
    scratch_bytes: u64,
    chains: u32,
    subgroups: u16,
    steps: Vec<StepView>,
}

#[derive(Debug, Serialize)]
struct StepView {
    #[serde(flatten)]
    op: OpView,
    after: Vec<u32>,
}

#[derive(Debug, Serialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
enum OpView {
    Send { to: u32, index: u32, span: SpanView },
    Receive { from: u32, index: u32, span: SpanView },
    Multicast { span: SpanView },
    ReceiveMulticast { root: u32, span: SpanView },
    Copy { from: SpanView, to: SpanView },
    Reduce { from: SpanView, into: SpanView, from_left: bool },
}

/// Bytes of a buffer.
#[derive(Debug, Serialize)]
pub(super) struct SpanView {
    buffer: String,
    offset: u64,
    bytes: u64,
}

impl From<Span> for SpanView {
    fn from(span: Span) -> Self {
        SpanView { buffer: span.buffer.to_string(), offset: span.offset, bytes: span.len }
    }
}

impl From<&Step> for StepView {
    fn from(step: &Step) -> Self {
        let op = match step.op {
            Op::Send { to, index, span } => OpView::Send { to: to.0, index, span: span.into() },
            Op::Recv { from, index, span } => OpView::Receive { from: from.0, index, span: span.into() },
            Op::Multicast { span } => OpView::Multicast { span: span.into() },
            Op::MulticastRecv { root, span } => OpView::ReceiveMulticast { root: root.0, span: span.into() },
            Op::Copy { from, to } => OpView::Copy { from: from.into(), to: to.into() },
            Op::Reduce { from, into, from_left } => OpView::Reduce { from: from.into(), into: into.into(), from_left },
        };
        StepView { op, after: step.after.iter().map(|id| id.0).collect() }
    }
}

impl From<&Program> for ProgramView {
    fn from(program: &Program) -> Self {
        ProgramView {
            rank: program.rank.0,
            input_bytes: program.input_bytes,
            output_bytes: program.output_bytes,
            scratch_bytes: program.scratch_bytes,
            chains: program.chains,
            subgroups: program.subgroups,
            steps: program.steps.iter().map(StepView::from).collect(),
        }
    }
}

impl<'a> Plan<'a> {
    pub(super) fn of(planned: &'a Planned) -> Self {
        let programs = planned.programs.iter().map(ProgramView::from).collect();
        Plan { summary: Summary::of(planned), programs }
    }
}

/// `--stage goal`
#[derive(Debug, Serialize)]
pub(super) struct Goal<'a> {
    #[serde(flatten)]
    pub(super) summary: Summary<'a>,
    pub(super) schedule: String,
}

/// `--stage rounds`
#[derive(Debug, Serialize)]
pub(super) struct RoundsView<'a> {
    #[serde(flatten)]
    summary: Summary<'a>,
    rounds: Vec<RoundView>,
    /// All rounds together, by rank.
    totals: Vec<LoadView>,
}

#[derive(Debug, Serialize)]
struct RoundView {
    messages: Vec<MessageView>,
    /// By rank.
    ranks: Vec<LoadView>,
}

#[derive(Debug, Serialize)]
struct MessageView {
    from: u32,
    to: u32,
    /// None where it is multicast.
    index: Option<u32>,
    bytes: u64,
    send_step: u32,
    receive_step: u32,
}

#[derive(Debug, Serialize)]
struct LoadView {
    sent: u64,
    received: u64,
}

impl From<&Message> for MessageView {
    fn from(message: &Message) -> Self {
        let Message { from, to, index, bytes, send, receive, .. } = *message;
        MessageView { from: from.0, to: to.0, index, bytes, send_step: send.0, receive_step: receive.0 }
    }
}

impl From<Load> for LoadView {
    fn from(Load { sent, received }: Load) -> Self {
        LoadView { sent, received }
    }
}

impl<'a> RoundsView<'a> {
    pub(super) fn of(planned: &'a Planned, rounds: &Rounds, totals: Vec<Load>) -> Self {
        let round = |round| RoundView {
            messages: rounds.of_round(round).iter().map(MessageView::from).collect(),
            ranks: rounds.loads(round).into_iter().map(LoadView::from).collect(),
        };
        RoundsView {
            summary: Summary::of(planned),
            rounds: (0..rounds.count()).map(round).collect(),
            totals: totals.into_iter().map(LoadView::from).collect(),
        }
    }
}
