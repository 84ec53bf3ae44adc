//! Broadcast plans are proven for every group size and root.

use outboard_plan::broadcast::contract;
use outboard_plan::{BroadcastShape, Program, Rank, VerifyError, broadcast, verify};
use proptest::prelude::*;

const MULTICAST: BroadcastShape = BroadcastShape::Multicast { subgroups: 3 };

fn prove(shape: BroadcastShape, ranks: u32, root: Rank, bytes: u64) -> Result<(), VerifyError> {
    let program = |rank| broadcast(shape, ranks, root, rank, bytes).unwrap();
    let programs: Vec<Program> = (0..ranks).map(Rank).map(program).collect();
    verify(&programs, |rank| contract(root, rank, bytes))
}

#[test]
fn every_group_up_to_64_and_every_root_is_right() {
    for shape in [BroadcastShape::Binomial, MULTICAST] {
        for ranks in 1..=64 {
            for root in (0..ranks).map(Rank) {
                prove(shape, ranks, root, 1500).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn random_groups_are_right(ranks in 1..=2000u32, pick: u32, bytes in 0..=u64::MAX, multicast: bool) {
        let shape = if multicast { MULTICAST } else { BroadcastShape::Binomial };
        prove(shape, ranks, Rank(pick % ranks), bytes)?;
    }
}
