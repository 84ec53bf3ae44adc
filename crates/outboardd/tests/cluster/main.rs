//! Daemons on hosts of emulated clusters. This program also runs as the lab's processes, the ranks and the strangers,
//! so it has its own `main`.

mod hosts;
mod offloaded;
mod strangers;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::cluster::main(&[("hosts", hosts::TESTS), ("offloaded", offloaded::TESTS), ("strangers", strangers::TESTS)])
}
