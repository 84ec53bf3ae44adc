//! Ranks of several users at one daemon: who may attach, and that nobody gets into the groups of another.
//! Root only; skipped with a printed reason for others.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use outboard::Context;

use crate::support::{AGAIN, Daemon, Rank, SCENARIO};

const NOBODY: &str = "65534";

fn is_root() -> bool {
    let root = std::fs::metadata("/proc/self").expect("there").uid() == 0;
    if !root {
        eprintln!("skipped: only root may start ranks as another user");
    }
    root
}

/// A daemon whose socket everybody may find and open, and a copy of this program beside it.
fn open_daemon(flags: &[&str]) -> (Daemon, PathBuf) {
    let daemon = Daemon::start(&[&["--socket-mode", "666"], flags].concat());
    let directory = daemon.socket().parent().expect("a directory").to_owned();
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o755)).expect("ours");
    let program = directory.join("ranks");
    std::fs::copy(std::env::current_exe().expect("a path"), &program).expect("room");
    (daemon, program)
}

/// A rank of another user.
fn of_nobody(scenario: &str, daemon: &Daemon, program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups"]).arg(program);
    command.args(AGAIN);
    command.env(SCENARIO, scenario).env("OUTBOARD_SOCKET", daemon.socket());
    command
}

#[test]
fn users_attach_where_the_mode_or_the_list_lets_them() {
    if !is_root() {
        return;
    }
    for flags in [&[][..], &["--allow-uid", NOBODY]] {
        let (daemon, program) = open_daemon(flags);
        let mut rank = Rank::spawn(&mut of_nobody("alone", &daemon, &program));
        assert_eq!(rank.line(), "ready");
        rank.go_on();
        rank.finish();
    }
    let (daemon, program) = open_daemon(&["--allow-uid", "1000"]);
    let mut rank = Rank::spawn(&mut of_nobody("refused", &daemon, &program));
    let why = rank.line();
    assert!(why.contains("user 65534") && why.contains("--allow-uid"), "{why}");
    rank.finish();
}

/// Page faults of other users hold up nobody: their memory is not touched unless that is asked for.
#[test]
fn memory_of_other_users_is_reached_on_demand_alone() {
    if !is_root() {
        return;
    }
    for (flags, tier) in [(&[][..], "staging"), (&["--reach", "any-user"], "memory_descriptor")] {
        let (daemon, program) = open_daemon(flags);
        let mut rank = Rank::spawn(&mut of_nobody("alone", &daemon, &program));
        assert_eq!(rank.line(), "ready");
        assert_eq!(daemon.statistics()["memory_tiers"][tier], 1, "{flags:?}");
        rank.go_on();
        rank.finish();
    }
}

/// A user takes as many places as are left for others, and no more.
#[test]
fn no_user_takes_all_places_of_ranks() {
    if !is_root() {
        return;
    }
    let (daemon, program) = open_daemon(&["--max-ranks", "3"]);
    let attached = [0, 1].map(|_| {
        let mut rank = Rank::spawn(&mut of_nobody("alone", &daemon, &program));
        assert_eq!(rank.line(), "ready");
        rank
    });
    let mut refused = Rank::spawn(&mut of_nobody("refused", &daemon, &program));
    let why = refused.line();
    assert!(why.contains("user 65534 has 2 ranks") && why.contains("--max-ranks"), "{why}");
    refused.finish();
    drop(Context::attach(Some(&daemon.socket())).expect("there is a place for the next user"));
    for mut rank in attached {
        rank.go_on();
        rank.finish();
    }
}

/// Whoever has read another user's offers can do nothing with them.
#[test]
fn stolen_offers_make_no_group() {
    if is_root() {
        let (daemon, program) = open_daemon(&[]);
        no_group_is_made_of_stolen_offers(&daemon, &program);
    }
}

/// A daemon with a dock, and a relay to it that everybody may find.
fn open_relay(flags: &[&str]) -> (Daemon, Daemon, PathBuf) {
    let address = format!("127.0.0.1:{}", outboard_lab::free_port().expect("a port"));
    let daemon = Daemon::start(&[&["--dock", &address], flags].concat());
    let (relay, program) = open_daemon(&["--relay", &address]);
    (daemon, relay, program)
}

/// All of them are the dock's user where the service process is.
#[test]
fn users_behind_a_relay_keep_their_offers_and_their_quotas() {
    if !is_root() {
        return;
    }
    let (_daemon, relay, program) = open_relay(&["--job-groups", "2", "--user-jobs", "1"]);
    no_group_is_made_of_stolen_offers(&relay, &program);
    let context = Context::attach(Some(&relay.socket())).expect("it answers");
    let groups = [0, 1].map(|_| {
        let offer = *context.offer().expect("an offer");
        context.create_group(&offer, 1, 0).expect("it is made")
    });
    let mut other = Rank::spawn(&mut of_nobody("alone", &relay, &program));
    assert_eq!(other.line(), "ready");
    other.go_on();
    other.finish();
    groups.into_iter().for_each(|group| group.destroy().expect("at rest"));
}

fn no_group_is_made_of_stolen_offers(daemon: &Daemon, program: &Path) {
    let contexts = [0, 1].map(|_| Context::attach(Some(&daemon.socket())).expect("it answers"));
    let offers = contexts.each_ref().map(|context| *context.offer().expect("an offer"));
    let stolen = program.with_file_name("offers");
    std::fs::write(&stolen, offers.concat()).expect("room");
    let mut thief = Rank::spawn(of_nobody("thief", daemon, program).env("OUTBOARD_TEST_OFFERS", &stolen));
    for rank in [0, 1] {
        let why = thief.line();
        assert!(why.contains(&format!("offer of rank {}", 1 - rank)) && why.contains("65534"), "{why}");
    }
    thief.finish();
    // The owners' group is made all the same.
    let all = offers.concat();
    std::thread::scope(|scope| {
        for (context, rank) in contexts.iter().zip(0..) {
            let all = &all;
            scope.spawn(move || context.create_group(all, 2, rank).expect("it is made").destroy().expect("at rest"));
        }
    });
}
