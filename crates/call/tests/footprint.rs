//! Compares footprints as sets of bytes with a table written by hand.

use std::collections::BTreeSet;

use outboard_call::codec::{DecodeError, Reader, Writer};
use outboard_call::{
    CALL_WORDS, Call, CallError, CallKind, Element, Footprint, MOST_BYTES, Operator, Rank, Reduction, Signature,
    TaggedCall,
};
use proptest::prelude::*;

const SEND: u64 = 0x1_0000;
const RECEIVE: u64 = 0x2_0000;

fn sum() -> Reduction {
    Reduction::new(Operator::Sum, Element::U16).expect("defined")
}

/// Every kind, once for each root if the kind has one.
fn kinds(roots: u32) -> Vec<CallKind> {
    let reduction = sum();
    let mut kinds = vec![
        CallKind::Allgather,
        CallKind::Allgatherv { sizes: 0 },
        CallKind::Alltoall,
        CallKind::Alltoallv,
        CallKind::Barrier,
        CallKind::Allreduce { reduction },
        CallKind::ReduceScatter { reduction, sizes: 0 },
        CallKind::ReduceScatterBlock { reduction },
        CallKind::Scan { reduction, inclusive: true },
        CallKind::Scan { reduction, inclusive: false },
        CallKind::Tagged(TaggedCall::Recorded { recording: 7 }),
    ];
    for root in (0..roots).map(Rank) {
        kinds.extend([
            CallKind::Broadcast { root },
            CallKind::Gather { root },
            CallKind::Gatherv { root },
            CallKind::Scatter { root },
            CallKind::Scatterv { root },
            CallKind::Reduce { root, reduction },
            CallKind::Tagged(TaggedCall::Send { to: root, tag: 5 }),
            CallKind::Tagged(TaggedCall::Receive { from: root, tag: 5 }),
        ]);
    }
    kinds
}

/// Addresses of bytes.
type Bytes = BTreeSet<u64>;

fn range(start: u64, bytes: u64) -> Bytes {
    (start..start + bytes).collect()
}

/// The blocks of all ranks: block `i` has `2 * (i % 3)` bytes, `100 * (ranks - i)` from the start. So the blocks of
/// every third rank are empty.
fn block(at: u64, of: u32, ranks: u32) -> Bytes {
    range(at + 100 * u64::from(ranks - of), 2 * u64::from(of % 3))
}

fn blocks(at: u64, ranks: u32, without: Option<u32>) -> Bytes {
    (0..ranks).filter(|of| Some(*of) != without).flat_map(|of| block(at, of, ranks)).collect()
}

fn lists(ranks: u32) -> Vec<u64> {
    let bytes = (0..ranks).map(|of| 2 * u64::from(of % 3));
    bytes.chain((0..ranks).map(|of| 100 * u64::from(ranks - of))).collect()
}

/// The bytes that MPI reads and writes when rank `r` of `n` makes a call with blocks of `b` bytes. `None` if the kind
/// has no in-place form.
fn expected(kind: CallKind, in_place: bool, r: u32, n: u32, b: u64) -> Option<(Bytes, Bytes)> {
    let nothing = Bytes::new;
    let (me, all) = (u64::from(r), u64::from(n) * b);
    let own = 2 * u64::from(r % 3);
    let total: u64 = (0..n).map(|of| 2 * u64::from(of % 3)).sum();
    let from = |bytes| range(if in_place { RECEIVE } else { SEND }, bytes);
    Some(match kind {
        CallKind::Allgather if in_place => (range(RECEIVE + me * b, b), range(RECEIVE, all)),
        CallKind::Allgather => (range(SEND, b), range(RECEIVE, all)),
        CallKind::Allgatherv { .. } if in_place => (block(RECEIVE, r, n), blocks(RECEIVE, n, None)),
        CallKind::Allgatherv { .. } => (range(SEND, own), blocks(RECEIVE, n, None)),
        CallKind::Allreduce { .. } | CallKind::Scan { inclusive: true, .. } => (from(b), range(RECEIVE, b)),
        CallKind::Scan { .. } if r == 0 => (from(b), nothing()),
        CallKind::Scan { .. } => (from(b), range(RECEIVE, b)),
        CallKind::ReduceScatterBlock { .. } => (from(all), range(RECEIVE, b)),
        CallKind::ReduceScatter { .. } => (from(total), range(RECEIVE, own)),
        CallKind::Reduce { root: Rank(root), .. } if r == root => (from(b), range(RECEIVE, b)),
        CallKind::Gather { root: Rank(root) } if r == root && in_place => {
            (range(RECEIVE + me * b, b), range(RECEIVE, all))
        }
        CallKind::Gather { root: Rank(root) } if r == root => (range(SEND, b), range(RECEIVE, all)),
        CallKind::Gatherv { root: Rank(root) } if r == root && in_place => (nothing(), blocks(RECEIVE, n, Some(r))),
        CallKind::Gatherv { root: Rank(root) } if r == root => (range(SEND, own), blocks(RECEIVE, n, None)),
        CallKind::Scatter { root: Rank(root) } if r == root && in_place => (range(SEND, all), nothing()),
        CallKind::Scatter { root: Rank(root) } if r == root => (range(SEND, all), range(RECEIVE, b)),
        CallKind::Scatterv { root: Rank(root) } if r == root && in_place => (blocks(SEND, n, Some(r)), nothing()),
        CallKind::Scatterv { root: Rank(root) } if r == root => (blocks(SEND, n, None), range(RECEIVE, own)),
        _ if in_place => return None,
        CallKind::Reduce { .. } | CallKind::Gather { .. } => (range(SEND, b), nothing()),
        CallKind::Gatherv { .. } => (range(SEND, own), nothing()),
        CallKind::Scatter { .. } => (nothing(), range(RECEIVE, b)),
        CallKind::Scatterv { .. } => (nothing(), range(RECEIVE, own)),
        CallKind::Broadcast { root: Rank(root) } if r == root => (range(SEND, b), nothing()),
        CallKind::Broadcast { .. } => (nothing(), range(RECEIVE, b)),
        CallKind::Alltoall => (range(SEND, all), range(RECEIVE, all)),
        CallKind::Alltoallv => (blocks(SEND, n, None), blocks(RECEIVE, n, None)),
        CallKind::Barrier => (nothing(), nothing()),
        CallKind::Tagged(TaggedCall::Send { .. }) => (range(SEND, b), nothing()),
        CallKind::Tagged(_) => (nothing(), range(RECEIVE, b)),
    })
}

/// A call of `kind` by rank `r` of `n`, and its table.
fn call(kind: CallKind, in_place: bool, r: u32, n: u32, b: u64) -> (Call, Vec<u64>) {
    let paired = matches!(kind, CallKind::Gatherv { .. } | CallKind::Scatterv { .. });
    let bytes = if paired { 2 * u64::from(r % 3) } else { b };
    let call = Call { in_place, bytes, send: SEND, receive: RECEIVE, ..Call::new(kind) };
    let table = lists(n).repeat(call.table_numbers(Rank(r), n) / (2 * n as usize));
    (call, table)
}

fn read(footprint: &Footprint) -> Bytes {
    footprint.read_pieces().flat_map(|(at, bytes)| range(footprint.reads.address + at, bytes)).collect()
}

fn written(footprint: &Footprint) -> Bytes {
    footprint.write_pieces().flat_map(|(at, bytes)| range(footprint.writes.address + at, bytes)).collect()
}

#[test]
fn footprint_matches_the_reference_table() {
    for n in 1..5 {
        for (kind, in_place) in kinds(n).into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
            for (r, b) in (0..n).flat_map(|r| [(r, 0), (r, 6)]) {
                let (call, table) = call(kind, in_place, r, n, b);
                let found = call.footprint(Rank(r), n, &table);
                let Some((reads, writes)) = expected(kind, in_place, r, n, b) else {
                    assert!(matches!(found, Err(CallError::InPlace { .. })), "{call:?} at {r} of {n}: {found:?}");
                    continue;
                };
                let found = found.unwrap_or_else(|error| panic!("{call:?} at {r} of {n}: {error}"));
                assert_eq!((read(&found), written(&found)), (reads, writes), "{call:?} at {r} of {n}");
                assert!(written(&found).into_iter().all(|at| at < RECEIVE + found.output_bytes()));
                let in_receive = found.reads.address >= RECEIVE;
                assert_eq!(found.in_place_at.is_some(), in_receive, "{call:?} at {r} of {n}");
                if in_receive {
                    assert!(read(&found).into_iter().all(|at| at < RECEIVE + found.output_bytes()));
                }
            }
        }
    }
}

/// All ranks with the same call agree, in place or not, and whatever gaps lie between their blocks. If all ranks know
/// the sizes, a rank with other sizes does not agree.
#[test]
fn signatures_of_equal_calls_agree_and_of_other_sizes_differ() {
    for kind in kinds(3) {
        let signatures =
            (0..3).flat_map(|r| [false, true].map(|in_place| (r, in_place))).filter_map(|(r, in_place)| {
                let (call, mut table) = call(kind, in_place, r, 3, 6);
                table.chunks_mut(6).for_each(|list| list[3..].iter_mut().for_each(|offset| *offset += u64::from(r)));
                Some(call.footprint(Rank(r), 3, &table).ok()?.signature)
            });
        let signatures: Vec<Signature> = signatures.collect();
        assert!(signatures.len() >= 3 && signatures.iter().all(|other| other == &signatures[0]), "{signatures:?}");
        let (call, mut table) = call(kind, false, 0, 3, 6);
        if kind.sizes().is_some() {
            table[2] += 2;
            assert_ne!(call.footprint(Rank(0), 3, &table).expect("possible").signature, signatures[0]);
        }
    }
}

/// A relay packs blocks one after another, so its table has no gaps.
#[test]
fn packed_table_has_the_same_blocks_without_gaps() {
    for (kind, in_place) in kinds(4).into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (call, table) = call(kind, in_place, 2, 4, 6);
        let Ok(found) = call.footprint(Rank(2), 4, &table) else { continue };
        let Some(blocks) = &found.blocks else { continue };
        let packed = call.packed_table(Rank(2), blocks);
        let stays = call.in_place && found.in_place_at.is_none();
        let carried = Call { in_place: stays, ..call }.footprint(Rank(2), 4, &packed).expect("possible");
        let lengths = |pieces: Vec<(u64, u64)>| pieces.into_iter().map(|(_, bytes)| bytes).collect::<Vec<_>>();
        assert_eq!(lengths(carried.read_pieces().collect()), lengths(found.read_pieces().collect()), "{call:?}");
        assert_eq!(lengths(carried.write_pieces().collect()), lengths(found.write_pieces().collect()), "{call:?}");
        assert_eq!(carried.signature, found.signature);
        let ends = |pieces: Vec<(u64, u64)>| pieces.iter().map(|(at, bytes)| at + bytes).max().unwrap_or(0);
        let sum: u64 = lengths(carried.read_pieces().collect()).iter().sum();
        assert_eq!(ends(carried.read_pieces().collect()), sum, "no gaps: {call:?}");
    }
}

#[test]
fn invalid_call_is_rejected_with_its_reason() {
    let of = |kind, change: fn(&mut Call)| {
        let (mut call, table) = call(kind, false, 1, 3, 6);
        change(&mut call);
        call.footprint(Rank(1), 3, &table).unwrap_err().to_string()
    };
    let far = of(CallKind::Allgather, |call| call.bytes = MOST_BYTES / 2);
    assert!(far.contains("more than the address space"), "{far}");
    assert!(of(CallKind::Alltoall, |call| call.bytes = u64::MAX).contains("more than the address space"));
    assert!(of(CallKind::Allgather, |call| call.receive = u64::MAX - 3).contains("more than the address space"));
    assert!(of(CallKind::Broadcast { root: Rank(3) }, |_| {}).contains("rank 3 cannot be the root among 3"));
    let peer = CallKind::Tagged(TaggedCall::Send { to: Rank(3), tag: 0 });
    assert!(of(peer, |_| {}).contains("rank 3 cannot be the other end"));
    let odd = of(CallKind::Allreduce { reduction: sum() }, |call| call.bytes = 7);
    assert!(odd.contains("7 bytes are not whole elements of 2"), "{odd}");
    assert!(of(CallKind::Alltoall, |call| call.in_place = true).contains("rank 1 calls alltoall in place"));
    let (call, _) = call(CallKind::Gatherv { root: Rank(1) }, false, 1, 3, 6);
    let short = call.footprint(Rank(1), 3, &[]).unwrap_err().to_string();
    assert!(short.starts_with("0 numbers in the table of blocks instead of 6"), "{short}");
    let own = Call { bytes: 4, ..call }.footprint(Rank(1), 3, &lists(3)).unwrap_err().to_string();
    assert!(own.contains("rank 1 sends itself 4 bytes and receives 2"), "{own}");
    assert!(call.footprint(Rank(3), 3, &[]).is_err() && call.footprint(Rank(0), 0, &[]).is_err());
}

#[test]
fn every_kind_survives_both_codecs() {
    for kind in kinds(3) {
        for in_place in [false, true] {
            let (call, _) = call(kind, in_place, 1, 3, 6);
            let call = Call { table: 0x3_0000, ..call };
            assert_eq!(Call::decode(call.encode()), Ok(call));
        }
        let (call, table) = call(kind, false, 1, 3, 6);
        let signature = call.footprint(Rank(1), 3, &table).expect("possible").signature;
        let mut bytes = Vec::new();
        signature.encode(&mut Writer::new(&mut bytes));
        let mut reader = Reader::new(&bytes);
        let decoded = Signature::decode(&mut reader);
        match kind {
            CallKind::Tagged(_) => assert_eq!(decoded, Err(DecodeError::Value("call kind"))),
            _ => assert_eq!((decoded, reader.end()), (Ok(signature), Ok(()))),
        }
    }
}

/// Arbitrary words of an untrusted rank.
fn words() -> impl Strategy<Value = [u64; CALL_WORDS]> {
    let kind = prop_oneof![any::<u8>(), 0..52u8];
    let number = || prop_oneof![Just(0), 0..200u64, Just(u64::MAX - 3), any::<u64>()];
    let rank = prop_oneof![0..4u32, any::<u32>()];
    let head = (kind, prop_oneof![0..2u8, any::<u8>()], prop_oneof![Just(0), Just(0x010c_u16), any::<u16>()], rank);
    (head, [number(), number(), number(), number(), number()]).prop_map(|((kind, flags, reduction, rank), rest)| {
        let head = u64::from(kind) | u64::from(flags) << 8 | u64::from(reduction) << 16 | u64::from(rank) << 32;
        [head, rest[0], rest[1], rest[2], rest[3], rest[4]]
    })
}

proptest! {
    /// Decoded words encode to the same words. A footprint of decoded words lies in the address space or is rejected.
    #[test]
    fn arbitrary_words_never_panic(
        words in words(),
        rank in 0..5u32,
        ranks in 0..5u32,
        numbers in proptest::collection::vec(prop_oneof![0..64u64, any::<u64>()], 20),
    ) {
        let Ok(call) = Call::decode(words) else { return Ok(()) };
        prop_assert_eq!(call.encode(), words);
        let table = &numbers[..call.table_numbers(Rank(rank), ranks)];
        let Ok(found) = call.footprint(Rank(rank), ranks, table) else { return Ok(()) };
        for (side, pieces) in [
            (found.reads, found.read_pieces().collect::<Vec<_>>()),
            (found.writes, found.write_pieces().collect()),
        ] {
            prop_assert!(side.bytes <= MOST_BYTES);
            for (at, bytes) in pieces {
                prop_assert!(at + bytes <= side.bytes && side.address.checked_add(at + bytes).is_some());
            }
        }
    }
}
