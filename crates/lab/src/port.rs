//! TCP ports of this machine that several processes of a test can be told beforehand.
//!
//! Never does: handing out a port that the kernel may give to somebody who asked for any.

use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};

/// The kernel's own choices: two numbers, see ip_local_port_range in ip(7).
const EPHEMERAL: &str = "/proc/sys/net/ipv4/ip_local_port_range";

/// Below these are the ports of other programs' conventions, more often than above.
const FIRST: u32 = 10_000;

/// How many ports a process goes through before the next process's begin.
const OF_ONE_PROCESS: u32 = 64;

/// A port at which nobody listens, no other call of this process was given, and the kernel gives to nobody: it lies
/// below those for sockets that are bound to no port in particular. That of a socket just closed would not do: somebody
/// else may be given it before the one that it is meant for listens.
///
/// # Errors
/// The kernel's range cannot be read or leaves none free below it.
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
