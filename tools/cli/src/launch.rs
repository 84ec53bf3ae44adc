//! Starts processes of several subcommands: daemons on hosts, ranks of programs that use outboard.h, their rendezvous.
//!
//! Invariant: everything started here ends with its [`LoggedProcess`], daemons after ranks.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Args;
use outboard::bootstrap::tcp_server::{JobToken, TOKEN_VARIABLE};
use outboard::service_processes::{self, ServiceProcesses};
use outboard_bench::{BenchJob, LaunchError, Layout, LoggedProcess, RunningJob, ServiceCounters, ServiceStats};
use outboard_lab::{Lab, LabNode};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use outboard_service::statistics::StatisticsReport;

use crate::error::CliError;
use crate::notices::Notices;
use crate::{places, reports};

/// The daemons' directory on an emulated host. Each host has its own `/run`.
pub(crate) const HOST_DIRECTORY: &str = "/run/outboard";
const RENDEZVOUS_PORT: u16 = 4790;
/// Port at which the first daemon of a DPU accepts relays; further daemons use the next ports.
const DOCK_PORT: u16 = 4791;
/// How long ranks may take to reach the rendezvous.
const RENDEZVOUS_LIMIT: Duration = Duration::from_secs(60);
const READY_LIMIT: Duration = Duration::from_secs(20);

/// Settings of the daemons.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct DaemonArgs {
    /// multicast: hosts multicast where it pays (docs/tuning.md); ring: they never do. `bench` also accepts any
    /// algorithm of the measured collective
    #[arg(long, default_value = "multicast")]
    pub(crate) algorithm: String,
    /// Roots that multicast at the same time (M of MC-8); 0 means all ranks
    #[arg(long, default_value_t = 0)]
    pub(crate) chains: u32,
    /// Multicast addresses over which a block is spread (S of MC-10)
    #[arg(long, default_value_t = 1)]
    pub(crate) subgroups: u16,
    /// Daemons encrypt all traffic between hosts, and do not use multicast
    #[arg(long, env = "OUTBOARD_ENCRYPT", value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) encrypt: bool,
    /// Processor that the daemons run on; any by default
    #[arg(long)]
    pub(crate) service_core: Option<usize>,
    /// Daemons on each host, which share its ranks (SP-8).
    #[arg(skip)]
    pub(crate) service_processes: ServiceProcesses,
    /// Seconds until a collective in flight is reported with the ranks that have not called it; 0 for never; 30 by
    /// default
    #[arg(long, value_parser = outboard_units::Duration::seconds)]
    pub(crate) watchdog: Option<Duration>,
    /// Tuning file of the daemons, as written by `outboard tune`
    #[arg(long, env = "OUTBOARD_TUNING")]
    pub(crate) tuning: Option<PathBuf>,
    /// Daemons and ranks write traces to the job's directory.
    #[arg(skip)]
    pub(crate) trace: bool,
    /// Further flags of `outboardd`.
    #[arg(skip)]
    pub(crate) more: Vec<String>,
}

impl DaemonArgs {
    /// Number of daemons on each host, if `hosts` hosts share this machine's processors and `ranks` ranks.
    fn each(&self, ranks: u32, hosts: u32) -> u32 {
        self.service_processes.count(ranks.div_ceil(hosts), service_processes::cores() / hosts)
    }

    /// The flags for communication between hosts.
    fn network(&self, command: &mut Command) {
        let algorithm = if self.encrypt && self.algorithm == "multicast" { "ring" } else { &self.algorithm };
        command.args(["--algorithm", algorithm]).args(self.encrypt.then_some("--encrypt"));
        command.arg("--chains").arg(self.chains.to_string());
        command.arg("--subgroups").arg(self.subgroups.to_string());
    }

    /// The flags that all daemons share; `name` names this daemon's files in `directory`.
    fn flags(&self, command: &mut Command, directory: &Path, name: &str) {
        command.arg("--stats").arg(stats_socket(directory, name));
        if self.trace {
            command.arg("--trace").arg(directory.join(format!("trace-{name}.json")));
        }
        if let Some(core) = self.service_core {
            command.arg("--pin-core").arg(core.to_string());
        }
        if let Some(tuning) = &self.tuning {
            command.arg("--tuning").arg(tuning);
        }
        if let Some(watchdog) = self.watchdog {
            command.arg("--watchdog").arg(watchdog.as_secs_f64().to_string());
        }
        command.args(&self.more);
    }
}

/// The daemons of a job.
#[derive(Debug)]
pub(crate) struct Daemons {
    pub(crate) processes: Vec<LoggedProcess>,
    /// Sockets of one host's daemons. The paths are equal on all hosts.
    sockets: Vec<PathBuf>,
    stats: Vec<PathBuf>,
    /// The directory in which ranks write traces.
    traces: Option<PathBuf>,
}

/// The socket of daemon `number` of `siblings` in `directory`.
fn socket_in(directory: &Path, number: u32, siblings: u32) -> PathBuf {
    directory.join(if siblings > 1 { format!("outboardd.{number}.sock") } else { "outboardd.sock".to_owned() })
}

/// The name of daemon `number` of `siblings` on `host`, for files and errors.
fn daemon_name(host: &str, number: u32, siblings: u32) -> String {
    if siblings > 1 { format!("{host}.{number}") } else { host.to_owned() }
}

impl Daemons {
    /// Starts the daemons of every host of the lab, for `ranks` ranks. If hosts have DPUs, the daemons run on the DPUs.
    /// Relays then run on the hosts, and ranks connect to the relays.
    pub(crate) fn on_lab(lab: &Lab, ranks: u32, directory: &Path, args: &DaemonArgs) -> Result<Self, LaunchError> {
        let hosts = lab.spec().hosts();
        let siblings = args.each(ranks, hosts.into());
        let sockets: Vec<_> = (0..siblings).map(|n| socket_in(HOST_DIRECTORY.as_ref(), n, siblings)).collect();
        let traces = args.trace.then(|| directory.to_owned());
        let mut daemons = Daemons { processes: Vec::new(), sockets: sockets.clone(), stats: Vec::new(), traces };
        let key = if lab.spec().pcie().is_some() { Some(relay_key(directory)?) } else { None };
        let mut ready = Vec::new();
        let each = (1..=hosts).flat_map(|host| (0..siblings).zip(&sockets).map(move |sibling| (host, sibling)));
        for (host, (number, socket)) in each {
            let node = if key.is_some() { LabNode::Dpu(host) } else { LabNode::Host(host) };
            let name = daemon_name(&node.to_string(), number, siblings);
            let mut command = daemon_command(enter(lab, node, None, "/bin/sh")?, socket, directory, &name)?;
            lab_flags(&mut command, lab, directory, &name, args);
            let dock = dock_address(host, number);
            if let Some(key) = &key {
                command.arg("--dock").arg(dock.to_string()).env("OUTBOARD_RELAY_KEY", key);
            }
            daemons.processes.push(LoggedProcess::start(format!("outboardd on {name}"), command, directory)?);
            daemons.stats.push(stats_socket(directory, &name));
            ready.push(ready_fifo(directory, &name));
            if let Some(key) = &key {
                let node = LabNode::Host(host);
                let name = daemon_name(&node.to_string(), number, siblings);
                let mut command = daemon_command(enter(lab, node, None, "/bin/sh")?, socket, directory, &name)?;
                command.arg("--relay").arg(dock.to_string()).env("OUTBOARD_RELAY_KEY", key);
                daemons.processes.push(LoggedProcess::start(format!("relay on {name}"), command, directory)?);
                ready.push(ready_fifo(directory, &name));
            }
        }
        daemons.processes.iter().zip(&ready).try_for_each(|(process, fifo)| await_ready(process, fifo).map(drop))?;
        Ok(daemons)
    }

    /// Starts the daemons of this machine, for `ranks` ranks that share it.
    pub(crate) fn here(ranks: u32, directory: &Path, args: &DaemonArgs) -> Result<Self, LaunchError> {
        let siblings = args.each(ranks, 1);
        let traces = args.trace.then(|| directory.to_owned());
        let mut daemons = Daemons { processes: Vec::new(), sockets: Vec::new(), stats: Vec::new(), traces };
        for number in 0..siblings {
            let name = daemon_name("here", number, siblings);
            let socket = socket_in(directory, number, siblings);
            let mut command = daemon_command(Command::new("/bin/sh"), &socket, directory, &name)?;
            command.arg("--die-with-parent");
            if siblings > 1 {
                command.args(service_processes::SINGLE_HOST);
            }
            args.flags(&mut command, directory, &name);
            let which = if siblings > 1 { format!(" ({})", number + 1) } else { String::new() };
            let process = LoggedProcess::start(format!("outboardd on this machine{which}"), command, directory)?;
            await_ready(&process, &ready_fifo(directory, &name))?;
            daemons.processes.push(process);
            daemons.sockets.push(socket);
            daemons.stats.push(stats_socket(directory, &name));
        }
        Ok(daemons)
    }

    /// Shows the lines of the daemons' watchdogs until the returned value is dropped.
    pub(crate) fn notices(&self) -> Result<Notices, LaunchError> {
        let place = |name: &str| name.split_once(" on ").map_or(name, |(_, place)| place).to_owned();
        let logs = self.processes.iter().map(|process| (place(process.name()), process.output().to_owned()));
        Notices::follow(logs).map_err(|error| LaunchError::new("following the daemons' logs", error))
    }

    /// Environment of the ranks.
    pub(crate) fn environment(&self) -> Vec<(String, String)> {
        let sockets: Vec<String> = self.sockets.iter().map(|socket| socket.display().to_string()).collect();
        let sockets = ("OUTBOARD_SOCKET".to_owned(), sockets.join(":"));
        let traces = self.traces.iter().map(|traces| ("OUTBOARD_TRACE".to_owned(), traces.display().to_string()));
        // The command has warned about unknown variables, so that ranks need not.
        let launched = ("OUTBOARD_LAUNCHED".to_owned(), "1".to_owned());
        [sockets, launched].into_iter().chain(traces).collect()
    }

    /// A reader of the daemons' counters.
    pub(crate) fn stats(&self) -> DaemonStats {
        DaemonStats { sockets: self.stats.clone(), rendezvous: None }
    }
}

/// Starts the only daemon of a user on a host of the lab; without `user`, the daemon of our own user. Returns the
/// process, which is ready for ranks, and its statistics socket. `user` has a directory of its own below
/// [`HOST_DIRECTORY`].
pub(crate) fn start_daemon(
    lab: &Lab,
    host: u16,
    user: Option<u32>,
    directory: &Path,
    args: &DaemonArgs,
) -> Result<(LoggedProcess, PathBuf), LaunchError> {
    let node = LabNode::Host(host);
    let name = user.map_or_else(|| node.to_string(), |user| format!("{node} of user {user}"));
    let mut command = daemon_command(enter(lab, node, user, "/bin/sh")?, &host_socket(user), directory, &name)?;
    if let Some(user) = user {
        std::os::unix::fs::chown(ready_fifo(directory, &name), Some(user), Some(user))
            .map_err(|e| LaunchError::new(format!("the pipe of {name}"), e))?;
    }
    lab_flags(&mut command, lab, directory, &name, args);
    let process = LoggedProcess::start(format!("outboardd on {name}"), command, directory)?;
    await_ready(&process, &ready_fifo(directory, &name))?;
    Ok((process, stats_socket(directory, &name)))
}

/// Makes setpriv run the rest of the command as this user; without `user`, as our own user.
pub(crate) fn become_user(command: &mut Command, user: Option<u32>) -> &mut Command {
    if let Some(user) = user.map(|user| user.to_string()) {
        command.args(["--reuid", &user, "--regid", &user, "--clear-groups"]);
    }
    command.arg("--")
}

/// The directory of a user's daemon on a host; without `user`, of our own user's daemon.
pub(crate) fn user_directory(user: Option<u32>) -> PathBuf {
    user.map_or_else(|| HOST_DIRECTORY.into(), |user| Path::new(HOST_DIRECTORY).join(user.to_string()))
}

/// The socket of a user's only daemon on a host.
pub(crate) fn host_socket(user: Option<u32>) -> PathBuf {
    socket_in(&user_directory(user), 0, 1)
}

/// The flags of a daemon on a host or DPU.
fn lab_flags(command: &mut Command, lab: &Lab, directory: &Path, name: &str, args: &DaemonArgs) {
    command.args(["--interface", "eth0"]);
    // If the links have no limit, the daemon reads the interface's rate.
    if let Some(rate) = lab.spec().link().rate_bits_per_s() {
        command.arg("--link-rate").arg(rate.to_string());
    }
    args.network(command);
    args.flags(command, directory, name);
}

/// A command that runs a program inside a host or DPU, as `user` or as our own user.
pub(crate) fn enter(
    lab: &Lab,
    node: LabNode,
    user: Option<u32>,
    program: impl AsRef<OsStr>,
) -> Result<Command, LaunchError> {
    let name = node.to_string();
    let command = match user {
        None => lab.command(&name, program),
        Some(_) => lab.command(&name, "setpriv").map(|mut command| {
            become_user(&mut command, user).arg(program);
            command
        }),
    };
    command.map_err(|e| LaunchError::new(format!("entering {name}"), e))
}

/// The address at which daemon `number` on the DPU of `host` accepts relays.
fn dock_address(host: u16, number: u32) -> SocketAddr {
    // A host has far fewer daemons than there are ports above `DOCK_PORT`.
    SocketAddr::from((LabNode::Dpu(host).address(), DOCK_PORT + number as u16))
}

/// The secret of one job's daemons and relays, in a file.
fn relay_key(directory: &Path) -> Result<PathBuf, LaunchError> {
    let path = directory.join("relay-key");
    let write = || {
        let mut bytes = [0; 32];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        File::options().write(true).create(true).truncate(true).mode(0o600).open(&path)?.write_all(&bytes)
    };
    write().map_err(|e| LaunchError::new(format!("a key for relays, {}", path.display()), e))?;
    Ok(path)
}

/// A command for a program of this machine. The program ends with this process in any case; the lab ends programs on
/// emulated hosts.
pub(crate) fn bound(program: &Path) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", "--"]).arg(program);
    command
}

fn ready_fifo(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("ready-{host}"))
}

/// The pipe through which a program reports that it is ready. An earlier job's pipe in the directory is used again.
fn make_ready_fifo(directory: &Path, host: &str) -> Result<PathBuf, LaunchError> {
    let fifo = ready_fifo(directory, host);
    match rustix::fs::mkfifoat(rustix::fs::CWD, &fifo, rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR) {
        Ok(()) | Err(rustix::io::Errno::EXIST) => Ok(fifo),
        Err(error) => Err(LaunchError::new(format!("the pipe {}", fifo.display()), error)),
    }
}

fn stats_socket(directory: &Path, host: &str) -> PathBuf {
    directory.join(format!("stats-{host}"))
}

/// `shell` runs the daemon with descriptor 3 open. The daemon reports on descriptor 3 that it is ready, because a lab
/// passes on only the standard descriptors.
fn daemon_command(mut shell: Command, socket: &Path, directory: &Path, host: &str) -> Result<Command, LaunchError> {
    let daemon = places::daemon().map_err(|e| LaunchError::new("outboardd", e))?;
    let fifo = make_ready_fifo(directory, host)?;
    shell.arg("-c").arg("fifo=$1; shift; exec \"$0\" \"$@\" --ready-fd 3 3>\"$fifo\"").arg(daemon).arg(&fifo);
    shell.arg("--socket").arg(socket);
    // Libraries that the user preloads are meant for the ranks.
    shell.env_remove("LD_PRELOAD");
    Ok(shell)
}

/// Waits until a program writes to its pipe, and returns its first write, at most 64 bytes.
fn await_ready(process: &LoggedProcess, fifo: &Path) -> Result<Vec<u8>, LaunchError> {
    let name = process.name().to_owned();
    let failed = |why: String| LaunchError::new(name.clone(), why);
    let mut options = File::options();
    options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    let mut pipe = options.open(fifo).map_err(|e| failed(e.to_string()))?;
    let deadline = Instant::now() + READY_LIMIT;
    let mut bytes = [0; 64];
    let how = loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let left = Timespec::try_from(left).expect("a few seconds");
        let mut fds = [PollFd::new(&pipe, PollFlags::IN), PollFd::from_borrowed_fd(process.ended_fd(), PollFlags::IN)];
        let woken = rustix::io::retry_on_intr(|| poll(&mut fds, Some(&left))).map_err(|e| failed(e.to_string()))?;
        let (ready, ended) = (fds[0].revents(), fds[1].revents());
        if ready.contains(PollFlags::IN)
            && let Ok(n @ 1..) = pipe.read(&mut bytes)
        {
            return Ok(bytes[..n].to_vec());
        }
        if !ended.is_empty() {
            break "ended at its start".to_owned();
        }
        if woken == 0 {
            break format!("is not ready after {} s", READY_LIMIT.as_secs());
        }
        // The program has closed its pipe without a word, so it is about to end.
        pipe = options.open(fifo).map_err(|e| failed(e.to_string()))?;
    };
    Err(failed(format!("{how}: {}", process.output_end())))
}

/// Reads the counters of all daemons of a job.
#[derive(Debug)]
pub(crate) struct DaemonStats {
    sockets: Vec<PathBuf>,
    /// The rendezvous server. It ends by itself when the ranks have met, and with the job at the latest.
    rendezvous: Option<LoggedProcess>,
}

impl DaemonStats {
    /// The report of each daemon, in the order of hosts.
    pub(crate) fn reports(&self) -> impl Iterator<Item = Result<StatisticsReport, LaunchError>> + '_ {
        let ask = |socket: &PathBuf| {
            reports::request_report(socket)
                .map_err(|e| LaunchError::new(format!("statistics at {}", socket.display()), e))
        };
        self.sockets.iter().map(ask)
    }
}

impl ServiceStats for DaemonStats {
    fn read(&mut self) -> Result<ServiceCounters, LaunchError> {
        let reports: Vec<StatisticsReport> = self.reports().collect::<Result<_, _>>()?;
        Ok(ServiceCounters {
            cpu_s: reports.iter().map(|r| r.cpu_user_s + r.cpu_system_s).sum(),
            completed: reports.iter().map(|r| r.counters.completed).sum(),
            retransmitted_bytes: reports.iter().map(|r| r.counters.retransmitted_bytes).sum(),
            late_arrivals: reports.iter().map(|r| r.counters.late_arrivals).sum(),
            entries: reports.iter().map(|r| r.present.submissions).sum(),
            frames: reports.iter().map(|r| r.counters.frames).sum(),
            control_frames: reports.iter().map(|r| r.counters.control_frames).sum(),
        })
    }
}

/// Arguments of the hidden rendezvous server.
#[derive(Debug, Args)]
pub(crate) struct RendezvousArgs {
    ranks: u32,
    address: SocketAddr,
    ready: PathBuf,
}

/// Serves the rendezvous of one job on the first rank's host.
pub(crate) fn rendezvous(args: &RendezvousArgs) -> Result<ExitCode, CliError> {
    let listener = TcpListener::bind(args.address).map_err(CliError::system(format!("listen at {}", args.address)))?;
    let address = listener.local_addr().map_err(CliError::system("the rendezvous' address"))?;
    let mut ready = File::options()
        .write(true)
        .open(&args.ready)
        .map_err(CliError::system(format!("open {}", args.ready.display())))?;
    // A single write, so that the reader gets all of it or nothing.
    ready.write_all(format!("{address}\n").as_bytes()).map_err(CliError::system("tell the rendezvous' address"))?;
    drop(ready);
    let secret = std::env::var(TOKEN_VARIABLE).map_err(|_| CliError::Failed(format!("{TOKEN_VARIABLE} is not set")))?;
    let token = JobToken::new(secret.as_bytes(), "");
    let failed = outboard::bootstrap::tcp_server::serve_repeatedly(&listener, args.ranks, &token, RENDEZVOUS_LIMIT);
    Err(CliError::Failed(failed.to_string()))
}

/// A rendezvous server, its address, and the ranks' token.
struct BootstrapServer {
    process: LoggedProcess,
    address: String,
    token: String,
}

/// Starts the server of a job's rendezvous.
fn start_rendezvous(lab: Option<&Lab>, ranks: u32, directory: &Path) -> Result<BootstrapServer, LaunchError> {
    let token = JobToken::draw().map_err(|e| LaunchError::new("a token for the ranks", e))?;
    let own = std::env::current_exe().map_err(|e| LaunchError::new("this program", e))?;
    let (mut command, address) = match lab {
        Some(lab) => {
            let command = lab.command("h1", own).map_err(|e| LaunchError::new("entering h1", e))?;
            (command, format!("{}:{RENDEZVOUS_PORT}", lab.address(1)))
        }
        None => (bound(&own), "127.0.0.1:0".to_owned()),
    };
    let fifo = make_ready_fifo(directory, "rendezvous")?;
    // Other users can read a command line, but not an environment.
    command.arg("__rendezvous").arg(ranks.to_string()).arg(&address).arg(&fifo).env(TOKEN_VARIABLE, &token);
    command.env_remove("LD_PRELOAD");
    let process = LoggedProcess::start("rendezvous", command, directory)?;
    let said = await_ready(&process, &fifo)?;
    let address = String::from_utf8_lossy(&said).trim().to_owned();
    Ok(BootstrapServer { process, address, token })
}

/// The ranks of a program that uses outboard.h.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProgramRanks<'a> {
    pub(crate) count: u32,
    /// How the ranks are assigned to the hosts of the lab.
    pub(crate) layout: Layout,
    /// The cluster; without it ranks run on this machine.
    pub(crate) lab: Option<&'a Lab>,
}

/// Starts the rendezvous of the ranks, and returns their commands.
pub(crate) fn rank_commands(
    ranks: &ProgramRanks<'_>,
    program: &Path,
    arguments: &[String],
    directory: &Path,
    environment: &[(String, String)],
) -> Result<(LoggedProcess, Vec<(String, Command)>), LaunchError> {
    let BootstrapServer { process, address, token } = start_rendezvous(ranks.lab, ranks.count, directory)?;
    let mut commands = Vec::new();
    let mut places = Vec::new();
    let mut seated: BTreeMap<String, u32> = BTreeMap::new();
    for rank in 0..ranks.count {
        let (place, mut command) = match ranks.lab {
            Some(lab) => {
                let hosts = u32::from(lab.spec().hosts());
                let host = format!("h{}", ranks.layout.host_of(rank, ranks.count, hosts));
                let command =
                    lab.command(&host, program).map_err(|e| LaunchError::new(format!("entering {host}"), e))?;
                (host, command)
            }
            None => ("this machine".to_owned(), bound(program)),
        };
        command.args(arguments).envs(environment.iter().cloned());
        command.env("OUTBOARD_RANK", rank.to_string()).env("OUTBOARD_WORLD_SIZE", ranks.count.to_string());
        let seat = seated.entry(place.clone()).or_insert(0);
        command
            .env("OUTBOARD_RENDEZVOUS", &address)
            .env("OUTBOARD_LOCAL_RANK", seat.to_string())
            .env(TOKEN_VARIABLE, &token);
        *seat += 1;
        commands.push((format!("rank {rank} on {place}"), command));
        places.push(place);
    }
    for ((_, command), place) in commands.iter_mut().zip(&places) {
        command.env("OUTBOARD_LOCAL_SIZE", seated[place].to_string());
    }
    Ok((process, commands))
}

/// Starts daemons and ranks of a bench job through the C interface.
pub(crate) fn launch_ranks(job: &BenchJob<'_>, args: &DaemonArgs) -> Result<RunningJob, LaunchError> {
    let daemons = Daemons::on_lab(job.lab, job.ranks, job.directory, args)?;
    let mut stats = daemons.stats();
    let ranks = ProgramRanks { count: job.ranks, layout: job.layout, lab: Some(job.lab) };
    let (rendezvous, commands) =
        rank_commands(&ranks, job.program, job.arguments, job.directory, &daemons.environment())?;
    let mut ranks = Vec::new();
    for (name, command) in commands {
        ranks.push(LoggedProcess::start(name, command, job.directory)?);
    }
    stats.rendezvous = Some(rendezvous);
    Ok(RunningJob { ranks, services: daemons.processes, stats: Some(Box::new(stats)) })
}
