//! A timeline of events: spans of calls, stand-ins, transfers and waits in the trace format of Chrome, which Perfetto
//! reads (SP-9).
//!
//! The file has one line of JSON per event, after a first line `[`; `outboard run --trace` joins the files of a job.
//! Times are microseconds of CLOCK_MONOTONIC, which all processes of one machine share. The first event holds the
//! offset to CLOCK_REALTIME, so that files of several machines can be joined.
//!
//! Invariants: memory holds one buffer and the names of open stand-ins. A file never has more than [`MOST_EVENTS`]. If
//! the file cannot be written, the trace ends, but never the daemon.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use outboard_plan::Rank;
use outboard_proto::{CallId, GroupHandle, InstanceId, Milestone, MulticastBatch, Signature, SpId};
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;
use serde_json::{Value, json};

/// Most events of one file; about 200 MB.
const MOST_EVENTS: u64 = 1 << 20;
/// Process number of the service process in the file; ranks have the numbers after it.
const SERVICE: u64 = 1;
/// Row of the conductor's spans within the service process.
const CONDUCTOR: u64 = 1;

/// An event of the trace format.
#[derive(Serialize)]
struct TraceEvent<'a> {
    name: &'a str,
    cat: &'a str,
    ph: char,
    ts: f64,
    pid: u64,
    tid: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<String>,
    #[serde(skip_serializing_if = "Value::is_null")]
    args: Value,
}

/// A span that may overlap other spans. `id` joins both ends of a span, and spans with one `id` nest.
struct OpenSpan<'a> {
    cat: &'a str,
    name: &'a str,
    row: u64,
    id: String,
}

impl<'a> OpenSpan<'a> {
    fn call(row: u64, name: &'a str, call: CallId) -> Self {
        OpenSpan { cat: "call", name, row, id: call.0.to_string() }
    }

    fn collective(group: GroupHandle, instance: InstanceId, name: &'a str) -> Self {
        OpenSpan { cat: "collective", name, row: SERVICE, id: name_of(group, instance) }
    }

    fn stand_in(row: u64, group: GroupHandle, instance: InstanceId) -> Self {
        OpenSpan { cat: "stand-in", name: "stood in for", row, id: name_of(group, instance) }
    }

    fn multicast(token: u64) -> Self {
        OpenSpan { cat: "multicast", name: "multicast", row: SERVICE, id: format!("{token:x}") }
    }
}

#[derive(Debug)]
pub(crate) struct TimelineFile {
    file: Option<BufWriter<File>>,
    written: u64,
    /// Row of each rank, by group and rank in the group.
    rows: HashMap<(GroupHandle, Rank), u64>,
    /// The open spans of each collective: its kind and its current phase.
    open: HashMap<(GroupHandle, InstanceId), (&'static str, &'static str)>,
    standing: HashSet<(GroupHandle, InstanceId, Rank)>,
}

fn clock(id: ClockId) -> Duration {
    let time = clock_gettime(id);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
}

impl TimelineFile {
    /// Creates a trace file.
    pub(crate) fn create(path: &Path, sp: SpId) -> io::Result<TimelineFile> {
        // Without O_NOFOLLOW a symbolic link, in a directory that others can write to, would make this call truncate
        // its target.
        let file = File::options().write(true).create(true).truncate(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        let mut file = BufWriter::with_capacity(1 << 16, file);
        file.write_all(b"[\n")?;
        let mut trace = TimelineFile {
            file: Some(file),
            written: 0,
            rows: HashMap::new(),
            open: HashMap::new(),
            standing: HashSet::new(),
        };
        let ahead = clock(ClockId::Realtime).as_nanos() as i128 - clock(ClockId::Monotonic).as_nanos() as i128;
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let clock = json!({ "realtime_ahead_ns": ahead as i64, "machine": machine.trim() });
        trace.metadata("clock", SERVICE, clock);
        trace.metadata("process_name", SERVICE, json!({ "name": format!("service process {:016x} on {host}", sp.0) }));
        Ok(trace)
    }

    /// Whether the trace has ended, because the file is full or cannot be written.
    pub(crate) fn is_over(&self) -> bool {
        self.file.is_none()
    }

    /// The current time on the axis of the trace.
    pub(crate) fn now() -> f64 {
        clock(ClockId::Monotonic).as_nanos() as f64 / 1e3
    }

    fn metadata(&mut self, name: &str, pid: u64, args: Value) {
        self.write(&TraceEvent { name, cat: "__metadata", ph: 'M', ts: 0.0, pid, tid: 0, dur: None, id: None, args });
    }

    fn write(&mut self, entry: &TraceEvent<'_>) {
        let Some(file) = &mut self.file else { return };
        let line = serde_json::to_writer(&mut *file, entry).map_err(io::Error::from);
        if let Err(error) = line.and_then(|()| file.write_all(b",\n")) {
            tracing::warn!(%error, "the trace ends: it cannot be written");
            self.file = None;
            return;
        }
        self.written += 1;
        if self.written >= MOST_EVENTS {
            tracing::warn!(events = self.written, "the trace ends: it is full");
            self.file = None;
        }
    }

    /// Writes the begin (`b`) or the end (`e`) of a span.
    fn edge(&mut self, ph: char, span: OpenSpan<'_>, args: Value) {
        let OpenSpan { cat, name, row: pid, id } = span;
        self.write(&TraceEvent { name, cat, ph, ts: TimelineFile::now(), pid, tid: 0, dur: None, id: Some(id), args });
    }

    /// Writes a span of the conductor from `since` until now. Such spans never overlap.
    pub(crate) fn did(&mut self, name: &str, since: f64, args: Value) {
        let dur = Some(TimelineFile::now() - since);
        let (pid, tid) = (SERVICE, CONDUCTOR);
        self.write(&TraceEvent { name, cat: "conductor", ph: 'X', ts: since, pid, tid, dur, id: None, args });
    }

    /// The row of a rank. The name of the row is the key that joins it with the file of the rank itself.
    fn row(&mut self, group: GroupHandle, rank: Rank) -> u64 {
        if let Some(row) = self.rows.get(&(group, rank)) {
            return *row;
        }
        let row = SERVICE + 1 + self.rows.len() as u64;
        self.rows.insert((group, rank), row);
        self.metadata("process_name", row, json!({ "name": format!("{rank} of {group}") }));
        row
    }

    /// Begins the span of a rank's call, and ends the span of a stand-in for the call.
    pub(crate) fn called(&mut self, call: CallId, place: (GroupHandle, InstanceId, Rank), signature: Signature) {
        let (group, instance, rank) = place;
        let row = self.row(group, rank);
        if self.standing.remove(&place) {
            self.edge('e', OpenSpan::stand_in(row, group, instance), Value::Null);
        }
        let args = json!({
            "group": group.to_string(), "instance": instance.0, "rank": rank.0, "call": signature.to_string(),
        });
        self.edge('b', OpenSpan::call(row, signature.kind.name(), call), args);
    }

    pub(crate) fn ended(&mut self, call: CallId, place: (GroupHandle, Rank), kind: &str, failed: bool) {
        let row = self.row(place.0, place.1);
        self.edge('e', OpenSpan::call(row, kind, call), json!({ "failed": failed }));
    }

    /// Writes the spans for the next step of a collective.
    pub(crate) fn step(&mut self, group: GroupHandle, instance: InstanceId, step: Milestone) {
        let key = (group, instance);
        let next = match step {
            Milestone::Known(signature) => {
                let args = json!({ "group": group.to_string(), "instance": instance.0, "call": signature.to_string() });
                self.edge('b', OpenSpan::collective(group, instance, signature.kind.name()), args);
                let first = if signature.kind.is_exchange() { "exchange" } else { "wait for local ranks" };
                self.open.insert(key, (signature.kind.name(), first));
                self.edge('b', OpenSpan::collective(group, instance, first), Value::Null);
                return;
            }
            Milestone::StoodIn(rank) => {
                let row = self.row(group, rank);
                self.standing.insert((group, instance, rank));
                let args = json!({ "group": group.to_string(), "instance": instance.0, "rank": rank.0 });
                return self.edge('b', OpenSpan::stand_in(row, group, instance), args);
            }
            Milestone::Entered => Some("ready barrier"),
            Milestone::Ready => Some("transfer"),
            Milestone::Ended => None,
        };
        let Some((kind, phase)) = self.open.remove(&key) else { return };
        self.edge('e', OpenSpan::collective(group, instance, phase), Value::Null);
        match next {
            Some(name) => {
                self.open.insert(key, (kind, name));
                self.edge('b', OpenSpan::collective(group, instance, name), Value::Null);
            }
            None => {
                self.edge('e', OpenSpan::collective(group, instance, kind), Value::Null);
                // If the group failed, ranks that never called still have an open stand-in.
                let left: Vec<_> = self.standing.iter().filter(|(g, i, _)| (*g, *i) == key).copied().collect();
                for (group, instance, rank) in left {
                    self.standing.remove(&(group, instance, rank));
                    let row = self.row(group, rank);
                    self.edge('e', OpenSpan::stand_in(row, group, instance), Value::Null);
                }
            }
        }
    }

    /// Writes an event for a batch that goes to the multicast sender.
    pub(crate) fn multicast(&mut self, batch: &MulticastBatch) {
        let args = json!({
            "group": batch.header.group.to_string(), "rank": batch.header.source, "chunks": batch.chunks,
            "bytes": batch.memory.len,
        });
        self.edge('b', OpenSpan::multicast(batch.token), args);
    }

    pub(crate) fn multicast_done(&mut self, token: u64) {
        self.edge('e', OpenSpan::multicast(token), Value::Null);
    }
}

/// The key that joins the ends of a collective's spans.
fn name_of(group: GroupHandle, instance: InstanceId) -> String {
    format!("{:08x}.{}", group.0, instance.0)
}
