//! Any words as descriptors of an order-triggered NIC.
#![no_main]

libfuzzer_sys::fuzz_target!(|words: &[u8]| outboard_fuzz::descriptors::play(words));
