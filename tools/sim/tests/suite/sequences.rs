//! Sequences of recordings, calls and messages made of random bytes (GP-1, GP-2). `fuzz` plays such scripts made by a
//! fuzzer.

use outboard_sim::sequences::{Tally, play};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes of the longest script.
const LONGEST: usize = 900;
/// Scripts to play. On average each has one call of a recording that ends well.
const SEEDS: u64 = 2000;
/// Rejected recordings and failed calls altogether: one in four scripts has one.
const LEAST_WRONG: u64 = SEEDS / 4;

fn script(seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let len = rng.random_range(0..LONGEST);
    (0..len).map(|_| rng.random()).collect()
}

#[test]
fn sequences_come_to_what_their_reference_says() {
    let mut sum = Tally::default();
    for seed in 0..SEEDS {
        let tally = play(&script(seed)).unwrap_or_else(|breach| panic!("seed {seed}: {breach}"));
        sum.recorded += tally.recorded;
        sum.refused += tally.refused;
        sum.completed += tally.completed;
        sum.failed += tally.failed;
        sum.recorded_completed += tally.recorded_completed;
    }
    assert!(sum.recorded_completed > SEEDS && sum.refused > LEAST_WRONG && sum.failed > LEAST_WRONG, "{sum:?}");
}

/// Found by fuzzing: empty recordings with more memory than any rank has.
#[test]
fn memory_that_no_step_names_is_not_needed() {
    use outboard_sim::sequences::acts::{CALL_ALL, RECORD};
    let record = [RECORD, 0, 0, 0, 0, 0, 0xf4, 0xe0, 0];
    let call = [CALL_ALL, 0, 0, 0];
    let tally = play(&[&[0; 7][..], &record, &call].concat()).unwrap_or_else(|breach| panic!("{breach}"));
    assert_eq!(tally.recorded, 1);
}
