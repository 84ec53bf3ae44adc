//! The Rust and the C interface against a service process that lives in the test.

mod c_interface;
mod operators;
mod rank;
mod rooted;
mod service;
mod system_calls;
