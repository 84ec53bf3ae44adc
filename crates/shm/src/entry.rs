//! What a rank submits: entries of the submission ring and their layout in words.
//!
//! Decoding checks everything that can be checked without knowing the group; whoever holds the group checks the rest.

use crate::ring::{ENTRY_WORDS, Words};

mod rooted;

pub use rooted::{Direction, RootedBlocks, RootedEntry};

const KIND_ALLGATHER: u64 = 1;
const KIND_BROADCAST: u64 = 2;
const KIND_ALLTOALL: u64 = 3;
const KIND_ALLTOALLV: u64 = 4;
const KIND_ALLGATHERV: u64 = 5;
const KIND_BARRIER: u64 = 16;
const KIND_REDUCE: u64 = 17;
const KIND_ALLREDUCE: u64 = 18;
const KIND_REDUCE_SCATTER: u64 = 19;
const KIND_REDUCE_SCATTER_BLOCK: u64 = 20;
const KIND_SCAN: u64 = 21;
const KIND_EXSCAN: u64 = 22;
const KIND_RECORDED: u64 = 48;
const KIND_SEND: u64 = 49;
const KIND_RECEIVE: u64 = 50;
const FLAG_IN_PLACE: u64 = 1;

/// A rank's request to its service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Start an allgather.
    Allgather(AllgatherEntry),
    /// Start a broadcast.
    Broadcast(BroadcastEntry),
    /// Start an alltoall.
    Alltoall(AlltoallEntry),
    /// Start an allgather of blocks of different sizes.
    Allgatherv(AllgathervEntry),
    /// Start a gather or scatter.
    Rooted(RootedEntry),
    /// Start a barrier.
    Barrier(BarrierEntry),
    /// Start a reduction of some kind.
    Reduction(ReductionEntry),
    /// Call a recorded group: nothing else is said of it again (GP-5).
    Recorded(RecordedEntry),
    /// Start a single message (GP-1).
    Message(MessageEntry),
}

/// The call of a recorded group as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// Which of this rank's calls of recordings and messages on the group this is, from 1.
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// Which of the rank's recordings on the group, from 1.
    pub recording: u32,
    /// Address of a copy of all memory that was recorded, piece after piece; 0 where it lies as it was recorded.
    pub copy: u64,
}

/// A single tagged message as one of its ends posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MessageEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`RecordedEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// Which end.
    pub end: MessageEnd,
    /// The rank at the other end.
    pub peer: u32,
    /// What both ends call the message.
    pub tag: u32,
    /// Address of `bytes` bytes in the rank: read by a send, written by a receive.
    pub buffer: u64,
    /// Bytes sent, or received at most.
    pub bytes: u64,
}

/// An end of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageEnd {
    /// Where it comes from.
    Send,
    /// Where it goes.
    Receive,
}

/// An allgather as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllgatherEntry {
    /// The group, by the identifier that the service process gave this rank.
    pub group: u64,
    /// Which of the group's offloaded calls this is, from 1.
    pub instance: u64,
    /// The completion word that takes the result.
    pub slot: u32,
    /// The contribution already lies in its place of the receive buffer; `send` is 0.
    pub in_place: bool,
    /// Address of `bytes_per_rank` bytes in the rank.
    pub send: u64,
    /// Address of `bytes_per_rank * ranks` bytes in the rank.
    pub receive: u64,
    /// Bytes that each rank contributes.
    pub bytes_per_rank: u64,
}

/// A broadcast as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BroadcastEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`AllgatherEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// The rank whose bytes all others receive.
    pub root: u32,
    /// Address of `bytes` bytes in the rank: read on the root, written elsewhere.
    pub buffer: u64,
    /// Bytes of the buffer.
    pub bytes: u64,
}

/// An alltoall or alltoallv as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AlltoallEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`AllgatherEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// Address in the rank that offsets of blocks to send count from.
    pub send: u64,
    /// Address in the rank that offsets of blocks to receive count from.
    pub receive: u64,
    /// How large the blocks are and where.
    pub blocks: BlockSizes,
}

/// An allgatherv as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllgathervEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`AllgatherEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// As of [`AllgatherEntry`].
    pub in_place: bool,
    /// Address of the rank's own block.
    pub send: u64,
    /// Address in the rank that offsets of blocks count from.
    pub receive: u64,
    /// Address in the rank of a table, read when the entry is taken: two lists of one u64 per rank, the bytes of the blocks
    /// and their offsets.
    pub table: u64,
}

/// A barrier as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BarrierEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`AllgatherEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
}

/// A reduction as the rank posts it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReductionEntry {
    /// As of [`AllgatherEntry`].
    pub group: u64,
    /// As of [`AllgatherEntry`].
    pub instance: u64,
    /// As of [`AllgatherEntry`].
    pub slot: u32,
    /// Who receives what of the result.
    pub result: Reduced,
    /// Operator and element, as their code on the wire.
    pub code: u16,
    /// The contribution lies where the result goes, from its start; `send` is 0.
    pub in_place: bool,
    /// Address of the contribution.
    pub send: u64,
    /// Address of the result, where the rank receives one.
    pub receive: u64,
}

/// What becomes of the combined vectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduced {
    /// One rank receives them.
    Reduce {
        /// That rank.
        root: u32,
        /// Bytes of a vector.
        bytes: u64,
    },
    /// All ranks receive them.
    Allreduce {
        /// Bytes of a vector.
        bytes: u64,
    },
    /// Every rank receives its block of them.
    ReduceScatter {
        /// Address in the rank of a table, read when the entry is taken: one u64 per rank, the bytes of the blocks.
        table: u64,
    },
    /// Every rank receives its block of them.
    ReduceScatterBlock {
        /// Bytes of a block.
        bytes: u64,
    },
    /// Every rank receives those of itself and of the ranks before it.
    Scan {
        /// Bytes of a vector.
        bytes: u64,
    },
    /// Every rank but the first receives those of the ranks before it.
    Exscan {
        /// Bytes of a vector.
        bytes: u64,
    },
}

/// The sizes of the blocks of an all-to-all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BlockSizes {
    /// All of so many bytes, in the order of ranks.
    Even {
        /// Bytes of a block.
        bytes: u64,
    },
    /// As a table at this address in the rank says, read when the entry is taken: four lists of one u64 per rank, in the
    /// order bytes to send, their offsets, bytes to receive, their offsets.
    Table {
        /// Its address.
        address: u64,
    },
}

/// An entry that no library of ours writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("malformed submission: {field} is {value:#x}")]
pub struct BadEntry {
    /// The field that cannot be.
    pub field: &'static str,
    /// What it holds.
    pub value: u64,
}

impl Entry {
    /// The entry as it lies in the ring.
    pub fn encode(&self) -> Words {
        let mut words = [0; ENTRY_WORDS];
        let (group, instance, slot) = self.call();
        (words[1], words[2], words[3]) = (group, instance, u64::from(slot));
        match self {
            Entry::Allgather(entry) => {
                words[0] = KIND_ALLGATHER;
                words[4] = if entry.in_place { FLAG_IN_PLACE } else { 0 };
                words[5] = entry.send;
                words[6] = entry.receive;
                words[7] = entry.bytes_per_rank;
            }
            Entry::Broadcast(entry) => {
                words[0] = KIND_BROADCAST;
                words[4] = u64::from(entry.root);
                words[5] = entry.buffer;
                words[7] = entry.bytes;
            }
            Entry::Allgatherv(entry) => {
                words[0] = KIND_ALLGATHERV;
                words[4] = if entry.in_place { FLAG_IN_PLACE } else { 0 };
                words[5] = entry.send;
                words[6] = entry.receive;
                words[7] = entry.table;
            }
            Entry::Rooted(entry) => entry.encode(&mut words),
            Entry::Barrier(_) => words[0] = KIND_BARRIER,
            Entry::Reduction(entry) => {
                (words[0], words[7]) = match entry.result {
                    Reduced::Reduce { root, bytes } => {
                        words[9] = u64::from(root);
                        (KIND_REDUCE, bytes)
                    }
                    Reduced::Allreduce { bytes } => (KIND_ALLREDUCE, bytes),
                    Reduced::ReduceScatter { table } => (KIND_REDUCE_SCATTER, table),
                    Reduced::ReduceScatterBlock { bytes } => (KIND_REDUCE_SCATTER_BLOCK, bytes),
                    Reduced::Scan { bytes } => (KIND_SCAN, bytes),
                    Reduced::Exscan { bytes } => (KIND_EXSCAN, bytes),
                };
                words[4] = if entry.in_place { FLAG_IN_PLACE } else { 0 };
                words[5] = entry.send;
                words[6] = entry.receive;
                words[8] = u64::from(entry.code);
            }
            Entry::Alltoall(entry) => {
                (words[0], words[7]) = match entry.blocks {
                    BlockSizes::Even { bytes } => (KIND_ALLTOALL, bytes),
                    BlockSizes::Table { address } => (KIND_ALLTOALLV, address),
                };
                words[5] = entry.send;
                words[6] = entry.receive;
            }
            Entry::Recorded(entry) => {
                words[0] = KIND_RECORDED;
                words[4] = u64::from(entry.recording);
                words[5] = entry.copy;
            }
            Entry::Message(entry) => {
                words[0] = match entry.end {
                    MessageEnd::Send => KIND_SEND,
                    MessageEnd::Receive => KIND_RECEIVE,
                };
                words[4] = u64::from(entry.peer);
                words[5] = entry.buffer;
                words[6] = u64::from(entry.tag);
                words[7] = entry.bytes;
            }
        }
        words
    }

    /// The group that the entry names.
    pub fn group(&self) -> u64 {
        self.call().0
    }

    /// Which of the group's offloaded calls it is, or of the rank's recordings and messages there, from 1.
    pub fn instance(&self) -> u64 {
        self.call().1
    }

    /// The completion word that takes the result.
    pub fn slot(&self) -> u32 {
        self.call().2
    }

    /// What every entry says: group, instance and slot.
    fn call(&self) -> (u64, u64, u32) {
        match *self {
            Entry::Allgather(AllgatherEntry { group, instance, slot, .. })
            | Entry::Broadcast(BroadcastEntry { group, instance, slot, .. })
            | Entry::Alltoall(AlltoallEntry { group, instance, slot, .. })
            | Entry::Allgatherv(AllgathervEntry { group, instance, slot, .. })
            | Entry::Rooted(RootedEntry { group, instance, slot, .. })
            | Entry::Barrier(BarrierEntry { group, instance, slot, .. })
            | Entry::Reduction(ReductionEntry { group, instance, slot, .. })
            | Entry::Recorded(RecordedEntry { group, instance, slot, .. })
            | Entry::Message(MessageEntry { group, instance, slot, .. }) => (group, instance, slot),
        }
    }

    /// The entry in `words`; `slots` is the number of completion words that the rank has.
    ///
    /// # Errors
    /// [`BadEntry`] names the first field that cannot be.
    pub fn decode(words: &Words, slots: u32) -> Result<Entry, BadEntry> {
        let check = |ok: bool, field, value| {
            if ok { Ok(()) } else { Err(BadEntry { field, value }) }
        };
        let rooted = rooted::Kind::of(words[0]);
        let reduces = (KIND_REDUCE..=KIND_EXSCAN).contains(&words[0]);
        let tagged = (KIND_RECORDED..=KIND_RECEIVE).contains(&words[0]);
        let moves = (KIND_ALLGATHER..=KIND_ALLGATHERV).contains(&words[0]) || rooted.is_some() || tagged;
        check(moves || words[0] == KIND_BARRIER || reduces, "kind", words[0])?;
        check(words[2] != 0, "instance", words[2])?;
        check(words[3] < u64::from(slots), "slot", words[3])?;
        let used = match words[0] {
            KIND_BARRIER => 4,
            KIND_REDUCE => 10,
            _ if reduces => 9,
            _ => 8,
        };
        for &spare in &words[used..] {
            check(spare == 0, "spare word", spare)?;
        }
        if let Some(kind) = rooted {
            return RootedEntry::decode(words, kind).map(Entry::Rooted);
        }
        let (group, instance, slot) = (words[1], words[2], words[3] as u32);
        if words[0] == KIND_BARRIER {
            return Ok(Entry::Barrier(BarrierEntry { group, instance, slot }));
        }
        if reduces {
            return Self::decode_reduction(words, (group, instance, slot)).map(Entry::Reduction);
        }
        if tagged {
            return decode_tagged(words, slot);
        }
        if words[0] == KIND_BROADCAST {
            let root = u32::try_from(words[4]).map_err(|_| BadEntry { field: "root", value: words[4] })?;
            check(words[6] == 0, "spare word", words[6])?;
            return Ok(Entry::Broadcast(BroadcastEntry {
                group,
                instance,
                slot,
                root,
                buffer: words[5],
                bytes: words[7],
            }));
        }
        if words[0] == KIND_ALLTOALL || words[0] == KIND_ALLTOALLV {
            check(words[4] == 0, "flags", words[4])?;
            let even = words[0] == KIND_ALLTOALL;
            let (send, receive) = (words[5], words[6]);
            let blocks =
                if even { BlockSizes::Even { bytes: words[7] } } else { BlockSizes::Table { address: words[7] } };
            return Ok(Entry::Alltoall(AlltoallEntry { group, instance, slot, send, receive, blocks }));
        }
        check(words[4] & !FLAG_IN_PLACE == 0, "flags", words[4])?;
        let in_place = words[4] & FLAG_IN_PLACE != 0;
        if words[0] == KIND_ALLGATHERV {
            let (send, receive, table) = (words[5], words[6], words[7]);
            return Ok(Entry::Allgatherv(AllgathervEntry { group, instance, slot, in_place, send, receive, table }));
        }
        Ok(Entry::Allgather(AllgatherEntry {
            group,
            instance,
            slot,
            in_place,
            send: words[5],
            receive: words[6],
            bytes_per_rank: words[7],
        }))
    }

    fn decode_reduction(words: &Words, (group, instance, slot): (u64, u64, u32)) -> Result<ReductionEntry, BadEntry> {
        let fits = |field, value: u64| u32::try_from(value).map_err(|_| BadEntry { field, value });
        let code = u16::try_from(words[8]).map_err(|_| BadEntry { field: "reduction", value: words[8] })?;
        let bytes = words[7];
        let result = match words[0] {
            KIND_REDUCE => Reduced::Reduce { root: fits("root", words[9])?, bytes },
            KIND_ALLREDUCE => Reduced::Allreduce { bytes },
            KIND_REDUCE_SCATTER => Reduced::ReduceScatter { table: words[7] },
            KIND_REDUCE_SCATTER_BLOCK => Reduced::ReduceScatterBlock { bytes },
            KIND_SCAN => Reduced::Scan { bytes },
            _ => Reduced::Exscan { bytes },
        };
        if words[4] & !FLAG_IN_PLACE != 0 {
            return Err(BadEntry { field: "flags", value: words[4] });
        }
        let in_place = words[4] & FLAG_IN_PLACE != 0;
        Ok(ReductionEntry { group, instance, slot, result, code, in_place, send: words[5], receive: words[6] })
    }
}

/// Entries of recordings and messages. The caller has checked what all entries have.
fn decode_tagged(words: &Words, slot: u32) -> Result<Entry, BadEntry> {
    let narrow = |at: usize, field| u32::try_from(words[at]).map_err(|_| BadEntry { field, value: words[at] });
    let (group, instance) = (words[1], words[2]);
    let end = match words[0] {
        KIND_SEND => MessageEnd::Send,
        KIND_RECEIVE => MessageEnd::Receive,
        _ => {
            if let Some(&value) = words[6..8].iter().find(|word| **word != 0) {
                return Err(BadEntry { field: "spare word", value });
            }
            let recording = narrow(4, "recording")?;
            return Ok(Entry::Recorded(RecordedEntry { group, instance, slot, recording, copy: words[5] }));
        }
    };
    let (peer, tag) = (narrow(4, "peer")?, narrow(6, "tag")?);
    Ok(Entry::Message(MessageEntry { group, instance, slot, end, peer, tag, buffer: words[5], bytes: words[7] }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_survives_the_ring_and_bad_fields_are_named() {
        let entry = Entry::Allgather(AllgatherEntry {
            group: 3,
            instance: u64::MAX,
            slot: 9,
            in_place: true,
            send: 0,
            receive: 0x7fff_0000_1000,
            bytes_per_rank: 1 << 20,
        });
        let words = entry.encode();
        assert_eq!(Entry::decode(&words, 10), Ok(entry));
        assert_eq!(Entry::decode(&words, 9).unwrap_err().field, "slot");
        for (word, field) in [(0, "kind"), (4, "flags"), (14, "spare word")] {
            let mut bad = words;
            bad[word] = 0x80;
            assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field, value: 0x80 }));
        }
    }
    #[test]
    fn a_broadcast_survives_the_ring_and_bad_fields_are_named() {
        let broadcast = BroadcastEntry { group: 3, instance: 1, slot: 2, root: 7, buffer: 0x5000, bytes: 9 };
        let entry = Entry::Broadcast(broadcast);
        let words = entry.encode();
        assert_eq!(Entry::decode(&words, 10), Ok(entry));
        assert_eq!((entry.group(), entry.instance(), entry.slot()), (3, 1, 2));
        for (word, value, field) in [(4, 1 << 32, "root"), (6, 1, "spare word"), (0, 6, "kind")] {
            let mut bad = words;
            bad[word] = value;
            assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field, value }));
        }
    }

    #[test]
    fn a_barrier_survives_the_ring_and_bad_fields_are_named() {
        let entry = Entry::Barrier(BarrierEntry { group: 3, instance: 1, slot: 2 });
        let words = entry.encode();
        assert_eq!(Entry::decode(&words, 10), Ok(entry));
        assert_eq!((entry.group(), entry.instance(), entry.slot()), (3, 1, 2));
        let mut bad = words;
        bad[7] = 1;
        assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field: "spare word", value: 1 }));
    }

    #[test]
    fn reductions_survive_the_ring_and_bad_fields_are_named() {
        let results = [
            Reduced::Reduce { root: 7, bytes: 8 },
            Reduced::Allreduce { bytes: 8 },
            Reduced::ReduceScatter { table: 0x7000 },
            Reduced::ReduceScatterBlock { bytes: 8 },
            Reduced::Scan { bytes: 8 },
            Reduced::Exscan { bytes: 8 },
        ];
        for (result, in_place) in results.into_iter().zip([true, false].into_iter().cycle()) {
            let (code, send, receive) = (0x010c, 0x5000, 0x6000);
            let reduction = ReductionEntry { group: 3, instance: 1, slot: 2, result, code, in_place, send, receive };
            let entry = Entry::Reduction(reduction);
            let words = entry.encode();
            assert_eq!(Entry::decode(&words, 10), Ok(entry));
            assert_eq!((entry.group(), entry.instance(), entry.slot()), (3, 1, 2));
            let others = [(4, 2, "flags"), (8, 1 << 16, "reduction"), (10, 1, "spare word"), (0, 23, "kind")];
            for (word, value, field) in others {
                let mut bad = words;
                bad[word] = value;
                assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field, value }));
            }
        }
    }

    #[test]
    fn an_allgatherv_survives_the_ring() {
        for in_place in [false, true] {
            let (send, receive, table) = (0x5000, 0x6000, 0x7000);
            let entry = AllgathervEntry { group: 3, instance: 1, slot: 2, in_place, send, receive, table };
            let words = Entry::Allgatherv(entry).encode();
            assert_eq!(Entry::decode(&words, 10), Ok(Entry::Allgatherv(entry)));
        }
    }

    /// GP-1, GP-5.
    #[test]
    fn recordings_and_messages_survive_the_ring_and_bad_fields_are_named() {
        let recorded = RecordedEntry { group: 3, instance: 1, slot: 2, recording: 9, copy: 0x5000 };
        let message = |end| {
            let (peer, tag, buffer, bytes) = (7, u32::MAX, 0x5000, 1 << 40);
            Entry::Message(MessageEntry { group: 3, instance: 1, slot: 2, end, peer, tag, buffer, bytes })
        };
        let entries = [Entry::Recorded(recorded), message(MessageEnd::Send), message(MessageEnd::Receive)];
        for entry in entries {
            let words = entry.encode();
            assert_eq!(Entry::decode(&words, 10), Ok(entry));
            assert_eq!((entry.group(), entry.instance(), entry.slot()), (3, 1, 2));
            let wide = words.map(|word| word | 1 << 32);
            assert!(Entry::decode(&wide, 10).is_err());
        }
        for (entry, word, value, field) in
            [(0, 6, 1, "spare word"), (0, 4, 1 << 32, "recording"), (1, 6, 1 << 32, "tag")]
        {
            let mut bad = entries[entry].encode();
            bad[word] = value;
            assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field, value }));
        }
    }

    #[test]
    fn all_to_alls_survive_the_ring_and_bad_fields_are_named() {
        for blocks in [BlockSizes::Even { bytes: 9 }, BlockSizes::Table { address: 0x7000 }] {
            let entry = AlltoallEntry { group: 3, instance: 1, slot: 2, send: 0x5000, receive: 0x6000, blocks };
            let words = Entry::Alltoall(entry).encode();
            assert_eq!(Entry::decode(&words, 10), Ok(Entry::Alltoall(entry)));
            let mut bad = words;
            bad[4] = 1;
            assert_eq!(Entry::decode(&bad, 10), Err(BadEntry { field: "flags", value: 1 }));
        }
    }
}
