//! Sizes of an order-triggered NIC.
//!
//! Defaults are the sizes of the Tianhe NIC (TH-7) where the paper names them, else ours.

/// The most sources of one task's packets, because four bits name a descriptor's first source.
pub const MAX_SOURCES: usize = 16;
/// The most messages from one port to another in one pulse, because SeqID has 5 bits.
pub const MAX_STEPS: usize = 32;
/// The most virtual ports of a node, because a port has 11 bits.
pub const MAX_PORTS: u32 = 2_048;

/// The way tasks of a unit share its hash buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BufferSharing {
    /// Every task has room for one pulse, and takes more from the room left over (TH-4).
    Dynamic,
    /// Every task has an equal part and never more; for comparison.
    Fixed,
}

/// Sizes of a NIC; all NICs of a network have equal settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedSettings {
    /// Offload units (8, TH-7).
    pub units: usize,
    /// Concurrent tasks of all units together (32, TH-7).
    pub tasks: usize,
    /// Bytes of the hash buffer of a unit (512 KB, TH-7).
    pub buffer_bytes: u64,
    /// The most payload of a packet and the size of a buffer slot in bytes (1 KiB, ours). A multiple of 16, so that no
    /// element is cut.
    pub packet_bytes: u64,
    /// Pulses for each task that fit the buffer, if all tasks have equally many: `k` of TH-5 (4, ours).
    pub pulses: usize,
    pub sharing: BufferSharing,
    /// DMA counters of a unit (16, ours): its concurrent pulses, each with a buffer for intermediate results.
    pub counters: usize,
    /// Nanoseconds until a task that found no counter tries again (1,000, ours).
    pub retry_after: u64,
    /// Failed retries after which the calls of the task end with an error (1,000, ours).
    pub retries: u32,
}

impl Default for OrderedSettings {
    fn default() -> Self {
        OrderedSettings {
            units: 8,
            tasks: 32,
            buffer_bytes: 512 << 10,
            packet_bytes: 1 << 10,
            pulses: 4,
            sharing: BufferSharing::Dynamic,
            counters: 16,
            retry_after: 1_000,
            retries: 1_000,
        }
    }
}

impl OrderedSettings {
    pub fn slots(&self) -> usize {
        (self.buffer_bytes / self.packet_bytes) as usize
    }

    /// Most packets that a unit holds: a tenth of the slots stays free (TH-4).
    pub fn capacity(&self) -> usize {
        self.slots() - self.slots().div_ceil(10)
    }

    pub fn tasks_per_unit(&self) -> usize {
        self.tasks.div_ceil(self.units)
    }

    /// The most packets that a task receives in one pulse: the capacity `C` of a task over `k` (TH-5).
    pub fn pulse_packets(&self) -> usize {
        self.capacity() / (self.tasks_per_unit() * self.pulses)
    }

    /// Pulses that a task may receive without a request for more.
    pub fn granted(&self) -> u64 {
        match self.sharing {
            BufferSharing::Dynamic => 1,
            BufferSharing::Fixed => self.pulses as u64,
        }
    }

    /// Pulses of a unit that its tasks may be granted beyond `granted`.
    pub(super) fn spare(&self) -> u64 {
        match self.sharing {
            BufferSharing::Dynamic => (self.tasks_per_unit() * (self.pulses - 1)) as u64,
            BufferSharing::Fixed => 0,
        }
    }

    /// Bytes for intermediate results of a pulse: four times as many as the pulse receives.
    pub fn intermediate_bytes(&self) -> u64 {
        4 * self.pulse_packets() as u64 * self.packet_bytes
    }

    /// Offset and length of packet `at` in a message of `bytes` bytes.
    pub(super) fn packet(&self, bytes: u64, at: u64) -> (u64, u64) {
        let start = at * self.packet_bytes;
        (start, bytes.saturating_sub(start).min(self.packet_bytes))
    }

    /// Packets of a message; an empty message takes one packet.
    pub fn packets(&self, bytes: u64) -> u64 {
        bytes.div_ceil(self.packet_bytes).max(1)
    }
}
