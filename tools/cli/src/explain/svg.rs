//! A drawing of rounds and messages: a line for each rank, a band for each round, an arrow for each message.
//!
//! No chart library is used. The drawing has lines and words at known places and a tooltip for every arrow, which chart
//! libraries do not draw.

use std::fmt::{self, Write};

use outboard_plan_tools::rounds::Rounds;

use crate::error::CliError;

/// The most messages of a readable drawing.
const MAX_MESSAGES: usize = 20_000;
/// Distance between ranks.
const RANK_STEP: usize = 56;
/// Distance between rounds.
const ROUND_STEP: usize = 72;
/// Space left of the ranks, for the names of rounds.
const LEFT: usize = 96;
/// Space above the rounds, for the title and the names of ranks.
const TOP: usize = 64;
/// Space between a band's edge and its arrows.
const MARGIN: usize = 10;

/// The drawing.
pub(super) fn draw(title: &str, rounds: &Rounds) -> Result<String, CliError> {
    let messages = rounds.messages().len();
    if messages > MAX_MESSAGES {
        return Err(CliError::Failed(format!(
            "a drawing of {messages} messages: at most {MAX_MESSAGES} can be told apart; choose fewer ranks or --format json"
        )));
    }
    let mut svg = String::new();
    write(&mut svg, title, rounds).map_err(|_| CliError::Failed("a string takes no more text".to_owned()))?;
    Ok(svg)
}

fn x(rank: u32) -> usize {
    LEFT + rank as usize * RANK_STEP
}

fn y(round: usize) -> usize {
    TOP + round * ROUND_STEP
}

fn write(svg: &mut String, title: &str, rounds: &Rounds) -> fmt::Result {
    let last = x(rounds.ranks().saturating_sub(1));
    // The title may be wider than a small group.
    let (width, height) = ((last + RANK_STEP).max(640), y(rounds.count()) + MARGIN);
    writeln!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" \
         viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" font-size=\"12\">"
    )?;
    writeln!(
        svg,
        "<defs><marker id=\"head\" viewBox=\"0 0 8 8\" refX=\"8\" refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" \
         orient=\"auto\"><path d=\"M0 0 L8 4 L0 8 z\"/></marker></defs>"
    )?;
    writeln!(svg, "<rect width=\"{width}\" height=\"{height}\" fill=\"white\"/>")?;
    writeln!(svg, "<text x=\"8\" y=\"20\" font-size=\"14\">{}</text>", escaped(title))?;
    for round in 0..rounds.count() {
        let fill = if round % 2 == 0 { "#eef2f7" } else { "#ffffff" };
        let (top, middle) = (y(round), y(round) + ROUND_STEP / 2);
        writeln!(svg, "<rect x=\"0\" y=\"{top}\" width=\"{width}\" height=\"{ROUND_STEP}\" fill=\"{fill}\"/>")?;
        writeln!(svg, "<text x=\"8\" y=\"{middle}\">round {round}</text>")?;
    }
    for rank in 0..rounds.ranks() {
        let (x, top, bottom) = (x(rank), y(0), y(rounds.count()));
        writeln!(svg, "<text x=\"{x}\" y=\"{}\" text-anchor=\"middle\">{rank}</text>", TOP - 8)?;
        writeln!(svg, "<line x1=\"{x}\" y1=\"{top}\" x2=\"{x}\" y2=\"{bottom}\" stroke=\"#888888\"/>")?;
    }
    for message in rounds.messages() {
        let (from, to, round) = (message.from.0, message.to.0, message.round as usize);
        let colour = if message.index.is_some() { "#1f5fa8" } else { "#b5521b" };
        let name = match message.index {
            Some(index) => format!("message {index}"),
            None => "multicast".to_owned(),
        };
        writeln!(
            svg,
            "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" stroke=\"{colour}\" stroke-width=\"1.5\" \
             marker-end=\"url(#head)\"><title>round {round}: {from} to {to}, {name}, {} B</title></line>",
            x(from),
            y(round) + MARGIN,
            x(to),
            y(round + 1) - MARGIN,
            message.bytes
        )?;
    }
    writeln!(svg, "</svg>")
}

/// Escapes text that stands between tags.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
