//! Emulated clusters on one Linux machine.
//!
//! A [`Lab`] is a star of hosts around one switch. Each host is a process tree in separate namespaces (network, PID,
//! mount, IPC, UTS). The switch is a Linux bridge with IGMP snooping in another network namespace. Each link is a veth
//! pair with a token bucket at both ends.
//!
//! ```text
//!  owner --lifeline--> switch process ---------------- one pidfd and one control socket per host
//!                      (bridge, ports p1..pN)               |                |
//!                                                       host process h1  host process h2 ...   (PID 1 of its host)
//!                                                       eth0, agent      eth0, agent
//! ```
//!
//! With DPUs (`4x1gbit+dpu`) every host has a DPU beside it: a second set of namespaces, `h1-dpu`. The port at the
//! switch then belongs to the DPU. Another veth pair with token buckets joins DPU and host. This pair is faster than
//! the port, as PCIe is faster than a NIC. The DPU routes for its host, which reaches other hosts through the DPU under
//! the usual addresses.
//!
//! ```text
//!  switch p1 ---- eth0 [h1-dpu, 10.77.1.1, routes] pcie0 ---- eth0 [h1, 10.77.0.1]
//! ```
//!
//! Invariants:
//! - No name exists outside the lab's namespaces: no `ip netns`, no interface, no firewall rule of the machine. A lab
//!   ends when its processes end. They end with the switch process, which ends with the lab's owner (see `switch`).
//! - Hosts reach each other through the switch and through files, never through shared memory, abstract sockets,
//!   process ids or cross-memory attach.
//! - Every host has its own directory for temporary files, which `TMPDIR` names for the host's programs. Programs name
//!   such files by process ids, and equal programs on all hosts have equal ids. Other directories for files, such as
//!   `/tmp`, are the machine's.
//! - As on real networks, joining a multicast group takes effect shortly after the call returns, when the membership
//!   report reaches the switch.
//! - Counters are read from the queueing disciplines, and never corrected.
//!
//! The switch and host processes are new executions of the calling program, whose `main` starts with
//! [`holder_main_if_requested`].
//! Never changes the machine's own network or raises privileges; unprivileged callers get a user namespace. Keeps no
//! state other than the state file of a detached lab.

mod counters;
mod error;
mod exec;
mod holder;
mod host;
mod lab;
mod message;
mod node;
mod port;
mod probe;
mod session;
mod spec;
mod state;
mod switch;
mod tools;

pub use counters::{LinkTraffic, PortCounters};
pub use error::{LabError, SetupFailure};
pub use holder::holder_main_if_requested;
pub use lab::{Lab, LabSummary, list};
pub use node::LabNode;
pub use port::free_port;
pub use probe::{LabCheck, probe};
pub use spec::{LabSpec, LinkLimits, LossScope, PacketLoss, SpecError};
