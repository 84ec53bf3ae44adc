//! Reductions of all kinds: right results on all ranks, and the same bits from run to run, with any late rank and any
//! losses.

use std::sync::Arc;
use std::time::Duration;

use outboard_plan::Element;
use outboard_sim::{Faults, Pattern, ReductionKind, Scenario};

use crate::{last_end, one_call, play, sum};

const LATE: Duration = Duration::from_secs(1);
/// Scratch for a few of the simultaneous calls.
const SCRATCH: u64 = 200_000;
/// Time of a reduce-scatter by a ring, relative to the link time of the payload. Each link has one window, whose
/// acknowledgements wait in the one queue of the peer's simulated fabric; headers take 5 %.
const MOST_SCATTER_TIME: f64 = 1.35;
/// Time of an allreduce, whose steps behind the scatter follow without waiting for the first segment.
const MOST_ALLREDUCE_TIME: f64 = 1.3;
/// Time of a reduce along a chain, whose links carry segments one behind the other.
const MOST_REDUCE_TIME: f64 = 1.15;

fn results() -> [ReductionKind; 6] {
    ReductionKind::all(1, 5)
}

fn reduction(ranks: usize, result: ReductionKind, element: Element, bytes: u64) -> Scenario {
    one_call(ranks, Pattern::Reduction { result, reduction: sum(element) }, bytes)
}

/// Members that may call in place.
fn in_place(result: ReductionKind, ranks: usize) -> Vec<usize> {
    match result {
        ReductionKind::Reduce { root } => vec![root],
        _ => (0..ranks).filter(|member| member % 3 != 1).collect(),
    }
}

#[test]
fn groups_of_any_size_agree_with_the_reference() {
    for result in results() {
        for ranks in 2..=13 {
            for (ranks_per_host, siblings, bytes) in [(1, 1, 8), (3, 1, 4000), (2, 2, 40_000), (1, 1, 100_000)] {
                let mut scenario = reduction(ranks, result, Element::I32, bytes);
                scenario.groups[0].calls[0].in_place = in_place(result, ranks);
                play(&scenario.ranks_per_host(ranks_per_host).siblings(siblings), 1);
            }
        }
    }
}

#[test]
fn one_rank_alone_and_empty_vectors_end() {
    for result in ReductionKind::all(0, 5) {
        play(&reduction(1, result, Element::F64, 800), 1);
        play(&reduction(5, result, Element::F64, 0), 1);
    }
}

/// TH-2: the plan alone decides the order in which contributions are combined. Loss, jitter, lateness and the first
/// caller change no bit. Another order of these contributions gives other bits.
#[test]
fn th_2_the_bits_of_a_result_are_the_same_from_run_to_run() {
    for result in results() {
        for bytes in [800, 60_000] {
            for multicast in [true, false] {
                bits_stay(&reduction(7, result, Element::F32, bytes).multicast(multicast), result);
            }
        }
    }
}

/// TH-2 for plans where each host reduces first, and for plans where segments pass along chains.
#[test]
fn th_2_by_hosts_the_bits_are_the_same_from_run_to_run() {
    let root = ReductionKind::Reduce { root: 1 };
    let to_root = ["chain:segment=4096", "hierarchical:between=chain,segment=4096", "hierarchical:between=halving"];
    let to_all = ["recursive-doubling", "ring", "rabenseifner"].map(|name| format!("hierarchical:between={name}"));
    let scattered = ["ring", "recursive-halving", "pairwise"].map(|name| format!("hierarchical:between={name}"));
    let reduces = to_root.iter().map(|name| (root, "reduce", (*name).to_owned()));
    let allreduces = to_all.map(|name| (ReductionKind::Allreduce, "allreduce", name));
    let scatters = scattered.map(|name| (ReductionKind::ReduceScatter { seed: 5 }, "reduce-scatter", name));
    for (result, collective, algorithm) in reduces.chain(allreduces).chain(scatters) {
        let text = format!("[[choice.{collective}]]\nalgorithm = \"{algorithm}\"\n");
        let tuning = Arc::new(text.parse().expect("valid"));
        for (bytes, ranks_per_host) in [(800, 3), (60_000, 2)] {
            let mut scenario = reduction(7, result, Element::F32, bytes).ranks_per_host(ranks_per_host);
            scenario.config.tuning = Some(Arc::clone(&tuning));
            bits_stay(&scenario, result);
        }
    }
}

/// Plays a reduction among 7 ranks again and again, with faults and late ranks.
fn bits_stay(scenario: &Scenario, result: ReductionKind) {
    let bits = play(scenario, 0).bits;
    for seed in 1..12u64 {
        let jitter = Duration::from_millis(2);
        let faults = Faults { datagram_loss: 0.1, frame_loss: 0.1, reorder: 0.1, jitter, ..Faults::none() };
        let mut other = scenario.clone().with_faults(faults);
        other.groups[0].calls[0].late = vec![(seed as usize % 7, Duration::from_millis(5 * seed))];
        other.groups[0].calls[0].in_place = in_place(result, 7);
        let bytes = other.groups[0].calls[0].bytes;
        assert_eq!(play(&other, seed).bits, bits, "{result:?} of {bytes} bytes, seed {seed}");
    }
}

/// SP-6: the service process receives for a rank that has not called, but does not combine that rank's contribution.
#[test]
fn sp_6_a_late_rank_finds_its_result_when_it_comes() {
    for result in results() {
        for (ranks_per_host, bytes) in [(1, 800), (2, 800), (4, 80_000), (2, 80_000)] {
            for late in 0..8 {
                let mut scenario = reduction(8, result, Element::F64, bytes).ranks_per_host(ranks_per_host);
                scenario.groups[0].calls[0].late.push((late, LATE));
                scenario.groups[0].calls[0].in_place = in_place(result, 8);
                let outcome = play(&scenario, 1);
                assert_eq!((outcome.late, outcome.errors), (1, 0));
            }
        }
    }
}

/// A rank that needs nothing of the late rank does not wait for it.
#[test]
fn sp_6_a_scan_delays_only_those_behind_the_late_rank() {
    let mut scenario = reduction(8, ReductionKind::Scan, Element::F64, 800).ranks_per_host(2);
    scenario.groups[0].calls[0].late.push((5, LATE));
    let outcome = play(&scenario, 1);
    for ((_, member, _), end) in &outcome.ends {
        assert!(*end >= LATE || *member < 5, "member {member} ends at {end:?}");
    }
    assert!(outcome.ends.iter().any(|(_, end)| *end < LATE), "{:?}", outcome.ends);
}

/// Calls wait in order for scratch that the quota does not allow at once.
#[test]
fn calls_that_do_not_fit_the_staging_together_follow_each_other() {
    let mut scenario = reduction(6, ReductionKind::Allreduce, Element::F64, 40_000).ranks_per_host(2);
    scenario.groups[0].calls = vec![scenario.groups[0].calls[0].clone(); 6];
    scenario.groups[0].window = 6;
    (scenario.config.staging_quota, scenario.config.scratch_quota) = (0, SCRATCH);
    let outcome = play(&scenario, 1);
    assert_eq!(outcome.errors, 0);
    assert!(outcome.counters.iter().all(|counters| counters.staging_peak <= SCRATCH));
}

#[test]
fn a_call_that_can_never_fit_the_staging_fails_on_all_ranks() {
    let mut scenario = reduction(6, ReductionKind::Allreduce, Element::F64, 400_000).ranks_per_host(2);
    scenario.config.scratch_quota = 100_000;
    assert_eq!(play(&scenario, 1).errors, 6);
}

/// Two groups of all ranks of two hosts. The two hosts call the groups in different orders.
fn crossed(bytes: u64) -> Scenario {
    let mut scenario = reduction(8, ReductionKind::Allreduce, Element::F64, bytes).ranks_per_host(4);
    scenario.groups.push(scenario.groups[0].clone());
    for (group, late) in scenario.groups.iter_mut().zip([4..8, 0..4]) {
        group.calls[0].late = late.map(|member| (member, Duration::from_millis(1))).collect();
    }
    scenario
}

/// On each host one group holds scratch that the other group needs there. The staging for late ranks does not bound
/// calls that ranks have made.
#[test]
fn groups_that_hosts_begin_in_different_orders_do_not_wait_for_each_other() {
    for staging in (0..=400_000).step_by(50_000) {
        let mut scenario = crossed(40_000);
        scenario.config.staging_quota = staging;
        assert_eq!(play(&scenario, 1).errors, 0, "{staging} B of staging");
    }
}

/// A call does not wait for scratch of other groups, because they might wait for its group on the other host.
#[test]
fn groups_that_do_not_fit_the_scratch_together_fail_and_do_not_hang() {
    let errors = |groups, scratch| {
        let mut scenario = crossed(40_000);
        scenario.groups.truncate(groups);
        (scenario.config.staging_quota, scenario.config.scratch_quota) = (0, scratch);
        play(&scenario, 1).errors
    };
    let alone = (1..100).map(|step| step * 10_000).find(|scratch| errors(1, *scratch) == 0).expect("one fits");
    assert!(errors(2, alone) > 0);
    assert_eq!(errors(2, 2 * alone), 0);
}

/// When the last rank has its result. Each host has one rank, and a fabric accepts no more than its own queue holds.
fn ended(hosts: usize, result: ReductionKind, bytes: u64, rate: u64) -> Duration {
    let mut scenario = reduction(hosts, result, Element::U64, bytes).on_links(rate);
    scenario.network.outstanding_frames = 16;
    last_end(&play(&scenario, 1))
}

/// Links wait neither for long turns of a source's other receivers nor for the next message of the plan. Virtual time
/// makes the bound hold on any machine.
#[test]
fn links_are_kept_busy() {
    for (hosts, bytes, rate) in [(4, 1 << 20, 250_000_000), (4, 4 << 20, 1_000_000_000), (8, 4 << 20, 1_000_000_000u64)]
    {
        for (result, crossings, most) in [
            (ReductionKind::ReduceScatterBlock, 1, MOST_SCATTER_TIME),
            (ReductionKind::Allreduce, 2, MOST_ALLREDUCE_TIME),
        ] {
            let block = if result == ReductionKind::Allreduce { bytes } else { bytes / hosts as u64 };
            let ended = ended(hosts, result, block, rate);
            let bits = (crossings * (hosts as u64 - 1) * bytes * 8 / hosts as u64) as f64;
            let limit = Duration::from_secs_f64(bits / rate as f64);
            assert!(ended < limit.mul_f64(most), "{result:?} on {hosts} hosts: {ended:?} where {limit:?} is the limit");
        }
    }
}

/// A reduce occupies the root's link once, after a segment has passed the other hosts.
#[test]
fn a_reduce_takes_every_link_once() {
    const SEGMENT: u64 = 64 << 10;
    let rate = 1_000_000_000;
    for (hosts, bytes) in [(4, 1 << 20), (8, 1 << 20), (4, 4 << 20), (8, 4 << 20u64)] {
        let ended = ended(hosts, ReductionKind::Reduce { root: 1 }, bytes, rate);
        let bits = (bytes + (hosts as u64 - 2) * SEGMENT) * 8;
        let limit = Duration::from_secs_f64(bits as f64 / rate as f64);
        assert!(
            ended < limit.mul_f64(MOST_REDUCE_TIME),
            "{bytes} bytes on {hosts} hosts: {ended:?} where {limit:?} is the limit"
        );
    }
}
