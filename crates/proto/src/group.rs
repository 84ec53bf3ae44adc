//! A group as one of its service processes sees it: its members, the barriers among them, and the late ranks.

pub(crate) mod barrier;
pub(crate) mod lateness;
pub(crate) mod members;
