//! Hostile packets against NICs that also serve honest jobs.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::scripts::packets(script));
