use std::sync::Arc;

use outboard_plan::{Element, Operator, Reduction};
use outboard_proto::{CallId, MemRef, MemRegion, StagingId};
use outboard_shm::memory::{RankMemory, TieredMemory};
use outboard_shm::region::MemfdRegion as Shared;
use proptest::prelude::*;

use super::*;
use crate::memory::PostedBuffers;
use crate::memory::combine::OrderedReduction;

const BUFFER: u64 = 0x1_0000_0000;
const BYTES: u64 = 12 << 20;
/// Index of the region of the service process; lower indices are ranks.
const STAGED: u64 = 3;
const PLACES: u64 = STAGED + 1;

/// Three ranks, each with a call whose input is its output, and a staging region. Holds the memory and its expected
/// content.
struct Host {
    memory: EndpointMemory,
    expected: Vec<Vec<u8>>,
}

fn region(place: u64) -> MemRegion {
    if place == STAGED { MemRegion::Staging(StagingId(1)) } else { MemRegion::Output(CallId(place)) }
}

fn piece(place: u64, (offset, len): (u64, u64)) -> MemRef {
    MemRef { region: region(place), offset, len }
}

impl Host {
    fn new() -> Host {
        let mut host = Host { memory: EndpointMemory::default(), expected: Vec::new() };
        for place in 0..PLACES {
            let bytes: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 255 + place) as u8).collect();
            if place == STAGED {
                let buffer = host.memory.pool.take(BYTES).expect("memory");
                buffer.copy_in(0, &bytes);
                host.memory.staging.insert(StagingId(1), Some(buffer));
            } else {
                let memory = TieredMemory::default();
                let shared = Shared::create("test", BYTES as usize).expect("memory");
                let descriptor = shared.fd().try_clone_to_owned().expect("descriptors");
                memory.ranges().register(BUFFER, BYTES, descriptor).expect("free");
                memory.write(BUFFER, &bytes).expect("registered");
                let buffers = PostedBuffers::new(Arc::new(memory), (BUFFER, BYTES), (BUFFER, BYTES));
                host.memory.insert(CallId(place), buffers);
            }
            host.expected.push(bytes);
        }
        host
    }

    fn copy(&mut self, (from, to): (u64, u64), span: (u64, u64)) {
        let range = span.0 as usize..(span.0 + span.1) as usize;
        let bytes = self.expected[from as usize][range.clone()].to_vec();
        self.expected[to as usize][range].copy_from_slice(&bytes);
        self.memory.do_or_defer(MemoryWork::Copy { from: piece(from, span), to: piece(to, span) });
    }

    fn combine(&mut self, (from, into): (u64, u64), span: (u64, u64)) {
        let range = span.0 as usize..(span.0 + span.1) as usize;
        let operand = self.expected[from as usize][range.clone()].to_vec();
        self.expected[into as usize][range].iter_mut().zip(operand).for_each(|(byte, other)| {
            *byte = byte.wrapping_add(other);
        });
        let reduction = Reduction::new(Operator::Sum, Element::U8).expect("defined");
        let (from, into) = (piece(from, span), piece(into, span));
        self.memory.do_or_defer(MemoryWork::Reduce(OrderedReduction { from, into, reduction, from_left: false }));
    }

    fn deliver(&mut self, to: u64, (offset, len): (u64, u64)) {
        let bytes: Vec<u8> = (0..len).map(|at| (at * 3 + offset) as u8).collect();
        self.expected[to as usize][offset as usize..(offset + len) as usize].copy_from_slice(&bytes);
        self.memory.do_or_defer(MemoryWork::Deliver { bytes, to: piece(to, (offset, len)) });
    }

    /// Whether a transmission from `span` of the region `place` reads the expected bytes.
    fn is_right(&mut self, place: u64, span: (u64, u64)) -> bool {
        let mut found = vec![0; span.1 as usize];
        self.memory.locate_to_read(piece(place, span)).and_then(|place| place.read(&mut found)).expect("within reach");
        found == self.expected[place as usize][span.0 as usize..(span.0 + span.1) as usize]
    }

    /// Takes turns until no work is left; returns their number.
    fn finish(&mut self) -> usize {
        self.memory.advance_planned_work();
        (0..).take_while(|_| !self.memory.deferred_ops.is_empty() && self.memory.poll_rank_copies()).count()
    }
}

fn span() -> impl Strategy<Value = (u64, u64)> {
    let short = (0..BYTES, 0..SHORT_BYTES);
    let long = (0..BYTES, 0..BYTES);
    prop_oneof![short, long].prop_map(|(offset, len)| (offset, len.min(BYTES - offset)))
}

#[derive(Debug, Clone)]
enum Act {
    Copy((u64, u64), (u64, u64)),
    Combine((u64, u64), (u64, u64)),
    Deliver(u64, (u64, u64)),
    Read(u64, (u64, u64)),
    SetOut,
    Turn,
}

fn act() -> impl Strategy<Value = Act> {
    let pair = || (0..PLACES, 1..PLACES).prop_map(|(one, behind)| (one, (one + behind) % PLACES));
    prop_oneof![
        4 => (pair(), span()).prop_map(|(pair, span)| Act::Copy(pair, span)),
        4 => (pair(), span()).prop_map(|(pair, span)| Act::Combine(pair, span)),
        1 => (0..PLACES, span()).prop_map(|(to, (offset, len))| Act::Deliver(to, (offset, len.min(SHORT_BYTES)))),
        1 => (0..PLACES, span()).prop_map(|(place, (offset, len))| Act::Read(place, (offset, len.min(SHORT_BYTES)))),
        2 => Just(Act::SetOut),
        1 => Just(Act::Turn),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Each piece of work uses the result of the work before it, and no result of later work, whenever it is done.
    #[test]
    fn deferred_orders_leave_the_same_bytes_as_immediate_ones(acts in prop::collection::vec(act(), 1..40)) {
        let mut host = Host::new();
        for act in acts {
            match act {
                Act::Copy(places, span) => host.copy(places, span),
                Act::Combine(places, span) => host.combine(places, span),
                Act::Deliver(to, span) => host.deliver(to, span),
                Act::Read(place, span) => prop_assert!(host.is_right(place, span)),
                Act::SetOut => _ = host.memory.advance_planned_work(),
                Act::Turn => _ = host.memory.poll_rank_copies(),
            }
        }
        host.finish();
        prop_assert!(host.memory.deferred_ops.is_empty());
        for place in 0..PLACES {
            prop_assert!(host.is_right(place, (0, BYTES)), "place {place}");
        }
    }
}

#[test]
fn a_turn_is_bounded_and_receivers_take_turns() {
    let mut host = Host::new();
    let whole = (0, BYTES);
    for _ in 0..4 {
        host.copy((STAGED, 0), whole);
        host.combine((STAGED, 0), whole);
    }
    host.copy((STAGED, 1), whole);
    host.memory.advance_planned_work();
    let names_call = |host: &Host, call| host.memory.deferred_ops.names_call(CallId(call));
    assert!(host.memory.turn_budget.done < TURN_BYTES + PIECE_BYTES, "{} bytes", host.memory.turn_budget.done);
    assert_eq!(host.memory.deferred_ops.timer(), Some(std::time::Duration::ZERO), "there is more to do");
    host.copy((STAGED, 2), (0, 8));
    assert!(!names_call(&host, 2), "what is short is done");
    let mut turns = 0;
    while names_call(&host, 1) {
        assert!(host.memory.poll_rank_copies() && host.memory.turn_budget.done < TURN_BYTES + PIECE_BYTES);
        turns += 1;
    }
    assert!(turns <= 4 && names_call(&host, 0), "{turns} turns, half of each for whoever asks for less");
    assert!(host.finish() >= 8 && host.is_right(0, whole) && host.is_right(1, whole));
}

/// Work beyond the limit of pieces is deferred without being split, so a turn stays bounded under any load.
#[test]
fn work_beyond_the_piece_limit_is_deferred_whole() {
    let mut host = Host::new();
    let whole = (0, BYTES);
    let mut asked = 0;
    while host.memory.deferred_ops.entries().len() < MAX_PIECES {
        host.combine((STAGED, 0), whole);
        asked += 1;
    }
    let pieces = host.memory.deferred_ops.entries().len();
    for _ in 0..8 {
        host.combine((STAGED, 0), whole);
        host.copy((0, 1), whole);
    }
    assert_eq!(host.memory.deferred_ops.entries().len(), pieces + 16, "{asked} were cut");
    assert!(host.memory.turn_budget.done < TURN_BYTES + PIECE_BYTES, "{} bytes", host.memory.turn_budget.done);
    assert!(host.finish() >= 16 && host.is_right(0, whole) && host.is_right(1, whole));
}

/// Staging memory that is released while planned work reads it stays until that work is done.
#[test]
fn staging_outlives_planned_work_that_reads_it() {
    let mut host = Host::new();
    host.combine((0, STAGED), (0, BYTES));
    host.copy((STAGED, 1), (0, BYTES));
    host.memory.do_or_defer(MemoryWork::Unstage { id: StagingId(1) });
    host.memory.advance_planned_work();
    assert!(host.memory.staging.contains_key(&StagingId(1)));
    host.finish();
    assert!(host.memory.staging.is_empty() && host.is_right(1, (0, BYTES)));
}

/// The bytes of a rank that dies during planned work are lost. A failed call is not reported while other calls can get
/// its bytes.
#[test]
fn planned_work_of_a_lost_rank_is_dropped() {
    for gone in [true, false] {
        let mut host = Host::new();
        host.copy((0, 1), (0, BYTES));
        host.copy((1, 2), (0, BYTES));
        host.memory.advance_planned_work();
        let mut turns = 0;
        while !gone && host.memory.deferred_ops.holds_back(CallId(0), |call| call == CallId(0)) {
            assert!(host.memory.poll_rank_copies() && host.memory.turn_budget.done < TURN_BYTES + PIECE_BYTES);
            turns += 1;
        }
        assert_eq!(turns > 0, !gone);
        let missing = host.memory.drop_call_work(CallId(0), gone);
        let drop_call_work: &[CallId] = if gone { &[CallId(1), CallId(2)] } else { &[] };
        assert_eq!(missing, drop_call_work);
        host.finish();
        assert!(host.memory.deferred_ops.is_empty());
        assert_eq!(host.is_right(2, (0, BYTES)), !gone);
    }
}

/// GP-9: work for a rank that copies its buffers is done turn by turn, like all other work.
#[test]
fn restaged_buffers_stay_within_the_turn_budget() {
    let mut host = Host::new();
    for _ in 0..4 {
        host.combine((0, 1), (0, BYTES));
    }
    host.memory.advance_planned_work();
    for call in [0, 1] {
        assert!(host.memory.restage(CallId(call), BUFFER, BUFFER));
    }
    assert!(host.memory.turn_budget.done < TURN_BYTES + PIECE_BYTES, "{} bytes", host.memory.turn_budget.done);
    assert!(host.finish() >= 4 && host.is_right(1, (0, BYTES)));
}
