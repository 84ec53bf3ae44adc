//! What a lab shall look like: hosts, link rate, MTU, loss. Pure data, no IO.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::Ipv4Addr;
use std::str::FromStr;
use thiserror::Error;

/// Bytes a token bucket holds, at both ends of every link.
pub(crate) const BURST_BYTES: u32 = 64 * 1024;
/// Bytes that may wait in front of a token bucket before it drops.
pub(crate) const QUEUE_LIMIT_BYTES: u32 = 1024 * 1024;
/// The addresses of a lab end in 1 ..= 250.
const MAX_HOSTS: u16 = 250;
/// `tc` takes rates in bits and the kernel keeps bytes; slower links than this are of no use.
const MIN_RATE: u64 = 8_000;
/// One terabit per second: beyond it the kernel's 64-bit nanosecond arithmetic loses precision.
const MAX_RATE: u64 = 1_000_000_000_000;
/// IPv4's minimum for a host that takes part in multicast without surprises.
const MIN_MTU: u32 = 256;
/// A whole packet must fit the token bucket.
const MAX_MTU: u32 = 64_000;
const DEFAULT_MTU: u32 = 1_500;
const PARTS_PER_PERCENT: f64 = 10_000.0;

/// Shape of a lab: `HOSTSxRATE`, such as `4x1gbit`, `16x500mbit` or `2x2.5gbit`, and options.
///
/// Hosts are numbered from 1 and called `h1`, `h2`, ...
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LabSpec {
    hosts: u16,
    rate_bits_per_s: u64,
    mtu: u32,
    loss: Option<Loss>,
}

impl LabSpec {
    /// A lab of `hosts` hosts (1 ..= 250) with links of `rate_bits_per_s` and an MTU of 1500.
    pub fn new(hosts: u16, rate_bits_per_s: u64) -> Result<Self, SpecError> {
        if !(1..=MAX_HOSTS).contains(&hosts) {
            return Err(SpecError::Hosts { hosts: u64::from(hosts) });
        }
        if !(MIN_RATE..=MAX_RATE).contains(&rate_bits_per_s) {
            return Err(SpecError::RateRange { bits_per_s: rate_bits_per_s });
        }
        Ok(Self { hosts, rate_bits_per_s, mtu: DEFAULT_MTU, loss: None })
    }

    /// Sets the MTU of every link, in bytes of IP packet (256 ..= 64000).
    pub fn with_mtu(mut self, mtu: u32) -> Result<Self, SpecError> {
        if !(MIN_MTU..=MAX_MTU).contains(&mtu) {
            return Err(SpecError::Mtu { mtu });
        }
        self.mtu = mtu;
        Ok(self)
    }

    /// Lets the switch drop packets at random; `None` for a lossless one.
    pub fn with_loss(mut self, loss: Option<Loss>) -> Self {
        self.loss = loss;
        self
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u16 {
        self.hosts
    }

    /// The random loss in the switch.
    pub fn loss(&self) -> Option<Loss> {
        self.loss
    }

    /// The limits that every link of the lab has.
    pub fn link(&self) -> LinkLimits {
        LinkLimits { rate_bits_per_s: self.rate_bits_per_s, mtu: self.mtu }
    }

    /// IPv4 address of host `host` (1-based).
    ///
    /// # Panics
    /// If the lab has no such host.
    pub fn address(&self, host: u16) -> Ipv4Addr {
        assert!((1..=self.hosts).contains(&host), "no host {host} in a lab of {}", self.hosts);
        address(host)
    }

    /// Number of the host called `name`: its host name (`h3`) or its address (`10.77.0.3`).
    pub fn host_number(&self, name: &str) -> Option<u16> {
        host_number(name).filter(|host| *host <= self.hosts)
    }
}

/// IPv4 address of a host in any lab: labs share no network, so that addresses may repeat.
pub(crate) fn address(host: u16) -> Ipv4Addr {
    let last = u8::try_from(host).expect("host numbers end at 250");
    Ipv4Addr::new(10, 77, 0, last)
}

/// Number of the host called `name` in any lab.
pub(crate) fn host_number(name: &str) -> Option<u16> {
    let digits = match name.parse::<Ipv4Addr>() {
        Ok(parsed) => return (1..=MAX_HOSTS).find(|host| address(*host) == parsed),
        Err(_) => name.strip_prefix('h')?,
    };
    let canonical = digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|host| canonical && (1..=MAX_HOSTS).contains(host))
}

/// What one link can carry, in each direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkLimits {
    rate_bits_per_s: u64,
    mtu: u32,
}

impl LinkLimits {
    /// Rate of the token bucket, Ethernet headers included, preamble and frame check sequence not.
    pub fn rate_bits_per_s(&self) -> u64 {
        self.rate_bits_per_s
    }

    /// Bytes that an idle link lets through before the rate limit bites.
    pub fn burst_bytes(&self) -> u32 {
        BURST_BYTES
    }

    /// Bytes that wait at each end of a link before it drops.
    pub fn queue_bytes(&self) -> u32 {
        QUEUE_LIMIT_BYTES
    }

    /// Largest IP packet, in bytes.
    pub fn mtu(&self) -> u32 {
        self.mtu
    }
}

/// Random loss in the switch, drawn for every packet and every receiving port on its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    parts_per_million: u32,
    of: LossOf,
}

impl Loss {
    /// Loss of `percent` (0 ..= 100) of the packets in `of`.
    pub fn new(percent: f64, of: LossOf) -> Result<Self, SpecError> {
        if !(0.0..=100.0).contains(&percent) {
            return Err(SpecError::Loss { percent: percent.to_string() });
        }
        Ok(Self { parts_per_million: (percent * PARTS_PER_PERCENT).round() as u32, of })
    }

    /// Parses a percentage with or without its sign: `5%`, `0.1`.
    pub fn parse(percent: &str, of: LossOf) -> Result<Self, SpecError> {
        let number = percent.strip_suffix('%').unwrap_or(percent);
        let parsed = number.parse().map_err(|_| SpecError::Loss { percent: percent.to_owned() })?;
        Self::new(parsed, of)
    }

    /// Packets lost of a million.
    pub fn parts_per_million(&self) -> u32 {
        self.parts_per_million
    }

    /// Which packets may be lost.
    pub fn of(&self) -> LossOf {
        self.of
    }
}

/// Which packets the switch may drop. IGMP is never dropped: group membership is the lab's, not the test's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LossOf {
    /// IPv4 packets to a multicast group.
    Multicast,
    /// Every IPv4 packet.
    All,
}

impl FromStr for LossOf {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "multicast" => Ok(Self::Multicast),
            "all" => Ok(Self::All),
            _ => Err(SpecError::LossOf { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for LossOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Multicast => "multicast",
            Self::All => "all",
        })
    }
}

/// A lab that cannot be asked for, and what may be.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum SpecError {
    /// The text is not `HOSTSxRATE`.
    #[error("lab '{text}' is not HOSTSxRATE with a rate in kbit, mbit or gbit, such as 4x1gbit")]
    Shape {
        /// What was given.
        text: String,
    },
    /// Too few or too many hosts.
    #[error("a lab has 1 to 250 hosts, not {hosts}")]
    Hosts {
        /// What was given.
        hosts: u64,
    },
    /// A rate that the token buckets cannot keep.
    #[error("a link carries 8kbit to 1000gbit per second, not {bits_per_s} bit")]
    RateRange {
        /// What was given.
        bits_per_s: u64,
    },
    /// An MTU that IPv4 or the token bucket cannot take.
    #[error("the MTU of a lab is 256 to 64000 bytes, not {mtu}")]
    Mtu {
        /// What was given.
        mtu: u32,
    },
    /// Not a percentage.
    #[error("loss is a percentage from 0% to 100%, not '{percent}'")]
    Loss {
        /// What was given.
        percent: String,
    },
    /// Not a class of packets that may be lost.
    #[error("loss is of 'multicast' or of 'all' packets, not of '{text}'")]
    LossOf {
        /// What was given.
        text: String,
    },
}

const UNITS: [(&str, u64); 3] = [("gbit", 1_000_000_000), ("mbit", 1_000_000), ("kbit", 1_000)];

impl FromStr for LabSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let shape = || SpecError::Shape { text: text.to_owned() };
        let (hosts, rate) = text.split_once('x').ok_or_else(shape)?;
        let hosts: u64 = hosts.parse().map_err(|_| shape())?;
        let (number, unit) =
            UNITS.iter().find_map(|(name, unit)| Some((rate.strip_suffix(name)?, unit))).ok_or_else(shape)?;
        if !number.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
            return Err(shape());
        }
        let number: f64 = number.parse().map_err(|_| shape())?;
        let rate = (number * *unit as f64).round() as u64;
        let hosts = u16::try_from(hosts).map_err(|_| SpecError::Hosts { hosts })?;
        Self::new(hosts, rate)
    }
}

/// The shape alone, in the form that parses: options are not part of it.
impl fmt::Display for LabSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, unit) = UNITS.iter().find(|(_, unit)| self.rate_bits_per_s >= *unit).copied().unwrap_or(UNITS[2]);
        write!(f, "{}x{}{name}", self.hosts, self.rate_bits_per_s as f64 / unit as f64)
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
        ] {
            let spec: LabSpec = text.parse().unwrap();
            assert_eq!((spec.hosts(), spec.link().rate_bits_per_s()), (hosts, rate));
            assert_eq!(spec.to_string(), text);
        }
    }

    #[test]
    fn wrong_shapes_say_what_is_right() {
        for text in ["", "4", "4x", "x1gbit", "4x1", "4x1gbps", "4x-1gbit", "4xinfgbit", "4x1e3mbit", "4 x1gbit"] {
            assert_eq!(text.parse::<LabSpec>(), Err(SpecError::Shape { text: text.to_owned() }));
        }
        assert_eq!("0x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 0 }));
        assert_eq!("251x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 251 }));
        assert_eq!("70000x1gbit".parse::<LabSpec>(), Err(SpecError::Hosts { hosts: 70_000 }));
        assert_eq!("4x0gbit".parse::<LabSpec>(), Err(SpecError::RateRange { bits_per_s: 0 }));
        assert!("4x1gbit".parse::<LabSpec>().unwrap().with_mtu(100).is_err());
    }

    #[test]
    fn loss_is_a_percentage() {
        let parts = |text| Loss::parse(text, LossOf::All).map(|loss| loss.parts_per_million());
        assert_eq!(parts("5%"), Ok(50_000));
        assert_eq!(parts("0.1"), Ok(1_000));
        assert_eq!(parts("100%"), Ok(1_000_000));
        for wrong in ["-1%", "101%", "five", "", "%", "NaN"] {
            assert!(parts(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn hosts_go_by_name_or_address() {
        let spec: LabSpec = "12x1gbit".parse().unwrap();
        assert_eq!(spec.host_number("h12"), Some(12));
        assert_eq!(spec.host_number("10.77.0.7"), Some(7));
        for wrong in ["h13", "h0", "h01", "h+1", "12", "h", "10.77.0.13", "10.77.1.1", "localhost"] {
            assert_eq!(spec.host_number(wrong), None, "{wrong}");
        }
    }
}
