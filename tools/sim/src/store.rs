//! The memory of one host: the buffers of calls and staging, under the names that the machine uses for them.
//!
//! Two kinds of contents answer the same questions. Small runs store real bytes, large ones provenance: the source and
//! offset of every byte. Invariant: every access is checked (region known, in bounds, send buffers never written), so a
//! wrong order is found where it is given. Never repairs an order.

mod provenance;

use std::collections::BTreeMap;

use outboard_arithmetic::reduce;
use outboard_plan::{Element, Reduction};
use outboard_proto::wire::{PayloadHash, PayloadHasher};
use outboard_proto::{CallId, MemRef, MemRegion, StagingId, staging_size};

use crate::pattern::ExpectedPart;
use crate::reductions::contribution;
use crate::violation::Violation;
use provenance::IntervalMap;
pub(crate) use provenance::{ContributionId, ProvenancePiece};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreKind {
    Bytes,
    /// Intervals with their sources. This kind also finds reads of memory that nobody wrote.
    Provenance,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StoredPayload {
    Bytes(Vec<u8>),
    Provenance(Vec<ProvenancePiece>),
}

impl StoredPayload {
    /// `len` bytes from `offset`.
    pub(crate) fn part(&self, offset: u64, len: u64) -> StoredPayload {
        match self {
            StoredPayload::Bytes(bytes) => {
                StoredPayload::Bytes(bytes[offset as usize..(offset + len) as usize].to_vec())
            }
            StoredPayload::Provenance(pieces) => {
                let mut part = Vec::new();
                provenance::for_each_piece(pieces, offset, len, |piece| part.push(piece));
                StoredPayload::Provenance(part)
            }
        }
    }

    pub(crate) fn another(self) -> StoredPayload {
        match self {
            StoredPayload::Bytes(bytes) => StoredPayload::Bytes(bytes.into_iter().map(|byte| !byte).collect()),
            StoredPayload::Provenance(pieces) => {
                let other = |piece: ProvenancePiece| ProvenancePiece { offset: piece.offset + 1, ..piece };
                StoredPayload::Provenance(pieces.into_iter().map(other).collect())
            }
        }
    }

    /// The hash of `len` bytes from `offset`, or of their sources where there are no bytes.
    pub(crate) fn hash(&self, hasher: &PayloadHasher, offset: u64, len: u64) -> PayloadHash {
        match self {
            StoredPayload::Bytes(bytes) => hasher.hash(&bytes[offset as usize..(offset + len) as usize]),
            StoredPayload::Provenance(pieces) => {
                let mut named = Vec::new();
                provenance::for_each_piece(pieces, offset, len, |piece| named.extend_from_slice(&piece.bytes()));
                hasher.hash(&named)
            }
        }
    }
}

#[derive(Debug)]
enum BufferContents {
    Bytes(Vec<u8>),
    Provenance { map: IntervalMap, len: u64 },
}

/// Fills memory that nobody has written.
const POISON: u8 = 0xa5;

impl BufferContents {
    fn undefined(kind: StoreKind, len: u64) -> Self {
        match kind {
            StoreKind::Bytes => BufferContents::Bytes(vec![POISON; len as usize]),
            StoreKind::Provenance => BufferContents::Provenance { map: IntervalMap::default(), len },
        }
    }

    fn len(&self) -> u64 {
        match self {
            BufferContents::Bytes(b) => b.len() as u64,
            BufferContents::Provenance { len, .. } => *len,
        }
    }

    /// Writes a contribution, which consists of bytes or of numbers of this element type.
    fn fill(&mut self, start: u64, len: u64, (origin, element): (ContributionId, Element)) {
        match self {
            BufferContents::Bytes(b) => {
                b[start as usize..(start + len) as usize].copy_from_slice(&contribution(origin, element, 0..len));
            }
            BufferContents::Provenance { map, .. } => map.write(start, ProvenancePiece { len, origin, offset: 0 }),
        }
    }

    fn write(&mut self, start: u64, payload: &StoredPayload, offset: u64, len: u64) {
        match (self, payload) {
            _ if len == 0 => {}
            (BufferContents::Bytes(b), StoredPayload::Bytes(p)) => {
                b[start as usize..(start + len) as usize].copy_from_slice(&p[offset as usize..(offset + len) as usize]);
            }
            (BufferContents::Provenance { map, .. }, StoredPayload::Provenance(pieces)) => {
                let mut at = start;
                provenance::for_each_piece(pieces, offset, len, |piece| {
                    map.write(at, piece);
                    at += piece.len;
                });
            }
            _ => unreachable!("one run has one kind of store"),
        }
    }

    fn read(&self, start: u64, len: u64) -> StoredPayload {
        match self {
            BufferContents::Bytes(b) => StoredPayload::Bytes(b[start as usize..(start + len) as usize].to_vec()),
            BufferContents::Provenance { map, .. } => StoredPayload::Provenance(map.read(start, len)),
        }
    }
}

#[derive(Debug)]
struct CallBuffers {
    input: BufferContents,
    output: BufferContents,
    /// The rank's memory cannot be accessed any more.
    faulty: bool,
}

#[derive(Debug)]
pub(crate) struct CheckedMemory {
    kind: StoreKind,
    calls: BTreeMap<CallId, CallBuffers>,
    staging: BTreeMap<StagingId, BufferContents>,
    staged: u64,
    quota: u64,
}

/// How an access within the rules ended.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AccessResult<T> {
    Done(T),
    /// The buffers of this call cannot be accessed: a fault of the rank, not of the machine.
    Fault(CallId),
}

impl CheckedMemory {
    pub(crate) fn new(kind: StoreKind, quota: u64) -> Self {
        CheckedMemory { kind, calls: BTreeMap::new(), staging: BTreeMap::new(), staged: 0, quota }
    }

    /// Adds the buffers of a call. `origin` is its contribution of `bytes`, and `output` the size of the receive
    /// buffer. `place` is where the contribution lies in the receive buffer when the call is in place.
    pub(crate) fn add_call(
        &mut self,
        id: CallId,
        origin: (ContributionId, Element),
        bytes: u64,
        output: u64,
        place: Option<u64>,
    ) {
        let mut input = BufferContents::undefined(self.kind, if place.is_some() { 0 } else { bytes });
        let mut out = BufferContents::undefined(self.kind, output);
        match place {
            Some(at) => out.fill(at, bytes, origin),
            None => input.fill(0, bytes, origin),
        }
        let old = self.calls.insert(id, CallBuffers { input, output: out, faulty: false });
        assert!(old.is_none(), "call ids are drawn once");
    }

    /// Gives the buffers of a call back to its rank. Returns the contents of the receive buffer, or `None` for an
    /// unknown call.
    pub(crate) fn end_call(&mut self, id: CallId) -> Option<CallOutput> {
        self.calls.remove(&id).map(|c| CallOutput { output: c.output })
    }

    /// From now on every access to the buffers of this call faults.
    pub(crate) fn make_faulty(&mut self, id: CallId) {
        if let Some(call) = self.calls.get_mut(&id) {
            call.faulty = true;
        }
    }

    pub(crate) fn stage(&mut self, id: StagingId, bytes: u64) -> Result<(), Violation> {
        if self.staging.contains_key(&id) {
            return Err(Violation::StagedTwice(id));
        }
        self.staged += staging_size(bytes).unwrap_or(u64::MAX);
        if self.staged > self.quota {
            return Err(Violation::StagingQuota { held: self.staged, quota: self.quota });
        }
        self.staging.insert(id, BufferContents::undefined(self.kind, bytes));
        Ok(())
    }

    pub(crate) fn unstage(&mut self, id: StagingId) -> Result<(), Violation> {
        let contents = self.staging.remove(&id).ok_or(Violation::UnstagedTwice(id))?;
        self.staged -= staging_size(contents.len()).expect("it was staged");
        Ok(())
    }

    /// Bytes of staging in use, and the number of pieces.
    pub(crate) fn staged(&self) -> (u64, usize) {
        (self.staged, self.staging.len())
    }

    pub(crate) fn read(&mut self, at: MemRef) -> Result<AccessResult<StoredPayload>, Violation> {
        let contents = match self.find(at)? {
            AccessResult::Done(contents) => contents,
            AccessResult::Fault(call) => return Ok(AccessResult::Fault(call)),
        };
        let payload = contents.read(at.offset, at.len);
        if let StoredPayload::Provenance(pieces) = &payload {
            let holes = pieces.iter().filter(|p| p.origin.is_undefined()).map(|p| p.len).sum();
            if holes > 0 {
                return Err(Violation::ReadsUndefined { at, holes });
            }
        }
        Ok(AccessResult::Done(payload))
    }

    pub(crate) fn gather(&mut self, pieces: &[MemRef]) -> Result<AccessResult<StoredPayload>, Violation> {
        let mut all = match self.kind {
            StoreKind::Bytes => StoredPayload::Bytes(Vec::new()),
            StoreKind::Provenance => StoredPayload::Provenance(Vec::new()),
        };
        for at in pieces {
            match (&mut all, self.read(*at)?) {
                (StoredPayload::Bytes(all), AccessResult::Done(StoredPayload::Bytes(mut bytes))) => {
                    all.append(&mut bytes)
                }
                (StoredPayload::Provenance(all), AccessResult::Done(StoredPayload::Provenance(mut pieces))) => {
                    all.append(&mut pieces)
                }
                (_, AccessResult::Done(_)) => unreachable!("one run has one kind of store"),
                (_, AccessResult::Fault(call)) => return Ok(AccessResult::Fault(call)),
            }
        }
        Ok(AccessResult::Done(all))
    }

    /// Writes `to.len` bytes from `offset` of `payload`. The caller has checked that the payload has them.
    pub(crate) fn write(
        &mut self,
        to: MemRef,
        payload: &StoredPayload,
        offset: u64,
    ) -> Result<AccessResult<()>, Violation> {
        if matches!(to.region, MemRegion::Input(_)) {
            return Err(Violation::WritesInput { at: to });
        }
        Ok(match self.find(to)? {
            AccessResult::Done(contents) => {
                contents.write(to.offset, payload, offset, to.len);
                AccessResult::Done(())
            }
            AccessResult::Fault(call) => AccessResult::Fault(call),
        })
    }

    pub(crate) fn copy(&mut self, from: MemRef, to: MemRef) -> Result<AccessResult<()>, Violation> {
        let overlap =
            from.region == to.region && from.offset < to.offset + to.len && to.offset < from.offset + from.len;
        if from.len != to.len || overlap {
            return Err(Violation::BadCopy { from, to });
        }
        match self.read(from)? {
            AccessResult::Done(payload) => self.write(to, &payload, 0),
            AccessResult::Fault(call) => Ok(AccessResult::Fault(call)),
        }
    }

    pub(crate) fn reduce(
        &mut self,
        reduction: Reduction,
        (from, into): (MemRef, MemRef),
        from_left: bool,
    ) -> Result<AccessResult<()>, Violation> {
        let overlap =
            from.region == into.region && from.offset < into.offset + into.len && into.offset < from.offset + from.len;
        if from.len != into.len || overlap || !from.len.is_multiple_of(reduction.element().bytes()) {
            return Err(Violation::BadReduce { from, into });
        }
        let (from, mut result) = match (self.read(from)?, self.read(into)?) {
            (AccessResult::Done(StoredPayload::Bytes(from)), AccessResult::Done(StoredPayload::Bytes(result))) => {
                (from, result)
            }
            (AccessResult::Fault(call), _) | (_, AccessResult::Fault(call)) => return Ok(AccessResult::Fault(call)),
            (AccessResult::Done(_), AccessResult::Done(_)) => unreachable!("scenarios with reductions have real bytes"),
        };
        reduce(reduction, &from, &mut result, from_left);
        self.write(into, &StoredPayload::Bytes(result), 0)
    }

    fn find(&mut self, at: MemRef) -> Result<AccessResult<&mut BufferContents>, Violation> {
        let contents = match at.region {
            MemRegion::Staging(id) => self.staging.get_mut(&id).ok_or(Violation::StagingGone { at })?,
            MemRegion::Input(id) | MemRegion::Output(id) => {
                let call = self.calls.get_mut(&id).ok_or(Violation::RegionGone { at })?;
                if call.faulty {
                    return Ok(AccessResult::Fault(id));
                }
                if matches!(at.region, MemRegion::Input(_)) { &mut call.input } else { &mut call.output }
            }
        };
        let size = contents.len();
        match at.offset.checked_add(at.len) {
            Some(end) if end <= size => Ok(AccessResult::Done(contents)),
            _ => Err(Violation::OutOfBounds { at, size }),
        }
    }
}

/// The receive buffer of a call that has ended.
#[derive(Debug)]
pub(crate) struct CallOutput {
    output: BufferContents,
}

impl CallOutput {
    /// The first bytes of the buffer, or `None` if the store keeps no bytes.
    pub(crate) fn bytes(&self, len: u64) -> Option<&[u8]> {
        match &self.output {
            BufferContents::Bytes(bytes) => Some(&bytes[..len as usize]),
            BufferContents::Provenance { .. } => None,
        }
    }

    /// Describes where the buffer differs from parts of contributions.
    pub(crate) fn difference(&self, parts: impl Iterator<Item = (ExpectedPart, ContributionId)>) -> Option<String> {
        for (ExpectedPart { at, len, source, from }, origin) in parts {
            let wrong = match self.output.read(at, len) {
                StoredPayload::Bytes(b) => b
                    .iter()
                    .zip(from..)
                    .find(|(byte, i)| **byte != origin.byte(*i))
                    .map(|(byte, i)| format!("byte {} from member {source} is {byte:#04x}", i - from)),
                StoredPayload::Provenance(pieces) => provenance::difference(&pieces, len, origin, from)
                    .map(|(at, piece)| format!("from byte {at} of member {source}'s part lies {piece}")),
            };
            if wrong.is_some() {
                return wrong;
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: CallId = CallId(1);

    fn origin(rank: u32) -> ContributionId {
        ContributionId { group: 0, instance: 1, rank }
    }

    fn blocks() -> impl Iterator<Item = (ExpectedPart, ContributionId)> {
        [0, 1].into_iter().map(|rank| {
            (ExpectedPart { at: 10 * u64::from(rank), len: 10, source: rank as usize, from: 0 }, origin(rank))
        })
    }

    fn output(offset: u64, len: u64) -> MemRef {
        MemRef { region: MemRegion::Output(CALL), offset, len }
    }

    #[test]
    fn both_stores_agree_on_right_and_wrong_bytes() {
        for kind in [StoreKind::Bytes, StoreKind::Provenance] {
            for place in [None, Some(0)] {
                let mut m = CheckedMemory::new(kind, 100);
                m.add_call(CALL, (origin(0), Element::U8), 10, 20, place);
                m.add_call(CallId(2), (origin(1), Element::U8), 10, 20, None);
                if place.is_none() {
                    let from = MemRef { region: MemRegion::Input(CALL), offset: 0, len: 10 };
                    assert_eq!(m.copy(from, output(0, 10)), Ok(AccessResult::Done(())));
                }
                let theirs = MemRef { region: MemRegion::Input(CallId(2)), offset: 0, len: 10 };
                let Ok(AccessResult::Done(payload)) = m.read(theirs) else { panic!("reads") };
                for first in [5, 0] {
                    assert_eq!(m.write(output(10 + first, 5), &payload, first), Ok(AccessResult::Done(())));
                }
                let end = m.end_call(CALL).expect("is there");
                assert_eq!(end.difference(blocks()), None);
            }
            let mut m = CheckedMemory::new(kind, 100);
            m.add_call(CALL, (origin(0), Element::U8), 10, 20, Some(0));
            let end = m.end_call(CALL).expect("is there");
            assert!(end.difference(blocks()).is_some());
        }
    }

    #[test]
    fn rejects_forbidden_accesses() {
        let mut m = CheckedMemory::new(StoreKind::Provenance, 1000);
        m.add_call(CALL, (origin(0), Element::U8), 10, 20, None);
        assert!(matches!(m.read(output(15, 6)), Err(Violation::OutOfBounds { size: 20, .. })));
        assert!(matches!(m.read(output(0, 1)), Err(Violation::ReadsUndefined { holes: 1, .. })));
        let input = MemRef { region: MemRegion::Input(CALL), offset: 0, len: 1 };
        assert!(matches!(m.write(input, &StoredPayload::Provenance(vec![]), 0), Err(Violation::WritesInput { .. })));
        assert_eq!(m.stage(StagingId(1), 60), Ok(()));
        assert!(matches!(m.stage(StagingId(1), 1), Err(Violation::StagedTwice(_))));
        assert!(matches!(m.stage(StagingId(2), 900), Err(Violation::StagingQuota { held: 1216, quota: 1000 })));
        assert_eq!(m.unstage(StagingId(1)), Ok(()));
        assert!(matches!(m.unstage(StagingId(1)), Err(Violation::UnstagedTwice(_))));
        assert!(m.end_call(CALL).is_some());
        assert!(matches!(m.read(input), Err(Violation::RegionGone { .. })));
    }
}
