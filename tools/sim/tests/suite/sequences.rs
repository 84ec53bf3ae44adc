//! Sequences of recordings, calls and messages made of random bytes (GP-1, GP-2). `fuzz` plays such scripts made by a
//! fuzzer.

use outboard_sim::sequences::{SequenceCounts, play};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Bytes of the longest script.
const LONGEST: usize = 900;
/// Number of scripts to play. On average each script has one call of a recording that ends well.
const SEEDS: u64 = 2000;
/// Least number of rejected recordings and failed calls together, one for every four scripts.
const LEAST_WRONG: u64 = SEEDS / 4;

fn script(seed: u64) -> Vec<u8> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    let len = rng.random_range(0..LONGEST);
    (0..len).map(|_| rng.random()).collect()
}

#[test]
fn sequences_agree_with_their_reference() {
    let mut sum = SequenceCounts::default();
    for seed in 0..SEEDS {
        let tally = play(&script(seed)).unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        sum.recorded += tally.recorded;
        sum.refused += tally.refused;
        sum.completed += tally.completed;
        sum.failed += tally.failed;
        sum.recorded_completed += tally.recorded_completed;
    }
    assert!(sum.recorded_completed > SEEDS && sum.refused > LEAST_WRONG && sum.failed > LEAST_WRONG, "{sum:?}");
}

/// A fuzzer found this failure: empty recordings with more memory than any rank has.
#[test]
fn unnamed_memory_of_a_recording_is_not_needed() {
    use outboard_sim::sequences::acts::{CALL_ALL, RECORD};
    let record = [RECORD, 0, 0, 0, 0, 0, 0xf4, 0xe0, 0];
    let call = [CALL_ALL, 0, 0, 0];
    let tally = play(&[&[0; 7][..], &record, &call].concat()).unwrap_or_else(|violation| panic!("{violation}"));
    assert_eq!(tally.recorded, 1);
}
