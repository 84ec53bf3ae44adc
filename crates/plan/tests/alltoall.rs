//! Alltoall(v) proven by the verifier for every small group and for counts drawn at random, zeros among them (GP-8).

use outboard_plan::alltoall::{Blocks, contract};
use outboard_plan::{AlltoallError, Rank, Span, alltoall, verify};
use proptest::prelude::*;

fn proven(all: &[Blocks]) {
    let ranks = all.len() as u32;
    let programs: Vec<_> = (0..ranks).map(|r| alltoall(ranks, Rank(r), &all[r as usize]).unwrap()).collect();
    assert_eq!(verify(&programs, |rank| contract(rank, all)), Ok(()));
}

/// Blocks with these counts (by source, then destination), with a gap of `gap` bytes behind each.
fn with_counts(counts: &[Vec<u64>], gap: u64) -> Vec<Blocks> {
    let spans = |lens: Vec<u64>, span: fn(u64, u64) -> Span| {
        let mut at = 0;
        lens.into_iter().map(|len| (span(at, len), at += len + gap).0).collect()
    };
    let columns = |rank: usize| counts.iter().map(|row| row[rank]).collect();
    let blocks = |rank: usize| Blocks {
        send: spans(counts[rank].clone(), Span::input),
        receive: spans(columns(rank), Span::output),
    };
    (0..counts.len()).map(blocks).collect()
}

#[test]
fn every_group_up_to_64_exchanges_even_blocks() {
    for ranks in 1..=64 {
        for bytes in [0, 1, 7] {
            proven(&vec![Blocks::even(ranks, bytes).unwrap(); ranks as usize]);
        }
    }
}

#[test]
fn every_group_up_to_24_gathers_at_and_scatters_from_every_root_in_place_and_not() {
    for ranks in 1..=24 {
        for root in (0..ranks).map(Rank) {
            for own in [true, false] {
                let of = |rank| Blocks::gather((ranks, root), Rank(rank), 5, own).unwrap();
                proven(&(0..ranks).map(of).collect::<Vec<_>>());
                assert!((0..ranks).all(|rank| of(rank).are_gathered(root, Rank(rank))));
                let of = |rank| Blocks::scatter((ranks, root), Rank(rank), 5, own).unwrap();
                proven(&(0..ranks).map(of).collect::<Vec<_>>());
                assert!((0..ranks).all(|rank| of(rank).are_scattered(root, Rank(rank))));
                let other = Rank((root.0 + 1) % ranks);
                assert!(ranks == 1 || !of(root.0).are_gathered(root, root) && !of(root.0).are_scattered(root, other));
            }
        }
    }
    assert_eq!(Blocks::gather((3, Rank(0)), Rank(1), u64::MAX / 2, true), None);
}

proptest! {
    #[test]
    fn any_counts_are_exchanged(
        counts in (1usize..9).prop_flat_map(|n| {
            let count = prop_oneof![Just(0u64), 1u64..50];
            prop::collection::vec(prop::collection::vec(count, n), n)
        }),
        gap in 0u64..3,
    ) {
        proven(&with_counts(&counts, gap));
    }
}

#[test]
fn nonsense_is_refused_by_name() {
    let even = Blocks::even(3, 4).unwrap();
    assert_eq!(even.check(4, Rank(0)), Err(AlltoallError::Count { send: 3, receive: 3, ranks: 4 }));
    assert_eq!(even.check(3, Rank(3)), Err(AlltoallError::Ranks { rank: Rank(3), ranks: 3 }));
    assert_eq!(Blocks::even(3, u64::MAX / 2), None);
    let mut own = even.clone();
    own.receive[1].len = 3;
    let error = own.check(3, Rank(1)).unwrap_err();
    assert_eq!(error.to_string(), "rank 1 sends itself 4 bytes and receives 3 from itself: make both equal");
    let mut far = even;
    far.send[2].offset = u64::MAX;
    assert_eq!(far.check(3, Rank(0)), Err(AlltoallError::Range { offset: u64::MAX, len: 4 }));
}
