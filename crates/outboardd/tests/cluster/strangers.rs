//! Strangers on the network send datagrams to the daemons of an emulated cluster, and no daemon accepts the datagrams.

use crate::support::cluster::{Cluster, Test};
use crate::support::{Rank, SCENARIO, expect_line_from_all, forger, let_go};

pub(crate) const TESTS: &[Test] = &[
    ("hosts_that_disagree_on_multicast_auth_make_no_group", hosts_that_disagree_on_multicast_auth_make_no_group),
    ("captured_datagrams_change_nothing", captured_datagrams_change_nothing),
];

/// The error names both hosts and the setting.
fn hosts_that_disagree_on_multicast_auth_make_no_group() {
    let cluster = Cluster::start_unlike(2, &[], &["--multicast-auth", "off"]);
    cluster.meet_in_vain("mismatched-world", &["h1", "h2", "--multicast-auth"]);
}

/// A fourth host captures all datagrams of a call and replays them from its own address. After 65,536 calls it replays
/// them from the sender's address; every second datagram then has a forged payload.
fn captured_datagrams_change_nothing() {
    let cluster = Cluster::start(4, None, &[]);
    let mut ranks = cluster.ranks_at("replayed", &[(0, 0), (1, 0), (2, 0)]);
    expect_line_from_all(&mut ranks, "made");
    let mut stranger = Rank::spawn(
        cluster
            .again(3)
            .env(SCENARIO, "stranger")
            .env(forger::CHANNEL, cluster.channel(0).to_string())
            .env(forger::SENDER, cluster.lab.address(2).to_string()),
    );
    assert_eq!(stranger.line(), "listens");
    ranks.iter_mut().for_each(Rank::go_on);
    expect_line_from_all(&mut ranks, "captured");
    stranger.go_on();
    let captured: u64 = stranger.line().parse().expect("a number");
    assert!(captured > 50, "{captured} datagrams of a call");
    ranks.iter_mut().for_each(Rank::go_on);
    expect_line_from_all(&mut ranks, "ready");
    let refused = || cluster.daemons[0].statistics()["datagrams_refused"].as_u64().expect("a number");
    assert_eq!(refused(), captured, "they came from another address");
    ranks[0].go_on();
    ranks[2].go_on();
    // The statistics count the call once the daemon has taken all posted calls.
    cluster.daemons[0].await_statistics(|told| told["calls"] != 0);
    stranger.go_on();
    assert_eq!(stranger.line(), "sent");
    ranks[1].go_on();
    expect_line_from_all(&mut ranks, "done");
    assert_eq!(refused(), 2 * captured);
    stranger.finish();
    let_go(ranks);
}
