//! A rank that does what the library does, and panics when it is harmed.

use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Duration;

use outboard_call::{Call, CallKind};
use outboard_shm::attach::{AttachChannel, AttachReply, AttachRequest, Hello};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::entry::SubmissionEntry;
use outboard_shm::memory::{MemoryDescriptor, Probe, Tier};
use outboard_shm::status::Status;

/// Longer than any machine takes for the events awaited here.
const LIMIT: Duration = Duration::from_secs(15);
/// Bytes of each contribution.
const BLOCK: usize = 64;
/// Completion words: for the honest group's calls, and for calls that the hostile rank owes.
const SLOT: u32 = 0;
const OWED_SLOT: u32 = 1;

pub(super) struct HonestRank {
    channel: AttachChannel,
    side: RankSide,
    /// Allgathers of the honest group so far.
    pub(super) rounds: u64,
    owed: u64,
    owing: bool,
    token: u64,
    input: Box<[u8; BLOCK]>,
    output: Box<[u8; 2 * BLOCK]>,
    owed_output: Box<[u8; 2 * BLOCK]>,
}

impl HonestRank {
    pub(super) fn attach(socket: &Path) -> HonestRank {
        let channel = AttachChannel::connect(socket).expect("the daemon listens");
        let mut probe = Box::new(Probe::new().expect("random bytes"));
        let probe_address = (&raw const *probe).addr() as u64;
        let (layout_version, nonce) = (LAYOUT_VERSION, probe.nonce());
        let hello = Hello { layout_version, pid: std::process::id(), probe_address, nonce, descriptor: true };
        let memory = MemoryDescriptor::of_this_process().expect("our own");
        channel.send(1, &AttachRequest::Hello(hello), &[memory.as_fd()]).expect("sent");
        assert!(channel.wait(LIMIT).expect("poll"), "an honest rank is welcomed");
        let mut received = channel.receive::<AttachReply>().expect("a reply").expect("it waits");
        let AttachReply::Welcome(welcome) = received.message else { panic!("a welcome, not {:?}", received.message) };
        assert!(welcome.tier == Tier::CrossMemory && probe.answered(), "the daemon reaches its own process");
        let doorbell = received.descriptors.pop().expect("two descriptors");
        let region = received.descriptors.pop().expect("two descriptors");
        let side = RankSide::attach(region, doorbell).expect("a control region");
        let blank = || Box::new([0; 2 * BLOCK]);
        let (input, output, owed_output) = (Box::new([0; BLOCK]), blank(), blank());
        HonestRank { channel, side, rounds: 0, owed: 0, owing: false, token: 1, input, output, owed_output }
    }

    pub(super) fn send(&mut self, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) {
        self.token += 1;
        self.channel.send(self.token, request, descriptors).expect("sent");
    }

    pub(super) fn receive(&mut self) -> AttachReply {
        assert!(self.channel.wait(LIMIT).expect("poll"), "an honest rank is answered");
        let received = self.channel.receive::<AttachReply>().expect("a reply").expect("it waits");
        assert_eq!(received.token, self.token, "the answer to what was asked");
        received.message
    }

    pub(super) fn request(&mut self, request: &AttachRequest, descriptors: &[BorrowedFd<'_>]) -> AttachReply {
        self.send(request, descriptors);
        self.receive()
    }

    /// Posts the next allgather of the honest group, as its rank `me`.
    pub(super) fn gather(&mut self, group: u64, me: u8) {
        self.rounds += 1;
        self.input.fill(byte(self.rounds, me));
        self.output.fill(0);
        let (send, receive) = (self.input.as_ptr().addr() as u64, self.output.as_mut_ptr().expose_provenance() as u64);
        self.post((group, self.rounds, SLOT), send, receive);
    }

    /// Checks that the allgather brought the contributions of the round after `round`.
    pub(super) fn check_gather(&mut self, round: u64) {
        assert_eq!(self.result(SLOT), Status::Ok, "an honest allgather succeeds");
        for (block, me) in self.output.chunks(BLOCK).zip(0..) {
            assert!(block.iter().all(|found| *found == byte(round + 1, me)), "block {me} of round {round}: {block:?}");
        }
    }

    /// Posts a call in the group with the hostile rank, unless an earlier call there is open.
    pub(super) fn owe(&mut self, group: u64) {
        if self.owing && self.side.result(OWED_SLOT).is_none() {
            return;
        }
        self.owed += 1;
        self.owing = true;
        let (send, receive) =
            (self.input.as_ptr().addr() as u64, self.owed_output.as_mut_ptr().expose_provenance() as u64);
        self.post((group, self.owed, OWED_SLOT), send, receive);
    }

    /// The hostile rank is gone: the call that it owed must have ended, well or not.
    pub(super) fn await_owed_call(&mut self) {
        if self.owing {
            self.result(OWED_SLOT);
        }
    }

    fn post(&self, (group, instance, slot): (u64, u64, u32), send: u64, receive: u64) {
        let call = Call { bytes: BLOCK as u64, send, receive, ..Call::new(CallKind::Allgather) };
        self.side.arm(slot);
        self.side.post(&SubmissionEntry { group, instance, slot, call }).expect("room in the ring");
    }

    fn result(&self, slot: u32) -> Status {
        assert!(
            self.side.wait(Some(slot), Some(LIMIT), || self.side.result(slot).is_some()),
            "an honest call never ends"
        );
        self.side.result(slot).expect("just seen")
    }

    pub(super) fn detach(mut self) {
        assert_eq!(self.request(&AttachRequest::Detach, &[]), AttachReply::Done, "an honest rank may go");
    }
}

fn byte(round: u64, me: u8) -> u8 {
    (round as u8).wrapping_mul(2).wrapping_add(me)
}
