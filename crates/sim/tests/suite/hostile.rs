//! Scripts of hostile acts that random bytes write: `fuzz` plays the same with a fuzzer's.

use outboard_sim::hostile::{play, script};
use outboard_sim::{Faults, Scenario, run};

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

/// Somebody alters a datagram of every other train and is faster than the original. The same without authentication
/// shows that it matters.
#[test]
fn forged_datagrams_are_counted_and_change_no_byte() {
    let forged = |seed, multicast_auth| {
        let mut scenario = Scenario::allgather(4, 100_000).with_faults(Faults { forgery: 0.5, ..Faults::none() });
        scenario.config.multicast_auth = multicast_auth;
        run(&scenario, seed)
    };
    for seed in 0..20 {
        let outcome = forged(seed, true).unwrap_or_else(|failure| panic!("{failure}"));
        let sent: u64 = outcome.forged.iter().sum();
        let refused: u64 = outcome.counters.iter().map(|counters| counters.datagrams_refused).sum();
        // The damage makes some seem to be of another group, or the receiver's own.
        assert!(sent > 0 && refused <= sent && refused * 10 >= sent * 8, "seed {seed}: {refused} of {sent}");
    }
    assert!((0..20).any(|seed| forged(seed, false).is_err()), "somebody alters payloads");
}

/// A service process tells one member that its rank has left, and the other that the rank left after a call of the far
/// future. The other takes the rank for one that has done its part, and waits for the first. Script of seed 7,265,920,
/// before there was `Waits`, without what it does not need.
#[test]
fn who_was_told_something_else_hears_what_fails_at_others() {
    let script = [
        0, 0, 0, 0, 2, 0, 1, 2, 0, 2, 2, 0, 0, 2, 1, 0, 2, 1, 1, 2, 1, 2, 2, 1, 3, 1, 1, 0, 1, 2, 1, 0, 4, 8, 2, 162,
        1, 2, 0, 0, 9, 2, 2, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 10, 1, 1,
    ];
    play(&script).expect("all calls end");
}
