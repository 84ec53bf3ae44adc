//! Settings of a triggered NIC and the library above it.

/// The way a sender by rendezvous learns that its receiver is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// The receiver sends a clear-to-send on a queue pair of its own (CD-5).
    ClearToSend,
    /// The sender sends, and sends again after [`TriggeredSettings::retry_after`] if the receiver was not ready.
    Retry,
}

/// Sizes of a NIC and choices of the library; all hosts of a network have equal settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TriggeredSettings {
    /// Blocks of at least this many bytes go by rendezvous, smaller ones into preposted buffers (16 KB, CD-5). The
    /// blocks that a leader exchanges together count as one.
    pub eager_bytes: u64,
    /// Bytes of a preposted buffer (16 KB, ours: the largest block of the eager protocol).
    pub buffer_bytes: u64,
    /// The way senders by rendezvous wait for receivers.
    pub readiness: Readiness,
    /// Nanoseconds until a sender whose receiver was not ready sends again (10,000, ours).
    pub retry_after: u64,
    /// Sends of up to this many bytes go along with the request if the bytes are present by then (64, ours; 0: none).
    pub inline_bytes: u64,
    /// Places in the NIC for such sends (256, ours); a send that finds none is read from memory.
    pub inline_places: u32,
    /// Virtual ports, which the connections of a rank use in turn (1).
    pub virtual_ports: u32,
    /// Ports of the NIC, which virtual ports use in turn (1, or 2 as on cluster B).
    pub physical_ports: u32,
    /// Most queue pairs of a NIC (65,536, ours).
    pub queue_pairs: usize,
    /// Most requests, and most completions, of a queue (16,384, ours).
    pub queue_depth: usize,
    /// Most unfinished calls of one port and job (64, ours).
    pub calls: usize,
    /// Bytes of registered memory of a NIC for buffers and shared regions (1 GiB, ours).
    pub registered_bytes: u64,
}

impl Default for TriggeredSettings {
    fn default() -> Self {
        TriggeredSettings {
            eager_bytes: 16 << 10,
            buffer_bytes: 16 << 10,
            readiness: Readiness::ClearToSend,
            retry_after: 10_000,
            inline_bytes: 64,
            inline_places: 256,
            virtual_ports: 1,
            physical_ports: 1,
            queue_pairs: 1 << 16,
            queue_depth: 1 << 14,
            calls: 64,
            registered_bytes: 1 << 30,
        }
    }
}
