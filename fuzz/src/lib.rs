//! What the fuzz targets run. Most take the fuzzer's bytes as a script of hostile acts, play it against code that also
//! serves honest ranks, and panic when those are harmed; `texts` takes them as a text, `descriptors` as words.
//!
//! `scripts` play in virtual time and are deterministic; `rank` runs a whole daemon and depends on the scheduler only
//! in how far the daemon has got when the next act comes. Nothing here is shipped.

pub mod descriptors;
pub mod rank;
pub mod scripts;
pub mod seeds;
pub mod texts;
