//! Examines the program of a job: whether it reaches an MPI library, or uses outboard.h, or starts something else that
//! may do either.
//!
//! The dynamic loader itself lists the libraries (`ldd`), so search paths and indirect libraries count as at the start
//! of the program. Libraries that a program opens later are not known here: such a program is [`Kind::Unknown`].
//!
//! Never follows a symbolic link of the program's path: an interpreter in a virtual environment is a link to another
//! interpreter, and finds its packages by the path of the link.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::Access;

use crate::error::CliError;

/// Names of MPI libraries without versions: Open MPI's and Intel MPI's, the standard ABI's, MPICH's.
const MPI_LIBRARIES: [&str; 4] = ["libmpi.so", "libmpi_abi.so", "libmpich.so", "libpmpich.so"];
/// Names of run-time libraries of sanitizers, which must come first in a process.
const SANITIZERS: [&str; 6] = ["libasan.so", "libtsan.so", "liblsan.so", "libubsan.so", "libhwasan.so", "libclang_rt."];
/// The library of outboard.h.
const OWN_LIBRARY: &str = "liboutboard.so";
/// A text in every program that contains the library of outboard.h.
const OWN_TEXT: &[u8] = b"OUTBOARD_RENDEZVOUS";

/// The kind of a program, as far as its file shows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reaches this MPI library.
    Mpi(PathBuf),
    /// Uses outboard.h without MPI.
    OutboardH,
    /// Scripts, interpreters, commands that run other programs, and programs without either library.
    Unknown,
}

/// The program of a job.
#[derive(Debug)]
pub(super) struct Program {
    /// The file that the user's word names.
    pub(super) path: PathBuf,
    pub(super) kind: Kind,
    /// Sanitizer run-time libraries to which the program is linked.
    pub(super) sanitizers: Vec<PathBuf>,
}

impl Program {
    /// Examines the program that `command` runs. `library_path` is the ranks' search path for libraries.
    pub(super) fn examine(command: &[String], library_path: Option<&str>) -> Result<Self, CliError> {
        let (name, arguments) = command.split_first().expect("clap requires a program");
        let path = find(name)?;
        let libraries = linked(&path, library_path);
        let sanitizers = libraries.iter().filter(|library| is_sanitizer(library)).cloned().collect();
        let kind = if let Some(library) = mpi_among(&libraries) {
            Kind::Mpi(library)
        } else if libraries.iter().any(|library| file_name(library).starts_with(OWN_LIBRARY)) || contains_own(&path) {
            Kind::OutboardH
        } else {
            // Wrappers such as `env` and `bash -c` name their program among the arguments.
            let named = arguments.iter().flat_map(|argument| argument.split_whitespace()).map(Path::new);
            let mut reached = named.filter(|word| word.is_file()).map(|word| linked(word, library_path));
            let library = reached.find_map(|libraries| mpi_among(&libraries));
            library.or_else(|| python_mpi(&path, library_path)).map_or(Kind::Unknown, Kind::Mpi)
        };
        Ok(Self { path, kind, sanitizers })
    }
}

/// Whether a library is a sanitizer's run-time library.
pub(super) fn is_sanitizer(library: &Path) -> bool {
    SANITIZERS.iter().any(|name| file_name(library).starts_with(name))
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn mpi_among(libraries: &[PathBuf]) -> Option<PathBuf> {
    let of_mpi = |library: &&PathBuf| MPI_LIBRARIES.iter().any(|name| file_name(library).starts_with(name));
    libraries.iter().find(of_mpi).cloned()
}

/// The path of a program, as a shell finds it.
fn find(name: &str) -> Result<PathBuf, CliError> {
    let found = if name.contains('/') {
        Some(PathBuf::from(name)).filter(|path| path.is_file())
    } else {
        let executable = |path: &PathBuf| path.is_file() && rustix::fs::access(path, Access::EXEC_OK).is_ok();
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|directory| directory.join(name)).find(executable)
    };
    found.ok_or_else(|| CliError::Failed(format!("the program {name} is not found; give its path")))
}

/// Whether a file is a program or library of the machine, and no script.
fn is_elf(file: &Path) -> bool {
    let mut magic = [0; 4];
    File::open(file).is_ok_and(|mut file| file.read_exact(&mut magic).is_ok()) && &magic == b"\x7fELF"
}

/// All libraries that the dynamic loader would load for `program`; a library that it misses is here by its name. Empty
/// for programs that are not dynamically linked.
fn linked(program: &Path, library_path: Option<&str>) -> Vec<PathBuf> {
    if !is_elf(program) {
        return Vec::new();
    }
    let list = |ldd: &str| {
        let mut ldd = Command::new(ldd);
        ldd.arg(program).env_remove("LD_PRELOAD").stdin(Stdio::null());
        library_path.map(|path| ldd.env("LD_LIBRARY_PATH", path));
        ldd.output()
    };
    // A search path may lack the system's folders. Without ldd, or for a program that it cannot read, the kind stays
    // unknown.
    let listed = list("ldd").or_else(|_| list("/usr/bin/ldd")).map(|output| output.stdout).unwrap_or_default();
    libraries_of_list(&String::from_utf8_lossy(&listed))
}

/// The libraries that `ldd` has printed: `NAME => PATH (ADDRESS)`, `NAME => not found` or `PATH (ADDRESS)`.
fn libraries_of_list(list: &str) -> Vec<PathBuf> {
    let library = |line: &str| {
        let (name, place) = line.trim().split_once(" => ").unwrap_or((line.trim(), ""));
        let place = place.split(" (").next().filter(|place| place.starts_with('/'));
        PathBuf::from(place.unwrap_or_else(|| name.split(" (").next().unwrap_or(name)))
    };
    list.lines().map(library).collect()
}

/// Whether the program contains the library of outboard.h, as programs in Rust do.
fn contains_own(program: &Path) -> bool {
    const PIECE: usize = 1 << 20;
    // A script may mention the text, too.
    let Some(mut file) = is_elf(program).then(|| File::open(program).ok()).flatten() else { return false };
    let mut kept: Vec<u8> = Vec::new();
    loop {
        // The end of the last piece stays, so that a text across pieces is found.
        kept.drain(..kept.len().saturating_sub(OWN_TEXT.len() - 1));
        match file.by_ref().take(PIECE as u64).read_to_end(&mut kept) {
            Ok(1..) if memchr::memmem::find(&kept, OWN_TEXT).is_some() => return true,
            Ok(1..) => {}
            Ok(0) | Err(_) => return false,
        }
    }
}

/// The MPI library of the mpi4py that a Python interpreter would import.
fn python_mpi(program: &Path, library_path: Option<&str>) -> Option<PathBuf> {
    const LOOK: &str = "import importlib.util as u; s = u.find_spec('mpi4py.MPI'); print(s.origin if s else '')";
    if !file_name(program).starts_with("python") {
        return None;
    }
    let mut python = Command::new(program);
    python.args(["-c", LOOK]).env_remove("LD_PRELOAD").stdin(Stdio::null()).stderr(Stdio::null());
    let answer = python.output().ok()?;
    let module = String::from_utf8_lossy(&answer.stdout).trim().to_owned();
    mpi_among(&linked(Path::new(&module), library_path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_of_a_list_of_libraries_is_read() {
        let list = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibmpi.so.40 => /opt/mpi/lib/libmpi.so.40 (0x00007f12)\n\
                    \tlibmissing.so.1 => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f34)\n";
        let expected =
            ["linux-vdso.so.1", "/opt/mpi/lib/libmpi.so.40", "libmissing.so.1", "/lib64/ld-linux-x86-64.so.2"];
        assert_eq!(libraries_of_list(list), expected.map(PathBuf::from));
    }

    #[test]
    fn an_mpi_library_is_known_by_its_name_and_not_by_similar_ones() {
        let of = |name: &str| mpi_among(&[PathBuf::from(name)]).is_some();
        assert!(of("/a/libmpi.so.40") && of("libmpi.so.12") && of("libmpich.so.12") && of("/b/libmpi_abi.so.1"));
        assert!(!of("/a/libmpi_usempif08.so.40") && !of("libmpifort.so.12") && !of("/libmpi.so.40/libm.so.6"));
    }

    #[test]
    fn a_text_across_two_pieces_is_found() {
        let directory = tempfile::tempdir().expect("a directory");
        let file = directory.path().join("program");
        let mut bytes = b"\x7fELF".to_vec();
        bytes.resize((1 << 20) - 5, b'x');
        bytes.extend_from_slice(OWN_TEXT);
        std::fs::write(&file, &bytes).expect("written");
        assert!(contains_own(&file));
        bytes.pop();
        std::fs::write(&file, &bytes).expect("written");
        assert!(!contains_own(&file));
    }
}
