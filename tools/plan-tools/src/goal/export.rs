//! Writes a plan as a GOAL schedule.

use std::fmt::{self, Write};

use thiserror::Error;

use super::MULTICAST_TAG;
use outboard_plan::{Op, OpId, Program, Rank, Span};

/// Costs of work inside a rank, which a schedule states as durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GoalCosts {
    /// Picoseconds per copied byte.
    pub copy_ps_per_byte: u64,
    /// Picoseconds per byte of one operand that is reduced.
    pub reduce_ps_per_byte: u64,
}

impl Default for GoalCosts {
    /// Copies at 8 GB/s and reduces at 4 GB/s, which one core of a server reaches from memory.
    fn default() -> Self {
        GoalCosts { copy_ps_per_byte: 125, reduce_ps_per_byte: 250 }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
pub enum ExportError {
    #[error(
        "{rank} {step} has a message of index {index}: GOAL has tags below {MULTICAST_TAG} for messages; renumber it"
    )]
    Index { rank: Rank, step: OpId, index: u32 },
}

/// Writes the schedule of the programs of all ranks of a group, in rank order.
///
/// Step `i` has the label `li`. The tag of a message is its index. An empty message is written with one byte, because
/// LogGOPSim charges for one byte less than a message has. Copies and reductions become `calc`. A multicast becomes one
/// message to each other rank, so the schedule charges it like unicast.
pub fn export(programs: &[Program], costs: GoalCosts) -> Result<String, ExportError> {
    for program in programs {
        for (id, step) in (0..).map(OpId).zip(&program.steps) {
            if let Op::Send { index, .. } | Op::Recv { index, .. } = step.op
                && index >= MULTICAST_TAG
            {
                return Err(ExportError::Index { rank: program.rank, step: id, index });
            }
        }
    }
    let mut text = String::new();
    write(&mut text, programs, costs).expect("a string takes all text");
    Ok(text)
}

fn write(text: &mut String, programs: &[Program], costs: GoalCosts) -> fmt::Result {
    writeln!(text, "num_ranks {}", programs.len())?;
    for program in programs {
        writeln!(text, "\nrank {} {{", program.rank.0)?;
        for (id, step) in (0..).map(OpId).zip(&program.steps) {
            operation(text, program, id, costs)?;
            // Each message of a multicast has the requirements of the whole multicast.
            let starts: Vec<String> = match step.op {
                Op::Multicast { .. } => others(program).map(|to| multicast_label(id, to)).collect(),
                _ => vec![format!("l{}", id.0)],
            };
            for (start, on) in starts.iter().flat_map(|start| step.after.iter().map(move |on| (start, on))) {
                writeln!(text, "{start} requires l{}", on.0)?;
            }
        }
        writeln!(text, "}}")?;
    }
    Ok(())
}

fn others(program: &Program) -> impl Iterator<Item = Rank> + use<> {
    let me = program.rank;
    (0..program.ranks).map(Rank).filter(move |rank| *rank != me)
}

fn multicast_label(id: OpId, to: Rank) -> String {
    format!("l{}_{}", id.0, to.0)
}

fn operation(text: &mut String, program: &Program, id: OpId, costs: GoalCosts) -> fmt::Result {
    let label = format!("l{}", id.0);
    let bytes = |span: Span| span.len.max(1);
    match program.steps[id.0 as usize].op {
        Op::Send { to, index, span } => writeln!(text, "{label}: send {}b to {} tag {index}", bytes(span), to.0),
        Op::Recv { from, index, span } => {
            writeln!(text, "{label}: recv {}b from {} tag {index}", bytes(span), from.0)
        }
        Op::Multicast { span } => {
            for to in others(program) {
                let label = multicast_label(id, to);
                writeln!(text, "{label}: send {}b to {} tag {MULTICAST_TAG}", bytes(span), to.0)?;
            }
            // Steps that follow the multicast follow all of its messages.
            writeln!(text, "{label}: calc 0")?;
            others(program).try_for_each(|to| writeln!(text, "{label} requires {}", multicast_label(id, to)))
        }
        Op::MulticastRecv { root, span } => {
            writeln!(text, "{label}: recv {}b from {} tag {MULTICAST_TAG}", bytes(span), root.0)
        }
        Op::Copy { from, .. } => writeln!(text, "{label}: calc {}", time(from, costs.copy_ps_per_byte)),
        Op::Reduce { from, .. } => writeln!(text, "{label}: calc {}", time(from, costs.reduce_ps_per_byte)),
    }
}

/// Nanoseconds for work on a span, rounded up.
fn time(span: Span, ps_per_byte: u64) -> u64 {
    let ps = u128::from(span.len) * u128::from(ps_per_byte);
    u64::try_from(ps.div_ceil(1000)).unwrap_or(u64::MAX)
}
