//! The attachment of a process to the service process of its host.

use crate::bootstrap;
use crate::connection::Connection;
use crate::errands::Errands;
use crate::error::Error;
use crate::group::{Group, deadline_of_environment};
use crate::heap;
use crate::looking::Looking;
use crate::own_daemon;
use crate::placement;
use crate::segments::Segments;
use crate::slots::{Delivery, InPlace, Lent, Slots};
use crate::staging::{Buffers, StagingPool, Tables};
use crate::trace::Trace;
use outboard_shm::attach::{self, Hello, OFFER_BYTES, Reply, Request, Restaged};
use outboard_shm::control::{LAYOUT_VERSION, RankSide};
use outboard_shm::fork::ForkGuard;
use outboard_shm::memory::{MemoryDescriptor, ProbePage, Tier};
use outboard_shm::region::{Region, seal_bytes};
use outboard_shm::status::Status;
use std::collections::BTreeMap;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A service process that accepts and then says nothing is as good as none.
const ATTACH_LIMIT: Duration = Duration::from_secs(10);
/// How long a wait sleeps before it asks whether the service process still lives.
const SLICE: Duration = Duration::from_millis(100);

/// An attachment. Clones share it; each [`Context::attach`] is a rank of its own to the service process.
#[derive(Debug, Clone)]
pub struct Context(pub(crate) Arc<Attachment>);

/// The attachment, which in a forked child must not even be dropped: its mappings are not there.
#[derive(Debug)]
pub(crate) struct Attachment {
    guard: ForkGuard,
    parts: ManuallyDrop<Parts>,
}

/// What belongs to the process that attached.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) connection: Connection,
    pub(crate) control: RankSide,
    /// Proven at attach.
    tier: Tier,
    pub(crate) config_digest: u64,
    link_rate: u64,
    pub(crate) slots: Mutex<Slots>,
    /// A request has ended as far as this rank is concerned.
    delivered: Condvar,
    pub(crate) staging: Mutex<StagingPool>,
    pub(crate) tables: Mutex<Tables>,
    allocations: Mutex<BTreeMap<usize, Region>>,
    /// The program's large allocations, where the service process maps them.
    heap: Option<Range<usize>>,
    /// Stays where the service process knows it.
    _probe: ProbePage,
    pub(crate) groups: Mutex<usize>,
    lost: OnceLock<()>,
    trace: Option<Trace>,
    looking: Looking,
    pub(crate) errands: Errands,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Attachment {
    fn drop(&mut self) {
        if !self.guard.forked() {
            // The program still has their addresses.
            std::mem::take(&mut *lock(&self.parts.allocations)).into_values().for_each(Region::leave_mapped);
            // SAFETY: dropped once, here, and not used after.
            unsafe { ManuallyDrop::drop(&mut self.parts) }
        }
    }
}

impl Attachment {
    /// The parts, in the process that attached.
    pub(crate) fn parts(&self) -> Result<&Parts, Error> {
        if self.guard.forked() { Err(Error::Forked) } else { Ok(&self.parts) }
    }
}

/// The socket that somebody named: the argument, else the environment.
fn named_socket(socket: Option<&Path>) -> Option<PathBuf> {
    let variable = || std::env::var_os(attach::SOCKET_VARIABLE).filter(|name| !name.is_empty()).map(PathBuf::from);
    socket.map(Path::to_owned).or_else(variable)
}

impl Context {
    /// Attaches to the service process at `socket`, else at that of `OUTBOARD_SOCKET`, of several separated by colons
    /// to the one that serves this rank by its place on the host (GP-3, [`placement`]). Where neither names one: to the
    /// job's own, else to the user's, else to one that is started for the job; unless `OUTBOARD_DAEMON` is `off`, then
    /// to the user's alone (SP-3).
    ///
    /// # Errors
    /// [`Error::NoService`], [`Error::OwnDaemon`], [`Error::Environment`] where the place on the host is to be
    /// known and is not, [`Error::Version`], [`Error::Resource`]; nothing is left behind.
    pub fn attach(socket: Option<&Path>) -> Result<Context, Error> {
        if let Some(named) = named_socket(socket) {
            return Context::attach_at(&placement::socket(&named)?);
        }
        if own_daemon::wanted()? {
            own_daemon::attach(Context::attach_at)
        } else {
            Context::attach_at(&attach::user_socket())
        }
    }

    fn attach_at(path: &Path) -> Result<Context, Error> {
        Context::greet(Connection::open(path)?)
    }

    fn greet(connection: Connection) -> Result<Context, Error> {
        let kernel = |what: &str, errno| Error::Resource(format!("cannot {what}: {errno}"));
        let guard = ForkGuard::new().map_err(|errno| kernel("guard against forks", errno))?;
        // Where the Yama module restricts tracing to ancestors, this names one more; elsewhere it fails harmlessly.
        if let Some(service) = connection.service_pid() {
            let _ = rustix::process::set_ptracer(rustix::process::PTracer::ProcessID(service));
        }
        let mut probe = ProbePage::new().map_err(|errno| kernel("make a page for a probe", errno))?;
        // Without it, as where there is no /proc, the service process has one way less.
        let own_memory = MemoryDescriptor::of_this_process().ok();
        let hello = Request::Hello(Hello {
            layout_version: LAYOUT_VERSION,
            pid: std::process::id(),
            probe_address: &raw mut *probe as u64,
            nonce: probe.nonce(),
            descriptor: own_memory.is_some(),
        });
        let descriptors: Vec<_> = own_memory.iter().map(AsFd::as_fd).collect();
        let reply = connection.call(&hello, &descriptors, Some(ATTACH_LIMIT))?;
        drop(own_memory);
        let Reply::Welcome(welcome) = reply.message else { return Err(Connection::unexpected(&reply.message)) };
        let Ok([region, doorbell]) = <[_; 2]>::try_from(reply.descriptors) else {
            return Err(Error::Protocol("welcome without two descriptors".to_owned()));
        };
        let control = RankSide::attach(region, doorbell)?;
        // Staging works whatever the service process believes, so a missing answer decides.
        let tier = if probe.answered() { welcome.tier } else { Tier::Staging };
        let heap = heap::register(&connection)?;
        let most_ranges = welcome.most_ranges.saturating_sub(heap.is_some().into());
        let parts = Parts {
            slots: Mutex::new(Slots::new(control.slots())),
            delivered: Condvar::new(),
            connection,
            control,
            tier,
            config_digest: welcome.config_digest,
            link_rate: welcome.link_rate,
            staging: Mutex::new(StagingPool::new(Segments::new(most_ranges))),
            tables: Mutex::default(),
            allocations: Mutex::default(),
            heap,
            _probe: probe,
            groups: Mutex::default(),
            lost: OnceLock::new(),
            trace: Trace::of_environment(),
            looking: Looking::default(),
            errands: Errands::default(),
        };
        Ok(Context(Arc::new(Attachment { guard, parts: ManuallyDrop::new(parts) })))
    }

    /// Ends the attachment in good order, for all clones.
    ///
    /// # Errors
    /// [`Error::Busy`] while groups exist, when nothing happens; [`Error::Forked`].
    pub fn detach(self) -> Result<(), Error> {
        self.detachable()?;
        match self.0.parts()?.connection.order(&Request::Detach, &[]) {
            // It is gone, which is what was wanted.
            Err(Error::ServiceLost { .. }) => Ok(()),
            other => other,
        }
    }

    /// Whether this process is the one that attached.
    pub(crate) fn owned(&self) -> Result<(), Error> {
        self.0.parts().map(drop)
    }

    /// Whether [`detach`](Self::detach) would be refused.
    pub(crate) fn detachable(&self) -> Result<(), Error> {
        match *lock(&self.0.parts()?.groups) {
            0 => Ok(()),
            count => Err(Error::Busy { action: "detach", count, what: "groups still exist; destroy them first" }),
        }
    }

    /// What this rank contributes to making a group, to be brought to all members in rank order.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::ServiceLost`], or what the service process says.
    pub fn offer(&self) -> Result<Box<[u8; OFFER_BYTES]>, Error> {
        match self.0.parts()?.connection.call(&Request::Offer, &[], None)?.message {
            Reply::Offer(offer) => Ok(offer),
            other => Err(Connection::unexpected(&other)),
        }
    }

    /// Makes a group with `ranks` members, of which this is `rank`, from all members' offers in rank order. Collective:
    /// returns when the service processes of all members agree.
    ///
    /// # Errors
    /// [`Error::Argument`]; [`Error::Service`] with [`Status::Mismatch`] when configurations differ, among others.
    pub fn create_group(&self, offers: &[u8], ranks: u32, rank: u32) -> Result<Group, Error> {
        let parts = self.0.parts()?;
        if ranks == 0 || rank >= ranks {
            return Err(Error::argument("rank", format!("is {rank} in a group of {ranks}")));
        }
        if offers.len() != ranks as usize * OFFER_BYTES {
            let problem = format!("has {} bytes instead of {OFFER_BYTES} for each of {ranks} ranks", offers.len());
            return Err(Error::argument("offers", problem));
        }
        let wanted = deadline_of_environment()?;
        let sealed = seal_bytes("outboard-offers", offers)?;
        // Counted before, so that nobody detaches meanwhile.
        *lock(&parts.groups) += 1;
        let made = parts.connection.call(&Request::CreateGroup { ranks, rank }, &[sealed.as_fd()], None);
        let failure = match made {
            Ok(reply) => match reply.message {
                Reply::GroupReady(ready) => {
                    parts.trace.iter().for_each(|trace| trace.name(rank, ready.handle));
                    let group = Group::new(self.0.clone(), ready, ranks, rank);
                    return if wanted.is_some() { group.set_deadline(wanted).map(|()| group) } else { Ok(group) };
                }
                other => Connection::unexpected(&other),
            },
            Err(error) => error,
        };
        *lock(&parts.groups) -= 1;
        Err(failure)
    }

    /// Makes the group of all ranks of the job, as its launcher or the `OUTBOARD_` variables tell them
    /// ([`bootstrap::from_environment`]). Collective.
    ///
    /// # Errors
    /// [`Error::Environment`] for a missing variable, [`Error::Bootstrap`], and as
    /// [`create_group`](Self::create_group).
    pub fn world(&self) -> Result<Group, Error> {
        let mut job = bootstrap::from_environment()?;
        let offers = job.exchange(&self.offer()?[..])?;
        self.create_group(&offers.concat(), job.ranks(), job.rank())
    }

    /// Attaches, to the socket of `OUTBOARD_SOCKET` or the default one, and makes the group of all ranks. Collective.
    ///
    /// # Errors
    /// As [`attach`](Self::attach) and [`world`](Self::world); nothing is left behind.
    pub fn init() -> Result<(Context, Group), Error> {
        let context = Context::attach(None)?;
        let world = context.world()?;
        Ok((context, world))
    }

    /// Memory that the service process maps too: the fastest buffers. Page-aligned, of undefined content, not inherited
    /// by forked children. What is not given back stays mapped when the attachment ends.
    ///
    /// # Errors
    /// [`Error::Argument`] for no bytes, [`Error::Resource`], or what the service process says.
    pub fn allocate(&self, bytes: usize) -> Result<NonNull<u8>, Error> {
        let parts = self.0.parts()?;
        if bytes == 0 {
            return Err(Error::argument("bytes", "is 0"));
        }
        let region = lock(&parts.staging).segments.allocate(&parts.connection, bytes)?;
        let start = region.start();
        lock(&parts.allocations).insert(start.as_ptr() as usize, region);
        Ok(start)
    }

    /// Gives memory of [`allocate`](Self::allocate) back.
    ///
    /// # Errors
    /// [`Error::Argument`] when no allocation starts there.
    ///
    /// # Safety
    /// Nothing uses the memory any more, requests in flight included.
    pub unsafe fn deallocate(&self, memory: *const u8) -> Result<(), Error> {
        let parts = self.0.parts()?;
        let Some(region) = lock(&parts.allocations).remove(&(memory as usize)) else {
            return Err(Error::argument("memory", format!("{memory:p} does not come from outboard_alloc")));
        };
        lock(&parts.staging).segments.give_back(&parts.connection, region)
    }

    /// How the service process reaches buffers of this rank that do not come from [`allocate`](Self::allocate), now.
    pub fn memory_tier(&self) -> Tier {
        self.0.parts().map_or(Tier::Staging, Parts::tier)
    }

    /// Digest of the service process's configuration.
    pub fn config_digest(&self) -> Result<u64, Error> {
        self.0.parts().map(|parts| parts.config_digest)
    }

    /// What the link of the service process carries, in bit/s.
    pub fn link_rate(&self) -> Result<u64, Error> {
        self.0.parts().map(|parts| parts.link_rate)
    }
}

impl Parts {
    /// Puts a table where the service process can read it, and returns its address; 0 for none.
    pub(crate) fn put_table(&self, slot: u32, table: &[u64]) -> Result<u64, Error> {
        if table.is_empty() {
            return Ok(0);
        }
        let region = |bytes| lock(&self.staging).segments.take(&self.connection, bytes, bytes);
        lock(&self.tables).put(region, (slot, self.control.slots()), table)
    }

    /// How the service process reaches memory that is not shared, now.
    pub(crate) fn tier(&self) -> Tier {
        match self.tier {
            // It may believe otherwise, but its proof never arrived.
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
        before.is_some_and(|(at, region)| ends_by(at + region.bytes()))
    }

    /// Whether the service process is gone; costs a system call until it is.
    pub(crate) fn lost(&self) -> bool {
        let lost = self.known_lost() || self.connection.hung_up();
        if lost {
            let _ = self.lost.set(());
        }
        lost
    }

    /// Whether the service process is known to be gone; costs nothing.
    pub(crate) fn known_lost(&self) -> bool {
        self.lost.get().is_some()
    }

    /// Whether both buffers lie in memory that the service process maps.
    pub(crate) fn shares(&self, buffers: &Buffers) -> bool {
        buffers.all_in(|start, bytes| self.shared(start, bytes))
    }

    /// As [`Self::sleep_until`]; in the trace, if there is one.
    pub(crate) fn wait_until(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let Some(trace) = self.trace.as_ref().filter(|_| !done()) else { return self.sleep_until(slot, limit, done) };
        let since = Trace::now();
        let waited = self.sleep_until(slot, limit, done);
        trace.waited(since);
        waited
    }

    /// Waits until `done` holds, which with `slot` only the end of that request makes true, and does errands meanwhile.
    fn sleep_until(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        if done() {
            return Ok(true);
        }
        self.control.enter();
        let waited = self.sleep_in_slices(slot, limit, || self.errands.run(&self.control, &mut done));
        self.control.leave();
        waited
    }

    /// Sleeps in slices between which it asks whether the service process lives. `Ok(false)` when `limit` has passed.
    /// It looks for a while before it sleeps where the last wait was short ([`Looking`]).
    fn sleep_in_slices(
        &self,
        slot: Option<u32>,
        limit: Option<Duration>,
        mut done: impl FnMut() -> bool,
    ) -> Result<bool, Error> {
        let start = Instant::now();
        if self.looking.look(&mut done) {
            return Ok(true);
        }
        let mut restages = true;
        loop {
            let left = limit.map(|limit| limit.saturating_sub(start.elapsed()));
            let mut wake = || done() || (restages && self.must_restage());
            if self.control.wait(slot, Some(left.map_or(SLICE, |left| left.min(SLICE))), &mut wake) {
                if done() {
                    self.looking.waited(start.elapsed());
                    return Ok(true);
                }
                // What cannot be copied now is tried again after a slice.
                restages = self.restage();
                continue;
            }
            restages = true;
            if self.lost() {
                // What it completed before it went counts.
                return if done() { Ok(true) } else { Err(self.connection.lost()) };
            }
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
        }
    }

    /// What every call into the library does on its way.
    pub(crate) fn tend(&self) {
        if self.must_restage() {
            self.restage();
        }
        self.drain_orphans();
    }

    /// Ends what is left of requests that were freed early and have completed.
    fn drain_orphans(&self) {
        let ended = lock(&self.slots).ended_orphans(|slot| self.control.result(slot).is_some());
        for slot in ended {
            // Nobody is left to be told of an operator that panics.
            let _ = self.finish(slot, self.control.result(slot) == Some(Status::Ok));
        }
    }

    /// Ends a request whose result has been seen, as [`Self::deliver`] says, and frees its word.
    pub(crate) fn finish(&self, slot: u32, well: bool) -> Result<(), Error> {
        let call = lock(&self.slots).call(slot);
        let outcome = self.deliver(slot, call, well);
        lock(&self.slots).give_back(slot);
        outcome
    }

    /// Has calls of a group, which have ended or never will, leave the program's buffers alone. Their results stay.
    pub(crate) fn settle(&self, group: u64, calls: &[(u32, u64)]) {
        for &(slot, instance) in calls {
            if let Some(status) = self.control.result(slot) {
                // Whoever holds the request is told.
                let _ = self.deliver(slot, (group, instance), status == Status::Ok);
            }
        }
    }

    /// Does what this rank does when a call has completed: its bytes go where the program wants them, combined by the
    /// program's operator if it has one, which may fail. Once: others wait for who has begun.
    fn deliver(&self, slot: u32, call: (u64, u64), well: bool) -> Result<(), Error> {
        let mut slots = lock(&self.slots);
        loop {
            match slots.delivery(slot, call) {
                Some(delivery @ Delivery::Due) => {
                    *delivery = Delivery::UnderWay;
                    break;
                }
                Some(Delivery::UnderWay) => {
                    slots.awaiting += 1;
                    slots = self.delivered.wait(slots).unwrap_or_else(PoisonError::into_inner);
                    slots.awaiting -= 1;
                }
                Some(Delivery::Done(outcome)) => return outcome.clone(),
                // The thread that was about it has freed the word.
                None => return Ok(()),
            }
        }
        drop(slots);
        let outcome = self.hand_back((slot, call.1), well);
        let mut slots = lock(&self.slots);
        if let Some(delivery) = slots.delivery(slot, call) {
            *delivery = Delivery::Done(outcome.clone());
        }
        // Waking is a system call.
        if slots.awaiting > 0 {
            self.delivered.notify_all();
        }
        outcome
    }

    fn hand_back(&self, (slot, instance): (u32, u64), delivered: bool) -> Result<(), Error> {
        if !delivered {
            self.errands.end();
        }
        let lent = match self.tier() {
            // Waits for whoever is copying the buffers of requests in flight, perhaps of this one.
            Tier::Staging => {
                let mut staging = lock(&self.staging);
                let lent = lock(&self.slots).take_lent(slot);
                if let (Lent::Staged(staged), true) = (&lent, delivered) {
                    staging.deliver(staged, instance);
                }
                lent
            }
            Tier::Memfd | Tier::CrossMemory | Tier::MemoryDescriptor => {
                let lent = lock(&self.slots).take_lent(slot);
                if self.tier() == Tier::Staging {
                    // Whoever has seen that before us may be copying the buffers still.
                    drop(lock(&self.staging));
                }
                lent
            }
        };
        self.release(lent);
        let fold = lock(&self.slots).take_fold(slot);
        match fold.filter(|_| delivered) {
            // SAFETY: the collective that fills the room has ended well, and with it what the service process does
            // there; the program lends the buffer until the request has ended, which it does with this call.
            Some(fold) => unsafe { fold.run() },
            None => Ok(()),
        }
    }

    /// Lets go of where buffers were.
    pub(crate) fn release(&self, lent: Lent) {
        if let Lent::Staged(staged) = lent {
            lock(&self.staging).give_back(&self.connection, staged);
        }
    }

    /// Whether the kernel has withdrawn access to buffers of requests in flight.
    fn must_restage(&self) -> bool {
        self.tier != Tier::Staging && self.tier() == Tier::Staging && lock(&self.slots).any_direct()
    }

    /// Copies the buffers of requests in flight and tells the service process where they are (GP-9); false when some
    /// are left, for which there is no memory now or nobody to tell.
    fn restage(&self) -> bool {
        let mut staging = lock(&self.staging);
        loop {
            let Some(request) = lock(&self.slots).first_direct() else { return true };
            let InPlace { slot, group, instance, ref buffers } = request;
            if self.shares(buffers) {
                // Who has ended it meanwhile needs nothing of us.
                let _ = lock(&self.slots).relend(&request, Lent::Shared);
                continue;
            }
            // SAFETY: the program lends the buffers until the request ends, for which `finish` waits for us. The
            // service process announced that it reaches them no more after its last access.
            let Ok(staged) = (unsafe { staging.restage(&self.connection, buffers) }) else { return false };
            let (send, receive) = (staged.send_address(), staged.receive_address());
            let restaged = Restaged { group, instance, slot, send, receive };
            let lent = match self.connection.order(&Request::Restage(restaged), &[]) {
                Ok(()) => Lent::Staged(staged),
                // It has completed.
                Err(Error::Service { .. }) => {
                    staging.give_back(&self.connection, staged);
                    Lent::Shared
                }
                Err(_) => return false,
            };
            if let Err(Lent::Staged(unused)) = lock(&self.slots).relend(&request, lent) {
                staging.give_back(&self.connection, unused);
            }
        }
    }

    /// The error of a request that failed, in the service process's words.
    pub(crate) fn explain(&self, slot: u32, status: Status) -> Error {
        match self.connection.call(&Request::ErrorText { slot }, &[], None).map(|reply| reply.message) {
            Ok(Reply::ErrorText { status: said, text }) if said == status => Error::Service { status, text },
            _ => Error::Service { status, text: status.meaning().to_owned() },
        }
    }
}
