//! The attachment of a process to the service process of its host: its state, and the progress that calls make.

use crate::adaptive_polling::AdaptiveWait;
use crate::allocations::Allocation;
use crate::connection::ServiceConnection;
use crate::copy_agent::CopyAgent;
use crate::error::Error;
use crate::heap;
use crate::lock::lock;
use crate::segment_cache::SegmentCache;
use crate::slots::{BufferPlacement, DeliveryState, PostedCall, Slots};
use crate::staging::{RankStaging, RequestBuffers, TableMemory, Tables};
use crate::wait_trace::WaitTrace;
use outboard_shm::attach::{AttachReply, AttachRequest, Hello, RestagedBuffers};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::fork::ForkGuard;
use outboard_shm::memory::{MemoryDescriptor, OwnMemory, ProbePage, Tier};
use outboard_shm::plain::PlainMemory;
use outboard_shm::status::Status;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// The most time for attaching; a service process that accepts and then does not answer counts as absent.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// How long a wait sleeps before it checks whether the service process still lives.
const SLICE: Duration = Duration::from_millis(100);

/// The attachment. A forked child must not even drop the attachment, because its mappings are missing in the child.
#[derive(Debug)]
pub(crate) struct Attachment {
    guard: ForkGuard,
    parts: ManuallyDrop<AttachmentParts>,
}

/// State of the process that attached.
#[derive(Debug)]
pub(crate) struct AttachmentParts {
    pub(crate) connection: ServiceConnection,
    pub(crate) control: RankSide,
    /// The tier that was proven when attaching.
    tier: Tier,
    pub(crate) config_digest: u64,
    pub(crate) link_rate: u64,
    pub(crate) slots: Mutex<Slots>,
    /// Notified when this rank has done its part at the end of a request.
    delivered: Condvar,
    pub(crate) staging: Mutex<RankStaging>,
    /// The program's memory, as the rank itself may access it.
    pub(crate) own: OwnMemory,
    /// The number of staging requests that this rank has carried out.
    staged_requests: AtomicU32,
    pub(crate) tables: Mutex<Tables>,
    pub(crate) allocations: Mutex<BTreeMap<usize, Allocation>>,
    /// The address range of the program's large allocations, if the service process maps it.
    heap: Option<Range<usize>>,
    /// The page stays at the address that the service process knows.
    _probe: ProbePage,
    pub(crate) groups: Mutex<usize>,
    lost: OnceLock<()>,
    pub(crate) trace: Option<WaitTrace>,
    adaptive_polling: AdaptiveWait,
    pub(crate) copy_agent: CopyAgent,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.guard.forked() {
            // The program still has the addresses of these regions.
            std::mem::take(&mut *lock(&self.parts.allocations)).into_values().for_each(Allocation::leave_mapped);
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.parts) }
        }
    }
}

impl Attachment {
    /// Attaches over a new connection.
    pub(crate) fn new(connection: ServiceConnection) -> Result<Attachment, Error> {
        let kernel = |what: &str, errno| Error::Resource(format!("cannot {what}: {errno}"));
        let guard = ForkGuard::new().map_err(|errno| kernel("guard against forks", errno))?;
        // If the Yama module restricts tracing to ancestors, this adds one tracer; elsewhere it fails harmlessly.
        if let Some(service) = connection.service_pid() {
            let _ = rustix::process::set_ptracer(rustix::process::PTracer::ProcessID(service));
        }
        let mut probe = ProbePage::new().map_err(|errno| kernel("make a page for a probe", errno))?;
        // Without a descriptor, as on hosts without /proc, the service process has one tier less.
        let own_memory = MemoryDescriptor::of_this_process().ok();
        let hello = AttachRequest::Hello(Hello {
            layout_version: LAYOUT_VERSION,
            pid: std::process::id(),
            probe_address: &raw mut *probe as u64,
            nonce: probe.nonce(),
            descriptor: own_memory.is_some(),
        });
        let descriptors: Vec<_> = own_memory.iter().map(AsFd::as_fd).collect();
        let reply = connection.call(&hello, &descriptors, Some(ATTACH_LIMIT))?;
        drop(own_memory);
        let AttachReply::Welcome(welcome) = reply.message else {
            return Err(ServiceConnection::unexpected_reply(&reply.message));
        };
        let Ok([region, doorbell]) = <[_; 2]>::try_from(reply.descriptors) else {
            return Err(Error::Protocol("welcome without two descriptors".to_owned()));
        };
        let control = RankSide::attach(region, doorbell)?;
        // Staging works even if the service process assumes a faster tier, so a missing answer selects staging.
        let tier = if probe.answered() { welcome.tier } else { Tier::Staging };
        let heap = heap::register(&connection)?;
        let most_ranges = welcome.most_ranges.saturating_sub(heap.is_some().into());
        let parts = AttachmentParts {
            slots: Mutex::new(Slots::new(control.slots())),
            delivered: Condvar::new(),
            connection,
            control,
            tier,
            config_digest: welcome.config_digest,
            link_rate: welcome.link_rate,
            staging: Mutex::new(RankStaging::new(SegmentCache::new(most_ranges))),
            own: OwnMemory::new(),
            staged_requests: AtomicU32::new(0),
            tables: Mutex::default(),
            allocations: Mutex::default(),
            heap,
            _probe: probe,
            groups: Mutex::default(),
            lost: OnceLock::new(),
            trace: WaitTrace::from_environment(),
            adaptive_polling: AdaptiveWait::default(),
            copy_agent: CopyAgent::default(),
        };
        Ok(Attachment { guard, parts: ManuallyDrop::new(parts) })
    }

    /// The parts, if this process is the one that attached.
    pub(crate) fn parts(&self) -> Result<&AttachmentParts, Error> {
        if self.guard.forked() { Err(Error::Forked) } else { Ok(&self.parts) }
    }
}

impl AttachmentParts {
    /// Copies a table to memory that the service process can read, and returns its address; 0 for an empty table.
    pub(crate) fn put_table(&self, slot: u32, table: &[u64]) -> Result<u64, Error> {
        if table.is_empty() {
            return Ok(0);
        }
        let make = |bytes| match lock(&self.staging).segments.acquire(&self.connection, bytes, bytes) {
            Ok(region) => Ok(TableMemory::Shared(region)),
            // In all other tiers the service process reads plain memory too.
            Err(Error::Resource(_)) if self.tier() != Tier::Staging => {
                let plain = PlainMemory::new(bytes).map_err(|errno| {
                    Error::Resource(format!("no memory for {bytes} bytes of tables: {errno}; check limits on memory"))
                })?;
                Ok(TableMemory::Plain(plain))
            }
            Err(error) => Err(error),
        };
        lock(&self.tables).put(make, slot, self.control.slots(), table)
    }

    /// The way in which the service process now accesses memory that is not shared.
    pub(crate) fn tier(&self) -> Tier {
        match self.tier {
            // The service process may assume a faster tier, but its proof never arrived.
            Tier::Staging => Tier::Staging,
            proven => self.control.changed_tier().unwrap_or(proven),
        }
    }

    /// Whether `bytes` bytes at `start` lie in memory that the service process maps.
    pub(crate) fn shared(&self, start: *const u8, bytes: usize) -> bool {
        let start = start as usize;
        let ends_by = |end: usize| start.checked_add(bytes).is_some_and(|last| last <= end);
        if let Some(heap) = self.heap.as_ref().filter(|heap| heap.contains(&start)) {
            return ends_by(heap.end);
        }
        let allocations = lock(&self.allocations);
        let before = allocations.range(..=start).next_back();
        before.is_some_and(|(at, allocation)| match allocation {
            Allocation::Shared(shared) => ends_by(at + shared.bytes()),
            Allocation::Plain(_) => false,
        })
    }

    /// Whether the service process is gone; makes a system call until it is.
    pub(crate) fn lost(&self) -> bool {
        let lost = self.known_lost() || self.connection.hung_up();
        if lost {
            let _ = self.lost.set(());
        }
        lost
    }

    /// Whether the service process is known to be gone; makes no system call.
    pub(crate) fn known_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Whether both buffers lie in memory that the service process maps.
    pub(crate) fn shares(&self, buffers: &RequestBuffers) -> bool {
        buffers.all_in(|start, bytes| self.shared(start, bytes))
    }

    /// Checks that the program itself may write where the buffers receive, if the service process could write there in
    /// spite of the page's protection.
    pub(crate) fn check_protections(&self, tier: Tier, buffers: &RequestBuffers) -> Result<(), Error> {
        let ignores_protections = match tier {
            // The kernel writes to private memory as the rank itself may.
            Tier::CrossMemory => buffers.any_received_in(|start, bytes| self.shared(start, bytes)),
            Tier::MemoryDescriptor | Tier::Memfd => true,
            // The rank itself writes to memory that is not shared.
            Tier::Staging => self.shares(buffers),
        };
        if ignores_protections { Ok(self.own.check_writable(buffers.received_pieces())?) } else { Ok(()) }
    }

    /// Calls [`Self::sleep_until`], and records the wait in the trace if there is one.
    pub(crate) fn wait_until(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let Some(trace) = self.trace.as_ref().filter(|_| !done()) else { return self.sleep_until(slot, limit, done) };
        let since = WaitTrace::now();
        let waited = self.sleep_until(slot, limit, done);
        trace.record_wait(since);
        waited
    }

    /// Waits until `done` holds, making offered copies meanwhile. With `slot` only the end of that request makes `done`
    /// true.
    fn sleep_until(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        if done() {
            return Ok(true);
        }
        self.control.begin_wait();
        let waited = self.sleep_in_slices(slot, limit, || self.copy_agent.run_until(&self.control, &mut done));
        self.control.end_wait();
        waited
    }

    /// Sleeps in slices and checks in between whether the service process lives. `Ok(false)` when `limit` has passed.
    /// If the last wait was short, the thread polls for a while before it sleeps ([`AdaptiveWait`]).
    fn sleep_in_slices(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let start = Instant::now();
        if self.adaptive_polling.poll(&mut done) {
            return Ok(true);
        }
        let mut restages = true;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let mut wake = || done() || (restages && self.must_restage());
            if self.control.wait(slot, Some(left.map_or(SLICE, |left| left.min(SLICE))), &mut wake) {
                if done() {
                    self.adaptive_polling.record_wait(start.elapsed());
                    return Ok(true);
                }
                // If a buffer cannot be copied now, the thread tries again after a slice.
                restages = self.restage();
                continue;
            }
            restages = true;
            if self.lost() {
                // A request that the service process completed before it died counts as completed.
                return if done() { Ok(true) } else { Err(self.connection.lost()) };
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// The progress that every call into the library makes.
    pub(crate) fn progress(&self) {
        if self.must_restage() {
            self.restage();
        }
        self.drain_orphans();
    }

    /// Finishes requests that were freed early and have completed.
    fn drain_orphans(&self) {
        let ended = lock(&self.slots).ended_orphans(|slot| self.control.result(slot).is_some());
        for slot in ended {
            // No request handle is left to report an operator that panics.
            let _ = self.finish(slot, self.control.result(slot) == Some(Status::Ok));
        }
    }

    /// Ends a request whose result has been seen: calls [`Self::deliver`], then frees the request's word.
    pub(crate) fn finish(&self, slot: u32, well: bool) -> Result<(), Error> {
        let call = lock(&self.slots).call(slot);
        let outcome = self.deliver(call, well);
        lock(&self.slots).release(slot);
        outcome
    }

    /// Ends the use of the program's buffers by calls of a group that have ended or never will. The results of the
    /// calls stay.
    pub(crate) fn drain(&self, calls: &[PostedCall]) {
        for &call in calls {
            if let Some(status) = self.control.result(call.slot) {
                // The holder of the request gets the error.
                let _ = self.deliver(call, status == Status::Ok);
            }
        }
    }

    /// Does this rank's part of a completed call: copies received bytes to the program's buffer, or combines them by
    /// the program's operator, which may fail. Runs once for each call; other threads wait for the first thread.
    fn deliver(&self, call: PostedCall, well: bool) -> Result<(), Error> {
        let mut slots = lock(&self.slots);
        loop {
            match slots.delivery(call) {
                Some(delivery @ DeliveryState::Due) => {
                    *delivery = DeliveryState::UnderWay;
                    break;
                }
                Some(DeliveryState::UnderWay) => {
                    slots.waiting_threads += 1;
                    slots = self.delivered.wait(slots).unwrap_or_else(PoisonError::into_inner);
                    slots.waiting_threads -= 1;
                }
                Some(DeliveryState::Done(outcome)) => return outcome.clone(),
                // The thread that delivered has already freed the word.
                None => return Ok(()),
            }
        }
        drop(slots);
        let outcome = self.return_buffers(call, well);
        let mut slots = lock(&self.slots);
        if let Some(delivery) = slots.delivery(call) {
            *delivery = DeliveryState::Done(outcome.clone());
        }
        // Notifying costs a system call, so it is done only for waiting threads.
        if slots.waiting_threads > 0 {
            self.delivered.notify_all();
        }
        outcome
    }

    fn return_buffers(&self, PostedCall { slot, instance, .. }: PostedCall, delivered: bool) -> Result<(), Error> {
        if !delivered {
            self.copy_agent.wait_for_copies();
        }
        let mut copied = Ok(());
        let placement = if self.may_restage(slot) {
            // The lock waits for a thread that is copying buffers of requests in flight, perhaps of this one.
            let mut staging = lock(&self.staging);
            let placement = lock(&self.slots).remove_placement(slot);
            if let (BufferPlacement::Staged(staged), true) = (&placement, delivered) {
                copied = staging.deliver(&self.own, staged, instance);
            }
            placement
        } else {
            let placement = lock(&self.slots).remove_placement(slot);
            if self.tier() == Tier::Staging {
                // A thread that saw the change of tier earlier may still be copying the buffers.
                drop(lock(&self.staging));
            }
            placement
        };
        self.release(placement);
        let fold = lock(&self.slots).remove_fold(slot);
        copied?;
        match fold.filter(|_| delivered) {
            // SAFETY: the collective that fills the room has ended well, so the service process no longer accesses the
            // room. The program lends the buffer until the request ends, and the request ends in this call.
            Some(fold) => unsafe { fold.run(&self.own) },
            None => Ok(()),
        }
    }

    /// Releases the placement of buffers.
    pub(crate) fn release(&self, placement: BufferPlacement) {
        if let BufferPlacement::Staged(staged) = placement {
            lock(&self.staging).release(&self.connection, staged);
        }
    }

    /// Whether a thread may be copying the buffers of this request, or has copied them.
    fn may_restage(&self, slot: u32) -> bool {
        self.tier() == Tier::Staging || self.control.wants_staging(slot)
    }

    /// Whether the service process cannot access the buffers of requests in flight.
    fn must_restage(&self) -> bool {
        let withdrawn = self.tier != Tier::Staging && self.tier() == Tier::Staging && lock(&self.slots).any_direct();
        withdrawn || self.control.staging_requests() != self.staged_requests.load(Ordering::Relaxed)
    }

    /// Copies the buffers of requests in flight and notifies the service process of their new place (GP-9): all
    /// buffers if the kernel has withdrawn access, else the buffers of the requests that the service process names.
    /// False if buffers are left, because memory is short or the service process is gone.
    fn restage(&self) -> bool {
        let mut staging = lock(&self.staging);
        let requests = self.control.staging_requests();
        let all = self.tier() == Tier::Staging;
        loop {
            let next = lock(&self.slots).first_direct(|slot| all || self.control.wants_staging(slot));
            let Some(request) = next else {
                self.staged_requests.store(requests, Ordering::Relaxed);
                return true;
            };
            let PostedCall { slot, group, instance } = request.call;
            if self.shares(&request.buffers) {
                // A request that another thread has ended meanwhile needs nothing here.
                let _ = lock(&self.slots).replace_placement(&request, BufferPlacement::Shared);
                continue;
            }
            // SAFETY: the program lends the buffers until the request ends, and `finish` waits for this lock before the
            // end. The service process announced the withdrawal after its last access.
            let staged = match unsafe { staging.restage((&self.connection, &self.own), &request.buffers) } {
                Ok(staged) => staged,
                Err(Error::Memory(_)) => {
                    let refused = AttachRequest::RefuseRestage { group, instance, slot };
                    match self.connection.execute(&refused, &[]) {
                        // The request has failed, or had ended before.
                        Ok(()) | Err(Error::Service { .. }) => {}
                        Err(_) => return false,
                    }
                    let _ = lock(&self.slots).replace_placement(&request, BufferPlacement::Shared);
                    continue;
                }
                Err(_) => return false,
            };
            let (send, receive) = (staged.send_address(), staged.receive_address());
            let restaged = RestagedBuffers { group, instance, slot, send, receive };
            let placement = match self.connection.execute(&AttachRequest::Restage(restaged), &[]) {
                Ok(()) => BufferPlacement::Staged(staged),
                // The request has completed.
                Err(Error::Service { .. }) => {
                    staging.release(&self.connection, staged);
                    BufferPlacement::Shared
                }
                Err(_) => return false,
            };
            if let Err(BufferPlacement::Staged(unused)) = lock(&self.slots).replace_placement(&request, placement) {
                staging.release(&self.connection, unused);
            }
        }
    }

    /// The error of a failed request, with the text of the service process.
    pub(crate) fn fetch_error(&self, slot: u32, status: Status) -> Error {
        match self.connection.call(&AttachRequest::ErrorText { slot }, &[], None).map(|reply| reply.message) {
            Ok(AttachReply::ErrorText { status: reported, text }) if reported == status => {
                Error::Service { status, text }
            }
            _ => Error::Service { status, text: status.meaning().to_owned() },
        }
    }
}
