//! All tests of the machines, in one program.

mod allocations;
mod documentation;
mod exchange;
mod peers;
mod regressions;
mod support;
mod tagged;
mod turns;
mod wire;
