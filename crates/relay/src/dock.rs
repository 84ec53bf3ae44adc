//! The service process's side: ranks that attach through a relay (SP-1, GP-9).
//!
//! A dock serves one relay, and so one user. A relay opens a control connection with the relay key. It receives the
//! port for its ranks and a secret. Each rank has its own connection, with a key that is derived from the secret. When
//! the control connection ends, the relay and its ranks count as gone. A relay goes through these states:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | stranger | a handshake by the relay key | opening |
//! | stranger | anything else | closed, counted |
//! | opening | [`RelayFrame::Open`], and no other relay is served | served |
//! | opening | anything else | refused |
//! | served | the end of the control connection, or of the service process | gone, with its ranks |
//!
//! A rank's connection, on its own thread:
//!
//! | state | on | goes to |
//! |---|---|---|
//! | stranger | a handshake by the key of this relay's ranks | greeting |
//! | stranger | anything else | closed, counted |
//! | greeting | the right greeting, and the service process accepts the rank | attached |
//! | greeting | anything else | refused |
//! | attached | the end of the connection or of the service process, `Detach` | gone: the rank has left |
//! | attached | an invalid frame, or more memory than the quota | refused |
//!
//! A call is *filling* while its input arrives, then *posted* until its completion word holds its result. A second
//! thread sends output and completions.
//!
//! Invariants: a dock never serves two relays at once. Calls are posted in order of arrival. The service process
//! accesses proxy buffers and no other memory of the dock, since the dock never proves access to its memory.

mod call;
mod delivery;
mod entrance;
mod rank;
mod session;

use std::fmt::Display;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use outboard_fabric::limited;
use outboard_fabric::{Refusals, SharedKey};
use outboard_service::settings::SettingsError;
use outboard_service::{DockedRanks, Settings, StartError, random_words};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::net::{AddressFamily, SocketType, sockopt};

use self::entrance::Entrance;
use self::rank::{SessionEnd, refuse_with};
use crate::frame::{Decoder, RelayFrame, SECRET_BYTES};
use crate::wire::{GREETING_LIMIT, Wire, WireError, lock};

/// The state that all connections of a dock share.
#[derive(Debug)]
struct DockContext {
    settings: Settings,
    /// The socket at which the service process accepts ranks.
    socket: PathBuf,
    docked: Arc<DockedRanks>,
    refusals: Mutex<Refusals>,
    served: Mutex<Option<SocketAddr>>,
}

impl DockContext {
    fn new(settings: &Settings, socket: &Path, docked: &Arc<DockedRanks>) -> Arc<DockContext> {
        Arc::new(DockContext {
            settings: settings.clone(),
            socket: socket.to_owned(),
            docked: Arc::clone(docked),
            refusals: Mutex::default(),
            served: Mutex::default(),
        })
    }

    fn count_closed(&self, from: SocketAddr, why: &dyn Display) {
        lock(&self.refusals).note(&from, None, why);
    }

    fn claim_dock(&self, from: SocketAddr) -> Result<(), String> {
        let mut served = lock(&self.served);
        if let Some(other) = *served {
            return Err(format!("this dock serves the relay at {other} and no other beside it; start one more dock"));
        }
        *served = Some(from);
        Ok(())
    }
}

/// The served relay, as the threads of its ranks use it.
#[derive(Debug)]
struct ServedRelay {
    context: Arc<DockContext>,
    /// Becomes readable when the relay has ended.
    over: OwnedFd,
}

/// Reason why the relay on a connection that a service manager has passed is not served.
#[derive(Debug, thiserror::Error)]
pub enum RelayError {
    #[error(
        "the descriptor passed by the service manager is no connected TCP socket; have the .socket unit say \
             ListenStream= and Accept=yes"
    )]
    NoConnection,
    #[error(transparent)]
    Settings(#[from] SettingsError),
    #[error("no relay is at {from}: {why}")]
    NoRelay { from: SocketAddr, why: String },
}

/// A relay that has proven the key and waits for an answer to its first frame.
#[derive(Debug)]
pub struct Relay {
    wire: Wire,
    from: SocketAddr,
}

impl Relay {
    /// Authenticates the relay on a connection of a service manager. Without a valid relay no service process is
    /// started.
    ///
    /// # Errors
    /// [`RelayError`].
    pub fn accept(passed: OwnedFd, settings: &Settings) -> Result<Relay, RelayError> {
        let network = matches!(sockopt::socket_domain(&passed), Ok(AddressFamily::INET | AddressFamily::INET6));
        let stream = sockopt::socket_type(&passed) == Ok(SocketType::STREAM);
        let passed = TcpStream::from(passed);
        let Ok(from) = passed.peer_addr() else { return Err(RelayError::NoConnection) };
        if !network || !stream {
            return Err(RelayError::NoConnection);
        }
        let key = settings.read_relay_key()?;
        let no_relay = |why: String| RelayError::NoRelay { from, why };
        let accepted = passed.set_nonblocking(false).map_err(WireError::from);
        let wire = accepted.and_then(|()| Wire::accept(passed, &key)).map_err(|error| no_relay(error.to_string()))?;
        match open(&wire) {
            Ok(()) => Ok(Relay { wire, from }),
            Err(SessionEnd::Over) => Err(no_relay("it ended the connection".to_owned())),
            Err(SessionEnd::Refused(why)) => {
                refuse(&wire, from, &why);
                Err(no_relay(why))
            }
        }
    }
}

fn open(wire: &Wire) -> Result<(), SessionEnd> {
    let first = wire.first(&mut Decoder::default(), GREETING_LIMIT, |frame| frame == RelayFrame::Open)?;
    if first { Ok(()) } else { refuse_with("the first frame of a relay's control connection opens it") }
}

/// The threads of a dock. Their connections end with the service process.
#[derive(Debug)]
pub struct Dock {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl Dock {
    /// Listens at `address` for relays and serves one relay at a time. `service` contains the settings of the service
    /// process and the socket at which ranks attach.
    ///
    /// # Errors
    /// [`StartError`], for instance if the address is taken.
    pub fn listen(
        address: SocketAddr,
        service: (&Settings, &Path),
        docked: &Arc<DockedRanks>,
    ) -> Result<Dock, StartError> {
        let failed = |source| StartError::Kernel { what: "listen for relays", source };
        let key = service.0.read_relay_key()?;
        let entrance = Entrance::listen(address, key, "dock-relay").map_err(failed)?;
        let local = entrance.address().map_err(failed)?;
        warn_of_anybody(service.0, local);
        tracing::info!(address = %local, "a relay may attach ranks");
        let context = DockContext::new(service.0, service.1, docked);
        Dock::start(move |stop| listen(entrance, stop, &context)).map_err(failed)
    }

    /// Serves `relay`. `service` contains the settings of the service process and the socket at which ranks attach.
    /// `ended` is called when the relay has ended.
    ///
    /// # Errors
    /// [`StartError`].
    pub fn serve(
        relay: Relay,
        service: (&Settings, &Path),
        docked: &Arc<DockedRanks>,
        ended: impl FnOnce() + Send + 'static,
    ) -> Result<Dock, StartError> {
        let context = DockContext::new(service.0, service.1, docked);
        let serve = move |stop: &Arc<OwnedFd>| {
            serve(&relay, stop, &context);
            ended();
        };
        Dock::start(serve).map_err(|source| StartError::Kernel { what: "serve a relay", source })
    }

    fn start(run: impl FnOnce(&Arc<OwnedFd>) + Send + 'static) -> std::io::Result<Dock> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC)?;
        let until = Arc::new(stop.try_clone()?);
        let thread = std::thread::Builder::new().name("dock".into()).spawn(move || run(&until))?;
        Ok(Dock { stop, thread: Some(thread) })
    }
}

impl Drop for Dock {
    fn drop(&mut self) {
        // The write fails if the counter is at its maximum, and then the counter wakes the thread already.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that listens for relays panicked");
        }
    }
}

fn warn_of_anybody(settings: &Settings, local: SocketAddr) {
    if settings.relay_key.is_none() && !local.ip().is_loopback() {
        tracing::warn!(address = %local, "whoever reaches this address may attach; give both sides a --relay-key");
    }
}

fn listen(mut entrance: Entrance, stop: &Arc<OwnedFd>, context: &Arc<DockContext>) {
    loop {
        let mut fds = [PollFd::new(entrance.listener(), PollFlags::IN), PollFd::new(&**stop, PollFlags::IN)];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return tracing::error!(%errno, "relays are not listened for any more");
        }
        if !fds[1].revents().is_empty() {
            return;
        }
        let (to, until) = (Arc::clone(context), Arc::clone(stop));
        entrance.accept(context, stop, move |wire, from| match open(&wire) {
            Ok(()) => serve(&Relay { wire, from }, &until, &to),
            Err(SessionEnd::Refused(text)) => refuse(&wire, from, &text),
            Err(SessionEnd::Over) => {}
        });
    }
}

/// Serves a relay until the relay ends or `stop` is readable. Refuses the relay if another relay is served.
fn serve(relay: &Relay, stop: &Arc<OwnedFd>, context: &Arc<DockContext>) {
    let Relay { wire, from } = relay;
    if let Err(text) = context.claim_dock(*from) {
        return refuse(wire, *from, &text);
    }
    let served_relay = eventfd(0, EventfdFlags::CLOEXEC).map(|over| ServedRelay { context: Arc::clone(context), over });
    let served = match served_relay.map(Arc::new) {
        Ok(served_relay) => {
            let served = ranks(relay, stop, &served_relay);
            // The write fails if the counter is at its maximum, and then the counter wakes the threads already.
            let _ = rustix::io::write(&served_relay.over, &1u64.to_ne_bytes());
            served
        }
        Err(errno) => refuse_with(format!("the service process cannot make an eventfd: {errno}")),
    };
    // The dock is free from here on: the next relay may connect before this relay has read the reason of its refusal.
    *lock(&context.served) = None;
    match served {
        Err(SessionEnd::Refused(text)) => refuse(wire, *from, &text),
        Err(SessionEnd::Over) | Ok(()) => tracing::info!(%from, "a relay has ended"),
    }
    wire.end();
}

/// Accepts the ranks of a relay while the relay's control connection lasts.
fn ranks(Relay { wire, from }: &Relay, stop: &Arc<OwnedFd>, served_relay: &Arc<ServedRelay>) -> Result<(), SessionEnd> {
    let no_port =
        |error: &dyn Display| SessionEnd::Refused(format!("the service process cannot listen for ranks: {error}"));
    let secret = secret().map_err(|errno| no_port(&errno))?;
    let mut at = wire.stream().local_addr().map_err(|error| no_port(&error))?;
    at.set_port(0);
    let key = SharedKey::of(&secret);
    let mut entrance = Entrance::listen(at, key, "dock-rank").map_err(|error| no_port(&error))?;
    let port = entrance.address().map_err(|error| no_port(&error))?.port();
    wire.send(&RelayFrame::Opened { port, secret })?;
    tracing::info!(%from, port, "a relay is served");
    let mut decoder = Decoder::default();
    loop {
        let mut fds = [
            PollFd::new(entrance.listener(), PollFlags::IN),
            PollFd::new(wire.stream(), PollFlags::IN),
            PollFd::new(&**stop, PollFlags::IN),
        ];
        if let Err(errno) = rustix::io::retry_on_intr(|| poll(&mut fds, None)) {
            return refuse_with(format!("the service process cannot wait: {errno}"));
        }
        let [rank, control, stopped] = [0, 1, 2].map(|at| !fds[at].revents().is_empty());
        if stopped {
            return Ok(());
        }
        if control {
            wire.fill(&mut decoder)?;
            if decoder.next().map_err(WireError::from)?.is_some() {
                return refuse_with("a control connection that is open carries nothing more");
            }
        }
        if rank {
            let served_relay = Arc::clone(served_relay);
            let context = Arc::clone(&served_relay.context);
            entrance.accept(&context, stop, move |wire, from| rank::serve(wire, from, &served_relay));
        }
    }
}

fn secret() -> Result<[u8; SECRET_BYTES], rustix::io::Errno> {
    let words = random_words::<{ SECRET_BYTES / 8 }>()?;
    Ok(std::array::from_fn(|at| words[at / 8].to_le_bytes()[at % 8]))
}

fn refuse(wire: &Wire, from: SocketAddr, text: &str) {
    limited!(warn, %from, text, "a relay is refused");
    if let Err(error) = wire.send(&RelayFrame::Refused { text }) {
        tracing::debug!(%from, %error, "a relay does not hear why it is refused");
    }
    wire.end();
}
