//! GOAL schedules: the text that LogGOPSim and its tools read and write.
//!
//! The dialect is that of LogGOPSim's `txt2bin`: `num_ranks N`, then `rank r { ... }` with `send`, `recv` and `calc`,
//! their labels, and `requires` and `irequires` between labels. A schedule says how many bytes go where and in which
//! order, not where they lie; so [`export()`] forgets spans, and [`import`] gives every message bytes of its own.
//!
//! Invariants: the messages of an imported plan are those of the schedule, matched by (source, destination, tag) in the
//! order of the text, and each starts behind all that the schedule puts before it. Times of `calc` are not kept: a plan
//! has no steps that only take time.

mod export;
mod import;
mod read;

pub use crate::tokens::{Place, SyntaxError};
pub use export::{Costs, ExportError, export};
pub use import::{Import, import};
pub use read::{GoalError, GoalReason};

/// The tag of multicasts, which a schedule can only have as one message for each receiver. Messages have their index as
/// tag, which lies below; the number above means any tag.
const MULTICAST_TAG: u32 = u32::MAX - 1;
