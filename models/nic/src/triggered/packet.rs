//! Packets of triggered NICs.

use super::list::{PeerConnection, Purpose};
use crate::engine::Port;

/// A packet about one connection. The packets of a queue pair are a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TriggeredPacket {
    pub job: u8,
    pub port: Port,
    /// The operation that owns the queue pairs.
    pub operation: u16,
    /// The connection as the destination names it.
    pub connection: PeerConnection,
    /// The port of the NIC that the packet leaves by.
    pub link: u32,
    pub content: TriggeredContent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TriggeredContent {
    /// The sender has made its queue pairs; the receiver answers if it has made its own, too.
    Connect,
    /// Answer to `Connect`: the sender has made its queue pairs, too.
    Accept,
    Message {
        purpose: Purpose,
        number: u64,
        /// Bytes behind the header.
        bytes: u64,
    },
    /// The message with this number has filled a receive.
    Taken { purpose: Purpose, number: u64 },
    /// No receive was enabled for the message with this number: this message and later ones are dropped until this
    /// message comes again.
    NotReady { purpose: Purpose, number: u64 },
}
