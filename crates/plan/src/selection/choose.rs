//! Chooses the algorithm of a call.
//!
//! The result depends only on the call, the group and its agreed tuning, by integer arithmetic, so all members of a
//! group make the same choice. If times are equal, the first of [`Collective::choices`] wins. Behind a barrier, a late
//! rank delays the blocks of all ranks. So if blocks can be pulled without a barrier, an algorithm with a barrier must
//! be [`WORTH`] times as fast.

use std::collections::BTreeMap;

use outboard_units::Size;

use super::choice::{Choice, all, led};
use super::collective::Collective;
use super::cost::{Cost, CostTerms, Estimate, Links};
use super::formula::{Case, terms};
use super::tuning::{Rule, Tuning};
use crate::algorithm::{Algorithm, WHOLE};
use crate::broadcast::MAX_SEGMENTS;

/// The speed-up that an exchange must reach to be worth a barrier before it.
pub const WORTH: u128 = 2;

/// A group without a tuning pulls blocks if it has at most this many ranks. In simulated time, where messages cost no
/// processor time, pulling is always fastest. Guessed costs of messages are no reason to wait for late ranks.
const PULLING: u32 = 16;

/// The largest block, in bytes, that is multicast on fast links, too; such blocks cost little processor time.
const SMALL: u64 = 16 << 10;

/// Replaces `SMALL` among more ranks than [`FEW`]. In a ring, shorter blocks spend more time waiting from rank to rank
/// than being sent.
const LARGE: u64 = 128 << 10;
const FEW: u32 = 16;

/// The group size up to which multicast saves nothing (MC-1). With one receiver a multicast costs the processors as
/// much as with more receivers; messages cost half as much. A broadcast of up to [`LARGE`] bytes is still faster by
/// multicast.
const PAIR: u32 = 2;

/// The most ranks for which a broadcast from rank to rank takes less processor time than a multicast on fast links.
/// Measured ratio: 0.5 to 0.95 among four hosts, 1.3 among eight.
const FEWEST: u32 = 4;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chosen {
    pub choice: Choice,
    pub reason: ChoiceReason,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChoiceReason {
    /// The tuning's choice for the collective with this index, from 0.
    Rule(usize),
    /// The cost model finds this choice fastest.
    Fastest,
    /// Blocks are pulled without a barrier (SP-5). The cost model finds no choice [`WORTH`] times as fast, or no
    /// network traffic to save.
    Pulled,
}

/// A possible algorithm of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Candidate {
    pub choice: Choice,
    pub terms: CostTerms,
    pub time: Estimate,
}

impl Tuning {
    /// The tuning that applies if a group has none. Allgathers and broadcasts are multicast if possible; else
    /// allgathers go round a ring. Groups of up to 16 ranks pull blocks. Between two ranks, and on fast links, large
    /// blocks go from rank to rank. That takes half the processor time of multicasts. Among many ranks that wait for
    /// one another it would take more, so such groups multicast.
    pub fn untuned(links: Links) -> Tuning {
        let rule = |up_to: Option<u64>, ranks, choice| Rule { up_to: up_to.map(Size), ranks, choice };
        let pulled = |collective, algorithm| (collective, vec![rule(None, Some(PULLING), all(collective, algorithm))]);
        let multicasts = |collective, chains| all(collective, Algorithm::Multicast { chains, subgroups: 1 });
        let (gathers, sends) = (multicasts(Collective::Allgather, 0), multicasts(Collective::Broadcast, 1));
        let ring = Algorithm::Ring { segment: WHOLE };
        let ring_of_hosts = led(Collective::Allgather, ring);
        let chain = all(Collective::Broadcast, Algorithm::Chain { segment: 64 << 10 });
        let (allgather, broadcast) = match links {
            Links::Slow => (
                vec![
                    rule(None, Some(PAIR), ring_of_hosts),
                    rule(None, None, gathers),
                    rule(None, None, all(Collective::Allgather, ring)),
                ],
                vec![
                    rule(Some(LARGE), None, sends),
                    rule(None, Some(PAIR), all(Collective::Broadcast, Algorithm::Binomial)),
                    rule(None, None, sends),
                ],
            ),
            Links::Fast => (
                vec![
                    rule(Some(SMALL), None, gathers),
                    rule(None, Some(FEW), ring_of_hosts),
                    rule(Some(LARGE), None, gathers),
                    rule(None, None, ring_of_hosts),
                ],
                vec![rule(Some(SMALL), None, sends), rule(None, Some(FEWEST), chain), rule(None, None, sends)],
            ),
        };
        let rules = BTreeMap::from([
            pulled(Collective::Alltoall, Algorithm::Pull),
            pulled(Collective::Gather, Algorithm::Linear),
            pulled(Collective::Scatter, Algorithm::Linear),
            (Collective::Allgather, allgather),
            (Collective::Broadcast, broadcast),
        ]);
        Tuning { rules, cost: Cost::on(links) }
    }

    /// The candidate for a call and a choice. `None` if the choice cannot carry out the call: the choice needs
    /// multicast and there is none, or the choice has too many segments.
    pub fn candidate(&self, case: &Case, choice: Choice) -> Option<Candidate> {
        if choice.multicasts() && !case.multicast || !fits(choice, case) {
            return None;
        }
        let terms = terms(&self.cost, case, choice);
        Some(Candidate { choice, terms, time: self.cost.time(&terms)? })
    }

    /// All candidates of the cost model for a call, in the order in which ties are decided.
    pub fn candidates(&self, case: &Case) -> impl Iterator<Item = Candidate> {
        case.collective.choices().iter().filter_map(move |choice| self.candidate(case, *choice))
    }

    /// The algorithm for a call. A choice set by hand applies if its algorithm can carry out the call; else the fastest
    /// wins.
    pub fn choose(&self, case: &Case) -> Chosen {
        let possible = |rule: &Rule| self.candidate(case, rule.choice).is_some();
        let mut rules = self.rules.get(&case.collective).into_iter().flatten().enumerate();
        if let Some((index, rule)) = rules.find(|(_, rule)| rule.applies(case.ranks, case.bytes) && possible(rule)) {
            return Chosen { choice: rule.choice, reason: ChoiceReason::Rule(index) };
        }
        let fastest = self.candidates(case).min_by_key(|candidate| candidate.time);
        let fastest = fastest.expect("every collective has an algorithm that needs no multicast");
        let pulled = self.candidates(case).find(|candidate| candidate.choice.pulls() && candidate != &fastest);
        match pulled.filter(|pulled| case.hosts == 1 || fastest.time.0.saturating_mul(WORTH) > pulled.time.0) {
            Some(pulled) => Chosen { choice: pulled.choice, reason: ChoiceReason::Pulled },
            None => Chosen { choice: fastest.choice, reason: ChoiceReason::Fastest },
        }
    }
}

/// Whether a plan exists for this many bytes.
fn fits(choice: Choice, &Case { ranks, bytes, .. }: &Case) -> bool {
    match (choice.collective(), choice.algorithm()) {
        (Collective::Broadcast, Algorithm::Chain { segment } | Algorithm::DoubleTree { segment }) => {
            bytes.div_ceil(segment.max(1)) <= MAX_SEGMENTS
        }
        // Scratch holds the blocks that a rank packs and receives. There are as many rounds as a rank number has bits.
        (Collective::Alltoall, Algorithm::Bruck { .. }) => {
            bytes.checked_mul(u64::from(ranks) * u64::from(2 * u32::BITS)).is_some()
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use outboard_units::Rate;

    use super::*;
    use crate::selection::chosen;

    fn case(collective: Collective, ranks: u32, hosts: u32, bytes: u64) -> Case {
        Case { collective, ranks, hosts, bytes, multicast: true, links: Links::Slow }
    }

    #[test]
    fn rule_wins_where_it_applies_and_its_algorithm_fits() {
        let text = "[[choice.allgather]]\nup-to = \"4 KiB\"\nalgorithm = \"bruck:ports=3\"\n\
                    [[choice.allgather]]\nalgorithm = \"multicast\"\n";
        let tuning: Tuning = text.parse().unwrap();
        let choose = |case| tuning.choose(&case);
        let small = choose(case(Collective::Allgather, 8, 8, 4096));
        assert_eq!(small.choice, all(Collective::Allgather, Algorithm::Bruck { ports: 3 }));
        assert_eq!(small.reason, ChoiceReason::Rule(0));
        assert_eq!(choose(case(Collective::Allgather, 8, 8, 4097)).reason, ChoiceReason::Rule(1));
        let without = choose(Case { multicast: false, ..case(Collective::Allgather, 8, 8, 4097) });
        assert_eq!(without.reason, ChoiceReason::Fastest);
        assert!(!without.choice.multicasts());
        assert_eq!(choose(case(Collective::Broadcast, 8, 8, 1)).reason, ChoiceReason::Fastest);
    }

    #[test]
    fn untuned_allgathers_and_broadcasts_are_multicast_where_they_can_be() {
        for (ranks, hosts) in [(3, 1), (4, 1), (4, 4), (64, 8)] {
            for bytes in [1, 4096, 16 << 20] {
                for collective in [Collective::Allgather, Collective::Broadcast] {
                    let all = case(collective, ranks, hosts, bytes);
                    let untuned = Tuning::untuned(Links::Slow);
                    assert!(untuned.choose(&all).choice.multicasts());
                    let none = untuned.choose(&Case { multicast: false, ..all });
                    assert!(!none.choice.multicasts());
                    let ring = collective == Collective::Allgather;
                    assert_eq!(none.reason, if ring { ChoiceReason::Rule(2) } else { ChoiceReason::Fastest });
                }
            }
        }
    }

    /// MC-1: a multicast would have one receiver.
    #[test]
    fn large_calls_of_two_ranks_are_not_multicast() {
        for links in [Links::Slow, Links::Fast] {
            for collective in [Collective::Allgather, Collective::Broadcast] {
                let multicasts = |ranks, bytes| {
                    let case = Case { links, ..case(collective, ranks, 2, bytes) };
                    Tuning::untuned(links).choose(&case).choice.multicasts()
                };
                assert!(!multicasts(2, 256 << 10), "{collective} on {links:?}");
                assert_eq!(multicasts(4, 256 << 10), links == Links::Slow, "{collective}");
            }
        }
    }

    /// Large blocks go by messages, also if ranks share hosts. Small blocks, and groups of many ranks, use multicast as
    /// on slow links.
    #[test]
    fn on_fast_links_large_blocks_are_not_multicast() {
        assert_eq!(Links::between(2, Rate::bits_per_second(2_500_000_000)), Links::Slow);
        assert_eq!(Links::between(2, Rate::bits_per_second(5_000_000_000)), Links::Fast);
        assert_eq!(Links::between(1, Rate::bits_per_second(5_000_000_000)), Links::Slow);
        let untuned = Tuning::untuned(Links::Fast);
        let name = |collective, ranks, bytes| {
            let case = Case { links: Links::Fast, ..case(collective, ranks, ranks.min(4), bytes) };
            let (choice, small) = chosen(None, &case, 0, false);
            assert_eq!((choice, small), (untuned.choose(&case).choice, false));
            choice.to_string()
        };
        assert_eq!(name(Collective::Allgather, 4, 16 << 10), "multicast:chains=0,subgroups=1");
        assert_eq!(name(Collective::Allgather, 8, 64 << 10), "hierarchical:leaders=1,between=ring");
        assert_eq!(name(Collective::Allgather, 64, 64 << 10), "multicast:chains=0,subgroups=1");
        assert_eq!(name(Collective::Allgather, 64, 1 << 20), "hierarchical:leaders=1,between=ring");
        assert_eq!(name(Collective::Broadcast, 4, 1 << 20), "chain:segment=65536");
        assert_eq!(name(Collective::Broadcast, 8, 1 << 20), "multicast:subgroups=1");
        assert_eq!(name(Collective::Allreduce, 4, 1 << 20), "ring:segment=65536");
        let uneven = Case { links: Links::Fast, ..case(Collective::Allgather, 4, 4, 1 << 20) };
        assert_eq!(chosen(None, &uneven, 0, true).0.to_string(), "ring");
    }

    /// SP-5: no rank waits for a barrier that does not pay, and on one host no barrier pays.
    #[test]
    fn blocks_are_pulled_unless_a_barrier_halves_the_time() {
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
        let untuned = Tuning::untuned(Links::Slow);
        assert!(untuned.choose(&case(Collective::Alltoall, 16, 4, 8)).choice.pulls());
        assert!(!untuned.choose(&case(Collective::Alltoall, 64, 16, 8)).choice.pulls());
        let small = tuning.choose(&case(Collective::Alltoall, 64, 64, 8));
        assert_eq!(
            small,
            Chosen { choice: all(Collective::Alltoall, Algorithm::Bruck { ports: 1 }), reason: ChoiceReason::Fastest }
        );
    }

    /// SP-7: if hosts have several ranks, their vectors are combined before any vector leaves the host.
    #[test]
    fn hosts_of_several_ranks_reduce_by_themselves_first() {
        for (collective, bytes) in [
            (Collective::Reduce, 4 << 10),
            (Collective::Reduce, 256 << 10),
            (Collective::ReduceScatter, 4 << 10),
            (Collective::ReduceScatter, 1 << 20),
        ] {
            let chosen = Tuning::untuned(Links::Slow).choose(&case(collective, 16, 4, bytes)).choice.to_string();
            assert!(chosen.starts_with("hierarchical"), "{collective} of {bytes}: {chosen}");
        }
    }

    /// Short vectors take few rounds, long vectors few bytes; no computation overflows.
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
