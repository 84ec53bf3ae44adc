//! `outboard doctor`: tests on this machine what Outboard needs, and prints a remedy for each failure.

use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::{Args, FromArgMatches};
use outboard_fabric::multicast::{Interface, MulticastSettings};
use outboard_fabric::ofi::Ofi;
use outboard_service::Settings;
use outboard_service::settings::OFI_PROVIDER;
use outboard_service::topology::CpuTopology;
use outboard_shm::memory::{MemoryDescriptor, Probe, ProbeOutcome};

use crate::error::CliError;
use crate::places;
use crate::top;

#[derive(Debug, clap::Args)]
pub(crate) struct DoctorArgs {
    /// The interface to the other hosts
    #[arg(long, default_value = "lo")]
    interface: String,
    /// Statistics sockets of further daemons to check; running jobs of `outboard run` are always checked
    #[arg(long)]
    stats: Vec<PathBuf>,
}

/// A build and an installation have all parts.
const PARTS_REMEDY: &str = "`make build` in the sources, or `make install` again";

/// One finding.
#[derive(Debug)]
struct Finding {
    what: String,
    ok: bool,
    /// Whether Outboard works only if this test succeeds.
    essential: bool,
    detail: String,
    remedy: Option<String>,
}

impl Finding {
    fn of(what: &str, essential: bool, found: Result<String, String>, remedy: &str) -> Self {
        let (ok, detail) = match found {
            Ok(detail) => (true, detail),
            Err(detail) => (false, detail),
        };
        let remedy = (!ok).then(|| remedy.to_owned());
        Finding { what: what.to_owned(), ok, essential, detail, remedy }
    }
}

pub(crate) fn doctor(args: &DoctorArgs) -> Result<ExitCode, CliError> {
    let interface = Interface::named(&args.interface).map_err(CliError::failed)?;
    let mut findings = parts();
    findings.push(cross_memory());
    findings.push(topology());
    findings.push(memory_descriptor());
    findings.extend(withdrawn(&args.stats));
    for c in outboard_fabric::probe(&MulticastSettings::new(interface)) {
        let (what, detail, remedy) = (c.what.to_owned(), c.detail, c.remedy);
        findings.push(Finding { what, ok: c.ok, essential: false, detail, remedy });
    }
    findings.push(encryption(&args.interface));
    findings.push(deferred_work(&args.interface));
    for c in outboard_lab::probe() {
        let (remedy, detail) = ((!c.ok).then_some(c.remedy), String::new());
        findings.push(Finding { what: c.what, ok: c.ok, essential: false, detail, remedy });
    }
    for f in &findings {
        println!("{} {:<34} {}", if f.ok { "ok " } else { "no " }, f.what, f.detail);
        f.remedy.iter().for_each(|remedy| println!("      -> {remedy}"));
    }
    let broken = findings.iter().any(|f| f.essential && !f.ok);
    Ok(if broken { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The parts of Outboard itself.
fn parts() -> Vec<Finding> {
    let place = |p: Result<std::path::PathBuf, CliError>| match p {
        Ok(path) => Ok(path.display().to_string()),
        Err(error) => Err(error.to_string()),
    };
    vec![
        Finding::of("daemon", true, place(places::daemon()), PARTS_REMEDY),
        Finding::of("C library", true, place(places::library()), PARTS_REMEDY),
        Finding::of("MPI shim", false, place(places::shim()), PARTS_REMEDY),
    ]
}

/// Whether a daemon started in this environment encrypts its traffic to other hosts.
fn encryption(interface: &str) -> Finding {
    let matches = Settings::augment_args(clap::Command::new("outboardd")).try_get_matches_from([
        "outboardd",
        "--interface",
        interface,
    ]);
    let settings = matches.and_then(|matches| Settings::from_arg_matches(&matches));
    let found = match settings {
        // Further lines of the error are advice for a command line.
        Err(error) => Err(error.to_string().lines().next().unwrap_or_default().to_owned()),
        Ok(settings) => match settings.resolve() {
            Err(error) => Err(error.to_string()),
            Ok(_) if settings.encrypt => Ok("encrypted, so without multicast (OUTBOARD_ENCRYPT)".to_owned()),
            Ok(_) => Ok("not encrypted; --encrypt or OUTBOARD_ENCRYPT=1 on all hosts does that".to_owned()),
        },
    };
    Finding::of("encryption between hosts", false, found, "mend the OUTBOARD_ variables; `outboardd --help` names them")
}

/// Whether a daemon started in this environment could use the engine of deferred work.
fn deferred_work(interface: &str) -> Finding {
    let provider = std::env::var("OUTBOARD_OFI_PROVIDER").unwrap_or_else(|_| OFI_PROVIDER.to_owned());
    let at = Interface::named(interface).map_err(|error| error.to_string());
    let at = at.and_then(|interface| interface.address().map_err(|error| error.to_string()));
    let opened = at.and_then(|at| Ofi::open(&provider, at).map_err(|error| error.to_string()));
    let works =
        |_| format!("libfabric's provider {provider}; `outboardd --engine ofi-triggered`, on closed networks alone");
    let remedy = "apt install libfabric1; not needed without --engine ofi-triggered";
    Finding::of("collectives by deferred work", false, opened.map(works), remedy)
}

/// Whether the sockets and cores of ranks can be detected.
fn topology() -> Finding {
    let topology = CpuTopology::detect();
    let here = format!("{topology}; this process: {}", topology.binding_of(None));
    let found = if topology.is_known() { Ok(here) } else { Err(here) };
    Finding::of("sockets and cores", false, found, "mount /sys")
}

/// Reads memory of another process of this user, as the daemon reads large blocks of its ranks.
fn cross_memory() -> Finding {
    let probe = || -> std::io::Result<String> {
        let mut child = Command::new("sleep").arg("10").spawn()?;
        let maps = std::fs::read_to_string(format!("/proc/{}/maps", child.id()));
        let address = maps.ok().and_then(|m| u64::from_str_radix(m.split('-').next()?, 16).ok());
        let read = address.ok_or_else(|| std::io::Error::other("no mapping to read")).and_then(|address| {
            let pid = i32::try_from(child.id()).map_err(std::io::Error::other)?;
            let pid = rustix::process::Pid::from_raw(pid).ok_or_else(|| std::io::Error::other("no process"))?;
            outboard_shm::memory::CrossMemory::of(pid).read([(address, &mut [0; 16])]).map_err(std::io::Error::from)
        });
        child.kill()?;
        child.wait()?;
        read.map(|()| "cross-memory attach".to_owned())
    };
    let found = probe().map_err(|e| format!("{e}; the memory descriptor works in its place, slower"));
    Finding::of(
        "large accesses to rank memory",
        false,
        found,
        "allow ptrace of own processes: kernel.yama.ptrace_scope=0",
    )
}

/// Reads and writes our own memory through a descriptor, as the daemon accesses its ranks' memory.
fn memory_descriptor() -> Finding {
    let probe = || -> Result<String, String> {
        let descriptor = MemoryDescriptor::of_this_process().map_err(|error| error.to_string())?;
        let pid = i32::try_from(std::process::id()).map_err(|error| error.to_string())?;
        let memory = MemoryDescriptor::attach(descriptor, pid).map_err(|error| error.to_string())?;
        let buffer = Box::new(Probe::new().map_err(|errno| errno.to_string())?);
        match outboard_shm::memory::probe(&memory, &raw const *buffer as u64, buffer.nonce()) {
            ProbeOutcome::Reached => Ok("/proc/self/mem".to_owned()),
            ProbeOutcome::Failed(error) => Err(error.to_string()),
            ProbeOutcome::OtherBytes => Err("it shows other bytes".to_owned()),
        }
    };
    let found = probe().map_err(|why| format!("{why}; staging works in its place, slower"));
    Finding::of("access to rank memory", false, found, "mount /proc where programs run")
}

/// Running jobs whose ranks' memory is no longer reached through the tier used at first.
fn withdrawn(sockets: &[PathBuf]) -> Vec<Finding> {
    let sockets = sockets.iter().cloned().chain(top::running_jobs());
    let reports = sockets.filter_map(|socket| top::try_report(&socket)).map(|(_, report)| report);
    reports
        .filter(|report| report.present.tiers_withdrawn > 0)
        .map(|report| {
            let what = format!("memory of ranks of pid {}", report.pid);
            let remedy =
                "see the daemon's log for when; a seccomp filter, a security module or prctl can be the reason";
            Finding::of(&what, false, Err(top::withdrawn(&report)), remedy)
        })
        .collect()
}
