//! GOAL schedules: the text format of LogGOPSim and its tools.
//!
//! The dialect is that of LogGOPSim's `txt2bin`: `num_ranks N`, then `rank r { ... }` with `send`, `recv` and `calc`,
//! their labels, and `requires` and `irequires` between labels. A schedule states how many bytes go to which rank and
//! in which order, but no addresses. So [`export()`] drops spans, and [`import`] gives every message bytes of its own.
//!
//! Invariants: an imported plan has exactly the schedule's messages, matched by (source, destination, tag) in the order
//! of the text. Each message starts after everything that the schedule puts before it. Times of `calc` are dropped,
//! because a plan has no steps that only take time.

mod export;
mod import;
mod read;

pub use crate::tokens::{SyntaxError, TextPosition};
pub use export::{ExportError, GoalCosts, export};
pub use import::{Import, import};
pub use read::{GoalError, GoalReason};

/// The tag of multicasts, which a schedule can only express as one message for each receiver. The tag of any other
/// message is the message's index, which is smaller. The number above this tag means any tag.
const MULTICAST_TAG: u32 = u32::MAX - 1;
