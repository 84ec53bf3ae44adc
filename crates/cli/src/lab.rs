//! `outboard lab`: emulated clusters that stay up between commands.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, Subcommand, ValueEnum};
use outboard_lab::{Lab, LabSpec, Loss, LossOf, PortCounters};
use outboard_units::Rate;

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
        /// Name, when there is more than one
        #[arg(long)]
        name: Option<String>,
    },
    /// End it
    Down {
        /// Name, when there is more than one
        #[arg(long)]
        name: Option<String>,
    },
    /// Run a command on one of its hosts
    Exec {
        /// Name, when there is more than one
        #[arg(long)]
        name: Option<String>,
        /// h1, h2, ...
        host: String,
        /// The command and its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        command: Vec<OsString>,
    },
    /// Bytes and packets of every port
    Counters {
        /// Name, when there is more than one
        #[arg(long)]
        name: Option<String>,
    },
    /// The clusters that are up
    List,
}

/// What the links are like.
#[derive(Debug, Clone, Args)]
pub(crate) struct LinkArgs {
    /// Largest IP packet in bytes
    #[arg(long, default_value_t = 1500)]
    mtu: u32,
    /// Rate of the links between hosts and DPUs, such as 8gbit; by default four times that of the others
    #[arg(long)]
    pcie: Option<Rate>,
    /// Random loss in the switch, such as 5%
    #[arg(long)]
    loss: Option<String>,
    /// Which packets the loss takes
    #[arg(long, value_enum, default_value = "multicast", requires = "loss")]
    of: LossKind,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum LossKind {
    Multicast,
    All,
}

impl LinkArgs {
    pub(crate) fn apply(&self, spec: LabSpec) -> Result<LabSpec, CliError> {
        let of = match self.of {
            LossKind::Multicast => LossOf::Multicast,
            LossKind::All => LossOf::All,
        };
        let wrong = |e: outboard_lab::SpecError| CliError::Failed(e.to_string());
        let loss = self.loss.as_deref().map(|text| Loss::parse(text, of)).transpose().map_err(wrong)?;
        let spec = match (self.pcie, spec.pcie()) {
            (None, _) => spec,
            (Some(rate), Some(_)) => spec.with_dpus(Some(rate.in_bits_per_second())).map_err(wrong)?,
            (Some(_), None) => return Err(CliError::Failed(format!("--pcie needs DPUs; ask for a lab {spec}+dpu"))),
        };
        Ok(spec.with_mtu(self.mtu).map_err(wrong)?.with_loss(loss))
    }
}

pub(crate) fn lab(command: LabCommand) -> Result<ExitCode, CliError> {
    match command {
        LabCommand::Up { spec, links, name } => {
            let lab = Lab::up(name.as_deref(), &links.apply(spec)?)?;
            println!(
                "{} hosts, h1 to h{}, are up; outboard lab exec h1 COMMAND",
                lab.spec().hosts(),
                lab.spec().hosts()
            );
        }
        LabCommand::Down { name } => Lab::down(name.as_deref())?,
        LabCommand::Exec { name, host, command } => {
            let lab = Lab::attach(name.as_deref())?;
            outboard_lab::exit_like(lab.exec(&host, &command)?);
        }
        LabCommand::Counters { name } => {
            println!("host    sent bytes  packets  dropped    received bytes  packets  dropped");
            let lab = Lab::attach(name.as_deref())?;
            print_counters(&lab.counters()?);
            let pcie = lab.pcie_counters()?;
            if !pcie.is_empty() {
                println!("between host and DPU:");
                print_counters(&pcie);
            }
        }
        LabCommand::List => {
            for lab in outboard_lab::list()? {
                println!("{lab:?}");
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_counters(links: &[PortCounters]) {
    for c in links {
        println!(
            "h{:<4} {:>12} {:>8} {:>8}    {:>14} {:>8} {:>8}",
            c.host, c.tx_bytes, c.tx_packets, c.tx_drops, c.rx_bytes, c.rx_packets, c.rx_drops
        );
    }
}
