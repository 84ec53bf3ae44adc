//! Payloads sent from where they lie and read straight into place, while the receiver moves and withdraws the place.

use outboard_shm::memory::{MemfdRanges, Residents};
use outboard_shm::region::Region;

use super::{Factory, World, pattern};
use crate::{FabricEvent, Limits, MAX_PAYLOAD, Payload, PeerId, Receiver, SendError};

/// Fills memory that must not be written to.
const MARK: u8 = 0x5a;
/// Bytes between the two places of a payload.
const GAP: u64 = 4096;
const BERTH: usize = MAX_PAYLOAD + GAP as usize;

struct Berth {
    memory: Region,
    ranges: MemfdRanges,
    marked: bool,
}

impl Berth {
    fn new() -> Self {
        let (memory, ranges) = (Region::create("berth", BERTH).expect("memory"), MemfdRanges::default());
        let descriptor = memory.fd().try_clone_to_owned().expect("a descriptor");
        ranges.register(GAP, BERTH as u64, descriptor).expect("a range");
        Berth { memory, ranges, marked: false }
    }

    /// Two ranges for one payload; the second range lies at the lower address.
    fn landing(&self, length: usize) -> Residents {
        let (first, second) = (length as u64 / 3, length as u64 - length as u64 / 3);
        let places = [(GAP + second + GAP, first), (GAP, second)];
        places.iter().map(|&(at, bytes)| self.ranges.find(at, bytes).expect("within the range")).collect()
    }

    /// Checks that withdrawn memory stays unwritten.
    fn check(&mut self) {
        if std::mem::replace(&mut self.marked, true) {
            let mut found = vec![0; BERTH];
            self.memory.read(0, &mut found);
            assert!(found == [MARK; BERTH], "something is written to memory that was withdrawn");
        } else {
            self.memory.write(0, &[MARK; BERTH]);
        }
    }
}

/// A receiver that offers and withdraws memory.
struct Shore {
    berths: [Berth; 3],
    /// The berth that the last answer named for the payload in transit.
    current: Option<usize>,
    asked: usize,
    arrived: usize,
    landed: usize,
}

impl Shore {
    fn check(&mut self) {
        let current = self.current;
        self.berths.iter_mut().enumerate().filter(|(at, _)| Some(*at) != current).for_each(|(_, berth)| berth.check());
    }

    fn arrived(&mut self, header: &[u8], payload: &[u8]) {
        let index = self.arrived;
        assert_eq!(header, index.to_le_bytes());
        assert!(payload == pattern(index, size(index)), "message {index} differs");
        self.arrived += 1;
    }
}

impl Receiver for Shore {
    fn event(&mut self, event: FabricEvent<'_>) {
        self.check();
        match event {
            FabricEvent::Message { header, payload, .. } => self.arrived(header, payload),
            FabricEvent::Room => {}
            FabricEvent::PeerLost { why, .. } => panic!("a peer was lost without cause: {why}"),
        }
    }

    fn landing(&mut self, _: PeerId, _: &[u8], length: usize) -> Option<Residents> {
        self.check();
        self.asked += 1;
        if self.asked.is_multiple_of(3) {
            self.current = [Some(1), None, Some(2), Some(0), Some(1), Some(2), None][self.asked % 7];
        }
        let berth = &mut self.berths[self.current?];
        berth.marked = false;
        Some(berth.landing(length))
    }

    fn landed(&mut self, _: PeerId, header: &[u8], length: usize) {
        self.check();
        let mut payload = vec![0; length];
        self.berths[self.current.expect("it has said where")].landing(length).take(&mut payload);
        self.landed += 1;
        self.arrived(header, &payload);
    }
}

/// Sends a message. Every other one is sent from memory that is overwritten as soon as it is flushed.
fn send(world: &mut World, mapped: &mut Berth, index: usize) -> Result<(), SendError> {
    let (header, payload) = (index.to_le_bytes(), pattern(index, size(index)));
    if index.is_multiple_of(2) {
        return world.send(0, 1, &header, &payload);
    }
    let places = mapped.landing(payload.len());
    places.put(0, &payload);
    let peer = world.ids[1];
    let sent = world.ends[0].send(peer, &header, Payload::Resident(places));
    world.ends[0].flush();
    mapped.memory.write(0, &[MARK; BERTH]);
    sent
}

fn size(index: usize) -> usize {
    [MAX_PAYLOAD, 100, 70_000, 20_000, 0, 16 << 10, 200_001][index % 7]
}

/// Every payload arrives where the last answer placed it, and nothing is written elsewhere. Returns how many payloads
/// were read straight into place.
///
/// # Panics
/// When a payload is missing or wrong, or memory is written that should not be.
pub fn payloads_land(make: &mut Factory<'_>) -> usize {
    const COUNT: usize = 140;
    let mut world = World::new(make, 2, Limits::default());
    let (berths, mut mapped) = ([Berth::new(), Berth::new(), Berth::new()], Berth::new());
    let mut shore = Shore { berths, current: Some(0), asked: 0, arrived: 0, landed: 0 };
    let mut sent = 0;
    while shore.arrived < COUNT {
        while sent < COUNT {
            match send(&mut world, &mut mapped, sent) {
                Ok(()) => sent += 1,
                Err(SendError::Full(_)) => break,
                Err(other) => panic!("the path broke: {other}"),
            }
        }
        let moved = world.ends[0].progress(&mut |_| ()) + world.ends[1].progress_into(&mut shore);
        world.ends[1].review(&mut shore);
        if moved == 0 {
            world.sleep("payloads");
        }
    }
    shore.landed
}
