//! Builds the measuring program for each system. Only the library differs: sources and flags are the same, and so are
//! the object files of all sources that name no library. An installation has the programs that need no MPI library, so
//! these are measured without a compiler.

use crate::BenchError;
use crate::job::{System, run_tool};
use rustix::fs::FlockOperation;
use rustix::time::Timespec;
use std::cell::Cell;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

macro_rules! sources {
    ($($name:literal)+) => { [$(($name, include_str!(concat!("../programs/", $name)))),+] };
}
const SOURCES: [(&str, &str); 22] = sources! {
    "batches.c" "calls.c" "calls.h" "cg.c" "collective.c" "calibrate.c" "compute.c" "compute.h" "control.c" "control.h"
    "fft3d.c" "fluid.lammps" "messages.c" "../../../examples/pagerank.c" "panel.c" "radix.c" "repetitions.c"
    "repetitions.h" "transport.h" "transport_mpi.c" "transport_outboard.c" "transport_sockets.c"
};
/// Sources that name no library, compiled once for all systems.
const PLAIN_SOURCES: [&str; 4] = ["compute.c", "control.c", "repetitions.c", "calls.c"];
const FLAGS: [&str; 4] = ["-std=gnu11", "-O2", "-Wall", "-Wextra"];
const PLAIN_COMPILER: &str = "cc";
const COMPILE_LIMIT: Timespec = Timespec { tv_sec: 300, tv_nsec: 0 };
/// Prefix of the names of the directories of runs.
const PREFIX: &str = "outboard-bench-";
const LOCK: &str = "lock";
const CALIBRATOR: &str = "calibrate";
/// The sources with the main functions of the programs on transport.h.
const COLLECTIVE: &str = "collective";
const BATCHES: &str = "batches";
const MESSAGES: &str = "messages";
/// Programs of an installation lie in `libexec/outboard`, and find `liboutboard.so.1` here.
const INSTALLED_LIB: &str = "$ORIGIN/../../lib";

/// How the measuring program is built for a system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    compiler: PathBuf,
    transport: &'static str,
    library: Vec<OsString>,
}

impl Toolchain {
    /// An MPI library with a compiler wrapper that works.
    pub(crate) fn mpi_wrapper(mpicc: PathBuf) -> Self {
        Self { compiler: mpicc, transport: "transport_mpi.c", library: Vec::new() }
    }

    /// An MPI library whose headers and libraries lie in `include` and `lib` of a directory.
    pub(crate) fn mpi_prefix(prefix: &Path) -> Self {
        let lib = prefix.join("lib");
        let library = linked(&prefix.join("include"), &lib, &lib, "mpi");
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_mpi.c", library }
    }

    /// Outboard's C interface: the directories of `outboard.h` and of `liboutboard.so`.
    pub(crate) fn outboard(include: &Path, lib: &Path) -> Self {
        Self::outboard_found_in(include, lib, lib)
    }

    /// Outboard's C interface, whose library lies in `run_time_lib` when the program starts.
    fn outboard_found_in(include: &Path, lib: &Path, run_time_lib: &Path) -> Self {
        let library = linked(include, lib, run_time_lib, "outboard");
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_outboard.c", library }
    }

    /// Plain sockets, without a library.
    pub(crate) fn sockets() -> Self {
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_sockets.c", library: Vec::new() }
    }

    /// The name of the program that an installation has for `main` on this transport.
    fn installed_name(&self, main: &str) -> String {
        format!("{main}-{}", self.transport.trim_start_matches("transport_").trim_end_matches(".c"))
    }
}

fn linked(include: &Path, lib: &Path, run_time_lib: &Path, name: &str) -> Vec<OsString> {
    let option = |option: &str, path: &Path| {
        let mut text = OsString::from(option);
        text.push(path);
        text
    };
    vec![option("-I", include), option("-L", lib), option("-Wl,-rpath,", run_time_lib), format!("-l{name}").into()]
}

/// Whether a compiler, which is a path or a name in `PATH`, can be started.
fn is_there(compiler: &Path) -> bool {
    if compiler.components().count() > 1 {
        return compiler.exists();
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(compiler).is_file())
}

/// Builds into `folder` the programs that an installation has. `folder` becomes `libexec/outboard` of the prefix.
/// `include` holds `outboard.h`, `lib` holds `liboutboard.so`.
///
/// # Errors
/// [`BenchError::NoCompiler`] or [`BenchError::Compile`], or if `folder` cannot be written.
pub fn build_installed_programs(include: &Path, lib: &Path, folder: &Path) -> Result<(), BenchError> {
    let workshop = Workshop::open(None)?;
    let keep = |built: PathBuf, name: &OsStr| {
        let kept = folder.join(name);
        fs::copy(&built, &kept).map_err(BenchError::system(format!("write {}", kept.display())))
    };
    keep(workshop.calibrator()?, CALIBRATOR.as_ref())?;
    let outboard = Toolchain::outboard_found_in(include, lib, Path::new(INSTALLED_LIB));
    let sockets = Toolchain::sockets();
    // Sockets carry the calls of this program alone.
    for (main, toolchain) in
        [(COLLECTIVE, &outboard), (BATCHES, &outboard), (MESSAGES, &outboard), (COLLECTIVE, &sockets)]
    {
        let name = toolchain.installed_name(main);
        keep(workshop.build_on_transport(main, &name, toolchain)?, name.as_ref())?;
    }
    Ok(())
}

/// A directory with the sources and the programs that were built from them; removed when dropped.
#[derive(Debug)]
pub(crate) struct Workshop {
    directory: TempDir,
    /// Held while the directory is in use.
    _lock: File,
    /// The folder of programs that are built already.
    installed: Option<PathBuf>,
    /// Whether the sources that name no library are compiled.
    has_objects: Cell<bool>,
}

impl Workshop {
    /// Writes the sources. Programs in the folder `installed` are used as they are.
    pub(crate) fn open(installed: Option<&Path>) -> Result<Self, BenchError> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let directory = TempDir::with_prefix_in(PREFIX, &parent).map_err(BenchError::system("make a directory"))?;
        let lock = lock_file(directory.path()).map_err(BenchError::system("lock the directory"))?;
        for (name, text) in SOURCES {
            let path = directory.path().join(Path::new(name).file_name().expect("a source is a file"));
            fs::write(path, text).map_err(BenchError::system(format!("write {name}")))?;
        }
        let installed = installed.map(Path::to_owned);
        Ok(Self { directory, _lock: lock, installed, has_objects: Cell::new(false) })
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    fn installed(&self, name: &str) -> Option<PathBuf> {
        self.installed.as_ref().map(|folder| folder.join(name)).filter(|program| program.is_file())
    }

    /// The program that runs the compute loop alone.
    pub(crate) fn calibrator(&self) -> Result<PathBuf, BenchError> {
        if let Some(program) = self.installed(CALIBRATOR) {
            return Ok(program);
        }
        let words = ["calibrate.c", "control.o", "compute.o"];
        self.build(CALIBRATOR, &words, "calibration", &Toolchain::sockets())
    }

    /// The program `collective` for one system.
    pub(crate) fn collective(&self, system: &dyn System) -> Result<PathBuf, BenchError> {
        self.on_transport(COLLECTIVE, system)
    }

    /// The program `batches` for one system.
    pub(crate) fn batches(&self, system: &dyn System) -> Result<PathBuf, BenchError> {
        self.on_transport(BATCHES, system)
    }

    /// The program `messages` for one system.
    pub(crate) fn messages(&self, system: &dyn System) -> Result<PathBuf, BenchError> {
        self.on_transport(MESSAGES, system)
    }

    fn on_transport(&self, main: &str, system: &dyn System) -> Result<PathBuf, BenchError> {
        let toolchain = system.toolchain();
        match self.installed(&toolchain.installed_name(main)) {
            Some(program) => Ok(program),
            None => self.build_on_transport(main, &system.name(), &toolchain),
        }
    }

    /// A program on transport.h; its main is in the source `main`.c.
    fn build_on_transport(&self, main: &str, system: &str, toolchain: &Toolchain) -> Result<PathBuf, BenchError> {
        let objects = PLAIN_SOURCES.map(|source| source.replace(".c", ".o"));
        let source = format!("{main}.c");
        let words = [source.as_str(), toolchain.transport];
        self.build(main, &[&words[..], &objects.each_ref().map(String::as_str)].concat(), system, toolchain)
    }

    /// A program for one system; `words` are sources, objects and libraries for the compiler.
    pub(crate) fn program(&self, main: &str, words: &[&str], system: &dyn System) -> Result<PathBuf, BenchError> {
        self.build(main, words, &system.name(), &system.toolchain())
    }

    fn build(&self, main: &str, words: &[&str], system: &str, toolchain: &Toolchain) -> Result<PathBuf, BenchError> {
        if !self.has_objects.get() {
            let arguments: Vec<OsString> = ["-c"].iter().chain(&PLAIN_SOURCES).map(OsString::from).collect();
            self.compile(system, Path::new(PLAIN_COMPILER), &arguments)?;
            self.has_objects.set(true);
        }
        let program = format!("{main}-{}", system.replace([' ', '/'], "-"));
        let output = ["-o", &program];
        let words = words.iter().chain(&output).map(OsString::from);
        let arguments: Vec<OsString> = words.chain(toolchain.library.iter().cloned()).collect();
        self.compile(system, &toolchain.compiler, &arguments)?;
        Ok(self.path().join(program))
    }

    fn compile(&self, system: &str, compiler: &Path, arguments: &[OsString]) -> Result<(), BenchError> {
        if !is_there(compiler) {
            return Err(BenchError::NoCompiler { system: system.to_owned(), compiler: compiler.to_owned() });
        }
        let mut command = Command::new(compiler);
        command.args(FLAGS).args(arguments).current_dir(self.path());
        run_tool(command, &COMPILE_LIMIT).map_err(|reason| BenchError::Compile { system: system.to_owned(), reason })
    }
}

/// Removes the directories that killed runs have left, whose locks are free.
fn sweep(parent: &Path) {
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let ours = entry.file_name().to_str().is_some_and(|name| name.starts_with(PREFIX));
        if ours && File::open(entry.path().join(LOCK)).is_ok_and(|lock| try_lock(&lock)) {
            // A directory of another user, or one that is being removed, stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// A lock file, which is locked before it gets the name that [`sweep`] opens.
fn lock_file(directory: &Path) -> io::Result<File> {
    let unnamed = directory.join("lock-to-be");
    let lock = File::create(&unnamed)?;
    rustix::fs::flock(&lock, FlockOperation::LockExclusive)?;
    fs::rename(&unnamed, directory.join(LOCK))?;
    Ok(lock)
}

fn try_lock(lock: &File) -> bool {
    rustix::fs::flock(lock, FlockOperation::NonBlockingLockExclusive).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Peer;
    use crate::peers::InstalledPeer;

    #[test]
    fn sources_compile_without_warnings() {
        let workshop = Workshop::open(None).unwrap();
        assert!(workshop.calibrator().unwrap().is_file());
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../../crates/client/include");
        let ours = ["collective.c", "batches.c", "messages.c", "transport_outboard.c", "transport_sockets.c"];
        for source in ours.into_iter().chain(PLAIN_SOURCES) {
            let arguments = ["-Werror", "-Wshadow", "-I", header, "-c", source].map(OsString::from);
            workshop.compile("outboard", Path::new(PLAIN_COMPILER), &arguments).unwrap();
        }
        for source in ["cg.c", "fft3d.c", "pagerank.c", "panel.c", "radix.c", "transport_mpi.c"] {
            let arguments = ["-Werror", "-Wshadow", "-c", source].map(OsString::from);
            workshop.compile("debian", Path::new(crate::install::DEBIAN_MPICC), &arguments).unwrap();
        }
    }

    /// The loop once ran half as fast in one program as in the other, because its code crossed a cache line there.
    #[test]
    fn the_compute_loop_begins_at_a_cache_line() {
        let workshop = Workshop::open(None).unwrap();
        let listed = Command::new("nm").arg(workshop.calibrator().unwrap()).output().unwrap();
        let text = String::from_utf8(listed.stdout).unwrap();
        let place = |symbol: &str| {
            let line = text.lines().find(|line| line.ends_with(symbol)).unwrap();
            u64::from_str_radix(line.split(' ').next().unwrap(), 16).unwrap()
        };
        assert_eq!(place(" compute_units") % 64, 0);
        assert_eq!(place(" cells") % 4096, 0);
    }

    #[test]
    fn what_killed_runs_left_is_swept_and_what_is_in_use_is_not() {
        let parent = tempfile::tempdir().unwrap();
        let [left, used, other] =
            [format!("{PREFIX}left"), format!("{PREFIX}used"), "other".to_owned()].map(|name| parent.path().join(name));
        for directory in [&left, &used, &other] {
            fs::create_dir(directory).unwrap();
        }
        drop(lock_file(&left).unwrap());
        drop(lock_file(&other).unwrap());
        let _in_use = lock_file(&used).unwrap();
        sweep(parent.path());
        assert!(!left.exists() && used.exists() && other.exists());
    }

    #[test]
    fn a_missing_compiler_is_named() {
        let workshop = Workshop::open(None).unwrap();
        let mpich = InstalledPeer::new(Peer::Mpich, Path::new("/nowhere"));
        let error = workshop.collective(&mpich).unwrap_err().to_string();
        assert!(error.contains("mpich is measured by") && error.contains("/nowhere/mpich"), "{error}");
    }
}
