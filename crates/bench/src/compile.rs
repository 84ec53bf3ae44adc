//! Builds the measuring program for each system: the same sources, the same flags, the same object file of the compute
//! loop; only the library differs.

use crate::BenchError;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

const SOURCES: [(&str, &str); 9] = [
    ("allgather.c", include_str!("../programs/allgather.c")),
    ("calibrate.c", include_str!("../programs/calibrate.c")),
    ("compute.c", include_str!("../programs/compute.c")),
    ("compute.h", include_str!("../programs/compute.h")),
    ("control.c", include_str!("../programs/control.c")),
    ("control.h", include_str!("../programs/control.h")),
    ("transport.h", include_str!("../programs/transport.h")),
    ("transport_mpi.c", include_str!("../programs/transport_mpi.c")),
    ("transport_outboard.c", include_str!("../programs/transport_outboard.c")),
];
const FLAGS: [&str; 4] = ["-std=gnu11", "-O2", "-Wall", "-Wextra"];
const PLAIN_COMPILER: &str = "cc";

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
}

fn linked(include: &Path, lib: &Path, name: &str) -> Vec<OsString> {
    let option = |option: &str, path: &Path| {
        let mut text = OsString::from(option);
        text.push(path);
        text
    };
    vec![option("-I", include), option("-L", lib), option("-Wl,-rpath,", lib), format!("-l{name}").into()]
}

/// A directory with the sources and what was built from them; gone when dropped.
#[derive(Debug)]
pub(crate) struct Workshop {
    directory: TempDir,
}

impl Workshop {
    pub(crate) fn open() -> Result<Self, BenchError> {
        let directory = TempDir::with_prefix("outboard-bench-").map_err(BenchError::system("make a directory"))?;
        for (name, text) in SOURCES {
            fs::write(directory.path().join(name), text).map_err(BenchError::system(format!("write {name}")))?;
        }
        let workshop = Self { directory };
        let arguments = ["-c", "compute.c", "-o", "compute.o"].map(OsString::from);
        workshop.compile("every system", Path::new(PLAIN_COMPILER), &arguments)?;
        Ok(workshop)
    }

    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// The program that runs the compute loop alone.
    pub(crate) fn calibrator(&self) -> Result<PathBuf, BenchError> {
        let arguments = ["calibrate.c", "control.c", "compute.o", "-o", "calibrate"].map(OsString::from);
        self.compile("calibration", Path::new(PLAIN_COMPILER), &arguments)?;
        Ok(self.path().join("calibrate"))
    }

    /// The measuring program for one system, called `name` in the error.
    pub(crate) fn measuring_program(&self, name: &str, toolchain: &Toolchain) -> Result<PathBuf, BenchError> {
        let program = format!("allgather-{}", name.replace([' ', '/'], "-"));
        let mut arguments = vec!["allgather.c", "control.c", toolchain.transport, "compute.o", "-o", &program]
            .into_iter()
            .map(OsString::from)
            .collect::<Vec<_>>();
        arguments.extend(toolchain.library.iter().cloned());
        self.compile(name, &toolchain.compiler, &arguments)?;
        Ok(self.path().join(program))
    }

    fn compile(&self, system: &str, compiler: &Path, arguments: &[OsString]) -> Result<(), BenchError> {
        let mut command = Command::new(compiler);
        command.args(FLAGS).args(arguments).current_dir(self.path());
        let output = command.output();
        let failed =
            |output: String| BenchError::Compile { system: system.to_owned(), command: format!("{command:?}"), output };
        match output {
            Ok(output) if output.status.success() => Ok(()),
            Ok(output) => Err(failed(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(error) => Err(failed(error.to_string())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_compile_without_warnings() {
        let workshop = Workshop::open().unwrap();
        assert!(workshop.calibrator().unwrap().is_file());
        let header = concat!(env!("CARGO_MANIFEST_DIR"), "/../client/include");
        for source in ["allgather.c", "transport_outboard.c"] {
            let arguments = ["-Werror", "-Wshadow", "-I", header, "-c", source].map(OsString::from);
            workshop.compile("outboard", Path::new(PLAIN_COMPILER), &arguments).unwrap();
        }
    }

    #[test]
    fn a_missing_compiler_is_named() {
        let workshop = Workshop::open().unwrap();
        let toolchain = Toolchain::mpi_wrapper("/nowhere/mpicc".into());
        let error = workshop.measuring_program("mpich", &toolchain).unwrap_err().to_string();
        assert!(error.contains("mpich") && error.contains("/nowhere/mpicc"), "{error}");
    }
}
