//! The waits of a rank, for a timeline: a file in the trace format of Perfetto, beside the files of the service
//! processes (SP-9). `outboard run --trace` joins them.
//!
//! Tracing is off by default and then costs a branch per wait. Invariants: nothing is buffered, so a rank that dies
//! leaves all its events. A file never has more than [`MAX_EVENTS`]. A file that cannot be written ends the trace,
//! never the program.

use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::Mutex;

use rustix::time::{ClockId, clock_gettime};

use crate::bootstrap::environment;
use crate::lock::lock;

/// Variable: the directory of the ranks' files.
const DIRECTORY: &str = "OUTBOARD_TRACE";
/// The most events of one file; about 100 MB.
const MAX_EVENTS: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct WaitTrace(Mutex<WaitTraceFile>);

#[derive(Debug)]
struct WaitTraceFile {
    file: Option<File>,
    written: u64,
    named: bool,
}

/// Nanoseconds of a clock of the system.
fn nanoseconds(id: ClockId) -> i128 {
    let time = clock_gettime(id);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

impl WaitTrace {
    /// The trace that the environment requests.
    pub(crate) fn from_environment() -> Option<WaitTrace> {
        WaitTrace::create(environment::process(DIRECTORY)?.as_ref()).ok()
    }

    fn create(directory: &Path) -> io::Result<WaitTrace> {
        let (real, monotonic) = (nanoseconds(ClockId::Realtime), nanoseconds(ClockId::Monotonic));
        // Processes of several hosts may share the directory, and their process numbers may be equal.
        let name = format!("rank-{}-{monotonic}.json", std::process::id());
        let file = File::options().write(true).create_new(true).open(directory.join(name))?;
        let trace = WaitTrace(Mutex::new(WaitTraceFile { file: Some(file), written: 0, named: false }));
        let machine = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        trace.write("[");
        trace.write(&format!(
            r#"{{"name":"clock","ph":"M","pid":1,"tid":0,"ts":0,"args":{{"realtime_ahead_ns":{},"machine":"{}"}}}},"#,
            real - monotonic,
            machine.trim()
        ));
        Ok(trace)
    }

    /// Names the rank after its place in its first group. The service process uses the same name.
    pub(crate) fn name(&self, rank: u32, group: u32) {
        if std::mem::replace(&mut lock(&self.0).named, true) {
            return;
        }
        let name = format!("rank {rank} of group {group:08x}");
        self.write(&format!(
            r#"{{"name":"process_name","ph":"M","pid":1,"tid":0,"ts":0,"args":{{"name":"{name}"}}}},"#
        ));
    }

    /// Now, in microseconds of the trace.
    pub(crate) fn now() -> f64 {
        nanoseconds(ClockId::Monotonic) as f64 / 1e3
    }

    /// Records that the calling thread waited from `since` until now.
    pub(crate) fn record_wait(&self, since: f64) {
        let (duration, thread) = (WaitTrace::now() - since, rustix::thread::gettid().as_raw_nonzero());
        self.write(&format!(
            r#"{{"name":"wait","cat":"rank","ph":"X","pid":1,"tid":{thread},"ts":{since:.3},"dur":{duration:.3}}},"#
        ));
    }

    fn write(&self, line: &str) {
        let mut state = lock(&self.0);
        let Some(file) = &mut state.file else { return };
        let written = file.write_all(format!("{line}\n").as_bytes());
        state.written += 1;
        if written.is_err() || state.written >= MAX_EVENTS {
            state.file = None;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trace_file_has_rank_name_and_waits() {
        let directory = tempfile::tempdir().expect("a directory");
        let trace = WaitTrace::create(directory.path()).expect("a file");
        trace.name(3, 0xabc);
        trace.name(0, 1);
        trace.record_wait(WaitTrace::now());
        let file = std::fs::read_dir(directory.path()).expect("entries").next().expect("one").expect("readable");
        let text = std::fs::read_to_string(file.path()).expect("text");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[0]), (4, "["), "{text}");
        assert!(lines[2].contains(r#""name":"rank 3 of group 00000abc""#), "{text}");
        assert!(lines[3].contains(r#""name":"wait""#), "{text}");
    }
}
