//! Paths of the parts of Outboard: beside this program, unless `OUTBOARD_HOME` names another directory.

use std::path::{Path, PathBuf};
use std::process::Command;

use outboard_bench::{Peer, default_peers_dir, ensure_peer, open_mpi_compiler};

use crate::error::CliError;

/// The directory of the built programs and libraries.
pub(crate) fn home() -> Result<PathBuf, CliError> {
    if let Some(home) = std::env::var_os("OUTBOARD_HOME") {
        return Ok(home.into());
    }
    let program = std::env::current_exe().map_err(CliError::system("find this program"))?;
    Ok(program.parent().unwrap_or(Path::new("/")).to_owned())
}

fn part(what: &str, name: &str) -> Result<PathBuf, CliError> {
    let place = home()?.join(name);
    let missing = || CliError::Failed(format!("{what} is not at {}; build it with `make build`", place.display()));
    if place.exists() { Ok(place) } else { Err(missing()) }
}

/// The daemon.
pub(crate) fn daemon() -> Result<PathBuf, CliError> {
    part("the daemon", "outboardd")
}

/// The C library.
pub(crate) fn library() -> Result<PathBuf, CliError> {
    part("the C library", "liboutboard.so")
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
    let library = shared.then(|| part("the shared heap", "liboutboard_heap.so")).transpose()?;
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
pub(crate) fn below_mpi(heap: Heap, mpi: Peer) -> Result<Vec<(String, String)>, CliError> {
    let mut variables = preloads(heap, Some(shim(mpi)?))?;
    variables.push(("OUTBOARD_LIBRARY".to_owned(), library()?.display().to_string()));
    Ok(variables)
}

/// The source tree of this program.
pub(crate) fn sources() -> Result<PathBuf, CliError> {
    let root = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."));
    root.canonicalize().map_err(CliError::system(format!("find the sources at {}", root.display())))
}

/// The directory of `outboard.h`.
pub(crate) fn include() -> Result<PathBuf, CliError> {
    Ok(sources()?.join("crates/client/include"))
}

/// The MPI shim for an Open MPI. Installs that Open MPI if need be. Builds the shim if it is missing or older than its
/// sources.
pub(crate) fn shim(mpi: Peer) -> Result<PathBuf, CliError> {
    ensure_peer(mpi, &default_peers_dir())?;
    let out = home()?.join("mpi").join(mpi.name());
    let mut make = Command::new("make");
    make.arg("-s").arg("-C").arg(sources()?.join("bindings/mpi"));
    make.arg(format!("OUT={}", out.display()));
    make.arg(format!("MPICC={}", open_mpi_compiler(mpi, &default_peers_dir()).display()));
    run_tool(&mut make, &format!("the MPI shim for {} cannot be built", mpi.name()))?;
    Ok(out.join("liboutboard-mpi.so"))
}

/// Runs a tool; the error is `failure` with the tool's error output.
pub(crate) fn run_tool(tool: &mut Command, failure: &str) -> Result<(), CliError> {
    let done = tool.output().map_err(CliError::system(format!("start {}", tool.get_program().display())))?;
    if done.status.success() {
        return Ok(());
    }
    Err(CliError::Failed(format!("{failure}: {}", String::from_utf8_lossy(&done.stderr).trim())))
}
