//! Hostile bytes from the network against service processes that also serve honest ranks.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::play("hostile_datagrams", script));
