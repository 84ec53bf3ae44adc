//! Emulated clusters on one Linux machine.
//!
//! A [`Lab`] is a star of hosts around one switch. Each host is a process tree in namespaces of its own (network, PID,
//! mount, IPC, UTS), the switch a Linux bridge with IGMP snooping in another network namespace, each link a veth pair
//! with a token bucket at both ends.
//!
//! ```text
//!  owner --lifeline--> switch process ---------------- one pidfd and one control socket per host
//!                      (bridge, ports p1..pN)               |                |
//!                                                       host process h1  host process h2 ...   (PID 1 of its host)
//!                                                       eth0, agent      eth0, agent
//! ```
//!
//! With DPUs (`4x1gbit+dpu`) every host has a second set of namespaces beside it, `h1-dpu`: the port at the switch is
//! the DPU's, and a veth pair with token buckets of its own, as fast as PCIe is beside a NIC, joins DPU and host. The
//! DPU routes for its host, which reaches the others through it under the addresses that hosts have in any lab.
//!
//! ```text
//!  switch p1 ---- eth0 [h1-dpu, 10.77.1.1, routes] pcie0 ---- eth0 [h1, 10.77.0.1]
//! ```
//!
//! Invariants:
//! - Nothing has a name outside the lab's namespaces: no `ip netns`, no interface, no firewall rule of the machine. A
//!   lab ends with its processes, and those end with the switch process, which ends with its owner (see `switch`).
//! - Hosts reach each other through the switch and through files, never through shared memory, abstract sockets,
//!   process ids or cross-memory attach.
//! - Every host has temporary files of its own, in the directory that `TMPDIR` names for its programs: these name files
//!   by process ids, and what runs alike on all hosts has the same ids there. All else, `/tmp` too, is the machine's.
//! - As on real networks, joining a multicast group takes effect a little after the call returns: when the membership
//!   report reaches the switch.
//! - Counters are the queueing disciplines' own, never corrected.
//!
//! The switch and host processes are the calling program, executed again: its `main` starts with
//! [`holder_main_if_requested`].
//!
//! Never does: changing anything of the machine's own network, raising privileges (unprivileged callers get a user
//! namespace), keeping state other than the state file of a detached lab.

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

pub use counters::{PortCounters, Traffic};
pub use error::{LabError, SetupFailure};
pub use holder::holder_main_if_requested;
pub use lab::{Lab, LabSummary, list};
pub use node::Node;
pub use port::free_port;
pub use probe::{Check, probe};
pub use spec::{LabSpec, LinkLimits, Loss, LossOf, SpecError};
