//! A rank's memory by the best tier that reaches each range, and the probe that decides at attach.

use super::{AccessError, CrossMemory, MemfdRanges, RankMemory, ReadPiece, Resident, Tier, WritePiece};

/// The rank's buffer that proves access: a nonce that it drew, then room for the answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Probe {
    nonce: [u8; Probe::NONCE],
    answer: [u8; Probe::NONCE],
}

impl Probe {
    /// Bytes of the nonce, and of the answer that follows it in memory.
    pub const NONCE: usize = 16;

    /// A buffer with a fresh nonce and no answer.
    ///
    /// # Errors
    /// When the kernel gives no random bytes.
    pub fn new() -> rustix::io::Result<Probe> {
        let mut nonce = [0; Probe::NONCE];
        rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        Ok(Probe { nonce, answer: [0; Probe::NONCE] })
    }

    /// What is sent to the service process beside the buffer's address.
    pub fn nonce(&self) -> [u8; Probe::NONCE] {
        self.nonce
    }

    /// Rank: whether the service process wrote its answer into this very buffer.
    pub fn answered(&mut self) -> bool {
        let answer = &raw const self.answer;
        // SAFETY: reads our own bytes; volatile, since another process wrote them behind the compiler's back.
        unsafe { answer.read_volatile() == complement(self.nonce) }
    }
}

fn complement(nonce: [u8; Probe::NONCE]) -> [u8; Probe::NONCE] {
    nonce.map(|byte| !byte)
}

/// What the probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Read and written: the tier may be used.
    Reached,
    /// The kernel refused or the address was wrong.
    Failed(AccessError),
    /// Something else lies at the address: another process, or another address space.
    OtherBytes,
}

/// Service process: reads the nonce at `address`, compares, writes the answer behind it.
pub fn probe(memory: &dyn RankMemory, address: u64, nonce: [u8; Probe::NONCE]) -> ProbeOutcome {
    let mut found = [0; Probe::NONCE];
    if let Err(error) = memory.read(address, &mut found) {
        return ProbeOutcome::Failed(error);
    }
    if found != nonce {
        return ProbeOutcome::OtherBytes;
    }
    match memory.write(address.wrapping_add(Probe::NONCE as u64), &complement(nonce)) {
        Ok(()) => ProbeOutcome::Reached,
        Err(error) => ProbeOutcome::Failed(error),
    }
}

/// All of a rank's memory: memfd where registered, else cross-memory where allowed, else unreachable.
#[derive(Debug)]
pub struct TieredMemory {
    ranges: MemfdRanges,
    cross: Option<CrossMemory>,
}

impl TieredMemory {
    /// `cross` is what a probe reached, or `None`: then the rank stages.
    pub fn new(cross: Option<CrossMemory>) -> Self {
        TieredMemory { ranges: MemfdRanges::new(), cross }
    }

    /// Registers and unregisters memfd ranges, at any time.
    pub fn ranges(&self) -> &MemfdRanges {
        &self.ranges
    }

    /// The tier of memory that is not registered.
    pub fn tier(&self) -> Tier {
        match self.cross {
            Some(_) => Tier::CrossMemory,
            None => Tier::Staging,
        }
    }
}

impl TieredMemory {
    /// The cross-memory tier for a run of pieces that begins with this one.
    fn beyond(&self, address: u64, bytes: usize) -> Result<&CrossMemory, AccessError> {
        self.cross.as_ref().ok_or(AccessError::Unreachable { address, bytes: bytes as u64 })
    }

    fn read_run(&self, run: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        self.beyond(first.address, first.local.len())?.readv(run)
    }

    fn write_run(&self, run: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        self.beyond(first.address, first.local.len())?.writev(run)
    }
}

/// Pieces that no memfd range holds are handed on in runs, so that a run is one system call.
impl RankMemory for TieredMemory {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        let mut run = 0;
        for at in 0..batch.len() {
            let piece = &mut batch[at];
            let Some(resident) = self.ranges.find(piece.address, piece.local.len() as u64) else { continue };
            resident.copy_out(piece.local);
            self.read_run(&mut batch[run..at])?;
            run = at + 1;
        }
        self.read_run(&mut batch[run..])
    }

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let mut run = 0;
        for (at, piece) in batch.iter().enumerate() {
            let Some(resident) = self.ranges.find(piece.address, piece.local.len() as u64) else { continue };
            resident.copy_in(piece.local);
            self.write_run(&batch[run..at])?;
            run = at + 1;
        }
        self.write_run(&batch[run..])
    }

    fn resident(&self, address: u64, bytes: u64) -> Option<Resident> {
        self.ranges.find(address, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copy_between;
    use crate::region::Region;

    fn own() -> CrossMemory {
        CrossMemory::open(rustix::process::getpid()).unwrap()
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn the_probe_answers_in_the_buffer_it_read() {
        let mut buffer = Box::new(Probe::new().unwrap());
        let (address, nonce) = (&raw const *buffer as u64, buffer.nonce());
        assert!(!buffer.answered());
        assert_eq!(probe(&own(), address + 1, nonce), ProbeOutcome::OtherBytes);
        assert!(matches!(probe(&own(), 8, nonce), ProbeOutcome::Failed(AccessError::Fault { address: 8, .. })));
        assert!(!buffer.answered());
        assert_eq!(probe(&own(), address, nonce), ProbeOutcome::Reached);
        assert!(buffer.answered());
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn each_piece_takes_the_best_tier() {
        let memory = TieredMemory::new(Some(own()));
        let region = Region::create("test", 4096).unwrap();
        memory.ranges().register(0x5000, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        let private = [0u8; 4];
        let batch = [
            WritePiece { local: b"pr", address: private.as_ptr() as u64 },
            WritePiece { local: b"shared", address: 0x5800 },
            WritePiece { local: b"iv", address: private.as_ptr() as u64 + 2 },
        ];
        memory.writev(&batch).unwrap();
        let (mut one, mut two) = ([0; 4], [0; 6]);
        let mut batch = [
            ReadPiece { local: &mut one, address: private.as_ptr() as u64 },
            ReadPiece { local: &mut two, address: 0x5800 },
        ];
        memory.readv(&mut batch).unwrap();
        assert_eq!((&one, &two), (b"priv", b"shared"));
    }

    /// GP-9: without cross-memory access only registered ranges, among them staging segments, can be reached.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn a_refused_probe_leaves_registered_ranges() {
        let memory = TieredMemory::new(None);
        assert_eq!(memory.tier(), Tier::Staging);
        let private = [0u8; 4];
        let address = private.as_ptr() as u64;
        assert_eq!(memory.write(address, b"priv"), Err(AccessError::Unreachable { address, bytes: 4 }));
        let region = Region::create("test", 4096).unwrap();
        memory.ranges().register(0x5000, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        memory.write(0x5000, b"seen").unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn copies_between_memories_of_any_tiers() {
        let source: Vec<u8> = (0..600_000u32).map(|at| (at / 3) as u8).collect();
        let target = vec![0u8; source.len()];
        let bytes = source.len() as u64;
        let cross = own();
        copy_between(&cross, source.as_ptr() as u64, &cross, target.as_ptr() as u64, bytes).unwrap();
        let mut seen = vec![0; source.len()];
        cross.read(target.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);

        let region = Region::create("test", source.len()).unwrap();
        let ranges = MemfdRanges::new();
        ranges.register(0x7000, bytes, region.fd().try_clone_to_owned().unwrap()).unwrap();
        copy_between(&cross, source.as_ptr() as u64, &ranges, 0x7000, bytes).unwrap();
        let back = vec![0u8; source.len()];
        copy_between(&ranges, 0x7000, &cross, back.as_ptr() as u64, bytes).unwrap();
        cross.read(back.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);
    }
}
