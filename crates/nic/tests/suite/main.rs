//! All tests of engines from outside, in one program.

mod datapath;
mod ordered;
