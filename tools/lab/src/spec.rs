//! The shape of a lab: hosts, link rate, MTU, loss. Pure data, no IO.

use crate::node::{LabNode, MAX_HOSTS};
use outboard_units::{Fraction, Rate, UnitError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use thiserror::Error;

/// Bytes that a token bucket holds, at both ends of every link.
pub(crate) const BURST_BYTES: u32 = 64 * 1024;
/// Largest burst of payload that TCP passes down at once (`gso_max_size`). Such a burst fits a token bucket, packet
/// headers included. The bucket then passes the burst whole, like an adapter that segments. The bucket would split a
/// larger burst into packets, each with a timer, at several times the processor time.
pub(crate) const SEGMENTED_BURST_BYTES: u32 = 60_000;
/// Most bytes that wait in front of a token bucket before it drops.
pub(crate) const QUEUE_LIMIT_BYTES: u32 = 1024 * 1024;
/// Smallest rate. `tc` takes rates in bits and the kernel keeps bytes; slower links are useless.
const MIN_RATE: u64 = 8_000;
/// One terabit per second. At higher rates the kernel's 64-bit nanosecond arithmetic loses precision.
const MAX_RATE: u64 = 1_000_000_000_000;
/// Smallest MTU at which IPv4 multicast works on a host without surprises.
const MIN_MTU: u32 = 256;
/// A whole packet must fit the token bucket.
const MAX_MTU: u32 = 64_000;
const DEFAULT_MTU: u32 = 1_500;
const BILLIONTHS_PER_MILLIONTH: u64 = 1_000;

/// The rate that means no limit.
const UNLIMITED: &str = "0";

/// Default ratio of the rate between host and DPU to the rate of the switch's links.
const PCIE_FACTOR: u64 = 4;
/// Suffix of the shape of a lab with DPUs.
const DPU_SUFFIX: &str = "+dpu";

/// Shape of a lab: `HOSTSxRATE`, such as `4x1gbit`, `16x500mbit` or `2x2.5gbit`, and options. The links of `4x0` have
/// no rate limit. `4x1gbit+dpu` gives every host a DPU, which has the host's switch port ([`crate::LabNode`]).
///
/// Hosts are numbered from 1 and called `h1`, `h2`, ..., their DPUs `h1-dpu`, `h2-dpu`, ...
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabSpec {
    hosts: u16,
    /// 0 means no limit, as in `pcie_bits_per_s`.
    rate_bits_per_s: u64,
    mtu: u32,
    loss: Option<PacketLoss>,
    /// Rate of the links between hosts and DPUs, if there are DPUs.
    pcie_bits_per_s: Option<u64>,
}

impl LabSpec {
    /// A lab of `hosts` hosts (1 ..= 250) with links of `rate_bits_per_s`, 0 meaning no limit, and an MTU of 1500.
    pub fn new(hosts: u16, rate_bits_per_s: u64) -> Result<Self, SpecError> {
        if !(1..=MAX_HOSTS).contains(&hosts) {
            return Err(SpecError::Hosts { hosts: u64::from(hosts) });
        }
        if rate_bits_per_s != 0 && !(MIN_RATE..=MAX_RATE).contains(&rate_bits_per_s) {
            return Err(SpecError::RateRange { bits_per_s: rate_bits_per_s });
        }
        Ok(Self { hosts, rate_bits_per_s, mtu: DEFAULT_MTU, loss: None, pcie_bits_per_s: None })
    }

    /// Sets the MTU of every link, in bytes of IP packet (256 ..= 64000).
    pub fn with_mtu(mut self, mtu: u32) -> Result<Self, SpecError> {
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(SpecError::Mtu { mtu });
        }
        self.mtu = mtu;
        Ok(self)
    }

    /// Makes the switch drop packets at random; `None` means no loss.
    pub fn with_loss(mut self, loss: Option<PacketLoss>) -> Self {
        self.loss = loss;
        self
    }

    /// Gives every host a DPU with a link of `rate_bits_per_s`; `None` means four times the rate of the switch's links.
    pub fn with_dpus(mut self, rate_bits_per_s: Option<u64>) -> Result<Self, SpecError> {
        let rate = rate_bits_per_s.unwrap_or((self.rate_bits_per_s * PCIE_FACTOR).min(MAX_RATE));
        let unlimited = rate_bits_per_s.is_none() && rate == 0;
        if !unlimited && !(MIN_RATE..=MAX_RATE).contains(&rate) {
            return Err(SpecError::RateRange { bits_per_s: rate });
        }
        self.pcie_bits_per_s = Some(rate);
        Ok(self)
    }

    /// The limits of the links between hosts and DPUs, if there are DPUs.
    pub fn pcie(&self) -> Option<LinkLimits> {
        self.pcie_bits_per_s.map(|rate_bits_per_s| LinkLimits { rate_bits_per_s, mtu: self.mtu })
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u16 {
        self.hosts
    }

    /// The random loss in the switch.
    pub fn loss(&self) -> Option<PacketLoss> {
        self.loss
    }

    /// The limits of every link of the lab.
    pub fn link(&self) -> LinkLimits {
        LinkLimits { rate_bits_per_s: self.rate_bits_per_s, mtu: self.mtu }
    }

    /// IPv4 address of host `host` (1-based).
    ///
    /// # Panics
    /// If the lab has no such host.
    pub fn address(&self, host: u16) -> Ipv4Addr {
        assert!((1..=self.hosts).contains(&host), "no host {host} in a lab of {}", self.hosts);
        LabNode::Host(host).address()
    }

    /// The host or DPU called `name`: its name (`h3`, `h3-dpu`) or its address (`10.77.0.3`, `10.77.1.3`).
    pub fn node(&self, name: &str) -> Option<LabNode> {
        LabNode::called(name).filter(|node| node.number() <= self.hosts && (!node.is_dpu() || self.pcie().is_some()))
    }

    /// All hosts, then their DPUs.
    pub(crate) fn nodes(&self) -> impl Iterator<Item = LabNode> {
        let dpus = self.pcie_bits_per_s.map_or(0, |_| self.hosts);
        (1..=self.hosts).map(LabNode::Host).chain((1..=dpus).map(LabNode::Dpu))
    }

    /// The node at the switch's port of host `host`.
    pub(crate) fn at_port(&self, host: u16) -> LabNode {
        if self.pcie_bits_per_s.is_some() { LabNode::Dpu(host) } else { LabNode::Host(host) }
    }
}

/// The capacity of one link in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkLimits {
    rate_bits_per_s: u64,
    mtu: u32,
}

impl LinkLimits {
    /// Rate of the token bucket; `None` means no limit. The rate counts Ethernet headers, not preamble and frame check
    /// sequence.
    pub fn rate_bits_per_s(&self) -> Option<u64> {
        (self.rate_bits_per_s > 0).then_some(self.rate_bits_per_s)
    }

    /// Milliseconds that `bits` bits take at the rate; 0 without limit.
    pub fn milliseconds(&self, bits: f64) -> f64 {
        self.rate_bits_per_s().map_or(0.0, |rate| bits / rate as f64 * 1e3)
    }

    /// Bytes that an idle link passes before the rate limit takes effect.
    pub fn burst_bytes(&self) -> u32 {
        BURST_BYTES
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }
}

/// Random loss in the switch, drawn independently for every packet and receiving port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PacketLoss {
    parts_per_million: u32,
    of: LossScope,
}

impl PacketLoss {
    /// Loss of this part of the packets in the scope `of`.
    pub fn new(lost: Fraction, of: LossScope) -> Self {
        // A fraction has at most a million millionths.
        Self { parts_per_million: (lost.in_billionths() / BILLIONTHS_PER_MILLIONTH) as u32, of }
    }

    /// Loss of `percent` percent of the packets in the scope `of`; more than 100 counts as 100.
    pub fn percent(percent: u32, of: LossScope) -> Self {
        Self::new(Fraction::billionths(u64::from(percent) * 10_000_000), of)
    }

    /// Lost packets per million.
    pub fn parts_per_million(&self) -> u32 {
        self.parts_per_million
    }

    /// The packets that may be lost.
    pub fn of(&self) -> LossScope {
        self.of
    }
}

/// Packets that the switch may drop. It never drops IGMP: group membership belongs to the lab, not to the test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossScope {
    /// IPv4 packets to a multicast group.
    Multicast,
    /// Every IPv4 packet.
    All,
}

impl fmt::Display for LossScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Multicast => "multicast",
            Self::All => "all",
        })
    }
}

/// Why a lab cannot be described; the message names the valid values.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the messages are the documentation")]
pub enum SpecError {
    #[error("lab '{text}' is not HOSTSxRATE with a rate in kbit, mbit or gbit, or 0, such as 4x1gbit or 4x0")]
    Shape { text: String },
    #[error("a lab has 1 to 250 hosts, not {hosts}")]
    Hosts { hosts: u64 },
    #[error("a link carries 8kbit to 1000gbit per second, or what it can with 0; not {bits_per_s} bit")]
    RateRange { bits_per_s: u64 },
    #[error("the MTU of a lab is 256 to 64000 bytes, not {mtu}")]
    Mtu { mtu: u32 },
}

impl FromStr for LabSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let shape = || SpecError::Shape { text: text.to_owned() };
        let (links, dpus) = text.strip_suffix(DPU_SUFFIX).map_or((text, false), |links| (links, true));
        let (hosts, rate) = links.split_once('x').ok_or_else(shape)?;
        let hosts: u64 = hosts.parse().map_err(|_| shape())?;
        let limit = |rate: &str| match rate.parse::<Rate>() {
            Ok(rate) => Ok(rate.in_bits_per_second()),
            Err(UnitError::ZeroRate) => Err(SpecError::RateRange { bits_per_s: 0 }),
            Err(UnitError::Syntax { .. } | UnitError::Range { .. } | UnitError::Large { .. }) => Err(shape()),
        };
        let rate = if rate == UNLIMITED { 0 } else { limit(rate)? };
        let hosts = u16::try_from(hosts).map_err(|_| SpecError::Hosts { hosts })?;
        let spec = Self::new(hosts, rate)?;
        if dpus { spec.with_dpus(None) } else { Ok(spec) }
    }
}

/// Formats the shape without options, in the syntax that parsing accepts.
impl fmt::Display for LabSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dpus = if self.pcie_bits_per_s.is_some() { DPU_SUFFIX } else { "" };
        match self.link().rate_bits_per_s() {
            Some(rate) => write!(f, "{}x{:#}{dpus}", self.hosts, Rate::bits_per_second(rate)),
            None => write!(f, "{}x{UNLIMITED}{dpus}", self.hosts),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_parse_and_print_alike() {
        for (text, hosts, rate) in [
            ("4x1gbit", 4, 1_000_000_000),
            ("16x500mbit", 16, 500_000_000),
            ("1x64kbit", 1, 64_000),
            ("250x2.5gbit", 250, 2_500_000_000),
            ("4x1gbit+dpu", 4, 1_000_000_000),
            ("4x0", 4, 0),
            ("2x0+dpu", 2, 0),
        ] {
            let spec: LabSpec = text.parse().unwrap();
            assert_eq!((spec.hosts(), spec.link().rate_bits_per_s().unwrap_or(0)), (hosts, rate));
            assert_eq!(spec.link().milliseconds(rate as f64), if rate > 0 { 1e3 } else { 0.0 });
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn wrong_shapes_say_what_is_right() {
        for text in
            ["", "4", "4x", "x1gbit", "4x1gbps", "4x-1gbit", "4xinfgbit", "4x1e3mbit", "4 x1gbit", "4x1gbit+", "4+dpu"]
        {
            assert_eq!(text.parse::<LabSpec>(), Err(SpecError::Shape { text: text.to_owned() }));
        }
        assert_eq!("0x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 0 }));
        assert_eq!("251x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 251 }));
        assert_eq!("70000x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 70_000 }));
        assert_eq!("4x1".parse::<LabSpec>(), Err(SpecError::RateRange { bits_per_s: 1 }));
        assert_eq!("4x0gbit".parse::<LabSpec>(), Err(SpecError::RateRange { bits_per_s: 0 }));
        assert!("4x1gbit".parse::<LabSpec>().unwrap().with_mtu(100).is_err());
    }

    #[test]
    fn a_dpu_has_a_link_four_times_as_fast_or_as_asked_for() {
        let spec: LabSpec = "2x1gbit+dpu".parse().unwrap();
        assert_eq!(spec.pcie().and_then(|link| link.rate_bits_per_s()), Some(4_000_000_000));
        let slow = spec.clone().with_dpus(Some(500_000_000)).unwrap();
        assert_eq!(slow.pcie().and_then(|link| link.rate_bits_per_s()), Some(500_000_000));
        assert!(spec.clone().with_dpus(Some(0)).is_err());
        assert_eq!(spec.nodes().map(|node| node.to_string()).collect::<Vec<_>>(), ["h1", "h2", "h1-dpu", "h2-dpu"]);
        assert_eq!("2x1gbit".parse::<LabSpec>().unwrap().pcie(), None);
    }

    #[test]
    fn loss_is_counted_in_millionths() {
        let parts = |text: &str| text.parse().map(|lost| PacketLoss::new(lost, LossScope::All).parts_per_million());
        assert_eq!(parts("5%"), Ok(50_000));
        assert_eq!(parts("0.1%"), Ok(1_000));
        assert_eq!(parts("0.05"), Ok(50_000));
        assert_eq!(parts("100%"), Ok(1_000_000));
        assert_eq!(
            PacketLoss::percent(5, LossScope::All),
            PacketLoss { parts_per_million: 50_000, of: LossScope::All }
        );
    }

    #[test]
    fn hosts_go_by_name_or_address() {
        let spec: LabSpec = "12x1gbit".parse().unwrap();
        assert_eq!((spec.node("h12"), spec.node("10.77.0.7")), (Some(LabNode::Host(12)), Some(LabNode::Host(7))));
        assert_eq!(spec.node("h3-dpu"), None);
        let spec = spec.with_dpus(None).unwrap();
        assert_eq!((spec.node("h3-dpu"), spec.node("10.77.1.3")), (Some(LabNode::Dpu(3)), Some(LabNode::Dpu(3))));
        assert_eq!(spec.node("h13-dpu"), None);
        for wrong in ["h13", "h0", "h01", "h+1", "12", "h", "10.77.0.13", "10.77.1.13", "localhost"] {
            assert_eq!(spec.node(wrong), None, "{wrong}");
        }
    }
}
