//! How a group carries out a call, small or not, with a tuning or without.

use std::sync::LazyLock;

use super::{Case, Choice, Collective, Tuning};

/// What groups choose by that have no tuning: without multicast, with it, and for small calls.
static UNTUNED: LazyLock<[Tuning; 3]> =
    LazyLock::new(|| [Tuning::untuned(false), Tuning::untuned(true), Tuning::default()]);

/// The algorithm of a call, and whether the call is small (MC-9): it moves something, but at most `eager_bytes` in all, and
/// neither is it multicast nor are its blocks pulled, so that its messages can carry their bytes and nobody waits for a barrier.
/// A tuning that multicasts small calls is followed.
#[must_use]
pub fn chosen(tuning: Option<&Tuning>, case: &Case, eager_bytes: u64) -> (Choice, bool) {
    let of_all = case.bytes.checked_mul(case.ranks.into());
    let moved = match case.collective {
        Collective::Broadcast
        | Collective::Reduce
        | Collective::Allreduce
        | Collective::ReduceScatter
        | Collective::Scan => Some(case.bytes),
        Collective::Allgather => of_all,
        // Blocks are pulled without a barrier, too, and a barrier is one.
        Collective::Alltoall | Collective::Gather | Collective::Scatter | Collective::Barrier => None,
    };
    // A call that moves nothing would end in silence, whatever others have called.
    let few = moved.is_some_and(|bytes| bytes > 0 && bytes <= eager_bytes);
    match tuning {
        Some(tuning) => {
            let choice = tuning.choose(case).choice;
            (choice, few && !choice.multicasts() && !choice.pulls())
        }
        None if few => (UNTUNED[2].choose(&Case { multicast: false, ..*case }).choice, true),
        None => (UNTUNED[usize::from(case.multicast)].choose(case).choice, false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_calls_are_those_that_move_little_in_all_and_go_the_fastest_way() {
        let case = |collective, bytes| Case { collective, ranks: 8, hosts: 8, bytes, multicast: true };
        let name = |case: &Case| {
            let (choice, small) = chosen(None, case, 16 << 10);
            (choice.to_string().split(':').next().expect("a name").to_owned(), small)
        };
        assert!(name(&case(Collective::Broadcast, 16 << 10)).1);
        assert_eq!(name(&case(Collective::Broadcast, (16 << 10) + 1)), ("multicast".to_owned(), false));
        assert_ne!(name(&case(Collective::Allgather, 2 << 10)).0, "ring", "a ring has most latencies");
        assert!(!name(&case(Collective::Allgather, (2 << 10) + 1)).1, "all blocks count");
        assert!(!name(&case(Collective::Barrier, 0)).1 && !name(&case(Collective::Alltoall, 1)).1);
        assert!(!name(&case(Collective::Broadcast, 0)).1, "whoever calls something else is told");
        assert!(!chosen(None, &case(Collective::Broadcast, 0), 0).1, "none is small");
        let multicasts = Tuning::untuned(true);
        let (choice, small) = chosen(Some(&multicasts), &case(Collective::Broadcast, 8), 16 << 10);
        assert!(choice.multicasts() && !small, "as somebody has tuned it");
    }
}
