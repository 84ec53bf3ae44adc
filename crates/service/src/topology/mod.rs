//! Places of ranks (SP-1): node, socket and core, by the binding of a rank's process.
//!
//! The machine's layout comes from `/sys`. Sockets and cores are numbered from 0 over the whole machine, like hwloc's
//! logical indices. The layout is read once, at the start. The binding of a process is read each time, since programs
//! may bind themselves late. Places only serve reports: the service process of a rank depends on the host alone (GP-3).

pub(crate) mod host;
mod sysfs;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use outboard_call::codec::{DecodeError, Reader, Writer};
use rustix::process::Pid;
use rustix::thread::CpuSet;
use serde::{Deserialize, Serialize};

/// Socket and core of a processor.
type Position = (u32, u32);

/// The one socket and core that a process is bound to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct CpuBinding {
    /// The socket, or `None` if the process is bound to several.
    pub socket: Option<u32>,
    /// The core, or `None` if the process is bound to several.
    pub core: Option<u32>,
}

impl fmt::Display for CpuBinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.socket, self.core) {
            (Some(socket), Some(core)) => write!(f, "socket {socket} core {core}"),
            (Some(socket), None) => write!(f, "socket {socket}, any core"),
            (None, _) => f.write_str("any socket"),
        }
    }
}

/// Node and place of a rank, as sent to the other members of its groups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    pub node: Arc<str>,
    /// Binding of the rank's process when the rank made its offer for the group.
    pub place: CpuBinding,
}

/// Longest name of a host; longer names are truncated.
const NODE_BYTES: usize = 64;
/// Encodes that a process is bound to no single socket or core.
const SEVERAL: u32 = u32::MAX;

impl Seat {
    /// Appends the seat; a long name is truncated.
    pub fn encode(&self, w: &mut Writer<'_>) {
        w.u32(self.place.socket.unwrap_or(SEVERAL))
            .u32(self.place.core.unwrap_or(SEVERAL))
            .text(&self.node, NODE_BYTES);
    }

    /// Decodes a seat, whose name may be printed on terminals.
    ///
    /// # Errors
    /// The name is too long or not printable, or the bytes end early.
    pub fn decode(r: &mut Reader<'_>) -> Result<Seat, DecodeError> {
        let [socket, core] = [r.u32()?, r.u32()?].map(|number| Some(number).filter(|number| *number != SEVERAL));
        match r.text(NODE_BYTES)? {
            node if node.chars().any(char::is_control) => Err(DecodeError::Value("name of a host")),
            node => Ok(Seat { node: node.into(), place: CpuBinding { socket, core } }),
        }
    }
}

impl fmt::Display for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.node, self.place)
    }
}

/// The host's name, without control characters.
#[must_use]
pub fn node() -> Arc<str> {
    let name = rustix::system::uname();
    name.nodename().to_string_lossy().chars().filter(|c| !c.is_control()).collect::<String>().into()
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuTopology {
    /// Position of each processor, by the operating system's number of the processor.
    positions: BTreeMap<u32, Position>,
}

impl CpuTopology {
    /// Reads `/sys`. If its files are missing, no position is known.
    #[must_use]
    pub fn detect() -> CpuTopology {
        CpuTopology { positions: sysfs::read(sysfs::PROCESSORS.as_ref()) }
    }

    /// Whether the layout of the processors is known.
    #[must_use]
    pub fn is_known(&self) -> bool {
        !self.positions.is_empty()
    }

    /// Socket and core that a process of this machine may run on now.
    #[must_use]
    pub fn binding_of(&self, process: Option<Pid>) -> CpuBinding {
        // Fails if the machine has more processors than the set holds, or the process has ended.
        let Ok(bound) = rustix::thread::sched_getaffinity(process) else { return CpuBinding::default() };
        self.place((0..CpuSet::MAX_CPU).filter(|cpu| bound.is_set(*cpu)).filter_map(|cpu| u32::try_from(cpu).ok()))
    }

    fn place(&self, processors: impl Iterator<Item = u32>) -> CpuBinding {
        // Processors without a known position are ignored.
        let positions: Vec<Position> = processors.filter_map(|cpu| self.positions.get(&cpu).copied()).collect();
        let only = |of: fn(&Position) -> u32| {
            let several: BTreeSet<u32> = positions.iter().map(of).collect();
            several.first().copied().filter(|_| several.len() == 1)
        };
        CpuBinding { socket: only(|position| position.0), core: only(|position| position.1) }
    }
}

impl fmt::Display for CpuTopology {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let count = |of: fn(&Position) -> u32| self.positions.values().map(of).collect::<BTreeSet<_>>().len();
        let (sockets, cores) = (count(|position| position.0), count(|position| position.1));
        let processors = self.positions.len();
        write!(f, "{sockets} sockets, {cores} cores, {processors} processors")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two sockets with two cores of two processors each.
    fn machine() -> CpuTopology {
        let positions = (0..8).map(|cpu| (cpu, (cpu / 4, cpu / 2))).collect();
        CpuTopology { positions }
    }

    #[test]
    fn sp_1_a_place_is_what_all_processors_share() {
        let place = |processors: &[u32]| machine().place(processors.iter().copied());
        assert_eq!(place(&[6, 7]), CpuBinding { socket: Some(1), core: Some(3) });
        assert_eq!(place(&[4, 7]), CpuBinding { socket: Some(1), core: None });
        assert_eq!(place(&[0, 7]), CpuBinding::default());
        assert_eq!(place(&[2, 99]), CpuBinding { socket: Some(0), core: Some(1) });
        assert_eq!(place(&[]), CpuBinding::default());
        assert_eq!(place(&[6, 7]).to_string(), "socket 1 core 3");
        assert_eq!(machine().to_string(), "2 sockets, 4 cores, 8 processors");
    }

    #[test]
    fn sp_1_a_thread_bound_to_one_processor_is_on_one_core() {
        let topology = CpuTopology::detect();
        let allowed = rustix::thread::sched_getaffinity(None).expect("a few processors");
        let first = (0..CpuSet::MAX_CPU).find(|cpu| allowed.is_set(*cpu)).expect("one at least");
        let mut one = CpuSet::new();
        one.set(first);
        let bound = move || {
            rustix::thread::sched_setaffinity(None, &one).expect("allowed");
            topology.binding_of(None)
        };
        let placed = std::thread::spawn(bound).join().expect("no panic");
        assert!(placed.socket.is_some() && placed.core.is_some(), "{placed}");
    }
}
