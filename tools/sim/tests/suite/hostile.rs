//! Scripts of hostile acts made of random bytes. `fuzz` plays such scripts made by a fuzzer.

use outboard_sim::hostile::{play, script};
use outboard_sim::{Faults, Scenario, run};

/// Number of scripts to play. A fuzzer starts from these scripts and plays more.
const SEEDS: u64 = 1000;
/// Least number of calls of a script that end well, on average. Seven calls are made before the first hostile act.
const LEAST_CALLS: u64 = 6;

#[test]
fn malformed_bytes_of_strangers_and_members_harm_no_other_group() {
    let well = |seed| play(&script(seed)).unwrap_or_else(|violation| panic!("seed {seed}: {violation}")).well;
    let well: u64 = (0..SEEDS).map(well).sum();
    assert!(well > SEEDS * LEAST_CALLS, "{well} calls ended well");
}

/// An attacker alters a datagram of every other train and is faster than the original. A run without authentication
/// shows that the attack does harm then.
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
        // The damage makes some datagrams seem to be of another group, or the receiver's own.
        assert!(sent > 0 && refused <= sent && refused * 10 >= sent * 8, "seed {seed}: {refused} of {sent}");
    }
    assert!((0..20).any(|seed| forged(seed, false).is_err()), "somebody alters payloads");
}
