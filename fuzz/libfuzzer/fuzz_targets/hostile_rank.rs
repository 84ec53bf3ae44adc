//! A hostile rank against a daemon that also serves honest ranks.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::play("hostile_rank", script));
