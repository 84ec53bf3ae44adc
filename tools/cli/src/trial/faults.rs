//! Faults of the hosts of a trial, and how they are mended.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use outboard_lab::LabNode;
use outboard_service::statistics::RankCounts;
use rustix::process::{Resource, Signal, getrlimit};

use super::{Trial, TrialDaemon, User, signal};
use crate::error::CliError;
use crate::{launch, places};

/// The firewall table of one-way cuts, on the host that does not receive.
const TABLE: &str = "trial";
/// Attempts to make a file system as small as its content.
const TRIES: usize = 10;
/// A memory file system in which programs of a host keep temporary files.
const RUN: &str = "/run";

impl Trial {
    /// Kills the daemon of a user on a host, like `kill -9`.
    pub(crate) fn kill_daemon(&self, host: u16, user: User) -> Result<(), CliError> {
        self.at_daemon(host, user, |daemon| {
            signal(&daemon.pidfd, Signal::KILL);
            daemon.process.wait().map(drop).map_err(CliError::system(format!("wait for {}", daemon.process.name())))
        })
    }

    /// Starts a daemon, in place of one that has ended, if any.
    pub(crate) fn restart_daemon(&self, host: u16, user: User) -> Result<(), CliError> {
        let daemon = self.start_daemon(host, user)?;
        self.daemons().insert((host, user), daemon);
        Ok(())
    }

    /// Stops a daemon, or continues it.
    pub(crate) fn halt_daemon(&self, host: u16, user: User, halted: bool) {
        let wanted = if halted { Signal::STOP } else { Signal::CONT };
        self.at_daemon(host, user, |daemon| signal(&daemon.pidfd, wanted));
    }

    fn at_daemon<T>(&self, host: u16, user: User, act: impl FnOnce(&mut TrialDaemon) -> T) -> T {
        act(self.daemons().get_mut(&(host, user)).expect("each host has one of each user"))
    }

    /// Pulls the cable of a host.
    pub(crate) fn cut(&self, host: u16) -> Result<(), CliError> {
        self.within(host, "ip", &["link", "set", "eth0", "down"])
    }

    /// Plugs the cable in again.
    pub(crate) fn mend(&self, host: u16) -> Result<(), CliError> {
        self.within(host, "ip", &["link", "set", "eth0", "up"])?;
        self.within(host, "ip", &["route", "replace", "224.0.0.0/4", "dev", "eth0"])
    }

    /// Drops all that `from` sends to `to`.
    pub(crate) fn cut_one_way(&self, from: u16, to: u16) -> Result<(), CliError> {
        let address = LabNode::Host(from).address();
        let rules = format!(
            "table inet {TABLE} {{ chain in {{ type filter hook input priority 0; ip saddr {address} drop; }}; }}"
        );
        self.within(to, "nft", &[&rules])
    }

    /// Ends all one-way cuts at `to`.
    pub(crate) fn mend_one_way(&self, to: u16) -> Result<(), CliError> {
        self.within(to, "nft", &["delete", "table", "inet", TABLE])
    }

    /// Takes the power from the host: no kernel closes the connections of its processes.
    pub(crate) fn crash(&self, host: u16) -> Result<(), CliError> {
        self.cut(host)?;
        Ok(self.lab.crash(host)?)
    }

    /// Leaves no room for files on a host, or restores it.
    pub(crate) fn fill_disk(&self, host: u16, full: bool) -> Result<(), CliError> {
        // The kernel refuses the new size if a file was made after the used size was read.
        let first = self.try_fill_disk(host, full);
        (1..TRIES).fold(first, |tried, _| tried.or_else(|_| self.try_fill_disk(host, full)))
    }

    fn try_fill_disk(&self, host: u16, full: bool) -> Result<(), CliError> {
        let size = if full {
            let used = rustix::fs::statvfs(self.seen(host, RUN))
                .map_err(|error| CliError::system(format!("look at {RUN} of h{host}"))(error.into()))?;
            format!(
                "remount,size={},nr_inodes={}",
                (used.f_blocks - used.f_bfree) * used.f_frsize,
                used.f_files - used.f_ffree
            )
        } else {
            "remount,size=50%,nr_inodes=100000".to_owned()
        };
        // Without -n, mount would write a file to the file system that it resizes.
        self.within(host, "mount", &["-n", "-o", &size, RUN])
    }

    /// Leaves a daemon only the descriptors that it has open, or restores its limit.
    pub(crate) fn take_descriptors(&self, host: u16, user: User, scarce: bool) -> Result<(), CliError> {
        self.at_daemon(host, user, |daemon| take_descriptors(daemon, scarce))
    }

    /// Removes the files of a host's directory whose names begin with `prefix`.
    pub(crate) fn remove_files(&self, host: u16, directory: &str, prefix: &str) {
        let files = fs::read_dir(self.seen(host, directory)).into_iter().flatten().flatten();
        let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(prefix));
        // A file that another process removes at this moment is gone as well.
        named.for_each(|file| drop(fs::remove_file(file.path())));
    }

    /// Waits until the daemons serve no rank any more; returns what they still hold.
    pub(crate) fn quiet(&self, patience: Duration) -> Result<Vec<String>, CliError> {
        let deadline = Instant::now() + patience;
        let mut left = Vec::new();
        let daemons: Vec<_> = self.daemons().keys().copied().collect();
        for (host, user) in daemons {
            loop {
                let RankCounts { ranks, calls, memberships, .. } = self.statistics(host, user)?.present;
                if (ranks, calls, memberships) == (0, 0, 0) {
                    break;
                }
                if Instant::now() >= deadline {
                    let name = self.at_daemon(host, user, |daemon| daemon.process.name().to_owned());
                    left.push(format!("{name} has {ranks} ranks and {calls} calls that nobody has"));
                    break;
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(left)
    }
}

fn take_descriptors(daemon: &TrialDaemon, scarce: bool) -> Result<(), CliError> {
    let (id, name) = (daemon.id.as_raw_nonzero(), daemon.process.name());
    let current = if scarce {
        let open = fs::read_dir(format!("/proc/{id}/fd")).map(Iterator::count);
        open.map_err(CliError::system(format!("look at the descriptors of {name}")))?.to_string()
    } else {
        // The highest limit that the process may have.
        getrlimit(Resource::Nofile).maximum.map_or_else(|| "unlimited".to_owned(), |most| most.to_string())
    };
    // Runs as the daemon's user, because the limits of another user's process need a privilege.
    let mut command = Command::new("setpriv");
    launch::become_user(&mut command, daemon.user).args(["prlimit", "--pid", &id.to_string()]);
    places::run_tool(command.arg(format!("--nofile={current}:")), &format!("limit the descriptors of {name}"))
}
