//! Task lists as deferred work of libfabric (`FI_TRIGGER`), loaded at run time. The service process posts a list, and
//! the provider carries it out with the lists of other hosts. The service process is notified when the last task is
//! complete.
//!
//! A task begins when a counter reaches a threshold, and adds to another counter when it is complete. A list's last
//! task adds to the counter of ended lists, on which one thread waits. Other threads post, because a provider may
//! connect while posting, and a host that is down then blocks the thread indefinitely. A list that finds all posting
//! threads busy starts one more, up to a limit.
//!
//! | list is | on | next |
//! |---|---|---|
//! | posting | the provider has all its tasks | posted |
//! | posting | a task is refused | failed |
//! | posted | its last counter reaches its threshold | ended, reported |
//! | posted | a task fails | failed, reported |
//! | posting, posted | [`Ofi::withdraw`] | withdrawn |
//! | failed, withdrawn | every task that has begun is complete, failed or cancelled | gone |
//! | ended | the counter of ended lists includes the list, and a second check saw the end | gone |
//!
//! Invariants: memory that a task names (its own structures, its bytes, its list's counters) stays until the list is
//! gone. Memory that the provider never releases stays for good. Never decides what a list does. The providers'
//! endpoints are not authenticated: anybody who reaches them can send, so they are for closed networks.

mod ffi;
mod list;
mod provider;

use std::collections::{BTreeMap, HashMap};
use std::ffi::c_int;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

use outboard_plan::deferred::DeferredList;
use outboard_shm::memory::MappedBytes;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;

use list::{PostStep, PostedList};
pub use provider::MAX_OFI_ADDRESS;
use provider::Provider;

/// Most addresses of other endpoints that are kept: more than a cluster has, restarts included.
const MOST_PEERS: usize = 65_536;
/// Most failed or withdrawn lists that are not gone: each holds memory that its provider has not released.
const MOST_ABANDONED: usize = 1024;
/// Most posting threads. Each host that is down blocks one thread for each list that begins with a message to it.
const MOST_POSTERS: usize = 16;

#[derive(Debug, thiserror::Error)]
pub enum OfiError {
    #[error("cannot load libfabric: {0}; install it (Debian: apt install libfabric1), or leave --engine away")]
    Missing(String),
    #[error(
        "libfabric's provider {provider} cannot do this here: {capability}; name another by --ofi-provider, or leave \
         --engine away"
    )]
    Cannot { provider: String, capability: String },
    #[error("libfabric's provider {provider} fails in {step}: {why}")]
    Step { provider: String, step: &'static str, why: String },
    #[error("an address of {length} bytes is none of libfabric's provider {provider}; give all daemons the same one")]
    Address { provider: String, length: usize },
    #[error("libfabric's provider {provider} gives a message up: {why}")]
    Task { provider: String, why: String },
    #[error("cannot make a thread or a descriptor for the engine: {0}; raise the limits of this daemon")]
    Kernel(std::io::Error),
    #[error("libfabric's provider {provider} has not given back {left} lists that failed; restart this daemon")]
    Left { provider: String, left: usize },
}

/// One message of a list: the peer's endpoint, the tag, and the bytes in local memory.
#[derive(Debug, Clone)]
pub struct DeferredMessage {
    /// The peer's endpoint, from its [`Ofi::address`].
    pub peer: Arc<[u8]>,
    /// Equal on both ends, and different from every other message in transit.
    pub tag: u64,
    /// The bytes to send, or the memory to receive into; none for a message without bytes.
    pub bytes: Option<MappedBytes>,
}

pub struct Ofi {
    shared: Arc<OfiShared>,
    /// The provider's names of peers.
    peers: HashMap<Arc<[u8]>, u64>,
    poster: Sender<u64>,
    posts: Arc<Mutex<Receiver<u64>>>,
    waiter: Option<JoinHandle<()>>,
    /// Readable when the bell or the queue of errors is readable.
    watched: OwnedFd,
}

/// State shared by the threads; lists are dropped before their provider.
struct OfiShared {
    lists: Mutex<PostedLists>,
    bell: OwnedFd,
    provider: Provider,
}

#[derive(Default)]
struct PostedLists {
    by_token: BTreeMap<u64, PostedList>,
    ended: u64,
    /// Posting threads, and lists that they have not fully passed to the provider.
    posters: usize,
    unposted: usize,
    stopped: bool,
}

impl Ofi {
    /// Opens the provider called `provider` at this address of the host.
    ///
    /// # Errors
    /// Names the missing part and the provider.
    pub fn open(provider: &str, at: Ipv4Addr) -> Result<Ofi, OfiError> {
        let kernel = |errno: Errno| OfiError::Kernel(errno.into());
        let provider = Provider::open(provider, at)?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).map_err(kernel)?;
        let watched = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(kernel)?;
        let any = epoll::EventData::new_u64(0);
        epoll::add(&watched, &bell, any, epoll::EventFlags::IN).map_err(kernel)?;
        epoll::add(&watched, provider.errors_fd(), any, epoll::EventFlags::IN).map_err(kernel)?;
        let shared = Arc::new(OfiShared { provider, bell, lists: Mutex::default() });
        let (poster, posts) = channel();
        let waits = Arc::clone(&shared);
        let waiter =
            Builder::new().name("ofi-wait".to_owned()).spawn(move || waits.wait()).map_err(OfiError::Kernel)?;
        let waiter = Some(waiter);
        let posts = Arc::new(Mutex::new(posts));
        let ofi = Ofi { shared, peers: HashMap::new(), poster, posts, waiter, watched };
        ofi.start_poster()?;
        Ok(ofi)
    }

    fn start_poster(&self) -> Result<(), OfiError> {
        let (shared, posts) = (Arc::clone(&self.shared), Arc::clone(&self.posts));
        Builder::new().name("ofi-post".to_owned()).spawn(move || shared.post(&posts)).map_err(OfiError::Kernel)?;
        self.shared.lists().posters += 1;
        Ok(())
    }

    /// The address of this endpoint for other endpoints of this provider: at most [`MAX_OFI_ADDRESS`] bytes, opaque.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.shared.provider.address
    }

    /// Readable when [`Self::take_ended`] has work.
    #[must_use]
    pub fn event_fd(&self) -> BorrowedFd<'_> {
        self.watched.as_fd()
    }

    /// Posts a list under a `token` that no other list has; `messages` holds a message for each send and receive task.
    ///
    /// # Errors
    /// When the provider refuses a counter or a peer's address, or when too many failed lists hold memory.
    pub fn post(
        &mut self,
        token: u64,
        list: &DeferredList,
        messages: Vec<Option<DeferredMessage>>,
    ) -> Result<(), OfiError> {
        let provider = &self.shared.provider;
        let left = self.shared.lists().by_token.values().filter(|list| list.is_abandoned()).count();
        if left > MOST_ABANDONED {
            return Err(OfiError::Left { provider: provider.name.clone(), left });
        }
        let peers = &mut self.peers;
        let mut bound = Vec::with_capacity(messages.len());
        for message in messages {
            bound.push(
                message
                    .map(|DeferredMessage { peer, tag, bytes }| Ok((peer_name(provider, peers, &peer)?, tag, bytes))),
            );
        }
        let bound = bound.into_iter().map(Option::transpose).collect::<Result<_, OfiError>>()?;
        let posted = PostedList::new(provider, list, bound)?;
        let mut lists = self.shared.lists();
        let taken = lists.by_token.insert(token, posted);
        assert!(taken.is_none(), "list {token} is posted twice");
        lists.unposted += 1;
        let all_busy = lists.posters < lists.unposted.min(MOST_POSTERS);
        drop(lists);
        self.poster.send(token).expect("the receiver is here");
        if all_busy {
            // If the kernel starts no thread, the present ones post the list later.
            let _ = self.start_poster();
        }
        Ok(())
    }

    /// Withdraws a list whose result nobody awaits, and cancels the list's receives. The list's bytes stay until the
    /// provider has finished with them.
    pub fn withdraw(&mut self, token: u64) {
        if let Some(list) = self.shared.lists().by_token.get_mut(&token) {
            list.withdraw(&self.shared.provider);
        }
    }

    /// Lists that have ended or failed since the last call.
    pub fn take_ended(&mut self) -> Vec<(u64, Result<(), OfiError>)> {
        // The read fails when the bell has not rung.
        let _ = rustix::io::read(&self.shared.bell, &mut [0; 8]);
        let provider = &self.shared.provider;
        let mut lists = self.shared.lists();
        while let Some((context, code)) = provider.take_error() {
            let failed = lists.by_token.values_mut().find(|list| list.has(context));
            failed.into_iter().for_each(|list| list.fail(provider, code));
        }
        let counted = provider.count_ended();
        let PostedLists { by_token, ended, .. } = &mut *lists;
        let mut reported = Vec::new();
        for (token, list) in by_token.iter_mut() {
            *ended += u64::from(list.poll_end());
            reported.extend(list.take_result().map(|result| (*token, result)));
        }
        by_token.retain(|_, list| !list.is_gone(counted >= *ended));
        reported
    }

    /// Lists that the provider may access.
    #[must_use]
    pub fn held(&self) -> usize {
        self.shared.lists().by_token.len()
    }
}

impl Drop for Ofi {
    fn drop(&mut self) {
        self.shared.lists().stopped = true;
        self.shared.provider.wake_waiter();
        // The waiting thread ends at once. A posting thread may be connecting, so nobody waits for it.
        let _ = self.waiter.take().map(JoinHandle::join);
    }
}

fn peer_name(provider: &Provider, peers: &mut HashMap<Arc<[u8]>, u64>, peer: &Arc<[u8]>) -> Result<u64, OfiError> {
    if let Some(name) = peers.get(peer) {
        return Ok(*name);
    }
    if peers.len() >= MOST_PEERS {
        peers.clear();
    }
    let name = provider.insert(peer)?;
    peers.insert(Arc::clone(peer), name);
    Ok(name)
}

impl OfiShared {
    fn lists(&self) -> MutexGuard<'_, PostedLists> {
        self.lists.lock().expect("no thread panics with it")
    }

    fn ring(&self) {
        // The write fails only when the bell already rings.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    fn wait(&self) {
        let mut seen = 0;
        loop {
            self.provider.wait_ended(seen + 1);
            if self.lists().stopped {
                return;
            }
            let counted = self.provider.count_ended();
            // A wait may end early.
            if counted > std::mem::replace(&mut seen, counted) {
                self.ring();
            }
        }
    }

    /// Passes lists to the provider until the channel is closed.
    fn post(&self, posts: &Mutex<Receiver<u64>>) {
        let next = || posts.lock().expect("no thread panics with it").recv();
        while let Ok(token) = next() {
            loop {
                let next = self.lists().by_token.get_mut(&token).map(PostedList::next_task);
                let Some(PostStep::Task(at, work)) = next else {
                    if let Some(PostStep::Abandoned) = next {
                        self.ring();
                    }
                    break;
                };
                let tried = self.queue_task(work);
                let mut lists = self.lists();
                let Some(list) = lists.by_token.get_mut(&token) else { break };
                match tried {
                    Ok(()) => list.queued(&self.provider, at),
                    Err(code) => {
                        list.refuse(&self.provider, self.provider.failed("FI_QUEUE_WORK", code));
                        self.ring();
                    }
                }
            }
            self.lists().unposted -= 1;
        }
    }

    /// Passes a task to the provider; tries again while the provider has no room.
    fn queue_task(&self, work: *mut ffi::DeferredWork) -> Result<(), c_int> {
        loop {
            // SAFETY: a list stays while it is being posted. A list whose last task is queued here stays until the task
            // has been carried out.
            match unsafe { self.provider.queue(work) } {
                Err(ffi::FI_EAGAIN) if !self.lists().stopped => std::thread::yield_now(),
                tried => return tried,
            }
        }
    }
}

impl Drop for OfiShared {
    fn drop(&mut self) {
        let lists = self.lists.get_mut().expect("no thread panics with it");
        // Memory that the provider may access stays for the rest of the process.
        let kept = std::mem::take(&mut lists.by_token).into_values().filter(|list| !list.is_gone(true));
        kept.for_each(std::mem::forget);
    }
}

#[cfg(test)]
mod tests;
