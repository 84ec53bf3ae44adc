//! A port as a member of a job: its queue pairs, its calls, and the state of the running call.
//!
//! | a call is | until |
//! |---|---|
//! | posted | the call before ends, and the sharing call before ends on all ranks of the host |
//! | in its first phase | the last step of the host before the list |
//! | in its second phase | the last request of the management queue |
//! | in its third phase | the last step of the host after the list: the call has ended |
//!
//! Invariant: one call runs at a time, so the buffers of the previous call are free for the next one.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use outboard_plan::Reduction;

use super::list::{ListTemplate, PeerConnection, Prepost, Purpose, TemplatePlace};
use super::queue::QueuePair;
use crate::engine::{AddressSpace, MemorySegment};
use crate::job::JobMembership;
use crate::registered::RegisteredPart;

/// A call of a process: a template, and the values that fill it in (CD-3).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListPost {
    pub job: u8,
    /// Owner of the queue pairs. Each kind of plan has its own queue pairs, since a completion does not name its
    /// message.
    pub operation: u16,
    pub template: Arc<ListTemplate>,
    /// Bytes for each byte of the template.
    pub unit: u64,
    /// Addresses in the memory of the process at which input, output and scratch begin.
    pub memory: [u64; 3],
    pub reduction: Option<Reduction>,
}

/// Preposted buffers of a queue pair, used in turn.
#[derive(Debug)]
pub(super) struct BufferRing {
    pub(super) part: RegisteredPart,
    /// Buffers that are posted for the next call; the ring has twice as many.
    ahead: u32,
    /// Number of the first buffer of the running call.
    first: u64,
    buffer_bytes: u64,
}

impl BufferRing {
    pub(super) fn new(part: RegisteredPart, ahead: u32, buffer_bytes: u64) -> Self {
        BufferRing { part, ahead, first: 0, buffer_bytes }
    }

    fn buffer(&self, at: u64) -> MemorySegment {
        let address = self.part.address + (self.first + at) % (2 * u64::from(self.ahead)) * self.buffer_bytes;
        MemorySegment { region: AddressSpace::Shared, address, len: self.buffer_bytes }
    }

    /// The buffers that are posted when the queue pair is made.
    pub(super) fn preposted(&self) -> impl Iterator<Item = MemorySegment> {
        (0..u64::from(self.ahead)).map(|at| self.buffer(at))
    }
}

#[derive(Debug)]
pub(super) struct PeerChannel {
    /// Whether the peer has made its queue pairs, too.
    pub(super) connected: bool,
    /// The port of the NIC that the packets leave by.
    pub(super) link: u32,
    /// Queue pairs, by purpose.
    pub(super) pairs: [QueuePair; 3],
    pub(super) prepost: Prepost,
    pub(super) ring: BufferRing,
}

impl PeerChannel {
    /// Whether only preposted receives are left.
    pub(super) fn is_idle(&self) -> bool {
        let preposted = [self.prepost.buffers, self.prepost.clears, 0];
        self.pairs.iter().zip(preposted).all(|(pair, preposted)| pair.is_idle(preposted))
    }
}

/// The phase of a call, with its next step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ListPhase {
    Before(usize),
    List(usize),
    Behind(usize),
}

#[derive(Debug)]
pub(super) struct TriggeredCall {
    pub(super) post: ListPost,
    pub(super) phase: ListPhase,
    /// The address at which the shared region begins.
    region: u64,
    /// For each eager buffer of the call, the buffer's number among the buffers of its queue pair.
    ordinals: Vec<u64>,
}

impl TriggeredCall {
    pub(super) fn new(post: ListPost, region: u64) -> Self {
        let mut counts: BTreeMap<PeerConnection, u64> = BTreeMap::new();
        let ordinal = |connection| {
            let count: &mut u64 = counts.entry(connection).or_default();
            *count += 1;
            *count - 1
        };
        let ordinals = post.template.slots.iter().map(|on| on.connection).map(ordinal).collect();
        TriggeredCall { post, phase: ListPhase::Before(0), region, ordinals }
    }
}

/// Queue pairs by operation and connection.
pub(super) type PeerChannels = BTreeMap<(u16, PeerConnection), PeerChannel>;

#[derive(Debug)]
pub(super) struct TriggeredMember {
    pub(super) membership: JobMembership,
    pub(super) channels: PeerChannels,
    pub(super) queue: VecDeque<ListPost>,
    pub(super) running: Option<TriggeredCall>,
    /// Number of calls that share memory: posted, and begun.
    pub(super) sharing_posted: u64,
    pub(super) sharing_begun: u64,
}

impl TriggeredMember {
    pub(super) fn new(membership: JobMembership) -> Self {
        TriggeredMember {
            membership,
            channels: PeerChannels::new(),
            queue: VecDeque::new(),
            running: None,
            sharing_posted: 0,
            sharing_begun: 0,
        }
    }

    /// Number of calls that are posted and have not ended.
    pub(super) fn calls(&self) -> usize {
        self.queue.len() + usize::from(self.running.is_some())
    }

    /// A queue pair of the running call.
    pub(super) fn pair(&mut self, connection: PeerConnection, purpose: Purpose) -> &mut QueuePair {
        let operation = self.running.as_ref().expect("a call runs").post.operation;
        &mut self.channels.get_mut(&(operation, connection)).expect("made when it was posted").pairs[purpose as usize]
    }

    /// The address of a place of the running call.
    pub(super) fn place(&self, place: TemplatePlace) -> MemorySegment {
        let running = self.running.as_ref().expect("a call runs");
        let ListPost { unit, memory, operation, template, .. } = &running.post;
        let ring = |slot: u32| {
            let connection = template.slots[slot as usize].connection;
            (&self.channels[&(*operation, connection)].ring, running.ordinals[slot as usize])
        };
        match place {
            TemplatePlace::Memory(span) => self.membership.place(*memory, span, *unit),
            TemplatePlace::Shared { offset, len } => {
                MemorySegment { region: AddressSpace::Shared, address: running.region + offset * unit, len: len * unit }
            }
            TemplatePlace::Arrived { slot, offset, len } => {
                let (ring, at) = ring(slot);
                let buffer = ring.buffer(at);
                MemorySegment { address: buffer.address + offset * unit, len: len * unit, ..buffer }
            }
            TemplatePlace::Next { slot } => {
                let (ring, at) = ring(slot);
                ring.buffer(u64::from(ring.ahead) + at)
            }
        }
    }

    /// Removes the running call; its buffers serve the call after the next.
    pub(super) fn end(&mut self) -> ListPost {
        let TriggeredCall { post, .. } = self.running.take().expect("a call runs");
        for on in &post.template.slots {
            let ring = &mut self.channels.get_mut(&(post.operation, on.connection)).expect("made").ring;
            ring.first += 1;
        }
        post
    }

    pub(super) fn is_idle(&self) -> bool {
        self.calls() == 0 && self.channels.values().all(PeerChannel::is_idle)
    }
}
