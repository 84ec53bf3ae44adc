//! What a group is to one of its service processes: who is in it, the barriers among them, and who is late.

pub(crate) mod barrier;
pub(crate) mod lateness;
pub(crate) mod members;
