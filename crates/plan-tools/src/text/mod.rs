//! Plans as text: one line per step, read by people and by [`parse`]; the grammar is in docs/plan-format.md.
//!
//! Invariants: the text is complete, so [`parse`] gives back just what [`print()`] was given, verified or not;
//! therefore nothing here assumes that spans lie inside their buffers. Spans read as half-open byte ranges. Which
//! operator a reduction applies to which elements belongs to the call, not to the plan, and is not in the text.

mod parse;

use outboard_plan::Program;

pub use crate::tokens::{Place, SyntaxError};
pub use parse::{TextError, TextReason, parse};

/// The version of the format, in its first line.
const VERSION: u32 = 1;

/// The text of the programs of all ranks of a group, in the order of ranks, as [`parse`] reads it.
pub fn print(programs: &[Program]) -> String {
    let mut text = format!("plan {VERSION}\n");
    for program in programs {
        text.push('\n');
        text.push_str(&program.to_string());
    }
    text
}
