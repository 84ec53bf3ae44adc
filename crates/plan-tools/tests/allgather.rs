//! Allgather plans are proven for every group size, layout and byte count (MC-8), and damaged ones are refused.

mod damage;

use outboard_plan::{AllgatherAlgorithm, Extents, Op, Program, Rank, Span, Step, Topology, allgather, allgatherv};
use outboard_plan_tools::contract::allgather as contract;
use outboard_plan_tools::{VerifyError, verify};
use proptest::prelude::*;

fn programs(algorithm: AllgatherAlgorithm, ranks: u32, bytes: u64, in_place: impl Fn(Rank) -> bool) -> Vec<Program> {
    let program = |rank| allgather(algorithm, &Topology::flat(ranks), rank, bytes, in_place(rank)).unwrap();
    (0..ranks).map(Rank).map(program).collect()
}

fn prove(
    algorithm: AllgatherAlgorithm,
    ranks: u32,
    bytes: u64,
    in_place: impl Fn(Rank) -> bool + Copy,
) -> Result<(), VerifyError> {
    verify(&programs(algorithm, ranks, bytes, in_place), |rank| contract(&even(ranks, bytes), rank, in_place(rank)))
}

fn even(ranks: u32, bytes: u64) -> Extents {
    Extents::even(ranks, bytes).unwrap()
}

fn prove_uneven(algorithm: AllgatherAlgorithm, sizes: &[u64], in_place: bool) {
    let extents = Extents::uneven(sizes.iter().copied()).unwrap();
    let program =
        |rank| allgatherv(algorithm, &Topology::flat(extents.ranks()), Rank(rank), &extents, in_place).unwrap();
    let programs: Vec<Program> = (0..extents.ranks()).map(program).collect();
    assert_eq!(verify(&programs, |rank| contract(&extents, rank, in_place)), Ok(()), "{algorithm:?} of {sizes:?}");
}

/// Every pattern of empty blocks among up to seven ranks, in every number of chains.
#[test]
fn uneven_blocks_with_zeros_among_them_are_right() {
    for ranks in 1..=7u32 {
        for full in 0u32..1 << ranks {
            let sizes: Vec<u64> = (0..ranks).map(|rank| u64::from(full >> rank & 1) * u64::from(rank + 1)).collect();
            for in_place in [false, true] {
                prove_uneven(AllgatherAlgorithm::Ring, &sizes, in_place);
                (1..=ranks).for_each(|chains| prove_uneven(multicast(chains), &sizes, in_place));
            }
        }
    }
}

fn multicast(chains: u32) -> AllgatherAlgorithm {
    AllgatherAlgorithm::Multicast { chains, subgroups: 1 }
}

#[test]
fn ring_is_right_for_every_group_up_to_64() {
    for ranks in 1..=64 {
        for in_place in [false, true] {
            prove(AllgatherAlgorithm::Ring, ranks, 1, |_| in_place).unwrap();
        }
    }
}

/// MC-8, with and without the paper's condition that the chains divide the ranks.
#[test]
fn multicast_is_right_for_every_group_up_to_64() {
    for ranks in 1..=64u32 {
        for chains in [1, 2, 3, 5, ranks.div_ceil(2), ranks - 1, ranks] {
            if (1..=ranks).contains(&chains) {
                prove(multicast(chains), ranks, 1500, |_| chains % 2 == 0).unwrap();
            }
        }
    }
}

#[test]
fn multicast_is_right_for_every_number_of_chains() {
    for ranks in 1..=20 {
        for chains in 1..=ranks {
            prove(multicast(chains), ranks, 7, |_| false).unwrap();
        }
    }
}

#[test]
fn extreme_byte_counts_are_right() {
    for ranks in [1, 2, 3, 10] {
        for bytes in [0, 1, u64::MAX / u64::from(ranks)] {
            for algorithm in [AllgatherAlgorithm::Ring, multicast(1), multicast(ranks)] {
                for in_place in [false, true] {
                    prove(algorithm, ranks, bytes, |_| in_place).unwrap();
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Groups up to a few hundred, in place on some ranks and not on others.
    #[test]
    fn random_groups_are_right(ranks in 1..=300u32, pick: u32, subgroups in 1..=u16::MAX, bytes in 0..=1u64 << 50,
                               ring: bool, places: u64) {
        let chains = 1 + pick % ranks;
        let algorithm = if ring { AllgatherAlgorithm::Ring } else { AllgatherAlgorithm::Multicast { chains, subgroups } };
        prove(algorithm, ranks, bytes, |rank| places >> (rank.0 % 64) & 1 == 1).unwrap();
    }
}

/// MC-4: receives of message data are posted at once.
#[test]
fn receives_of_data_wait_for_nothing() {
    for algorithm in [AllgatherAlgorithm::Ring, multicast(3)] {
        for step in programs(algorithm, 10, 8, |_| false).iter().flat_map(|program| &program.steps) {
            if let Op::Recv { span, .. } | Op::MulticastRecv { span, .. } = step.op {
                assert!(span.is_empty() || step.after.is_empty(), "{step}");
            }
        }
    }
}

/// MC-8: a rank multicasts when its predecessor in the chain has, and tells its successor once it has itself.
#[test]
fn activation_passes_along_the_chain() {
    let turns = |rank| {
        let program = allgather(multicast(2), &Topology::flat(5), Rank(rank), 8, false).unwrap();
        let step = |op: &dyn Fn(&Op) -> bool| program.steps.iter().find(|step| op(&step.op)).cloned();
        let before = |step: &Step| step.after.iter().map(|id| program.steps[id.0 as usize].op).collect::<Vec<_>>();
        let multicast = step(&|op| matches!(op, Op::Multicast { .. })).unwrap();
        let signal = step(&|op| matches!(op, Op::Send { .. }));
        (before(&multicast), signal.map(|signal| (signal.op, before(&signal))))
    };
    let (from_input, span) = (Span::input(0, 8), Span::signal());
    let told = |to| Some((Op::Send { to: Rank(to), index: 0, span }, vec![Op::Multicast { span: from_input }]));
    let tells = |from| vec![Op::Recv { from: Rank(from), index: 0, span }];
    assert_eq!(turns(0), (vec![], told(1)));
    assert_eq!(turns(1), (tells(0), told(2)));
    assert_eq!(turns(2), (tells(1), None));
    assert_eq!(turns(3), (vec![], told(4)));
    assert_eq!(turns(4), (tells(3), None));
}

/// Drops and alters every step, dependency and field of valid plans, one at a time: no such plan is valid.
#[test]
fn every_single_damage_is_refused() {
    let mut refused = 0;
    for ranks in 1..=6 {
        let algorithms = [AllgatherAlgorithm::Ring].into_iter().chain((1..=ranks).map(multicast));
        for algorithm in algorithms {
            for (in_place, bytes) in [(false, 8), (true, 8), (false, 1)] {
                let mut group = programs(algorithm, ranks, bytes, |_| in_place);
                for rank in 0..ranks as usize {
                    let valid = group[rank].clone();
                    for program in damage::damaged(&valid) {
                        group[rank] = program;
                        let verdict = verify(&group, |rank| contract(&even(ranks, bytes), rank, in_place));
                        assert!(verdict.is_err(), "accepted in place of\n{valid}\n{}", group[rank]);
                        refused += 1;
                    }
                    group[rank] = valid;
                }
            }
        }
    }
    assert!(refused > 10_000, "only {refused} damaged plans were tried");
}

/// MC-8: fewer chains than roots at once are refused, whatever the programs agree on.
#[test]
fn too_many_roots_at_once_are_refused() {
    let mut group = programs(multicast(3), 7, 8, |_| false);
    for program in &mut group {
        program.chains = 2;
    }
    let verdict = verify(&group, |rank| contract(&even(7, 8), rank, false));
    assert!(matches!(verdict, Err(VerifyError::Roots { chains: 2, .. })), "{verdict:?}");
}
