//! TCP ports of this machine for several processes of a test, chosen before the processes start.
//!
//! Never returns a port that the kernel may assign to a socket without a fixed port.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel's range of automatic ports: two numbers, see ip_local_port_range in ip(7).
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Conventional ports of other programs lie mostly below this number.
const FIRST: u32 = 10_000;

/// Distance between the first ports of processes with neighbouring ids.
const OF_ONE_PROCESS: u32 = 64;

/// Returns a port at which no process listens, that no other call of this process returned, and that the kernel never
/// assigns by itself. The port lies below the kernel's range of automatic ports. The port of a socket that was just
/// closed would not do: the kernel may assign such a port to another process before the intended process listens.
///
/// # Errors
/// When the kernel's range cannot be read, or no port below it is free.
pub fn free_port() -> io::Result<u16> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let text = std::fs::read_to_string(EPHEMERAL)?;
    let end = text.split_whitespace().next().and_then(|first| first.parse::<u32>().ok()).filter(|&end| end > FIRST);
    let none = || io::Error::other(format!("no port between {FIRST} and those of {EPHEMERAL} is free"));
    let count = end.ok_or_else(none)? - FIRST;
    let base = std::process::id().wrapping_mul(OF_ONE_PROCESS) % count;
    (0..count)
        .map(|_| FIRST + (base + NEXT.fetch_add(1, Ordering::Relaxed)) % count)
        .filter_map(|port| u16::try_from(port).ok())
        .find(|&port| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok())
        .ok_or_else(none)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_ports_differ_and_are_nobodys_by_chance() {
        let ports: Vec<_> = (0..100).map(|_| free_port().unwrap()).collect();
        assert!(ports.iter().enumerate().all(|(at, port)| !ports[..at].contains(port)), "{ports:?}");
        let by_chance = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
        assert!(ports.iter().all(|&port| port < by_chance), "{ports:?}, {by_chance}");
    }
}
