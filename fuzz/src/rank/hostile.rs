//! The hostile rank: everything that a process can do to an attach socket and to the memory that it shares.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use outboard_call::{Call, CallKind, Element, Operator, Rank, Reduction, TaggedCall};
use outboard_proto::wire::RecordedMemory;
use outboard_shm::attach::message::AttachMessage;
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, Hello, OFFER_BYTES, RestagedBuffers};
use outboard_shm::control::{COMPLETION_WORDS, LAYOUT_VERSION, RankSide};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::region::{MemfdRegion, seal_bytes};
use outboard_sim::{FuzzInput, sequences};
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};

use super::honest::HonestRank;

const LIMIT: Duration = Duration::from_secs(15);
/// The address that the rank claims for its registered memory.
const ADDRESS: u64 = 0x10_0000;
/// Bytes of the registered memory.
const BYTES: usize = 8192;
/// The start of the ring's slots in the control region, and their distance.
const SLOTS_AT: u64 = 4608;
const SLOT_BYTES: u64 = 128;

/// The resources that a welcome brought.
struct AttachResources {
    side: RankSide,
    region: MemfdRegion,
    doorbell: OwnedFd,
}

pub(super) struct HostileRank {
    channel: AttachChannel,
    attached: Option<AttachResources>,
    paid: u64,
    recorded: u32,
    /// Calls of recordings so far.
    called: u64,
    token: u64,
    /// Whether the rank has so far done only what the library does.
    good: bool,
    /// Whether the rank may have overwritten its own end of the ring: a post could then loop for ever.
    scribbled: bool,
}

impl HostileRank {
    pub(super) fn connect(socket: &Path) -> HostileRank {
        let channel = AttachChannel::connect(socket).expect("the daemon listens");
        HostileRank { channel, attached: None, paid: 0, recorded: 0, called: 0, token: 0, good: true, scribbled: false }
    }

    /// Whether the rank was good so far, and is attached.
    pub(super) fn behaves(&mut self) -> bool {
        if self.good && self.attached.is_none() {
            self.attach();
        }
        self.good && self.attached.is_some()
    }

    fn hello(&self, input: &mut FuzzInput<'_>) -> Hello {
        let layout_version = if input.below(8) == 0 { input.number32() } else { LAYOUT_VERSION };
        // The nonce never equals bytes at an address of this process, because the daemon would then write there.
        let mut nonce = [0xa5; 16];
        nonce[15] ^= input.byte() & 1;
        Hello { layout_version, pid: input.number32(), probe_address: input.number(), nonce, descriptor: input.flip() }
    }

    /// Greets like a rank whose memory cannot be reached.
    pub(super) fn attach(&mut self) {
        let hello = AttachRequest::Hello(self.hello(&mut FuzzInput::new(&[1])));
        if self.send(&hello, &[]) {
            self.receive(LIMIT);
        }
    }

    fn send(&mut self, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) -> bool {
        self.token += 1;
        self.channel.send(self.token, request, descriptors).is_ok()
    }

    /// The next reply, if one comes within `limit`. Keeps the first welcome.
    fn receive(&mut self, limit: Duration) -> Option<AttachReply> {
        if !self.channel.wait(limit).ok()? {
            return None;
        }
        let mut received = self.channel.receive::<AttachReply>().ok()??;
        if let (AttachReply::Welcome(_), None) = (&received.message, &self.attached) {
            let mut descriptor = || received.descriptors.pop().expect("two descriptors");
            let (doorbell, region) = (descriptor(), descriptor());
            let size = rustix::fs::fstat(&region).expect("a file").st_size as usize;
            let copy = |fd: &OwnedFd| fd.try_clone().expect("a descriptor");
            let mapped = MemfdRegion::attach(copy(&region), size).expect("a control region");
            let side = RankSide::attach(region, copy(&doorbell)).expect("a control region");
            self.attached = Some(AttachResources { side, region: mapped, doorbell });
        }
        Some(received.message)
    }

    /// Receives all pending replies.
    pub(super) fn read(&mut self) {
        while self.receive(Duration::ZERO).is_some() {}
    }

    /// Makes a group with an honest rank, which is rank 0. Each rank has its own identifier of the group.
    pub(super) fn group_with(&mut self, honest: &mut HonestRank) -> Option<(u64, u64)> {
        let region = MemfdRegion::create("buffers", BYTES).expect("memory");
        let register = AttachRequest::RegisterMemory { address: ADDRESS, bytes: BYTES as u64 };
        let registered = self.send(&register, &[region.fd()]) && self.receive(LIMIT) == Some(AttachReply::Done);
        if !registered || !self.send(&AttachRequest::Offer, &[]) {
            return None;
        }
        let Some(AttachReply::Offer(own)) = self.receive(LIMIT) else { return None };
        let AttachReply::Offer(first) = honest.request(&AttachRequest::Offer, &[]) else {
            panic!("an honest rank gets its offer")
        };
        let mut offers = first[..].to_vec();
        offers.extend_from_slice(&own[..]);
        let offers = seal_bytes("offers", &offers).expect("memory");
        assert!(
            self.send(&AttachRequest::CreateGroup { ranks: 2, rank: 1 }, &[offers.as_fd()]),
            "it is attached and good"
        );
        honest.send(&AttachRequest::CreateGroup { ranks: 2, rank: 0 }, &[offers.as_fd()]);
        match (self.receive(LIMIT), honest.receive()) {
            (Some(AttachReply::GroupReady(mine)), AttachReply::GroupReady(theirs)) => Some((theirs.group, mine.group)),
            others => panic!("two good ranks make a group, not {others:?}"),
        }
    }

    /// Posts the next call of the group with the honest rank, correctly.
    pub(super) fn pay(&mut self, group: u64) {
        let Some(attached) = self.attached.as_ref().filter(|_| !self.scribbled) else { return };
        self.paid += 1;
        let call = Call { bytes: 64, send: ADDRESS, receive: ADDRESS + 64, ..Call::new(CallKind::Allgather) };
        let entry = SubmissionEntry { group, instance: self.paid, slot: 2 + (self.paid % 64) as u32, call };
        // The ring is full if the daemon is slow.
        let _ = attached.side.post(&entry);
    }

    pub(super) fn entry(&mut self, input: &mut FuzzInput<'_>) {
        self.good = false;
        let Some(attached) = self.attached.as_ref().filter(|_| !self.scribbled) else { return };
        let address = |input: &mut FuzzInput<'_>| match input.below(4) {
            0 => input.number(),
            _ => ADDRESS + u64::from(input.byte()) * 64,
        };
        let slot = match input.below(8) {
            0 => input.number32(),
            _ => u32::from(input.byte()),
        };
        let (group, instance) = (input.number(), input.number());
        let (number, tag) = (if input.flip() { u32::from(input.below(3)) } else { input.number32() }, input.number32());
        let code = u16::from(input.below(13)) << 8 | u16::from(input.below(20));
        let reduction = Reduction::from_code(code).or_else(|_| Reduction::new(Operator::Sum, Element::F64));
        let (root, reduction) = (Rank(number), reduction.expect("numbers have sums"));
        let kinds = [
            CallKind::Allgather,
            CallKind::Allgatherv { sizes: 0 },
            CallKind::Alltoall,
            CallKind::Alltoallv,
            CallKind::Barrier,
            CallKind::Broadcast { root },
            CallKind::Gather { root },
            CallKind::Gatherv { root },
            CallKind::Scatter { root },
            CallKind::Scatterv { root },
            CallKind::Reduce { root, reduction },
            CallKind::Allreduce { reduction },
            CallKind::ReduceScatter { reduction, sizes: 0 },
            CallKind::ReduceScatterBlock { reduction },
            CallKind::Scan { reduction, inclusive: input.flip() },
            CallKind::Tagged(TaggedCall::Recorded { recording: number }),
            CallKind::Tagged(TaggedCall::Send { to: root, tag }),
            CallKind::Tagged(TaggedCall::Receive { from: root, tag }),
        ];
        let mut call = Call::new(kinds[usize::from(input.below(kinds.len() as u8))]);
        call.in_place = input.below(4) == 0;
        call.bytes = if input.flip() { 64 } else { input.number() };
        (call.send, call.table) = (address(input), address(input));
        call.receive = if input.below(8) == 0 { 0 } else { address(input) };
        let _ = attached.side.post(&SubmissionEntry { group, instance, slot, call });
    }

    /// Writes words somewhere into the control region.
    pub(super) fn scribble(&mut self, input: &mut FuzzInput<'_>) {
        (self.good, self.scribbled) = (false, true);
        let Some(attached) = &self.attached else { return };
        let size = attached.region.bytes() as u64;
        let at = match input.below(4) {
            0 => input.number().wrapping_mul(8),
            1 => 4096 + u64::from(input.byte()) * 4,
            _ => SLOTS_AT + u64::from(input.byte()) % COMPLETION_WORDS as u64 * SLOT_BYTES,
        };
        for word in 0..u64::from(1 + input.below(16)) {
            let at = at.wrapping_add(word * 8) % size;
            let bytes = input.number().to_le_bytes();
            let fitting = bytes.len().min((size - at) as usize);
            attached.region.write(at as usize, &bytes[..fitting]);
        }
        self.wake();
    }

    fn wake(&self) {
        if let Some(attached) = &self.attached {
            // The write fails if the counter is at its end.
            let _ = rustix::io::write(&attached.doorbell, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn ring(&mut self, input: &mut FuzzInput<'_>) {
        self.good = false;
        let Some(attached) = &self.attached else { return };
        if input.flip() {
            let _ = rustix::io::read(&attached.doorbell, &mut [0; 8]);
        } else {
            let _ = rustix::io::write(&attached.doorbell, &input.number().to_ne_bytes());
        }
    }

    /// A message in good form with any contents, or in nearly good form.
    pub(super) fn request(&mut self, input: &mut FuzzInput<'_>) {
        self.good = false;
        let request = match input.below(13) {
            0 => AttachRequest::Hello(self.hello(input)),
            1 => AttachRequest::Offer,
            2 => AttachRequest::CreateGroup { ranks: input.number32(), rank: input.number32() },
            3 => AttachRequest::DestroyGroup { group: input.number() },
            4 | 5 => {
                let address = if input.flip() { input.number() } else { u64::from(input.byte()) * 4096 };
                let bytes = if input.flip() { input.number() } else { 4096 };
                AttachRequest::RegisterMemory { address, bytes }
            }
            6 => AttachRequest::UnregisterMemory { address: u64::from(input.byte()) * 4096 },
            8 => {
                let (group, instance, slot) = (input.number(), input.number(), input.number32());
                let address = |input: &mut FuzzInput<'_>| ADDRESS + u64::from(input.byte()) * 64;
                AttachRequest::Restage(RestagedBuffers {
                    group,
                    instance,
                    slot,
                    send: address(input),
                    receive: address(input),
                })
            }
            9 if input.flip() => {
                AttachRequest::RefuseRestage { group: input.number(), instance: input.number(), slot: input.number32() }
            }
            7 => AttachRequest::ErrorText { slot: input.number32() },
            10 => AttachRequest::Record { group: input.number(), recording: input.number32(), bytes: input.number() },
            11 => AttachRequest::FreeRecording { group: input.number(), recording: input.number32() },
            12 => AttachRequest::SetDeadline { group: input.number(), milliseconds: input.number() },
            _ => AttachRequest::Detach,
        };
        let mut bytes = request.encode(input.number());
        let mut count = request.descriptors();
        if input.below(4) == 0 {
            let at = usize::from(input.byte()) % bytes.len();
            bytes[at] = input.byte();
            count = usize::from(input.below(3));
        }
        self.raw(&bytes, count, input);
    }

    /// Records something correctly, or nearly so, and calls it.
    pub(super) fn record(&mut self, group: Option<u64>, input: &mut FuzzInput<'_>) {
        self.good = false;
        let group = group.filter(|_| input.byte() < 0xf0).unwrap_or_else(|| input.number());
        let Some(recording) = sequences::recording(input, Rank(1), 2) else { return };
        let bytes = recording.program.output_bytes;
        let half = bytes / 2;
        let place = |input: &mut FuzzInput<'_>| ADDRESS + u64::from(input.byte()) * 16;
        let pieces = vec![(place(input), half), (place(input), bytes - half)];
        let mut encoded = RecordedMemory { recording, pieces }.encode();
        if input.below(4) == 3 {
            let at = input.word() as usize % encoded.len();
            encoded[at] = input.byte();
        }
        self.recorded += 1;
        let recording = if input.byte() < 0xf0 { self.recorded } else { input.number32() };
        let sealed = seal_bytes("recording", &encoded).expect("memory");
        let request = AttachRequest::Record { group, recording, bytes: encoded.len() as u64 };
        let sent = self.send(&request, &[sealed.as_fd()]);
        let Some(attached) = self.attached.as_ref().filter(|_| sent && !self.scribbled) else { return };
        for _ in 0..=input.below(3) {
            self.called += 1;
            let slot = 128 + (self.called % 64) as u32;
            let call = Call::new(CallKind::Tagged(TaggedCall::Recorded { recording }));
            // The ring is full if the daemon is slow.
            let _ = attached.side.post(&SubmissionEntry { group, instance: self.called, slot, call });
        }
    }

    pub(super) fn bytes(&mut self, input: &mut FuzzInput<'_>) {
        self.good = false;
        let (count, descriptors) = (input.byte(), input.below(3));
        let bytes = input.bytes(usize::from(count).max(1)).to_vec();
        self.raw(&bytes, descriptors.into(), input);
    }

    fn raw(&mut self, bytes: &[u8], count: usize, input: &mut FuzzInput<'_>) {
        let descriptors: Vec<OwnedFd> = (0..count).map(|_| descriptor(input)).collect();
        let borrowed: Vec<BorrowedFd<'_>> = descriptors.iter().map(AsFd::as_fd).collect();
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(3))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        if !borrowed.is_empty() {
            control.push(SendAncillaryMessage::ScmRights(&borrowed));
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        // The daemon may have closed the connection, with good reason.
        let _ = rustix::net::sendmsg(&self.channel, &[std::io::IoSlice::new(bytes)], &mut control, flags);
    }
}

/// Memory in good order, or something that is not.
fn descriptor(input: &mut FuzzInput<'_>) -> OwnedFd {
    let memfd = |bytes| {
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let fd = rustix::fs::memfd_create("unsealed", flags).expect("memory");
        rustix::fs::ftruncate(&fd, bytes).expect("memory");
        fd
    };
    match input.below(6) {
        0 | 1 => MemfdRegion::create("sealed", 4096).expect("memory").fd().try_clone_to_owned().expect("a descriptor"),
        2 => seal_bytes("offers", &[input.byte(); OFFER_BYTES]).expect("memory"),
        3 => memfd(4096),
        4 => memfd(0),
        _ => eventfd(0, EventfdFlags::CLOEXEC).expect("a descriptor"),
    }
}
