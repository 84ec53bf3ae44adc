//! A rank's memory by the best tier for each range. A probe decides at attach, and again when an access fails later.

use super::cross::{LEAST_READ, VerifiedCrossMemory, WriteOutcome};
use super::{
    AccessError, CrossMemory, MappedBytes, MemfdRanges, MemoryDescriptor, RankMemory, ReadPiece, Tier, WritePiece,
};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use rustix::io::Errno;
use std::fmt;
use std::sync::Arc;

/// The rank's buffer that proves access: a nonce that the rank drew, then room for the answer.
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

    /// The nonce, which is sent to the service process beside the buffer's address.
    pub fn nonce(&self) -> [u8; Probe::NONCE] {
        self.nonce
    }

    /// Rank: whether the service process wrote its answer into this very buffer.
    pub fn answered(&mut self) -> bool {
        let answer = &raw const self.answer;
        // SAFETY: reads our own bytes; volatile, since another process wrote them without the compiler's knowledge.
        unsafe { answer.read_volatile() == complement(self.nonce) }
    }
}

fn complement(nonce: [u8; Probe::NONCE]) -> [u8; Probe::NONCE] {
    nonce.map(|byte| !byte)
}

/// Outcome of the probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProbeOutcome {
    /// Read and written: the tier may be used.
    Reached,
    /// The kernel refused, or the address was wrong.
    Failed(AccessError),
    /// Other bytes lie at the address, so it belongs to another process or another address space.
    OtherBytes,
}

/// Service process: reads the nonce at `address`, compares it, and writes the answer behind it.
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

/// The rank's [`Probe`] for the service process; it stays in place while the rank is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Proof {
    /// Address of the buffer in the rank.
    pub address: u64,
    pub nonce: [u8; Probe::NONCE],
}

/// Receives notice of writes to a rank's memory.
pub trait WriteObserver: Send + Sync + fmt::Debug {
    /// The batch has been written, or a part of it if the write failed.
    fn written(&self, batch: &[WritePiece<'_>]);
}

/// Raised by an access that finds a rank's memory changed, so that the memory of each rank need not be polled.
#[derive(Debug, Default)]
pub struct Alarm(AtomicU32);

impl Alarm {
    fn raise(&self) {
        self.0.store(1, Ordering::Release);
    }

    /// Whether the alarm was raised since the last call.
    pub fn take(&self) -> bool {
        self.0.load(Ordering::Relaxed) != 0 && self.0.swap(0, Ordering::Acquire) != 0
    }
}

/// Bytes moved to and from a rank's memory, by tier.
#[derive(Debug, Default)]
struct MovedBytes {
    memfd: AtomicU64,
    cross: AtomicU64,
    descriptor: AtomicU64,
}

/// Relaxed, since nothing depends on these sums.
fn add(count: &AtomicU64, bytes: usize) {
    count.fetch_add(bytes as u64, Ordering::Relaxed);
}

/// All of a rank's memory: memfd if registered, else the best of the other tiers that the kernel allows.
///
/// | tier in use | an access ends with | next |
/// |---|---|---|
/// | cross-memory attach | a refused or unproven access | memory descriptor, which does the access |
/// | either of these two | a refused descriptor, a fault whose probe fails too | staging; [`AccessError::Withdrawn`] |
/// | staging | - | - |
///
/// A fault whose probe succeeds is caused by the rank and stays an error. The tier never rises again.
#[derive(Debug)]
pub struct TieredMemory {
    ranges: MemfdRanges,
    cross: Option<VerifiedCrossMemory>,
    descriptor: Option<MemoryDescriptor>,
    proof: Option<Proof>,
    /// The tier in use for memory that is not registered, as [`Tier::code`].
    tier: AtomicU32,
    /// 1 once the address space was found to be gone.
    gone: AtomicU32,
    alarm: Arc<Alarm>,
    observer: Option<Arc<dyn WriteObserver>>,
    moved: MovedBytes,
}

impl TieredMemory {
    /// Memory accessed by the descriptor and, for large accesses, by cross-memory attach. A real access must prove each
    /// of the two, or it is not used.
    pub fn proven(cross: Option<CrossMemory>, descriptor: Option<MemoryDescriptor>, proof: Proof) -> Self {
        // The mark lies at the place of the answer. The rank reads the answer once, before it posts anything.
        let place = proof.address.wrapping_add(Probe::NONCE as u64);
        let cross = cross.map(|cross| VerifiedCrossMemory::new(cross, place)).filter(|cross| {
            let mut found = [0; Probe::NONCE];
            descriptor.as_ref().is_some_and(|descriptor| cross.read(descriptor, proof.address, &mut found))
        });
        let reaches = |memory: &MemoryDescriptor| probe(memory, proof.address, proof.nonce) == ProbeOutcome::Reached;
        let descriptor = descriptor.filter(reaches);
        let tier = match (&descriptor, &cross) {
            (Some(_), Some(_)) => Tier::CrossMemory,
            (Some(_), None) => Tier::MemoryDescriptor,
            (None, _) => Tier::Staging,
        };
        TieredMemory { cross, descriptor, proof: Some(proof), tier: AtomicU32::new(tier.code()), ..Self::default() }
    }

    /// Raises this alarm when the tier falls or the memory is found gone.
    #[must_use]
    pub fn with_alarm(self, alarm: Arc<Alarm>) -> Self {
        TieredMemory { alarm, ..self }
    }

    /// Notifies `observer` of writes.
    #[must_use]
    pub fn with_observer(self, observer: Arc<dyn WriteObserver>) -> Self {
        TieredMemory { observer: Some(observer), ..self }
    }

    /// The place by which other processes of the rank's user may prove that they have found the rank.
    pub fn proof(&self) -> Option<Proof> {
        self.proof
    }

    /// The memfd ranges, which may be registered and unregistered at any time.
    pub fn ranges(&self) -> &MemfdRanges {
        &self.ranges
    }

    /// The current tier of memory that is not registered.
    pub fn tier(&self) -> Tier {
        Tier::from_code(self.tier.load(Ordering::Relaxed)).expect("only tiers are stored")
    }

    /// Bytes moved so far, by the tier that moved them. Staged bytes count for the memfd tier, since the rank copies
    /// them to and from there.
    pub fn moved(&self) -> [(Tier, u64); 3] {
        let MovedBytes { memfd, cross, descriptor } = &self.moved;
        [(Tier::Memfd, memfd), (Tier::CrossMemory, cross), (Tier::MemoryDescriptor, descriptor)]
            .map(|(tier, count)| (tier, count.load(Ordering::Relaxed)))
    }

    /// The range in this process, for the kernel to write to from a socket. None if an observer must be notified of
    /// writes. [`Self::count_placed`] counts the bytes when the write is done.
    pub fn placement(&self, address: u64, bytes: u64) -> Option<MappedBytes> {
        if self.observer.is_some() { None } else { self.ranges.find(address, bytes) }
    }

    /// Counts bytes that the kernel has written in place.
    pub fn count_placed(&self, bytes: usize) {
        add(&self.moved.memfd, bytes);
    }

    /// Whether an access has found the rank's address space gone: the rank has ended, or runs another program.
    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed) != 0
    }

    /// Checks by the descriptor whether the address space exists. Accesses no memory of the rank.
    pub fn check_address_space(&self) {
        if self.descriptor.as_ref().is_some_and(MemoryDescriptor::has_no_process) {
            self.note_gone();
        }
    }

    fn note_gone(&self) {
        self.gone.store(1, Ordering::Relaxed);
        self.alarm.raise();
    }

    /// Does an access by the memory descriptor.
    fn access(
        &self,
        address: u64,
        bytes: usize,
        access: impl FnOnce(&MemoryDescriptor) -> Result<(), AccessError>,
    ) -> Result<(), AccessError> {
        let bytes = bytes as u64;
        let descriptor = match (self.tier(), &self.descriptor) {
            (Tier::CrossMemory | Tier::MemoryDescriptor, Some(descriptor)) => descriptor,
            // Access was never proven: the rank has always staged, and should have staged this time.
            (_, None) => return Err(AccessError::Unreachable { address, bytes }),
            (Tier::Staging | Tier::Memfd, Some(_)) => return Err(AccessError::Withdrawn { address, bytes }),
        };
        let Err(error) = access(descriptor) else { return Ok(()) };
        self.classify_error(descriptor, error).inspect_err(|error| {
            if matches!(error, AccessError::Gone { .. }) {
                self.note_gone();
            }
        })?;
        self.tier.store(Tier::Staging.code(), Ordering::Relaxed);
        self.alarm.raise();
        Err(AccessError::Withdrawn { address, bytes })
    }

    /// `Ok` if the error shows that the kernel has withdrawn the descriptor. Otherwise returns the error of the access.
    fn classify_error(&self, memory: &MemoryDescriptor, error: AccessError) -> Result<(), AccessError> {
        match error {
            AccessError::Refused { .. } | AccessError::Kernel { errno: Errno::NOSYS | Errno::ACCESS, .. } => Ok(()),
            AccessError::Fault { .. } => {
                let proof = self.proof.ok_or(error)?;
                match probe(memory, proof.address, proof.nonce) {
                    ProbeOutcome::Failed(gone @ AccessError::Gone { .. }) => Err(gone),
                    ProbeOutcome::Failed(_) => Ok(()),
                    // Bytes that the rank has changed itself do not show a refusal.
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
            add(&self.moved.memfd, piece.local.len());
            self.write_run(&batch[run..at])?;
            run = at + 1;
        }
        self.write_run(&batch[run..])
    }

    fn read_run(&self, run: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        let bytes = run.iter().map(|piece| piece.local.len()).sum();
        let cross = self.cross_for(run.len() == 1 && first.local.len() >= LEAST_READ);
        if let Some((cross, rank)) = cross
            && cross.read(rank, run[0].address, run[0].local)
        {
            add(&self.moved.cross, bytes);
            return Ok(());
        }
        self.access(run[0].address, run[0].local.len(), |memory| memory.readv(run))?;
        add(&self.moved.descriptor, bytes);
        self.abandon_cross_memory(cross);
        Ok(())
    }

    fn write_run(&self, run: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let Some(first) = run.first() else { return Ok(()) };
        let bytes = run.iter().map(|piece| piece.local.len()).sum();
        let cross = self.cross_for(true);
        match cross.map(|(cross, _)| cross.write(run)) {
            Some(WriteOutcome::Written) => {
                add(&self.moved.cross, bytes);
                return Ok(());
            }
            Some(WriteOutcome::Fault { address, bytes }) => return Err(AccessError::Fault { address, bytes }),
            Some(WriteOutcome::Refused) | None => {}
        }
        self.access(first.address, first.local.len(), |memory| memory.writev(run))?;
        add(&self.moved.descriptor, bytes);
        self.abandon_cross_memory(cross);
        Ok(())
    }

    /// Cross-memory attach and the descriptor that proves it, if the access is large enough.
    fn cross_for(&self, worth_it: bool) -> Option<(&VerifiedCrossMemory, &MemoryDescriptor)> {
        match (self.tier(), &self.cross, &self.descriptor) {
            (Tier::CrossMemory, Some(cross), Some(rank)) if worth_it => Some((cross, rank)),
            _ => None,
        }
    }

    /// Gives up cross-memory attach if this access has tried it. The descriptor succeeded where cross-memory attach
    /// failed. So the kernel refuses cross-memory attach, or the process number is not the rank's any more.
    fn abandon_cross_memory(&self, tried: Option<(&VerifiedCrossMemory, &MemoryDescriptor)>) {
        if tried.is_some() {
            let (from, to) = (Tier::CrossMemory.code(), Tier::MemoryDescriptor.code());
            if self.tier.compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed).is_ok() {
                self.alarm.raise();
            }
        }
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
            gone: AtomicU32::new(0),
            alarm: Arc::default(),
            observer: None,
            moved: MovedBytes::default(),
        }
    }
}

/// Pieces outside of all memfd ranges are passed on in runs, so that a run is one system call.
impl RankMemory for TieredMemory {
    fn readv(&self, batch: &mut [ReadPiece<'_>]) -> Result<(), AccessError> {
        let mut run = 0;
        for at in 0..batch.len() {
            let piece = &mut batch[at];
            let Some(resident) = self.ranges.find(piece.address, piece.local.len() as u64) else { continue };
            resident.copy_out(piece.local);
            add(&self.moved.memfd, piece.local.len());
            self.read_run(&mut batch[run..at])?;
            run = at + 1;
        }
        self.read_run(&mut batch[run..])
    }

    fn writev(&self, batch: &[WritePiece<'_>]) -> Result<(), AccessError> {
        let written = self.write_runs(batch);
        if let Some(observer) = &self.observer {
            observer.written(batch);
        }
        written
    }

    fn resident(&self, address: u64, bytes: u64) -> Option<MappedBytes> {
        self.ranges.find(address, bytes).inspect(|_| add(&self.moved.memfd, bytes as usize))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::copy_between;
    use crate::region::MemfdRegion;

    fn own() -> CrossMemory {
        CrossMemory::of(rustix::process::getpid())
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
        let (mut probe, memory) = tiered(Some(own()), Some(descriptor()));
        assert!(probe.answered(), "the mark is not in the way");
        assert_eq!(memory.tier(), Tier::CrossMemory);
        assert_eq!(tiered(Some(own()), None).1.tier(), Tier::Staging, "nothing is written by it");
        let (mut probe, memory) = tiered(None, Some(descriptor()));
        assert!(probe.answered());
        assert_eq!(memory.tier(), Tier::MemoryDescriptor);
        let private = [0u8; 4];
        memory.write(private.as_ptr() as u64, b"priv").unwrap();
        let mut seen = [0; 4];
        memory.read(private.as_ptr() as u64, &mut seen).unwrap();
        assert_eq!(&seen, b"priv");
        let nowhere = Proof { address: 8, nonce: [1; 16] };
        assert_eq!(TieredMemory::proven(Some(own()), Some(descriptor()), nowhere).tier(), Tier::Staging);
    }

    /// The rank causes the fault of a buffer that does not exist, so the tier stays.
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

    /// A process number that belongs to another process now is not used again, and the bytes are still right.
    #[test]
    #[cfg_attr(miri, ignore = "needs process_vm_readv and /proc/self/mem")]
    fn reads_fall_back_to_the_descriptor_after_pid_reuse() {
        let (_probe, mut memory) = tiered(Some(own()), Some(descriptor()));
        let bytes = vec![7u8; 2 * LEAST_READ];
        let read = |memory: &TieredMemory, bytes: &[u8]| {
            let mut found = vec![0; bytes.len()];
            memory.read(bytes.as_ptr() as u64, &mut found).unwrap();
            assert!(found == bytes);
        };
        read(&memory, &bytes);
        assert_eq!(memory.tier(), Tier::CrossMemory);
        let parent = CrossMemory::of(rustix::process::getppid().expect("it has one"));
        memory.cross = Some(VerifiedCrossMemory::new(parent, memory.proof.unwrap().address));
        read(&memory, &bytes[..LEAST_READ - 1]);
        assert_eq!(memory.tier(), Tier::CrossMemory, "small reads are not made that way");
        read(&memory, &bytes);
        assert_eq!(memory.tier(), Tier::MemoryDescriptor);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn the_probe_answers_in_the_buffer_it_read() {
        let own = descriptor;
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

    impl WriteObserver for Noted {
        fn written(&self, batch: &[WritePiece<'_>]) {
            self.0.lock().unwrap().extend(batch.iter().map(|piece| (piece.address, piece.local.len())));
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn an_observer_is_notified_of_every_write() {
        let noted = Arc::new(Noted::default());
        let memory = TieredMemory::default().with_observer(noted.clone());
        let region = MemfdRegion::create("test", 4096).unwrap();
        memory.ranges().register(0x5000, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        memory.write(0x5000, b"one").unwrap();
        let batch = [WritePiece { local: b"two", address: 0x5800 }, WritePiece { local: b"beyond", address: 0x9000 }];
        assert!(memory.writev(&batch).is_err());
        assert_eq!(*noted.0.lock().unwrap(), [(0x5000, 3), (0x5800, 3), (0x9000, 6)]);
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn each_piece_takes_the_best_tier() {
        let (_probe, memory) = tiered(None, Some(descriptor()));
        let region = MemfdRegion::create("test", 4096).unwrap();
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

    /// SP-4: the check whether the address space exists does not access the address space.
    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/PID/mem")]
    fn the_end_of_an_address_space_is_noticed_without_access() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let file = std::fs::File::options().read(true).write(true).open(format!("/proc/{}/mem", child.id())).unwrap();
        let descriptor = MemoryDescriptor::attach(std::os::fd::OwnedFd::from(file), child.id() as i32).unwrap();
        let memory = TieredMemory { descriptor: Some(descriptor), ..TieredMemory::default() };
        memory.check_address_space();
        assert!(!memory.is_gone() && memory.tier() == Tier::Staging);
        assert!(matches!(memory.read(4096, &mut [0]), Err(AccessError::Withdrawn { .. })));
        child.kill().unwrap();
        child.wait().unwrap();
        memory.check_address_space();
        assert!(memory.is_gone());
    }

    /// GP-9: without the descriptor only registered ranges, among them staging segments, can be accessed.
    #[test]
    #[cfg_attr(miri, ignore = "maps a memfd")]
    fn a_refused_probe_leaves_registered_ranges() {
        let (_probe, memory) = tiered(None, None);
        assert_eq!(memory.tier(), Tier::Staging);
        let private = [0u8; 4];
        let address = private.as_ptr() as u64;
        assert_eq!(memory.write(address, b"priv"), Err(AccessError::Unreachable { address, bytes: 4 }));
        let region = MemfdRegion::create("test", 4096).unwrap();
        memory.ranges().register(0x5000, 4096, region.fd().try_clone_to_owned().unwrap()).unwrap();
        memory.write(0x5000, b"seen").unwrap();
    }

    #[test]
    #[cfg_attr(miri, ignore = "needs /proc/self/mem")]
    fn copies_between_memories_of_any_tiers() {
        let source: Vec<u8> = (0..600_000u32).map(|at| (at / 3) as u8).collect();
        let target = vec![0u8; source.len()];
        let bytes = source.len() as u64;
        let own = descriptor();
        let bounce = &mut Vec::new();
        let at = |bytes: &[u8]| bytes.as_ptr() as u64;
        copy_between(&own, at(&source), &own, at(&target), bytes, bounce).unwrap();
        let mut seen = vec![0; source.len()];
        own.read(target.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);

        let region = MemfdRegion::create("test", source.len()).unwrap();
        let shared = TieredMemory::default();
        shared.ranges().register(0x7000, bytes, region.fd().try_clone_to_owned().unwrap()).unwrap();
        copy_between(&own, at(&source), &shared, 0x7000, bytes, bounce).unwrap();
        let back = vec![0u8; source.len()];
        copy_between(&shared, 0x7000, &own, at(&back), bytes, bounce).unwrap();
        own.read(back.as_ptr() as u64, &mut seen).unwrap();
        assert!(seen == source);
    }
}
