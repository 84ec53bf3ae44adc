//! Calls: the requests of a rank to its service process, described once for all crates.
//!
//! A [`Call`] is one rank's argument structure, as UCC has one for all collectives: a [`CallKind`], flags, addresses
//! and sizes. [`Call::footprint`] returns the bytes of the rank's memory that the call reads and writes. It also
//! returns the [`Signature`] on which all ranks of the call must agree. Rank, service process and relay all call this
//! crate, so only this crate has the special cases of kinds (first rank of an exclusive scan, contribution in place,
//! root). [`codec`] has the reader and the writer of all messages.
//!
//! Invariants: codes never change meaning; a decoded call encodes to the same numbers. No address, size or table makes
//! this crate panic. The crate never does IO and never sees payload.

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
pub use footprint::{CallError, Footprint, MOST_BYTES, MOST_IN_FLIGHT, MemoryRange};
pub use kind::{BlockSizes, CallClass, CallCodes, CallKind, CallMovement, ExchangePairs, TaggedCall};
pub use rank::{MAX_RANKS, Rank};
pub use reduction::{Element, Operator, Reduction, ReductionError};
pub use signature::{Signature, sizes_digest};
