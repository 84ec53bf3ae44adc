//! `outboard explain settings`: lists every setting by the program that reads the setting, in Markdown. The tables are
//! those in docs/guide/settings.md.
//!
//! The daemon's settings are clap's own definitions. Tests compare all other names and defaults with the code.

use std::fmt;
use std::path::Path;
use std::process::ExitCode;

use clap::{Arg, ArgAction, CommandFactory};
use outboard_service::Settings;
use outboard_service::settings::OFI_PROVIDER;

use crate::error::CliError;

const BEGIN: &str = "<!-- settings -->\n";
const END: &str = "<!-- end -->";

/// The default of a variable.
enum ByDefault {
    /// A value that a user could set.
    Code(&'static str),
    Text(&'static str),
}

use ByDefault::{Code, Text};

/// A variable that clap does not define: name, default, meaning.
type Variable = (&'static str, ByDefault, &'static str);

const RANK: &[Variable] = &[
    (
        "OUTBOARD_BOOTSTRAP",
        Code("auto"),
        "How ranks find one another: `tcp`, `pmix`, or `auto`: TCP where an `OUTBOARD_` variable names the place, else \
         PMIx where its server is, else TCP",
    ),
    ("OUTBOARD_DAEMON", Code("auto"), "`off` forbids ranks to start a daemon for the job"),
    (
        "OUTBOARD_DEADLINE",
        Text("none"),
        "Seconds after which a collective that has not ended fails on all ranks; 0 for none",
    ),
    ("OUTBOARD_HEAP", Code("off"), "`shared` puts large allocations into shared memory; read by `liboutboard_heap.so`"),
    (
        "OUTBOARD_HEAP_BYTES",
        Text("the host's memory"),
        "The most that one rank's shared heap holds, 1 MiB at least; the rest is plain memory",
    ),
    ("OUTBOARD_INTERFACE", Text("none"), "Network interface of the job's own daemon; none means a single host"),
    (
        "OUTBOARD_JOB",
        Text("the rendezvous, PMIx namespace, PyTorch's or Slurm's job, else the parent process"),
        "Number of the job, which names the directory of its own daemon",
    ),
    (
        "OUTBOARD_LAUNCHED",
        Text("set by `outboard run`"),
        "The command has warned about unknown variables, and ranks do not",
    ),
    ("OUTBOARD_LOCAL_RANK", Text("the launcher's"), "Number of this rank among those on its host, from 0"),
    ("OUTBOARD_LOCAL_SIZE", Text("the launcher's"), "Ranks on this host"),
    (
        "OUTBOARD_OUTBOARDD",
        Text("beside `liboutboard.so` or in `../bin` of it, else in `PATH`"),
        "Program that a rank starts as the job's own daemon",
    ),
    ("OUTBOARD_RANK", Text("the launcher's"), "Number of this rank, from 0"),
    ("OUTBOARD_RENDEZVOUS", Text("the launcher's"), "HOST:PORT where ranks meet; rank 0 serves it"),
    ("OUTBOARD_SERVICE_PROCESSES", Code("1"), "The job's own daemons on each host: 1 to 64, or `auto`"),
    (
        "OUTBOARD_SOCKET",
        Text("`$XDG_RUNTIME_DIR/outboard/outboardd.sock`, else the job's own daemon"),
        "Sockets of the host's daemons, separated by colons; a rank attaches to the one at its local rank modulo their \
         number",
    ),
    ("OUTBOARD_STATS", Text("in the job's directory"), "Statistics socket of the job's own daemon, as `--stats`"),
    ("OUTBOARD_TOKEN", Text("drawn by `outboard run`"), "Secret by which the ranks of a job know one another"),
    ("OUTBOARD_TOKEN_FILE", Code("~/.outboard/token"), "File with that secret, readable by the user alone"),
    ("OUTBOARD_TRACE", Text("none"), "Directory for a timeline of each rank's waits"),
    ("OUTBOARD_WORLD_SIZE", Text("the launcher's"), "Number of ranks"),
];

const SHIM: &[Variable] = &[
    (
        "OUTBOARD_CHOICE",
        Code("adaptive"),
        "How the shim chooses between the MPI library and the service process: `adaptive`, `learn`, `fixed`, `offload` \
         or `native`; rank 0's value counts",
    ),
    (
        "OUTBOARD_CHOICE_FILE",
        Code("~/.cache/outboard/choice/CLUSTER.tsv"),
        "File for what runs learn; below `XDG_CACHE_HOME` where that is set",
    ),
    (
        "OUTBOARD_LIBRARY",
        Text("beside the shim, one folder up, else the loader's"),
        "Path of `liboutboard.so`, tried alone",
    ),
    ("OUTBOARD_MPI", Text("on"), "`off` runs all collectives natively; the report still counts"),
    (
        "OUTBOARD_MPI_REPORT",
        Text("none"),
        "File, or `stderr`, for a JSON object of counters, written by rank 0 in `MPI_Finalize`",
    ),
];

const COMMAND: &[Variable] = &[
    (
        "OUTBOARD_CHOICE",
        Text("`offload`; `adaptive` in `run` and `bench programs`"),
        "Choice of the shim in benches; `demo` always offloads",
    ),
    (
        "OUTBOARD_CHOICE_FILE",
        Text("a file for the launch alone"),
        "In `bench grid` and `bench programs`, with the cluster's name behind it",
    ),
    ("OUTBOARD_ENCRYPT", Text("off"), "As `--encrypt` of `run`, `bench`, `demo`, `tune` and `chaos`"),
    ("OUTBOARD_HEAP", Code("off"), "`shared` loads `liboutboard_heap.so` into the ranks"),
    ("OUTBOARD_HEAP_BYTES", Text("the host's memory"), "Passed on to the ranks"),
    ("OUTBOARD_HOME", Text("the folder of `outboard`"), "Folder of programs; libraries lie there, too, or in `../lib`"),
    ("OUTBOARD_LOG", Text("warnings"), "Filter of the command's own log"),
    ("OUTBOARD_MPI_REPORT", Text("none"), "The shim's; `run` checks that the file can be written"),
    ("OUTBOARD_OFI_PROVIDER", Code(OFI_PROVIDER), "Provider that `outboard doctor` tries"),
    ("OUTBOARD_TUNING", Text("none"), "As `--tuning` of `run`, `bench`, `demo`, `tune`, `chaos` and `explain choice`"),
];

const TESTS: &[Variable] = &[
    ("OUTBOARD_BENCH_RANK", Text("set by the bench"), "Number of a rank of *sockets alone*"),
    ("OUTBOARD_BENCH_SOCKETS", Text("set by the bench"), "Addresses of all ranks of *sockets alone*"),
    ("OUTBOARD_FAKE_ABSENT", Code("-1"), "Rank that finds no service process, in the shim's tests"),
    ("OUTBOARD_FAKE_DELAY_US", Code("500"), "Microseconds that a fake collective lasts"),
    ("OUTBOARD_FAKE_FAIL", Text("off"), "Makes every second fake collective of a group fail"),
    ("OUTBOARD_FAKE_GROUPS", Code("1000"), "Groups that a rank may be in"),
    ("OUTBOARD_FAKE_LOG", Text("none"), "File for what a process leaves behind"),
    ("OUTBOARD_FAKE_MIN_BYTES", Code("1"), "Smallest contribution that is offloaded"),
    ("OUTBOARD_FAKE_MOST", Code("1024"), "Requests of a rank that may be in flight"),
    ("OUTBOARD_FAKE_REDUCES", Text("2^40"), "The most bytes of a reduction that rank 1 has scratch for"),
    ("OUTBOARD_IDLE_SECONDS", Code("2"), "Seconds that the test of an idle UCX fabric lasts"),
    ("OUTBOARD_SIM_SEEDS", Text("`1000`; `500` of recordings"), "Seeds that the simulator's tests play"),
    ("OUTBOARD_TEST_BOOTSTRAP", Text("set by the tests"), "What a bootstrapping rank expects"),
    ("OUTBOARD_TEST_CACHE", Code("~/.cache/outboard/mpi-tests"), "Folder of the shim's tests"),
    ("OUTBOARD_TEST_CHANNEL", Text("set by the tests"), "Channel of forged datagrams"),
    ("OUTBOARD_TEST_DAEMON_FLAGS", Text("set by the tests"), "Flags of a daemon that refuses"),
    ("OUTBOARD_TEST_JOB", Text("set by the tests"), "Mark of a job's processes"),
    ("OUTBOARD_TEST_RANKS", Text("set by the tests"), "Ranks of a test of bootstraps"),
    ("OUTBOARD_TEST_SCENARIO", Text("set by the tests"), "Scenario that a rank of a test plays"),
    ("OUTBOARD_TEST_SENDER", Text("set by the tests"), "Sender of forged datagrams"),
    ("OUTBOARD_TEST_UCX_PEER", Text("set by the tests"), "Marks the peer process of a UCX test"),
];

/// Prints the tables, or writes them between the markers of `page`.
pub(super) fn settings(page: Option<&Path>) -> Result<ExitCode, CliError> {
    let Some(page) = page else { return super::print(&tables()) };
    let failed = |verb: &str| CliError::system(format!("{verb} {}", page.display()));
    let text = std::fs::read_to_string(page).map_err(failed("read"))?;
    let parts = text.split_once(BEGIN).and_then(|(before, rest)| Some((before, rest.split_once(END)?.1)));
    let Some((before, behind)) = parts else {
        let lacks = format!("{} has no `{}` with a `{END}` behind it; add both", page.display(), BEGIN.trim_end());
        return Err(CliError::Failed(lacks));
    };
    std::fs::write(page, format!("{before}{BEGIN}\n{}\n{END}{behind}", tables())).map_err(failed("write"))?;
    Ok(ExitCode::SUCCESS)
}

fn tables() -> String {
    let mut text = "### Daemon\n\n| variable | flag | default | meaning |\n|---|---|---|---|\n".to_owned();
    let mut daemon: Vec<_> = Settings::command().get_arguments().filter_map(row).collect();
    daemon.sort();
    text.extend(daemon.iter().map(|[name, rest @ ..]| format!("| {} | {} |\n", code(name), rest.join(" | "))));
    for (title, variables) in
        [("Rank", RANK), ("Shim", SHIM), ("The command `outboard`", COMMAND), ("Tests and benches", TESTS)]
    {
        text += &format!("\n### {title}\n\n| variable | default | meaning |\n|---|---|---|\n");
        text.extend(
            variables.iter().map(|(name, default, meaning)| format!("| {} | {default} | {meaning} |\n", code(name))),
        );
    }
    text
}

impl fmt::Display for ByDefault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Code(value) => f.write_str(&code(value)),
            Text(text) => f.write_str(text),
        }
    }
}

/// Formats text as code. `-` means that there is no variable, and stays as it is.
fn code(text: &str) -> String {
    if text == "-" { text.to_owned() } else { format!("`{text}`") }
}

/// Variable, flag, default and meaning of a setting of the daemon.
fn row(arg: &Arg) -> Option<[String; 4]> {
    let flag = arg.get_long()?;
    let variable = arg.get_env().map_or("-".to_owned(), |name| name.display().to_string());
    let help = arg.get_help()?.to_string();
    let (meaning, by_default) = help.split_once("; by default ").unwrap_or((&help, "none"));
    let switch = matches!(arg.get_action(), ArgAction::SetTrue);
    let given = arg.get_default_values().first().map(|value| code(&value.to_string_lossy()));
    let default = if switch { "off".to_owned() } else { given.unwrap_or(by_default.to_owned()) };
    let values: Vec<_> = arg.get_possible_values().iter().map(|value| code(value.get_name())).collect();
    let meaning =
        if switch || values.is_empty() { meaning.to_owned() } else { format!("{meaning} ({})", values.join(", ")) };
    Some([variable, code(&format!("--{flag}")), default, meaning])
}
