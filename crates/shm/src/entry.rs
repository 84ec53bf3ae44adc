//! Entries of the submission ring, which ranks submit, and their layout in words.
//!
//! Decoding makes every check that does not depend on the group. The owner of the group makes the other checks, by
//! [`Call::footprint`].

use outboard_call::codec::DecodeError;
use outboard_call::{CALL_WORDS, Call};

use crate::ring::{ENTRY_WORDS, EntryWords};

/// Words in front of the call: group, instance, slot.
const HEAD_WORDS: usize = 3;

/// A rank's request to its service process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubmissionEntry {
    /// The group, by the identifier that the service process gave this rank.
    pub group: u64,
    /// Number of this collective among the rank's collectives on the group, from 1. For a recording or a message: any
    /// number but 0, by which the rank names the recording or message later.
    pub instance: u64,
    /// The completion word that takes the result.
    pub slot: u32,
    /// The call. A recording's receive buffer is the address of a copy of all recorded memory, piece after piece; 0 if
    /// the memory is used in place.
    pub call: Call,
}

impl SubmissionEntry {
    /// The entry as it lies in the ring.
    pub fn encode(&self) -> EntryWords {
        let mut words = [0; ENTRY_WORDS];
        words[..HEAD_WORDS].copy_from_slice(&[self.group, self.instance, self.slot.into()]);
        words[HEAD_WORDS..][..CALL_WORDS].copy_from_slice(&self.call.encode());
        words
    }

    /// The entry in `words`; `slots` is the number of completion words that the rank has.
    pub fn decode(words: &EntryWords, slots: u32) -> Result<SubmissionEntry, DecodeError> {
        let [group, instance, slot, call @ .., _, _, _, _, _, _] = *words;
        let slot = u32::try_from(slot).ok().filter(|slot| *slot < slots).ok_or(DecodeError::Value("slot"))?;
        if instance == 0 {
            return Err(DecodeError::Value("instance"));
        }
        if words[HEAD_WORDS + CALL_WORDS..].iter().any(|spare| *spare != 0) {
            return Err(DecodeError::Value("spare word"));
        }
        Ok(SubmissionEntry { group, instance, slot, call: Call::decode(call)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use outboard_call::{CallKind, Rank};

    /// The tests of calls themselves are in the crate that defines calls.
    #[test]
    fn an_entry_survives_the_ring_and_bad_fields_are_named() {
        let kind = CallKind::Scatterv { root: Rank(7) };
        let call = Call { in_place: true, bytes: 9, send: 0x5000, receive: 0x6000, table: 0x7000, ..Call::new(kind) };
        let entry = SubmissionEntry { group: 3, instance: u64::MAX, slot: 9, call };
        let words = entry.encode();
        assert_eq!(SubmissionEntry::decode(&words, 10), Ok(entry));
        assert_eq!(SubmissionEntry::decode(&words, 9), Err(DecodeError::Value("slot")));
        let bad = [(1, 0, "instance"), (2, 1 << 32, "slot"), (9, 1, "spare word"), (14, 1, "spare word")];
        for (word, value, field) in
            bad.into_iter().chain([(3, 6, "call kind"), (3, 2 << 8 | 1, "flags"), (4, 1 << 32, "tag")])
        {
            let mut bad = words;
            bad[word] = value;
            assert_eq!(SubmissionEntry::decode(&bad, 10), Err(DecodeError::Value(field)));
        }
    }
}
