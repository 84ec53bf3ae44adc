//! Scripts of hostile acts that random bytes write: `fuzz` plays the same with a fuzzer's.

use outboard_sim::hostile::{play, script};

/// Scripts played; a fuzzer plays more, from these on.
const SEEDS: u64 = 1000;
/// Calls of a script that end well, on average: the seven that are made before anything hostile is done.
const LEAST_CALLS: u64 = 6;

#[test]
fn the_honest_are_not_harmed() {
    let well = |seed| play(&script(seed)).unwrap_or_else(|breach| panic!("seed {seed}: {breach}")).well;
    let well: u64 = (0..SEEDS).map(well).sum();
    assert!(well > SEEDS * LEAST_CALLS, "{well} calls ended well");
}

/// Found by the fuzzer: the forged offer had more entries than any sender may write.
#[test]
fn a_forged_offer_is_no_longer_than_an_offer_can_be() {
    let script = [
        0, 2, 0, 0, 2, 0, 1, 2, 0, 2, 2, 1, 3, 1, 4, 0, 0, 0, 2, 1, 173, 0, 0, 1, 1, 2, 0, 0, 2, 0, 0, 3, 255, 255,
        255, 255, 255, 255, 255, 11, 0, 2, 1, 2, 0, 1, 1, 1, 255, 255, 255, 0, 0, 2, 1, 2, 0, 1, 1, 1, 2, 9, 1, 2, 0,
        251, 2, 8, 2, 5, 9, 1, 4, 9, 2, 1, 3,
    ];
    play(&script).expect("the honest are not harmed");
}
