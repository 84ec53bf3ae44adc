//! Hostile bytes on a TCP connection between service processes, before and behind its handshake.
#![no_main]

libfuzzer_sys::fuzz_target!(|script: &[u8]| outboard_fuzz::play("hostile_connection", script));
