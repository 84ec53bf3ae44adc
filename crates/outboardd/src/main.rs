//! `outboardd`, the daemon: command line, signals, log. Runs a service process, or a relay to a service process on
//! another machine.

mod activation;
mod background;
mod ending;
mod log;

use std::io::Write;
use std::os::fd::{AsFd, FromRawFd, OwnedFd};
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};
use outboard_relay::{Dock, Relay};
use outboard_service::settings::{self, DockAt};
use outboard_service::{Settings, attach_socket};
use rustix::process::{DumpableBehavior, Signal};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

#[derive(Debug, thiserror::Error)]
enum DaemonError {
    #[error(transparent)]
    Start(#[from] outboard_service::StartError),
    #[error("cannot {what}: {source}")]
    Kernel { what: &'static str, source: std::io::Error },
    #[error("`{0}` is no filter for the log: {1}")]
    Log(String, tracing_subscriber::filter::ParseError),
    #[error("the daemon ended before ranks could attach: {0}")]
    Early(std::process::ExitStatus),
    #[error("cannot take what the service manager passes: {0}")]
    Passed(std::io::Error),
    #[error(
        "--dock passed serves the relay behind a connection that a service manager passes, and none is passed; have \
             outboardd-dock.socket start it, or give --dock an address"
    )]
    NoConnection,
    #[error(transparent)]
    Relay(#[from] outboard_relay::RelayError),
    #[error("the service manager passes {0} descriptors; have its unit pass one")]
    Several(usize),
    #[error("the daemon was not ready within {}s", background::READY_LIMIT.as_secs())]
    Slow,
}

fn main() -> ExitCode {
    let matches = Settings::command().get_matches();
    let settings = Settings::from_arg_matches(&matches).unwrap_or_else(|error| error.exit());
    if settings.print_settings {
        // It is no failure if the reader closes the pipe early.
        let _ = writeln!(std::io::stdout(), "{}", settings::print(&matches));
        return ExitCode::SUCCESS;
    }
    let ended = if settings.background { background::start() } else { serve(&settings) };
    let code = match ended {
        Ok(()) => ExitCode::SUCCESS,
        // The background daemon itself has printed the reason.
        Err(DaemonError::Early(status)) if status.code().is_some() => ExitCode::FAILURE,
        Err(failure) => {
            log::log_final_error(&failure.to_string());
            ExitCode::FAILURE
        }
    };
    log::finish();
    code
}

fn kernel<E: Into<std::io::Error>>(what: &'static str) -> impl FnOnce(E) -> DaemonError {
    move |source| DaemonError::Kernel { what, source: source.into() }
}

fn serve(settings: &Settings) -> Result<(), DaemonError> {
    let passed = activation::descriptor()?;
    let filter: Targets = settings.log.parse().map_err(|error| DaemonError::Log(settings.log.clone(), error))?;
    let terminal = std::io::IsTerminal::is_terminal(&std::io::stderr());
    // Signals are blocked before any thread starts; otherwise the new thread would receive them.
    let signals = signals().map_err(kernel("take signals"))?;
    log::start().map_err(kernel("start the thread of the log"))?;
    let lines = tracing_subscriber::fmt::layer().with_writer(|| log::LogWriter).with_ansi(terminal);
    tracing_subscriber::registry().with(lines).with(filter).init();
    outboard_service::unknown_variables().iter().for_each(|warning| tracing::warn!("{warning}"));
    if settings.die_with_parent {
        let parent = rustix::process::getppid();
        let asked = rustix::process::set_parent_process_death_signal(Some(Signal::TERM));
        asked.map_err(kernel("ask for a signal at the parent's end"))?;
        if rustix::process::getppid() != parent {
            return Ok(());
        }
    }
    if let Some(core) = settings.pin_core {
        let mut cores = rustix::thread::CpuSet::new();
        if core >= rustix::thread::CpuSet::MAX_CPU {
            return Err(kernel("pin to that processor")(std::io::ErrorKind::InvalidInput));
        }
        cores.set(core);
        // Threads that start later inherit the affinity. The thread of the log has already started and keeps its own.
        let pinned = rustix::thread::sched_setaffinity(None, &cores);
        pinned.map_err(kernel("pin to that processor"))?;
    }
    let ready = settings.ready_fd.map(descriptor).transpose().map_err(kernel("use the ready descriptor"))?;
    signals.try_clone().and_then(ending::enforce_orders).map_err(kernel("watch for signals"))?;
    let stopped = || {
        let mut record = [0; size_of::<libc::signalfd_siginfo>()];
        rustix::io::read(&signals, &mut record).is_ok_and(|bytes| bytes == record.len())
    };
    let announce = || {
        if settings.release_output
            && let Err(error) = background::release_output()
        {
            tracing::warn!(%error, "the output of the starter stays open");
        }
        if let Some(ready) = ready
            && let Err(errno) = rustix::io::write(&ready, b"1")
        {
            tracing::warn!(%errno, "nobody hears that we are ready");
        }
        // The call does nothing if systemd did not start this process.
        if let Err(error) = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]) {
            tracing::warn!(%error, "systemd does not hear that we are ready");
        }
    };
    let (relay, passed) = match (settings.dock, passed) {
        (Some(DockAt::Passed), Some(connection)) => {
            // systemd runs all docks of a template as one user. Other processes of that user must not access the memory
            // of this process.
            let closed = rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable);
            closed.map_err(kernel("close this process's memory to others"))?;
            (Some(Relay::accept(connection, settings)?), None)
        }
        (Some(DockAt::Passed), None) => return Err(DaemonError::NoConnection),
        (_, passed) => (None, passed),
    };
    let socket = attach_socket(settings, passed).map_err(outboard_service::StartError::from)?;
    if let Some(service) = settings.relay {
        return Ok(outboard_relay::serve(settings, socket, service, signals.as_fd(), stopped, announce)?);
    }
    let path = socket.path().to_owned();
    let ready = |docked: &_| {
        let service = (settings, &*path);
        let dock = match (relay, settings.dock) {
            (Some(relay), _) => Some(Dock::serve(relay, service, docked, end)),
            (None, Some(DockAt::Address(address))) => Some(Dock::listen(address, service, docked)),
            (None, Some(DockAt::Passed) | None) => None,
        };
        announce();
        dock.transpose()
    };
    Ok(outboard_service::run(settings, socket, signals.as_fd(), stopped, ready)?)
}

/// Ends this process in good order, as its starter would do.
fn end() {
    // A process may always signal itself.
    let _ = rustix::process::kill_process(rustix::process::getpid(), Signal::TERM);
}

/// The descriptor `number`, which the parent left open for this process. A standard stream is duplicated and stays
/// open.
fn descriptor(number: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: `fcntl` with F_GETFD is harmless for any number.
    if number <= 0 || unsafe { libc::fcntl(number, libc::F_GETFD) } < 0 {
        return Err(std::io::ErrorKind::InvalidInput.into());
    }
    if number <= 2 {
        // SAFETY: the descriptor is open, as just checked, and no code closes the standard streams.
        return unsafe { std::os::fd::BorrowedFd::borrow_raw(number) }.try_clone_to_owned();
    }
    // SAFETY: the descriptor is open, as just checked, and no other code of this process uses its number.
    Ok(unsafe { OwnedFd::from_raw_fd(number) })
}

/// Ignores SIGXFSZ, and makes a descriptor for SIGTERM and SIGINT. Both signals are blocked in this thread, and threads
/// started later inherit the mask.
fn signals() -> std::io::Result<OwnedFd> {
    // SAFETY: the set is initialised before use and outlives the calls; the descriptor is fresh and unshared.
    unsafe {
        // Beyond a limit on files a write fails, for example of the log; the signal would end this process.
        libc::signal(libc::SIGXFSZ, libc::SIG_IGN);
        let mut set: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut set);
        libc::sigaddset(&mut set, libc::SIGTERM);
        libc::sigaddset(&mut set, libc::SIGINT);
        if libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) != 0 {
            return Err(std::io::Error::last_os_error());
        }
        let fd = libc::signalfd(-1, &set, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK);
        if fd < 0 { Err(std::io::Error::last_os_error()) } else { Ok(OwnedFd::from_raw_fd(fd)) }
    }
}
