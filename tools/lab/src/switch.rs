//! The switch process: owns the lab's bridge, starts the hosts, answers requests for the lab.
//!
//! ```text
//!  Building --all hosts ready--> Owned --Detach--> Detached
//!      |                           |                  |
//!      |--a step failed            |--lifeline ended, End,      --End, last host gone--> hosts killed and waited for,
//!      '--> reported, ended        '--last host gone                                     ended
//! ```
//!
//! Invariants: the process is single-threaded, so that the hosts' parent-death signals concern the whole process. It
//! runs in its own session, so that a terminal's Ctrl-C reaches the owner alone. It holds no descriptor of the owner
//! except the lifeline and, until the lab is built, standard error. The host processes have these invariants, too.

use crate::counters::{self, LinkTraffic};
use crate::error::InStep;
use crate::message::{self, HostOrder, HostReport, LinkCounters, SwitchReply, SwitchRequest};
use crate::node::{LabNode, pcie_mac_address};
use crate::spec::{BURST_BYTES, LabSpec, LossScope, PacketLoss, QUEUE_LIMIT_BYTES};
use crate::{LinkLimits, PortCounters, SetupFailure, host, tools};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountPropagationFlags;
use rustix::net::SocketFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use rustix::thread::UnshareFlags;
use std::collections::HashMap;
use std::fmt::Write as _;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Directory of the lab's sockets, equal in every host of a lab.
pub(crate) const SHARED_DIR: &str = "/run/outboard-lab";
/// Names and addresses of the lab's hosts.
pub(crate) const HOSTS_FILE: &str = "/run/outboard-lab/hosts";
/// Connections served at a time; further ones wait.
const MAX_CLIENTS: usize = 64;
const PLACE: &str = "switch";
/// Time that a host may take to answer a membership query, in 1/100 s. For this long after its start, a bridge floods
/// multicast to every port, because the bridge does not know the members yet.
const QUERY_RESPONSE_CENTISECONDS: u64 = 20;
/// Allowance for the kernel, which counts the query response time in ticks of up to 10 ms.
const TICKS: Duration = Duration::from_millis(20);

/// Path of the switch process's socket inside the lab.
fn control_socket() -> PathBuf {
    Path::new(SHARED_DIR).join("switch.sock")
}

/// Whether this process is inside a lab.
pub(crate) fn inside() -> bool {
    control_socket().exists()
}

/// The `tc` command for either end of a link. Without a rate limit the command sets up a queue that only counts.
pub(crate) fn token_bucket(link: LinkLimits, device: &str) -> String {
    let queue = match link.rate_bits_per_s() {
        Some(rate) => format!("tbf rate {rate}bit burst {BURST_BYTES} limit {QUEUE_LIMIT_BYTES}"),
        None => format!("{} limit {QUEUE_LIMIT_BYTES}", counters::UNLIMITED),
    };
    format!("qdisc replace dev {device} root {queue}\n")
}

/// Disables IPv6, whose own packets would disturb the byte counters.
pub(crate) fn silence_ipv6(place: &str) -> Result<(), SetupFailure> {
    ["all", "default"].into_iter().try_for_each(|scope| set(place, &format!("ipv6/conf/{scope}/disable_ipv6"), "1"))
}

/// Keeps the machine's packet filters and connection tracking away from bridged packets.
fn forward_unfiltered() -> Result<(), SetupFailure> {
    ["iptables", "ip6tables", "arptables"]
        .into_iter()
        .try_for_each(|tables| set(PLACE, &format!("bridge/bridge-nf-call-{tables}"), "0"))
}

/// Writes a setting of the calling process's network namespace. A kernel that lacks the setting needs no change.
pub(crate) fn set(place: &str, setting: &str, value: &str) -> Result<(), SetupFailure> {
    let path = format!("/proc/sys/net/{setting}");
    match fs::write(&path, value) {
        Ok(()) => Ok(()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(SetupFailure::new(place, format!("write {path}"), e)),
    }
}

/// Gives the calling process's mount namespace an empty `/run` with the lab's directory, and with the user's session
/// directory if `/run` contained it.
pub(crate) fn private_run(place: &str) -> Result<(), SetupFailure> {
    // Some distributions find their programs through links in /run.
    let links: Vec<_> = fs::read_dir("/run")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some((entry.as_ref().ok()?.path(), fs::read_link(entry.ok()?.path()).ok()?)))
        .collect();
    host::private_tmpfs(place, "/run", 0o755)?;
    for (link, target) in links {
        symlink(&target, &link).in_step(place, format!("link {}", link.display()))?;
    }
    host::make_dir(place, Path::new(SHARED_DIR))?;
    host::make_dir(place, Path::new("/run/outboard"))?;
    host::runtime_dir().map_or(Ok(()), |dir| host::make_dir(place, &dir))
}

/// Runs a lab; standard input is the lifeline.
pub(crate) fn main() -> ! {
    let status = match take_lifeline() {
        Ok(lifeline) => run(lifeline),
        Err(_) => 2,
    };
    std::process::exit(status)
}

/// Detaches from the owner's session and descriptors.
fn take_lifeline() -> io::Result<OwnedFd> {
    // SAFETY: first thing in `main`: nothing in this process owns a descriptor above the standard streams.
    if unsafe { libc::close_range(3, u32::MAX, 0) } != 0 {
        return Err(io::Error::last_os_error());
    }
    let lifeline = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    rustix::stdio::dup2_stdin(null()?)?;
    rustix::stdio::dup2_stdout(null()?)?;
    rustix::process::setsid()?;
    Ok(lifeline)
}

fn null() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Closes the owner's standard error. A detached lab would otherwise keep its owner's pipe open, and a reader of the
/// pipe would wait for the end of the lab.
pub(crate) fn leave_standard_error() -> io::Result<()> {
    Ok(rustix::stdio::dup2_stderr(null()?)?)
}

fn run(lifeline: OwnedFd) -> i32 {
    let Ok(SwitchRequest::Build(spec)) = message::expect(&lifeline) else { return 2 };
    match Switch::build(spec) {
        Ok((switch, listener)) => {
            if leave_standard_error().is_err() || message::send(&lifeline, &switch.describe(), &[]).is_err() {
                switch.end();
                return 1;
            }
            switch.serve(lifeline, &listener);
            0
        }
        Err(failure) => {
            // An owner that has gone needs no answer.
            let _ = message::send(&lifeline, &SwitchReply::Failed(failure), &[]);
            1
        }
    }
}

/// A host or DPU that is up.
struct UpHost {
    pid: Pid,
    pidfd: OwnedFd,
    /// Stays open while the switch process lives. Closing the socket ends the host.
    control: OwnedFd,
    /// The token buckets at the host's ends of its links.
    ends: Option<BucketHandles>,
}

/// Access to the token buckets of a host.
struct BucketHandles {
    routing: OwnedFd,
    /// Interface of the link that every host and DPU has.
    eth0: i32,
    /// Interface of a DPU's link to its host.
    pcie0: Option<i32>,
}

/// A connection that sends requests.
struct Client {
    socket: OwnedFd,
    /// Whether the lab ends when this client disconnects: true for the lifeline, until the lab is detached.
    is_owner: bool,
}

struct Switch {
    spec: LabSpec,
    /// Hosts and DPUs in the order of [`LabSpec::nodes`]; `None` for a node that is down.
    hosts: Vec<Option<UpHost>>,
    routing: OwnedFd,
    /// Host number by interface index of its port.
    ports: HashMap<i32, u16>,
    over: bool,
}

impl Switch {
    fn build(spec: LabSpec) -> Result<(Self, OwnedFd), SetupFailure> {
        enter_namespaces()?;
        std::env::set_current_dir("/").in_step(PLACE, "chdir /")?;
        rustix::mount::mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC)
            .in_step(PLACE, "mount / privately")?;
        private_run(PLACE)?;
        fs::write(HOSTS_FILE, hosts_file(&spec)).in_step(PLACE, "write the hosts file")?;
        silence_ipv6(PLACE)?;
        forward_unfiltered()?;
        let mut hosts = Vec::new();
        for node in spec.nodes() {
            hosts.push(start_host(&spec, node).in_step(PLACE, "clone a host process")?);
        }
        let floods_until = configure(&spec, &hosts)?;
        for host in &hosts {
            message::send(&host.control, &HostOrder::Configure, &[]).in_step(PLACE, "tell a host")?;
        }
        for (node, host) in spec.nodes().zip(&mut hosts) {
            host.ends = Some(await_ready(node, &host.control)?);
        }
        let routing = counters::routing_socket().in_step(PLACE, "open a routing socket")?;
        let ports = port_numbers(&spec).in_step(PLACE, "find the ports")?;
        let listener = message::listen(&control_socket()).in_step(PLACE, "listen for requests")?;
        // The kernel sends no event for the end of flooding.
        std::thread::sleep(floods_until.saturating_duration_since(Instant::now()));
        let hosts = hosts.into_iter().map(Some).collect();
        Ok((Self { spec, hosts, routing, ports, over: false }, listener))
    }

    /// Index of a node in `hosts`.
    fn index(&self, node: LabNode) -> usize {
        usize::from(node.number()) - 1 + if node.is_dpu() { usize::from(self.spec.hosts()) } else { 0 }
    }

    fn up_hosts(&self) -> impl Iterator<Item = &UpHost> {
        self.hosts.iter().flatten()
    }

    fn describe(&self) -> SwitchReply {
        let pid = |host: &Option<UpHost>| host.as_ref().map_or(0, |host| host.pid.as_raw_nonzero().get());
        SwitchReply::Up { spec: self.spec.clone(), hosts: self.hosts.iter().map(pid).collect() }
    }

    /// Serves requests until the lab is over, then ends every host.
    fn serve(mut self, lifeline: OwnedFd, listener: &OwnedFd) {
        let mut clients = vec![Client { socket: lifeline, is_owner: true }];
        while !self.over && self.up_hosts().next().is_some() {
            let fds = (clients.iter().map(|client| &client.socket))
                .chain(self.up_hosts().map(|host| &host.pidfd))
                .chain((clients.len() < MAX_CLIENTS).then_some(listener));
            let Ok(ready) = message::await_some(fds) else { break };
            let listener_ready = clients.len() < MAX_CLIENTS && ready.last() == Some(&true);
            clients = std::mem::take(&mut clients)
                .into_iter()
                .zip(&ready)
                .filter_map(|(client, ready)| if *ready { self.answer(client) } else { Some(client) })
                .collect();
            self.bury();
            if listener_ready && let Ok(socket) = rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
                clients.push(Client { socket, is_owner: false });
            }
        }
        // Clients take the end of their connections for the end of the lab, so hosts end first.
        self.end();
    }

    /// Serves one request; returns the client unless it has disconnected. The lab is over when its owner has
    /// disconnected.
    fn answer(&mut self, mut client: Client) -> Option<Client> {
        let Ok(Some((request, _))) = message::receive(&client.socket) else {
            self.over |= client.is_owner;
            return None;
        };
        let reply = match request {
            SwitchRequest::Build(_) => SwitchReply::Refused("this lab is built already".into()),
            SwitchRequest::Detach => {
                client.is_owner = false;
                SwitchReply::Done
            }
            SwitchRequest::Describe => self.describe(),
            SwitchRequest::Counters => {
                let read =
                    self.switch_counters().and_then(|switch| Ok(LinkCounters { switch, pcie: self.pcie_counters()? }));
                read.map_or_else(|e| SwitchReply::Refused(e.to_string()), SwitchReply::Counters)
            }
            SwitchRequest::Crash(number) => match self.crash(number) {
                Ok(()) => SwitchReply::Done,
                Err(e) => SwitchReply::Refused(e.to_string()),
            },
            SwitchRequest::End => {
                self.over = true;
                return Some(client);
            }
        };
        if message::send(&client.socket, &reply, &[]).is_ok() {
            return Some(client);
        }
        self.over |= client.is_owner;
        None
    }

    /// Counters of the links to the switch.
    fn switch_counters(&self) -> io::Result<Vec<PortCounters>> {
        let mut ports: Vec<PortCounters> =
            (1..=self.spec.hosts()).map(|host| PortCounters { host, ..PortCounters::default() }).collect();
        for (interface, traffic) in counters::read(&self.routing)? {
            if let Some(number) = self.ports.get(&interface) {
                ports[usize::from(*number) - 1].rx = traffic;
            }
        }
        for port in &mut ports {
            port.tx = self.sent_by(self.spec.at_port(port.host), |ends| ends.eth0)?;
        }
        Ok(ports)
    }

    /// Counters of the links between hosts and DPUs.
    fn pcie_counters(&self) -> io::Result<Vec<PortCounters>> {
        let hosts = self.spec.pcie().map_or(0, |_| self.spec.hosts());
        let link = |host| {
            let tx = self.sent_by(LabNode::Host(host), |ends| ends.eth0)?;
            let rx = self.sent_by(LabNode::Dpu(host), |ends| ends.pcie0.unwrap_or_default())?;
            Ok(PortCounters { host, tx, rx })
        };
        (1..=hosts).map(link).collect()
    }

    /// Traffic that a node has sent by one of its interfaces.
    fn sent_by(&self, node: LabNode, interface: impl Fn(&BucketHandles) -> i32) -> io::Result<LinkTraffic> {
        let Some(UpHost { ends: Some(ends), .. }) = &self.hosts[self.index(node)] else {
            return Err(io::Error::other(format!("{node} is down and its counters with it")));
        };
        let found = counters::read(&ends.routing)?.into_iter().find(|(number, _)| *number == interface(ends));
        Ok(found.map(|(_, traffic)| traffic).unwrap_or_default())
    }

    fn crash(&mut self, number: u16) -> io::Result<()> {
        if !(1..=self.spec.hosts()).contains(&number) {
            return Err(io::Error::other(format!("there is no host {number}")));
        }
        if self.hosts[usize::from(number) - 1].is_none() {
            return Err(io::Error::other(format!("h{number} is down already")));
        }
        let dpu = self.spec.pcie().map(|_| LabNode::Dpu(number));
        for node in [LabNode::Host(number)].into_iter().chain(dpu) {
            let index = self.index(node);
            if let Some(host) = self.hosts[index].take() {
                host.end();
            }
        }
        Ok(())
    }

    /// Drops hosts that another process has killed.
    fn bury(&mut self) {
        for host in &mut self.hosts {
            host.take_if(|host| host.has_ended());
        }
    }

    fn end(self) {
        for host in self.up_hosts() {
            // The kill fails if the host has ended already.
            let _ = rustix::process::pidfd_send_signal(&host.pidfd, Signal::KILL);
        }
        self.hosts.into_iter().flatten().for_each(UpHost::end);
    }
}

impl UpHost {
    /// Kills the host with all its processes and waits for their end.
    fn end(self) {
        // The kill fails if the host has ended already.
        let _ = rustix::process::pidfd_send_signal(&self.pidfd, Signal::KILL);
        let _ = rustix::io::retry_on_intr(|| {
            rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), WaitIdOptions::EXITED)
        });
    }

    fn has_ended(&self) -> bool {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        matches!(rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), options), Ok(Some(_)))
    }
}

/// Enters new mount and network namespaces, inside a new user namespace if that is required.
fn enter_namespaces() -> Result<(), SetupFailure> {
    let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    let wanted = UnshareFlags::NEWNS | UnshareFlags::NEWNET;
    // SAFETY: single-threaded, and none of these flags unshares descriptors.
    match unsafe { rustix::thread::unshare_unsafe(wanted) } {
        Ok(()) => return Ok(()),
        Err(rustix::io::Errno::PERM) => {}
        Err(e) => return Err(SetupFailure::new(PLACE, "unshare namespaces", io::Error::from(e))),
    }
    // SAFETY: single-threaded, and none of these flags unshares descriptors.
    unsafe { rustix::thread::unshare_unsafe(wanted | UnshareFlags::NEWUSER) }
        .in_step(PLACE, "unshare a user namespace")?;
    let maps = [("setgroups", "deny".to_owned()), ("uid_map", format!("0 {uid} 1")), ("gid_map", format!("0 {gid} 1"))];
    for (file, text) in maps {
        let path = format!("/proc/self/{file}");
        fs::write(&path, text).in_step(PLACE, format!("write {path}"))?;
    }
    Ok(())
}

fn hosts_file(spec: &LabSpec) -> String {
    let mut text = String::from("127.0.0.1 localhost\n");
    for node in spec.nodes() {
        let _ = writeln!(text, "{} {node}", node.address());
    }
    text
}

/// The part of the kernel's `struct clone_args` that every version knows (CLONE_ARGS_SIZE_VER0), see clone3(2).
type CloneArgs = [u64; 8];
const FLAGS: usize = 0;
const EXIT_SIGNAL: usize = 4;

/// Forks a host process into new namespaces.
fn start_host(spec: &LabSpec, node: LabNode) -> io::Result<UpHost> {
    let (ours, theirs) = message::pair()?;
    let namespaces =
        libc::CLONE_NEWNS | libc::CLONE_NEWNET | libc::CLONE_NEWPID | libc::CLONE_NEWIPC | libc::CLONE_NEWUTS;
    let mut args = CloneArgs::default();
    (args[FLAGS], args[EXIT_SIGNAL]) = (namespaces as u64, libc::SIGCHLD as u64);
    // SAFETY: without CLONE_VM this is a fork: the child continues in a copy of this single-threaded process, so all
    // locks are free. `args` outlives the call and has the given size.
    let pid = unsafe { libc::syscall(libc::SYS_clone3, &raw const args, size_of::<CloneArgs>()) };
    match i32::try_from(pid).ok() {
        Some(0) => {
            // A panic must not unwind into the switch process's part of the stack.
            let _ = std::panic::catch_unwind(|| host::main(spec, node, theirs));
            std::process::exit(101)
        }
        Some(pid) if pid > 0 => {
            let pid = Pid::from_raw(pid).expect("checked to be positive");
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            Ok(UpHost { pid, pidfd, control: ours, ends: None })
        }
        _ => Err(io::Error::last_os_error()),
    }
}

/// Builds the bridge, the links and the loss; returns the time until which the bridge floods.
fn configure(spec: &LabSpec, hosts: &[UpHost]) -> Result<Instant, SetupFailure> {
    let mut links = format!(
        "link set lo up\n\
         link add name sw type bridge stp_state 0 forward_delay 0 mcast_snooping 1 \
         mcast_query_response_interval {QUERY_RESPONSE_CENTISECONDS}\n\
         link set sw type bridge mcast_querier 1\n\
         link set sw up\n"
    );
    let (mut buckets, mut addresses) = (String::new(), String::new());
    let mtu = spec.link().mtu();
    let (at_host, at_dpu) = hosts.split_at(usize::from(spec.hosts()));
    for (number, host) in (1_u16..).zip(if at_dpu.is_empty() { at_host } else { at_dpu }) {
        let (mac, pid) = (spec.at_port(number).mac_address(), host.pid.as_raw_nonzero());
        let _ = writeln!(
            links,
            "link add name p{number} mtu {mtu} type veth peer name eth0 mtu {mtu} address {mac} netns {pid}\n\
             link set p{number} master sw up"
        );
        buckets.push_str(&token_bucket(spec.link(), &format!("p{number}")));
        // A bridge floods packets for a host from which the bridge has received nothing yet.
        let _ = writeln!(addresses, "fdb replace {mac} dev p{number} master static");
    }
    for (number, (host, dpu)) in (1_u16..).zip(at_host.iter().zip(at_dpu)) {
        let (mac, pcie_mac) = (LabNode::Host(number).mac_address(), pcie_mac_address(number));
        let [host, dpu] = [host, dpu].map(|node| node.pid.as_raw_nonzero());
        let _ = writeln!(
            links,
            "link add name pcie0 netns {dpu} mtu {mtu} address {pcie_mac} type veth \
             peer name eth0 netns {host} mtu {mtu} address {mac}"
        );
    }
    tools::run(PLACE, "ip", &["-batch", "-"], &links)?;
    let floods_until = Instant::now() + Duration::from_millis(10 * QUERY_RESPONSE_CENTISECONDS) + TICKS;
    tools::run(PLACE, "bridge", &["-batch", "-"], &addresses)?;
    tools::run(PLACE, "tc", &["-batch", "-"], &buckets)?;
    spec.loss().map_or(Ok(()), lose)?;
    Ok(floods_until)
}

/// Drops packets at random at each receiving port, so that receivers lose packets independently.
fn lose(loss: PacketLoss) -> Result<(), SetupFailure> {
    let destination = match loss.of() {
        LossScope::Multicast => "ip daddr 224.0.0.0/4 ",
        LossScope::All => "",
    };
    let share = loss.parts_per_million();
    let rules = format!(
        "table bridge lab {{\n chain loss {{\n  type filter hook forward priority 0; policy accept;\n  \
         {destination}ip protocol != igmp numgen random mod 1000000 < {share} drop\n }}\n}}\n"
    );
    tools::run(PLACE, "nft", &["-f", "-"], &rules)
}

fn await_ready(node: LabNode, control: &OwnedFd) -> Result<BucketHandles, SetupFailure> {
    let place = node.to_string();
    let ended = |reason: String| SetupFailure::new(&place, "start", reason);
    match message::receive(control).map_err(|e| ended(e.to_string()))? {
        Some((HostReport::Ready { eth0, pcie0 }, mut fds)) => {
            let routing = fds.pop().ok_or_else(|| ended("no routing socket came".into()))?;
            Ok(BucketHandles { routing, eth0, pcie0 })
        }
        Some((HostReport::Failed(failure), _)) => Err(failure),
        None => Err(ended("the host process ended".into())),
    }
}

/// The number of an interface of this process's network namespace.
pub(crate) fn interface_number(name: &str) -> io::Result<i32> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: `name` is a C string that outlives the call.
    let index = unsafe { libc::if_nametoindex(name.as_ptr()) };
    i32::try_from(index).ok().filter(|index| *index > 0).ok_or_else(io::Error::last_os_error)
}

fn port_numbers(spec: &LabSpec) -> io::Result<HashMap<i32, u16>> {
    (1..=spec.hosts()).map(|number| Ok((interface_number(&format!("p{number}"))?, number))).collect()
}
