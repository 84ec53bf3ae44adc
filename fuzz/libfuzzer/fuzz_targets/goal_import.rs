//! Any text against the reader of GOAL schedules.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| outboard_fuzz::play("goal_import", text));
