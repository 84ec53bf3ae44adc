//! The choice of an algorithm for a call, small or not, with a tuning or without.

use std::sync::LazyLock;

use super::choice::all;
use super::{Candidate, Case, Choice, ChoiceReason, Chosen, Collective, Cost, Links, Tuning};
use crate::algorithm::Algorithm;

/// The tunings for groups that have no tuning.
struct Untuned {
    large: Tuning,
    /// The tuning for small calls.
    small: Tuning,
}

impl Untuned {
    fn new(links: Links) -> Self {
        Untuned { large: Tuning::untuned(links), small: Tuning { cost: Cost::on(links), ..Tuning::default() } }
    }

    fn on(links: Links) -> &'static Untuned {
        static SLOW: LazyLock<Untuned> = LazyLock::new(|| Untuned::new(Links::Slow));
        static FAST: LazyLock<Untuned> = LazyLock::new(|| Untuned::new(Links::Fast));
        match links {
            Links::Slow => &SLOW,
            Links::Fast => &FAST,
        }
    }
}

/// The algorithm of a call, and whether the call is small (MC-9). A small call moves between 1 and `eager_bytes` bytes
/// in all. A small call is not multicast and its blocks are not pulled, so its messages can carry their bytes and no
/// rank waits for a barrier. A tuning that multicasts small calls is followed. Blocks of different sizes (`uneven`) go
/// one by one, and such a call is never small: messages before the peer's call would need sizes that the peer does not
/// know yet.
pub fn chosen(tuning: Option<&Tuning>, case: &Case, eager_bytes: u64, uneven: bool) -> (Choice, bool) {
    let of_all = case.bytes.checked_mul(case.ranks.into());
    let moved = match case.collective {
        Collective::Broadcast
        | Collective::Reduce
        | Collective::Allreduce
        | Collective::ReduceScatter
        | Collective::Scan => Some(case.bytes),
        Collective::Allgather | Collective::Alltoall => of_all,
        // Gather and scatter: ranks wait only for the root, and blocks are pulled without a barrier anyway. A barrier
        // is itself one.
        Collective::Gather | Collective::Scatter | Collective::Barrier => None,
    };
    // A call that moves nothing would complete without noticing that other ranks called something else.
    let few = !uneven && moved.is_some_and(|bytes| bytes > 0 && bytes <= eager_bytes);
    let (tuning, case) = match tuning {
        Some(tuning) => (tuning, *case),
        None if few => (&Untuned::on(case.links).small, Case { multicast: false, ..*case }),
        None => (&Untuned::on(case.links).large, *case),
    };
    let choice = match tuning.choose(&case) {
        Chosen { choice, reason: ChoiceReason::Rule(_) } => choice,
        _ if few && case.collective == Collective::Alltoall => exchanged(tuning, &case),
        Chosen { choice, .. } => choice,
    };
    let choice = if uneven { choice.block_by_block() } else { choice };
    (choice, few && !choice.multicasts() && !choice.pulls())
}

/// The fastest way for few bytes per rank: one message to each rank, all at once, or few rounds.
fn exchanged(tuning: &Tuning, case: &Case) -> Choice {
    let algorithms = [Algorithm::ScatterDestination { batch: case.ranks }, Algorithm::Bruck { ports: 1 }];
    let candidates = algorithms.into_iter().filter_map(|one| tuning.candidate(case, all(case.collective, one)));
    let fastest: Option<Candidate> = candidates.min_by_key(|candidate| candidate.time);
    fastest.expect("messages of their own fit every call").choice
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_up_to_the_eager_size_are_small_and_take_the_fastest_algorithm() {
        let case =
            |collective, bytes| Case { collective, ranks: 8, hosts: 8, bytes, multicast: true, links: Links::Slow };
        let name = |case: &Case| {
            let (choice, small) = chosen(None, case, 16 << 10, false);
            (choice.to_string().split(':').next().expect("a name").to_owned(), small)
        };
        assert!(name(&case(Collective::Broadcast, 16 << 10)).1);
        assert_eq!(name(&case(Collective::Broadcast, (16 << 10) + 1)), ("multicast".to_owned(), false));
        assert_ne!(name(&case(Collective::Allgather, 2 << 10)).0, "ring", "a ring has most latencies");
        assert!(!name(&case(Collective::Allgather, (2 << 10) + 1)).1, "all blocks count");
        assert!(!name(&case(Collective::Barrier, 0)).1 && !name(&case(Collective::Gather, 1)).1);
        assert!(!name(&case(Collective::Broadcast, 0)).1, "whoever calls something else is told");
        assert!(!chosen(None, &case(Collective::Broadcast, 0), 0, false).1, "none is small");
        let multicasts = Tuning::untuned(Links::Slow);
        let (choice, small) = chosen(Some(&multicasts), &case(Collective::Broadcast, 8), 16 << 10, false);
        assert!(choice.multicasts() && !small, "as somebody has tuned it");
    }

    #[test]
    fn small_alltoalls_send_at_once_unless_tuned() {
        let case = |ranks, bytes| Case {
            collective: Collective::Alltoall,
            ranks,
            hosts: ranks,
            bytes,
            multicast: true,
            links: Links::Slow,
        };
        let name = |tuning: Option<&Tuning>, case: &Case| {
            let (choice, small) = chosen(tuning, case, 16 << 10, false);
            (choice.to_string(), small)
        };
        let of_their_own = Tuning::default();
        for tuning in [None, Some(&of_their_own)] {
            assert_eq!(name(tuning, &case(4, 4 << 10)), ("scatter-destination:batch=4".to_owned(), true));
            assert_eq!(name(tuning, &case(4, (4 << 10) + 1)), ("pull".to_owned(), false));
            assert_eq!(name(tuning, &case(1024, 1)), ("bruck".to_owned(), true), "not a thousand messages each");
        }
        let pulls: Tuning = "[[choice.alltoall]]\nalgorithm = \"pull\"\n".parse().expect("valid");
        assert_eq!(name(Some(&pulls), &case(4, 8)), ("pull".to_owned(), false));
    }
}
