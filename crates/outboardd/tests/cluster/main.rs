//! Daemons on hosts of emulated clusters. This program is also the lab's processes, the ranks and the strangers, so it
//! has a `main` of its own.

mod hosts;
mod offloaded;
mod strangers;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    support::cluster::main(&[("hosts", hosts::TESTS), ("offloaded", offloaded::TESTS), ("strangers", strangers::TESTS)])
}
