//! Mixed faults by seed: the oracles hold whatever goes wrong.

use std::time::Duration;

use outboard_sim::{
    FaultKind, HostDeath, Scenario, mixed, mixed_allgathers, mixed_calls, mixed_choices, mixed_exchanges,
    mixed_hardships, mixed_sizes, run,
};

/// Seeds of the sweep; `outboard sim mixed` plays more.
fn seeds() -> u64 {
    std::env::var("OUTBOARD_SIM_SEEDS").ok().map_or(1000, |n| n.parse().expect("OUTBOARD_SIM_SEEDS is a number"))
}

#[test]
fn mixed_faults_end_right_or_name_the_culprit() {
    let threads = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let summary = mixed(0..seeds(), threads, |_| {});
    assert_eq!(summary.runs, seeds());
    if let Some(failure) = summary.failures.first() {
        panic!("seeds {:?} fail; the first:\n{failure}", summary.failed_seeds);
    }
    assert!(summary.errors > 0 && summary.late > 0 && summary.dropped > 0, "the faults reach the machines");
    let coverage = &summary.coverage;
    let missed: Vec<_> = FaultKind::ALL.iter().filter(|kind| coverage.faults(**kind) == 0).collect();
    assert!(missed.is_empty(), "{missed:?} never happen in {} seeds:\n{coverage}", seeds());
    assert_eq!(coverage.unnamed(), [], "messages that the table of coverage does not know");
}

#[test]
fn a_run_is_a_function_of_scenario_and_seed() {
    for seed in 0..20 {
        let once = run(&mixed_choices(seed), seed).map_err(|f| f.to_string());
        assert_eq!(once, run(&mixed_choices(seed), seed).map_err(|f| f.to_string()), "seed {seed}");
    }
}

fn stay_quiet(seeds: &[u64], scenario: fn(u64) -> Scenario) {
    for &seed in seeds {
        if let Err(failure) = run(&scenario(seed), seed) {
            panic!("{failure}");
        }
    }
}

/// Seeds that found something once.
#[test]
fn seeds_that_found_something_stay_quiet() {
    let storms = [66, 126, 158];
    let living_declared_dead = [131, 340, 446, 722, 751, 838, 877];
    let faults_told_late = [94, 141, 678, 910, 1026, 1071, 1213, 1407, 1575, 1832];
    let asking_without_end = [19, 61, 109, 217, 243, 273, 368, 391, 395, 452, 468];
    let innocent_blamed = [13, 54, 291, 351, 363, 400, 403, 448, 467, 894];
    let never_idle_again = [5, 99, 165, 221, 240, 272, 299, 361, 406];
    let local_sends_stuck = [285, 396, 1495, 1567];
    let slow_but_alive = [755, 1515];
    let all = [
        &storms[..],
        &living_declared_dead,
        &faults_told_late,
        &asking_without_end,
        &innocent_blamed,
        &never_idle_again,
        &local_sends_stuck,
        &slow_but_alive,
    ];
    stay_quiet(&all.concat(), mixed_allgathers);
}

/// The same, of scenarios with all-to-alls.
#[test]
fn seeds_of_exchanges_that_found_something_stay_quiet() {
    let waiting_for_one_that_left = [652, 1717];
    let ended_without_the_late = [2533];
    let blamed_who_failed_too = [4212, 4323, 4502, 4907, 9667, 9825];
    stay_quiet(
        &[&waiting_for_one_that_left[..], &ended_without_the_late, &blamed_who_failed_too].concat(),
        mixed_exchanges,
    );
}

/// The same, of scenarios with allgathervs.
#[test]
fn seeds_of_uneven_allgathers_that_found_something_stay_quiet() {
    let signals_of_who_had_ended = [1587, 3494, 3908, 4986];
    let no_dispute_at_all = [634];
    stay_quiet(&[&signals_of_who_had_ended[..], &no_dispute_at_all].concat(), mixed_sizes);
}

/// The same, of scenarios with all collectives and algorithms: more requests for pieces of 256 bytes were queued than
/// may be.
#[test]
fn seeds_of_choices_that_found_something_stay_quiet() {
    let requests_by_the_hundred = [9288];
    stay_quiet(&requests_by_the_hundred, mixed_choices);
}

/// The same, of all scenarios: whoever called another size waited for ranks that had ended theirs without it, and left;
/// an acknowledgement for a peer that was forgotten stayed due.
#[test]
fn seeds_of_small_calls_that_found_something_stay_quiet() {
    let disagreed_with_who_had_left = [1347, 1374];
    let ended_in_silence = [4208];
    let owed_an_acknowledgement_to_who_was_forgotten = [5604];
    let partitions_that_held_calls_for_ever = [2818, 2980];
    let left_after_a_disputed_call = [19_993];
    let all = [
        &disagreed_with_who_had_left[..],
        &ended_in_silence,
        &owed_an_acknowledgement_to_who_was_forgotten,
        &partitions_that_held_calls_for_ever,
        &left_after_a_disputed_call,
    ];
    stay_quiet(&all.concat(), mixed_calls);
}

/// The same, of all hardships: two ends of a link gave each other up in turn behind a cut, and a new group failed; the
/// silence of a cut was counted against groups behind it; a rank that was stood in for was named for what it had passed
/// on; tiny fragments, a tenth of them lost, sent more than their headers had been counted for; bytes for a dead rank
/// were taken for those of the next message in a frame; a stranger was forgotten between its frames; ranks that called
/// after a dispute were told of different ones that had left; calls that had come over a link before its other end was
/// given up broke a group behind a cut; a question about a call came with what ended it; the bytes of several blocks
/// were told for those of one; messages were kept for a peer whose last frames came after the news of its death; a rank
/// ended a disputed call and left before others had heard that the group is made; two sizes of one call had different
/// algorithms, and a rank waited for one that sends it nothing, or sent to one that expects nothing; a repair named the
/// staging of a rank whose call had ended; what had waited behind a cut for a connection came before what was said when
/// its peer was met again; a rank was blamed for what was lost with a link; bytes that were sent before a call failed
/// came behind others that were sent again as nothing; ranks that disagreed waited for each other, and neither said
/// what it called.
#[test]
fn seeds_of_hardships_that_found_something_stay_quiet() {
    let given_up_in_turn = [5006];
    let silence_of_before = [508, 897, 1013, 2127, 2471, 2652, 2658, 4887, 5358, 6303, 6706, 6770, 7346, 7555];
    let named_who_had_not_called = [21_369];
    let headers_of_tiny_fragments = [27_250];
    let bytes_of_a_dead_rank = [1_215_744];
    let forgotten_between_frames = [1_207_463, 1_210_563, 1_214_739, 1_214_963, 1_216_519, 1_220_099, 1_221_183];
    let left_after_a_dispute = [1_213_654];
    let heard_over_a_link_given_up = [1_249_639, 1_301_537];
    let asked_about_what_ends = [1_411_951];
    let blocks_of_one_message = [1_265_796];
    let queued_for_who_spoke_after_death = [3_566_836, 3_995_530];
    let left_a_dispute_before_others_heard_of_the_group = [3_543_123, 3_845_662];
    let noticed_in_two_ways = [8_692_377];
    let sent_another_way = [3_260_576, 4_022_033, 4_278_616];
    let staging_of_a_rank_that_went_on = [4_253_833];
    let waited_in_disputes = [3_287_640, 3_382_572, 3_392_753, 7_527_953, 10_020_751];
    let lost_with_the_link_of_before = [3_521_716];
    let waited_for_the_next_connection = [3_773_693, 3_245_465, 3_781_997];
    let behind_what_was_given_up = [6_283_329];
    let all = [
        &given_up_in_turn[..],
        &silence_of_before,
        &named_who_had_not_called,
        &headers_of_tiny_fragments,
        &bytes_of_a_dead_rank,
        &forgotten_between_frames,
        &left_after_a_dispute,
        &heard_over_a_link_given_up,
        &asked_about_what_ends,
        &blocks_of_one_message,
        &queued_for_who_spoke_after_death,
        &left_a_dispute_before_others_heard_of_the_group,
        &noticed_in_two_ways,
        &sent_another_way,
        &staging_of_a_rank_that_went_on,
        &waited_in_disputes,
        &lost_with_the_link_of_before,
        &waited_for_the_next_connection,
        &behind_what_was_given_up,
    ];
    stay_quiet(&all.concat(), mixed_hardships);
}

/// The ring heals over those who have left. A host dies before it can repeat a lost step of the barrier, and all hosts
/// between it and the one that waits for that step have ended and left.
#[test]
fn a_dead_host_is_noticed_when_its_neighbours_have_left() {
    for multicast in [false, true] {
        for lost in 0..150 {
            let mut scenario = Scenario::allgather(9, 0).multicast(multicast);
            scenario.groups[0].calls[0].at = Duration::from_millis(300);
            let at = Duration::from_millis(320);
            scenario.faults.dead_hosts.push(HostDeath { host: 3, at, reported_after: None });
            scenario.faults.drop.push(lost);
            if let Err(failure) = run(&scenario, 1) {
                panic!("without delivery {lost}: {failure}");
            }
        }
    }
}
