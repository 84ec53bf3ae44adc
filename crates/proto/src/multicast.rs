//! Reliable multicast: blocks cut into chunks (MC-1 to MC-3), what is missing of them (MC-6), and how fast they leave
//! (MC-8).

pub(crate) mod block;
pub(crate) mod chunks;
pub(crate) mod pacing;
