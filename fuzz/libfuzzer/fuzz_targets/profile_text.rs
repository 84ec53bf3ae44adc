//! Any text against the reader of cost profiles.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &[u8]| outboard_fuzz::play("profile_text", text));
