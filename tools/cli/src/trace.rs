//! `outboard trace`, and the end of `outboard run --trace`: joins the trace files of service processes and ranks to one
//! that Perfetto (ui.perfetto.dev) and chrome://tracing show.
//!
//! Processes with equal names become one process, because the service process writes the calls of a rank, and the rank
//! writes its own waits. Files of one machine share a clock. Times of another machine are shifted by the difference
//! between the machines' times of day, and are as exact as the times of day. If a writer died, its last, incomplete
//! line is left out.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct TraceArgs {
    /// The joined file
    #[arg(value_parser = crate::output::file())]
    output: PathBuf,
    /// The files of `outboardd --trace`, and of ranks with OUTBOARD_TRACE=DIRECTORY
    #[arg(required = true)]
    parts: Vec<PathBuf>,
}

pub(crate) fn trace(args: &TraceArgs) -> Result<ExitCode, CliError> {
    join(&args.parts, &args.output)?;
    Ok(ExitCode::SUCCESS)
}

/// The files that a job has written to its directory.
pub(crate) fn parts(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut parts = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.ends_with(".json") && (name.starts_with("trace-") || name.starts_with("rank-")) {
            parts.push(path);
        }
    }
    parts.sort();
    Ok(parts)
}

/// The clock of the first machine, the base of all times.
struct BaseClock {
    machine: String,
    ahead_ns: i64,
}

/// A timeline that is being written.
pub(crate) struct Timeline {
    file: BufWriter<File>,
    place: String,
    /// Bytes to write before the next event.
    separator: &'static [u8],
}

impl Timeline {
    pub(crate) fn create(path: &Path) -> Result<Timeline, CliError> {
        let begin = || -> io::Result<BufWriter<File>> {
            let mut file = BufWriter::new(File::create(path)?);
            file.write_all(b"{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n")?;
            Ok(file)
        };
        let place = place(path);
        Ok(Timeline { file: begin().map_err(CliError::system(&place))?, place, separator: b"" })
    }

    pub(crate) fn write(&mut self, event: &Value) -> Result<(), CliError> {
        let separator = std::mem::replace(&mut self.separator, b",\n");
        let written = self.file.write_all(separator);
        let written = written.and_then(|()| Ok(serde_json::to_writer(&mut self.file, event)?));
        written.map_err(CliError::system(&self.place))
    }

    pub(crate) fn end(mut self) -> Result<(), CliError> {
        let written = self.file.write_all(b"\n]}\n").and_then(|()| self.file.flush());
        written.map_err(CliError::system(&self.place))
    }
}

fn place(path: &Path) -> String {
    format!("the trace {}", path.display())
}

/// Joins `parts` to `output`.
pub(crate) fn join(parts: &[PathBuf], output: &Path) -> Result<(), CliError> {
    let mut joined = Timeline::create(output)?;
    let (mut base, mut processes) = (None, BTreeMap::new());
    for (number, part) in parts.iter().enumerate() {
        let unread = || CliError::system(place(part));
        let mut file = TraceFile::new(number, &mut base, &mut processes);
        for line in BufReader::new(File::open(part).map_err(unread())?).lines() {
            let event = serde_json::from_str(line.map_err(unread())?.trim_end_matches(','));
            if let Some(event) = event.ok().and_then(|event| file.event(event)) {
                joined.write(&event)?;
            }
        }
    }
    joined.end()
}

/// A file that is being read.
struct TraceFile<'a> {
    number: usize,
    base: &'a mut Option<BaseClock>,
    /// Numbers of processes by name.
    processes: &'a mut BTreeMap<String, u64>,
    /// The number in the joined file of each of this file's processes.
    numbers: BTreeMap<u64, u64>,
    shift_us: f64,
}

impl<'a> TraceFile<'a> {
    fn new(number: usize, base: &'a mut Option<BaseClock>, processes: &'a mut BTreeMap<String, u64>) -> Self {
        TraceFile { number, base, processes, numbers: BTreeMap::new(), shift_us: 0.0 }
    }

    /// The event for the joined file.
    fn event(&mut self, mut event: Value) -> Option<Value> {
        let local = event["pid"].as_u64()?;
        match event["name"].as_str()? {
            "clock" => {
                let machine = event["args"]["machine"].as_str()?.to_owned();
                let ahead_ns = event["args"]["realtime_ahead_ns"].as_i64()?;
                let base = self.base.get_or_insert_with(|| BaseClock { machine: machine.clone(), ahead_ns });
                if base.machine != machine {
                    self.shift_us = (ahead_ns - base.ahead_ns) as f64 / 1e3;
                }
                return None;
            }
            "process_name" => {
                let next = self.processes.len() as u64 + 1;
                let number = *self.processes.entry(event["args"]["name"].as_str()?.to_owned()).or_insert(next);
                self.numbers.insert(local, number);
            }
            _ => {}
        }
        // A process without a name is a rank that made no group.
        let number = *self.numbers.get(&local)?;
        event["pid"] = json!(number);
        if let Some(ts) = event["ts"].as_f64().filter(|_| event["ph"] != "M") {
            event["ts"] = json!(ts + self.shift_us);
        }
        if let Some(id) = event["id"].as_str() {
            event["id"] = json!(format!("{}.{id}", self.number));
        }
        Some(event)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_joined_by_names_and_clocks_and_cut_lines_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let write = |name: &str, machine: &str, ahead: i64, process: &str, rest: &str| {
            let clock = json!({ "name": "clock", "ph": "M", "pid": 1, "args": { "machine": machine, "realtime_ahead_ns": ahead } });
            let named = json!({ "name": "process_name", "ph": "M", "pid": 1, "ts": 0, "args": { "name": process } });
            let span = json!({ "name": "wait", "ph": "b", "id": "7", "pid": 1, "ts": 5.0 });
            std::fs::write(directory.path().join(name), format!("[\n{clock},\n{named},\n{span},\n{rest}"))
                .expect("written");
        };
        write("trace-h1.json", "a", 1_000_500, "rank 0", "{\"name\":\"wa");
        write("rank-1.json", "a", 1_000_000, "rank 0", "");
        write("trace-h2.json", "b", 3_000_000, "rank 1", "");
        write("other.json", "b", 3_000_000, "rank 1", "");
        let parts = parts(directory.path()).expect("entries");
        assert_eq!(parts.len(), 3);
        let output = directory.path().join("joined");
        join(&parts, &output).expect("joined");
        let joined: Value = serde_json::from_str(&std::fs::read_to_string(output).expect("text")).expect("JSON");
        let spans: Vec<&Value> =
            joined["traceEvents"].as_array().expect("events").iter().filter(|e| e["ph"] == "b").collect();
        let fields =
            |event: &&Value| (event["pid"].as_u64(), event["ts"].as_f64(), event["id"].as_str().map(str::to_owned));
        let fields: Vec<_> = spans.iter().map(fields).collect();
        let expected = |pid, ts, id: &str| (Some(pid), Some(ts), Some(id.to_owned()));
        assert_eq!(fields, [expected(1, 5.0, "0.7"), expected(1, 5.0, "1.7"), expected(2, 2005.0, "2.7")]);
    }
}
