//! Why a run could not be finished.

use crate::{LaunchError, OptionError};
use outboard_lab::LabError;
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A run that could not be finished. Each variant says which system or peer, where, and what to do about it.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum BenchError {
    /// The run asked for cannot be.
    #[error(transparent)]
    Options(#[from] OptionError),
    /// The emulated cluster failed.
    #[error("the emulated cluster: {0}; {remedy}", remedy = .0.remedy())]
    Lab(#[from] LabError),
    /// A peer could not be installed.
    #[error("{peer} cannot be installed in {}: {reason}; {remedy}", directory.display())]
    Install {
        /// Name of the peer.
        peer: &'static str,
        /// Where.
        directory: PathBuf,
        /// What failed, and what it said.
        reason: String,
        /// What to do about it.
        remedy: &'static str,
    },
    /// The measuring program could not be built for a system.
    #[error(
        "the measuring program cannot be built for {system}: {reason}; a C compiler is needed (apt-get install gcc \
             libc6-dev), and FFTW for the FFT program (libfftw3-dev)"
    )]
    Compile {
        /// Name of the system.
        system: String,
        /// The command line, and what the compiler said.
        reason: String,
    },
    /// A system could not be started.
    #[error("{system} cannot be started: {source}")]
    Launch {
        /// Name of the system.
        system: String,
        /// What could not be started and why.
        source: LaunchError,
    },
    /// A program of a system ended in the middle or with an error.
    #[error("{system}: {process} {how}; it said:\n{output}")]
    Ended {
        /// Name of the system.
        system: String,
        /// Which program on which host.
        process: String,
        /// How it ended.
        how: String,
        /// Its last output.
        output: String,
    },
    /// A launch took longer than its limit; everything it had started was ended.
    #[error(
        "{system} took longer than {seconds} s ({during}) and was ended; what its programs said:\n{output}\nIf it \
             was merely slow, allow more time or fewer repetitions"
    )]
    TimedOut {
        /// Name of the system.
        system: String,
        /// The limit.
        seconds: u64,
        /// What was waited for.
        during: String,
        /// The last output of its programs.
        output: String,
    },
    /// The measuring program sent a line that is not part of the protocol.
    #[error("{system}: the measuring program sent '{line}', which means nothing")]
    Protocol {
        /// Name of the system.
        system: String,
        /// The line.
        line: String,
    },
    /// The charts could not be drawn.
    #[error("chart {}: {reason}", path.display())]
    Plot {
        /// The file.
        path: PathBuf,
        /// What the drawing library said.
        reason: String,
    },
    /// A system call of this process failed.
    #[error("cannot {what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the system said.
        source: io::Error,
    },
}

impl BenchError {
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        let what = what.into();
        move |source| Self::System { what, source }
    }
}
