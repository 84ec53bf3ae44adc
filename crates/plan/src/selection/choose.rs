//! Which algorithm carries out a call.
//!
//! The answer depends on the call, the group and its agreed tuning alone, by integer arithmetic, so all members of a
//! group find the same. Of equal times the first in [`Collective::choices`] wins. Where blocks can be pulled without a
//! barrier that is given up only for [`WORTH`] times the speed, since behind a barrier a late rank holds up everybody's
//! blocks.

use std::collections::BTreeMap;

use super::choice::{Choice, all};
use super::collective::Collective;
use super::cost::{Estimate, Terms};
use super::formula::{Case, terms};
use super::tuning::{Rule, Tuning};
use crate::algorithm::{Algorithm, WHOLE};
use crate::broadcast::MAX_SEGMENTS;

/// How many times as fast an exchange has to be for a barrier before it.
pub const WORTH: u128 = 2;

/// Ranks up to which groups without a tuning pull blocks: in simulated time, where messages cost no processor, that is
/// always fastest, and guessed costs of messages are no reason to wait for late ranks.
const PULLING: u32 = 16;

/// An algorithm, and why it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    /// What is done.
    pub choice: Choice,
    /// Why.
    pub because: Because,
}

/// Why an algorithm was chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Because {
    /// The choice of this index, from 0, of the collective in the tuning.
    Rule(usize),
    /// The cost model finds it fastest.
    Fastest,
    /// Blocks are pulled without a barrier (SP-5), and the cost model finds nothing [`WORTH`] times as fast, or no
    /// network that could be spared.
    Pulled,
}

/// One algorithm that a call may be carried out by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    /// Which.
    pub choice: Choice,
    /// What it spends.
    pub terms: Terms,
    /// How long it takes.
    pub time: Estimate,
}

impl Tuning {
    /// What applies where nobody has given a tuning: allgathers and broadcasts are multicast where they can be, else go
    /// round a ring and down a tree; groups of up to 16 ranks pull blocks.
    #[must_use]
    pub fn untuned(multicast: bool) -> Tuning {
        let (allgather, broadcast) = if multicast {
            let multicast = |chains| Algorithm::Multicast { chains, subgroups: 1 };
            (multicast(0), multicast(1))
        } else {
            (Algorithm::Ring { segment: WHOLE }, Algorithm::Binomial)
        };
        let rule = |ranks, collective, algorithm| {
            (collective, vec![Rule { up_to: None, ranks, choice: all(collective, algorithm) }])
        };
        let rules = BTreeMap::from([
            rule(Some(PULLING), Collective::Alltoall, Algorithm::Pull),
            rule(Some(PULLING), Collective::Gather, Algorithm::Linear),
            rule(Some(PULLING), Collective::Scatter, Algorithm::Linear),
            rule(None, Collective::Allgather, allgather),
            rule(None, Collective::Broadcast, broadcast),
        ]);
        Tuning { rules, ..Tuning::default() }
    }

    /// One algorithm for a call; `None` where it cannot carry it out: it needs multicast and there is none, or its
    /// segments are too many.
    #[must_use]
    pub fn candidate(&self, case: &Case, choice: Choice) -> Option<Candidate> {
        if choice.multicasts() && !case.multicast || !fits(choice, case) {
            return None;
        }
        let terms = terms(&self.cost, case, choice);
        Some(Candidate { choice, terms, time: self.cost.time(&terms)? })
    }

    /// All that the cost model chooses among for a call, in the order in which ties are decided.
    pub fn candidates(&self, case: &Case) -> impl Iterator<Item = Candidate> {
        case.collective.choices().iter().filter_map(move |choice| self.candidate(case, *choice))
    }

    /// The algorithm for a call. A choice set by hand counts where its algorithm can carry out the call; where none
    /// does the fastest is taken.
    #[must_use]
    pub fn choose(&self, case: &Case) -> Chosen {
        let possible = |rule: &Rule| self.candidate(case, rule.choice).is_some();
        let mut rules = self.rules.get(&case.collective).into_iter().flatten().enumerate();
        if let Some((index, rule)) = rules.find(|(_, rule)| rule.applies(case.ranks, case.bytes) && possible(rule)) {
            return Chosen { choice: rule.choice, because: Because::Rule(index) };
        }
        let fastest = self.candidates(case).min_by_key(|candidate| candidate.time);
        let fastest = fastest.expect("every collective has an algorithm that needs no multicast");
        let pulled = self.candidates(case).find(|candidate| candidate.choice.pulls() && candidate != &fastest);
        match pulled.filter(|pulled| case.hosts == 1 || fastest.time.0.saturating_mul(WORTH) > pulled.time.0) {
            Some(pulled) => Chosen { choice: pulled.choice, because: Because::Pulled },
            None => Chosen { choice: fastest.choice, because: Because::Fastest },
        }
    }
}

/// Whether there is a plan for so many bytes.
fn fits(choice: Choice, &Case { ranks, bytes, .. }: &Case) -> bool {
    match (choice.collective(), choice.algorithm()) {
        (Collective::Broadcast, Algorithm::Chain { segment } | Algorithm::DoubleTree { segment }) => {
            bytes.div_ceil(segment.max(1)) <= MAX_SEGMENTS
        }
        // What a rank packs and receives in as many rounds as a rank has bits lies in scratch.
        (Collective::Alltoall, Algorithm::Bruck { .. }) => {
            bytes.checked_mul(u64::from(ranks) * u64::from(2 * u32::BITS)).is_some()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn case(collective: Collective, ranks: u32, hosts: u32, bytes: u64) -> Case {
        Case { collective, ranks, hosts, bytes, multicast: true }
    }

    #[test]
    fn a_choice_by_hand_counts_where_it_applies_and_can_be_carried_out() {
        let text = "[[choice.allgather]]\nup-to = \"4 KiB\"\nalgorithm = \"bruck:ports=3\"\n\
                    [[choice.allgather]]\nalgorithm = \"multicast\"\n";
        let tuning: Tuning = text.parse().unwrap();
        let choose = |case| tuning.choose(&case);
        let small = choose(case(Collective::Allgather, 8, 8, 4096));
        assert_eq!(small.choice, all(Collective::Allgather, Algorithm::Bruck { ports: 3 }));
        assert_eq!(small.because, Because::Rule(0));
        assert_eq!(choose(case(Collective::Allgather, 8, 8, 4097)).because, Because::Rule(1));
        let without = choose(Case { multicast: false, ..case(Collective::Allgather, 8, 8, 4097) });
        assert_eq!(without.because, Because::Fastest);
        assert!(!without.choice.multicasts());
        assert_eq!(choose(case(Collective::Broadcast, 8, 8, 1)).because, Because::Fastest);
    }

    #[test]
    fn untuned_allgathers_and_broadcasts_are_multicast_where_they_can_be() {
        for (ranks, hosts) in [(1, 1), (4, 1), (4, 4), (64, 8)] {
            for bytes in [1, 4096, 16 << 20] {
                for collective in [Collective::Allgather, Collective::Broadcast] {
                    let all = case(collective, ranks, hosts, bytes);
                    assert!(Tuning::untuned(true).choose(&all).choice.multicasts());
                    let none = Case { multicast: false, ..all };
                    assert_eq!(Tuning::untuned(false).choose(&none).because, Because::Rule(0));
                    assert!(!Tuning::untuned(false).choose(&none).choice.multicasts());
                }
            }
        }
    }

    /// SP-5: nobody waits for a barrier that does not pay, and on one host none does.
    #[test]
    fn blocks_are_pulled_where_a_barrier_does_not_pay() {
        let tuning = Tuning::default();
        for collective in [Collective::Alltoall, Collective::Gather, Collective::Scatter] {
            for bytes in [8, 1 << 20] {
                for (ranks, hosts) in [(1, 1), (2, 2), (4, 4), (8, 8), (16, 16), (64, 1)] {
                    let chosen = tuning.choose(&case(collective, ranks, hosts, bytes));
                    assert!(chosen.choice.pulls(), "{collective} among {ranks} on {hosts}: {chosen:?}");
                }
            }
            let large = tuning.choose(&case(collective, 64, 64, 1 << 20)).choice;
            assert!(large.pulls(), "{large}");
        }
        let untuned = Tuning::untuned(true);
        assert!(untuned.choose(&case(Collective::Alltoall, 16, 4, 8)).choice.pulls());
        assert!(!untuned.choose(&case(Collective::Alltoall, 64, 16, 8)).choice.pulls());
        let small = tuning.choose(&case(Collective::Alltoall, 64, 64, 8));
        assert_eq!(
            small,
            Chosen { choice: all(Collective::Alltoall, Algorithm::Bruck { ports: 1 }), because: Because::Fastest }
        );
    }

    /// SP-7: where hosts have several ranks, their vectors meet before anything leaves them.
    #[test]
    fn hosts_of_several_ranks_reduce_by_themselves_first() {
        for (collective, bytes) in [
            (Collective::Reduce, 4 << 10),
            (Collective::Reduce, 256 << 10),
            (Collective::ReduceScatter, 4 << 10),
            (Collective::ReduceScatter, 1 << 20),
        ] {
            let chosen = Tuning::untuned(true).choose(&case(collective, 16, 4, bytes)).choice.to_string();
            assert!(chosen.starts_with("hierarchical"), "{collective} of {bytes}: {chosen}");
        }
    }

    /// Short vectors take few rounds, long ones few bytes; and nothing overflows.
    #[test]
    fn the_cost_model_goes_from_few_rounds_to_few_bytes() {
        let tuning = Tuning::default();
        let name = |collective, bytes, multicast| {
            let case = Case { multicast, ..case(collective, 16, 16, bytes) };
            tuning.choose(&case).choice.to_string()
        };
        assert_eq!(name(Collective::Allreduce, 8, false), "recursive-doubling");
        assert_eq!(name(Collective::Allreduce, 64 << 10, false), "rabenseifner");
        assert_eq!(name(Collective::Allreduce, 64 << 20, false), "ring:segment=65536");
        assert!(name(Collective::Broadcast, 8, false).starts_with("k-nomial"));
        assert!(!name(Collective::Broadcast, 64 << 20, false).starts_with("k-nomial"));
        assert!(name(Collective::Broadcast, 64 << 20, true).starts_with("multicast"));
        assert_eq!(name(Collective::Reduce, 8, false), "binomial");
        assert_eq!(name(Collective::Reduce, 64 << 20, false), "chain:segment=16384");
        for collective in Collective::ALL {
            let most = case(collective, crate::MAX_RANKS, crate::MAX_RANKS, u64::MAX);
            assert!(tuning.candidates(&most).count() > 0);
        }
    }
}
