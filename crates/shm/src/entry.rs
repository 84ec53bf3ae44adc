//! What a rank submits: entries of the submission ring and their layout in words.
//!
//! Decoding checks everything that can be checked without knowing the group; whoever holds the group checks the rest.

use crate::ring::{ENTRY_WORDS, Words};

const KIND_ALLGATHER: u64 = 1;
const FLAG_IN_PLACE: u64 = 1;

/// A rank's request to its service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entry {
    /// Start an allgather.
    Allgather(AllgatherEntry),
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
        match self {
            Entry::Allgather(entry) => {
                words[0] = KIND_ALLGATHER;
                words[1] = entry.group;
                words[2] = entry.instance;
                words[3] = u64::from(entry.slot);
                words[4] = if entry.in_place { FLAG_IN_PLACE } else { 0 };
                words[5] = entry.send;
                words[6] = entry.receive;
                words[7] = entry.bytes_per_rank;
            }
        }
        words
    }

    /// The entry in `words`; `slots` is the number of completion words that the rank has.
    ///
    /// # Errors
    /// [`BadEntry`] names the first field that cannot be.
    pub fn decode(words: &Words, slots: u32) -> Result<Entry, BadEntry> {
        let check = |ok: bool, field, value| {
            if ok { Ok(()) } else { Err(BadEntry { field, value }) }
        };
        check(words[0] == KIND_ALLGATHER, "kind", words[0])?;
        check(words[2] != 0, "instance", words[2])?;
        check(words[3] < u64::from(slots), "slot", words[3])?;
        check(words[4] & !FLAG_IN_PLACE == 0, "flags", words[4])?;
        for &spare in &words[8..] {
            check(spare == 0, "spare word", spare)?;
        }
        Ok(Entry::Allgather(AllgatherEntry {
            group: words[1],
            instance: words[2],
            slot: words[3] as u32,
            in_place: words[4] & FLAG_IN_PLACE != 0,
            send: words[5],
            receive: words[6],
            bytes_per_rank: words[7],
        }))
    }
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
}
