//! What triggered NICs send each other.

use super::list::{Connection, Purpose};
use crate::engine::Port;

/// A packet about one connection. Those of a queue pair are a flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs, reason = "the names are the documentation")]
pub struct Packet {
    pub job: u8,
    /// The port that it is for.
    pub port: Port,
    /// The operation whose queue pairs they are.
    pub operation: u16,
    /// As the destination names it.
    pub connection: Connection,
    /// The port of the NIC that it leaves by.
    pub link: u32,
    pub content: Content,
}

/// What it says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Content {
    /// The queue pairs of the connection are made; whoever has them, too, says so.
    Connect,
    /// They are made here, too.
    Accept,
    /// A message, with `bytes` of payload.
    Message {
        /// On which queue pair.
        purpose: Purpose,
        /// Which of that queue pair's.
        number: u64,
        /// Bytes behind the header.
        bytes: u64,
    },
    /// That message has filled a receive.
    Taken {
        /// On which queue pair.
        purpose: Purpose,
        /// Which of that queue pair's.
        number: u64,
    },
    /// No receive was enabled for that message: it, and what came behind it, is dropped.
    NotReady {
        /// On which queue pair.
        purpose: Purpose,
        /// Which of that queue pair's.
        number: u64,
    },
}
