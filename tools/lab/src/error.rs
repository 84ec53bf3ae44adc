//! Errors of labs and their remedies.

use crate::SpecError;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::PathBuf;
use thiserror::Error;

/// A failed lab operation; [`LabError::remedy`] names the remedy.
#[derive(Debug, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum LabError {
    /// The requested lab is impossible.
    #[error(transparent)]
    Spec(#[from] SpecError),
    /// A step of building the lab failed.
    #[error(transparent)]
    Setup(#[from] SetupFailure),
    #[error("this program did not become a lab's switch process")]
    NoHolder,
    #[error("the lab has no host '{host}', its hosts are h1 to h{hosts}")]
    NoSuchHost { host: String, hosts: u16 },
    #[error("{place} of the lab does not answer")]
    Gone {
        place: String,
        #[source]
        source: io::Error,
    },
    #[error("{host} cannot run '{program}': {reason}")]
    Exec { host: String, program: String, reason: String },
    #[error("the switch of the lab cannot {what}: {reason}")]
    Switch { what: &'static str, reason: String },
    #[error("lab '{name}' is up already ({spec}, process {pid})")]
    AlreadyUp { name: String, spec: String, pid: i32 },
    #[error("no lab '{name}' is up")]
    NotUp { name: String },
    #[error("a lab's name consists of letters, digits, '-' and '_', not '{name}'")]
    Name { name: String },
    #[error("lab state {} cannot be used", path.display())]
    State {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot {what}")]
    System {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

impl LabError {
    /// The remedy, in one sentence.
    pub fn remedy(&self) -> String {
        match self {
            Self::Spec(_) | Self::Name { .. } => "correct the argument".into(),
            Self::Setup(failure) => failure.remedy(),
            Self::NoHolder => "call outboard_lab::holder_main_if_requested() first in its main".into(),
            Self::NoSuchHost { .. } => "name one of the lab's hosts".into(),
            Self::Exec { .. } => "check the program, its path and the current directory".into(),
            Self::Gone { .. } | Self::Switch { .. } => "end the lab (outboard lab down) and start it again".into(),
            Self::AlreadyUp { name, .. } => format!("use it, or end it: outboard lab down --name {name}"),
            Self::NotUp { name } => format!("start it: outboard lab up 4x1gbit --name {name}"),
            Self::State { .. } => "set XDG_RUNTIME_DIR to a directory that you own".into(),
            Self::System { .. } => "see the cause: a limit on processes or open files may be too low".into(),
        }
    }
}

/// A failed step of building a lab, with its place and with the reason from the system or the command.
#[derive(Clone, Debug, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("lab setup on {place}: {step}: {reason}")]
pub struct SetupFailure {
    /// `switch` or the host's name.
    pub place: String,
    /// The failed system call or command line.
    pub step: String,
    /// The system's error, or the command's standard error.
    pub reason: String,
}

/// Adds a place and the name of a step to the step's error.
pub(crate) trait InStep<T> {
    fn in_step(self, place: &str, step: impl Into<String>) -> Result<T, SetupFailure>;
}

impl<T, E: Into<io::Error>> InStep<T> for Result<T, E> {
    fn in_step(self, place: &str, step: impl Into<String>) -> Result<T, SetupFailure> {
        self.map_err(|error| SetupFailure::new(place, step, error.into()))
    }
}

impl SetupFailure {
    pub(crate) fn new(place: &str, step: impl Into<String>, reason: impl ToString) -> Self {
        Self { place: place.to_owned(), step: step.into(), reason: reason.to_string() }
    }

    fn remedy(&self) -> String {
        if self.step.starts_with("unshare") {
            return "run as root, or allow user namespaces: sysctl user.max_user_namespaces=10000 and, where they \
                    exist, kernel.unprivileged_userns_clone=1 and kernel.apparmor_restrict_unprivileged_userns=0"
                .into();
        }
        match self.step.split(' ').next() {
            Some("ip" | "tc" | "bridge") => "install iproute2; the kernel needs veth, bridge and sch_tbf".into(),
            Some("nft") => "install nftables; the kernel needs nf_tables for bridges and nft_numgen".into(),
            Some("mount") => {
                "run where /proc and /sys are not masked: outside a container, or in a privileged one".into()
            }
            _ => "see the cause".into(),
        }
    }
}
