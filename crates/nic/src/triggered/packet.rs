//! What triggered NICs send each other.

use super::list::{Connection, Purpose};
use crate::engine::Port;

/// A packet about one connection. Those of a queue pair are a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Packet {
    pub job: u8,
    pub port: Port,
    /// The operation whose queue pairs they are.
    pub operation: u16,
    /// As the destination names it.
    pub connection: Connection,
    /// The port of the NIC that it leaves by.
    pub link: u32,
    pub content: Content,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// The queue pairs of the connection are made; whoever has them, too, says so.
    Connect,
    /// They are made here, too.
    Accept,
    Message {
        purpose: Purpose,
        number: u64,
        /// Bytes behind the header.
        bytes: u64,
    },
    /// That message has filled a receive.
    Taken { purpose: Purpose, number: u64 },
    /// No receive was enabled for that message: it, and what came behind it, is dropped.
    NotReady { purpose: Purpose, number: u64 },
}
