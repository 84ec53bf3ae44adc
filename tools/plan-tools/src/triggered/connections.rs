//! Connections: the peers to which a rank has queue pairs for a plan, and the number of queue pairs (CD-6).
//!
//! A connection to a peer has three queue pairs, one for each purpose. In a pairwise plan, every rank sends in every
//! round to exactly the ranks that it receives from. Then one connection serves both directions; otherwise each
//! direction has a connection of its own, even to the same peer. The paper counts the same queue pairs per rank. With
//! `P` ranks and one port: Standard Exchange `3 log2 P`, Bruck `2 * 3 log2 P`, Ring `2 * 3`.

use std::collections::{BTreeMap, BTreeSet};

use outboard_nic::triggered::list::{PeerConnection, Prepost, ServedDirection};
use outboard_plan::Rank;

use crate::rounds::RoundMessage;

/// Whether every rank sends in every round to exactly the ranks that it receives from.
pub(super) fn pairwise(messages: &[RoundMessage]) -> bool {
    messages.chunk_by(|a, b| a.round == b.round).all(|round| {
        let sent: BTreeSet<(Rank, Rank)> = round.iter().map(|m| (m.from, m.to)).collect();
        sent.iter().all(|(from, to)| sent.contains(&(*to, *from)))
    })
}

/// The connection of `rank` that carries a message.
pub(super) fn connection(message: &RoundMessage, pairwise: bool, rank: Rank) -> PeerConnection {
    let (peer, serves) = if message.from == rank {
        (message.to, ServedDirection::Outgoing)
    } else {
        (message.from, ServedDirection::Incoming)
    };
    PeerConnection { peer, serves: if pairwise { ServedDirection::Both } else { serves } }
}

/// Number of eager buffers, of `buffer` bytes each, that a message takes.
pub(super) fn buffers(bytes: u64, buffer: u64) -> u64 {
    bytes.div_ceil(buffer).max(1)
}

/// The connections of `rank`, sorted, with their preposted receives for one call.
pub(super) fn preposts<'a>(
    messages: impl Iterator<Item = &'a RoundMessage>,
    (pairwise, buffer): (bool, u64),
    rank: Rank,
) -> Vec<Prepost> {
    let mut all: BTreeMap<PeerConnection, Prepost> = BTreeMap::new();
    for message in messages {
        let connection = connection(message, pairwise, rank);
        let prepost = all.entry(connection).or_insert(Prepost { connection, buffers: 0, clears: 0 });
        if message.from == rank {
            prepost.clears = prepost.clears.saturating_add(1);
        } else {
            let count = u32::try_from(buffers(message.bytes, buffer)).unwrap_or(u32::MAX);
            prepost.buffers = prepost.buffers.saturating_add(count);
        }
    }
    all.into_values().collect()
}
