//! The memory that engines work on: memory of processes, memory of NICs, and memory that hosts have registered.
//!
//! Invariant: every access is checked, so a wrong order is found where it is given.

use std::collections::BTreeMap;

use outboard_arithmetic::reduce;
use outboard_nic::{AddressSpace, MemorySegment, NicOrder, NodeId, Port};

/// Fills memory that nobody has written.
const POISON: u8 = 0xa5;

#[derive(Debug)]
pub(super) struct NicMemory {
    /// By node, the used part of its NIC's memory and of the memory that its host has registered; `own_bytes` has their
    /// lengths.
    own: Vec<[Vec<u8>; 2]>,
    own_bytes: [u64; 2],
    hosts: BTreeMap<(NodeId, Port), Vec<u8>>,
}

impl NicMemory {
    pub(super) fn new(nodes: usize, own_bytes: [u64; 2]) -> Self {
        NicMemory { own: (0..nodes).map(|_| Default::default()).collect(), own_bytes, hosts: BTreeMap::new() }
    }

    /// The memory of the process behind a port.
    pub(super) fn host(&mut self, node: NodeId, port: Port) -> &mut Vec<u8> {
        self.hosts.entry((node, port)).or_default()
    }

    /// The contents of these places, one behind the other.
    pub(super) fn gather(&mut self, node: NodeId, places: &[MemorySegment]) -> Vec<u8> {
        places.iter().flat_map(|place| self.bytes(node, *place).to_vec()).collect()
    }

    /// Carries out an order. `payload` belongs to the latest packet.
    pub(super) fn perform(&mut self, node: NodeId, order: NicOrder, payload: &[u8]) {
        match order {
            NicOrder::Deliver { to } => self.bytes(node, to).copy_from_slice(payload),
            NicOrder::Write { word, to } => {
                self.bytes(node, to).copy_from_slice(&word.to_le_bytes()[..to.len as usize]);
            }
            NicOrder::Copy { from, to } => {
                let from = self.bytes(node, from).to_vec();
                self.bytes(node, to).copy_from_slice(&from);
            }
            NicOrder::Reduce { reduction, from, into, from_left } => {
                let from = self.bytes(node, from).to_vec();
                reduce(reduction, &from, self.bytes(node, into), from_left);
            }
        }
    }

    fn bytes(&mut self, node: NodeId, place: MemorySegment) -> &mut [u8] {
        let end = (place.address + place.len) as usize;
        let memory = match place.region {
            AddressSpace::Nic | AddressSpace::Shared => {
                let which = usize::from(place.region == AddressSpace::Shared);
                let memory = &mut self.own[node.0 as usize][which];
                assert!(end as u64 <= self.own_bytes[which], "{place:?} lies behind the memory of {node}");
                memory.resize(memory.len().max(end), POISON);
                memory
            }
            AddressSpace::Host(port) => self.hosts.get_mut(&(node, port)).expect("a process behind the port"),
        };
        &mut memory[place.address as usize..end]
    }
}
