//! How a triggered NIC and the library above it are set up.

/// How a sender by rendezvous learns that its receiver is ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Readiness {
    /// The receiver sends a clear-to-send on a queue pair of its own (CD-5).
    ClearToSend,
    /// The sender sends, and again after [`Settings::retry_after`] where the receiver was not ready.
    Retry,
}

/// The sizes of a NIC and the choices of the library; all hosts of a network have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Settings {
    /// Blocks of so many bytes, or the blocks that a leader exchanges together, go by rendezvous, smaller ones into
    /// preposted buffers (16 KB, CD-5).
    pub eager_bytes: u64,
    /// Bytes of a preposted buffer (16 KB, ours: a block of the eager protocol).
    pub buffer_bytes: u64,
    /// How senders by rendezvous wait for receivers.
    pub readiness: Readiness,
    /// Nanoseconds until a sender whose receiver was not ready sends again (10,000, ours).
    pub retry_after: u64,
    /// Sends of so many bytes that are there when the send is posted go along with the request (64, ours; 0 for none).
    pub inline_bytes: u64,
    /// Places for those in the NIC (256, ours); who finds none sends from memory.
    pub inline_places: u32,
    /// Virtual ports, over which a rank's connections go in turn (1).
    pub virtual_ports: u32,
    /// Ports of the NIC, over which virtual ports go in turn (1, or 2 as on cluster B).
    pub physical_ports: u32,
    /// Queue pairs of a NIC (65,536, ours).
    pub queue_pairs: usize,
    /// Requests that a queue holds, and completions (16,384, ours).
    pub queue_depth: usize,
    /// Calls of one port and job that are posted and have not ended (64, ours).
    pub calls: usize,
    /// Bytes of memory that a NIC has registered for buffers and shared regions (1 GiB, ours).
    pub registered_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
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
