//! The processes, files, sockets and multicast addresses of a host, and which of them a trial has left behind.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Trial;

/// File systems that each host has for itself.
const OWN: [&str; 2] = ["/run", "/dev/shm"];
/// Time for processes to end on a signal, and for the kernel to clean up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Everything on one host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Inventory(BTreeSet<String>);

impl Inventory {
    /// The inventory of the host with this first process.
    pub(super) fn of(first: i32) -> Self {
        let mut all = processes(first);
        OWN.iter().for_each(|place| files(&root_of(first), Path::new(place), &mut all));
        all.extend(sockets(first));
        all.extend(addresses(first));
        Inventory(all)
    }
}

impl Trial {
    /// A host's path in this process's file system.
    pub(super) fn seen(&self, host: u16, path: &str) -> PathBuf {
        root_of(self.lab.host_pids()[usize::from(host) - 1]).join(path.trim_start_matches('/'))
    }

    /// Ends all daemons and waits for their end. Returns what is left on the hosts and was not there before.
    pub(crate) fn end(self) -> Vec<String> {
        self.daemons().clear();
        let deadline = Instant::now() + PATIENCE;
        loop {
            let hosts = self.lab.host_pids().iter().zip(&self.before).zip(1..);
            let left: Vec<String> = hosts
                .flat_map(|((first, before), host)| {
                    let now = Inventory::of(*first);
                    now.0.difference(&before.0).map(|one| format!("{one} on h{host}")).collect::<Vec<_>>()
                })
                .collect();
            if left.is_empty() || Instant::now() >= deadline {
                return left;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

fn root_of(first: i32) -> PathBuf {
    PathBuf::from(format!("/proc/{first}/root"))
}

/// All processes in the PID namespace of the host's first process.
fn processes(first: i32) -> BTreeSet<String> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/pid")).ok();
    let Some(of_host) = namespace(&first.to_string()) else { return BTreeSet::new() };
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let names = all.filter_map(|entry| entry.file_name().into_string().ok());
    let living = names.filter(|name| name.parse::<u32>().is_ok() && namespace(name).as_ref() == Some(&of_host));
    living
        .map(|name| {
            let command = fs::read_to_string(format!("/proc/{name}/cmdline")).unwrap_or_default();
            format!("process {name} ({})", command.replace('\0', " ").trim_end())
        })
        .collect()
}

fn files(root: &Path, place: &Path, all: &mut BTreeSet<String>) {
    let here = root.join(place.strip_prefix("/").unwrap_or(place));
    for entry in fs::read_dir(here).into_iter().flatten().flatten() {
        let path = place.join(entry.file_name());
        all.insert(format!("file {}", path.display()));
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            files(root, &path, all);
        }
    }
}

/// Network sockets that a process holds, by protocol and local address.
fn sockets(first: i32) -> impl Iterator<Item = String> {
    let of = move |protocol: &'static str| {
        let text = fs::read_to_string(format!("/proc/{first}/net/{protocol}")).unwrap_or_default();
        let held = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            // The kernel closes sockets without an inode by itself; no process holds them.
            let (local, inode) = (fields.get(1)?, fields.get(9)?);
            (*inode != "0").then(|| format!("{protocol} socket {local}"))
        };
        text.lines().skip(1).filter_map(held).collect::<Vec<_>>()
    };
    ["tcp", "udp", "raw"].into_iter().flat_map(of)
}

/// Multicast addresses that the host has joined.
fn addresses(first: i32) -> impl Iterator<Item = String> {
    let text = fs::read_to_string(format!("/proc/{first}/net/igmp")).unwrap_or_default();
    let group = |line: &str| line.starts_with('\t').then(|| line.split_whitespace().next().map(str::to_owned))?;
    let groups: Vec<String> = text.lines().filter_map(group).collect();
    groups.into_iter().map(|group| format!("multicast address {group}"))
}
