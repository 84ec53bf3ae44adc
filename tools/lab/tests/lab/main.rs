//! Starts real emulated clusters. Tests namespaces, links, counters, loss, and that nothing is left behind.
//!
//! Has its own `main`, because a lab's processes execute the program that starts the lab again.

mod dpu;
mod life;
mod network;
mod programs;
mod traffic;

use libtest_mimic::{Arguments, Trial};
use outboard_lab::{Lab, LabSpec};
use std::process::{Command, ExitCode, Stdio};

fn main() -> ExitCode {
    outboard_lab::holder_main_if_requested();
    traffic::run_if_requested();
    life::run_if_requested();
    let state = tempfile::tempdir().expect("a directory for the state of detached labs");
    // SAFETY: no other thread runs yet.
    unsafe { std::env::set_var("XDG_RUNTIME_DIR", state.path()) };
    for number in [libc::SIGINT, libc::SIGHUP] {
        // A shell cannot trap signals that were ignored at its start, as in the background of a script.
        // SAFETY: the default disposition runs no code of this program.
        unsafe { libc::signal(number, libc::SIG_DFL) };
    }
    let test = |(name, body): (&'static str, fn())| {
        Trial::test(name, move || {
            body();
            Ok(())
        })
    };
    let tests = programs::TESTS.iter().chain(network::TESTS).chain(life::TESTS).chain(dpu::TESTS).copied().map(test);
    // `make soak` runs the soak tests.
    let soak = network::SOAK.iter().copied().map(test).map(|trial| trial.with_ignored_flag(true));
    libtest_mimic::run(&Arguments::from_args(), tests.chain(soak).collect()).exit_code()
}

fn start(shape: &str) -> Lab {
    start_spec(&shape.parse().expect("a lab's shape"))
}

fn start_spec(spec: &LabSpec) -> Lab {
    Lab::start(spec).unwrap_or_else(|error| panic!("{error}; {}", error.remedy()))
}

/// A shell command line inside a host.
fn shell(lab: &Lab, host: &str, line: &str) -> Command {
    let mut command = lab.command(host, "sh").expect("a host of the lab");
    command.arg("-c").arg(line).stdin(Stdio::null());
    command
}

/// Output of a shell command line inside a host; the command must succeed.
fn output(lab: &Lab, host: &str, line: &str) -> String {
    let output = shell(lab, host, line).output().expect("run the client");
    assert!(output.status.success(), "{line} in {host}: {output:?}");
    String::from_utf8(output.stdout).expect("text").trim_end().to_owned()
}
