//! The rate of chunks that a saturated leaf sustains, as the paper measures it (MC Fig. 13 to 16).

use super::accelerator::Accelerator;
use super::settings::DatapathSettings;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReceiveLoad {
    /// Bytes of the receive buffer, divided equally among the threads.
    pub bytes: u64,
    pub chunk_bytes: u64,
    /// Bit/s of the link, for payload alone.
    pub link_rate: u64,
}

impl ReceiveLoad {
    /// 8 MiB in chunks of 4 KiB over 200 Gbit/s (MC Sec. VI-C).
    pub const PAPER: ReceiveLoad = ReceiveLoad { bytes: 8 << 20, chunk_bytes: 4 << 10, link_rate: 200_000_000_000 };
}

/// Chunks per second that the threads complete under a load, until the buffer is full. The link serves the threads in
/// turn and never waits for a thread; no chunk is lost for want of a receive.
pub fn saturated_rate(settings: &DatapathSettings, load: ReceiveLoad) -> f64 {
    let chunks = (load.bytes / load.chunk_bytes.max(1)).max(1);
    let receives = u32::try_from(chunks).unwrap_or(u32::MAX);
    let mut accelerator = Accelerator::new(&DatapathSettings { receives, ..*settings });
    (0..settings.threads).for_each(|_| _ = accelerator.assign_queue());
    let nanoseconds_of_chunk = load.chunk_bytes as f64 * 8e9 / load.link_rate.max(1) as f64;
    let mut last = 0;
    for chunk in 0..chunks {
        let arrives = ((chunk + 1) as f64 * nanoseconds_of_chunk) as u64;
        while accelerator.pop_finished(arrives).is_some() {}
        let thread = (chunk % u64::from(settings.threads)) as u32;
        accelerator.complete(arrives, thread, ()).expect("as many receives as chunks");
    }
    while let Some((until, _)) = accelerator.pop_finished(u64::MAX) {
        last = until;
    }
    chunks as f64 * 1e9 / last.max(1) as f64
}
