//! An installation that was moved runs, measures and explains without the source tree, the build and a compiler.
//!
//! Needs the build beside the command: `cargo build --workspace` first. Hiding directories takes root or a user
//! namespace, as emulated clusters do.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

use crate::program::home;

/// Programs of the system that the command, a launcher or these tests start. No compiler is among them.
const TOOLS: [&str; 12] =
    ["sh", "env", "ip", "tc", "bridge", "nft", "mount", "setpriv", "sleep", "orted", "mpirun.openmpi", "id"];
/// Hides the directories $1 and $2, and runs the rest with PATH=$0.
const HIDE: &str = "set -e; for hidden in \"$1\" \"$2\"; do [ ! -d \"$hidden\" ] || mount -t tmpfs none \"$hidden\"; \
                    done; PATH=$0; shift 2; exec \"$@\"";
/// A user without any right.
const NOBODY: &str = "65534";

/// An installation at another place than its prefix, and a PATH that holds [`TOOLS`] alone.
struct Installation {
    folder: tempfile::TempDir,
}

impl Installation {
    fn moved() -> Self {
        let folder = tempfile::tempdir().expect("a directory");
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).expect("our directory");
        let stage = folder.path().join("stage");
        assert_runs(make().arg("-C").arg("bindings/mpi").arg(format!("OUT={}", home().display())));
        let mut install = make();
        install.arg("install").arg(format!("BUILT={}", home().display())).arg("PREFIX=/opt/outboard");
        assert_runs(install.arg(format!("DESTDIR={}", stage.display())));
        fs::rename(stage.join("opt/outboard"), folder.path().join("moved")).expect("an installation");
        fs::remove_dir_all(stage).expect("our directory");
        let tools = folder.path().join("tools");
        fs::create_dir(&tools).expect("our directory");
        let places = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"].map(Path::new);
        for tool in TOOLS {
            let found = places.iter().map(|place| place.join(tool)).find(|program| program.exists());
            let found = found.unwrap_or_else(|| panic!("{tool} is installed; `make deps` installs all"));
            symlink(found, tools.join(tool)).expect("our directory");
        }
        Self { folder }
    }

    /// A path of the installation.
    fn at(&self, path: &str) -> PathBuf {
        self.folder.path().join("moved").join(path)
    }

    /// A command that sees neither sources nor build, and has `path` as PATH.
    fn alone(&self, path: &Path, program: &Path) -> Command {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the sources");
        let mut command = Command::new("unshare");
        if !rustix::process::geteuid().is_root() {
            command.arg("--map-root-user");
        }
        command.args(["--mount", "sh", "-c", HIDE]).arg(path).arg(sources).arg(home()).arg(program);
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("OUTBOARD_") {
                command.env_remove(name);
            }
        }
        command.env_remove("LD_LIBRARY_PATH").current_dir(self.folder.path());
        command
    }

    /// The installed command, with these words.
    fn outboard(&self, words: &[&str]) -> Command {
        let mut command = self.alone(&self.folder.path().join("tools"), &self.at("bin/outboard"));
        command.args(words);
        command
    }

    /// An installed example, compiled by the words of pkg-config.
    fn example(&self, compiler: &str, name: &str) -> PathBuf {
        let program = self.folder.path().join(name);
        let path = std::env::var_os("PATH").expect("PATH");
        let mut shell = self.alone(Path::new(&path), Path::new("sh"));
        shell.arg("-c").arg("\"$0\" \"$1\" -o \"$2\" -lm $(pkg-config --cflags --libs outboard)").arg(compiler);
        shell.arg(self.at(&format!("share/doc/outboard/examples/{name}.c"))).arg(&program);
        assert_runs(shell.env("PKG_CONFIG_PATH", self.at("lib/pkgconfig")));
        program
    }
}

fn make() -> Command {
    let mut make = Command::new("make");
    make.arg("-s").current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("../.."));
    make
}

/// The output of a command that ends with success.
fn assert_runs(command: &mut Command) -> Output {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    assert!(output.status.success(), "{command:?}: {output:?}");
    output
}

fn assert_prints_all_ranks(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    (0..2).for_each(|rank| assert!(text.contains(&format!("rank {rank} sent {}", rank * rank)), "{output:?}"));
}

/// Programs of outboard.h are started by the command, and by hand: then they find the library and the daemon.
#[test]
fn moved_installation_runs_programs_without_sources_and_compiler() {
    let installation = Installation::moved();
    let program = installation.example("cc", "allgather");
    let name = program.to_str().expect("text");
    assert_prints_all_ranks(&assert_runs(&mut installation.outboard(&["run", "-n", "2", "--", name])));
    let on_a_lab = ["run", "--lab", "2x1gbit", "-n", "2", "--", name];
    assert_prints_all_ranks(&assert_runs(&mut installation.outboard(&on_a_lab)));
    let tools = installation.folder.path().join("tools");
    let mut by_hand = installation.alone(&tools, &program);
    by_hand.env("OUTBOARD_RANK", "0").env("OUTBOARD_WORLD_SIZE", "1").env("TMPDIR", installation.folder.path());
    let output = assert_runs(&mut by_hand);
    assert_eq!(String::from_utf8_lossy(&output.stdout), "rank 0 sent 0\n", "{output:?}");
    for words in [&["top", "--help"][..], &["explain", "allgather", "--ranks", "4"], &["doctor"]] {
        assert_runs(&mut installation.outboard(words));
    }
    for part in ["bin/outboard", "bin/outboardd", "lib/liboutboard.so.1", "lib/liboutboard-mpi.so"] {
        let sections = assert_runs(Command::new("readelf").args(["--sections", "--wide"]).arg(installation.at(part)));
        assert!(!String::from_utf8_lossy(&sections.stdout).contains(".symtab"), "{part} is stripped");
    }
}

/// The shim alone is preloaded. It finds the library beside it, and the library finds the daemon.
#[test]
fn moved_shim_offloads_an_mpi_program() {
    let installation = Installation::moved();
    let program = installation.example("mpicc.openmpi", "pagerank");
    let report = installation.folder.path().join("report.json");
    let tools = installation.folder.path().join("tools");
    let mut mpirun = installation.alone(&tools, &tools.join("mpirun.openmpi"));
    mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "2"]).arg(&program);
    mpirun.args(["--generate", "4096", "16", "1", "--iterations", "2"]);
    mpirun.env("LD_PRELOAD", installation.at("lib/liboutboard-mpi.so")).env("OUTBOARD_CHOICE", "offload");
    // On one host no remote shell is used, but Open MPI looks for one.
    mpirun
        .env("OMPI_MCA_plm_rsh_agent", "sh")
        .env("OUTBOARD_MPI_REPORT", &report)
        .env("TMPDIR", installation.folder.path());
    let output = assert_runs(&mut mpirun);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!said.contains("natively"), "{said}");
    let report: Value = serde_json::from_str(&fs::read_to_string(report).expect("a report")).expect("JSON");
    // The program gathers by this call.
    assert!(report["per_rank"][0]["iallgather_offloaded"].as_u64() > Some(0), "{report}");
    let name = program.to_str().expect("text");
    let words = ["run", "--lab", "2x1gbit", "-n", "2", "--report", "--", name, "--generate", "4096", "16", "1"];
    let mut run = installation.outboard(&words);
    let output = assert_runs(run.env("OUTBOARD_CHOICE", "offload"));
    assert!(String::from_utf8_lossy(&output.stderr).contains("collectives completed"), "{output:?}");
}

#[test]
fn moved_installation_measures_without_a_compiler() {
    let installation = Installation::moved();
    let json = installation.folder.path().join("rows.json");
    let json = json.to_str().expect("text");
    let short = ["--lab", "2x1gbit", "--sizes", "64K", "--repetitions", "2", "--json", json];
    let rows = |words: &[&str]| -> Vec<Value> {
        assert_runs(&mut installation.outboard(&[&["bench"], words, &short].concat()));
        let text = fs::read_to_string(json).expect("rows");
        let mut report: Value = serde_json::from_str(&text).expect("JSON");
        let Value::Array(rows) = report["rows"].take() else { panic!("no rows: {report}") };
        assert!(!rows.is_empty() && rows.iter().all(|row| row["verified"] == true), "{rows:?}");
        rows
    };
    for bench in [&["allgather"][..], &["allreduce", "--blocking"], &["recorded"]] {
        assert!(rows(bench).iter().all(|row| row["system"] == "outboard"));
    }
    let output = installation.outboard(&[&["bench", "allgather", "--peers", "debian"], &short[..]].concat()).output();
    let output = output.expect("the command starts");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && said.contains("cc is not installed"), "{said}");
    assert!(said.contains("leave debian out (--peers, --via)"), "{said}");
}

#[test]
#[ignore = "needs root, to become another user: make test"]
fn another_user_runs_a_program_of_the_installation() {
    let installation = Installation::moved();
    let program = installation.example("cc", "allgather");
    let home = tempfile::tempdir().expect("a directory");
    let user = NOBODY.parse().ok();
    std::os::unix::fs::chown(home.path(), user, user).expect("root");
    let setpriv = installation.folder.path().join("tools/setpriv");
    let mut command = installation.alone(&installation.folder.path().join("tools"), &setpriv);
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]).arg(installation.at("bin/outboard"));
    command.args(["run", "-n", "2", "--"]).arg(program);
    command.env("HOME", home.path()).env("TMPDIR", home.path()).env_remove("XDG_RUNTIME_DIR");
    assert_prints_all_ranks(&assert_runs(&mut command));
}
