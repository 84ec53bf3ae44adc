//! Costs of completions for hardware threads, and the contention of threads on one core.
//!
//! A thread spends few cycles on the instructions of a completion. Most of the time it stalls: it waits for loads and
//! stores outside its core (MC Table I). Threads of one core stall each other: with `n` threads at work, each stalls
//! `n ^ contention` times as long. That exponent is the one parameter of the model, fitted to one measurement.

use std::sync::LazyLock;

use crate::profile_table::{self, ProfileError, ProfileTable};

use super::settings::Transport;
use super::{DatapathEngine, ProgramPost};
use crate::costs::{self, Machine};

/// Cycles that a hardware thread alone on its core needs for one completion.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CompletionCycles {
    /// Instructions, of one cycle each.
    pub instructions: f64,
    /// Cycles in which the thread waits for memory or the NIC.
    pub stalls: f64,
}

/// An accelerator and the costs of its work: the table `[datapath]` of a profile.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatapathCosts {
    pub cores: u32,
    pub threads_per_core: u32,
    /// Cycles of a core per nanosecond.
    pub gigahertz: f64,
    /// Work for a datagram that is copied from staging: the datapath UD of the paper.
    pub datagram: CompletionCycles,
    /// Work for a chunk that was written to its place: the datapath UC.
    pub write: CompletionCycles,
    /// Exponent of the stall time in the number of threads at work on a core.
    pub contention: f64,
    /// Nanoseconds until an inactive thread begins with its first completion.
    pub activation: u64,
}

impl DatapathCosts {
    pub(crate) fn read(table: &mut ProfileTable<'_, '_>) -> Result<DatapathCosts, ProfileError> {
        let cycles = "cycles";
        Ok(DatapathCosts {
            cores: table.count("cores", "")?,
            threads_per_core: table.count("threads_per_core", "")?,
            gigahertz: table.rate("gigahertz", "cycles/ns")?,
            datagram: CompletionCycles {
                instructions: table.cost("datagram_instructions", cycles)?,
                stalls: table.cost("datagram_stalls", cycles)?,
            },
            write: CompletionCycles {
                instructions: table.cost("write_instructions", cycles)?,
                stalls: table.cost("write_stalls", cycles)?,
            },
            contention: table.cost("contention", "")?,
            activation: table.cost("activation", "ns")? as u64,
        })
    }

    /// The costs of the profile `bluefield3`.
    pub fn bluefield3() -> Self {
        static COSTS: LazyLock<DatapathCosts> = LazyLock::new(|| {
            let text = include_str!("../../profiles/bluefield3.toml");
            profile_table::read_table(text, "datapath", DatapathCosts::read).expect("a profile that is built in")
        });
        *COSTS
    }

    pub fn work(&self, transport: Transport) -> CompletionCycles {
        match transport {
            Transport::Datagrams => self.datagram,
            Transport::Writes { .. } => self.write,
        }
    }

    /// Number of hardware threads of all cores.
    pub fn threads(&self) -> u32 {
        self.cores.saturating_mul(self.threads_per_core)
    }

    /// Nanoseconds of one completion while `threads` threads of its core are at work, including this one.
    pub fn nanoseconds(&self, transport: Transport, threads: u32) -> f64 {
        let CompletionCycles { instructions, stalls } = self.work(transport);
        (instructions + stalls * f64::from(threads.max(1)).powf(self.contention)) / self.gigahertz
    }
}

/// The accelerator itself accounts for the time of completions.
impl costs::EngineCosts<DatapathEngine> for DatapathCosts {
    fn post(&self, machine: &Machine, _post: &ProgramPost) -> f64 {
        machine.send
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC Fig. 13: the contention reproduces the measurement that the profile names as its source.
    #[test]
    fn mc_15_the_contention_is_that_of_the_measurement() {
        let chunks = 4.0 / DatapathCosts::bluefield3().nanoseconds(Transport::Writes { packets: 1 }, 4) * 1e9;
        assert!((chunks / (200e9 / 8.0 / 4096.0) - 1.0).abs() < 1e-9, "{chunks}");
    }
}
