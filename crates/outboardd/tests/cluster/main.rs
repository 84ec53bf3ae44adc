//! Daemons on hosts of emulated clusters. The program has its own `main`, because it also runs as the lab's processes,
//! as ranks and as strangers.

mod hosts;
mod offloaded;
mod strangers;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

fn main() -> ExitCode {
    let modules = [("hosts", hosts::TESTS), ("offloaded", offloaded::TESTS), ("strangers", strangers::TESTS)];
    support::cluster::main(&modules, &[("hosts", hosts::OF_ROOT)])
}
