//! Start and end of a service process: from [`Settings`] to a conductor that runs, and back to nothing.

use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Instant;

use outboard_fabric::multicast::{Interface, InterfaceError, MulticastSettings};
use outboard_fabric::ofi::OfiError;
use outboard_fabric::{
    Fabric, FabricLimits, Identity, Loopback, Tcp, TcpSettings, Ucx, UcxError, UcxSettings, rdma_device,
    rdma_is_asked_for,
};
use outboard_proto::SpId;
use rustix::net::SocketType;

use crate::conductor::Conductor;
use crate::conductor::adaptive_polling::AdaptivePolling;
use crate::conductor::lifetime::{Lifetime, LockedJobDirectory};
use crate::conductor::offload::OffloadEngine;
use crate::conductor::processor::Processor;
use crate::conductor::send_queue::SendQueue;
use crate::datapath::mailbox::Mailbox;
use crate::datapath::{Datapath, DatapathReport};
use crate::driver::EndpointDriver;
use crate::poller::Poller;
use crate::ranks::Ranks;
use crate::ranks::attach::{HostProperties, random_words};
use crate::ranks::docked::DockedRanks;
use crate::settings::{EngineChoice, FabricChoice, Settings, SettingsError};
use crate::socket::{NamedSocket, SocketError};
use crate::telemetry::statistics::Statistics;
use crate::telemetry::trace::TimelineFile;
use crate::telemetry::turns::Stopwatch;
use crate::topology::{self, CpuTopology};

/// Reason why a service process does not start, or had to end.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error(transparent)]
    Socket(#[from] SocketError),
    #[error(transparent)]
    Ucx(#[from] UcxError),
    #[error(transparent)]
    Ofi(#[from] OfiError),
    #[error(transparent)]
    Interface(#[from] InterfaceError),
    #[error("--fabric {0:?} needs a network interface; give --interface, or leave --fabric away")]
    NoInterface(FabricChoice),
    #[error("interface {0} has no RDMA device for UCX; leave --fabric ucx away, and TCP is used")]
    NoRdma(String),
    #[error("cannot {what}: {source}")]
    Kernel { what: &'static str, source: std::io::Error },
}

fn kernel<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> StartError {
    move |source| StartError::Kernel { what, source: source.into() }
}

/// Runs a service process on this thread; ranks attach at `attach`. `ready` is called once ranks may attach, with the
/// list of the ranks that a dock is about to attach. The result of `ready` is kept until the last rank has gone.
/// `stopped` is called whenever `stop` is readable: it reads the descriptor and returns whether to end. After the first
/// stop calls in flight may complete; after the second they fail. No thread of this process may take the signals that
/// are pending for `stop`.
pub fn run<Kept>(
    settings: &Settings,
    attach: NamedSocket,
    stop: BorrowedFd<'_>,
    stopped: impl FnMut() -> bool,
    ready: impl FnOnce(&Arc<DockedRanks>) -> Result<Kept, StartError>,
) -> Result<(), StartError> {
    let mut conductor = build(settings, attach)?;
    conductor.watch(stop).map_err(kernel("watch the daemon's descriptors"))?;
    // `_kept` is dropped after the conductor, whose end closes the connections of relayed ranks.
    let _kept = ready(&conductor.host.docked)?;
    let ended = conductor.run(stopped);
    let job_directory = settings.job_directory.as_deref().and_then(LockedJobDirectory::begin);
    // Dropping the conductor removes the socket.
    drop(conductor);
    job_directory.into_iter().for_each(LockedJobDirectory::finish);
    ended.map_err(kernel("sleep"))
}

/// The statistics socket, if there is one. A job's own daemon serves the job without the socket where no room is left.
fn statistics_socket(settings: &Settings) -> Result<Option<NamedSocket>, SocketError> {
    let Some(path) = &settings.stats else { return Ok(None) };
    match NamedSocket::listen(path, SocketType::STREAM) {
        Err(error) if settings.job_directory.is_some() => {
            tracing::warn!(%error, "`outboard top` does not find this service process");
            Ok(None)
        }
        listening => listening.map(Some),
    }
}

fn build(settings: &Settings, attach: NamedSocket) -> Result<Conductor, StartError> {
    let config = settings.resolve()?;
    raise_descriptor_limit();
    let [seed] = random_words().map_err(kernel("draw random numbers"))?;
    let statistics_socket = statistics_socket(settings)?;
    let fabric = fabric(settings)?;
    let id = fabric.id().0;
    let receivers = settings.receivers(config.link_rate);
    let mailbox = Datapath::mailbox(receivers).map_err(kernel("make a mailbox"))?;
    let sends_from = settings.interface.as_deref().and_then(|name| Interface::named(name).ok()?.address().ok());
    let datapath = datapath(settings, config.multicast, receivers, &mailbox)?;
    let offload = offload(settings)?;
    let host = HostProperties {
        id: SpId(id),
        place: crate::topology::host::identity().map_err(kernel("tell this host from others"))?,
        node: topology::node(),
        topology: CpuTopology::detect(),
        settings: settings.clone(),
        digest: config.digest(),
        address: Arc::from(fabric.local_address()),
        engine: offload.as_ref().map_or_else(|| Arc::from([]), |offload| Arc::from(offload.address())),
        sends_from,
        link_rate: config.link_rate,
        docked: Arc::default(),
    };
    let trace = settings.trace.as_deref().map(|path| TimelineFile::create(path, host.id)).transpose();
    let trace = trace.map_err(kernel("write the trace"))?;
    tracing::info!(
        service_process = format!("{id:016x}"),
        socket = %attach.path().display(),
        fabric = ?settings.fabric(),
        engine = %settings.engine,
        encrypted = settings.encrypt,
        ?config,
        "serving"
    );
    Ok(Conductor {
        driver: EndpointDriver::new(host.id, config, seed, settings.errand_bytes.0),
        send_queue: SendQueue::new(fabric),
        fabric_calls: true,
        ranks: Ranks::default(),
        host,
        poller: Poller::new().map_err(kernel("make an epoll descriptor"))?,
        attach,
        statistics_socket,
        mailbox,
        datapath,
        offload,
        statistics: Statistics::new(),
        trace,
        lifetime: Lifetime::new(settings.exit_when_idle),
        adaptive_polling: AdaptivePolling::new(settings.poll, Instant::now()),
        processor: Processor::for_this_thread(),
        stopwatch: Stopwatch::start(Instant::now()),
    })
}

/// The multicast datapath, if there is multicast.
fn datapath(
    settings: &Settings,
    multicast: bool,
    receivers: usize,
    mailbox: &Mailbox<DatapathReport>,
) -> Result<Option<Datapath>, StartError> {
    let Some(interface) = settings.interface.as_ref().filter(|_| multicast) else { return Ok(None) };
    let interface = Interface::named(interface)?;
    let multicast = MulticastSettings { port: settings.multicast_port, ..MulticastSettings::new(interface) };
    let started = Datapath::start(&multicast, receivers, mailbox);
    started.map(Some).map_err(kernel("start the multicast threads"))
}

/// The engine beside the service process, if the settings name one.
fn offload(settings: &Settings) -> Result<Option<OffloadEngine>, StartError> {
    if settings.engine == EngineChoice::ServiceProcess {
        return Ok(None);
    }
    let at = match &settings.interface {
        Some(name) => Interface::named(name)?.address()?,
        None => Ipv4Addr::LOCALHOST,
    };
    Ok(Some(OffloadEngine::open(&settings.ofi_provider, at)?))
}

/// Number of peers that the fabric admits beyond [`Config::peers`](outboard_proto::Config::peers): peers that have no
/// group any more, and peers that request ranks of this host.
const MORE_PEERS: usize = 1024;

fn fabric(settings: &Settings) -> Result<Box<dyn Fabric>, StartError> {
    let identity = Identity::generate();
    let limits = FabricLimits { peers: settings.max_peers as usize + MORE_PEERS, ..FabricLimits::default() };
    let interface = || settings.interface.as_deref().ok_or(StartError::NoInterface(settings.fabric()));
    Ok(match settings.fabric() {
        FabricChoice::Loopback => Box::new(Loopback::new(identity.id()).map_err(kernel("make the loopback fabric"))?),
        FabricChoice::Tcp => {
            if settings.fabric.is_none()
                && let Some(device) = rdma_device(interface()?)
            {
                tracing::info!("{}", rdma_is_asked_for(&device));
            }
            let at = Interface::named(interface()?)?.address()?;
            let cluster = settings.read_cluster_key()?;
            let encrypt = settings.encrypt;
            let tcp = Tcp::new(TcpSettings { at, identity, cluster, encrypt, siblings: true, limits });
            Box::new(tcp.map_err(kernel("listen for other service processes"))?)
        }
        FabricChoice::Ucx => {
            let interface = interface()?;
            let device = rdma_device(interface).ok_or_else(|| StartError::NoRdma(interface.to_owned()))?;
            let settings = UcxSettings { devices: Some(device), limits, ..UcxSettings::default() };
            Box::new(Ucx::new(identity.id(), &settings)?)
        }
    })
}

/// Raises the limit on descriptors to the administrator's maximum, since ranks and their memory take descriptors.
pub fn raise_descriptor_limit() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    if let Err(errno) = setrlimit(Resource::Nofile, limit) {
        tracing::warn!(%errno, "cannot raise the limit on descriptors");
    }
}
