//! Settings of an accelerator.

use super::costs::DatapathCosts;

/// The transport of chunks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// Datagrams of one packet each, received into staging and copied from there (MC-2): the paper's UD.
    Datagrams,
    /// Writes straight to their places, as messages of `packets` packets (MC-12): the paper's UC. The loss of one
    /// packet loses the whole chunk.
    Writes {
        /// Packets per chunk.
        packets: u32,
    },
}

/// Settings of accelerators; all accelerators of a network have equal settings.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DatapathSettings {
    pub transport: Transport,
    /// Bytes of a packet (4 KiB, MC Table I).
    pub packet_bytes: u32,
    /// Hardware threads that receive, filled core by core (16: enough for 200 Gbit/s, MC Sec. V-C).
    pub threads: u32,
    /// Receives that each thread has posted (64: with 16 threads these are the 4 MiB of MC Sec. III-D).
    pub receives: u32,
    /// Chunks that a sender posts at once (16, ours).
    pub batch: u64,
    /// Nanoseconds of silence after which missing chunks count as lost: alpha of MC-5 (100,000, ours).
    pub patience: u64,
    /// Bytes of the accelerator's cache for the bitmaps of one call (1.5 MB, MC Sec. II-C).
    pub bitmap_bytes: u64,
    /// Most unfinished calls of one port and job (64, ours).
    pub calls: usize,
    pub costs: DatapathCosts,
}

impl Default for DatapathSettings {
    fn default() -> Self {
        DatapathSettings {
            transport: Transport::Datagrams,
            packet_bytes: 4 << 10,
            threads: 16,
            receives: 64,
            batch: 16,
            patience: 100_000,
            bitmap_bytes: 1_500_000,
            calls: 64,
            costs: DatapathCosts::bluefield3(),
        }
    }
}

impl DatapathSettings {
    pub fn chunk_bytes(&self) -> u32 {
        match self.transport {
            Transport::Datagrams => self.packet_bytes,
            Transport::Writes { packets } => self.packet_bytes.saturating_mul(packets),
        }
    }

    /// Bytes of staging of all threads.
    pub fn staging_bytes(&self) -> u64 {
        match self.transport {
            Transport::Datagrams => u64::from(self.threads) * u64::from(self.receives) * u64::from(self.packet_bytes),
            Transport::Writes { .. } => 0,
        }
    }
}
