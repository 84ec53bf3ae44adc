//! `outboard sim COLLECTIVE --engine NAME --trace FILE`: the timeline, read as by Perfetto.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

use crate::program::OUTBOARD;

fn sim(arguments: &str, trace: &Path) -> Output {
    let mut command = Command::new(OUTBOARD);
    command.arg("sim").args(arguments.split(' ')).args(["--seeds", "1", "--trace"]).arg(trace);
    command.output().expect("the command starts")
}

/// A span of a row, in nanoseconds.
#[derive(Debug)]
struct Span {
    from: i64,
    until: i64,
    name: String,
    args: Value,
}

/// A timeline, by process and row.
struct Timeline {
    processes: BTreeMap<u64, String>,
    spans: BTreeMap<(u64, u64), Vec<Span>>,
    events: Vec<Value>,
}

fn text(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}

fn nanoseconds(microseconds: &Value) -> i64 {
    (microseconds.as_f64().expect("a time") * 1e3).round() as i64
}

fn row(event: &Value) -> (u64, u64) {
    (event["pid"].as_u64().expect("a process"), event["tid"].as_u64().expect("a row"))
}

impl Timeline {
    fn of(arguments: &str) -> Timeline {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("trace.json");
        let output = sim(arguments, &path);
        assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
        let mut file: Value = serde_json::from_slice(&std::fs::read(path).expect("it is written")).expect("JSON");
        let Value::Array(events) = file["traceEvents"].take() else { panic!("{arguments}: no events") };
        let (mut processes, mut spans) = (BTreeMap::new(), BTreeMap::<_, Vec<_>>::new());
        for event in &events {
            if event["name"] == "process_name" {
                processes.insert(row(event).0, text(&event["args"]["name"]));
            }
            if event["ph"] == "X" {
                let from = nanoseconds(&event["ts"]);
                let until = from + nanoseconds(&event["dur"]);
                let span = Span { from, until, name: text(&event["name"]), args: event["args"].clone() };
                spans.entry(row(event)).or_default().push(span);
            }
        }
        Timeline { processes, spans, events }
    }

    /// The causes of a process's waits, by time.
    fn waits(&self, process: &str) -> Vec<String> {
        let of = self.spans.iter().filter(|((pid, _), _)| self.processes[pid] == process).flat_map(|(_, spans)| spans);
        of.filter(|span| span.name == "wait").map(|span| text(&span.args["for"])).collect()
    }

    /// The one span of a row in which an arrow begins or ends.
    fn span_at(&self, event: &Value) -> &Span {
        let at = nanoseconds(&event["ts"]);
        let found = self.spans[&row(event)].iter().find(|span| (span.from..span.until).contains(&at));
        found.unwrap_or_else(|| panic!("{event} joins nothing"))
    }
}

#[test]
fn a_trace_shows_who_waited_for_whom() {
    for arguments in [
        "allgather --engine triggered --ranks 8 --ranks-per-host 2 --algorithm hierarchical --profile cluster-a",
        "allreduce --engine ordered --profile tianhe --groups 2",
        "allgather --engine datapath --profile bluefield3",
        "alltoall --engine host --ranks-per-host 2 --profile cluster-b",
    ] {
        let timeline = Timeline::of(arguments);
        for spans in timeline.spans.values() {
            for pair in spans.windows(2) {
                assert!(pair[0].until <= pair[1].from, "{arguments}: one thing at a time: {pair:?}");
            }
        }
        let mut ranks = 0;
        for (pid, process) in &timeline.processes {
            let waits = timeline.waits(process);
            let known = |on: &String| timeline.processes.values().any(|process| process == on);
            assert!(waits.iter().all(known), "{arguments}: {process} waits for {waits:?}");
            if process.starts_with("rank ") {
                ranks += 1;
                assert!(!waits.is_empty() && !waits.contains(process), "{arguments}: {process} waits for {waits:?}");
                let calls = timeline.events.iter().filter(|event| event["cat"] == "call" && event["pid"] == *pid);
                assert_eq!(calls.map(|call| text(&call["ph"])).collect::<String>(), "be", "{arguments}: {process}");
            }
        }
        assert_eq!(ranks, if arguments.contains("groups") { 16 } else { 8 }, "{arguments}");
        let arrows = |ph: &str| timeline.events.iter().filter(|event| event["ph"] == ph).collect::<Vec<_>>();
        let (begun, ended) = (arrows("s"), arrows("f"));
        assert!(!begun.is_empty() && begun.len() == ended.len(), "{arguments}");
        for (begun, ended) in begun.into_iter().zip(ended) {
            assert_eq!(begun["id"], ended["id"], "{arguments}");
            assert!(timeline.span_at(begun).from <= timeline.span_at(ended).until, "{arguments}: {begun} {ended}");
            assert_eq!(timeline.span_at(ended).name, "wait", "{arguments}: {ended}");
        }
    }
}

/// In a binomial tree rank 3 receives from rank 2, which receives from rank 0.
#[test]
fn a_rank_waits_for_its_parent() {
    let timeline = Timeline::of("broadcast --engine host --ranks 4 --algorithm binomial --size 1K --profile cluster-a");
    for (rank, parent) in [(1, 0), (2, 0), (3, 2)] {
        let waits = timeline.waits(&format!("rank {rank} of group 00000000"));
        assert_eq!(waits[0], format!("rank {parent} of group 00000000"), "rank {rank} waits for {waits:?}");
    }
}

#[test]
fn a_trace_that_cannot_be_written_is_named_before_the_run() {
    let nowhere = Path::new("/nonexistent/trace.json");
    for (arguments, why) in [
        ("barrier --engine triggered --profile cluster-a", "'/nonexistent/trace.json' for '--trace <FILE>'"),
        ("barrier --engine triggered", "'/nonexistent/trace.json' for '--trace <FILE>'"),
        ("allgather --engine triggered", "'/nonexistent/trace.json' for '--trace <FILE>'"),
    ] {
        let output = sim(arguments, nowhere);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(!output.status.success() && output.stdout.is_empty() && said.contains(why), "{arguments}: {said}");
    }
}
