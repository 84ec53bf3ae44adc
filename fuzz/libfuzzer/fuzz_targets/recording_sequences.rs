//! Sequences of recordings, calls and tagged messages against service processes that are ours, and beside one that is
//! not.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::scripts::sequence(script));
