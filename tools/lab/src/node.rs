//! The machines of a lab: hosts and their DPUs, by name and address.
//!
//! Labs share no network, so every lab uses the same names and addresses.

use std::fmt;
use std::net::Ipv4Addr;

/// The addresses of a lab end in 1 ..= 250.
pub(crate) const MAX_HOSTS: u16 = 250;
const DPU_SUFFIX: &str = "-dpu";

/// A machine of a lab, numbered from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LabNode {
    /// `h3`, at 10.77.0.3.
    Host(u16),
    /// `h3-dpu`, the DPU of host 3, at 10.77.1.3 towards both the switch and its host.
    Dpu(u16),
}

impl LabNode {
    /// Number of the host, or of the DPU's host.
    pub fn number(self) -> u16 {
        match self {
            LabNode::Host(number) | LabNode::Dpu(number) => number,
        }
    }

    /// Whether the node is a DPU.
    pub fn is_dpu(self) -> bool {
        matches!(self, LabNode::Dpu(_))
    }

    /// IPv4 address of the node.
    ///
    /// # Panics
    /// If the number exceeds that of every possible host.
    pub fn address(self) -> Ipv4Addr {
        let last = u8::try_from(self.number()).expect("host numbers end at 250");
        Ipv4Addr::new(10, 77, u8::from(self.is_dpu()), last)
    }

    /// The node that has this name or address in any lab.
    pub(crate) fn called(name: &str) -> Option<LabNode> {
        if let Ok(parsed) = name.parse::<Ipv4Addr>() {
            let nodes = (1..=MAX_HOSTS).flat_map(|number| [LabNode::Host(number), LabNode::Dpu(number)]);
            return nodes.into_iter().find(|node| node.address() == parsed);
        }
        let (name, dpu) = name.strip_suffix(DPU_SUFFIX).map_or((name, false), |name| (name, true));
        let digits = name.strip_prefix('h')?;
        let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
        let number = digits.parse().ok().filter(|number| canonical && (1..=MAX_HOSTS).contains(number))?;
        Some(if dpu { LabNode::Dpu(number) } else { LabNode::Host(number) })
    }

    /// The deterministic, locally administered Ethernet address of `eth0`.
    pub(crate) fn mac_address(self) -> String {
        mac(if self.is_dpu() { 0x4e } else { 0x4d }, self.number())
    }
}

/// Ethernet address of a DPU's port towards host `host`.
pub(crate) fn pcie_mac_address(host: u16) -> String {
    mac(0x4f, host)
}

fn mac(kind: u8, number: u16) -> String {
    let [high, low] = number.to_be_bytes();
    format!("02:0b:0a:{kind:02x}:{high:02x}:{low:02x}")
}

impl fmt::Display for LabNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LabNode::Host(number) => write!(f, "h{number}"),
            LabNode::Dpu(number) => write!(f, "h{number}{DPU_SUFFIX}"),
        }
    }
}
