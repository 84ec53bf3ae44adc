//! Scripts that the simulator plays and judges itself; its tests play others.

use outboard_sim::{Breach, hostile, sequences};

fn refute<T>(played: Result<T, Breach>) {
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

/// Hostile bytes from the network.
///
/// # Panics
/// When the hostile did harm.
pub fn datagrams(script: &[u8]) {
    refute(hostile::play(script));
}
