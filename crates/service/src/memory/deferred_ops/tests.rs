use std::sync::Arc;

use outboard_plan::{Element, Operator, Reduction};
use outboard_shm::memory::{AccessError, RankMemory, TieredMemory};
use outboard_shm::region::MemfdRegion as Shared;

use super::*;
use crate::memory::{EndpointMemory, MemoryFault, MemoryPieces, PostedBuffers};

/// Address of each rank's buffer, and of the rank's copy of the buffer.
const BUFFER: u64 = 0x10000;
const COPY: u64 = 0x20000;
const BYTES: u64 = 64;

const STAGING: MemRegion = MemRegion::Staging(StagingId(9));

fn input(call: u64) -> MemRegion {
    MemRegion::Input(CallId(call))
}

fn output(call: u64) -> MemRegion {
    MemRegion::Output(CallId(call))
}

fn piece(region: MemRegion) -> MemRef {
    MemRef { region, offset: 0, len: 8 }
}

/// The memory of a service process. Calls count from 1. Each call has its own rank, and its input and output are the
/// same bytes.
struct Host {
    memory: EndpointMemory,
    ranks: Vec<Arc<TieredMemory>>,
}

impl Host {
    fn new(calls: u64) -> Host {
        let mut host = Host { memory: EndpointMemory::default(), ranks: Vec::new() };
        let buffer = host.memory.pool.take(BYTES).expect("memory");
        host.memory.staging.insert(StagingId(9), Some(buffer));
        for call in 1..=calls {
            let memory = TieredMemory::default();
            for start in [BUFFER, COPY] {
                let region = Shared::create("test", BYTES as usize).expect("memory");
                let descriptor = region.fd().try_clone_to_owned().expect("descriptors");
                memory.ranges().register(start, BYTES, descriptor).expect("free");
            }
            let memory = Arc::new(memory);
            host.ranks.push(Arc::clone(&memory));
            host.memory.insert(CallId(call), PostedBuffers::new(memory, (BUFFER, BYTES), (BUFFER, BYTES)));
        }
        host
    }

    /// Simulates that the kernel withdraws access to the buffers of this call.
    fn withdraw(&mut self, call: u64) {
        let error = AccessError::Withdrawn { address: BUFFER, bytes: 8 };
        self.memory.note_fault(MemoryFault::Call { call: CallId(call), error });
    }

    fn end_await(&mut self, call: u64) {
        assert!(self.memory.restage(CallId(call), COPY, COPY));
    }

    fn copy(&mut self, from: MemRegion, to: MemRegion) {
        self.memory.do_or_defer(MemoryWork::Copy { from: piece(from), to: piece(to) });
    }

    fn deliver(&mut self, byte: u8, to: MemRegion) {
        self.memory.do_or_defer(MemoryWork::Deliver { bytes: vec![byte; 8], to: piece(to) });
    }

    fn combine(&mut self, from: MemRegion, into: MemRegion) {
        let reduction = Reduction::new(Operator::Sum, Element::U8).expect("defined");
        let (from, into) = (piece(from), piece(into));
        self.memory.do_or_defer(MemoryWork::Reduce(OrderedReduction { from, into, reduction, from_left: false }));
    }

    fn defers(&self, call: u64) -> bool {
        self.memory.deferred_ops.names_call(CallId(call))
    }

    fn found(&self, call: u64, address: u64) -> u8 {
        let mut found = [0];
        self.ranks[call as usize - 1].read(address, &mut found).expect("registered");
        found[0]
    }
}

#[test]
fn gp_9_work_that_depends_on_an_awaited_call_waits() {
    let mut host = Host::new(3);
    host.withdraw(1);
    assert!(!host.defers(1), "it has nothing left to do");
    host.copy(input(1), STAGING);
    host.copy(STAGING, output(2));
    host.deliver(6, output(3));
    assert!(host.defers(1) && host.defers(2) && !host.defers(3));
    host.ranks[0].write(COPY, &[4; 8]).expect("registered");
    host.end_await(2);
    assert!(host.defers(2), "nobody waits for its own copy");
    host.end_await(1);
    assert!(!host.defers(1) && !host.defers(2));
    assert_eq!((host.found(2, COPY), host.found(3, BUFFER)), (4, 6));
}

/// GP-2, GP-9: a start is posted with the address of the copy, while the copy for the start before is still awaited.
#[test]
fn starts_of_a_recording_keep_their_order_wherever_their_memory_lies() {
    let mut host = Host::new(1);
    let pieces = Arc::new(MemoryPieces::new([(BUFFER, BYTES)]));
    for (call, copy) in [(2, None), (3, Some(COPY))] {
        let buffers = PostedBuffers::of_recording(Arc::clone(&host.ranks[0]), Arc::clone(&pieces), copy);
        host.memory.insert(CallId(call), buffers);
    }
    host.withdraw(2);
    host.deliver(2, output(2));
    host.deliver(3, output(3));
    assert!(host.defers(2) && host.defers(3));
    host.end_await(2);
    assert!(!host.defers(2) && !host.defers(3));
    assert_eq!(host.found(1, COPY), 3, "what the last has left");
}

#[test]
fn input_that_is_output_is_read_before_it_is_written() {
    let mut host = Host::new(2);
    host.deliver(1, output(1));
    host.withdraw(2);
    host.copy(input(1), output(2));
    host.deliver(5, output(1));
    host.end_await(2);
    assert_eq!((host.found(1, BUFFER), host.found(2, COPY)), (5, 1));
}

#[test]
fn calls_that_need_bytes_of_a_lost_rank_are_reported() {
    let mut host = Host::new(4);
    host.withdraw(1);
    host.withdraw(3);
    host.copy(input(1), STAGING);
    host.copy(STAGING, output(2));
    host.copy(input(4), output(3));
    host.memory.do_or_defer(MemoryWork::Unstage { id: StagingId(9) });
    assert_eq!(host.memory.drop_call_work(CallId(1), false), [CallId(2)]);
    assert!(!host.defers(1) && !host.defers(2) && host.defers(3));
    assert!(host.memory.staging.is_empty(), "nothing needs it any more");
    host.end_await(3);
    assert!(!host.defers(3));
}

/// The bytes of a failed call are lost although they could be read, because work on them waits for another rank.
#[test]
fn calls_that_need_bytes_of_a_failed_call_are_reported() {
    let mut host = Host::new(2);
    host.withdraw(2);
    host.copy(input(1), output(2));
    assert_eq!(host.memory.drop_call_work(CallId(1), false), [CallId(2)]);
    assert!(!host.defers(2));
}

#[test]
fn th_2_results_combined_with_lost_bytes_are_lost() {
    let mut host = Host::new(2);
    host.withdraw(1);
    host.combine(input(1), STAGING);
    host.combine(STAGING, output(2));
    assert!(host.defers(2));
    assert_eq!(host.memory.drop_call_work(CallId(1), true), [CallId(2)]);
    assert!(!host.defers(2));
}

#[test]
fn payload_is_bounded() {
    let mut host = Host::new(1);
    host.withdraw(1);
    let to = MemRef { len: MAX_HELD_BYTES as u64, ..piece(output(1)) };
    host.memory.do_or_defer(MemoryWork::Deliver { bytes: vec![0; MAX_HELD_BYTES], to });
    assert!(host.memory.take_faults().is_empty());
    host.deliver(1, output(1));
    assert_eq!(host.memory.take_faults(), [(CallId(1), crate::memory::FaultCause::Buffer)]);
    host.memory.drop_call_work(CallId(1), false);
    assert!(host.memory.deferred_ops.has_room(&MemoryWork::Deliver { bytes: vec![0; MAX_HELD_BYTES], to }));
}
