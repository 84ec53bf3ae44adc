//! Queue pairs: which a rank needs for a plan, and how many (CD-6).
//!
//! A connection to a peer has three queue pairs, one for each [`Purpose`]. In a pairwise plan, where in every round
//! every rank sends to just those that it receives from, one connection serves both directions; otherwise each
//! direction has a connection of its own, even to the same peer. So of `P` ranks with one port Standard Exchange needs
//! `3 log2 P` queue pairs per rank, Bruck `2 * 3 log2 P` and Ring `2 * 3`, as the paper counts.

use std::collections::BTreeSet;

use crate::rounds::{Message, Rounds};
use outboard_plan::Rank;

/// What a queue pair carries. Each purpose has its own, because a NIC that waits sees on which queue something arrived
/// but not what it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Purpose {
    /// Messages into buffers that were posted before (CD-4).
    Eager,
    /// That a receiver is ready (CD-5).
    ClearToSend,
    /// Messages to a receiver that is ready (CD-5).
    Data,
}

/// Which messages of a plan a connection serves, as its owner sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Serves {
    /// Both directions.
    Both,
    /// Those to the peer. On the peer it is the connection for incoming messages.
    Outgoing,
    /// Those from the peer. On the peer it is the connection for outgoing messages.
    Incoming,
}

/// A connection of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Connection {
    /// To whom.
    pub peer: Rank,
    /// For what.
    pub serves: Serves,
}

/// A queue pair of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueuePair {
    /// The connection that it belongs to.
    pub connection: Connection,
    /// What it carries.
    pub purpose: Purpose,
}

/// Queue pairs of a connection: one for each purpose.
pub(super) const PER_CONNECTION: usize = 3;

/// Whether every rank sends in every round to just those that it receives from.
pub(super) fn pairwise(rounds: &Rounds) -> bool {
    let both_ways = |round: usize| {
        let sent: BTreeSet<(Rank, Rank)> = rounds.of_round(round).iter().map(|m| (m.from, m.to)).collect();
        sent.iter().all(|(from, to)| sent.contains(&(*to, *from)))
    };
    (0..rounds.count()).all(both_ways)
}

/// The connections of `rank`, sorted, which sends or receives each of `messages`.
pub(super) fn connections<'a>(
    messages: impl Iterator<Item = &'a Message>,
    pairwise: bool,
    rank: Rank,
) -> Vec<Connection> {
    let of = |message: &Message| {
        if message.from == rank {
            Connection { peer: message.to, serves: outgoing(pairwise) }
        } else {
            Connection { peer: message.from, serves: incoming(pairwise) }
        }
    };
    messages.map(of).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Which connection takes messages out.
pub(super) fn outgoing(pairwise: bool) -> Serves {
    if pairwise { Serves::Both } else { Serves::Outgoing }
}

/// Which connection brings messages in.
pub(super) fn incoming(pairwise: bool) -> Serves {
    if pairwise { Serves::Both } else { Serves::Incoming }
}
