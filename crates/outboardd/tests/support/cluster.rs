//! Daemons on the hosts of an emulated cluster, for test programs that also run as the lab's processes and as ranks.

use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};
use outboard_lab::{Lab, LabSpec, PacketLoss};

use super::{DAEMON, Daemon, Rank, SCENARIO, expect_line_from_all, let_go, run_scenario, start_ranks};

const RATE: u64 = 500_000_000;
const PORT: u16 = 7000;

pub(crate) type Test = (&'static str, fn());

/// Runs the tests of these modules, or the scenario that the environment names. Unless the user is root, the tests in
/// `of_root` are ignored.
pub(crate) fn main(modules: &[(&str, &[Test])], of_root: &[(&str, &[Test])]) -> ExitCode {
    outboard_lab::holder_main_if_requested();
    if run_scenario() {
        return ExitCode::SUCCESS;
    }
    let mut arguments = Arguments::from_args();
    // Tests run one at a time, because each cluster may use all processors.
    arguments.test_threads = Some(1);
    let trial = |module: &str, (name, test): Test| {
        Trial::test(format!("{module}::{name}"), move || {
            test();
            Ok(())
        })
    };
    let all =
        |(module, tests): &(&str, &[Test])| -> Vec<Trial> { tests.iter().map(|&test| trial(module, test)).collect() };
    let ignored = !rustix::process::geteuid().is_root();
    let of_root = of_root.iter().flat_map(all).map(|trial| trial.with_ignored_flag(ignored));
    libtest_mimic::run(&arguments, modules.iter().flat_map(all).chain(of_root).collect()).exit_code()
}

/// A lab with daemons on its hosts.
pub(crate) struct Cluster {
    /// The daemons, host by host.
    pub(crate) daemons: Vec<Daemon>,
    /// Number of daemons on each host.
    pub(crate) siblings: usize,
    pub(crate) lab: Lab,
}

#[derive(Clone, Copy)]
pub(crate) enum Layout {
    /// Neighbouring ranks are on one host.
    Contiguous,
    /// Neighbouring ranks are on different hosts.
    Strided,
}

impl Cluster {
    pub(crate) fn start(hosts: u16, loss: Option<PacketLoss>, flags: &[&str]) -> Cluster {
        Cluster::with_siblings(hosts, 1, loss, flags)
    }

    /// Starts `siblings` daemons on each host (SP-8).
    pub(crate) fn with_siblings(hosts: u16, siblings: usize, loss: Option<PacketLoss>, flags: &[&str]) -> Cluster {
        Cluster::start_by(hosts, siblings, loss, flags, |lab, host, flags| {
            Daemon::start_by(lab.command(host, Path::new(DAEMON)).expect("the host is up"), flags)
        })
    }

    /// Starts daemons for which the test can make the kernel refuse system calls.
    pub(crate) fn start_refusable(hosts: u16, flags: &[&str]) -> Cluster {
        Cluster::start_by(hosts, 1, None, flags, |lab, host, flags| {
            let program = std::env::current_exe().expect("a path");
            Daemon::start_refusable(lab.command(host, program).expect("the host is up"), flags)
        })
    }

    /// Starts daemons; the daemon of the second host gets the flags `second` in addition.
    pub(crate) fn start_unlike(hosts: u16, flags: &[&str], second: &[&str]) -> Cluster {
        let flags = [flags, &["--log", "error"]].concat();
        Cluster::start_by(hosts, 1, None, &flags, |lab, host, flags| {
            let flags = [flags, if host == "h2" { second } else { &[] }].concat();
            Daemon::start_by(lab.command(host, Path::new(DAEMON)).expect("the host is up"), &flags)
        })
    }

    /// Starts one rank on each host, in a scenario in which the group cannot be made. Checks that each rank reports an
    /// error with these words.
    pub(crate) fn meet_in_vain(&self, scenario: &str, words: &[&str]) {
        let mut ranks = self.ranks(scenario, 1);
        for rank in &mut ranks {
            let said = rank.line();
            assert!(words.iter().all(|word| said.contains(word)), "{said}");
        }
        let_go(ranks);
    }

    pub(crate) fn start_by(
        hosts: u16,
        siblings: usize,
        loss: Option<PacketLoss>,
        flags: &[&str],
        daemon: impl Fn(&Lab, &str, &[&str]) -> Daemon,
    ) -> Cluster {
        let spec = LabSpec::new(hosts, RATE).expect("a valid lab").with_loss(loss);
        let lab = Lab::start(&spec).expect("the lab starts");
        let daemons = (1..=hosts)
            .flat_map(|host| std::iter::repeat_n(host, siblings))
            .map(|host| {
                let rate = format!("{RATE}bit");
                let flags = [&["--interface", "eth0", "--link-rate", &rate], flags].concat();
                daemon(&lab, &format!("h{host}"), &flags)
            })
            .collect();
        Cluster { daemons, siblings, lab }
    }

    pub(crate) fn again(&self, host: usize) -> Command {
        let program = std::env::current_exe().expect("a path");
        self.lab.command(&format!("h{}", host + 1), program).expect("the host is up")
    }

    /// Starts `each` ranks per host; neighbouring ranks are on one host.
    pub(crate) fn ranks(&self, scenario: &str, each: usize) -> Vec<Rank> {
        self.ranks_by(Layout::Contiguous, scenario, each)
    }

    /// Starts `each` ranks per host. A rank attaches to the daemon that its local rank selects (GP-3).
    pub(crate) fn ranks_by(&self, layout: Layout, scenario: &str, each: usize) -> Vec<Rank> {
        let hosts = self.daemons.len() / self.siblings;
        let place = |rank: usize| match layout {
            Layout::Contiguous => (rank / each, rank % each),
            Layout::Strided => (rank % hosts, rank / hosts),
        };
        self.ranks_at(scenario, &(0..hosts * each).map(place).collect::<Vec<_>>())
    }

    pub(crate) fn ranks_at(&self, scenario: &str, places: &[(usize, usize)]) -> Vec<Rank> {
        let daemon = |(host, local): &_| &self.daemons[host * self.siblings + local % self.siblings];
        let daemons: Vec<&Daemon> = places.iter().map(daemon).collect();
        self.ranks_of(scenario, &daemons, PORT, |rank| self.again(places[rank].0))
    }

    /// Starts a rank at each of these daemons by `again`; the ranks meet at a port of the first host.
    pub(crate) fn ranks_of(
        &self,
        scenario: &str,
        daemons: &[&Daemon],
        port: u16,
        again: impl Fn(usize) -> Command,
    ) -> Vec<Rank> {
        let address: Ipv4Addr = self.lab.address(1);
        let rendezvous = format!("{address}:{port}");
        let mut server = Rank::spawn(
            self.again(0)
                .env(SCENARIO, "rendezvous")
                .env("OUTBOARD_RENDEZVOUS", &rendezvous)
                .env("OUTBOARD_WORLD_SIZE", daemons.len().to_string()),
        );
        assert_eq!(server.line(), "ready");
        let ranks = start_ranks(scenario, daemons, &rendezvous, again);
        server.finish();
        ranks
    }

    /// Runs ranks of a scenario that report when they are done; returns when all have ended successfully.
    pub(crate) fn run(&self, scenario: &str, each: usize) {
        self.run_by(Layout::Contiguous, scenario, each);
    }

    pub(crate) fn run_by(&self, layout: Layout, scenario: &str, each: usize) {
        let mut ranks = self.ranks_by(layout, scenario, each);
        expect_line_from_all(&mut ranks, "done");
        let_go(ranks);
        assert_eq!(self.count("failed"), 0);
    }

    /// Bytes that each host's link has carried so far, in both directions.
    pub(crate) fn wire_bytes(&self) -> Vec<u64> {
        let ports = self.lab.counters().expect("the lab is up");
        ports.iter().map(|port| port.tx.bytes + port.rx.bytes).collect()
    }

    /// The only multicast address that a host receives.
    pub(crate) fn channel(&self, host: u16) -> Ipv4Addr {
        let mut list = self.lab.command(&format!("h{}", host + 1), "cat").expect("the host is up");
        let list = list.arg("/proc/net/igmp").output().expect("coreutils").stdout;
        let list = String::from_utf8(list).expect("text");
        let words = list.split_whitespace().filter(|word| word.len() == 8);
        let groups = words.filter_map(|word| Some(Ipv4Addr::from(u32::from_str_radix(word, 16).ok()?.to_ne_bytes())));
        groups.into_iter().find(|group| group.octets()[0] == 239).expect("a group is made")
    }

    /// Takes a host's link down and kills all processes of the host at once, so that its kernel closes no connection to
    /// other hosts.
    pub(crate) fn kill_host(&mut self, host: usize, ranks: &mut [Rank]) {
        let mut silence = self.lab.command(&format!("h{}", host + 1), "ip").expect("the host is up");
        let status = silence.args(["link", "set", "eth0", "down"]).status().expect("iproute2");
        assert!(status.success(), "{status}");
        ranks.iter_mut().for_each(Rank::kill);
        self.daemons[host].kill();
    }

    /// Kills the second of two daemons while all ranks have calls in flight. The ranks of the other host get an error
    /// that names the lost service process. The ranks of the killed daemon get the error that their own service process
    /// is lost.
    pub(crate) fn lose_a_daemon(&mut self) {
        let mut ranks = self.ranks("a-daemon-dies", 2);
        expect_line_from_all(&mut ranks, "posted");
        self.daemons[1].kill();
        ranks.drain(1..).for_each(Rank::finish);
        let_go(ranks);
    }

    /// Takes down the last of three hosts while ranks of the other hosts have calls in flight; returns the report of
    /// each of these ranks.
    pub(crate) fn lose_a_host(&mut self) -> Vec<String> {
        let mut ranks = self.ranks("a-host-dies", 2);
        let mut dead = ranks.split_off(4);
        expect_line_from_all(&mut dead, "ready");
        expect_line_from_all(&mut ranks, "posted");
        self.kill_host(2, &mut dead);
        let said = ranks.iter_mut().map(Rank::line).collect();
        let_go(ranks);
        self.daemons.truncate(2);
        said
    }

    pub(crate) fn count(&self, name: &str) -> u64 {
        self.daemons.iter().map(|daemon| daemon.statistics()[name].as_u64().expect("a number")).sum()
    }
}
