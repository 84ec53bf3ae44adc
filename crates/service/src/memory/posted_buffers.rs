//! The buffers of a posted call, and the addresses of their bytes. Never accesses memory.

use std::sync::Arc;

use outboard_proto::MemRegion;
use outboard_shm::memory::TieredMemory;

use crate::memory::MemoryPieces;
use crate::memory::rank_copies::CopyAgent;

/// The buffers that a rank passed with a call.
#[derive(Debug)]
pub(crate) struct PostedBuffers {
    /// `None` once the rank is gone.
    pub(super) memory: Option<Arc<TieredMemory>>,
    pub(super) input: (u64, u64),
    pub(super) output: (u64, u64),
    /// Pieces of the output, if it is not contiguous.
    pub(super) pieces: Option<Arc<MemoryPieces>>,
    /// Addresses of the copies of input and output, once the rank has made them. Each copy is contiguous.
    pub(super) copied: Option<(u64, u64)>,
    /// The rank, if it can do copies itself.
    pub(super) copy_agent: Option<Arc<CopyAgent>>,
    /// Whether the rank can copy the buffers of this call alone, if nobody else reaches them.
    pub(super) can_be_staged: bool,
}

impl PostedBuffers {
    /// `input` and `output` are each an address and a length in the rank's memory.
    pub(crate) fn new(memory: Arc<TieredMemory>, input: (u64, u64), output: (u64, u64)) -> Self {
        PostedBuffers {
            memory: Some(memory),
            input,
            output,
            pieces: None,
            copied: None,
            copy_agent: None,
            can_be_staged: false,
        }
    }

    /// Buffers of a recording: all pieces are output, and some are read too. `copy` is the rank's copy, if any.
    pub(crate) fn of_recording(memory: Arc<TieredMemory>, pieces: Arc<MemoryPieces>, copy: Option<u64>) -> Self {
        let output = (0, pieces.total());
        let copied = copy.map(|address| (address, address));
        PostedBuffers { pieces: Some(pieces), copied, ..PostedBuffers::new(memory, (0, 0), output) }
    }

    /// Sets the rank that may copy into these buffers, if the rank can do copies itself.
    pub(crate) fn with_copy_agent(self, copy_agent: Option<Arc<CopyAgent>>) -> Self {
        PostedBuffers { copy_agent, ..self }
    }

    /// Declares that the rank can copy the buffers of this call alone, if nobody else reaches them. The starts of a
    /// recording share memory, so none of them is staged alone.
    pub(crate) fn stageable(self) -> Self {
        PostedBuffers { can_be_staged: self.pieces.is_none(), ..self }
    }

    /// Whether the address lies in the rank's copy of the buffers.
    pub(super) fn lies_in_copy(&self, address: u64) -> bool {
        let lies_in = |(start, length): (u64, u64)| address.wrapping_sub(start) < length;
        self.copied.is_some_and(|(input, output)| lies_in((input, self.input.1)) || lies_in((output, self.output.1)))
    }

    /// Address of a byte of the input or the output at the time when the rank posted the call.
    pub(super) fn posted(&self, region: MemRegion, offset: u64) -> u64 {
        match (region, &self.pieces) {
            (MemRegion::Input(_), _) => self.input.0 + offset,
            (MemRegion::Output(_), None) => self.output.0 + offset,
            (MemRegion::Output(_), Some(pieces)) => pieces.address(offset),
            (MemRegion::Staging(_), _) => unreachable!("staging has no call"),
        }
    }

    /// Current address of a byte of the input or the output: in the rank's copy, if there is one.
    pub(super) fn address(&self, region: MemRegion, offset: u64) -> u64 {
        match (self.copied, region) {
            (Some((input, _)), MemRegion::Input(_)) => input + offset,
            (Some((_, output)), MemRegion::Output(_)) => output + offset,
            (_, region) => self.posted(region, offset),
        }
    }

    /// Length of the input or the output in bytes.
    pub(super) fn length(&self, region: MemRegion) -> u64 {
        match region {
            MemRegion::Input(_) => self.input.1,
            MemRegion::Output(_) => self.output.1,
            MemRegion::Staging(_) => unreachable!("staging has no call"),
        }
    }

    /// Length of the receive buffer in bytes.
    pub(crate) fn received_bytes(&self) -> u64 {
        self.output.1
    }
}
