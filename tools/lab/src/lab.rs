//! A lab seen from outside: start, use, end.

use crate::holder::{self, EXEC_VERB, SHELL_VERB, SWITCH_VERB};
use crate::message::{self, LinkCounters, SwitchReply, SwitchRequest};
use crate::state::{LabState, Registry};
use crate::{LabError, LabSpec, PortCounters, switch};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};
use std::ffi::{OsStr, OsString};
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const DEFAULT_NAME: &str = "default";
/// Path of the running program, which is executed again as a lab's processes and clients.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Time for a switch process to end its hosts. After this time the switch process is killed, which also ends the hosts.
const END_PATIENCE: Timespec = Timespec { tv_sec: 10, tv_nsec: 0 };

/// An emulated cluster.
///
/// A lab from [`Lab::start`] ends when the value is dropped or its process ends in any way. A lab from [`Lab::up`] or
/// [`Lab::attach`] lives until [`Lab::down`].
#[derive(Debug)]
pub struct Lab {
    spec: LabSpec,
    /// Process id of the switch process; 0 inside the lab, where the switch process has no id.
    pid: i32,
    host_pids: Vec<i32>,
    /// Directory of the agents' sockets as this process sees it.
    sockets: PathBuf,
    control: Mutex<OwnedFd>,
    /// The switch process, if this value owns the lab.
    owned: Option<Child>,
}

/// A detached lab in [`list`].
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct LabSummary {
    pub name: String,
    pub spec: LabSpec,
    pub pid: i32,
}

/// The detached labs of this user.
pub fn list() -> Result<Vec<LabSummary>, LabError> {
    let labs = Registry::open()?.all()?;
    let summary = |(name, state): (String, LabState)| {
        let lab = Lab::detached(&state).ok()?;
        Some(LabSummary { name, spec: lab.spec.clone(), pid: state.pid })
    };
    // A lab that is just ending is left out.
    Ok(labs.into_iter().filter_map(summary).collect())
}

impl Lab {
    /// Starts a lab that ends with the returned value or with this process.
    ///
    /// The calling program's `main` must begin with [`holder_main_if_requested`](crate::holder_main_if_requested).
    pub fn start(spec: &LabSpec) -> Result<Self, LabError> {
        if holder::hook_was_missed() {
            return Err(LabError::NoHolder);
        }
        let system = |what| move |source| LabError::System { what, source };
        let (ours, theirs) = message::pair().map_err(system("make the lab's lifeline"))?;
        let child = Command::new(OWN_PROGRAM)
            .arg(SWITCH_VERB)
            .stdin(Stdio::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .map_err(system("start the switch process"))?;
        // From here on the child ends however this function returns: through `Drop`, or through the end of the
        // lifeline.
        let pid = i32::try_from(child.id()).expect("process ids fit");
        let mut lab = Self {
            spec: spec.clone(),
            pid,
            host_pids: Vec::new(),
            sockets: Self::outside_sockets(pid),
            control: Mutex::new(ours),
            owned: Some(child),
        };
        match lab.exchange(&SwitchRequest::Build(spec.clone())) {
            Ok(SwitchReply::Up { hosts, .. }) => {
                lab.host_pids = hosts;
                Ok(lab)
            }
            Ok(SwitchReply::Failed(failure)) => Err(failure.into()),
            _ => Err(LabError::NoHolder),
        }
    }

    /// Starts a lab called `name` (`default` if `None`) that outlives this process.
    pub fn up(name: Option<&str>, spec: &LabSpec) -> Result<Self, LabError> {
        let name = name.unwrap_or(DEFAULT_NAME);
        let registry = Registry::open()?;
        if let Some(state) = registry.find(name)? {
            let spec = Self::detached(&state).map(|lab| lab.spec.to_string());
            let spec = spec.unwrap_or_else(|_| "not answering".into());
            return Err(LabError::AlreadyUp { name: name.to_owned(), spec, pid: state.pid });
        }
        let mut lab = Self::start(spec)?;
        let state =
            LabState::of(lab.pid).map_err(|source| LabError::System { what: "see the switch process", source })?;
        registry.save(name, &state)?;
        match lab.exchange(&SwitchRequest::Detach)? {
            SwitchReply::Done => lab.owned = None,
            reply => return Err(unexpected("detach", reply)),
        }
        Ok(lab)
    }

    /// Attaches to the lab called `name`. `None` means the lab that this process is in, or else the default one.
    pub fn attach(name: Option<&str>) -> Result<Self, LabError> {
        if name.is_none() && switch::inside() {
            return Self::connect(0, Path::new(switch::SHARED_DIR));
        }
        let name = name.unwrap_or(DEFAULT_NAME);
        let state = Registry::open()?.find(name)?.ok_or_else(|| LabError::NotUp { name: name.to_owned() })?;
        Self::detached(&state)
    }

    /// Ends the detached lab called `name` (`default` if `None`); returns when its last process has ended.
    pub fn down(name: Option<&str>) -> Result<(), LabError> {
        let name = name.unwrap_or(DEFAULT_NAME);
        let registry = Registry::open()?;
        let state = registry.find(name)?.ok_or_else(|| LabError::NotUp { name: name.to_owned() })?;
        let end = |pid| -> io::Result<()> {
            let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
            // A lab that does not accept the request is killed.
            let requested = Self::detached(&state).is_ok_and(|lab| lab.send(&SwitchRequest::End).is_ok());
            await_end(&pidfd, requested)
        };
        if let Some(pid) = Pid::from_raw(state.pid) {
            match end(pid) {
                Err(e) if e.raw_os_error() != Some(libc::ESRCH) => {
                    return Err(LabError::System { what: "end the switch process", source: e });
                }
                _ => {}
            }
        }
        registry.remove(name)
    }

    fn detached(state: &LabState) -> Result<Self, LabError> {
        Self::connect(state.pid, &Self::outside_sockets(state.pid))
    }

    fn connect(pid: i32, sockets: &Path) -> Result<Self, LabError> {
        let control = message::connect(&sockets.join("switch.sock")).map_err(gone)?;
        message::send(&control, &SwitchRequest::Describe, &[]).map_err(gone)?;
        match message::expect(&control).map_err(gone)? {
            SwitchReply::Up { spec, hosts } => Ok(Self {
                spec,
                pid,
                host_pids: hosts,
                sockets: sockets.to_owned(),
                control: Mutex::new(control),
                owned: None,
            }),
            reply => Err(unexpected("describe itself", reply)),
        }
    }

    fn outside_sockets(pid: i32) -> PathBuf {
        PathBuf::from(format!("/proc/{pid}/root{}", switch::SHARED_DIR))
    }

    fn send(&self, request: &SwitchRequest) -> Result<(), LabError> {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        message::send(&*control, request, &[]).map_err(gone)
    }

    fn exchange(&self, request: &SwitchRequest) -> Result<SwitchReply, LabError> {
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        message::send(&*control, request, &[]).map_err(gone)?;
        message::expect(&*control).map_err(gone)
    }

    /// The lab's shape.
    pub fn spec(&self) -> &LabSpec {
        &self.spec
    }

    /// IPv4 address of `host` (from 1).
    ///
    /// # Panics
    /// If the lab has no such host.
    pub fn address(&self, host: u16) -> Ipv4Addr {
        self.spec.address(host)
    }

    /// Process id of the switch process; 0 inside the lab.
    pub fn switch_pid(&self) -> i32 {
        self.pid
    }

    /// Process ids of the first process of each host, then of each DPU, as the switch process sees them; 0 for a node
    /// that is down.
    pub fn host_pids(&self) -> &[i32] {
        &self.host_pids
    }

    /// Counters of every port of the switch, in the order of the hosts. In a lab with DPUs these are the ports of the
    /// DPUs. Takes well under a millisecond per host.
    pub fn counters(&self) -> Result<Vec<PortCounters>, LabError> {
        Ok(self.link_counters()?.switch)
    }

    /// Counters of the links between hosts and DPUs, in the order of the hosts. `tx` counts the host's packets, `rx`
    /// the DPU's. Empty without DPUs.
    pub fn pcie_counters(&self) -> Result<Vec<PortCounters>, LabError> {
        Ok(self.link_counters()?.pcie)
    }

    fn link_counters(&self) -> Result<LinkCounters, LabError> {
        match self.exchange(&SwitchRequest::Counters)? {
            SwitchReply::Counters(counters) => Ok(counters),
            reply => Err(unexpected("read its counters", reply)),
        }
    }

    /// Ends `host` (from 1) and its DPU at once, as if its machine had lost power.
    pub fn crash(&self, host: u16) -> Result<(), LabError> {
        match self.exchange(&SwitchRequest::Crash(host))? {
            SwitchReply::Done => Ok(()),
            reply => Err(unexpected("crash a host", reply)),
        }
    }

    /// A command that runs `program` inside `host` (`h1`, `h1-dpu` or an address).
    ///
    /// The program gets the command's standard streams, environment and directory; only `TMPDIR` names a directory of
    /// that host. The command exits with the program's exit code, or by the signal that ended the program. The command
    /// forwards the signals that terminals and launchers send. Killing the command kills the program's session.
    pub fn command(&self, host: &str, program: impl AsRef<OsStr>) -> Result<Command, LabError> {
        let (_, socket) = self.agent(host)?;
        let mut command = Command::new(OWN_PROGRAM);
        command.arg(EXEC_VERB).arg(socket).arg(program);
        Ok(command)
    }

    /// The words of a command that replaces ssh inside the lab: launchers call it with a host and a command line.
    pub fn remote_shell(&self) -> Result<[OsString; 2], LabError> {
        let program = Path::new(OWN_PROGRAM)
            .canonicalize()
            .map_err(|source| LabError::System { what: "find the path of the running program", source })?;
        Ok([program.into_os_string(), OsString::from(SHELL_VERB)])
    }

    pub(crate) fn agent(&self, host: &str) -> Result<(String, PathBuf), LabError> {
        let node = self
            .spec
            .node(host)
            .ok_or_else(|| LabError::NoSuchHost { host: host.to_owned(), hosts: self.spec.hosts() })?;
        let place = node.to_string();
        let socket = self.sockets.join(format!("{place}.sock"));
        Ok((place, socket))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        let Some(mut child) = self.owned.take() else { return };
        let requested = self.send(&SwitchRequest::End).is_ok();
        let ended = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty())
            .map_err(io::Error::from)
            .and_then(|pidfd| await_end(&pidfd, requested));
        if let Err(error) = ended.and_then(|()| child.wait()) {
            tracing::warn!(%error, pid = child.id(), "the switch process of a lab could not be awaited");
        }
    }
}

/// Waits for the end of a switch process. Kills the process if no end was requested, or if the process does not end in
/// time.
fn await_end(pidfd: &OwnedFd, requested: bool) -> io::Result<()> {
    let mut fds = [PollFd::new(pidfd, PollFlags::IN)];
    if requested && rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, Some(&END_PATIENCE)))? > 0 {
        return Ok(());
    }
    rustix::process::pidfd_send_signal(pidfd, Signal::KILL)?;
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut fds, None))?;
    Ok(())
}

fn gone(source: io::Error) -> LabError {
    LabError::Gone { place: "the switch".into(), source }
}

fn unexpected(what: &'static str, reply: SwitchReply) -> LabError {
    let reason = match reply {
        SwitchReply::Refused(reason) => reason,
        reply => format!("unexpected answer {reply:?}"),
    };
    LabError::Switch { what, reason }
}
