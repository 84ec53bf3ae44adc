//! A host or DPU: PID 1 of its namespaces. Builds the host's view of the machine and configures its ends of links. Then
//! serves as its agent: starts programs for clients, reaps them, and reports how they ended.
//!
//! ```text
//!  connection:  (accepted) --Exec, started--> Running --program ended--> reply, closed
//!                   |                            |---Signal-----------> Running
//!                   |--Exec, not started--> reply, closed
//!                   |                            |---closed by client-> session killed
//!                   '--anything else, closed--> closed
//! ```
//!
//! The process ends with the switch process, by the parent-death signal. If the switch process died before that signal
//! was armed, the end of the control socket ends this process. The end of PID 1 kills every process of the host.

use crate::error::InStep;
use crate::message::{self, AgentReply, AgentRequest, ExecRequest, HostOrder, HostReport};
use crate::node::{LabNode, pcie_mac_address};
use crate::spec::{LabSpec, SEGMENTED_BURST_BYTES};
use crate::{SetupFailure, counters, session, switch, tools};
use rustix::fs::{Mode, OFlags};
use rustix::mount::MountFlags;
use rustix::net::SocketFlags;
use rustix::process::{Pid, Signal, WaitOptions};
use std::fmt::Write as _;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Most programs that one host runs for clients at a time.
const MAX_CONNECTIONS: usize = 512;
/// Largest argument list and environment; the kernel's own default limit is 2 MiB.
const MAX_REQUEST_BYTES: u64 = 8 * 1024 * 1024;
const CONTROL_FD: i32 = 3;
/// Mode of directories in which every user may create files and remove their own.
const OPEN_TO_ALL: u32 = 0o1777;
/// A DPU's interface to its host.
const PCIE: &str = "pcie0";
/// Directory for temporary files of this host alone. Programs name such files by process ids, and hosts have equal
/// process ids. Programs that exchange files across hosts use `/tmp` or any other directory of the machine.
pub(crate) const TEMPORARY_DIR: &str = "/run/tmp";
/// Network that contains the addresses of all DPUs.
const DPU_NETWORK: &str = "10.77.1.0";

/// Runs a host or DPU of a lab until the lab ends.
pub(crate) fn main(spec: &LabSpec, node: LabNode, control: OwnedFd) -> ! {
    let status = match keep_only(control) {
        Ok(control) => run(spec, node, control),
        Err(_) => 1,
    };
    std::process::exit(status)
}

/// Closes every descriptor inherited from the switch process except `control`: a copy of another host's socket would
/// stay open after the switch process died.
fn keep_only(control: OwnedFd) -> io::Result<OwnedFd> {
    // SAFETY: dup2 and close_range affect descriptors only. The descriptors that they close belong to values in the
    // copy of the switch process's memory. This process never uses or drops those values: `main` does not return.
    unsafe {
        if control.as_raw_fd() != CONTROL_FD && libc::dup3(control.as_raw_fd(), CONTROL_FD, libc::O_CLOEXEC) < 0 {
            return Err(io::Error::last_os_error());
        }
        std::mem::forget(control);
        if libc::close_range(CONTROL_FD as u32 + 1, u32::MAX, 0) != 0 {
            return Err(io::Error::last_os_error());
        }
        Ok(OwnedFd::from_raw_fd(CONTROL_FD))
    }
}

fn run(spec: &LabSpec, node: LabNode, control: OwnedFd) -> i32 {
    match build(spec, node, &node.to_string(), &control) {
        Ok((agent, ready, routing)) => {
            if switch::leave_standard_error().is_err() || message::send(&control, &ready, &[routing.as_fd()]).is_err() {
                return 1;
            }
            drop(routing);
            agent.serve(&control);
            0
        }
        Err(failure) => {
            // If the send fails, no process is left to notify.
            let _ = message::send(&control, &HostReport::Failed(failure), &[]);
            1
        }
    }
}

fn build(
    spec: &LabSpec,
    node: LabNode,
    place: &str,
    control: &OwnedFd,
) -> Result<(Agent, HostReport, OwnedFd), SetupFailure> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL)).in_step(place, "prctl PR_SET_PDEATHSIG")?;
    rustix::system::sethostname(place.as_bytes()).in_step(place, "sethostname")?;
    mount_all(place)?;
    switch::silence_ipv6(place)?;
    // Selects loss-based congestion control, which clusters use, instead of the machine's default. Not every machine
    // lets a namespace choose cubic.
    let control_of_congestion = |name| switch::set(place, "ipv4/tcp_congestion_control", name);
    control_of_congestion("cubic").or_else(|_| control_of_congestion("reno"))?;
    match message::expect(control) {
        Ok(HostOrder::Configure) => {}
        Err(e) => return Err(SetupFailure::new(place, "wait for the switch process", e)),
    }
    configure_links(spec, node, place)?;
    let number = |name: &str| switch::interface_number(name).in_step(place, format!("find the interface {name}"));
    let pcie0 = if node.is_dpu() { Some(number(PCIE)?) } else { None };
    let ready = HostReport::Ready { eth0: number("eth0")?, pcie0 };
    let routing = counters::routing_socket().in_step(place, "open a routing socket")?;
    let socket = Path::new(switch::SHARED_DIR).join(format!("{place}.sock"));
    let listener = message::listen(&socket).in_step(place, "listen for programs to run")?;
    let agent = Agent::new(listener).in_step(place, "signalfd")?;
    Ok((agent, ready, routing))
}

/// Gives the host its own `/proc`, `/sys`, `/run` and `/dev/shm`, a directory for temporary files, and names for the
/// lab's hosts. Also gives it a boot id, by which communication libraries distinguish machines.
fn mount_all(place: &str) -> Result<(), SetupFailure> {
    let shared = rustix::fs::open(switch::SHARED_DIR, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .in_step(place, "open the lab's directory")?;
    mount(place, "proc", "/proc", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)?;
    mount(place, "sysfs", "/sys", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC)?;
    private_tmpfs(place, "/dev/shm", OPEN_TO_ALL)?;
    switch::private_run(place)?;
    fs::create_dir(TEMPORARY_DIR)
        .and_then(|()| set_mode(TEMPORARY_DIR, OPEN_TO_ALL))
        .in_step(place, format!("create {TEMPORARY_DIR}"))?;
    bind(place, &format!("/proc/self/fd/{}", shared.as_raw_fd()), switch::SHARED_DIR)?;
    bind(place, switch::HOSTS_FILE, "/etc/hosts")?;
    let boot_id = "/proc/sys/kernel/random/boot_id";
    let own_boot_id = "/run/outboard/boot_id";
    fs::copy("/proc/sys/kernel/random/uuid", own_boot_id).in_step(place, "draw a boot id")?;
    bind(place, own_boot_id, boot_id)
}

/// Mounts an empty tmpfs on `target`.
pub(crate) fn private_tmpfs(place: &str, target: &str, mode: u32) -> Result<(), SetupFailure> {
    mount(place, "tmpfs", target, MountFlags::NOSUID | MountFlags::NODEV)?;
    set_mode(target, mode).in_step(place, format!("set the mode of {target}"))
}

/// Sets a mode exactly, whatever the umask.
fn set_mode(path: &str, mode: u32) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(mode))
}

fn mount(place: &str, kind: &str, target: &str, flags: MountFlags) -> Result<(), SetupFailure> {
    rustix::mount::mount(kind, target, kind, flags, None).in_step(place, format!("mount {kind} on {target}"))
}

fn bind(place: &str, source: &str, target: &str) -> Result<(), SetupFailure> {
    rustix::mount::mount_bind(source, target).in_step(place, format!("mount {source} on {target}"))
}

/// Makes the directory `path` and its parents, accessible to the owner alone.
pub(crate) fn make_dir(place: &str, path: &Path) -> Result<(), SetupFailure> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).in_step(place, format!("create {}", path.display()))
}

/// Sets addresses, routes, token buckets and every neighbour, so that no ARP disturbs the counters.
///
/// A host with a DPU keeps its address and `eth0`, but reaches everything through the DPU. The DPU routes between its
/// port at the switch and its host ("separate host mode"). Bootstraps and native traffic of programs work and cross the
/// DPU's link; multicast of the host ends at the DPU.
fn configure_links(spec: &LabSpec, node: LabNode, place: &str) -> Result<(), SetupFailure> {
    let mut script = format!("link set lo up\nlink set eth0 gso_max_size {SEGMENTED_BURST_BYTES}\n");
    let at_port = spec.at_port(node.number()) == node;
    if spec.loss().is_some() && at_port {
        // Loss must drop packets one by one. A burst that crosses the switch whole would be lost whole.
        script.push_str("link set eth0 gso_max_segs 1\n");
    }
    let _ = writeln!(script, "address add {}/24 brd + dev eth0\nlink set eth0 up", node.address());
    script.push_str("route add 224.0.0.0/4 dev eth0\n");
    if !at_port {
        let _ = writeln!(script, "route add {}/24 dev eth0", DPU_NETWORK);
    }
    for peer in spec.nodes().filter(|peer| *peer != node && (!at_port || peer.is_dpu() == node.is_dpu())) {
        let mac = if at_port { peer.mac_address() } else { pcie_mac_address(node.number()) };
        let _ = writeln!(script, "neigh replace {} lladdr {mac} dev eth0 nud permanent", peer.address());
    }
    if node.is_dpu() {
        script.push_str(&routes_of_dpu(spec, node.number()));
        let forward = "/proc/sys/net/ipv4/ip_forward";
        fs::write(forward, "1").in_step(place, format!("write {forward}"))?;
    }
    tools::run(place, "ip", &["-batch", "-"], &script)?;
    let pcie = spec.pcie().unwrap_or(spec.link());
    let mut buckets = switch::token_bucket(if at_port { spec.link() } else { pcie }, "eth0");
    if node.is_dpu() {
        buckets.push_str(&switch::token_bucket(pcie, PCIE));
    }
    tools::run(place, "tc", &["-batch", "-"], &buckets)
}

/// Configuration of DPU `number` except for its switch port: the link to the host, and routes to the other hosts and
/// DPUs.
fn routes_of_dpu(spec: &LabSpec, number: u16) -> String {
    let (dpu, host) = (LabNode::Dpu(number), LabNode::Host(number));
    let (own, below) = (dpu.address(), host.address());
    let mut script = format!(
        "link set {PCIE} up\nroute add {below}/32 dev {PCIE} src {own}\n\
         neigh replace {below} lladdr {} dev {PCIE} nud permanent\n",
        host.mac_address()
    );
    for other in (1..=spec.hosts()).filter(|other| *other != number) {
        let (beyond, via) = (LabNode::Host(other).address(), LabNode::Dpu(other).address());
        let _ = writeln!(script, "route add {beyond}/32 via {via} dev eth0");
    }
    script
}

/// A client's connection.
struct AgentConnection {
    socket: OwnedFd,
    state: ConnectionState,
}

enum ConnectionState {
    /// The client has sent no request yet.
    Accepted,
    /// Runs a session for the client; the value is its leader.
    Running(Pid),
}

struct Agent {
    listener: OwnedFd,
    /// A signal descriptor, readable when a child has ended.
    children: OwnedFd,
    connections: Vec<AgentConnection>,
}

impl Agent {
    fn new(listener: OwnedFd) -> io::Result<Self> {
        let children = block_signals(&[libc::SIGCHLD])?;
        Ok(Self { listener, children, connections: Vec::new() })
    }

    /// Serves until the control socket ends.
    fn serve(mut self, control: &OwnedFd) {
        loop {
            let always = [control, &self.children, &self.listener];
            let fds = always.into_iter().chain(self.connections.iter().map(|connection| &connection.socket));
            let Ok(ready) = message::await_some(fds) else { return };
            if ready[0] {
                return;
            }
            self.connections = std::mem::take(&mut self.connections)
                .into_iter()
                .zip(&ready[3..])
                .filter_map(|(connection, ready)| if *ready { connection.advance() } else { Some(connection) })
                .collect();
            if ready[1] {
                drain(&self.children);
                self.reap();
            }
            if ready[2] {
                self.accept();
            }
        }
    }

    fn accept(&mut self) {
        let Ok(socket) = rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) else { return };
        if self.connections.len() < MAX_CONNECTIONS {
            self.connections.push(AgentConnection { socket, state: ConnectionState::Accepted });
        } else {
            let reason = format!("the host runs {MAX_CONNECTIONS} programs already");
            // If the send fails, the client sees the end of the connection.
            let _ = message::send(&socket, &AgentReply::Failed(reason), &[]);
        }
    }

    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = rustix::process::wait(WaitOptions::NOHANG) {
            let ended = |c: &AgentConnection| matches!(c.state, ConnectionState::Running(leader) if leader == pid);
            if let Some(position) = self.connections.iter().position(ended) {
                let connection = self.connections.swap_remove(position);
                // A client that has left needs no answer.
                let _ = message::send(&connection.socket, &AgentReply::Exited(status.as_raw()), &[]);
            }
        }
    }
}

impl AgentConnection {
    /// Serves the client's next message; `None` closes the connection.
    fn advance(mut self) -> Option<Self> {
        let received = message::receive(&self.socket);
        match (&self.state, received) {
            (ConnectionState::Accepted, Ok(Some((AgentRequest::Exec, fds)))) => match start(fds) {
                Ok(leader) => {
                    self.state = ConnectionState::Running(leader);
                    Some(self)
                }
                Err(reason) => {
                    // If the send fails, the client sees the end of the connection.
                    let _ = message::send(&self.socket, &AgentReply::Failed(reason), &[]);
                    None
                }
            },
            (ConnectionState::Running(leader), Ok(Some((AgentRequest::Signal(signal), _)))) => {
                if let Some(signal) = Signal::from_named_raw(signal) {
                    // The process group may have ended already.
                    let _ = rustix::process::kill_process_group(*leader, signal);
                }
                Some(self)
            }
            (ConnectionState::Running(leader), Ok(None | Some((AgentRequest::Exec, _))) | Err(_)) => {
                session::kill(*leader);
                None
            }
            (ConnectionState::Accepted, Ok(None | Some((AgentRequest::Signal(_), _))) | Err(_)) => None,
        }
    }
}

fn start(fds: Vec<OwnedFd>) -> Result<Pid, String> {
    let [request, stdin, stdout, stderr] =
        <[OwnedFd; 4]>::try_from(fds).map_err(|fds| format!("{} descriptors came with the request", fds.len()))?;
    let mut text = Vec::new();
    fs::File::from(request).take(MAX_REQUEST_BYTES).read_to_end(&mut text).map_err(|e| e.to_string())?;
    let request: ExecRequest = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
    session::start(&request, [stdin, stdout, stderr])
}

/// Blocks `signals` in the calling thread; the returned descriptor reports them instead.
pub(crate) fn block_signals(signals: &[i32]) -> io::Result<OwnedFd> {
    // SAFETY: an all-zero sigset_t is a valid object, and sigemptyset fills it before use; signalfd returns a
    // descriptor that nobody else owns.
    unsafe {
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        for signal in signals {
            libc::sigaddset(&mut set, *signal);
        }
        let error = libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut());
        if error != 0 {
            return Err(io::Error::from_raw_os_error(error));
        }
        match libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK) {
            -1 => Err(io::Error::last_os_error()),
            fd => Ok(OwnedFd::from_raw_fd(fd)),
        }
    }
}

/// Reads pending signals from a descriptor of [`block_signals`].
pub(crate) fn drain(signals: &OwnedFd) -> Vec<i32> {
    let mut pending = Vec::new();
    let mut record = [0_u8; size_of::<libc::signalfd_siginfo>()];
    while rustix::io::read(signals, &mut record).is_ok_and(|length| length == record.len()) {
        let number = u32::from_ne_bytes([record[0], record[1], record[2], record[3]]);
        pending.push(number as i32);
    }
    pending
}

/// The user's session directory, if it lies inside `/run`.
pub(crate) fn runtime_dir() -> Option<PathBuf> {
    std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from).filter(|dir| dir.starts_with("/run"))
}
