//! The fuzz targets. Most take the fuzzer's bytes as a script of hostile acts, play it against code that also serves
//! honest ranks, and panic when the honest ranks are harmed; `texts` takes the bytes as a text, `descriptors` as words.
//!
//! `scripts` play in virtual time and are deterministic, but for the fresh keys of `scripts::connection`; `rank` runs a
//! whole daemon and depends on the scheduler only in how far the daemon has got when the next act comes. `make test`
//! plays every target over seeded inputs, `make fuzz` lets libFuzzer search. Nothing here is shipped.

pub mod descriptors;
pub mod rank;
pub mod scripts;
pub mod seeds;
pub mod texts;

/// A function that takes any bytes and panics when they did harm.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The name of the program in `libfuzzer/fuzz_targets` and of the folder in `seeds`.
    pub name: &'static str,
    /// Plays one input.
    pub play: fn(&[u8]),
    /// Makes the inputs that fuzzing begins with.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

/// All targets.
pub const TARGETS: [Target; 9] = [
    Target { name: "goal_import", play: texts::schedule, seeds: seeds::schedules },
    Target { name: "hostile_connection", play: scripts::connection, seeds: outboard_fabric::hostile::scripts },
    Target { name: "hostile_datagrams", play: scripts::datagrams, seeds: seeds::datagrams },
    Target { name: "hostile_rank", play: rank::play, seeds: seeds::rank },
    Target { name: "nic_descriptors", play: descriptors::play, seeds: descriptors::seeds },
    Target { name: "nic_packets", play: scripts::packets, seeds: seeds::packets },
    Target { name: "plan_text", play: texts::plan, seeds: seeds::plans },
    Target { name: "profile_text", play: texts::profile, seeds: seeds::profiles },
    Target { name: "recording_sequences", play: scripts::sequence, seeds: seeds::sequences },
];
