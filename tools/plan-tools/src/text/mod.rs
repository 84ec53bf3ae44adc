//! Plans as text: one line per step, for people and for [`parse`]; docs/plan-format.md describes the grammar.
//!
//! Invariants: the text is complete, so [`parse`] returns exactly the programs that [`print()`] was given, verified or
//! not. Therefore this module never assumes that spans lie inside their buffers. Spans are half-open byte ranges. The
//! operator and the elements of a reduction belong to the call, not to the plan, and are not in the text.

mod parse;

use outboard_plan::Program;

pub use crate::tokens::{SyntaxError, TextPosition};
pub use parse::{TextError, TextReason, parse};

/// The version of the format, stated in the first line of the text.
const VERSION: u32 = 1;

/// Writes the programs of all ranks of a group, in rank order, as text for [`parse`].
pub fn print(programs: &[Program]) -> String {
    let mut text = format!("plan {VERSION}\n");
    for program in programs {
        text.push('\n');
        text.push_str(&program.to_string());
    }
    text
}
