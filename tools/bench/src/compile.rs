//! Builds the measuring program for each system. Only the library differs: sources and flags are the same, and so are
//! the object files of all sources that name no library.

use crate::BenchError;
use crate::job::{System, run_tool};
use rustix::fs::FlockOperation;
use rustix::time::Timespec;
use std::ffi::OsString;
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
        let library = linked(&prefix.join("include"), &prefix.join("lib"), "mpi");
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_mpi.c", library }
    }

    /// Outboard's C interface: the directories of `outboard.h` and of `liboutboard.so`.
    pub(crate) fn outboard(include: &Path, lib: &Path) -> Self {
        let library = linked(include, lib, "outboard");
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_outboard.c", library }
    }

    /// Plain sockets, without a library.
    pub(crate) fn sockets() -> Self {
        Self { compiler: PLAIN_COMPILER.into(), transport: "transport_sockets.c", library: Vec::new() }
    }
}

fn linked(include: &Path, lib: &Path, name: &str) -> Vec<OsString> {
    let option = |option: &str, path: &Path| {
        let mut text = OsString::from(option);
        text.push(path);
        text
    };
    vec![option("-I", include), option("-L", lib), option("-Wl,-rpath,", lib), format!("-l{name}").into()]
}

/// A directory with the sources and the programs that were built from them; removed when dropped.
#[derive(Debug)]
pub(crate) struct Workshop {
    directory: TempDir,
    /// Held while the directory is in use.
    _lock: File,
}

impl Workshop {
    pub(crate) fn open() -> Result<Self, BenchError> {
        let parent = std::env::temp_dir();
        sweep(&parent);
        let directory = TempDir::with_prefix_in(PREFIX, &parent).map_err(BenchError::system("make a directory"))?;
        let lock = lock_file(directory.path()).map_err(BenchError::system("lock the directory"))?;
        for (name, text) in SOURCES {
            let path = directory.path().join(Path::new(name).file_name().expect("a source is a file"));
            fs::write(path, text).map_err(BenchError::system(format!("write {name}")))?;
        }
        let workshop = Self { directory, _lock: lock };
        let arguments: Vec<OsString> = ["-c"].iter().chain(&PLAIN_SOURCES).map(OsString::from).collect();
        workshop.compile("every system", Path::new(PLAIN_COMPILER), &arguments)?;
        Ok(workshop)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The program that runs the compute loop alone.
    pub(crate) fn calibrator(&self) -> Result<PathBuf, BenchError> {
        let arguments = ["calibrate.c", "control.o", "compute.o", "-o", "calibrate"].map(OsString::from);
        self.compile("calibration", Path::new(PLAIN_COMPILER), &arguments)?;
        Ok(self.path().join("calibrate"))
    }

    /// A program on transport.h for one system; its main is in the source `main`.c.
    pub(crate) fn on_transport(&self, main: &str, system: &dyn System) -> Result<PathBuf, BenchError> {
        let objects = PLAIN_SOURCES.map(|source| source.replace(".c", ".o"));
        let source = format!("{main}.c");
        let words = [source.as_str(), system.toolchain().transport];
        self.program(main, &[&words[..], &objects.each_ref().map(String::as_str)].concat(), system)
    }

    /// A program for one system; `words` are sources, objects and libraries for the compiler.
    pub(crate) fn program(&self, main: &str, words: &[&str], system: &dyn System) -> Result<PathBuf, BenchError> {
        let (name, toolchain) = (system.name(), system.toolchain());
        let program = format!("{main}-{}", name.replace([' ', '/'], "-"));
        let output = ["-o", &program];
        let words = words.iter().chain(&output).map(OsString::from);
        let arguments: Vec<OsString> = words.chain(toolchain.library).collect();
        self.compile(&name, &toolchain.compiler, &arguments)?;
        Ok(self.path().join(program))
    }

    fn compile(&self, system: &str, compiler: &Path, arguments: &[OsString]) -> Result<(), BenchError> {
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
        let workshop = Workshop::open().unwrap();
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
        let workshop = Workshop::open().unwrap();
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
        let workshop = Workshop::open().unwrap();
        let mpich = InstalledPeer::new(Peer::Mpich, Path::new("/nowhere"));
        let error = workshop.on_transport("collective", &mpich).unwrap_err().to_string();
        assert!(error.contains("built for mpich") && error.contains("/nowhere/mpich"), "{error}");
    }
}
