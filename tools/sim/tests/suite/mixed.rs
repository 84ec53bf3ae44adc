//! Mixed faults by seed: the oracles hold whatever goes wrong.

use std::time::Duration;

use outboard_sim::{
    FaultKind, HostDeath, Scenario, mixed, mixed_allgathers, mixed_calls, mixed_choices, mixed_exchanges,
    mixed_hardships, mixed_messages, mixed_sizes, run,
};

/// Seeds of a sweep; `outboard sim mixed` plays more.
pub(crate) fn seeds(by_default: u64) -> u64 {
    std::env::var("OUTBOARD_SIM_SEEDS").ok().map_or(by_default, |n| n.parse().expect("OUTBOARD_SIM_SEEDS is a number"))
}

pub(crate) fn threads() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

#[test]
fn mixed_faults_end_right_or_name_the_culprit() {
    let seeds = seeds(1000);
    let summary = mixed(0..seeds, threads(), |_| {});
    assert_eq!(summary.runs, seeds);
    if let Some(failure) = summary.failures.first() {
        panic!("seeds {:?} fail; the first:\n{failure}", summary.failed_seeds);
    }
    assert!(summary.errors > 0 && summary.late > 0 && summary.dropped > 0, "the faults reach the machines");
    let coverage = &summary.coverage;
    let missed: Vec<_> = FaultKind::ALL.iter().filter(|kind| coverage.faults(**kind) == 0).collect();
    assert!(missed.is_empty(), "{missed:?} never happen in {seeds} seeds:\n{coverage}");
    assert_eq!(coverage.unnamed(), 0, "messages that the table of coverage does not know");
}

#[test]
fn a_run_is_a_function_of_scenario_and_seed() {
    for scenario in [mixed_choices, mixed_messages] {
        for seed in 0..20 {
            let once = run(&scenario(seed), seed).map_err(|f| f.to_string());
            assert_eq!(once, run(&scenario(seed), seed).map_err(|f| f.to_string()), "seed {seed}");
        }
    }
}

/// Checks seeds that once revealed an error, each list with the name of the error.
fn stay_quiet(scenario: fn(u64) -> Scenario, seeds: &[(&str, &[u64])]) {
    for (found, seeds) in seeds {
        for &seed in *seeds {
            run(&scenario(seed), seed).unwrap_or_else(|failure| panic!("{found}, again: {failure}"));
        }
    }
}

#[test]
fn regression_seeds_of_allgathers_pass() {
    stay_quiet(
        mixed_allgathers,
        &[
            ("storms", &[66, 126, 158]),
            ("living processes are declared dead", &[131, 340, 446, 722, 751, 838, 877]),
            ("faults are reported late", &[94, 141, 678, 910, 1026, 1071, 1213, 1407, 1575, 1832]),
            ("a member asks without end", &[19, 61, 109, 217, 243, 273, 368, 391, 395, 452, 468]),
            ("an innocent rank is blamed", &[13, 54, 291, 351, 363, 400, 403, 448, 467, 894]),
            ("a machine is never idle again", &[5, 99, 165, 221, 240, 272, 299, 361, 406]),
            ("local sends are stuck", &[285, 396, 1495, 1567]),
            ("a slow process counts as dead", &[755, 1515]),
        ],
    );
}

#[test]
fn regression_seeds_of_exchanges_pass() {
    stay_quiet(
        mixed_exchanges,
        &[
            ("a rank waits for one that left", &[652, 1717]),
            ("a call ends without the late rank", &[2533]),
            ("a rank that failed, too, is blamed", &[4212, 4323, 4502, 4907, 9667, 9825]),
        ],
    );
    stay_quiet(
        mixed_sizes,
        &[("signals of a rank that had ended", &[1587, 3494, 3908, 4986]), ("a dispute that is none", &[634])],
    );
}

#[test]
fn regression_seeds_of_calls_pass() {
    stay_quiet(mixed_choices, &[("requests for pieces of 256 bytes queue by the hundred", &[9288])]);
    stay_quiet(
        mixed_calls,
        &[
            ("a rank disagrees with one that had ended another size and left", &[1347, 1374]),
            ("a call ends in silence", &[4208]),
            ("an acknowledgement for a peer that was forgotten stays due", &[5604]),
            ("partitions hold calls for ever", &[2818, 2980]),
            ("a rank leaves after a disputed call", &[19_993]),
        ],
    );
    stay_quiet(
        mixed_messages,
        &[
            ("a message of bad memory is sent as nothing, and the next one of its name takes its receive", &[2295]),
            ("an acknowledgement lets a receive be posted, so the payload of its frame belongs elsewhere", &[29_521]),
        ],
    );
}

#[test]
fn regression_seeds_of_hardships_pass() {
    let silence_of_before = [508, 897, 1013, 2127, 2471, 2652, 2658, 4887, 5358, 6303, 6706, 6770, 7346, 7555];
    let forgotten_between_frames = [1_207_463, 1_210_563, 1_214_739, 1_214_963, 1_216_519, 1_220_099, 1_221_183];
    stay_quiet(
        mixed_hardships,
        &[
            ("both ends of a link give each other up in turn behind a cut, and a new group fails", &[5006]),
            ("the silence of a cut counts against groups behind it", &silence_of_before),
            ("a rank that is stood in for is named for what it has passed on", &[21_369]),
            ("tiny fragments, a tenth of them lost, send more than their headers are counted for", &[27_250]),
            ("bytes for a dead rank are taken for those of the next message in a frame", &[1_215_744]),
            ("a stranger is forgotten between its frames", &forgotten_between_frames),
            (
                "a peer of a process that was stopped is lost after the others are quiet",
                &[11_138, 13_149, 54_233, 61_204],
            ),
            ("a stop lasts from when a slow driver's timer was due", &[3111, 3336, 4667]),
            ("a member of a made group dies before it has sent anything", &[35_313]),
            ("ranks that call after a dispute are told of different ones that left", &[1_213_654]),
            ("calls of a link before its other end is given up break a group", &[1_249_639, 1_301_537]),
            ("a question about a call comes with what ends it", &[1_411_951]),
            ("the bytes of several blocks are told for those of one", &[1_265_796]),
            ("messages are kept for a peer that speaks after the news of its death", &[3_566_836, 3_995_530]),
            ("a rank leaves a disputed call before others know that the group is made", &[3_543_123, 3_845_662]),
            ("a dispute is noticed in two ways", &[8_692_377]),
            ("two sizes of one call have different algorithms", &[3_260_576, 4_022_033, 4_278_616]),
            ("a repair names the staging of a rank whose call has ended", &[4_253_833]),
            ("ranks that disagree wait for each other", &[3_287_640, 3_382_572, 3_392_753, 7_527_953, 10_020_751]),
            ("a rank is blamed for what is lost with a link", &[3_521_716]),
            ("what waits for a connection comes before what is newer", &[3_773_693, 3_245_465, 3_781_997]),
            ("bytes sent before a call failed come behind others that are sent again as nothing", &[6_283_329]),
        ],
    );
}

/// The ring heals over ranks that have left. A host dies before it can repeat a lost step of the barrier. Another host
/// waits for that step, and all hosts between the two have ended and left.
#[test]
fn a_dead_host_is_noticed_when_its_neighbours_have_left() {
    for multicast in [false, true] {
        for lost in 0..150 {
            let mut scenario = Scenario::allgather(9, 0).multicast(multicast);
            scenario.groups[0].calls[0].at = Duration::from_millis(300);
            let at = Duration::from_millis(320);
            scenario.faults.dead_hosts.push(HostDeath { host: 3, at, reported_after: None });
            scenario.faults.drop.push(lost);
            run(&scenario, 1).unwrap_or_else(|failure| panic!("without delivery {lost}: {failure}"));
        }
    }
}
