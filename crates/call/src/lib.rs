//! Calls: what a rank asks its service process for, described once for everybody.
//!
//! A [`Call`] is one rank's argument structure, as UCC has one for all collectives: a [`CallKind`], flags, addresses
//! and sizes. [`Call::footprint`] says which bytes of the rank's memory the call reads and writes, and its
//! [`Signature`], on which all ranks of the call must agree. Rank, service process and relay derive all three from
//! here, so what is special about one kind of call (the first rank of an exclusive scan, a contribution in place, a
//! root) is known here alone. [`codec`] has the reader and the writer of all messages.
//!
//! Invariants: codes never change meaning; whatever decodes encodes to the same numbers; no address, size or table
//! makes anything here panic. Never does IO, never sees payload.

#![allow(missing_docs, reason = "names speak for themselves inside; programs are written against the client crate")]
#![forbid(unsafe_code)]

mod blocks;
mod call;
pub mod codec;
mod footprint;
mod kind;
mod rank;
mod reduction;
mod signature;

pub use blocks::{Blocks, BlocksError, Buffer, Extents, Span};
pub use call::{CALL_WORDS, Call};
pub use footprint::{CallError, Footprint, MOST_BYTES, MOST_IN_FLIGHT, Side};
pub use kind::{CallKind, Class, Codes, Moves, Pairs, Sizes, TaggedCall};
pub use rank::{MAX_RANKS, Rank};
pub use reduction::{Element, Operator, Reduction, ReductionError};
pub use signature::{Signature, sizes_digest};
