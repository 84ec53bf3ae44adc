//! Recorded groups and tagged messages: the simulator plays the sequence and judges it; its tests play others.

use outboard_sim::sequences;

/// Plays a script.
///
/// # Panics
/// When the simulator has something against what came of it.
pub fn play(script: &[u8]) {
    if let Err(breach) = sequences::play(script) {
        panic!("{breach}");
    }
}
