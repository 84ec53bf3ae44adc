//! What a rank asks for that submits a gather or scatter (SP-5).

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Rank, Span};
use outboard_proto::{CallKind, Signature};
use outboard_shm::entry::{Direction, RootedBlocks, RootedEntry};
use outboard_shm::memory::TieredMemory;

use super::{Asked, List, MOST_BYTES, Refusal, read_lists, spans};

/// The blocks as the entry or the root's table says.
pub(super) fn rooted(entry: &RootedEntry, rank: Rank, ranks: u32, memory: &TieredMemory) -> Result<Asked, Refusal> {
    let &RootedEntry { direction, root, in_place, send, receive, .. } = entry;
    if root >= ranks {
        return Err(Refusal::Root { root, ranks });
    }
    let (root, is_root) = (Rank(root), rank.0 == root);
    if in_place && !is_root {
        return Err(Refusal::InPlace);
    }
    let range = |bytes| Refusal::Range { bytes, send, receive };
    let make = match direction {
        Direction::Gather => Blocks::gather,
        Direction::Scatter => Blocks::scatter,
    };
    let (even, blocks) = match entry.blocks {
        RootedBlocks::Even { bytes } => (Some(bytes), make((ranks, root), rank, bytes, !in_place).ok_or(range(bytes))?),
        RootedBlocks::Own { .. } if is_root => return Err(Refusal::Lists),
        // One block whatever the ranks, which could all have so much.
        RootedBlocks::Own { bytes } => (None, make((ranks, root), rank, bytes, true).ok_or(range(bytes))?),
        RootedBlocks::Table { .. } if !is_root => return Err(Refusal::Lists),
        RootedBlocks::Table { address } => {
            let [list] = read_lists(address, ranks, memory)?;
            (None, of_root(direction, root, list, in_place))
        }
    };
    blocks.check(ranks, rank)?;
    let (sent, received) = blocks.bytes();
    let bytes = sent.max(received);
    if bytes > MOST_BYTES || send.checked_add(sent).is_none() || receive.checked_add(received).is_none() {
        return Err(range(bytes));
    }
    let kind = match (direction, even) {
        (Direction::Gather, Some(_)) => CallKind::Gather { root },
        (Direction::Gather, None) => CallKind::Gatherv { root },
        (Direction::Scatter, Some(_)) => CallKind::Scatter { root },
        (Direction::Scatter, None) => CallKind::Scatterv { root },
    };
    // Even blocks follow from the signature; among others a block that stays in place is an empty one.
    let in_place = in_place && even.is_some();
    let blocks = even.is_none().then(|| Arc::new(blocks));
    let signature = Signature { kind, bytes: even.unwrap_or(0) };
    Ok(Asked { signature, in_place, blocks, send: (send, sent), receive: (receive, received) })
}

/// What the root has, whose table says `list`.
fn of_root(direction: Direction, root: Rank, mut list: List, in_place: bool) -> Blocks {
    let own = root.0 as usize;
    if in_place {
        list[own] = (0, 0);
    }
    let mut with_itself = vec![(0, 0); list.len()];
    with_itself[own] = (0, list[own].1);
    match direction {
        Direction::Gather => Blocks { send: spans(&with_itself, Span::input), receive: spans(&list, Span::output) },
        Direction::Scatter => Blocks { send: spans(&list, Span::input), receive: spans(&with_itself, Span::output) },
    }
}
