//! UDP over IPv4 multicast for datapath threads (MC-1, MC-9, MC-10, MC-11), many datagrams per system call both ways.
//!
//! A [`MulticastSender`] and a [`MulticastReceiver`] are independent, and each can move to its own thread. Datagrams
//! may be lost, repeated or reordered; the protocol recovers them. Never joins a group by itself, never reads a header,
//! never allocates per datagram.

mod interface;
mod receiver;
mod sender;

use std::net::Ipv4Addr;

pub use interface::{Interface, InterfaceError};
pub use outboard_proto::Reach;
pub use receiver::{Datagram, MulticastReceiver, ReceiveBatch, ReceiveOutcome, WaitOutcome, Waker};
pub use sender::{MulticastSender, SendOutcome};

/// UDP port of all multicast datagrams unless set otherwise. IANA has not assigned it.
pub const DEFAULT_PORT: u16 = 4793;
/// Bytes of the IPv4 and UDP headers before each datagram.
pub const IP_UDP_HEADERS: usize = 28;
/// Longest UDP datagram over IPv4, and longest burst of one segmented send, in bytes.
pub const MAX_DATAGRAM: usize = 65_507;

#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MulticastSettings {
    pub interface: Interface,
    /// UDP port, which must be equal on all hosts.
    pub port: u16,
    /// How far a sender's datagrams go before any call of [`MulticastSender::set_reach`].
    pub reach: Reach,
    /// Whether a sender waits while its socket buffer is full. A sender that does not wait reports congestion.
    pub waits: bool,
    /// Requested socket buffer of each receiver and sender, in bytes; the kernel may grant less.
    pub buffer_bytes: usize,
}

impl MulticastSettings {
    /// Defaults for `interface`: port [`DEFAULT_PORT`], no routers, reach `Reach::Network`, waiting, 8 MiB of buffer.
    pub fn new(interface: Interface) -> Self {
        Self { interface, port: DEFAULT_PORT, reach: Reach::Network, waits: true, buffer_bytes: 8 << 20 }
    }
}

/// Address of a multicast channel: one of the 262,144 in 239.192.0.0/14, the organization-local scope of RFC 2365.
///
/// A bijective mix of bits spreads the channels. Two channels may still share an address, so a datagram must name its
/// channel.
pub fn channel_address(channel: u64) -> Ipv4Addr {
    // Finalizer of SplitMix64 (Steele, Lea, Flood 2014): every input bit affects every output bit.
    let mut mixed = channel.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^= mixed >> 31;
    let host = (mixed >> 46) as u32;
    Ipv4Addr::from_bits(Ipv4Addr::new(239, 192, 0, 0).to_bits() | host)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_stay_in_scope_and_spread() {
        let addresses: std::collections::HashSet<_> = (0..1000).map(channel_address).collect();
        assert!(addresses.len() > 990, "{} of 1000 addresses differ", addresses.len());
        for address in addresses {
            let [a, b, ..] = address.octets();
            assert!(a == 239 && (192..196).contains(&b), "{address} is outside 239.192.0.0/14");
        }
    }
}
