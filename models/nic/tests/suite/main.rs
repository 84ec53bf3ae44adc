//! All integration tests of engines, in one program.

mod datapath;
mod ordered;
