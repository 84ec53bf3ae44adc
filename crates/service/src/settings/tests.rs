use super::*;
use clap::{CommandFactory, FromArgMatches};

/// Parses a command line into settings and matches.
pub(crate) fn parse(words: &[&str]) -> (Settings, ArgMatches) {
    let matches = Settings::command().try_get_matches_from(words).expect("valid words");
    (Settings::from_arg_matches(&matches).expect("valid words"), matches)
}

#[test]
fn a_single_host_needs_no_network() {
    let (settings, matches) = parse(&["outboardd", "--mtu", "1500", "--chains", "2"]);
    assert_eq!(settings.fabric(), FabricChoice::Loopback);
    let config = settings.resolve().expect("usable");
    assert_eq!((config.chunk_bytes, config.datagram_overhead), (1448, 66));
    assert!(!config.multicast);
    let printed = print(&matches);
    assert!(printed.contains("chains = 2 (flag)"), "{printed}");
    assert!(printed.contains("subgroups = 1 (default)"), "{printed}");
}

#[test]
fn sp_9_the_watchdog_is_on_unless_told_otherwise() {
    let watchdog = |words: &[&str]| parse(words).0.resolve().expect("usable").watchdog;
    assert_eq!(watchdog(&["outboardd"]), Some(Duration::from_secs(30)));
    assert_eq!(watchdog(&["outboardd", "--watchdog", "0.5"]), Some(Duration::from_millis(500)));
    assert_eq!(watchdog(&["outboardd", "--watchdog", "0"]), None);
    assert_eq!(watchdog(&["outboardd", "--watchdog", "2 ms"]), Some(Duration::from_millis(2)));
}

#[test]
fn units_of_sizes_and_times_are_read_in_every_setting() {
    let (settings, _) = parse(&["outboardd", "--mtu", "9K", "--drain", "500ms", "--group-timeout", "1 min"]);
    assert_eq!(settings.mtu, Auto::Given(Size(9 << 10)));
    assert_eq!((settings.drain, settings.group_timeout), (Duration::from_millis(500), Duration::from_secs(60)));
    assert_eq!(parse(&["outboardd", "--drain", "7"]).0.drain, Duration::from_secs(7));
    for (flag, form) in [("--mtu", "64K"), ("--drain", "ms"), ("--link-rate", "gbit"), ("--eager-bytes", "64K")] {
        let refused = Settings::command().try_get_matches_from(["outboardd", flag, "much"]).expect_err(flag);
        assert!(refused.to_string().contains(form), "{refused}");
    }
}

/// SP-5: the link rate determines how many bytes of an all-to-all are in flight at once.
#[test]
fn sp_5_fast_links_carry_more_at_once() {
    let at_once = |rate: &str| {
        let config = parse(&["outboardd", "--link-rate", rate]).0.resolve().expect("usable");
        (config.link_rate, config.fragment_bytes, config.pull_bytes)
    };
    assert_eq!(at_once("250mbit"), (250_000_000, 32 << 10, 512 << 10));
    assert_eq!(at_once("1gbit"), (1_000_000_000, 32 << 10, 512 << 10));
    assert_eq!(at_once("100gbit"), (100_000_000_000, 64 << 10, 1 << 20));
}

#[test]
fn impossible_settings_are_refused_by_name() {
    let refused = |words: &[&str]| parse(words).0.resolve().expect_err("unusable").to_string();
    assert!(refused(&["outboardd", "--algorithm", "multicast"]).contains("--interface"));
    assert!(refused(&["outboardd", "--mtu", "100"]).contains("100"));
    assert!(refused(&["outboardd", "--mtu", "1M"]).contains("1048576 bytes"));
    let line = Settings::command().try_get_matches_from(["outboardd", "--link-rate", "0"]);
    assert!(line.expect_err("unusable").to_string().contains("0 bit/s"));
    assert!(refused(&["outboardd", "--interface", "../lo"]).contains("../lo"));
}

#[test]
fn a_tuning_file_is_read_or_refused_by_line() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tuning.toml");
    let path = path.to_str().expect("ASCII");
    let resolve = || parse(&["outboardd", "--tuning", path]).0.resolve();
    assert!(resolve().expect_err("no file").to_string().contains(path));
    std::fs::write(path, "[cost]\nlatency = \"1 ms\"\n").expect("written");
    let tuning = resolve().expect("usable").tuning.expect("a tuning");
    assert_eq!(tuning.cost.latency.in_nanoseconds(), 1_000_000);
    std::fs::write(path, "[cost]\nlatency = \"soon\"\n").expect("written");
    let refused = resolve().expect_err("unusable").to_string();
    assert!(refused.contains("tuning.toml, line 2: `soon` is no duration"), "{refused}");
}

#[test]
fn a_cluster_key_is_a_secret_or_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("key");
    let read = || parse(&["outboardd", "--cluster-key", path.to_str().expect("ASCII")]).0.read_cluster_key();
    assert!(matches!(read(), Err(SettingsError::KeyFile { .. })));
    std::fs::write(&path, b"secret").expect("written");
    for (mode, taken) in [(0o600, true), (0o640, false), (0o604, false), (0o400, true)] {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).expect("ours");
        assert_eq!(read().is_ok(), taken, "{mode:o}");
    }
    // RDMA would admit peers that lack the key.
    let key = ["--cluster-key", path.to_str().expect("ASCII")];
    let by_ucx = parse(&[&["outboardd", "--interface", "lo", "--fabric", "ucx"][..], &key].concat()).0;
    assert!(by_ucx.resolve().expect_err("refused").to_string().starts_with("--cluster-key needs TCP"));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).expect("ours");
    std::fs::write(&path, b"").expect("written");
    assert!(matches!(read(), Err(SettingsError::Key { length: 0, .. })));
}

#[test]
fn an_interface_brings_tcp_and_multicast() {
    let (settings, _) = parse(&["outboardd", "--interface", "lo"]);
    assert_eq!(settings.fabric(), FabricChoice::Tcp);
    let config = settings.resolve().expect("lo exists everywhere");
    assert!(config.multicast);
}

/// `--encrypt` encrypts everything or is refused with a reason. The digest that the members of a group compare covers
/// multicast.
#[test]
fn encryption_leaves_nothing_in_the_clear() {
    let words = |more: &[&'static str]| [&["outboardd", "--interface", "lo"], more].concat();
    let resolve = |more: &[&'static str]| parse(&words(more)).0.resolve();
    let (settings, _) = parse(&words(&["--encrypt"]));
    assert_eq!((settings.fabric(), settings.algorithm()), (FabricChoice::Tcp, AlgorithmChoice::Ring));
    let (encrypted, plain) = (resolve(&["--encrypt"]).expect("usable"), resolve(&[]).expect("usable"));
    assert_ne!(encrypted.digest(), plain.digest());
    let refused = |more: &[&'static str]| resolve(more).expect_err("in the clear").to_string();
    assert!(refused(&["--encrypt", "--algorithm", "multicast"]).contains("--algorithm ring"));
    assert!(refused(&["--encrypt", "--fabric", "ucx"]).contains("--fabric ucx"));
    assert!(refused(&["--encrypt", "--engine", "ofi-triggered"]).contains("--engine ofi-triggered"));
}
