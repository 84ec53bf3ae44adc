//! Paths of the parts of Outboard, from the directory of this program or the one that `OUTBOARD_HOME` names.
//!
//! | part | in a build, `target/PROFILE` | in an installation, `PREFIX/bin` |
//! |---|---|---|
//! | programs | beside | beside |
//! | libraries, the MPI shim | beside | `../lib` |
//! | outboard.h | the sources | `../include` |
//! | examples | the sources | `../share/doc/outboard/examples` |
//! | measuring programs of the benches | built at each run | `../libexec/outboard` |
//!
//! Never does: reading the sources or starting a compiler where an installation has the part.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::CliError;

const LIBRARY: &str = "liboutboard.so.1";
const HEAP_LIBRARY: &str = "liboutboard_heap.so";
const SHIM: &str = "liboutboard-mpi.so";

/// The directory of the programs.
pub(crate) fn home() -> Result<PathBuf, CliError> {
    if let Some(home) = std::env::var_os("OUTBOARD_HOME").map(PathBuf::from) {
        return home.canonicalize().map_err(CliError::system(format!("find OUTBOARD_HOME, {}", home.display())));
    }
    let program = std::env::current_exe().map_err(CliError::system("find this program"))?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

/// A path of the installation to which the programs belong.
fn installed(path: &str) -> Result<PathBuf, CliError> {
    Ok(home()?.parent().unwrap_or(Path::new("/")).join(path))
}

/// A program or library beside the programs, or a library in an installation.
fn part(what: &str, name: &str) -> Result<PathBuf, CliError> {
    let places = [home()?.join(name), installed("lib")?.join(name)];
    if let Some(place) = places.iter().find(|place| place.exists()) {
        return Ok(place.clone());
    }
    let [beside, in_lib] = places.each_ref().map(|place| place.display());
    let remedy = "`make build` builds it, `make install` installs it";
    Err(CliError::Failed(format!("{what} is neither at {beside} nor at {in_lib}; {remedy}")))
}

/// The daemon.
pub(crate) fn daemon() -> Result<PathBuf, CliError> {
    part("the daemon", "outboardd")
}

/// The C library.
pub(crate) fn library() -> Result<PathBuf, CliError> {
    part("the C library", LIBRARY)
}

/// Variable that selects the shared heap.
const HEAP: &str = "OUTBOARD_HEAP";
/// Variable that limits the shared heap.
const HEAP_BYTES: &str = "OUTBOARD_HEAP_BYTES";

/// The memory of the ranks' large allocations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Heap {
    /// Memory of the C library's malloc
    Plain,
    /// Memory that the service process maps, too
    Shared,
}

impl Heap {
    /// The heap that the environment selects.
    pub(crate) fn from_environment() -> Result<Self, CliError> {
        match std::env::var(HEAP).as_deref() {
            Ok("shared") => Ok(Self::Shared),
            Ok("off" | "") | Err(_) => Ok(Self::Plain),
            Ok(other) => Err(CliError::Failed(format!("{HEAP} is `{other}`; set it to off or shared"))),
        }
    }
}

/// Variables that preload libraries into ranks: the shared heap, if it is used, and the shim.
pub(crate) fn preloads(heap: Heap, shim: Option<PathBuf>) -> Result<Vec<(String, String)>, CliError> {
    let shared = heap == Heap::Shared;
    let library = shared.then(|| part("the shared heap", HEAP_LIBRARY)).transpose()?;
    let libraries: Vec<String> = library.into_iter().chain(shim).map(|path| path.display().to_string()).collect();
    let mut variables = Vec::new();
    if !libraries.is_empty() {
        variables.push(("LD_PRELOAD".to_owned(), libraries.join(":")));
    }
    if shared {
        variables.push((HEAP.to_owned(), "shared".to_owned()));
    }
    variables.extend(std::env::var(HEAP_BYTES).map(|bytes| (HEAP_BYTES.to_owned(), bytes)));
    Ok(variables)
}

/// Variables that offload the ranks of an MPI program, without the variables by which ranks find daemons.
pub(crate) fn below_mpi(heap: Heap) -> Result<Vec<(String, String)>, CliError> {
    let mut variables = preloads(heap, Some(shim()?))?;
    variables.push(("OUTBOARD_LIBRARY".to_owned(), library()?.display().to_string()));
    Ok(variables)
}

/// The source tree of this program. An installation works without it.
fn sources() -> Result<PathBuf, CliError> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.canonicalize().map_err(CliError::system(format!("find the sources at {}", root.display())))
}

/// A file of the installation, else of the source tree.
fn from_sources(installed_at: &str, in_sources: &str) -> Result<PathBuf, CliError> {
    let place = installed(installed_at)?;
    if place.exists() { Ok(place) } else { Ok(sources()?.join(in_sources)) }
}

/// The directory of `outboard.h`.
pub(crate) fn include() -> Result<PathBuf, CliError> {
    let header = from_sources("include/outboard.h", "crates/client/include/outboard.h")?;
    Ok(header.parent().expect("a file lies in a directory").to_owned())
}

/// One of the examples.
pub(crate) fn example(name: &str) -> Result<PathBuf, CliError> {
    from_sources(&format!("share/doc/outboard/examples/{name}"), &format!("examples/{name}"))
}

/// The directory of the measuring programs of an installation.
pub(crate) fn bench_programs() -> Result<Option<PathBuf>, CliError> {
    Ok(Some(installed("libexec/outboard")?).filter(|folder| folder.is_dir()))
}

/// The MPI shim. In a build it is built if it is missing or older than its sources.
pub(crate) fn shim() -> Result<PathBuf, CliError> {
    let home = home()?;
    // Libraries lie beside the programs in a build alone.
    if home.join(LIBRARY).exists()
        && let Ok(sources) = sources()
    {
        let mut make = Command::new("make");
        make.arg("-s").arg("-C").arg(sources.join("bindings/mpi")).arg(format!("OUT={}", home.display()));
        run_tool(&mut make, "the MPI shim cannot be built")?;
    }
    part("the MPI shim", SHIM)
}

/// Runs a tool; the error is `failure` with the tool's error output.
pub(crate) fn run_tool(tool: &mut Command, failure: &str) -> Result<(), CliError> {
    let done = tool.output().map_err(CliError::system(format!("start {}", tool.get_program().display())))?;
    if done.status.success() {
        return Ok(());
    }
    Err(CliError::Failed(format!("{failure}: {}", String::from_utf8_lossy(&done.stderr).trim())))
}
