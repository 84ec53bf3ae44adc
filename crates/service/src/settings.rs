//! Settings of the daemon: one typed structure with sources, default < environment `OUTBOARD_*` < flag.
//!
//! [`Settings`] holds the user's values. [`Settings::resolve`] completes them from the machine (MTU and link rate of
//! the interface). [`print()`] shows every value with its source. Settings do not change after the start.

use std::fmt;
use std::io::Read;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use clap::parser::ValueSource;
use clap::{ArgMatches, Parser, ValueEnum};
use outboard_fabric::SharedKey;
use outboard_fabric::multicast::{DEFAULT_PORT, IP_UDP_HEADERS, Interface, InterfaceError};
use outboard_plan::selection::{Tuning, TuningError};
use outboard_proto::Config;
use outboard_proto::wire::DATAGRAM_HEADER_BYTES;
use outboard_units::{Rate, Size};

/// Default provider of libfabric.
pub const OFI_PROVIDER: &str = "sockets";
const IP_UDP_BYTES: u32 = IP_UDP_HEADERS as u32;
/// Ethernet header.
const ETHERNET_BYTES: u32 = 14;
/// The smallest MTU that IPv4 hosts must accept.
const SMALLEST_MTU: u32 = 576;
/// The largest datagram that UDP over IPv4 allows.
const LARGEST_MTU: u32 = 65_535;
/// Default size of the largest small call.
pub const EAGER_BYTES: Size = Size(16 << 10);
/// Default size of the smallest copy that is left to a rank.
const ERRAND_BYTES: Size = Size(32 << 10);
/// Fastest link on which the daemon's own thread sends and receives multicast: its datagrams keep half a processor
/// busy.
const MAX_INLINE_RATE: Rate = Rate::bits_per_second(2_500_000_000);
/// Link rate assumed if the interface reports none.
const FALLBACK_RATE: Rate = Rate::bits_per_second(1_000_000_000);

/// Transport of unicast between service processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FabricChoice {
    /// Messages stay within the process: one host only.
    Loopback,
    /// TCP between service processes that authenticate each other
    Tcp,
    /// UCX over the RDMA device of the interface; never over its TCP transport, which does not authenticate its peers
    Ucx,
}

/// Engine that carries out collectives between hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EngineChoice {
    ServiceProcess,
    /// Deferred work of a libfabric provider, for the calls that it supports. Its endpoints are not authenticated: use
    /// it on closed networks only
    OfiTriggered,
}

impl fmt::Display for EngineChoice {
    /// Writes the choice as on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            EngineChoice::ServiceProcess => "service-process",
            EngineChoice::OfiTriggered => "ofi-triggered",
        })
    }
}

/// Algorithm of an allgather.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum AlgorithmChoice {
    /// Ring over unicast.
    Ring,
    /// Reliable multicast (MC-8).
    Multicast,
}

/// Extent of the authentication of a multicast datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum MulticastAuth {
    /// The tag covers header and payload
    On,
    /// The tag covers the header only
    Off,
}

impl fmt::Display for MulticastAuth {
    /// Writes the choice as on the command line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MulticastAuth::On => "on",
            MulticastAuth::Off => "off",
        })
    }
}

/// Policy of the conductor's polling before it sleeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Polling {
    Off,
    /// Polls for a moment after two events in close succession, unless others need the processor
    Auto,
    /// Polls as long as ranks are attached, which takes a whole processor
    Always,
}

/// Address of a dock's relay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DockAt {
    /// The dock listens at this address; one relay connects at a time.
    Address(SocketAddr),
    /// The service manager passes the connection to the relay.
    Passed,
}

/// A given value, or the value of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Auto<T> {
    Auto,
    Given(T),
}

/// Carries out the collectives of this host's ranks.
///
/// Settings come from flags, else from the environment (OUTBOARD_*), else from defaults.
// `--help` and docs/guide/settings.md show the comments of the fields; text behind "; by default " is a default.
#[derive(Debug, Clone, Parser)]
#[command(name = "outboardd", version)]
pub struct Settings {
    /// Socket at which ranks of the daemon's own user attach; by default the socket that a service manager passes, else
    /// outboard/outboardd.sock in XDG_RUNTIME_DIR
    #[arg(long, env = "OUTBOARD_SOCKET")]
    pub socket: Option<PathBuf>,
    /// Network interface towards the other hosts; without it the daemon serves a single host
    #[arg(long, env = "OUTBOARD_INTERFACE")]
    pub interface: Option<String>,
    /// Transport of unicast, where `ucx` uses the RDMA device of the interface and authenticates nobody; by default tcp
    /// with an interface, else loopback
    #[arg(long, env = "OUTBOARD_FABRIC", value_enum)]
    pub fabric: Option<FabricChoice>,
    /// Key file, the same for all daemons of the cluster and readable by its owner alone; daemons without it are
    /// refused
    #[arg(long, env = "OUTBOARD_CLUSTER_KEY")]
    pub cluster_key: Option<PathBuf>,
    /// Encrypt all traffic to other service processes, over TCP and without multicast; the same for all daemons of a
    /// cluster
    #[arg(long, env = "OUTBOARD_ENCRYPT", value_parser = clap::builder::BoolishValueParser::new())]
    pub encrypt: bool,
    /// Rate of the link in bit/s (`1gbit`), or `auto`: the rate of the interface, else 1gbit. It paces multicast and,
    /// with the rates of the other hosts, selects algorithms
    #[arg(long, env = "OUTBOARD_LINK_RATE", default_value = "auto")]
    pub link_rate: Auto<Rate>,
    /// MTU of the link in bytes, 576 to 65535, or `auto`: the MTU of the interface
    #[arg(long, env = "OUTBOARD_MTU", default_value = "auto")]
    pub mtu: Auto<Size>,
    /// UDP port of multicast datagrams
    #[arg(long, env = "OUTBOARD_MULTICAST_PORT", default_value_t = DEFAULT_PORT)]
    pub multicast_port: u16,
    /// Whether datagrams authenticate their payload; `off` only for networks without untrusted hosts; the same for all
    /// daemons of a cluster
    #[arg(long, env = "OUTBOARD_MULTICAST_AUTH", value_enum, default_value_t = MulticastAuth::On)]
    pub multicast_auth: MulticastAuth,
    /// Engine of collectives between hosts; the same for all daemons of a cluster
    #[arg(long, env = "OUTBOARD_ENGINE", value_enum, default_value_t = EngineChoice::ServiceProcess)]
    pub engine: EngineChoice,
    /// Provider of libfabric for `--engine ofi-triggered`; the same for all daemons of a cluster
    #[arg(long, env = "OUTBOARD_OFI_PROVIDER", default_value = OFI_PROVIDER)]
    pub ofi_provider: String,
    /// Whether hosts multicast to one another where it pays (docs/tuning.md), or never (ring); by default multicast
    /// with an interface and without --encrypt, else ring
    #[arg(long, env = "OUTBOARD_ALGORITHM", value_enum)]
    pub algorithm: Option<AlgorithmChoice>,
    /// Roots that multicast at the same time (M of MC-8); 0 means all ranks
    #[arg(long, env = "OUTBOARD_CHAINS", default_value_t = 0)]
    pub chains: u32,
    /// Multicast addresses over which a block is spread (S of MC-10)
    #[arg(long, env = "OUTBOARD_SUBGROUPS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    pub subgroups: u16,
    /// Smallest offloaded block in bytes
    #[arg(long, env = "OUTBOARD_OFFLOAD_FROM", default_value = "4K")]
    pub offload_from: Size,
    /// Largest call, in total bytes moved, that skips the ready barrier, because its messages carry its data; 0 for
    /// none
    #[arg(long, env = "OUTBOARD_EAGER_BYTES", default_value_t = EAGER_BYTES)]
    pub eager_bytes: Size,
    /// Smallest copy between two ranks of this host that the receiving rank does itself while it waits in the library;
    /// 0 for none
    #[arg(long, env = "OUTBOARD_ERRAND_BYTES", default_value_t = ERRAND_BYTES)]
    pub errand_bytes: Size,
    /// Whether the daemon polls before it sleeps: `auto` polls for a moment unless others need the processor
    #[arg(long, env = "OUTBOARD_POLL", value_enum, default_value_t = Polling::Auto)]
    pub poll: Polling,
    /// Tuning file of `outboard tune` that selects the collectives' algorithms; the same for all daemons of a group
    #[arg(long, env = "OUTBOARD_TUNING")]
    pub tuning: Option<PathBuf>,
    /// Staging memory for ranks that have not called yet
    #[arg(long, env = "OUTBOARD_STAGING_QUOTA", default_value = "1G")]
    pub staging_quota: Size,
    /// Memory, beside the staging quota, for reductions that all ranks of this host have called
    #[arg(long, env = "OUTBOARD_SCRATCH_QUOTA", default_value = "8G")]
    pub scratch_quota: Size,
    /// Approximate memory for groups, recordings and calls in flight
    #[arg(long, env = "OUTBOARD_TABLES_QUOTA", default_value = "4G")]
    pub tables_quota: Size,
    /// Seconds in which all ranks must request a group after its first rank on a host; 0 for no limit
    #[arg(long, env = "OUTBOARD_GROUP_TIMEOUT", default_value = "30", value_parser = outboard_units::Duration::seconds)]
    pub group_timeout: Duration,
    /// Seconds after which the log reports a collective in flight, with the ranks that have not called it; repeated at
    /// doubling intervals; 0 for never
    #[arg(long, env = "OUTBOARD_WATCHDOG", default_value = "30", value_parser = outboard_units::Duration::seconds)]
    pub watchdog: Duration,
    /// File for a timeline of calls, stand-ins, transfers and waits, in the trace format of Perfetto
    #[arg(long, env = "OUTBOARD_TRACE_FILE")]
    pub trace: Option<PathBuf>,
    /// Threads that receive multicast (MC-10), 0 to 64, beside one that sends; 0: the daemon's own thread does both; by
    /// default 0 on links of up to 2.5 Gbit/s, where a wake-up costs more than the datagrams, else 1
    #[arg(long, env = "OUTBOARD_RECEIVERS", value_parser = clap::value_parser!(u16).range(0..=64))]
    pub receivers: Option<u16>,
    /// Most ranks attached at once
    #[arg(long, env = "OUTBOARD_MAX_RANKS", default_value_t = 1024, value_parser = clap::value_parser!(u32).range(1..=65_535))]
    pub max_ranks: u32,
    /// Most memberships in groups that the ranks of this host hold at once
    #[arg(long, env = "OUTBOARD_MAX_GROUPS", default_value_t = 262_144, value_parser = clap::value_parser!(u32).range(1..))]
    pub max_groups: u32,
    /// Most other service processes in groups with this one at once
    #[arg(long, env = "OUTBOARD_MAX_PEERS", default_value_t = 4096, value_parser = clap::value_parser!(u32).range(2..=65_535))]
    pub max_peers: u32,
    /// Log level, or a filter such as `outboard_service=debug`
    #[arg(long, env = "OUTBOARD_LOG", default_value = "info")]
    pub log: String,
    /// Processor of the daemon's threads; by default any
    #[arg(long, env = "OUTBOARD_PIN_CORE")]
    pub pin_core: Option<usize>,
    /// Unix socket that answers each connection with the statistics as one line of JSON
    #[arg(long, env = "OUTBOARD_STATS")]
    pub stats: Option<PathBuf>,
    /// Descriptor to which one byte is written when ranks may attach
    #[arg(long, env = "OUTBOARD_READY_FD", hide = true)]
    pub ready_fd: Option<i32>,
    /// Address (HOST:PORT, numbers) at which a relay of another host attaches its ranks: this machine is a DPU.
    /// `passed`: the service manager passes the relay's connection, and the daemon ends with it
    #[arg(long, env = "OUTBOARD_DOCK", conflicts_with = "relay")]
    pub dock: Option<DockAt>,
    /// Run as a relay: serve this host's ranks through the daemon on another machine with this --dock
    #[arg(long, env = "OUTBOARD_RELAY")]
    pub relay: Option<SocketAddr>,
    /// Key file of relays and their daemon, the same bytes, readable by its owner alone; without it anybody may attach
    #[arg(long, env = "OUTBOARD_RELAY_KEY")]
    pub relay_key: Option<PathBuf>,
    /// Memory for the calls of each rank that attaches through a relay
    #[arg(long, env = "OUTBOARD_RELAY_MEMORY", default_value = "2G")]
    pub relay_memory: Size,
    /// Seconds in which calls in flight may end after a stop
    #[arg(long, env = "OUTBOARD_DRAIN", default_value = "5", value_parser = outboard_units::Duration::seconds)]
    pub drain: Duration,
    /// End when the process that started the daemon ends
    #[arg(long, env = "OUTBOARD_DIE_WITH_PARENT", hide = true)]
    pub die_with_parent: bool,
    /// End when the last rank has left, or when no rank attaches
    #[arg(long, hide = true)]
    pub exit_when_idle: bool,
    /// Directory of a job's own daemon, removed at the end with its lock and its log
    #[arg(long, hide = true)]
    pub job_directory: Option<PathBuf>,
    /// Print every setting that has a value, with its source, and exit
    #[arg(long)]
    pub print_settings: bool,
    /// Run in the background; return when ranks may attach. From then on the log goes to standard error only if that is
    /// a file
    #[arg(long)]
    pub background: bool,
    /// Let go of the starter's standard streams when ranks may attach; `--background` passes it
    #[arg(long, hide = true)]
    pub release_output: bool,
}

/// Reason why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("an MTU of {0} bytes is not one of {SMALLEST_MTU} to {LARGEST_MTU}")]
    Mtu(u32),
    #[error("tuning file {}: {source}; give one that the daemon may read, or none", path.display())]
    TuningFile { path: PathBuf, source: std::io::Error },
    #[error("tuning file {}, {source}", path.display())]
    Tuning { path: PathBuf, source: TuningError },
    #[error("key {}: {source}; give a file that the daemon may read", path.display())]
    KeyFile { path: PathBuf, source: std::io::Error },
    #[error("key {} has {length} bytes and mode {mode:o}; give at least one byte that only its owner may read \
             (head -c 32 /dev/urandom > FILE; chmod 600 FILE)", path.display())]
    Key { path: PathBuf, mode: u32, length: usize },
    #[error("--encrypt does not reach multicast; leave --algorithm multicast away, or give --algorithm ring")]
    MulticastInTheClear,
    #[error("{0} needs TCP; leave --fabric ucx away, and TCP is used")]
    NotByUcx(&'static str),
    #[error("--encrypt does not reach --engine ofi-triggered, whose messages are in the clear; leave one of both away")]
    EngineInTheClear,
    #[error("the multicast algorithm needs --interface; give it, or use --algorithm ring")]
    MulticastNowhere,
}

impl Settings {
    /// Transport of unicast.
    #[must_use]
    pub fn fabric(&self) -> FabricChoice {
        let default = if self.interface.is_some() { FabricChoice::Tcp } else { FabricChoice::Loopback };
        self.fabric.unwrap_or(default)
    }

    /// The given option that requires TCP.
    fn needs_tcp(&self) -> Option<&'static str> {
        let cluster_key = self.cluster_key.as_ref().map(|_| "--cluster-key");
        self.encrypt.then_some("--encrypt").or(cluster_key)
    }

    /// The key of the cluster's daemons.
    ///
    /// # Errors
    /// The file cannot be read, is empty, or is readable by others than its owner.
    pub fn read_cluster_key(&self) -> Result<SharedKey, SettingsError> {
        self.cluster_key.as_deref().map_or_else(|| Ok(SharedKey::default()), read_key)
    }

    /// The key of relays and their daemon.
    ///
    /// # Errors
    /// As for [`Self::read_cluster_key`].
    pub fn read_relay_key(&self) -> Result<SharedKey, SettingsError> {
        self.relay_key.as_deref().map_or_else(|| Ok(SharedKey::default()), read_key)
    }

    /// The algorithm of allgathers.
    #[must_use]
    pub fn algorithm(&self) -> AlgorithmChoice {
        self.algorithm.unwrap_or(if self.interface.is_some() && !self.encrypt {
            AlgorithmChoice::Multicast
        } else {
            AlgorithmChoice::Ring
        })
    }

    /// Threads that receive multicast on a link of this rate in bit/s.
    #[must_use]
    pub fn receivers(&self, link_rate: u64) -> usize {
        usize::from(self.receivers.unwrap_or(u16::from(link_rate > MAX_INLINE_RATE.in_bits_per_second())))
    }

    /// The protocol's configuration, completed from the interface.
    pub fn resolve(&self) -> Result<Config, SettingsError> {
        if self.encrypt && self.algorithm() == AlgorithmChoice::Multicast {
            return Err(SettingsError::MulticastInTheClear);
        }
        if let Some(option) = self.needs_tcp()
            && self.fabric() == FabricChoice::Ucx
        {
            return Err(SettingsError::NotByUcx(option));
        }
        let deferred = self.engine == EngineChoice::OfiTriggered;
        if self.encrypt && deferred {
            return Err(SettingsError::EngineInTheClear);
        }
        if self.algorithm() == AlgorithmChoice::Multicast && self.interface.is_none() {
            return Err(SettingsError::MulticastNowhere);
        }
        let mtu = match (self.mtu, &self.interface) {
            (Auto::Given(Size(mtu)), _) => u32::try_from(mtu).unwrap_or(u32::MAX),
            (Auto::Auto, Some(interface)) => interface_mtu(interface)?,
            (Auto::Auto, None) => 1500,
        };
        if !(SMALLEST_MTU..=LARGEST_MTU).contains(&mtu) {
            return Err(SettingsError::Mtu(mtu));
        }
        let rate = match (self.link_rate, &self.interface) {
            (Auto::Given(rate), _) => rate,
            (Auto::Auto, Some(interface)) => interface_rate(interface),
            (Auto::Auto, None) => FALLBACK_RATE,
        };
        let header = u32::try_from(DATAGRAM_HEADER_BYTES).unwrap_or(u32::MAX);
        Ok(Config {
            chunk_bytes: mtu - IP_UDP_BYTES - header,
            datagram_overhead: ETHERNET_BYTES + IP_UDP_BYTES + header,
            multicast: self.algorithm() == AlgorithmChoice::Multicast,
            chains: self.chains,
            subgroups: self.subgroups,
            multicast_auth: self.multicast_auth == MulticastAuth::On,
            offload_from: self.offload_from.0,
            eager_bytes: self.eager_bytes.0,
            tuning: self.tuning.as_deref().map(read_tuning).transpose()?.map(Arc::new),
            deferred: deferred.then(|| self.ofi_provider.as_str().into()),
            peers: self.max_peers as usize,
            staging_quota: self.staging_quota.0,
            scratch_quota: self.scratch_quota.0,
            tables_quota: self.tables_quota.0,
            narrate: self.trace.is_some(),
            group_timeout: Some(self.group_timeout).filter(|after| !after.is_zero()),
            watchdog: Some(self.watchdog).filter(|after| !after.is_zero()),
            ..Config::on_links(rate.in_bits_per_second())
        })
    }
}

/// The tuning in a file.
///
/// # Errors
/// The file cannot be read, or its content is no valid tuning.
pub fn read_tuning(path: &Path) -> Result<Tuning, SettingsError> {
    let unread = |source| SettingsError::TuningFile { path: path.to_owned(), source };
    let text = std::fs::read_to_string(path).map_err(unread)?;
    text.parse().map_err(|source| SettingsError::Tuning { path: path.to_owned(), source })
}

fn read_key(path: &Path) -> Result<SharedKey, SettingsError> {
    let unread = |source| SettingsError::KeyFile { path: path.to_owned(), source };
    let mut file = std::fs::File::open(path).map_err(unread)?;
    let mode = file.metadata().map_err(unread)?.mode();
    let mut content = Vec::new();
    file.read_to_end(&mut content).map_err(unread)?;
    // systemd may grant its user a credential by an access list, which shows as the group's bits.
    let credential = std::env::var_os("CREDENTIALS_DIRECTORY").is_some_and(|directory| path.starts_with(directory));
    if (mode & 0o077 != 0 && !credential) || content.is_empty() {
        return Err(SettingsError::Key { path: path.to_owned(), mode: mode & 0o777, length: content.len() });
    }
    Ok(SharedKey::of(&content))
}

/// One line per setting: name, value and source.
#[must_use]
pub fn print(matches: &ArgMatches) -> String {
    let mut lines: Vec<String> = matches
        .ids()
        .filter_map(|id| {
            let source = match matches.value_source(id.as_str())? {
                ValueSource::DefaultValue => "default",
                ValueSource::EnvVariable => "environment",
                ValueSource::CommandLine => "flag",
                _ => "other",
            };
            let raw = matches.get_raw(id.as_str())?;
            let value = raw.map(|v| v.to_string_lossy()).collect::<Vec<_>>().join(" ");
            Some(format!("{} = {value} ({source})", id.as_str().replace('_', "-")))
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

/// The MTU of lo is larger than any IPv4 packet, so it is limited.
fn interface_mtu(interface: &str) -> Result<u32, SettingsError> {
    let mtu = Interface::named(interface)?.mtu().map_err(InterfaceError::from)?;
    Ok(u32::try_from(mtu).unwrap_or(LARGEST_MTU).min(LARGEST_MTU))
}

/// The speed in Mbit/s that the driver reports; virtual interfaces report none or -1.
fn interface_rate(interface: &str) -> Rate {
    let reported = std::fs::read_to_string(Path::new("/sys/class/net").join(interface).join("speed")).ok();
    let mbit = reported.and_then(|text| text.trim().parse::<u64>().ok()).filter(|&mbit| mbit > 0);
    mbit.map_or(FALLBACK_RATE, |mbit| Rate::bits_per_second(mbit.saturating_mul(1_000_000)))
}

impl FromStr for DockAt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let address = || text.parse().map(DockAt::Address);
        if text == "passed" {
            Ok(DockAt::Passed)
        } else {
            address().map_err(|error| format!("{error}, and not `passed`"))
        }
    }
}

impl<T: FromStr> FromStr for Auto<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "auto" { Ok(Auto::Auto) } else { text.parse().map(Auto::Given) }
    }
}

#[cfg(test)]
pub(crate) mod tests;
