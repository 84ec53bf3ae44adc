//! The fuzz targets. Most take the fuzzer's bytes as a script of hostile acts, and play it against code that also
//! serves honest ranks. They panic when the honest ranks are harmed. `texts` takes the bytes as a text.
//!
//! Scripts for the simulator and the fabric run in virtual time. Only the fresh keys of `hostile_connection` are not
//! deterministic. `rank` runs a whole daemon: only the daemon's progress at the next act depends on the
//! scheduler. `make test` plays every target over seeded inputs, `make fuzz` lets libFuzzer search. Nothing here is
//! shipped.

pub mod rank;
pub mod seeds;
pub mod texts;

use std::fmt::Display;

/// A function that takes any bytes and panics when they did harm.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the program in `libfuzzer/fuzz_targets` and of the folder in `seeds`.
    pub name: &'static str,
    /// Plays one input.
    pub play: fn(&[u8]),
    /// Makes the inputs with which fuzzing begins.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "goal_import", play: texts::schedule, seeds: seeds::schedules },
    Target {
        name: "hostile_connection",
        play: outboard_fabric::hostile::play,
        seeds: outboard_fabric::hostile::scripts,
    },
    Target { name: "hostile_datagrams", play: datagrams, seeds: seeds::datagrams },
    Target { name: "hostile_rank", play: rank::play, seeds: seeds::rank },
    Target { name: "plan_text", play: texts::plan, seeds: seeds::plans },
    Target { name: "profile_text", play: texts::profile, seeds: seeds::profiles },
    Target { name: "recording_sequences", play: sequence, seeds: seeds::sequences },
];

/// Plays an input of the target with this name.
pub fn play(name: &str, input: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a target");
    (target.play)(input);
}

fn datagrams(script: &[u8]) {
    panic_on_violation(outboard_sim::hostile::play(script));
}

fn sequence(script: &[u8]) {
    panic_on_violation(outboard_sim::sequences::play(script));
}

fn panic_on_violation<T>(played: Result<T, impl Display>) {
    if let Err(violation) = played {
        panic!("{violation}");
    }
}
