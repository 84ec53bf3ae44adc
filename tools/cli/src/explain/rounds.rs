//! `--stage rounds`: the messages of each round, and the bytes that each rank sends and receives.

use std::fmt::Write as _;

use outboard_plan_tools::rounds::{RankLoad, Rounds};

use super::plans::ShownPlan;
use super::{Format, svg, views};
use crate::error::CliError;

pub(super) fn show(format: Format, planned: &ShownPlan) -> Result<String, CliError> {
    let rounds = Rounds::of(&planned.programs).map_err(CliError::failed)?;
    match format {
        Format::Text => Ok(text(planned, &rounds)),
        Format::Json => views::view(planned, views::rounds(&rounds, totals(&rounds))),
        Format::Svg => svg::draw(&planned.title, &rounds),
    }
}

/// Bytes that each rank sends and receives in all rounds.
fn totals(rounds: &Rounds) -> Vec<RankLoad> {
    let mut totals = vec![RankLoad::default(); rounds.ranks() as usize];
    for round in 0..rounds.count() {
        for (total, load) in totals.iter_mut().zip(rounds.loads(round)) {
            total.sent += load.sent;
            total.received += load.received;
        }
    }
    totals
}

fn text(planned: &ShownPlan, rounds: &Rounds) -> String {
    let mut text = String::new();
    let _ = writeln!(text, "{}", planned.title);
    let _ = writeln!(text, "{} rounds, {} messages", rounds.count(), rounds.messages().len());
    for round in 0..rounds.count() {
        let loads = rounds.loads(round);
        let sent = range(loads.iter().map(|load| load.sent));
        let received = range(loads.iter().map(|load| load.received));
        let _ = writeln!(text, "\nround {round}: a rank sends {sent} and receives {received}");
        for message in rounds.of_round(round) {
            let _ = write!(text, "  {} -> {}  {} B", message.from.0, message.to.0, message.bytes);
            let _ = match message.index {
                Some(index) => writeln!(text, "  message {index}"),
                None => writeln!(text, "  multicast"),
            };
        }
    }
    let _ = writeln!(text, "\nbytes in all rounds\n{:>6} {:>16} {:>16}", "rank", "sent", "received");
    for (rank, RankLoad { sent, received }) in totals(rounds).into_iter().enumerate() {
        let _ = writeln!(text, "{rank:>6} {sent:>16} {received:>16}");
    }
    text
}

/// The range of some bytes, or the number that all of them equal.
fn range(bytes: impl Iterator<Item = u64> + Clone) -> String {
    match (bytes.clone().min(), bytes.max()) {
        (Some(least), Some(most)) if least < most => format!("{least} to {most} B"),
        (_, most) => format!("{} B", most.unwrap_or(0)),
    }
}
