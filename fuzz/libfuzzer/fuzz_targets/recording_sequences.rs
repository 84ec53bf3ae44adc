//! Sequences of recordings, calls and tagged messages against service processes.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::play("recording_sequences", script));
