//! A rank's memory by the best tier that reaches each range, and the probe that decides at attach and whenever an access
//! fails later.

use super::{
    AccessError, CrossMemory, MemfdRanges, MemoryDescriptor, RankMemory, ReadPiece, Resident, Tier, WritePiece,
};
use crate::sync::{AtomicU32, Ordering};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;

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

/// The rank's [`Probe`] as the service process knows it; it stays where it is while the rank is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Address of the buffer in the rank.
    pub address: u64,
    /// The nonce that it holds.
    pub nonce: [u8; Probe::NONCE],
}

/// Hears of writes to a rank's memory.
pub trait Watch: Send + Sync + fmt::Debug {
    /// The batch has been written, or a part of it where the write failed.
    fn written(&self, batch: &[WritePiece<'_>]);
}

/// All of a rank's memory: memfd where registered, else the best of the other tiers that the kernel allows.
///
/// | tier in use | an access ends with | next |
/// |---|---|---|
/// | cross-memory attach | refusal, or a fault where the probe fails too | memory descriptor if proven, else staging; done again |
/// | memory descriptor | the same | staging; the access is [`AccessError::Withdrawn`] |
/// | staging | - | - |
///
/// A fault where the probe succeeds is the rank's own doing and stays an error. The tier never rises again.
#[derive(Debug)]
pub struct TieredMemory {
    ranges: MemfdRanges,
    cross: Option<CrossMemory>,
    descriptor: Option<MemoryDescriptor>,
    proof: Option<Proof>,
    /// In use for memory that is not registered, as [`Tier::code`].
    tier: AtomicU32,
    watch: Option<Arc<dyn Watch>>,
}

impl TieredMemory {
    /// Memory that is reached by each of the candidates that a real access proves.
    pub fn proven(cross: Option<CrossMemory>, descriptor: Option<MemoryDescriptor>, proof: Proof) -> Self {
        let reaches = |memory: &dyn RankMemory| probe(memory, proof.address, proof.nonce) == ProbeOutcome::Reached;
        let cross = cross.filter(|memory| reaches(memory));
        let descriptor = descriptor.filter(|memory| reaches(memory));
        let tier = match (&cross, &descriptor) {
            (Some(_), _) => Tier::CrossMemory,
            (None, Some(_)) => Tier::MemoryDescriptor,
            (None, None) => Tier::Staging,
        };
        TieredMemory { cross, descriptor, proof: Some(proof), tier: AtomicU32::new(tier.code()), ..Self::default() }
    }

    /// The same memory with room for other numbers of memfd ranges; none is registered.
    #[must_use]
    pub fn with_ranges(self, ranges: MemfdRanges) -> Self {
        TieredMemory { ranges, ..self }
    }

    /// The same memory, whose writes somebody hears of.
    #[must_use]
    pub fn with_watch(self, watch: Arc<dyn Watch>) -> Self {
        TieredMemory { watch: Some(watch), ..self }
    }

    /// Registers and unregisters memfd ranges, at any time.
    pub fn ranges(&self) -> &MemfdRanges {
        &self.ranges
    }

    /// The tier of memory that is not registered, now.
    pub fn tier(&self) -> Tier {
        Tier::from_code(self.tier.load(Ordering::Relaxed)).expect("only tiers are stored")
    }

    /// Does an access by the tier in use, and again by the next where that one has been withdrawn.
    fn access(
        &self,
        (address, bytes): (u64, usize),
        mut access: impl FnMut(&dyn RankMemory) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let bytes = bytes as u64;
        loop {
            let tier = self.tier();
            let memory: &dyn RankMemory = match (tier, &self.cross, &self.descriptor) {
                (Tier::CrossMemory, Some(cross), _) => cross,
                (Tier::MemoryDescriptor, _, Some(descriptor)) => descriptor,
                // Nothing was ever proven: the rank has always staged, and should have now.
                (_, None, None) => return Err(AccessError::Unreachable { address, bytes }),
                _ => return Err(AccessError::Withdrawn { address, bytes }),
            };
            match access(memory) {
                Ok(()) => return Ok(()),
                Err(error) => self.judge(memory, error)?,
            }
            let next = match (tier, &self.descriptor) {
                (Tier::CrossMemory, Some(_)) => Tier::MemoryDescriptor,
                _ => Tier::Staging,
            };
            // Another thread may have met the same; then its fall is ours.
            let _ = self.tier.compare_exchange(tier.code(), next.code(), Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    /// Whether the error shows that the kernel has withdrawn the tier; if not, it is the error of the access.
    fn judge(&self, memory: &dyn RankMemory, error: AccessError) -> Result<(), AccessError> {
        match error {
            AccessError::Refused { .. } | AccessError::Kernel { errno: Errno::NOSYS | Errno::ACCESS, .. } => Ok(()),
            AccessError::Fault { .. } => {
                let proof = self.proof.ok_or(error)?;
                match probe(memory, proof.address, proof.nonce) {
                    ProbeOutcome::Failed(gone @ AccessError::Gone { .. }) => Err(gone),
                    ProbeOutcome::Failed(_) => Ok(()),
                    // Bytes that the rank has changed itself are no sign of a refusal.
                    ProbeOutcome::Reached | ProbeOutcome::OtherBytes => Err(error),
                }
            }
            AccessError::Gone { .. }
            | AccessError::Unreachable { .. }
            | AccessError::Withdrawn { .. }
            | AccessError::Kernel { .. } => Err(error),
        }
    }

    fn write_runs(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let mut run = 0;
        for (at, piece) in batch.iter().enumerate() {
            let Some(resident) = self.ranges.find(piece.address, piece.local.len() as u64) else { continue };
            resident.copy_in(piece.local);
            self.write_run(&batch[run..at])?;
            run = at + 1;
        }
        self.write_run(&batch[run..])
    }

    fn read_run(&self, run: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        self.access((first.address, first.local.len()), |memory| memory.readv(run))
    }

    fn write_run(&self, run: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        self.access((first.address, first.local.len()), |memory| memory.writev(run))
    }
}

/// Memory that is staged.
impl Default for TieredMemory {
    fn default() -> Self {
        TieredMemory {
            ranges: MemfdRanges::default(),
            cross: None,
            descriptor: None,
            proof: None,
            tier: AtomicU32::new(Tier::Staging.code()),
            watch: None,
        }
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
        let written = self.write_runs(batch);
        if let Some(watch) = &self.watch {
            watch.written(batch);
        }
        written
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

    fn descriptor() -> MemoryDescriptor {
        MemoryDescriptor::attach(MemoryDescriptor::of_this_process().unwrap(), 1).unwrap()
    }

    fn tiered(cross: Option<CrossMemory>, descriptor: Option<MemoryDescriptor>) -> (Box<Probe>, TieredMemory) {
        let probe = Box::new(Probe::new().unwrap());
        let proof = Proof { address: &raw const *probe as u64, nonce: probe.nonce() };
        (probe, TieredMemory::proven(cross, descriptor, proof))
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn each_candidate_is_proven_and_the_best_is_used() {
        assert_eq!(tiered(Some(own()), Some(descriptor())).1.tier(), Tier::CrossMemory);
        let (_probe, memory) = tiered(None, Some(descriptor()));
        assert_eq!(memory.tier(), Tier::MemoryDescriptor);
        let private = [0u8; 4];
        memory.write(private.as_ptr() as u64, b"priv").unwrap();
        let mut seen = [0; 4];
        memory.read(private.as_ptr() as u64, &mut seen).unwrap();
        assert_eq!(&seen, b"priv");
        let nowhere = Proof { address: 8, nonce: [1; 16] };
        assert_eq!(TieredMemory::proven(Some(own()), Some(descriptor()), nowhere).tier(), Tier::Staging);
    }

    /// A buffer that is nowhere is the rank's doing: the tier stays, whichever it is.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn a_true_fault_stays_an_error() {
        for memory in [tiered(Some(own()), Some(descriptor())), tiered(None, Some(descriptor()))] {
            let (_probe, memory) = memory;
            let before = memory.tier();
            assert_eq!(memory.write(8, &[1]), Err(AccessError::Fault { address: 8, bytes: 1 }));
            assert_eq!(memory.read(8, &mut [1]), Err(AccessError::Fault { address: 8, bytes: 1 }));
            assert_eq!(memory.tier(), before);
        }
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

    #[derive(Debug, Default)]
    struct Noted(std::sync::Mutex<Vec<(u64, usize)>>);

    impl Watch for Noted {
        fn written(&self, batch: &[WritePiece<'_>]) {
            self.0.lock().unwrap().extend(batch.iter().map(|piece| (piece.address, piece.local.len())));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_watch_hears_of_every_write() {
        let noted = Arc::new(Noted::default());
        let memory = TieredMemory::default().with_watch(noted.clone());
        let region = Region::create("test", 4096).unwrap();
        memory.ranges().register(0x5000, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        memory.write(0x5000, b"one").unwrap();
        let batch = [WritePiece { local: b"two", address: 0x5800 }, WritePiece { local: b"beyond", address: 0x9000 }];
        assert!(memory.writev(&batch).is_err());
        assert_eq!(*noted.0.lock().unwrap(), [(0x5000, 3), (0x5800, 3), (0x9000, 6)]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv")]
    fn each_piece_takes_the_best_tier() {
        let (_probe, memory) = tiered(Some(own()), None);
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
        let (_probe, memory) = tiered(None, None);
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
        let bounce = &mut Vec::new();
        let at = |bytes: &[u8]| bytes.as_ptr() as u64;
        copy_between((&cross, at(&source)), (&cross, at(&target)), bytes, bounce).unwrap();
        let mut seen = vec![0; source.len()];
        cross.read(target.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);

        let region = Region::create("test", source.len()).unwrap();
        let ranges = MemfdRanges::default();
        ranges.register(0x7000, bytes, region.fd().try_clone_to_owned().unwrap()).unwrap();
        copy_between((&cross, at(&source)), (&ranges, 0x7000), bytes, bounce).unwrap();
        let back = vec![0u8; source.len()];
        copy_between((&ranges, 0x7000), (&cross, at(&back)), bytes, bounce).unwrap();
        cross.read(back.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);
    }
}
