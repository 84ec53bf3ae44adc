//! The allocations of one tagged message on its way through the machines of both ends, after a warm-up.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use outboard_plan::Rank;
use outboard_proto::{CallKind, Config, Endpoint, Event, Instant, Signature, SpId, TaggedCall, Transmit};

use crate::support;

/// Most allocations for a message of 8 bytes in both machines together, including its acknowledgements.
const MOST_OF_A_MESSAGE: u64 = 0;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does all work, under the contract that the caller upholds.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller upholds the contract of `dealloc`; all memory comes from the system's allocator.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// Two machines with one rank each, and their common time.
struct Pair {
    machines: [Endpoint; 2],
    now: Instant,
    calls: u64,
}

impl Pair {
    fn new() -> Self {
        let spec = support::spec(&[10, 11]);
        let machines = [10, 11].map(|sp| Endpoint::new(SpId(sp), Config::default(), sp));
        let mut pair = Pair { machines, now: Instant(1), calls: 0 };
        for (machine, rank) in pair.machines.iter_mut().zip(0..) {
            machine.handle_create_group(pair.now, &spec, Rank(rank));
        }
        pair.settle();
        pair
    }

    /// Moves frames until there are none. Returns the number of successful calls.
    fn settle(&mut self) -> usize {
        let (mut ended, mut moved) = (0, true);
        while std::mem::take(&mut moved) {
            self.now = Instant(self.now.0 + 1000);
            for at in 0..2 {
                while self.machines[at].poll_order().is_some() {}
                while let Some(event) = self.machines[at].poll_event() {
                    ended += usize::from(matches!(event, Event::Completed { result: Ok(()), .. }));
                }
                while let Some(transmit) = self.machines[at].poll_transmit(self.now) {
                    let Transmit::Frame { header, payload, .. } = transmit else { panic!("nothing multicasts") };
                    let bytes = payload.iter().map(|piece| piece.len).sum::<u64>() as u32;
                    self.machines[1 - at].handle_frame(self.now, SpId(10 + at as u64), &header, bytes);
                    moved = true;
                }
            }
        }
        ended
    }

    fn call(&mut self, rank: u32, what: TaggedCall) {
        self.calls += 1;
        let signature = Signature { kind: CallKind::Tagged(what), bytes: 8 };
        self.machines[rank as usize].handle_call(self.now, support::call(self.calls, rank, 0, signature));
    }

    /// Rank 0 sends a message whose receive is posted before.
    fn message(&mut self) {
        self.call(1, TaggedCall::Receive { from: Rank(0), tag: 5 });
        self.call(0, TaggedCall::Send { to: Rank(1), tag: 5 });
        assert_eq!(self.settle(), 2);
    }
}

#[test]
fn a_small_message_allocates_little() {
    const MESSAGES: u64 = 1000;
    let mut pair = Pair::new();
    (0..MESSAGES).for_each(|_| pair.message());
    let before = ALLOCATIONS.with(Cell::get);
    (0..MESSAGES).for_each(|_| pair.message());
    let each = (ALLOCATIONS.with(Cell::get) - before) as f64 / MESSAGES as f64;
    println!("{each:.2} allocations for each message");
    assert!(each <= MOST_OF_A_MESSAGE as f64, "{each}");
}
