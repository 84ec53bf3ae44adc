//! Groups that cannot be made: every rank gets an error at once, and the errors name one rank and one cause.
//!
//! Two daemons stand for two hosts; the ranks of both daemons are in this process.

use std::thread;

use outboard::{Context, Error, Status};
use rustix::process::{Pid, Signal, kill_process};

use crate::support::Daemon;

/// The group timeout is longer than the test, so an early error has another reason.
const FLAGS: [&str; 6] = ["--interface", "lo", "--algorithm", "ring", "--group-timeout", "600"];

fn daemon(flags: &[&str]) -> Daemon {
    Daemon::start(&[&FLAGS, flags].concat())
}

fn attach(daemon: &Daemon) -> Context {
    Context::attach(Some(&daemon.socket())).expect("room")
}

/// The offers of these ranks, in order.
fn offers(ranks: &[&Context]) -> Vec<u8> {
    ranks.iter().flat_map(|rank| *rank.offer().expect("an offer")).collect()
}

fn names(error: &Error, status: Status, words: &[&str]) {
    let text = error.to_string();
    assert_eq!(error.status(), status, "{text}");
    words.iter().for_each(|word| assert!(text.contains(word), "{text} does not say {word}"));
}

/// Waits until one rank has requested a group from a daemon.
fn await_membership(daemon: &Daemon) {
    daemon.await_statistics(|told| told["memberships"] == 1);
}

#[test]
fn a_rank_that_dies_before_it_asks_ends_the_group_for_the_others() {
    let (here, there) = (daemon(&[]), daemon(&[]));
    for asked_before in [false, true] {
        let (first, second) = (attach(&here), attach(&there));
        let offers = offers(&[&first, &second]);
        thread::scope(|scope| {
            if !asked_before {
                second.detach().expect("it is in no group");
                let error = first.create_group(&offers, 2, 0).expect_err("rank 1 is gone");
                return names(&error, Status::RankLost, &["rank 1"]);
            }
            let making = scope.spawn(|| first.create_group(&offers, 2, 0));
            await_membership(&here);
            second.detach().expect("it is in no group");
            let error = making.join().expect("no panic").expect_err("rank 1 is gone");
            names(&error, Status::RankLost, &["rank 1"]);
        });
        here.await_statistics(|told| told["memberships"] == 0);
    }
}

#[test]
fn a_rank_that_dies_beside_another_of_its_host_ends_the_group_for_both_hosts() {
    let (here, there) = (daemon(&[]), daemon(&[]));
    let (first, second, third) = (attach(&here), attach(&there), attach(&there));
    let offers = offers(&[&first, &second, &third]);
    thread::scope(|scope| {
        let making = [(&first, 0), (&second, 1)].map(|(rank, number)| {
            scope.spawn({
                let offers = &offers;
                move || rank.create_group(offers, 3, number)
            })
        });
        await_membership(&here);
        await_membership(&there);
        third.detach().expect("it is in no group");
        for made in making {
            let error = made.join().expect("no panic").expect_err("rank 2 is gone");
            names(&error, Status::RankLost, &["rank 2"]);
        }
    });
}

/// A refused rank and a waiting rank get one cause, in whichever order they request the group.
#[test]
fn a_rank_that_is_refused_a_group_ends_it_for_the_others() {
    {
        let (here, there, setting) = (daemon(&[]), daemon(&["--max-groups", "1"]), "--max-groups");
        let (first, second) = (attach(&here), attach(&there));
        let alone = second.create_group(&offers(&[&second]), 1, 0).expect("the only one");
        let both = offers(&[&first, &second]);
        names(&second.create_group(&both, 2, 1).expect_err("one too many"), Status::Resource, &[]);
        let error = first.create_group(&both, 2, 0).expect_err("rank 1 cannot");
        names(&error, Status::Resource, &["rank 1", setting]);
        let both = offers(&[&first, &second]);
        thread::scope(|scope| {
            let making = scope.spawn(|| first.create_group(&both, 2, 0));
            await_membership(&here);
            names(&second.create_group(&both, 2, 1).expect_err("one too many"), Status::Resource, &[]);
            let error = making.join().expect("no panic").expect_err("rank 1 cannot");
            names(&error, Status::Resource, &["rank 1", setting]);
        });
        alone.destroy().expect("no request is in flight");
        let both = offers(&[&first, &second]);
        thread::scope(|scope| {
            let making = scope.spawn(|| first.create_group(&both, 2, 0));
            second.create_group(&both, 2, 1).expect("there is room again");
            making.join().expect("no panic").expect("there is room again");
        });
    }
}

/// The service process of the other rank no longer answers.
#[test]
fn a_host_that_vanishes_before_its_rank_asks_is_named() {
    let (here, there) = (daemon(&[]), daemon(&[]));
    let (first, second) = (attach(&here), attach(&there));
    let offers = offers(&[&first, &second]);
    let process = Pid::from_raw(there.id().cast_signed()).expect("a process");
    kill_process(process, Signal::STOP).expect("it is ours");
    let error = first.create_group(&offers, 2, 0).expect_err("rank 1 cannot be heard");
    kill_process(process, Signal::CONT).expect("it is ours");
    names(&error, Status::PeerLost, &["rank 1"]);
}
