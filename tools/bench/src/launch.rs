//! One launch of a measuring program below one system, and the control line to its rank 0.
//!
//! ```text
//!  line of the program   what the harness does
//!  library TEXT          notes the library's name and version
//!  begin                 reads all counters, then answers ok
//!  end                   reads all counters again, then answers ok: one more phase is done
//!  row JSON              notes the samples of the phases since the last row
//!  (closed)              waits for all ranks to end with success
//! ```

use crate::calibration::RANKS_CORE;
use crate::control::{ControlLine, ControlSocket, LaunchWatch};
use crate::job::{BenchJob, LoggedProcess, RunningJob, ServiceCounters, System};
use crate::limit::refill_time;
use crate::samples::{LaunchSample, LaunchSamples, RawSample};
use crate::{BenchError, Setup};
use outboard_lab::Lab;
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::path::Path;
use std::time::Duration;

/// A limit far beyond the needs of a working system. It is the sum of the time to start, fifty times `links_s` (the
/// time that the links need), and `own_s` (the program's own work).
pub(crate) fn time_limit(links_s: f64, own_s: f64) -> Duration {
    const STARTING_S: f64 = 60.0;
    const SLOWNESS: f64 = 50.0;
    Duration::from_secs_f64(STARTING_S + SLOWNESS * links_s + own_s)
}

/// Seconds in which `ranks` check `bytes` from each other rank at a modest 50 MB/s.
pub(crate) fn checking_s(ranks: u32, bytes: u64) -> f64 {
    const CHECKED_PER_S: f64 = 50e6;
    f64::from(ranks).powi(2) * bytes as f64 / CHECKED_PER_S
}

/// One launch of a program below a system.
pub(crate) struct ProgramLaunch<'a> {
    pub(crate) setup: &'a Setup,
    pub(crate) lab: &'a Lab,
    pub(crate) system: &'a dyn System,
    /// The program, built for the system.
    pub(crate) program: &'a Path,
    /// A directory for the outputs of programs.
    pub(crate) directory: &'a Path,
}

/// Counters of one phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PhaseCounters {
    pub(crate) wire_bytes: u64,
    pub(crate) services: Option<ServiceCounters>,
}

impl PhaseCounters {
    /// Growth of the counters since `earlier`. With the counters of an empty phase as `earlier`, the excess over this
    /// phase.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        let services = self.services.zip(earlier.services).map(|(now, before)| now.since(&before));
        Self { wire_bytes: self.wire_bytes.saturating_sub(earlier.wire_bytes), services }
    }
}

/// A message of rank 0.
#[derive(Debug)]
pub(crate) enum RankMessage {
    Library(String),
    PhaseEnd(PhaseCounters),
    /// A row as JSON.
    Row(String),
}

/// The control line to rank 0, and the lab whose counters are read when rank 0 requests it.
pub(crate) struct ControlSession<'a, 'w> {
    lab: &'a Lab,
    line: ControlLine,
    watch: LaunchWatch<'w>,
}

impl ProgramLaunch<'_> {
    /// Starts the program with the common arguments and `arguments`. `listen` receives the messages of rank 0. Returns
    /// when all ranks have ended. The whole launch takes at most `limit`, unless the setup has its own limit.
    pub(crate) fn run<T>(
        &self,
        arguments: Vec<String>,
        limit: Duration,
        listen: impl FnOnce(&mut ControlSession<'_, '_>) -> Result<T, BenchError>,
    ) -> Result<T, BenchError> {
        let Self { setup, lab, system, directory, .. } = *self;
        let name = system.name();
        let socket = ControlSocket::listen(directory, "control")?;
        let mut running = self.start(&[self.arguments(socket.path()), arguments].concat())?;
        let mut watch = LaunchWatch::new(&name, &mut running, setup.launch_timeout.unwrap_or(limit));
        let line = socket.accept(&mut watch)?;
        let mut session = ControlSession { lab, line, watch };
        let heard = listen(&mut session)?;
        let ControlSession { line, mut watch, .. } = session;
        drop(line);
        watch.wait_end()?;
        Ok(heard)
    }

    /// Runs a program that measures these sizes after an empty phase. Returns its rows in the order of `expected`;
    /// `key` gives a row's key in this order. `own` are the options that only this program has.
    pub(crate) fn measure<L: DeserializeOwned, K: PartialEq + Debug>(
        &self,
        sizes: impl Iterator<Item = String>,
        own: Vec<String>,
        limit: Duration,
        expected: impl Iterator<Item = K>,
        key: impl Fn(&L) -> K,
    ) -> Result<LaunchSamples<L>, BenchError> {
        let sizes = format!("sizes={}", sizes.collect::<Vec<_>>().join(","));
        self.run([vec![sizes], own].concat(), limit, |session| session.launch_behind_empty(expected, key))
    }

    /// Runs a program that does not use the control line, with these arguments alone. The time limit is `limit`, unless
    /// the setup has its own limit. Returns the end of the program's output, and the services' counters from their
    /// start.
    pub(crate) fn run_alone(
        &self,
        arguments: &[String],
        limit: Duration,
    ) -> Result<(String, Option<ServiceCounters>), BenchError> {
        let mut running = self.start(arguments)?;
        let name = self.system.name();
        LaunchWatch::new(&name, &mut running, self.setup.launch_timeout.unwrap_or(limit)).wait_end()?;
        let said = running.ranks.iter().map(LoggedProcess::output_end).collect();
        Ok((said, read_services(&name, &mut running)?))
    }

    fn start(&self, arguments: &[String]) -> Result<RunningJob, BenchError> {
        let Self { setup, lab, system, program, directory } = *self;
        let job = BenchJob {
            lab,
            ranks: setup.ranks(),
            layout: setup.layout,
            program,
            arguments,
            comm_core: setup.comm_core,
            blocking: setup.blocking,
            one_sided: setup.one_sided,
            directory,
        };
        system.launch(&job).map_err(|source| BenchError::Launch { system: system.name(), source })
    }

    fn arguments(&self, control: &Path) -> Vec<String> {
        let mut arguments = vec![
            format!("control={}", control.display()),
            format!("layout={}:{}", self.setup.lab.hosts(), self.setup.layout),
            format!("repetitions={}", self.setup.repetitions),
            format!("refill-ns={}", refill_time(&self.setup.lab.link()).as_nanos()),
        ];
        if self.setup.comm_core {
            arguments.push(format!("main-core={RANKS_CORE}"));
        }
        arguments
    }
}

fn read_services(system: &str, running: &mut RunningJob) -> Result<Option<ServiceCounters>, BenchError> {
    let failed = |source| BenchError::Launch { system: system.to_owned(), source };
    running.stats.as_mut().map(|stats| stats.read()).transpose().map_err(failed)
}

impl ControlSession<'_, '_> {
    /// The next message; a phase is reported after its end. `during` is the activity that errors name.
    pub(crate) fn next(&mut self, during: &str) -> Result<RankMessage, BenchError> {
        let text = self.line.receive_more(&mut self.watch, during)?;
        match text.split_once(' ').unwrap_or((&text, "")) {
            ("library", library) => Ok(RankMessage::Library(library.to_owned())),
            ("begin", "") => self.phase(during).map(RankMessage::PhaseEnd),
            ("row", json) => Ok(RankMessage::Row(json.to_owned())),
            _ => Err(self.protocol_error(&text)),
        }
    }

    fn phase(&mut self, during: &str) -> Result<PhaseCounters, BenchError> {
        let before = self.read_counters()?;
        self.line.send("ok")?;
        let text = self.line.receive_more(&mut self.watch, during)?;
        if text != "end" {
            return Err(self.protocol_error(&text));
        }
        let now = self.read_counters()?;
        self.line.send("ok")?;
        Ok(now.since(&before))
    }

    fn read_counters(&mut self) -> Result<PhaseCounters, BenchError> {
        let wire_bytes = self.lab.counters()?.iter().map(|port| port.tx.bytes + port.rx.bytes).sum();
        let name = self.watch.system().to_owned();
        Ok(PhaseCounters { wire_bytes, services: read_services(&name, self.watch.running())? })
    }

    /// The rows of a launch whose first phase is empty, in the order of `expected`; `key` gives a row's key in this
    /// order. The counters of the empty phase are subtracted.
    fn launch_behind_empty<L: DeserializeOwned, K: PartialEq + Debug>(
        &mut self,
        expected: impl Iterator<Item = K>,
        key: impl Fn(&L) -> K,
    ) -> Result<LaunchSamples<L>, BenchError> {
        let mut launch = LaunchSamples { library: String::new(), samples: Vec::new() };
        let (mut empty, mut phase): (Option<PhaseCounters>, _) = (None, None);
        let mut expected = expected.peekable();
        while let Some(next) = expected.peek() {
            match (self.next(&format!("measuring {next:?}"))?, phase.take(), empty) {
                (RankMessage::Library(text), None, None) => launch.library = text,
                (RankMessage::PhaseEnd(counted), None, None) => empty = Some(counted),
                (RankMessage::PhaseEnd(counted), None, Some(_)) => phase = Some(counted),
                (RankMessage::Row(text), Some(counted), Some(empty)) => {
                    let raw: RawSample<L> = self.parse(&text)?;
                    if expected.next() != Some(key(&raw.own)) {
                        return Err(self.protocol_error(&text));
                    }
                    launch.samples.push(LaunchSample { raw, counted: counted.since(&empty) });
                }
                (said, ..) => return Err(self.protocol_error(&format!("{said:?}"))),
            }
        }
        Ok(launch)
    }

    /// The parsed content of a row.
    pub(crate) fn parse<T: DeserializeOwned>(&self, json: &str) -> Result<T, BenchError> {
        serde_json::from_str(json).map_err(|_| self.protocol_error(json))
    }

    /// The error for a message that makes no sense.
    pub(crate) fn protocol_error(&self, text: &str) -> BenchError {
        self.watch.protocol_error(text)
    }
}
