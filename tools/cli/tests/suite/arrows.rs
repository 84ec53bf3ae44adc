//! Crates depend on each other only as the architecture allows: arrows go down its table, and never up a floor.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::requirements::files;

/// Crates of this workspace on which each package may depend, by directory. Dependencies of tests are free.
const ALLOWED: [(&str, &[&str]); 19] = [
    ("call", &[]),
    ("units", &[]),
    ("plan", &["call", "units"]),
    ("nic", &["plan", "proto"]),
    ("plan-tools", &["units", "plan", "nic"]),
    ("arithmetic", &["call"]),
    ("proto", &["call", "plan"]),
    ("sim", &["plan", "nic", "plan-tools", "arithmetic", "proto"]),
    ("shm", &["call"]),
    ("heap", &["units", "shm"]),
    ("fabric", &["plan", "proto", "shm"]),
    ("service", &["call", "units", "plan", "arithmetic", "proto", "shm", "fabric"]),
    ("relay", &["call", "plan", "proto", "shm", "fabric", "service"]),
    ("outboardd", &["service", "relay"]),
    ("client", &["call", "units", "plan", "proto", "shm"]),
    ("lab", &["units"]),
    ("bench", &["units", "lab"]),
    (
        "cli",
        &["units", "plan", "nic", "plan-tools", "proto", "sim", "shm", "fabric", "service", "client", "lab", "bench"],
    ),
    // Fuzz targets, a tool of tests, lie beside `crates`; no crate depends on them.
    ("fuzz", &["call", "plan", "nic", "plan-tools", "proto", "sim", "shm", "fabric", "service"]),
];

/// Folders from the ground: crates that run on a cluster, models of NICs, tools of developers.
const FLOORS: [&str; 3] = ["crates", "models", "tools"];

/// The metadata of the workspace from cargo.
fn workspace() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--format-version", "1", "--no-deps", "--offline"])
        .args(["--manifest-path", concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml")])
        .output()
        .expect("cargo starts");
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("cargo metadata writes JSON")
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a string")
}

/// The last directory of a path.
fn directory(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// Directory and metadata of each package of the workspace.
fn packages(workspace: &Value) -> impl Iterator<Item = (&str, &Value)> {
    let packages = workspace["packages"].as_array().expect("packages").iter();
    packages.map(|package| (text(&package["manifest_path"]).strip_suffix("/Cargo.toml").expect("a manifest"), package))
}

/// The floor of a directory, from the ground. Fuzz targets lie beside the floors and may use all of them.
fn floor(path: &str) -> usize {
    let above = path.rsplit('/').nth(1).expect("a directory in a directory");
    FLOORS.iter().position(|floor| *floor == above).unwrap_or(FLOORS.len())
}

/// Crates of this workspace on which each crate depends, normally or for its build; both by directory.
fn arrows(workspace: &Value) -> BTreeMap<String, BTreeSet<String>> {
    let one = |(path, package): (&str, &Value)| {
        let from = directory(path);
        let dependencies = package["dependencies"].as_array().expect("dependencies").iter();
        // Cargo writes null for a normal dependency; only dependencies of this workspace have a path.
        let to = dependencies
            .filter(|dependency| dependency["kind"].as_str() != Some("dev"))
            .filter_map(|dependency| dependency["path"].as_str())
            .map(|path| directory(path).to_owned());
        (from.to_owned(), to.collect())
    };
    packages(workspace).map(one).collect()
}

#[test]
fn arrows_go_down_the_table() {
    let arrows = arrows(&workspace());
    assert!(arrows["cli"].contains("service"), "the arrows of cli are found: {arrows:?}");
    let mut wrong = Vec::new();
    for (from, to) in &arrows {
        match ALLOWED.iter().find(|(name, _)| name == from) {
            None => wrong.push(format!("{from} is not in the table")),
            Some((_, allowed)) => {
                let up = to.iter().filter(|name| !allowed.contains(&name.as_str()));
                wrong.extend(up.map(|name| format!("{from} -> {name}")));
            }
        }
    }
    for (name, _) in ALLOWED {
        if !arrows.contains_key(name) {
            wrong.push(format!("{name} is in the table and not in the workspace"));
        }
    }
    assert!(wrong.is_empty(), "not allowed: {}", wrong.join(", "));
}

/// A crate that runs on a cluster needs no model, and a model needs no tool.
#[test]
fn arrows_go_to_the_same_floor_or_a_lower_one() {
    let workspace = workspace();
    let floors: BTreeMap<String, usize> =
        packages(&workspace).map(|(path, _)| (directory(path).to_owned(), floor(path))).collect();
    assert!(FLOORS.iter().enumerate().all(|(at, _)| floors.values().any(|floor| *floor == at)), "{floors:?}");
    let arrows = arrows(&workspace);
    let all = arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    let up: Vec<_> = all.filter(|(from, to)| floors[*to] > floors[*from]).collect();
    assert!(up.is_empty(), "arrows to a higher floor: {up:?}");
}

/// Modules of the service process from the ground: each imports modules before it alone.
const SERVICE: [&str; 13] = [
    "settings",
    "rejection",
    "poller",
    "topology",
    "telemetry",
    "socket",
    "attach_socket",
    "memory",
    "datapath",
    "driver",
    "ranks",
    "conductor",
    "daemon",
];

/// Modules of the protocol from the ground.
const PROTO: [&str; 15] = [
    "ids",
    "deadlines",
    "staging",
    "config",
    "error",
    "recording",
    "wire",
    "interface",
    "link",
    "multicast",
    "group",
    "effects",
    "transfer",
    "instance",
    "endpoint",
];

/// Modules of the client from the ground.
const CLIENT: [&str; 23] = [
    "lock",
    "allocations",
    "bootstrap",
    "error",
    "adaptive_polling",
    "copy_agent",
    "wait_trace",
    "service_processes",
    "job_daemon",
    "connection",
    "segment_cache",
    "heap",
    "staging",
    "operator",
    "slots",
    "attachment",
    "request",
    "call_sequence",
    "tagged",
    "group",
    "context",
    "blocking",
    "c_interface",
];

/// Modules of the NIC models from the ground.
const NIC: [&str; 10] =
    ["engine", "job", "registered", "profile_table", "costs", "triggered", "ordered", "datapath", "host", "profile"];

/// The imports in the folder `source` against the order of its `modules`, from the ground. A re-export of `lib.rs`
/// counts as above all modules, since it hides the module that it comes from.
fn imports_above(source: &str, modules: &[&str]) -> Vec<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(source);
    let read =
        |path: &Path| std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let is_word = |letter: char| letter.is_alphanumeric() || letter == '_';
    let library = read(&source.join("lib.rs"));
    let exports = library.split(';').filter(|statement| statement.trim_start().starts_with("pub use "));
    let exported: BTreeSet<_> = exports.flat_map(|statement| statement.split(|letter| !is_word(letter))).collect();
    let mut paths = Vec::new();
    files(&source, &mut paths);
    let mut wrong = Vec::new();
    for path in paths.iter().filter(|path| **path != source.join("lib.rs")) {
        let module = path.strip_prefix(&source).expect("below the crate").components().next().expect("a file");
        let module = module.as_os_str().to_str().expect("UTF-8").trim_end_matches(".rs");
        let at = modules.iter().position(|name| *name == module);
        let at = at.unwrap_or_else(|| panic!("{} is not in the table of modules", path.display()));
        for line in read(path).lines().filter(|line| !line.trim_start().starts_with("//")) {
            for import in line.split("crate::").skip(1) {
                let name = import.split(|letter| !is_word(letter)).next().unwrap_or_default();
                // A list of modules in braces has an empty name: each module takes a line of its own.
                let is_root = !modules.contains(&name) && (name.is_empty() || exported.contains(name));
                if is_root || modules[at + 1..].contains(&name) {
                    wrong.push(format!("{}: {}", path.display(), line.trim()));
                }
            }
        }
    }
    wrong
}

#[test]
fn modules_import_no_module_above_them() {
    for (source, table) in [
        ("crates/proto/src", &PROTO[..]),
        ("crates/service/src", &SERVICE),
        ("crates/client/src", &CLIENT),
        ("models/nic/src", &NIC),
    ] {
        assert_eq!(imports_above(source, table), [""; 0], "{source}");
    }
}
