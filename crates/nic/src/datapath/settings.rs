//! How an accelerator is used.

use super::costs::Costs;

/// How chunks travel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Transport {
    /// As datagrams of one packet each, received into staging and copied from there (MC-2): the paper's UD.
    Datagrams,
    /// Written straight to their places, as messages of so many packets (MC-12): the paper's UC. Where one packet is
    /// lost the whole chunk is.
    Writes {
        /// Packets of a chunk.
        packets: u32,
    },
}

/// How accelerators are used; all of a network in the same way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How chunks travel.
    pub transport: Transport,
    /// Bytes of a packet (4 KiB, MC Table I).
    pub packet_bytes: u32,
    /// Hardware threads that receive, filled core by core (16: enough for 200 Gbit/s, MC Sec. V-C).
    pub threads: u32,
    /// Receives that a thread has posted (64: on 16 threads the 4 MiB of MC Sec. III-D).
    pub receives: u32,
    /// Chunks that a sender posts at once (16, ours).
    pub batch: u64,
    /// Nanoseconds of silence behind which what is missing counts as lost: alpha of MC-5 (100,000, ours).
    pub patience: u64,
    /// Bytes that the accelerator's cache has for the bitmaps of one call (1.5 MB, MC Sec. II-C).
    pub bitmap_bytes: u64,
    /// Calls of one port and job that are posted and have not ended (64, ours).
    pub calls: usize,
    pub costs: Costs,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            transport: Transport::Datagrams,
            packet_bytes: 4 << 10,
            threads: 16,
            receives: 64,
            batch: 16,
            patience: 100_000,
            bitmap_bytes: 1_500_000,
            calls: 64,
            costs: Costs::bluefield3(),
        }
    }
}

impl Settings {
    pub fn chunk_bytes(&self) -> u32 {
        match self.transport {
            Transport::Datagrams => self.packet_bytes,
            Transport::Writes { packets } => self.packet_bytes.saturating_mul(packets),
        }
    }

    /// Bytes of the staging of all threads.
    pub fn staging_bytes(&self) -> u64 {
        match self.transport {
            Transport::Datagrams => u64::from(self.threads) * u64::from(self.receives) * u64::from(self.packet_bytes),
            Transport::Writes { .. } => 0,
        }
    }
}
