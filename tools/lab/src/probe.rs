//! Checks for everything that a lab needs of this machine, by trial.

use crate::{Lab, LabSpec, LossScope, PacketLoss, SpecError, tools};

/// One requirement of labs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LabCheck {
    /// The requirement that was tried.
    pub what: String,
    /// Whether the trial succeeded.
    pub ok: bool,
    /// The remedy if the trial fails; empty if it succeeds.
    pub remedy: String,
}

impl LabCheck {
    fn new(what: impl Into<String>, failure: Option<String>) -> Self {
        Self { what: what.into(), ok: failure.is_none(), remedy: failure.unwrap_or_default() }
    }
}

/// Checks for the tools, and starts labs of two hosts with and without loss. The caller's `main` must begin as for
/// [`Lab::start`].
pub fn probe() -> Vec<LabCheck> {
    let tool = |(name, package): (&str, &str)| {
        let missing = tools::find(name).is_none().then(|| format!("install {package}"));
        LabCheck::new(format!("lab: {name}"), missing)
    };
    let trial = |(what, spec): (&str, Result<LabSpec, SpecError>)| {
        let failure = spec.map_err(Into::into).and_then(|spec| Lab::start(&spec)?.counters()).err();
        LabCheck::new(what, failure.map(|error| format!("{}: {error}", error.remedy())))
    };
    let plain = LabSpec::new(2, 1_000_000_000);
    let lossy = plain.clone().map(|plain| plain.with_loss(Some(PacketLoss::percent(1, LossScope::All))));
    let tools = [("ip", "iproute2"), ("tc", "iproute2"), ("bridge", "iproute2"), ("nft", "nftables")].map(tool);
    let trials = [("lab: namespaces, links and rates", plain), ("lab: random loss", lossy)].map(trial);
    tools.into_iter().chain(trials).collect()
}
