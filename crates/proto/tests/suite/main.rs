//! All tests of the machines: one program, since each more is built for seconds.

mod allocations;
mod documentation;
mod exchange;
mod hostile;
mod peers;
mod regressions;
mod support;
mod tagged;
mod turns;
mod wire;
