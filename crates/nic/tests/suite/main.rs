//! All tests of engines from outside: one program, since each more is built for seconds.

mod datapath;
mod ordered;
