//! Submissions of ranks, checked: what a rank asks for becomes a signature, its blocks and the memory they lie in.
//!
//! Invariants: an entry is data of a stranger, so every address, length, rank and number in it is checked here, before the
//! machine hears of it; a table in the rank's memory is copied before it is looked at, and never looked at again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use outboard_call::BlocksError;
use outboard_plan::alltoall::Blocks;
use outboard_plan::{Extents, Rank, ReductionError, Span};
use outboard_proto::{CallKind, GroupHandle, Signature, TaggedCall, sizes_digest};
use outboard_shm::entry::{
    AllgatherEntry, AllgathervEntry, AlltoallEntry, BlockSizes, BroadcastEntry, Entry, MessageEnd, MessageEntry,
    RecordedEntry,
};
use outboard_shm::memory::{AccessError, RankMemory, TieredMemory};
use outboard_shm::status::Status;

use super::{Attached, MOST_BYTES, Membership, Stage};
use crate::memory::{Buffers, Pieces};
use crate::ranks::quotas::QuotaError;

mod reductions;
mod rooted;

/// A submission that a rank may not make.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refusal {
    #[error("group {0} is not one of this rank's; use a group between its creation and its destruction")]
    Group(u64),
    #[error("call {found} of the group came where {expected} was due; a group's calls are posted in order")]
    Instance { found: u64, expected: u64 },
    #[error("{bytes} bytes at {send:#x} and {receive:#x} exceed the address space")]
    Range { bytes: u64, send: u64, receive: u64 },
    #[error("the table of blocks at {address:#x} cannot be read: {error}")]
    Table { address: u64, error: AccessError },
    #[error(transparent)]
    Blocks(#[from] BlocksError),
    #[error(transparent)]
    Quota(#[from] QuotaError),
    #[error(transparent)]
    Reduction(#[from] ReductionError),
    #[error("{bytes} bytes are not whole elements of {element} bytes")]
    Element { bytes: u64, element: u64 },
    #[error("rank {root} cannot be the root among {ranks} ranks; they count from 0")]
    Root { root: u32, ranks: u32 },
    #[error("a gather, scatter or reduce is in place at a rank that is not its root; only the root's own block can be")]
    InPlace,
    #[error(
        "the root of a gatherv or scatterv names one block, or another rank a table; the root gives the blocks of all"
    )]
    Lists,
    #[error("rank {peer} cannot be the other end of a message among {ranks} ranks; they count from 0")]
    Peer { peer: u32, ranks: u32 },
    #[error("recording {0} of the group is not one of this rank's; call a recording between its end and its freeing")]
    Recording(u32),
}

impl Refusal {
    pub(super) fn status(&self) -> Status {
        match self {
            Refusal::Quota(_) => Status::Resource,
            _ => Status::Argument,
        }
    }
}

/// A submission that has passed the checks.
pub(super) struct Admitted {
    pub(super) group: GroupHandle,
    pub(super) rank: Rank,
    pub(super) what: Asked,
    pub(super) deadline: Option<Duration>,
    pub(super) buffers: Buffers,
}

/// What a submission asks for.
pub(super) struct Asked {
    pub(super) signature: Signature,
    pub(super) in_place: bool,
    pub(super) blocks: Option<Arc<Blocks>>,
    pub(super) send: Range,
    pub(super) receive: Range,
}

/// A piece of a rank's memory: address and length.
type Range = (u64, u64);

impl Attached {
    /// Checks a submission against what this rank owns and counts it.
    pub(super) fn admit(&mut self, entry: &Entry) -> Result<Admitted, Refusal> {
        let unknown = || Refusal::Group(entry.group());
        let Membership { handle, rank, ranks, deadline, stage } =
            self.groups.get_mut(&entry.group()).ok_or_else(unknown)?;
        let Stage::Made { calls, tagged, recordings, in_flight } = stage else {
            return Err(unknown());
        };
        let calls = if matches!(entry, Entry::Recorded(_) | Entry::Message(_)) { tagged } else { calls };
        let (found, expected) = (entry.instance(), *calls + 1);
        if found != expected {
            return Err(Refusal::Instance { found, expected });
        }
        let what = match entry {
            Entry::Allgather(entry) => allgather(entry, *rank, *ranks)?,
            Entry::Broadcast(entry) => broadcast(entry, *rank, *ranks)?,
            Entry::Alltoall(entry) => alltoall(entry, *rank, *ranks, &self.memory)?,
            Entry::Allgatherv(entry) => allgatherv(entry, *rank, *ranks, &self.memory)?,
            Entry::Rooted(entry) => rooted::rooted(entry, *rank, *ranks, &self.memory)?,
            Entry::Barrier(_) => reductions::barrier(),
            Entry::Reduction(entry) => reductions::reduction(entry, *rank, *ranks, &self.memory)?,
            Entry::Recorded(entry) => recorded(entry, recordings)?,
            Entry::Message(entry) => message(entry, *ranks)?,
        };
        *calls = expected;
        *in_flight += 1;
        let memory = Arc::clone(&self.memory);
        let buffers = match entry {
            Entry::Recorded(RecordedEntry { copy: 0, recording, .. }) => {
                Buffers::recorded(memory, Arc::clone(&recordings[recording]))
            }
            _ => Buffers::new(memory, what.send, what.receive),
        };
        Ok(Admitted { group: *handle, rank: *rank, what, deadline: *deadline, buffers })
    }
}

/// A recording that this rank has made; all its memory lies where it was recorded, or in one copy.
fn recorded(entry: &RecordedEntry, recordings: &BTreeMap<u32, Arc<Pieces>>) -> Result<Asked, Refusal> {
    let &RecordedEntry { recording, copy, .. } = entry;
    let bytes = recordings.get(&recording).ok_or(Refusal::Recording(recording))?.total();
    if copy.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: copy, receive: copy });
    }
    let signature = Signature { kind: CallKind::Tagged(TaggedCall::Recorded { recording }), bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send: (0, 0), receive: (copy, bytes) })
}

/// One buffer, read or written.
fn message(entry: &MessageEntry, ranks: u32) -> Result<Asked, Refusal> {
    let &MessageEntry { end, peer, tag, buffer, bytes, .. } = entry;
    if peer >= ranks {
        return Err(Refusal::Peer { peer, ranks });
    }
    if bytes > MOST_BYTES || buffer.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: buffer, receive: buffer });
    }
    let call = match end {
        MessageEnd::Send => TaggedCall::Send { to: Rank(peer), tag },
        MessageEnd::Receive => TaggedCall::Receive { from: Rank(peer), tag },
    };
    let signature = Signature { kind: CallKind::Tagged(call), bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send: (0, 0), receive: (buffer, bytes) })
}

fn allgather(entry: &AllgatherEntry, rank: Rank, ranks: u32) -> Result<Asked, Refusal> {
    let bytes = entry.bytes_per_rank;
    let range = Refusal::Range { bytes, send: entry.send, receive: entry.receive };
    let Some(total) = bytes.checked_mul(u64::from(ranks)).filter(|&total| total <= MOST_BYTES) else {
        return Err(range);
    };
    let own = entry.receive.checked_add(u64::from(rank.0) * bytes);
    let send = if entry.in_place { own } else { Some(entry.send) };
    let (Some(send), Some(_)) = (send, entry.receive.checked_add(total)) else { return Err(range) };
    if send.checked_add(bytes).is_none() {
        return Err(range);
    }
    let (send, receive) = ((send, bytes), (entry.receive, total));
    let signature = Signature { kind: CallKind::Allgather, bytes };
    Ok(Asked { signature, in_place: entry.in_place, blocks: None, send, receive })
}

/// The root sends from its buffer, all others receive into theirs.
fn broadcast(entry: &BroadcastEntry, rank: Rank, ranks: u32) -> Result<Asked, Refusal> {
    let &BroadcastEntry { root, buffer, bytes, .. } = entry;
    if root >= ranks {
        return Err(Refusal::Root { root, ranks });
    }
    let (own, none) = ((buffer, bytes), (0, 0));
    let (send, receive) = if rank.0 == root { (own, none) } else { (none, own) };
    if bytes > MOST_BYTES || buffer.checked_add(bytes).is_none() {
        return Err(Refusal::Range { bytes, send: send.0, receive: receive.0 });
    }
    let signature = Signature { kind: CallKind::Broadcast { root: Rank(root) }, bytes };
    Ok(Asked { signature, in_place: false, blocks: None, send, receive })
}

/// The blocks as the entry or the rank's table says. The table is copied before it is looked at, and never again: the rank may
/// write to it.
fn alltoall(entry: &AlltoallEntry, rank: Rank, ranks: u32, memory: &TieredMemory) -> Result<Asked, Refusal> {
    let &AlltoallEntry { send, receive, .. } = entry;
    let (signature, blocks, (sent, received)) = match entry.blocks {
        // Even blocks follow from the signature.
        BlockSizes::Even { bytes } => {
            let total = bytes.checked_mul(ranks.into()).ok_or(Refusal::Range { bytes, send, receive })?;
            (Signature { kind: CallKind::Alltoall, bytes }, None, (total, total))
        }
        BlockSizes::Table { address } => {
            let [send, receive] = read_lists(address, ranks, memory)?;
            let blocks = Blocks { send: spans(&send, Span::input), receive: spans(&receive, Span::output) };
            blocks.check(ranks, rank)?;
            let bytes = blocks.bytes();
            (Signature { kind: CallKind::Alltoallv, bytes: 0 }, Some(Arc::new(blocks)), bytes)
        }
    };
    let bytes = sent.max(received);
    if bytes > MOST_BYTES || send.checked_add(sent).is_none() || receive.checked_add(received).is_none() {
        return Err(Refusal::Range { bytes, send, receive });
    }
    Ok(Asked { signature, in_place: false, blocks, send: (send, sent), receive: (receive, received) })
}

/// As [`alltoall`], with one block to send, whose bytes all ranks know.
fn allgatherv(entry: &AllgathervEntry, rank: Rank, ranks: u32, memory: &TieredMemory) -> Result<Asked, Refusal> {
    let &AllgathervEntry { send, receive, in_place, table, .. } = entry;
    let [list] = read_lists(table, ranks, memory)?;
    let own = list[rank.0 as usize];
    let range = |bytes| Refusal::Range { bytes, send, receive };
    let sizes = || list.iter().map(|(_, bytes)| *bytes);
    let extents = Extents::uneven(sizes()).filter(|extents| extents.total() <= MOST_BYTES);
    let total = extents.ok_or(range(u64::MAX))?.total();
    let end = list.iter().try_fold(0, |end: u64, (offset, bytes)| Some(end.max(offset.checked_add(*bytes)?)));
    let end = end.filter(|&end| end <= MOST_BYTES && receive.checked_add(end).is_some()).ok_or(range(total))?;
    let send = if in_place { receive + own.0 } else { send };
    if send.checked_add(own.1).is_none() {
        return Err(range(own.1));
    }
    let blocks = Blocks { send: vec![Span::input(0, own.1)], receive: spans(&list, Span::output) };
    let signature = Signature { kind: CallKind::Allgatherv { sizes: sizes_digest(sizes()) }, bytes: total };
    Ok(Asked { signature, in_place, blocks: Some(Arc::new(blocks)), send: (send, own.1), receive: (receive, end) })
}

/// Offset and bytes of the block of each rank.
type List = Vec<(u64, u64)>;

fn spans(list: &List, span: fn(u64, u64) -> Span) -> Vec<Span> {
    list.iter().map(|&(offset, bytes)| span(offset, bytes)).collect()
}

/// The lists of a table: bytes by rank, then offsets by rank, list after list.
fn read_lists<const N: usize>(address: u64, ranks: u32, memory: &TieredMemory) -> Result<[List; N], Refusal> {
    let ranks = ranks as usize;
    let mut table = vec![0; N * 2 * 8 * ranks];
    memory.read(address, &mut table).map_err(|error| Refusal::Table { address, error })?;
    let numbers: Vec<u64> = table.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect();
    Ok(std::array::from_fn(|at| {
        let (bytes, offsets) = numbers[2 * at * ranks..][..2 * ranks].split_at(ranks);
        // An empty block lies nowhere, whatever its offset.
        let block = |(&offset, &bytes)| if bytes == 0 { (0, 0) } else { (offset, bytes) };
        offsets.iter().zip(bytes).map(block).collect()
    }))
}
