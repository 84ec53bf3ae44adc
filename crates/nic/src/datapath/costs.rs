//! What a completion costs a hardware thread, and what threads of one core cost each other.
//!
//! A thread spends few instructions on a completion and stalls for most of the time, on loads and stores outside its
//! core (MC Table I). Threads of one core stall each other: with `n` of them at work each stalls `n ^ contention` times
//! as long. That exponent is the one parameter of the model; [`Costs::fit_contention`] finds it from one measurement.

use serde::Deserialize;

use super::settings::Transport;

/// Cycles of one hardware thread for one completion, while it has its core for itself.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Work {
    /// Instructions, of a cycle each.
    pub instructions: f64,
    /// Cycles in which the thread waits for memory or the NIC.
    pub stalls: f64,
}

/// An accelerator and what its work costs. Rates are to be positive, all others at least 0.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Costs {
    /// Cores.
    pub cores: u32,
    /// Hardware threads of a core.
    pub threads_per_core: u32,
    /// Cycles of a core in a nanosecond.
    pub gigahertz: f64,
    /// A datagram that is copied from staging: the datapath UD of the paper.
    pub datagram: Work,
    /// A chunk that was written to its place: the datapath UC.
    pub write: Work,
    /// The power of the threads at work on a core by which each of them stalls longer.
    pub contention: f64,
    /// Nanoseconds until a thread that was not active begins with its first completion.
    pub activation: u64,
}

impl Costs {
    /// The accelerator of NVIDIA's BlueField-3: 16 cores of 16 threads at 1.8 GHz (MC Sec. II-C); 66 of 598 cycles are
    /// instructions for a written chunk, 113 of 1,084 for a datagram (MC Table I). The contention is fitted: 4 threads
    /// sustain 200 Gbit/s of written chunks of 4 KiB (MC Fig. 13). The paper has no number for an activation.
    #[must_use]
    pub fn bluefield3() -> Self {
        let costs = Costs {
            cores: 16,
            threads_per_core: 16,
            gigahertz: 1.8,
            datagram: Work { instructions: 113.0, stalls: 1084.0 - 113.0 },
            write: Work { instructions: 66.0, stalls: 598.0 - 66.0 },
            contention: 0.0,
            activation: 0,
        };
        let line_rate = 200e9 / 8.0 / 4096.0;
        Costs { contention: costs.fit_contention(costs.write, 4, line_rate), ..costs }
    }

    /// The contention with which `threads` threads of one core, at least 2, complete `rate` chunks a second.
    #[must_use]
    pub fn fit_contention(&self, work: Work, threads: u32, rate: f64) -> f64 {
        let threads = f64::from(threads);
        let cycles = threads * self.gigahertz * 1e9 / rate;
        ((cycles - work.instructions) / work.stalls).ln() / threads.ln()
    }

    /// What a completion takes by this transport.
    #[must_use]
    pub fn work(&self, transport: Transport) -> Work {
        match transport {
            Transport::Datagrams => self.datagram,
            Transport::Writes { .. } => self.write,
        }
    }

    /// Hardware threads of all cores.
    #[must_use]
    pub fn threads(&self) -> u32 {
        self.cores.saturating_mul(self.threads_per_core)
    }

    /// Nanoseconds of one completion while `threads` threads of its core are at work, this one among them.
    #[must_use]
    pub fn nanoseconds(&self, transport: Transport, threads: u32) -> f64 {
        let Work { instructions, stalls } = self.work(transport);
        (instructions + stalls * f64::from(threads.max(1)).powf(self.contention)) / self.gigahertz
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// MC Table I: cycles at 1.8 GHz, of one thread by itself, as 4 KiB chunks in GiB/s.
    #[test]
    fn mc_r_one_thread_takes_the_cycles_of_table_i() {
        let costs = Costs::bluefield3();
        let rate = |transport| 4096.0 / costs.nanoseconds(transport, 1) * 1e9 / f64::from(1 << 30);
        assert_eq!(format!("{:.1}", rate(Transport::Writes { packets: 1 })), "11.5");
        assert_eq!(format!("{:.1}", rate(Transport::Datagrams)), "6.3");
    }

    #[test]
    fn the_contention_is_that_of_the_measurement() {
        let costs = Costs::bluefield3();
        let chunks = 4.0 / costs.nanoseconds(Transport::Writes { packets: 1 }, 4) * 1e9;
        assert!((chunks / (200e9 / 8.0 / 4096.0) - 1.0).abs() < 1e-9, "{chunks}");
        assert!((0.5..0.6).contains(&costs.contention), "{}", costs.contention);
    }
}
