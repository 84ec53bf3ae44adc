//! `outboard lab`: emulated clusters that stay up between commands.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Subcommand};
use outboard_lab::{Lab, LabSpec, LabSummary, LossScope, PacketLoss, PortCounters};
use outboard_units::{Fraction, Rate, Size};

use crate::error::CliError;

/// Emulated clusters.
#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    /// Start a cluster in the background
    Up {
        /// HOSTSxRATE, such as 4x1gbit; 4x1gbit+dpu gives every host a DPU
        spec: LabSpec,
        #[command(flatten)]
        links: LinkArgs,
        #[command(flatten)]
        name: LabName,
    },
    /// End a cluster
    Down(LabName),
    /// Run a command on a host of a cluster
    Exec {
        #[command(flatten)]
        name: LabName,
        /// h1, h2, ...; with DPUs also h1-dpu, ...
        host: String,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Show bytes and packets of every port
    Counters(LabName),
    /// List the running clusters
    List,
}

#[derive(Debug, Args)]
pub(crate) struct LabName {
    /// Name, if there is more than one cluster
    #[arg(long)]
    name: Option<String>,
}

impl LabName {
    fn get(&self) -> Option<&str> {
        self.name.as_deref()
    }
}

/// The properties of the links.
#[derive(Debug, Clone, Args)]
pub(crate) struct LinkArgs {
    /// Largest IP packet in bytes
    #[arg(long, default_value_t = 1500, value_parser = Size::below_4g)]
    mtu: u32,
    /// Rate of the links between hosts and DPUs, such as 8gbit; by default four times that of the other links
    #[arg(long)]
    pcie: Option<Rate>,
    /// Random loss in the switch, such as 5% or 0.05
    #[arg(long)]
    loss: Option<Fraction>,
    /// The packets that are lost
    #[arg(long, value_parser = loss_of(), default_value = "multicast", requires = "loss")]
    of: LossScope,
}

fn loss_of() -> impl TypedValueParser<Value = LossScope> {
    let of = |text: String| if text == "all" { LossScope::All } else { LossScope::Multicast };
    PossibleValuesParser::new(["multicast", "all"]).map(of)
}

impl LinkArgs {
    pub(crate) fn apply(&self, spec: LabSpec) -> Result<LabSpec, CliError> {
        let loss = self.loss.map(|lost| PacketLoss::new(lost, self.of));
        let spec = match (self.pcie, spec.pcie()) {
            (None, _) => spec,
            (Some(rate), Some(_)) => spec.with_dpus(Some(rate.in_bits_per_second())).map_err(CliError::failed)?,
            (Some(_), None) => return Err(CliError::Failed(format!("--pcie needs DPUs; ask for a lab {spec}+dpu"))),
        };
        Ok(spec.with_mtu(self.mtu).map_err(CliError::failed)?.with_loss(loss))
    }
}

pub(crate) fn lab(command: LabCommand) -> Result<ExitCode, CliError> {
    match command {
        LabCommand::Up { spec, links, name } => {
            let lab = Lab::up(name.get(), &links.apply(spec)?)?;
            println!("{hosts} hosts, h1 to h{hosts}, are up; outboard lab exec h1 COMMAND", hosts = lab.spec().hosts());
        }
        LabCommand::Down(name) => Lab::down(name.get())?,
        LabCommand::Exec { name, host, command } => {
            let mut inside = Lab::attach(name.get())?.command(&host, &command[0])?;
            // The client of the host's agent replaces this process.
            return Err(CliError::system(format!("enter {host}"))(inside.args(&command[1..]).exec()));
        }
        LabCommand::Counters(name) => {
            println!("host    sent bytes  packets  dropped    received bytes  packets  dropped");
            let lab = Lab::attach(name.get())?;
            print_counters(&lab.counters()?);
            let pcie = lab.pcie_counters()?;
            if !pcie.is_empty() {
                println!("between host and DPU:");
                print_counters(&pcie);
            }
        }
        LabCommand::List => {
            println!("{:<16} {:>5}  {:<16} process", "name", "hosts", "shape");
            for LabSummary { name, spec, pid } in outboard_lab::list()? {
                println!("{name:<16} {:>5}  {:<16} {pid}", spec.hosts(), spec.to_string());
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_counters(links: &[PortCounters]) {
    for c in links {
        println!(
            "h{:<4} {:>12} {:>8} {:>8}    {:>14} {:>8} {:>8}",
            c.host, c.tx.bytes, c.tx.packets, c.tx.drops, c.rx.bytes, c.rx.packets, c.rx.drops
        );
    }
}
