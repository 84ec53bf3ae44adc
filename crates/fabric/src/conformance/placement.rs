//! Payloads that are sent from mapped memory and read straight into place, while the receiver moves and withdraws the
//! place.

use outboard_shm::memory::{MemfdRanges, ScatterList};
use outboard_shm::region::MemfdRegion;

use super::{Factory, TestFabrics, pattern};
use crate::{FabricEvent, FabricLimits, MAX_PAYLOAD, MessageReceiver, PeerId, SendError, SendPayload};

/// Fills memory that must not be written to.
const MARK: u8 = 0x5a;
/// Bytes between the two places of a payload.
const GAP: u64 = 4096;
const TARGET_BYTES: usize = MAX_PAYLOAD + GAP as usize;

struct TargetMemory {
    memory: MemfdRegion,
    ranges: MemfdRanges,
    marked: bool,
}

impl TargetMemory {
    fn new() -> Self {
        let (memory, ranges) = (MemfdRegion::create("target", TARGET_BYTES).expect("memory"), MemfdRanges::default());
        let descriptor = memory.fd().try_clone_to_owned().expect("a descriptor");
        ranges.register(GAP, TARGET_BYTES as u64, descriptor).expect("a range");
        TargetMemory { memory, ranges, marked: false }
    }

    /// Two ranges for one payload; the second range lies at the lower address.
    fn placement(&self, length: usize) -> ScatterList {
        let (first, second) = (length as u64 / 3, length as u64 - length as u64 / 3);
        let places = [(GAP + second + GAP, first), (GAP, second)];
        places.iter().map(|&(at, bytes)| self.ranges.find(at, bytes).expect("within the range")).collect()
    }

    /// Checks that withdrawn memory stays unwritten.
    fn check(&mut self) {
        if std::mem::replace(&mut self.marked, true) {
            let mut found = vec![0; TARGET_BYTES];
            self.memory.read(0, &mut found);
            assert!(found == [MARK; TARGET_BYTES], "something is written to memory that was withdrawn");
        } else {
            self.memory.write(0, &[MARK; TARGET_BYTES]);
        }
    }
}

/// A receiver that offers and withdraws memory.
struct PlacingReceiver {
    targets: [TargetMemory; 3],
    /// The target that the receiver's last answer named for the payload in transit.
    current: Option<usize>,
    requests: usize,
    arrived: usize,
    placed: usize,
}

impl PlacingReceiver {
    fn check(&mut self) {
        let current = self.current;
        self.targets
            .iter_mut()
            .enumerate()
            .filter(|(at, _)| Some(*at) != current)
            .for_each(|(_, target)| target.check());
    }

    fn arrived(&mut self, header: &[u8], payload: &[u8]) {
        let index = self.arrived;
        assert_eq!(header, index.to_le_bytes());
        assert!(payload == pattern(index, size(index)), "message {index} differs");
        self.arrived += 1;
    }
}

impl MessageReceiver for PlacingReceiver {
    fn event(&mut self, event: FabricEvent<'_>) {
        self.check();
        match event {
            FabricEvent::Message { header, payload, .. } => self.arrived(header, payload),
            FabricEvent::Room => {}
            FabricEvent::PeerLost { why, .. } => panic!("a peer was lost without cause: {why}"),
        }
    }

    fn placement(&mut self, _: PeerId, _: &[u8], length: usize) -> Option<ScatterList> {
        self.check();
        self.requests += 1;
        if self.requests.is_multiple_of(3) {
            self.current = [Some(1), None, Some(2), Some(0), Some(1), Some(2), None][self.requests % 7];
        }
        let target = &mut self.targets[self.current?];
        target.marked = false;
        Some(target.placement(length))
    }

    fn handle_placed(&mut self, _: PeerId, header: &[u8], length: usize) {
        self.check();
        let mut payload = vec![0; length];
        self.targets[self.current.expect("it has said where")].placement(length).take(&mut payload);
        self.placed += 1;
        self.arrived(header, &payload);
    }
}

/// Sends a message. Every second message is sent from memory that is overwritten right after the flush.
fn send(world: &mut TestFabrics, mapped: &mut TargetMemory, index: usize) -> Result<(), SendError> {
    let (header, payload) = (index.to_le_bytes(), pattern(index, size(index)));
    if index.is_multiple_of(2) {
        return world.send(0, 1, &header, &payload);
    }
    let places = mapped.placement(payload.len());
    places.put(0, &payload);
    let peer = world.ids[1];
    let sent = world.ends[0].send(peer, &header, SendPayload::Mapped(places));
    world.ends[0].flush();
    mapped.memory.write(0, &[MARK; TARGET_BYTES]);
    sent
}

fn size(index: usize) -> usize {
    [MAX_PAYLOAD, 100, 70_000, 20_000, 0, 16 << 10, 200_001][index % 7]
}

/// Every payload arrives where the receiver's last answer placed that payload. Nothing is written elsewhere. Returns
/// how many payloads were read straight into place.
///
/// # Panics
/// When a payload is missing or wrong, or memory is written that should not be.
pub fn payloads_are_placed(make: &mut Factory<'_>) -> usize {
    const COUNT: usize = 140;
    let mut world = TestFabrics::new(make, 2, FabricLimits::default());
    let (targets, mut mapped) = ([TargetMemory::new(), TargetMemory::new(), TargetMemory::new()], TargetMemory::new());
    let mut receiver = PlacingReceiver { targets, current: Some(0), requests: 0, arrived: 0, placed: 0 };
    let mut sent = 0;
    while receiver.arrived < COUNT {
        while sent < COUNT {
            match send(&mut world, &mut mapped, sent) {
                Ok(()) => sent += 1,
                Err(SendError::Full(_)) => break,
                Err(other) => panic!("the path broke: {other}"),
            }
        }
        let moved = world.ends[0].progress(&mut |_| ()) + world.ends[1].progress_into(&mut receiver);
        world.ends[1].recheck_placements(&mut receiver);
        if moved == 0 {
            world.sleep("payloads");
        }
    }
    receiver.placed
}
