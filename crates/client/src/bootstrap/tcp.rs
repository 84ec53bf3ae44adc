//! Bootstrap over TCP: rank 0 serves the rendezvous itself if no other process does.
//!
//! Rank 0 tries to listen at the address. If that works, no other process serves there and rank 0 does from now on. If
//! the address is taken (`outboard run` serves) or belongs to another host, rank 0 is a visitor like all other ranks.
//! A process that holds the port and does not serve may go; so rank 0 tries again while it cannot reach a server.

use super::{Bootstrap, check};
use crate::error::Error;
use crate::rendezvous::{self, LIMIT, RendezvousError, Token, Visitor};
use std::net::{Ipv4Addr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time in which rank 0 tries to reach a server before it tries to listen again.
const FIRST_REACH: Duration = Duration::from_secs(1);

/// Bootstrap over one TCP server, which rank 0 may run itself.
#[derive(Debug)]
pub struct Tcp {
    visitor: Visitor,
    /// Kept between exchanges, so that an early rank of the next exchange waits in its queue.
    serving: Option<TcpListener>,
}

impl Tcp {
    /// For `rank` of `ranks` that meet at `address` (host and port). `token` is equal on all ranks of a job; a rank
    /// with another token is rejected.
    ///
    /// # Errors
    /// [`Error::Bootstrap`] when rank 0 may not listen at that port.
    pub fn new(rank: u32, ranks: u32, address: &str, token: Token) -> Result<Tcp, Error> {
        let serving = if rank == 0 { listen(address)? } else { None };
        Ok(Tcp { visitor: Visitor { address: address.to_owned(), token, rank, ranks }, serving })
    }
}

impl Bootstrap for Tcp {
    fn rank(&self) -> u32 {
        self.visitor.rank
    }

    fn ranks(&self) -> u32 {
        self.visitor.ranks
    }

    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        check(blob)?;
        let deadline = Instant::now() + LIMIT;
        let may_serve = self.visitor.rank == 0;
        loop {
            if let Some(listener) = &self.serving {
                return Ok(rendezvous::host(listener, &self.visitor, blob, deadline)?);
            }
            match self.visitor.exchange_within(if may_serve { FIRST_REACH } else { LIMIT }, LIMIT, blob) {
                Err(RendezvousError::Unreachable { .. }) if may_serve && Instant::now() < deadline => {
                    self.serving = listen(&self.visitor.address)?;
                }
                exchanged => return Ok(exchanged?),
            }
        }
    }
}

/// A listener at `address`, or none if another process serves there.
fn listen(address: &str) -> Result<Option<TcpListener>, RendezvousError> {
    match TcpListener::bind(reachable(address).as_str()) {
        Ok(listener) => Ok(Some(listener)),
        Err(reason) if reason.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(RendezvousError::Listen { address: address.to_owned(), reason })
        }
        // The address is taken, belongs to another host, or is a name that visitors may still resolve.
        Err(_) => Ok(None),
    }
}

/// Debian maps a host's own name to 127.0.1.1; such a name stands for all addresses of the host.
fn reachable(address: &str) -> String {
    let Some((host, port)) = address.rsplit_once(':') else { return address.to_owned() };
    let named = host != "localhost" && host.trim_matches(['[', ']']).parse::<std::net::IpAddr>().is_err();
    let looped = || address.to_socket_addrs().is_ok_and(|mut found| found.any(|found| found.ip().is_loopback()));
    if named && looped() { format!("{}:{port}", Ipv4Addr::UNSPECIFIED) } else { address.to_owned() }
}
