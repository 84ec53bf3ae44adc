//! Why a run could not be finished.

use crate::{LaunchError, OptionError};
use outboard_lab::LabError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A run that could not be finished. Each variant names the system or peer, the place, and the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum BenchError {
    /// The requested run is impossible.
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error("the emulated cluster: {0}; {remedy}", remedy = .0.remedy())]
    Lab(#[from] LabError),
    #[error("{peer} cannot be installed in {}: {reason}; {remedy}", directory.display())]
    Install { peer: &'static str, directory: PathBuf, reason: String, remedy: &'static str },
    #[error(
        "{system} is measured by a program that {compiler} builds, and {compiler} is not installed; install it \
             (apt-get install gcc libc6-dev, and libopenmpi-dev for Debian's Open MPI), or leave {system} out (--peers, \
             --via)",
        compiler = compiler.display()
    )]
    NoCompiler { system: String, compiler: PathBuf },
    #[error(
        "the measuring program cannot be built for {system}: {reason}; a C compiler is needed (apt-get install gcc \
             libc6-dev), and FFTW for the FFT program (libfftw3-dev)"
    )]
    Compile { system: String, reason: String },
    #[error("{system} cannot be started: {source}")]
    Launch { system: String, source: LaunchError },
    #[error("{system}: {process} {how}; it said:\n{output}")]
    Ended { system: String, process: String, how: String, output: String },
    #[error(
        "{system} took longer than {seconds} s ({during}) and was ended; what its programs said:\n{output}\nIf it \
             was merely slow, allow more time or fewer repetitions"
    )]
    TimedOut { system: String, seconds: u64, during: String, output: String },
    #[error("{system}: the measuring program sent '{line}', which means nothing")]
    Protocol { system: String, line: String },
    #[error("the table of figures at '{text}' has no end, or a row with other columns than its first")]
    Readme { text: String },
    #[error("cannot {what}: {source}")]
    System { what: String, source: io::Error },
}

impl BenchError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
