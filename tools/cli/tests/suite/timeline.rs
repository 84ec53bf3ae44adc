//! A trace file, read as by Perfetto: spans by process, checked for nesting.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// A span and its fields.
#[derive(Debug, Clone)]
pub(crate) struct Span {
    pub(crate) process: String,
    pub(crate) category: String,
    pub(crate) name: String,
    pub(crate) begin: f64,
    pub(crate) end: f64,
    /// Number of spans of the same id around this one.
    pub(crate) depth: usize,
    pub(crate) args: Value,
}

/// All spans of a file. Panics if an end has no beginning, a beginning no end, or names do not nest.
pub(crate) fn read(path: &Path) -> Vec<Span> {
    let text = std::fs::read_to_string(path).expect("the trace is written");
    let file: Value = serde_json::from_str(&text).expect("JSON");
    let events = file["traceEvents"].as_array().expect("events");
    let mut names = BTreeMap::new();
    for event in events.iter().filter(|event| event["name"] == "process_name") {
        names.insert(event["pid"].as_u64(), text_of(&event["args"]["name"]));
    }
    let mut open: BTreeMap<(Option<u64>, String, String), Vec<Span>> = BTreeMap::new();
    let mut spans = Vec::new();
    for event in events.iter().filter(|event| event["ph"] != "M") {
        let (pid, category) = (event["pid"].as_u64(), text_of(&event["cat"]));
        let at = event["ts"].as_f64().expect("a time");
        let span = Span {
            process: names.get(&pid).expect("processes have names").clone(),
            category: category.clone(),
            name: text_of(&event["name"]),
            begin: at,
            end: at + event["dur"].as_f64().unwrap_or(0.0),
            depth: 0,
            args: event["args"].clone(),
        };
        if event["ph"] == "X" {
            spans.push(span);
            continue;
        }
        let stack = open.entry((pid, category, text_of(&event["id"]))).or_default();
        match event["ph"].as_str() {
            Some("b") => stack.push(Span { depth: stack.len(), ..span }),
            Some("e") => {
                let begun = stack.pop().unwrap_or_else(|| panic!("an end without a beginning: {event}"));
                assert_eq!(begun.name, span.name, "spans nest: {event}");
                assert!(begun.begin <= at, "{event}");
                spans.push(Span { end: at, ..begun });
            }
            _ => panic!("an event of another kind: {event}"),
        }
    }
    let left: Vec<&Span> = open.values().flatten().collect();
    assert!(left.is_empty(), "spans without an end: {left:?}");
    spans
}

fn text_of(value: &Value) -> String {
    value.as_str().expect("text").to_owned()
}
