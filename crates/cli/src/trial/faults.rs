//! What goes wrong with the hosts of a trial, and how it is mended.

use std::fs;

use outboard_lab::Node;
use rustix::process::{Resource, Rlimit, Signal, prlimit};

use super::{Trial, signal};
use crate::error::CliError;

/// The rules of one-way cuts on a host that does not hear.
const TABLE: &str = "trial";
/// Times that a file system is made as small as what is in it.
const TRIES: usize = 10;
/// Where programs of a host keep what is gone with it: a memory file system.
const RUN: &str = "/run";

impl Trial {
    /// As `kill -9`.
    pub(crate) fn kill_daemon(&self, host: u16) -> Result<(), CliError> {
        let daemon = &mut self.daemons()[usize::from(host) - 1];
        signal(&daemon.pidfd, Signal::KILL);
        daemon.process.wait().map(drop).map_err(CliError::system(format!("wait for {}", daemon.process.name())))
    }

    /// Starts a daemon in the place of one that has ended.
    pub(crate) fn restart_daemon(&self, host: u16) -> Result<(), CliError> {
        let daemon = self.start_daemon(host)?;
        self.daemons()[usize::from(host) - 1] = daemon;
        Ok(())
    }

    /// Stops a daemon, or lets it go on.
    pub(crate) fn halt_daemon(&self, host: u16, halted: bool) {
        signal(&self.daemons()[usize::from(host) - 1].pidfd, if halted { Signal::STOP } else { Signal::CONT });
    }

    /// Pulls the cable of a host.
    pub(crate) fn cut(&self, host: u16) -> Result<(), CliError> {
        self.within(host, "ip", &["link", "set", "eth0", "down"])
    }

    /// Puts it in again.
    pub(crate) fn mend(&self, host: u16) -> Result<(), CliError> {
        self.within(host, "ip", &["link", "set", "eth0", "up"])?;
        self.within(host, "ip", &["route", "replace", "224.0.0.0/4", "dev", "eth0"])
    }

    /// Nothing that `from` sends reaches `to`.
    pub(crate) fn cut_one_way(&self, from: u16, to: u16) -> Result<(), CliError> {
        let address = Node::Host(from).address();
        let rules = format!(
            "table inet {TABLE} {{ chain in {{ type filter hook input priority 0; ip saddr {address} drop; }}; }}"
        );
        self.within(to, "nft", &[&rules])
    }

    /// All that others send reaches `to` again.
    pub(crate) fn mend_one_way(&self, to: u16) -> Result<(), CliError> {
        self.within(to, "nft", &["delete", "table", "inet", TABLE])
    }

    /// The host loses its power: no kernel says farewell for its processes.
    pub(crate) fn crash(&self, host: u16) -> Result<(), CliError> {
        self.cut(host)?;
        Ok(self.lab.crash(host)?)
    }

    /// Leaves no room for files on a host, or as much as there was.
    pub(crate) fn fill_disk(&self, host: u16, full: bool) -> Result<(), CliError> {
        // Refused where a file has been made since it was looked.
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
        // Without notes of its own that the tool would leave there.
        self.within(host, "mount", &["-n", "-o", &size, RUN])
    }

    /// Leaves a daemon no descriptor beyond those that it has open, or as many as there were.
    pub(crate) fn take_descriptors(&self, host: u16, scarce: bool) -> Result<(), CliError> {
        let id = self.daemons()[usize::from(host) - 1].id;
        let failed = || CliError::system(format!("limit the descriptors of the daemon of h{host}"));
        let maximum = rustix::process::getrlimit(Resource::Nofile).maximum;
        let open = || fs::read_dir(format!("/proc/{}/fd", id.as_raw_nonzero())).map(|list| list.count() as u64);
        let current = if scarce { Some(open().map_err(failed())?) } else { maximum };
        prlimit(Some(id), Resource::Nofile, Rlimit { current, maximum })
            .map(drop)
            .map_err(|error| failed()(error.into()))
    }

    /// Removes the files of a directory of a host whose names begin so.
    pub(crate) fn remove_files(&self, host: u16, directory: &str, prefix: &str) {
        let files = fs::read_dir(self.seen(host, directory)).into_iter().flatten().flatten();
        let named = files.filter(|file| file.file_name().to_string_lossy().starts_with(prefix));
        // One that another removes at this moment is gone as well.
        named.for_each(|file| drop(fs::remove_file(file.path())));
    }

    /// Waits until they serve nobody any more; what they still have.
    pub(crate) fn quiet(&self, patience: std::time::Duration) -> Result<Vec<String>, CliError> {
        let deadline = std::time::Instant::now() + patience;
        let mut left = Vec::new();
        for host in 1..=self.hosts() {
            loop {
                let report = self.statistics(host)?;
                let (ranks, calls) = (report.present.ranks, report.present.calls);
                let busy = ranks != 0 || calls != 0 || report.present.memberships != 0;
                if !busy {
                    break;
                }
                if std::time::Instant::now() >= deadline {
                    left.push(format!("the daemon of h{host} has {ranks} ranks and {calls} calls that nobody has"));
                    break;
                }
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
        }
        Ok(left)
    }
}
