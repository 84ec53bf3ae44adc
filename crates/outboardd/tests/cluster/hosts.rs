//! Daemons on the hosts of an emulated cluster, one or several per host: TCP between the daemons, multicast through the
//! switch.

use std::cell::Cell;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::cluster::{Cluster, Layout, Test};
use crate::support::exchanges::LANDING;
use crate::support::refusable::Calls;
use crate::support::{DAEMON, Daemon, Rank, expect_line_from_all, kill_the_last, let_go};
use outboard::Context;
use outboard_lab::{LossScope, PacketLoss};

/// Tests for root only: only root may start programs as other users.
pub(crate) const OF_ROOT: &[Test] =
    &[("two_users_on_the_same_hosts_multicast_at_once", two_users_on_the_same_hosts_multicast_at_once)];
pub(crate) const TESTS: &[Test] = &[
    ("a_host_whose_address_is_gone_or_changed_names_it", a_host_whose_address_is_gone_or_changed_names_it),
    ("multicast_moves_each_block_once", multicast_moves_each_block_once),
    ("hosts_without_multicast_use_none", hosts_without_multicast_use_none),
    ("hosts_that_disagree_on_encryption_make_no_group", hosts_that_disagree_on_encryption_make_no_group),
    ("a_late_leaf_bounds_how_far_small_broadcasts_get_ahead", a_late_leaf_bounds_how_far_small_broadcasts_get_ahead),
    ("large_blocks_are_multicast_if_one_link_is_slow", large_blocks_are_multicast_if_one_link_is_slow),
    ("exchanges_gathers_and_scatters_are_pulled", exchanges_gathers_and_scatters_are_pulled),
    ("payloads_land_in_memory_that_is_mapped", payloads_land_in_memory_that_is_mapped),
    ("a_late_leaf_or_rank_of_an_exchange_delays_nobody", a_late_leaf_or_rank_of_an_exchange_delays_nobody),
    ("a_late_root_of_a_gather_holds_up_nobody", a_late_root_of_a_gather_holds_up_nobody),
    ("ranks_reduce_and_pass_barriers", ranks_reduce_and_pass_barriers),
    ("a_late_rank_holds_up_only_whose_sums_it_is_part_of", a_late_rank_holds_up_only_whose_sums_it_is_part_of),
    ("recorded_groups_run_between_hosts", recorded_groups_run_between_hosts),
    ("lost_datagrams_are_repaired", lost_datagrams_are_repaired),
    ("what_cannot_be_received_or_sent_is_repaired_and_told", what_cannot_be_received_or_sent_is_repaired_and_told),
    ("withdrawn_memory_loses_no_byte_between_hosts", withdrawn_memory_loses_no_byte_between_hosts),
    ("who_disagrees_or_is_killed_is_named_on_all_hosts", who_disagrees_or_is_killed_is_named_on_all_hosts),
    ("a_dead_host_is_named_and_leaves_nothing_behind", a_dead_host_is_named_and_leaves_nothing_behind),
    ("a_host_that_was_cut_off_is_welcome_again", a_host_that_was_cut_off_is_welcome_again),
    ("who_never_asks_for_a_group_is_named_on_all_hosts", who_never_asks_for_a_group_is_named_on_all_hosts),
    ("a_halted_rank_is_late_and_not_dead", a_halted_rank_is_late_and_not_dead),
    ("siblings_share_what_crosses_the_wire_once", siblings_share_what_crosses_the_wire_once),
    ("no_layout_of_ranks_costs_more_on_the_wire", no_layout_of_ranks_costs_more_on_the_wire),
    ("a_killed_sibling_is_named_and_others_are_unharmed", a_killed_sibling_is_named_and_others_are_unharmed),
];

/// MC-1, MC-8: the root multicasts each block once. Small calls move blocks from rank to rank instead (MC-9).
fn multicast_moves_each_block_once() {
    for small in [0, 16 << 10] {
        let cluster = Cluster::start(3, None, &["--eager-bytes", &small.to_string()]);
        let broadcasts: u64 = [0, 1, 1448, 100_003].iter().filter(|bytes| **bytes > small).sum();
        let gathers_behind_them = 4 * 6 * 6 * 3000;
        let uneven: u64 =
            (0..12).flat_map(|call| (0..6).map(move |of| [0, 1, 1447, 10_000, 170_003][(of * 3 + call) % 5])).sum();
        for (scenario, bytes) in [
            ("allgather", bytes_of_allgathers(small, u64::MAX)),
            ("broadcast", 6 * broadcasts + gathers_behind_them),
            ("allgatherv", uneven),
        ] {
            let before = cluster.count("multicast_bytes");
            cluster.run(scenario, 2);
            assert_eq!(cluster.count("multicast_bytes") - before, bytes, "{scenario}, small up to {small}");
        }
    }
}

/// MC-10: daemons of two users share the multicast port on both hosts, and each receives its own groups.
fn two_users_on_the_same_hosts_multicast_at_once() {
    const USERS: [&str; 2] = ["12345", "23456"];
    // Other users may have no access to this user's programs.
    let programs = tempfile::tempdir().expect("a directory");
    let copied = |name: &str, program: &Path| {
        let copy = programs.path().join(name);
        std::fs::copy(program, &copy).expect("room");
        copy
    };
    let daemon = copied("outboardd", Path::new(DAEMON));
    let rank = copied("ranks", &std::env::current_exe().expect("a path"));
    std::fs::set_permissions(programs.path(), std::fs::Permissions::from_mode(0o755)).expect("ours");
    let started = Cell::new(0);
    let cluster = Cluster::start_by(2, USERS.len(), None, &["--eager-bytes", "0"], |lab, host, flags| {
        let user = USERS[started.replace(started.get() + 1) % USERS.len()];
        let mut command = lab.command(host, Path::new("/bin/sh")).expect("the host is up");
        // The arguments are `--socket` and a path in a directory that was made for this daemon.
        let script = "user=$1; shift; chown $user \"${2%/*}\" && \
                      exec setpriv --reuid $user --regid $user --clear-groups \"$0\" \"$@\"";
        command.arg("-c").arg(script).arg(&daemon).arg(user);
        Daemon::start_by(command, flags)
    });
    let of = |user: usize| cluster.daemons.iter().skip(user).step_by(USERS.len()).collect::<Vec<_>>();
    let mut ranks: Vec<Rank> = (0..USERS.len())
        .flat_map(|user| {
            let daemons: Vec<&Daemon> = of(user).into_iter().flat_map(|daemon| [daemon; 3]).collect();
            cluster.ranks_of("allgather", &daemons, 7000 + user as u16, |at| {
                let mut command = cluster.lab.command(&format!("h{}", at / 3 + 1), "setpriv").expect("the host is up");
                command.args(["--reuid", USERS[user], "--regid", USERS[user], "--clear-groups"]).arg(&rank);
                command
            })
        })
        .collect();
    expect_line_from_all(&mut ranks, "done");
    for user in 0..USERS.len() {
        let count = |name: &str| -> u64 {
            of(user).iter().map(|daemon| daemon.statistics()[name].as_u64().expect("a number")).sum()
        };
        assert_eq!((count("ranks"), count("failed"), count("violations")), (6, 0, 0));
        assert_eq!(count("multicast_bytes"), bytes_of_allgathers(0, u64::MAX));
    }
    let_go(ranks);
}

/// Bytes that the allgathers of six ranks send in two runs. Counts only block sizes of at most `large` bytes whose six
/// blocks together exceed `small` bytes.
fn bytes_of_allgathers(small: u64, large: u64) -> u64 {
    let blocks = [0, 1, 1447, 1448, 4096, 100_003, 1 << 20];
    12 * blocks.iter().filter(|block| **block * 6 > small && **block <= large).sum::<u64>()
}

/// MC-8: hosts agree on the link rate. On fast links large blocks are not multicast; if one link is slow, they are.
fn large_blocks_are_multicast_if_one_link_is_slow() {
    for (slow_host, multicast_up_to) in [("none", 16 << 10), ("h2", u64::MAX)] {
        let cluster = Cluster::start_by(3, 1, None, &["--eager-bytes", "0"], |lab, host, flags| {
            let slow = flags.iter().position(|flag| *flag == "--link-rate").expect("the lab's");
            let mut flags = flags.to_vec();
            if host != slow_host {
                flags[slow + 1] = "10gbit";
            }
            Daemon::start_by(lab.command(host, Path::new(DAEMON)).expect("the host is up"), &flags)
        });
        cluster.run("allgather", 2);
        assert_eq!(cluster.count("multicast_bytes"), bytes_of_allgathers(0, multicast_up_to));
    }
}

/// SP-5: several calls of each kind are in flight, with allgathers among them.
fn exchanges_gathers_and_scatters_are_pulled() {
    let cluster = Cluster::start(3, None, &[]);
    cluster.run("alltoall", 2);
    cluster.run("rooted", 2);
    assert_eq!(cluster.count("completed"), 6 * (16 + 50));
}

/// SP-4: without encryption the kernel reads payloads directly into mapped memory.
fn payloads_land_in_memory_that_is_mapped() {
    for (flags, lands) in [(&[][..], true), (&["--encrypt"][..], false)] {
        let cluster = Cluster::start(2, None, flags);
        cluster.run("landing", 2);
        let landed = |daemon: &Daemon| daemon.statistics()["datapath"]["bytes_landed"].as_u64().expect("a number");
        let landed: u64 = cluster.daemons.iter().map(landed).sum();
        // Each of four ranks receives from two ranks of the other host, four times.
        let crossed = 4 * 2 * 4 * LANDING;
        assert_eq!(landed > crossed / 2, lands, "{landed} of {crossed} bytes");
        assert!(lands || landed == 0, "{landed} encrypted bytes");
    }
}

/// TH-2: reductions with both plans for long vectors, also with several daemons per host.
fn ranks_reduce_and_pass_barriers() {
    for (siblings, algorithm) in [(1, "multicast"), (1, "ring"), (2, "multicast")] {
        let cluster = Cluster::with_siblings(3, siblings, None, &["--algorithm", algorithm]);
        for (scenario, calls) in [("reductions", 120), ("own-operators", 120), ("same-bits", 12)] {
            let before = cluster.count("completed");
            cluster.run(scenario, 2);
            assert_eq!(cluster.count("completed"), before + 6 * calls);
        }
    }
}

/// SP-6: the ranks before the late rank of a scan finish without it, and no rank passes the barrier. All ranks get
/// their sums later.
fn a_late_rank_holds_up_only_whose_sums_it_is_part_of() {
    let cluster = Cluster::start(3, None, &[]);
    for scenario in ["late-reduction", "late-own-operator"] {
        let mut ranks = cluster.ranks(scenario, 2);
        let (late, others) = ranks.split_last_mut().expect("six");
        assert_eq!(late.line(), "ready");
        expect_line_from_all(others, "waits");
        let before = cluster.count("late_arrivals");
        late.go_on();
        ranks.into_iter().for_each(Rank::finish);
        // On a busy machine other ranks may also have been late.
        assert!(cluster.count("late_arrivals") > before);
    }
}

/// SP-6, SP-9: the last of six ranks calls after all others have finished. It gets its bytes from staging and counts as
/// late.
fn a_late_leaf_or_rank_of_an_exchange_delays_nobody() {
    for (algorithm, scenario) in [("multicast", "late-leaf"), ("ring", "late-leaf"), ("multicast", "late-exchange")] {
        let cluster = Cluster::start(3, None, &["--algorithm", algorithm]);
        let mut ranks = cluster.ranks(scenario, 2);
        expect_line_from_all(&mut ranks, "ready");
        let (late, others) = ranks.split_last_mut().expect("six");
        expect_line_from_all(others, "done");
        // On a busy machine other ranks may have been late as well.
        let before = cluster.count("late_arrivals");
        late.go_on();
        assert_eq!(late.line(), "done");
        assert_eq!(cluster.count("late_arrivals"), before + 1);
        let_go(ranks);
    }
}

/// SP-6: no rank waits for the late root of a gather or for the late leaf of a scatter.
fn a_late_root_of_a_gather_holds_up_nobody() {
    let cluster = Cluster::start(3, None, &[]);
    let mut ranks = cluster.ranks("late-root", 2);
    for _ in 0..2 {
        expect_line_from_all(&mut ranks, "ready");
        let (late, others) = ranks.split_last_mut().expect("six");
        expect_line_from_all(others, "done");
        late.go_on();
        assert_eq!(late.line(), "done");
        ranks.iter_mut().for_each(Rank::go_on);
    }
    ranks.into_iter().for_each(Rank::finish);
}

/// MC-9: the group's window stops the root from getting further ahead, and no byte is lost.
fn a_late_leaf_bounds_how_far_small_broadcasts_get_ahead() {
    let cluster = Cluster::start(2, None, &[]);
    let mut ranks = cluster.ranks("held-up", 1);
    expect_line_from_all(&mut ranks, "ready");
    assert_eq!(ranks[0].line(), "held up");
    ranks[1].go_on();
    expect_line_from_all(&mut ranks, "done");
    assert_eq!((cluster.count("failed"), cluster.count("violations")), (0, 0));
    let_go(ranks);
}

/// GP-1, GP-2, GP-6, GP-8 with several ranks per host. Ranks that disagree get an error, and so do ranks that lose a
/// rank.
fn recorded_groups_run_between_hosts() {
    let cluster = Cluster::start(2, None, &[]);
    for scenario in ["recorded", "messages", "recorded-sums"] {
        cluster.run(scenario, 2);
    }
    cluster.ranks("crossed", 2).into_iter().for_each(Rank::finish);
    assert_eq!(cluster.count("violations"), 0);
    cluster.ranks_by(Layout::Strided, "truncated", 2).into_iter().for_each(Rank::finish);
    cluster.ranks("recorded-mismatch", 2).into_iter().for_each(Rank::finish);
    kill_the_last(cluster.ranks("recorded-one-dies", 2));
}

/// Ring and tree use no multicast. Encrypted calls use no multicast either.
fn hosts_without_multicast_use_none() {
    for flags in [&["--algorithm", "ring"][..], &["--encrypt"]] {
        let cluster = Cluster::start(3, None, flags);
        let scenarios = ["allgather", "allgatherv", "alltoall", "broadcast"];
        scenarios.into_iter().for_each(|scenario| cluster.run(scenario, 1));
        assert_eq!(cluster.count("multicast_bytes"), 0, "{flags:?}");
    }
}

/// Only one host encrypts. No host connects to it without encryption, and every error names the process that is
/// missing.
fn hosts_that_disagree_on_encryption_make_no_group() {
    let cluster = Cluster::start_unlike(3, &["--algorithm", "ring"], &["--encrypt"]);
    cluster.meet_in_vain("no-world", &["service process", "refuses us"]);
    let refused = |daemon: &Daemon| daemon.statistics()["datapath"]["connections_refused"].as_u64().expect("a number");
    assert!(cluster.daemons.iter().map(refused).sum::<u64>() > 0);
}

/// Options for multicast on the daemon's own thread, on one other thread, and on three other threads.
const RECEIVERS: [&[&str]; 3] = [&["--receivers", "0"], &["--receivers", "1"], &["--receivers", "3"]];

/// MC-6, MC-9 in the daemon, also in a ring whose neighbours are daemons of one host.
fn lost_datagrams_are_repaired() {
    let clusters = RECEIVERS.map(|receivers| (3, 1, receivers));
    for (hosts, siblings, flags) in clusters.into_iter().chain([(2, 2, &[][..])]) {
        let loss = PacketLoss::percent(5, LossScope::Multicast);
        let cluster = Cluster::with_siblings(hosts, siblings, Some(loss), flags);
        cluster.run("allgather", siblings);
        assert!(cluster.count("retransmitted_bytes") > 0, "a twentieth of all datagrams was lost");
    }
}

/// A receiver reports that the kernel refuses its receives, keeps trying, and loses no byte. Datagrams that repeatedly
/// meet a full queue are left to recovery, and delay nothing else.
fn what_cannot_be_received_or_sent_is_repaired_and_told() {
    for receivers in RECEIVERS {
        let mut cluster = Cluster::start_refusable(3, receivers);
        cluster.daemons[0].refuse(Calls::Receives, rustix::io::Errno::NOMEM.raw_os_error());
        cluster.run("allgather", 1);
        cluster.daemons[0].await_statistics(|told| told["datapath"]["receive_failures"].as_u64() >= Some(3));
        assert_eq!(cluster.daemons[0].statistics()["datapath"]["receivers_gone"], 0);
        cluster.daemons[1].refuse(Calls::Sends, rustix::io::Errno::NOBUFS.raw_os_error());
        let sent = || cluster.daemons[1].statistics()["datapath"].take();
        let before = sent();
        cluster.run("allgather", 1);
        let after = sent();
        assert!(after["send_failures"].as_u64() > Some(0), "{after}");
        assert_eq!(after["datagrams_sent"], before["datagrams_sent"]);
    }
}

/// SP-4, GP-9: while calls are in flight, access to the memory of one host's ranks falls back to staging. All hosts get
/// their bytes.
fn withdrawn_memory_loses_no_byte_between_hosts() {
    for (options, scenario, waiting) in [
        (&["--algorithm", "multicast"], "withdrawn", 4),
        (&["--algorithm", "ring"], "withdrawn", 4),
        (&["--algorithm", "multicast"], "withdrawn-under-way", 1),
        (&["--algorithm", "ring"], "withdrawn-under-way", 1),
    ] {
        let mut cluster = Cluster::start_refusable(2, options);
        let mut ranks = cluster.ranks(scenario, 2);
        expect_line_from_all(&mut ranks, "ready");
        for calls in [Calls::Descriptor, Calls::CrossMemory] {
            cluster.daemons[0].refuse(calls, rustix::io::Errno::FAULT.raw_os_error());
        }
        ranks[..waiting].iter_mut().for_each(Rank::go_on);
        let tiers: Vec<_> = ranks.iter_mut().map(Rank::line).collect();
        assert_eq!(tiers, ["staging", "staging", "cross-memory attach", "cross-memory attach"]);
        assert_eq!(cluster.count("failed"), 0);
        assert!(cluster.count("calls_restaged") > 0);
        let_go(ranks);
    }
}

/// Ranks that disagree on a block get both sizes in the error, even if they wait for a call that ended differently.
fn who_disagrees_or_is_killed_is_named_on_all_hosts() {
    let mut cluster = Cluster::start(2, None, &[]);
    for scenario in ["exchange-mismatch", "rooted-mismatch", "nothing-for-who-waits"] {
        cluster.ranks(scenario, 1).into_iter().for_each(Rank::finish);
    }
    kill_the_last(cluster.ranks("one-dies", 2));
    cluster.lose_a_daemon();
}

fn a_dead_host_is_named_and_leaves_nothing_behind() {
    let mut cluster = Cluster::start(3, None, &[]);
    let before: Vec<usize> = cluster.daemons.iter().map(Daemon::descriptors).collect();
    let victim = cluster.daemons[2].statistics()["service_process"].as_str().expect("a name").to_owned();
    for said in cluster.lose_a_host() {
        assert!(said.contains(&victim) && said.contains("rank 4"), "{said}");
    }
    cluster.ranks("in-flight", 2).into_iter().for_each(Rank::finish);
    for (daemon, before) in cluster.daemons.iter().zip(before) {
        // The kernel reports each rank's end; the daemon replies after it has handled all reports.
        let quiet = (0..1000).any(|_| daemon.statistics()["memberships"] == 0);
        let statistics = daemon.statistics();
        assert!(quiet && statistics["calls"] == 0 && statistics["ranks"] == 0, "{statistics}");
        // A connection to the other host stays open.
        daemon.await_descriptors(before + 4);
    }
}

/// One of three ranks has exchanged offers, and then dies or does nothing before it makes the group.
fn who_never_asks_for_a_group_is_named_on_all_hosts() {
    for (timeout, dies, why) in [("1", false, "has not asked for the group"), ("600", true, "died or left")] {
        let cluster = Cluster::start(3, None, &["--group-timeout", timeout]);
        let mut ranks = cluster.ranks("never-asks", 1);
        let mut last = ranks.pop().expect("several");
        assert_eq!(last.line(), "ready");
        if dies {
            last.kill();
        }
        for rank in &mut ranks {
            let said = rank.line();
            assert!(said.contains("rank 2") && said.contains(why), "{said}");
        }
        if !dies {
            last.kill();
        }
        let_go(ranks);
        // The kernel reports each rank's end; the daemon replies after it has handled all reports.
        assert!((0..1000).any(|_| cluster.count("memberships") == 0));
    }
}

/// When a host's link is down, the ranks of that host lose the ranks of the other hosts, by name. Ranks that start
/// after the link is back reach all hosts, although no daemon was restarted.
fn a_host_that_was_cut_off_is_welcome_again() {
    let cluster = Cluster::start(3, None, &[]);
    let cut_off = cluster.daemons[2].statistics()["service_process"].as_str().expect("a name").to_owned();
    let mut ranks = cluster.ranks("a-host-dies", 2);
    let mut alone = ranks.split_off(4);
    expect_line_from_all(&mut alone, "ready");
    expect_line_from_all(&mut ranks, "posted");
    let link = |state: &str| {
        let mut ip = cluster.lab.command("h3", "ip").expect("the host is up");
        assert!(ip.args(["link", "set", "eth0", state]).status().expect("iproute2").success());
    };
    link("down");
    for rank in &mut ranks {
        let said = rank.line();
        assert!(said.contains(&cut_off) && said.contains("rank 4"), "{said}");
    }
    alone.iter_mut().for_each(Rank::kill);
    let_go(ranks);
    link("up");
    let mut ranks = cluster.ranks("allgather", 2);
    expect_line_from_all(&mut ranks, "done");
    let_go(ranks);
}

/// A rank is stopped for longer than a host may be silent. Its process exists, so the rank counts as late, not as dead.
fn a_halted_rank_is_late_and_not_dead() {
    let cluster = Cluster::start(2, None, &[]);
    let mut ranks = cluster.ranks("halted", 2);
    assert_eq!(ranks[3].line(), "ready");
    // The process numbers in the statistics are valid within the lab.
    let statistics = cluster.daemons[1].statistics();
    let seated = statistics["seated"].as_array().expect("a list");
    let last = seated.iter().find(|seat| seat["rank"] == 3).expect("it is attached");
    let signal = |name: &str| {
        let mut kill = cluster.lab.command("h2", "kill").expect("the host is up");
        assert!(kill.args([name, &last["pid"].to_string()]).status().expect("procps").success());
    };
    signal("-STOP");
    ranks[3].go_on();
    expect_line_from_all(&mut ranks[..3], "waits");
    signal("-CONT");
    ranks.into_iter().for_each(Rank::finish);
}

/// SP-8: with several daemons per host all bytes are right, and a link carries no more than with one daemon per host.
fn siblings_share_what_crosses_the_wire_once() {
    let wire = |siblings| {
        let cluster = Cluster::with_siblings(2, siblings, None, &[]);
        cluster.run("allgather", 4);
        cluster.run("broadcast", 4);
        cluster.run("alltoall", 4);
        assert_eq!(cluster.count("violations"), 0);
        cluster.wire_bytes()
    };
    let (one, two) = (wire(1), wire(2));
    assert_similar(&one, &two);
}

/// Checks that both lists are equal within a tenth.
fn assert_similar(some: &[u64], others: &[u64]) {
    let close = |a: u64, b: u64| a.abs_diff(b) <= a.max(b) / 10;
    assert!(some.iter().zip(others).all(|(a, b)| close(*a, *b)), "{some:?} and {others:?} bytes over the links");
}

/// SP-7: four ranks on each of four hosts, numbered host by host or round robin over the hosts.
fn no_layout_of_ranks_costs_more_on_the_wire() {
    let wire = |layout| {
        let cluster = Cluster::with_siblings(4, 2, None, &[]);
        cluster.run_by(layout, "allgather", 4);
        cluster.wire_bytes()
    };
    assert_similar(&wire(Layout::Contiguous), &wire(Layout::Strided));
}

/// The ranks of other daemons get an error that names the lost service process. The other daemon of its host keeps
/// serving.
fn a_killed_sibling_is_named_and_others_are_unharmed() {
    let mut cluster = Cluster::with_siblings(1, 2, None, &[]);
    let victim = cluster.daemons[1].statistics()["service_process"].as_str().expect("a name").to_owned();
    let mut ranks = cluster.ranks("a-sibling-dies", 4);
    expect_line_from_all(&mut ranks, "posted");
    cluster.daemons[1].kill();
    // Rank 0 has not called. Its end would be a second reason for an error.
    for rank in [1, 2, 3] {
        let said = ranks[rank].line();
        let names = if rank == 2 { victim.clone() } else { cluster.daemons[1].socket().display().to_string() };
        assert!(said.contains(&names), "rank {rank}: {said}");
    }
    let_go(ranks);
    let sibling = cluster.daemons.swap_remove(0);
    let rest = Cluster { daemons: vec![sibling], siblings: 1, lab: cluster.lab };
    rest.ranks("in-flight", 2).into_iter().for_each(Rank::finish);
}

/// The address of the service process is gone, so other hosts would connect to the wrong address.
fn a_host_whose_address_is_gone_or_changed_names_it() {
    let cluster = Cluster::start(1, None, &[]);
    let context = Context::attach(Some(&cluster.daemons[0].socket())).expect("it answers");
    context.offer().expect("the address is there");
    let ip = |words: &[&str]| {
        let mut ip = cluster.lab.command("h1", "ip").expect("the host is up");
        assert!(ip.args(words).status().expect("iproute2").success());
    };
    let refused = || context.offer().expect_err("the address is another").to_string();
    ip(&["address", "flush", "dev", "eth0"]);
    let said = refused();
    assert!(said.contains("interface eth0 has no IPv4 address") && said.contains("restart"), "{said}");
    let mut late = cluster.lab.command("h1", Path::new(DAEMON)).expect("the host is up");
    let socket = cluster.daemons[0].socket().with_file_name("late");
    let late = late.args(["--interface", "eth0", "--socket"]).arg(&socket).output().expect("it starts");
    let said = String::from_utf8_lossy(&late.stderr).into_owned();
    assert!(!late.status.success() && said.contains("interface eth0 has no IPv4 address"), "{said}");
    assert!(!socket.exists());
    ip(&["address", "add", "10.99.0.1/24", "dev", "eth0"]);
    let said = refused();
    assert!(said.contains("now 10.99.0.1") && said.contains("restart"), "{said}");
}
