//! Settings of every kind of run: the cluster, the ranks on its hosts, the systems to compare, the repetitions.

use crate::options::check_count;
use crate::{BenchCall, Collective, Layout, OptionError, Peer};
use outboard_lab::LabSpec;
use std::path::PathBuf;
use std::time::Duration;

/// Repetitions and rounds beyond this are a typing error.
const MAX_REPETITIONS: u32 = 100_000;
/// With more ranks than this on one host, an emulated cluster measures the scheduler.
const MAX_RANKS_PER_HOST: u32 = 64;

/// The cluster, ranks and repetitions with which systems are measured beside one another.
#[derive(Clone, Debug)]
pub struct Setup {
    /// The cluster. Its loss is part of the specification.
    pub lab: LabSpec,
    /// Ranks on every host.
    pub ranks_per_host: u32,
    /// How the ranks are assigned to the hosts.
    pub layout: Layout,
    /// MPI libraries measured beside ours.
    pub peers: Vec<Peer>,
    /// Repetitions of each phase, per round.
    pub repetitions: u32,
    /// How often all systems are measured in turn, so that variations of the machine affect all systems.
    pub rounds: u32,
    /// Ranks share core 0, service processes and progress threads have core 1.
    pub comm_core: bool,
    /// How often systems that learn ([`System::learns`](crate::System::learns)) are launched before the measurement.
    /// Each such launch is longer than a measured one.
    pub learn: u32,
    /// Calls are blocking. Progress threads of MPI libraries would have no work, so there are none.
    pub blocking: bool,
    /// The program makes one-sided calls.
    pub one_sided: bool,
    /// The directory in which peers are installed.
    pub peers_dir: PathBuf,
    /// The directory of measuring programs that are built already; other programs are built when they are needed.
    pub programs_dir: Option<PathBuf>,
    /// Longest time of one launch; `None` for a bound computed from the work of the launch.
    pub launch_timeout: Option<Duration>,
    /// Show a progress bar on standard error, where that is a terminal.
    pub progress: bool,
}

impl Setup {
    /// One rank on each host of `lab`, no peers, one round.
    pub fn new(lab: LabSpec, repetitions: u32) -> Self {
        Self {
            lab,
            ranks_per_host: 1,
            layout: Layout::default(),
            peers: Vec::new(),
            repetitions,
            rounds: 1,
            comm_core: false,
            learn: 0,
            blocking: false,
            one_sided: false,
            peers_dir: default_peers_dir(),
            programs_dir: None,
            launch_timeout: None,
            progress: true,
        }
    }

    /// Number of ranks.
    pub fn ranks(&self) -> u32 {
        u32::from(self.lab.hosts()) * self.ranks_per_host
    }

    /// A call of all ranks.
    pub(crate) fn call(&self, collective: Collective, bytes: u64) -> BenchCall {
        let (hosts, ranks_per_host) = (u32::from(self.lab.hosts()), self.ranks_per_host);
        BenchCall { collective, hosts, ranks_per_host, bytes, silent_rank: false }
    }

    /// Measured repetitions of all rounds together.
    pub(crate) fn all_repetitions(&self) -> u32 {
        self.repetitions * self.rounds
    }

    pub(crate) fn check(&self) -> Result<(), OptionError> {
        let most = [
            ("repetitions", MAX_REPETITIONS, self.repetitions),
            ("rounds", MAX_REPETITIONS, self.rounds),
            ("ranks per host", MAX_RANKS_PER_HOST, self.ranks_per_host),
        ];
        most.into_iter().try_for_each(|(what, most, given)| check_count(what, most.into(), given.into()))
    }
}

/// `$XDG_CACHE_HOME/outboard`, by default `~/.cache/outboard`; `None` if neither variable is absolute.
pub fn cache_dir() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let cache = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")));
    cache.map(|cache| cache.join("outboard"))
}

/// The directory in which peers are installed, inside [`cache_dir`].
pub fn default_peers_dir() -> PathBuf {
    cache_dir().unwrap_or_else(|| std::env::temp_dir().join("outboard")).join("peers")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_setups_are_refused() {
        let good = Setup::new("4x1gbit".parse().unwrap(), 20);
        assert_eq!(good.check(), Ok(()));
        let bad = |change: fn(&mut Setup)| {
            let mut setup = good.clone();
            change(&mut setup);
            setup.check().unwrap_err()
        };
        let none = |what, most| OptionError::Count { what, most, given: 0 };
        assert_eq!(bad(|s| s.repetitions = 0), none("repetitions", 100_000));
        assert_eq!(bad(|s| s.rounds = 0), none("rounds", 100_000));
        assert_eq!(bad(|s| s.ranks_per_host = 0), none("ranks per host", 64));
    }
}
