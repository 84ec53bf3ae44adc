//! docs/guide/settings.md has the settings of the code, and every variable in the table of each program that reads it.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use clap::CommandFactory;
use outboard_service::Settings;
use outboard_shm::variables::KNOWN;

use crate::program::outboard;
use crate::requirements::files;

const PREFIX: &str = "OUTBOARD_";
/// The title of the table of variables that tests alone read; tests also read all others.
const TESTS: &str = "Tests and benches";
/// Code before a quoted name that reads the variable, or that names it for a later read.
const READERS: [&str; 7] = ["var(", "var_os(", "getenv(", "variable(", "setting(", "= ", "= c"];

/// The title of the table of variables that a file may read, by its path in the repository.
fn title(path: &str) -> &'static str {
    match path.split('/').collect::<Vec<_>>()[..] {
        ["crates", "service" | "outboardd", "src", ..] => "Daemon",
        ["crates", "client" | "heap" | "shm", "src", ..] => "Rank",
        ["bindings", "mpi", "src", ..] => "Shim",
        ["tools", _, "src", ..] => "The command `outboard`",
        _ => TESTS,
    }
}

/// Defaults that the tables have as text: title, variable, a part of the default with `{}` for the value, then the file
/// and the code before and behind the value. White space in code counts as one space.
const CODED: [[&str; 6]; 19] = [
    [
        "Rank",
        "OUTBOARD_BOOTSTRAP",
        "`{}`",
        "crates/client/src/bootstrap/mod.rs",
        "lookup(CHOICE).as_deref() { None | Some(\"",
        "\")",
    ],
    [
        "Rank",
        "OUTBOARD_DAEMON",
        "`{}`",
        "crates/client/src/job_daemon.rs",
        "process(CHOICE).as_deref() { None | Some(\"",
        "\")",
    ],
    ["Rank", "OUTBOARD_HEAP", "`{}`", HEAP, "variable(HEAP).as_deref() { None | Some(\"", "\")"],
    [
        "Rank",
        "OUTBOARD_SERVICE_PROCESSES",
        "`{}`",
        "crates/client/src/service_processes.rs",
        "lookup(NUMBER_VARIABLE) else { return Ok((0, ",
        "))",
    ],
    [
        "Rank",
        "OUTBOARD_SOCKET",
        "`$XDG_RUNTIME_DIR/{}`",
        "crates/shm/src/attach/mod.rs",
        "runtime_directory().join(\"",
        "\")",
    ],
    [
        "Rank",
        "OUTBOARD_TOKEN_FILE",
        "`~/{}/token`",
        "crates/client/src/bootstrap/tcp_server/job_token.rs",
        "PathBuf::from(home).join(\"",
        "\").join(\"token\")",
    ],
    ["Shim", "OUTBOARD_CHOICE", "`{}`", "bindings/mpi/src/choice.c", "agreed[3] = {", ","],
    [
        "Shim",
        "OUTBOARD_CHOICE_FILE",
        "`~{}/outboard/choice/CLUSTER.tsv`",
        "bindings/mpi/src/tuning_cache.c",
        "has_cache_home ? \"\" : \"",
        "\", \"/outboard\", \"/choice\"}",
    ],
    ["The command `outboard`", "OUTBOARD_HEAP", "`{}`", HEAP, "variable(HEAP).as_deref() { None | Some(\"", "\")"],
    [TESTS, "OUTBOARD_FAKE_ABSENT", "`{}`", FAKE, "setting(\"OUTBOARD_FAKE_ABSENT\", ", ")"],
    [TESTS, "OUTBOARD_FAKE_DELAY_US", "`{}`", FAKE, "setting(\"OUTBOARD_FAKE_DELAY_US\", ", ")"],
    [TESTS, "OUTBOARD_FAKE_GROUPS", "`{}`", FAKE, "setting(\"OUTBOARD_FAKE_GROUPS\", ", ")"],
    [TESTS, "OUTBOARD_FAKE_MOST", "`{}`", FAKE, "setting(\"OUTBOARD_FAKE_MOST\", ", ")"],
    [TESTS, "OUTBOARD_FAKE_MIN_BYTES", "`{}`", FAKE_CALLS, "setting(\"OUTBOARD_FAKE_MIN_BYTES\", ", ")"],
    [TESTS, "OUTBOARD_FAKE_REDUCES", "2^{}", FAKE_CALLS, "setting(\"OUTBOARD_FAKE_REDUCES\", 1L << ", ")"],
    [TESTS, "OUTBOARD_IDLE_SECONDS", "`{}`", "crates/fabric/tests/ucx.rs", "\"OUTBOARD_IDLE_SECONDS\").map_or(", ","],
    [TESTS, "OUTBOARD_SIM_SEEDS", "`{}`;", "tools/sim/tests/suite/mixed.rs", "let seeds = seeds(", ")"],
    [TESTS, "OUTBOARD_SIM_SEEDS", "`{}` of recordings", "tools/sim/tests/suite/recorded.rs", "let seeds = seeds(", ")"],
    [TESTS, "OUTBOARD_TEST_CACHE", "`~/.cache/{}`", "bindings/mpi/tests/run.sh", ":-$HOME/.cache}/", "}"],
];
const HEAP: &str = "crates/heap/src/settings.rs";
const FAKE: &str = "bindings/mpi/tests/fake/fake.c";
const FAKE_CALLS: &str = "bindings/mpi/tests/fake/collectives.c";

/// The variables in `text`, quoted in code or behind `$` in shells, and whether `text` reads them. Code that only
/// passes a variable to a child process does not read the variable.
fn named(text: &str) -> impl Iterator<Item = (&str, bool)> {
    text.match_indices(PREFIX).filter_map(move |(at, _)| {
        let before = &text[..at];
        let rest = &text[at..];
        let end =
            rest.find(|c: char| !(c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_')).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        let quoted = before.strip_suffix('"').filter(|_| after.starts_with('"') && name != PREFIX);
        let given = after.starts_with("\".to_owned()");
        let reads = quoted.is_some_and(|before| !given && READERS.iter().any(|reader| before.ends_with(reader)));
        let reads = reads || before.ends_with('$') || before.ends_with("${");
        (reads || quoted.is_some()).then_some((name, reads))
    })
}

/// Pairs of a table's title and a variable.
type Rows = BTreeSet<(String, String)>;

/// The rows of the tables of `page`.
fn rows(page: &str) -> Rows {
    let tables = page.split("### ").skip(1).map(|table| table.split_once('\n').expect("a title"));
    let rows = tables.flat_map(|(title, table)| {
        let names = table.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`'));
        names.map(|(name, _)| (title.to_owned(), name.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_page_of_settings_is_that_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = fs::read_to_string(root.join("docs/guide/settings.md")).expect("the page");
    let copy = Path::new(env!("CARGO_TARGET_TMPDIR")).join("settings.md");
    fs::write(&copy, &page).expect("a copy");
    let written = outboard(&["explain", "settings", "--page", copy.to_str().expect("ASCII")]);
    assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
    let same = fs::read_to_string(&copy).expect("the copy") == page;
    assert!(same, "run `outboard explain settings --page docs/guide/settings.md`");
}

/// A name that is missing there would be reported as unknown.
#[test]
fn the_variables_known_to_all_programs_are_those_of_the_tables() {
    let tables = String::from_utf8(outboard(&["explain", "settings"]).stdout).expect("text");
    // The page shows no hidden settings of the daemon.
    let hidden = Settings::command();
    let hidden = hidden.get_arguments().filter_map(|argument| argument.get_env()?.to_str());
    let listed: BTreeSet<String> = rows(&tables)
        .into_iter()
        .map(|(_, name)| name)
        .chain(hidden.map(str::to_owned))
        .filter(|name| name != "-")
        .collect();
    let known: BTreeSet<String> = KNOWN.iter().map(|name| format!("{PREFIX}{name}")).collect();
    assert_eq!(listed.symmetric_difference(&known).collect::<Vec<_>>(), Vec::<&String>::new());
}

#[test]
fn defaults_in_the_tables_are_those_of_the_code() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let page = String::from_utf8(outboard(&["explain", "settings"]).stdout).expect("text");
    for [title, variable, shown, path, before, behind] in CODED {
        let code = fs::read_to_string(root.join(path)).unwrap_or_else(|error| panic!("{path}: {error}"));
        let code = code.split_whitespace().collect::<Vec<_>>().join(" ");
        let value = code.split_once(before).and_then(|(_, rest)| Some(rest.split_once(behind)?.0));
        let value = value.unwrap_or_else(|| panic!("{path} lacks `{before}VALUE{behind}`, the default of {variable}"));
        let table = page.split("### ").find_map(|table| table.strip_prefix(title)?.strip_prefix('\n'));
        let row =
            table.and_then(|table| table.lines().find_map(|line| line.strip_prefix(&format!("| `{variable}` | "))));
        let default = row.and_then(|row| Some(row.split_once(" | ")?.0)).expect("a row of the table");
        // The shim names its modes in capitals.
        let shown = shown.replace("{}", &value.to_lowercase());
        assert!(default.contains(&shown), "{title}: {variable} is {shown} by {path}, and {default} in the table");
    }
}

#[test]
fn every_variable_stands_in_the_table_of_each_program_that_reads_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let rows = rows(&String::from_utf8(outboard(&["explain", "settings"]).stdout).expect("text"));
    let mut paths = Vec::new();
    for folder in ["crates", "models", "tools", "bindings/mpi"] {
        files(&root.join(folder), &mut paths);
    }
    let mut found = Rows::new();
    for path in paths {
        let text = fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let place = path.strip_prefix(&root).expect("below the root").to_str().expect("ASCII").to_owned();
        let title = title(&place);
        for (name, reads) in named(&String::from_utf8_lossy(&text)).filter(|(_, reads)| *reads || title != TESTS) {
            found.insert((if reads { title } else { TESTS }.to_owned(), name.to_owned()));
        }
    }
    let unread: Vec<_> = rows.difference(&found).collect();
    assert!(unread.is_empty(), "rows of `outboard explain settings` that no code reads: {unread:?}");
    let any = |name: &str| rows.iter().any(|(_, row)| row == name);
    let lacks = |(title, name): &&(String, String)| !(title == TESTS && any(name));
    let lacking: Vec<_> = found.difference(&rows).filter(lacks).collect();
    assert!(
        lacking.is_empty(),
        "tables of tools/cli/src/explain/settings.rs lack variables that code reads: {lacking:?}"
    );
}
