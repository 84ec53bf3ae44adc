//! Bootstrap over TCP: rank 0 serves the rendezvous itself if no other process does.
//!
//! Rank 0 tries to listen at the address. If that works, no other process serves there and rank 0 does from now on. If
//! the address is taken (`outboard run` serves) or belongs to another host, rank 0 is a client like all other ranks.
//! Another process may hold the port for a while without serving. So rank 0 tries again to listen while it reaches no
//! server.

use super::{Bootstrap, BootstrapError, check};
use crate::bootstrap::tcp_server::{self, JobToken, LIMIT, TcpBootstrapError, TcpClient};
use std::net::{Ipv4Addr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

/// Time in which rank 0 tries to reach a server before it tries to listen again.
const FIRST_REACH: Duration = Duration::from_secs(1);

/// Bootstrap over one TCP server, which rank 0 may run itself.
#[derive(Debug)]
pub struct TcpBootstrap {
    client: TcpClient,
    /// Kept between exchanges, so that an early rank of the next exchange waits in the listener's queue.
    listener: Option<TcpListener>,
}

impl TcpBootstrap {
    /// A bootstrap for rank `rank` of `ranks` ranks, which meet at `address` (host and port). `token` is equal on all
    /// ranks of a job; a rank with another token is rejected.
    ///
    /// # Errors
    /// [`TcpBootstrapError::Listen`] when rank 0 may not listen at that port.
    pub fn new(rank: u32, ranks: u32, address: &str, token: JobToken) -> Result<TcpBootstrap, TcpBootstrapError> {
        let listener = if rank == 0 { listen(address)? } else { None };
        Ok(TcpBootstrap { client: TcpClient { address: address.to_owned(), token, rank, ranks }, listener })
    }
}

impl Bootstrap for TcpBootstrap {
    fn rank(&self) -> u32 {
        self.client.rank
    }

    fn ranks(&self) -> u32 {
        self.client.ranks
    }

    fn exchange(&mut self, blob: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError> {
        check(blob)?;
        let deadline = Instant::now() + LIMIT;
        let may_serve = self.client.rank == 0;
        loop {
            if let Some(listener) = &self.listener {
                return Ok(tcp_server::serve_as_rank(listener, &self.client, blob, deadline)?);
            }
            match self.client.exchange_within(if may_serve { FIRST_REACH } else { LIMIT }, LIMIT, blob) {
                Err(TcpBootstrapError::Unreachable { .. }) if may_serve && Instant::now() < deadline => {
                    self.listener = listen(&self.client.address)?;
                }
                exchanged => return Ok(exchanged?),
            }
        }
    }
}

/// A listener at `address`, or none if another process serves there.
fn listen(address: &str) -> Result<Option<TcpListener>, TcpBootstrapError> {
    match TcpListener::bind(reachable(address).as_str()) {
        Ok(listener) => Ok(Some(listener)),
        Err(reason) if reason.kind() == std::io::ErrorKind::PermissionDenied => {
            Err(TcpBootstrapError::Listen { address: address.to_owned(), reason })
        }
        // The address is taken, belongs to another host, or is a name that clients may still resolve.
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
