//! Any text against the reader of plans.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| outboard_fuzz::play("plan_text", text));
