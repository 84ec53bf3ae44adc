//! Reliable multicast: blocks cut into chunks (MC-1 to MC-3), recovery of missing chunks (MC-6), and the sending rate
//! (MC-8).

pub(crate) mod block;
pub(crate) mod chunks;
pub(crate) mod pacing;
