//! Scripts that the simulator or the fabric plays and judges itself.

use std::fmt::Display;

use outboard_sim::{hostile, nics, sequences};

fn refute<T>(played: Result<T, impl Display>) {
    if let Err(breach) = played {
        panic!("{breach}");
    }
}

/// Recorded groups and tagged messages.
///
/// # Panics
/// When the simulator has something against what came of it.
pub fn sequence(script: &[u8]) {
    refute(sequences::play(script));
}

/// Hostile bytes on a TCP connection, before and behind its handshake.
///
/// # Panics
/// When the connection takes for the other end's what is not, or its bookkeeping breaks.
pub fn connection(script: &[u8]) {
    outboard_fabric::hostile::play(script);
}

/// Hostile bytes from the network.
///
/// # Panics
/// When the hostile did harm.
pub fn datagrams(script: &[u8]) {
    refute(hostile::play(script));
}

/// Hostile packets against NICs.
///
/// # Panics
/// When the hostile did harm.
pub fn packets(script: &[u8]) {
    refute(nics::hostile::play(script));
}
