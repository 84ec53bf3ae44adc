//! From the machine's names of memory to memory: buffers of calls (by tiers, SP-4) and staging.
//!
//! Deliveries are gathered and written with as few system calls as their destinations allow (MC-11). Invariants: memory of
//! a rank that is gone is never touched again ([`Memory::forget_rank`]); a reference beyond its region is a broken
//! invariant of the machine. An access that a rank's own doing makes fail is a fault of its call, nothing more.

use std::collections::HashMap;
use std::sync::Arc;

use outboard_proto::{CallId, MemRef, Order, Region, ServiceProcess, StagingId};
use outboard_shm::memory::{AccessError, RankMemory, TieredMemory, WritePiece, copy_between};

use crate::staging::{Staging, StagingPool};

/// Bytes moved at a time between two ranks neither of which is mapped here: fits the second-level cache.
const BOUNCE: usize = 256 << 10;

/// Received payloads that orders deliver from.
pub(crate) trait Payloads {
    /// The payload with this index within what was handed to the machine.
    fn payload(&self, index: u32) -> &[u8];
}

/// Nothing was received: the machine orders no delivery.
pub(crate) struct NoPayload;

impl Payloads for NoPayload {
    fn payload(&self, _index: u32) -> &[u8] {
        &[]
    }
}

/// The payload of one frame.
pub(crate) struct FramePayload<'a>(pub(crate) &'a [u8]);

impl Payloads for FramePayload<'_> {
    fn payload(&self, index: u32) -> &[u8] {
        assert_eq!(index, 0, "a frame has one payload");
        self.0
    }
}

/// The buffers that a rank handed over with a call.
#[derive(Debug)]
pub(crate) struct Buffers {
    /// Gone when the rank is.
    memory: Option<Arc<TieredMemory>>,
    input: (u64, u64),
    output: (u64, u64),
}

impl Buffers {
    /// `input` and `output` are address and length in the rank.
    pub(crate) fn new(memory: Arc<TieredMemory>, input: (u64, u64), output: (u64, u64)) -> Self {
        Buffers { memory: Some(memory), input, output }
    }
}

/// Why a piece of memory could not be read or written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Fault {
    /// The buffers of this call cannot be accessed.
    #[error("{error}")]
    Call {
        /// Whose buffers.
        call: CallId,
        /// What the kernel said.
        error: AccessError,
    },
    /// The rank is gone; the machine knows.
    #[error("the rank has gone")]
    Gone,
}

/// What a failed access shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// The rank handed over a bad buffer.
    Buffer,
    /// The rank has died, which the access saw before the pidfd told.
    RankGone,
}

/// A piece of memory, held so that any thread may read it.
#[derive(Debug, Clone)]
pub(crate) enum Place {
    /// In a rank.
    Rank {
        /// The call whose buffer it is part of.
        call: CallId,
        /// The rank's memory.
        memory: Arc<TieredMemory>,
        /// First address.
        address: u64,
    },
    /// In this process.
    Staging {
        /// The buffer.
        buffer: Arc<Staging>,
        /// First byte.
        offset: u64,
    },
}

impl Place {
    /// Copies out.
    pub(crate) fn read(&self, into: &mut [u8]) -> Result<(), Fault> {
        match self {
            Place::Rank { call, memory, address } => {
                memory.read(*address, into).map_err(|error| Fault::Call { call: *call, error })
            }
            Place::Staging { buffer, offset } => {
                buffer.copy_out(*offset, into);
                Ok(())
            }
        }
    }

    fn copy_to(&self, to: &Place, bytes: u64, bounce: &mut Vec<u8>) -> Result<(), Fault> {
        let length = usize::try_from(bytes).expect("staging lies in memory");
        match (self, to) {
            (Place::Rank { memory, address, .. }, Place::Rank { call, memory: to_memory, address: to_address })
                if memory.resident(*address, bytes).is_some() =>
            {
                // Mapped here, so what fails is the write.
                copy_between(&**memory, *address, &**to_memory, *to_address, bytes)
                    .map_err(|error| Fault::Call { call: *call, error })
            }
            (
                Place::Rank { call, memory, address },
                Place::Rank { call: to_call, memory: to_memory, address: start },
            ) => {
                bounce.resize(BOUNCE, 0);
                let mut moved = 0;
                while moved < bytes {
                    let piece = &mut bounce[..(length - moved as usize).min(BOUNCE)];
                    memory.read(address + moved, piece).map_err(|error| Fault::Call { call: *call, error })?;
                    to_memory.write(start + moved, piece).map_err(|error| Fault::Call { call: *to_call, error })?;
                    moved += piece.len() as u64;
                }
                Ok(())
            }
            (Place::Rank { call, memory, address }, Place::Staging { buffer, offset }) => {
                let read = |into: &mut [u8]| memory.read(*address, into);
                buffer.fill(*offset, length, read).map_err(|error| Fault::Call { call: *call, error })
            }
            (Place::Staging { buffer, offset }, Place::Rank { call, memory, address }) => {
                let write = |from: &[u8]| memory.write(*address, from);
                buffer.lend(*offset, length, write).map_err(|error| Fault::Call { call: *call, error })
            }
            (Place::Staging { buffer, offset }, Place::Staging { buffer: to_buffer, offset: to_offset }) => {
                buffer.lend(*offset, length, |from| to_buffer.copy_in(*to_offset, from));
                Ok(())
            }
        }
    }
}

/// A delivery that waits for its batch.
#[derive(Debug, Clone, Copy)]
struct Delivery {
    payload: u32,
    offset: u32,
    to: MemRef,
}

/// All memory that the machine can name.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    calls: HashMap<CallId, Buffers>,
    staging: HashMap<StagingId, Arc<Staging>>,
    pool: StagingPool,
    gathered: Vec<Delivery>,
    faults: Vec<(CallId, Cause)>,
    /// Grows once, with the first copy between ranks that needs it.
    bounce: Vec<u8>,
}

impl Memory {
    pub(crate) fn insert(&mut self, call: CallId, buffers: Buffers) {
        self.calls.insert(call, buffers);
    }

    /// The call has ended.
    pub(crate) fn remove(&mut self, call: CallId) {
        self.calls.remove(&call);
    }

    /// The rank is gone: the buffers of this call are not touched any more.
    pub(crate) fn forget_rank(&mut self, call: CallId) {
        if let Some(buffers) = self.calls.get_mut(&call) {
            buffers.memory = None;
        }
    }

    /// Calls whose buffers could not be accessed since the last time.
    pub(crate) fn take_faults(&mut self) -> Vec<(CallId, Cause)> {
        std::mem::take(&mut self.faults)
    }

    /// A datapath thread met a fault.
    pub(crate) fn note(&mut self, fault: Fault) {
        match fault {
            Fault::Call { call, error } => {
                if self.calls.contains_key(&call) && !self.faults.iter().any(|(known, _)| *known == call) {
                    tracing::warn!(call = call.0, %error, "a rank's buffer cannot be accessed");
                    let gone = matches!(error, AccessError::Gone { .. });
                    self.faults.push((call, if gone { Cause::RankGone } else { Cause::Buffer }));
                }
            }
            Fault::Gone => {}
        }
    }

    /// Where a piece lies.
    ///
    /// # Panics
    /// When the machine names memory that it was never given, or beyond its end.
    pub(crate) fn place(&self, piece: MemRef) -> Result<Place, Fault> {
        let within = |length: u64| {
            let end = piece.offset.checked_add(piece.len);
            assert!(end.is_some_and(|end| end <= length), "{piece:?} reaches beyond {length} bytes");
        };
        match piece.region {
            Region::Input(call) | Region::Output(call) => {
                let buffers = self.calls.get(&call).unwrap_or_else(|| panic!("{piece:?} is of no call in flight"));
                let input = matches!(piece.region, Region::Input(_));
                let (address, length) = if input { buffers.input } else { buffers.output };
                within(length);
                let memory = Arc::clone(buffers.memory.as_ref().ok_or(Fault::Gone)?);
                Ok(Place::Rank { call, memory, address: address + piece.offset })
            }
            Region::Staging(id) => {
                let buffer = self.staging.get(&id).unwrap_or_else(|| panic!("{piece:?} is not staged"));
                within(buffer.len());
                Ok(Place::Staging { buffer: Arc::clone(buffer), offset: piece.offset })
            }
        }
    }

    /// Does all work on memory that the machine has ordered, in order.
    pub(crate) fn perform(&mut self, machine: &mut ServiceProcess, payloads: &dyn Payloads) {
        while let Some(order) = machine.poll_order() {
            if let Order::Deliver { payload, offset, to } = order {
                self.gathered.push(Delivery { payload, offset, to });
                continue;
            }
            self.flush(payloads);
            match order {
                Order::Stage { id, bytes } => {
                    // Like any allocation of Rust: without memory the process cannot go on.
                    let buffer = self.pool.take(bytes).expect("memory for staging within the quota");
                    let taken = self.staging.insert(id, buffer);
                    assert!(taken.is_none(), "{id:?} is staged twice");
                }
                Order::Unstage { id } => {
                    let buffer = self.staging.remove(&id).unwrap_or_else(|| panic!("{id:?} is not staged"));
                    self.pool.give_back(buffer);
                }
                Order::Copy { from, to } => self.copy(from, to),
                Order::Deliver { .. } => unreachable!("gathered above"),
            }
        }
        self.flush(payloads);
    }

    fn copy(&mut self, from: MemRef, to: MemRef) {
        assert_eq!(from.len, to.len, "copies have equal lengths");
        let mut bounce = std::mem::take(&mut self.bounce);
        let places = self.place(from).and_then(|source| Ok((source, self.place(to)?)));
        let copied = places.and_then(|(source, target)| source.copy_to(&target, from.len, &mut bounce));
        self.bounce = bounce;
        if let Err(fault) = copied {
            self.note(fault);
        }
    }

    /// Carries the gathered deliveries out, one batch per region: where a host has several ranks each datagram goes to all of
    /// them in turn. Within a region the order stays.
    fn flush(&mut self, payloads: &dyn Payloads) {
        let mut gathered = std::mem::take(&mut self.gathered);
        gathered.sort_by_key(|delivery| delivery.to.region);
        for run in gathered.chunk_by(|one, next| one.to.region == next.to.region) {
            if let Err(fault) = self.deliver(run, payloads) {
                self.note(fault);
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
    }

    fn deliver(&self, run: &[Delivery], payloads: &dyn Payloads) -> Result<(), Fault> {
        let bytes = |delivery: &Delivery| {
            let start = delivery.offset as usize;
            let length = usize::try_from(delivery.to.len).expect("payloads lie in memory");
            &payloads.payload(delivery.payload)[start..start + length]
        };
        match self.place(run[0].to)? {
            Place::Staging { buffer, .. } => {
                for delivery in run {
                    buffer.copy_in(delivery.to.offset, bytes(delivery));
                }
                Ok(())
            }
            Place::Rank { call, memory, address } => {
                let start = address - run[0].to.offset;
                let batch: Vec<WritePiece<'_>> = run
                    .iter()
                    .map(|delivery| {
                        let end = delivery.to.offset.checked_add(delivery.to.len);
                        assert!(end.is_some_and(|end| end <= self.length(delivery.to.region)), "{delivery:?}");
                        WritePiece { local: bytes(delivery), address: start + delivery.to.offset }
                    })
                    .collect();
                memory.writev(&batch).map_err(|error| Fault::Call { call, error })
            }
        }
    }

    fn length(&self, region: Region) -> u64 {
        match region {
            Region::Input(call) => self.calls[&call].input.1,
            Region::Output(call) => self.calls[&call].output.1,
            Region::Staging(id) => self.staging[&id].len(),
        }
    }
}
