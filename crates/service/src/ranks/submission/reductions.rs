//! Submissions of barriers and reductions, checked.

use std::sync::Arc;

use outboard_plan::alltoall::Blocks;
use outboard_plan::{Extents, Rank, Reduction, Span};
use outboard_proto::{CallKind, Signature, sizes_digest};
use outboard_shm::entry::{Reduced, ReductionEntry};
use outboard_shm::memory::{RankMemory, TieredMemory};

use super::{Asked, MOST_BYTES, Refusal};

/// A barrier moves nothing.
pub(super) fn barrier() -> Asked {
    let signature = Signature { kind: CallKind::Barrier, bytes: 0 };
    Asked { signature, in_place: false, blocks: None, send: (0, 0), receive: (0, 0) }
}

/// In place the contribution is what the receive buffer begins with; that is then large enough for both.
pub(super) fn reduction(
    entry: &ReductionEntry,
    rank: Rank,
    ranks: u32,
    memory: &TieredMemory,
) -> Result<Asked, Refusal> {
    let &ReductionEntry { in_place, receive, .. } = entry;
    let send = if in_place { receive } else { entry.send };
    let reduction = Reduction::from_code(entry.code)?;
    let range = |bytes| Refusal::Range { bytes, send, receive };
    let (signature, blocks, (sent, received)) = match entry.result {
        Reduced::Reduce { root, .. } if root >= ranks => return Err(Refusal::Root { root, ranks }),
        Reduced::Reduce { root, .. } if in_place && rank.0 != root => return Err(Refusal::InPlace),
        Reduced::Reduce { root, bytes } => {
            let received = if rank.0 == root { bytes } else { 0 };
            (Signature { kind: CallKind::Reduce { root: Rank(root), reduction }, bytes }, None, (bytes, received))
        }
        Reduced::Allreduce { bytes } => {
            (Signature { kind: CallKind::Allreduce { reduction }, bytes }, None, (bytes, bytes))
        }
        Reduced::Scan { bytes } => {
            (Signature { kind: CallKind::Scan { reduction, inclusive: true }, bytes }, None, (bytes, bytes))
        }
        Reduced::Exscan { bytes } => {
            let received = if rank.0 == 0 { 0 } else { bytes };
            (Signature { kind: CallKind::Scan { reduction, inclusive: false }, bytes }, None, (bytes, received))
        }
        Reduced::ReduceScatterBlock { bytes } => {
            let total = bytes.checked_mul(ranks.into()).ok_or(range(bytes))?;
            (Signature { kind: CallKind::ReduceScatterBlock { reduction }, bytes }, None, (total, bytes))
        }
        Reduced::ReduceScatter { table } => {
            let sizes = read_sizes(table, ranks, memory)?;
            let kind = CallKind::ReduceScatter { reduction, sizes: sizes_digest(sizes.iter().copied()) };
            let extents = Extents::uneven(sizes.iter().copied()).ok_or(range(u64::MAX))?;
            let (total, own) = (extents.total(), sizes[rank.0 as usize]);
            let span = |block: Span| Span::input(block.offset, block.len);
            let send = (0..ranks).map(|rank| span(extents.block(Rank(rank)))).collect();
            let blocks = Blocks { send, receive: vec![Span::output(0, own)] };
            whole(&sizes, reduction)?;
            (Signature { kind, bytes: total }, Some(Arc::new(blocks)), (total, own))
        }
    };
    whole(&[signature.bytes], reduction)?;
    let received = if in_place { received.max(sent) } else { received };
    let bytes = sent.max(received);
    if bytes > MOST_BYTES || send.checked_add(sent).is_none() || receive.checked_add(received).is_none() {
        return Err(range(bytes));
    }
    Ok(Asked { signature, in_place, blocks, send: (send, sent), receive: (receive, received) })
}

fn whole(sizes: &[u64], reduction: Reduction) -> Result<(), Refusal> {
    let element = reduction.element().bytes();
    match sizes.iter().find(|bytes| !bytes.is_multiple_of(element)) {
        Some(&bytes) => Err(Refusal::Element { bytes, element }),
        None => Ok(()),
    }
}

/// The bytes of all blocks. Copied before they are looked at, and never again: the rank may write to its table.
fn read_sizes(address: u64, ranks: u32, memory: &TieredMemory) -> Result<Vec<u64>, Refusal> {
    let mut table = vec![0; 8 * ranks as usize];
    memory.read(address, &mut table).map_err(|error| Refusal::Table { address, error })?;
    Ok(table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
}
