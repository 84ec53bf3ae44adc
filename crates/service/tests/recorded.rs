//! Recorded groups and single messages on one host, through the real client library (GP-1, GP-2, GP-5, GP-6).

mod support;

use support::recorded::CALLS;
use support::refusable::Calls;
use support::{Daemon, Rank, again, ranks};

#[test]
fn another_process() {
    support::another_process();
}

/// Runs a scenario that says when it is done.
fn done(scenario: &str, daemon: &Daemon, count: usize) {
    let mut ranks = ranks(scenario, daemon, count);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    let statistics = daemon.statistics();
    assert_eq!(statistics["failed"], 0, "{statistics}");
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.into_iter().for_each(Rank::finish);
}

/// GP-8, by every way to the ranks' memory (SP-4, GP-9).
#[test]
fn recorded_patterns_are_called_again_and_again() {
    for refused in [&[][..], &[Calls::CrossMemory], &[Calls::CrossMemory, Calls::Descriptor]] {
        let mut daemon = Daemon::start_refusable(again(), &[]);
        refused.iter().for_each(|&calls| daemon.refuse(calls, libc::EPERM));
        done("recorded", &daemon, 4);
        done("messages", &daemon, 3);
        done("recorded-sums", &daemon, 3);
    }
}

#[test]
fn one_rank_alone_records_for_itself() {
    let daemon = Daemon::start(&[]);
    done("recorded", &daemon, 1);
    done("messages", &daemon, 1);
}

#[test]
fn starts_of_one_recording_follow_one_another() {
    done("recorded-in-flight", &Daemon::start(&[]), 2);
}

#[test]
fn gp_5_a_repeated_call_is_one_message_to_the_service_process() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("repeated", &daemon, 4);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "ready"));
    let submissions = || daemon.statistics()["submissions"].as_u64().expect("a number");
    let before = submissions();
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "done"));
    assert_eq!(submissions() - before, (4 * CALLS) as u64);
    ranks.iter_mut().for_each(Rank::go_on);
    ranks.into_iter().for_each(Rank::finish);
}

#[test]
fn gp_6_recordings_that_need_each_others_progress_have_it() {
    let daemon = Daemon::start(&[]);
    for count in [2, 4] {
        ranks("crossed", &daemon, count).into_iter().for_each(Rank::finish);
    }
}

#[test]
fn gp_1_a_message_that_is_too_long_fails_its_receive_alone() {
    let daemon = Daemon::start(&[]);
    ranks("truncated", &daemon, 3).into_iter().for_each(Rank::finish);
}

#[test]
fn ranks_that_record_different_sizes_learn_both() {
    let daemon = Daemon::start(&[]);
    ranks("recorded-mismatch", &daemon, 3).into_iter().for_each(Rank::finish);
}

#[test]
fn a_rank_that_dies_is_named_to_those_who_have_called() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("recorded-one-dies", &daemon, 4);
    let mut last = ranks.pop().expect("four");
    assert_eq!(last.line(), "ready");
    ranks.iter_mut().for_each(|rank| assert_eq!(rank.line(), "posted"));
    last.kill();
    ranks.into_iter().for_each(Rank::finish);
}
