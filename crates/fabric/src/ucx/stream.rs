//! The prefix of every message over UCX, which proves an arriving stream's order, without gap or repetition.
//!
//! Layout, little endian: sender (8 bytes), connection (4), sequence (4). A process numbers its connections from a
//! random start, and each connection's messages from 0. Invariant: follows at most `limit` streams. Never touches UCX.
//!
//! | known connection of the sender | message | then |
//! |---|---|---|
//! | same | sequence that is due | next |
//! | same | any other sequence | broken |
//! | another or none | sequence 0 | next, of a new stream that replaces the known one |
//! | another or none | any other sequence | stale: a connection that is over |

use std::collections::HashMap;

use crate::PeerId;

pub(super) const PREFIX: usize = 16;

/// Sender, connection and position of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Prefix {
    pub(super) from: PeerId,
    pub(super) connection: u32,
    pub(super) sequence: u32,
}

impl Prefix {
    pub(super) fn encode(self) -> [u8; PREFIX] {
        let mut bytes = [0; PREFIX];
        bytes[..8].copy_from_slice(&self.from.0.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.connection.to_le_bytes());
        bytes[12..].copy_from_slice(&self.sequence.to_le_bytes());
        bytes
    }

    /// Prefix and header of a message; none if it is too short.
    pub(super) fn split(message: &[u8]) -> Option<(Self, &[u8])> {
        let (from, rest) = message.split_first_chunk()?;
        let (connection, rest) = rest.split_first_chunk()?;
        let (sequence, header) = rest.split_first_chunk()?;
        let from = PeerId(u64::from_le_bytes(*from));
        let (connection, sequence) = (u32::from_le_bytes(*connection), u32::from_le_bytes(*sequence));
        Some((Self { from, connection, sequence }, header))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SequenceCheck {
    /// The message is due.
    InOrder,
    /// The message belongs to a connection that is over.
    Stale,
}

#[derive(Clone, Copy)]
struct Stream {
    connection: u32,
    due: u32,
}

pub(super) struct Streams {
    followed: HashMap<PeerId, Stream>,
    limit: usize,
}

impl Streams {
    pub(super) fn new(limit: usize) -> Self {
        Self { followed: HashMap::new(), limit }
    }

    /// Records the arrival of a message.
    ///
    /// # Errors
    /// Why the stream is broken. The stream is then forgotten until its sender connects again.
    pub(super) fn record(&mut self, prefix: Prefix) -> Result<SequenceCheck, String> {
        let Prefix { from, connection, sequence } = prefix;
        let full = self.followed.len() >= self.limit;
        match self.followed.get_mut(&from) {
            Some(stream) if stream.connection == connection && stream.due == sequence => {
                stream.due = sequence.wrapping_add(1);
                Ok(SequenceCheck::InOrder)
            }
            Some(stream) if stream.connection == connection => {
                let why = format!("message {sequence} came where {} was due", stream.due);
                self.forget(from);
                Err(why)
            }
            Some(_) | None if sequence != 0 => Ok(SequenceCheck::Stale),
            None if full => Err(format!("more than {} processes send to this one", self.limit)),
            Some(_) | None => {
                self.followed.insert(from, Stream { connection, due: 1 });
                Ok(SequenceCheck::InOrder)
            }
        }
    }

    /// Treats further messages on `peer`'s present connection as stale.
    pub(super) fn forget(&mut self, peer: PeerId) {
        self.followed.remove(&peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(from: u64, connection: u32, sequence: u32) -> Prefix {
        Prefix { from: PeerId(from), connection, sequence }
    }

    #[test]
    fn a_prefix_survives_the_wire() {
        let prefix = message(0x0102_0304_0506_0708, 9, u32::MAX);
        let wire = [&prefix.encode()[..], b"header"].concat();
        assert_eq!(Prefix::split(&wire), Some((prefix, &b"header"[..])));
        assert_eq!(Prefix::split(&wire[..PREFIX - 1]), None);
    }

    #[test]
    fn gaps_and_repetitions_break_the_stream_until_a_new_connection() {
        for wrong in [0, 1, 3] {
            let mut streams = Streams::new(4);
            assert_eq!(streams.record(message(1, 7, 0)), Ok(SequenceCheck::InOrder));
            assert_eq!(streams.record(message(1, 7, 1)), Ok(SequenceCheck::InOrder));
            let why = streams.record(message(1, 7, wrong)).expect_err("2 was due");
            assert!(why.contains('2'), "{why}");
            assert_eq!(streams.record(message(1, 7, 2)), Ok(SequenceCheck::Stale));
            assert_eq!(streams.record(message(1, 8, 0)), Ok(SequenceCheck::InOrder));
        }
    }

    #[test]
    fn a_new_connection_makes_the_old_one_stale() {
        let mut streams = Streams::new(4);
        assert_eq!(streams.record(message(1, 7, 0)), Ok(SequenceCheck::InOrder));
        assert_eq!(streams.record(message(1, 8, 0)), Ok(SequenceCheck::InOrder));
        assert_eq!(streams.record(message(1, 7, 1)), Ok(SequenceCheck::Stale));
        assert_eq!(streams.record(message(1, 8, 1)), Ok(SequenceCheck::InOrder));
    }

    #[test]
    fn senders_are_bounded() {
        let mut streams = Streams::new(2);
        assert_eq!(streams.record(message(1, 7, 0)), Ok(SequenceCheck::InOrder));
        assert_eq!(streams.record(message(2, 7, 0)), Ok(SequenceCheck::InOrder));
        assert!(streams.record(message(3, 7, 0)).is_err());
        assert_eq!(streams.record(message(1, 8, 0)), Ok(SequenceCheck::InOrder));
    }
}
