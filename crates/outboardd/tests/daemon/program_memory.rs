//! Ranks whose memory is not as usual: protected, out of reach for the service process, limited, or forked.

use std::process::Command;

use outboard::{Context, Status};

use crate::support::refusable::Calls;
use crate::support::{DAEMON, Daemon, Rank, again, expect_line_from_all, last_words, let_go, rank_at, ranks};

const RANKS: usize = 3;

/// Tiers of access to memory, each with what the kernel refuses before the ranks attach.
const TIERS: [&[Calls]; 3] = [&[], &[Calls::CrossMemory], &[Calls::CrossMemory, Calls::Descriptor]];

fn daemon(refused: &[Calls]) -> Daemon {
    let mut daemon = Daemon::start_refusable(again(), &[]);
    refused.iter().for_each(|calls| daemon.refuse(*calls, libc::EPERM));
    daemon
}

/// SP-4: in every tier a receive into memory that the rank may not write is the rank's error, and changes no byte.
#[test]
fn memory_that_the_rank_may_not_write_is_named_and_stays_as_it_was() {
    for refused in TIERS {
        let daemon = daemon(refused);
        for scenario in ["unwritable", "unwritable-shared"] {
            ranks(scenario, &daemon, RANKS).into_iter().for_each(Rank::finish);
        }
        assert_eq!(daemon.statistics()["tiers_withdrawn"], 0, "the rank's fault lowers no tier");
    }
}

/// GP-9: the rank itself copies what only its processor reaches, in every tier.
#[test]
fn memory_that_no_other_process_reaches_is_staged() {
    for refused in TIERS {
        let daemon = daemon(refused);
        let mut ranks = ranks("out-of-reach", &daemon, RANKS);
        let kinds: Vec<String> = ranks.iter_mut().map(Rank::line).collect();
        if kinds.contains(&String::new()) {
            eprintln!("skipped: this kernel has no memory that only one process reaches");
        } else if refused.len() < TIERS.len() - 1 {
            assert!(daemon.statistics()["calls_restaged"].as_u64() > Some(0), "{kinds:?}: nothing was staged");
        }
        let_go(ranks);
        assert_eq!(daemon.statistics()["tiers_withdrawn"], 0);
    }
}

/// A signal would end the rank.
#[test]
fn limits_of_the_program_are_met_by_plain_memory_or_an_error() {
    let reached = Daemon::start(&[]);
    let mut all = ranks("limited", &reached, 2);
    expect_line_from_all(&mut all, "done");
    all.into_iter().for_each(Rank::finish);
    assert_eq!(last_words(rank_at(&reached.socket(), "limited-from-the-start")), "done");
    let staged = daemon(TIERS[2]);
    let mut all = ranks("limited-staging", &staged, 2);
    expect_line_from_all(&mut all, "done");
    all.into_iter().for_each(Rank::finish);
}

#[test]
fn daemon_below_a_limit_on_files_refuses_ranks_and_lives() {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 20 && exec \"$0\" \"$@\"", DAEMON]);
    let daemon = Daemon::start_by(command, &[]);
    for _ in 0..2 {
        let refused = Context::attach(Some(&daemon.socket())).expect_err("no shared memory");
        assert_eq!(refused.status(), Status::Resource, "{refused}");
        assert!(refused.to_string().contains("ulimit -f"), "{refused}");
    }
}

#[test]
fn forked_child_has_its_own_copy_of_allocated_memory() {
    let daemon = Daemon::start(&[]);
    let mut ranks = ranks("forked", &daemon, 2);
    expect_line_from_all(&mut ranks, "done");
    ranks.into_iter().for_each(Rank::finish);
}
