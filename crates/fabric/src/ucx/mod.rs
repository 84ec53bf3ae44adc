//! The fabric between hosts with RDMA: UCP active messages by a UCX that is loaded at run time. Tests run it over UCX's
//! TCP transport. Service processes do not, because that transport authenticates nobody.
//!
//! - Messages go eagerly, in fragments, so order needs no matching and a receiver needs no buffers. A receiver that
//!   does not progress stops its senders through TCP's own flow control.
//! - Each message starts with a prefix ([`stream`]): a gap or a repetition breaks the stream instead of going
//!   unnoticed.
//! - Endpoints run in UCX's peer error mode: a reset connection is reported at once. UCX's keepalive rounds and signal
//!   handlers are off; the daemon's own heartbeat detects silent peers.
//!
//! Invariant: UCX keeps pointers to [`UcxSend`] until its completion, to [`EndpointContext`] until its endpoint is
//! closed, and to [`UcxShared`] until the worker is destroyed. Each lives at least that long. Never blocks except, for
//! a bounded time, on drop.

mod ffi;
mod stream;
mod worker;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::{Duration, Instant};

use crate::buffer::BufferPool;
use crate::limited;
use crate::outstanding::{self, SendLoad};
use crate::{
    Armed, ConnectError, Fabric, FabricEvent, FabricLimits, MAX_HEADER, MAX_PAYLOAD, PeerId, PeerLoss, SendBuffer,
    SendError, SendPayload,
};
use stream::{PREFIX, Prefix, SequenceCheck, Streams};
use worker::UcxWorker;
pub use worker::{UcxError, UcxSettings, UcxTransport, rdma_device, rdma_is_asked_for, ucx_version};

const MESSAGE_ID: u32 = 0;
/// Calls of UCX's progress per call of `progress`.
const ROUNDS: usize = 64;
/// Time that a disconnected peer's UCX has to acknowledge messages in transit: many round trips, yet hardly noticeable.
const FLUSH_TIME: Duration = Duration::from_millis(250);

type Sink<'a> = dyn FnMut(FabricEvent<'_>) + 'a;

/// State shared by UCX's callbacks and the fabric.
struct UcxShared {
    ucx: Rc<ffi::Ucx>,
    /// Set while `progress` runs.
    sink: Cell<Option<NonNull<Sink<'static>>>>,
    /// The payload of a sink's panic, carried across the C frames.
    panic: Cell<Option<Box<dyn Any + Send>>>,
    streams: RefCell<Streams>,
    /// Broken paths that are not reported yet.
    lost: RefCell<Vec<PathFailure>>,
    delivered: Cell<usize>,
    starved: Cell<bool>,
    room: Cell<bool>,
}

struct PathFailure {
    peer: PeerId,
    /// The connection that failed; none if the arriving stream failed.
    connection: Option<u32>,
    why: PeerLoss,
}

/// A message that UCX reads from until its callback. Dropping it returns its share of the limits.
struct UcxSend {
    header: [u8; PREFIX + MAX_HEADER],
    payload: Option<SendBuffer>,
    peer: PeerId,
    connection: u32,
    load: Rc<Cell<SendLoad>>,
    shared: Rc<UcxShared>,
}

impl Drop for UcxSend {
    fn drop(&mut self) {
        self.load.set(self.load.get().without(self.payload.as_deref().map_or(0, <[u8]>::len)));
        if self.shared.starved.take() {
            self.shared.room.set(true);
        }
    }
}

/// The argument of an endpoint's error handler.
struct EndpointContext {
    peer: PeerId,
    connection: u32,
    shared: Rc<UcxShared>,
}

struct UcxPeer {
    ep: NonNull<ffi::Ep>,
    address: Vec<u8>,
    connection: u32,
    sequence: u32,
    load: Rc<Cell<SendLoad>>,
    context: Box<EndpointContext>,
}

/// An endpoint that is being closed.
enum ClosingEndpoint {
    /// Accepted messages still leave.
    Flushing { ep: NonNull<ffi::Ep>, request: *mut c_void, until: Instant, context: Box<EndpointContext> },
    /// UCX releases the endpoint.
    Closing { request: *mut c_void, context: Box<EndpointContext> },
}

/// Messages between hosts over UCX. One thread creates and uses the fabric.
pub struct Ucx {
    id: PeerId,
    /// Dropped before the following fields, which UCX may point to until then.
    worker: UcxWorker,
    shared: Rc<UcxShared>,
    peers: HashMap<PeerId, UcxPeer>,
    closing: Vec<ClosingEndpoint>,
    next_connection: u32,
    limits: FabricLimits,
    pool: BufferPool,
}

/// Completion of a send: the message and UCX's request are released.
unsafe extern "C" fn on_sent(request: *mut c_void, status: ffi::Status, user_data: *mut c_void) {
    // SAFETY: `user_data` came from Box::into_raw in `post`; UCX calls back exactly once per request.
    let send = unsafe { Box::from_raw(user_data.cast::<UcxSend>()) };
    // SAFETY: the request of this callback, not used afterwards.
    unsafe { (send.shared.ucx.ucp_request_free)(request) };
    if status != ffi::UCS_OK {
        send.shared.fail(send.peer, send.connection, status);
    }
}

/// UCX found the path of an endpoint broken.
unsafe extern "C" fn on_path_error(arg: *mut c_void, _ep: *mut ffi::Ep, status: ffi::Status) {
    // SAFETY: the context lives until its endpoint is closed.
    let context = unsafe { &*arg.cast::<EndpointContext>() };
    context.shared.fail(context.peer, context.connection, status);
}

unsafe extern "C" fn on_message(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const ffi::AmRecvParam,
) -> ffi::Status {
    // SAFETY: `arg` is the [`UcxShared`] that lives until the worker is destroyed.
    let shared = unsafe { &*arg.cast::<UcxShared>() };
    // SAFETY: UCX passes valid parameters, and `header_length` and `length` bytes that live during this call. A
    // rendezvous descriptor is no payload and is not read.
    let (header, payload, rendezvous) = unsafe {
        let rendezvous = (*param).recv_attr & ffi::UCP_AM_RECV_ATTR_FLAG_RNDV != 0;
        (bytes(header, header_length), bytes(data, if rendezvous { 0 } else { length }), rendezvous)
    };
    shared.accept(header, payload, rendezvous);
    ffi::UCS_OK
}

/// The bytes at `start`, which may be null when there are none.
///
/// # Safety
/// `length` bytes at `start` are valid for `'a`.
unsafe fn bytes<'a>(start: *const c_void, length: usize) -> &'a [u8] {
    if start.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: not null, and valid by the contract of this function.
    unsafe { std::slice::from_raw_parts(start.cast(), length) }
}

impl UcxShared {
    fn fail(&self, peer: PeerId, connection: u32, status: ffi::Status) {
        let (connection, why) = (Some(connection), self.ucx.loss(status));
        self.lost.borrow_mut().push(PathFailure { peer, connection, why });
    }

    /// Checks the prefix of an arriving message and passes the message to the sink.
    fn accept(&self, message: &[u8], payload: &[u8], rendezvous: bool) {
        let Some((prefix, header)) = Prefix::split(message) else {
            limited!(warn, length = message.len(), "dropped a message without a prefix");
            return;
        };
        let from = prefix.from;
        let fits = header.len() <= MAX_HEADER && payload.len() <= MAX_PAYLOAD && !rendezvous;
        let place = self.streams.borrow_mut().record(prefix);
        match place {
            Ok(SequenceCheck::InOrder) if fits => self.deliver(FabricEvent::Message { from, header, payload }),
            Ok(SequenceCheck::InOrder) => {
                self.break_stream(from, "a message is longer than the fabric carries".to_owned())
            }
            Ok(SequenceCheck::Stale) => tracing::debug!(%from, "dropped a message of an earlier connection"),
            Err(why) => self.break_stream(from, why),
        }
    }

    fn break_stream(&self, peer: PeerId, why: String) {
        limited!(warn, %peer, why, "an arriving stream broke");
        self.streams.borrow_mut().forget(peer);
        self.lost.borrow_mut().push(PathFailure { peer, connection: None, why: PeerLoss::Protocol(why) });
    }

    /// Calls the sink of the running `progress`, and holds back a panic of the sink until the C frames are gone.
    fn deliver(&self, event: FabricEvent<'_>) {
        // After a panic of the sink, and while the worker is destroyed, no sink receives messages.
        let Some(mut sink) = self.sink.get() else { return };
        self.delivered.set(self.delivered.get() + 1);
        // SAFETY: `rounds` sets the pointer for the duration of its call, and nobody else uses the sink meanwhile.
        let call = AssertUnwindSafe(|| unsafe { sink.as_mut() }(event));
        if let Err(panic) = catch_unwind(call) {
            self.panic.set(Some(panic));
            self.sink.set(None);
        }
    }
}

impl Ucx {
    /// Starts UCX on the network devices of `settings`. Peers will know this end by `id`.
    ///
    /// # Errors
    /// [`UcxError`] says whether UCX is missing, too old, or refuses the devices.
    pub fn new(id: PeerId, settings: &UcxSettings) -> Result<Self, UcxError> {
        let (worker, ucx) = UcxWorker::start(settings)?;
        let limits = settings.limits;
        let shared = Rc::new(UcxShared {
            ucx,
            sink: Cell::new(None),
            panic: Cell::new(None),
            // Streams of lost peers stay until they are replaced.
            streams: RefCell::new(Streams::new(2 * limits.peers)),
            lost: RefCell::default(),
            delivered: Cell::new(0),
            starved: Cell::new(false),
            room: Cell::new(false),
        });
        // SAFETY: `worker` is dropped before `shared`.
        unsafe { worker.receive(MESSAGE_ID, on_message, Rc::as_ptr(&shared).cast_mut().cast())? };
        Ok(Self {
            id,
            worker,
            shared,
            peers: HashMap::new(),
            closing: Vec::new(),
            next_connection: worker::random(),
            limits,
            pool: BufferPool::new(limits.pool_bytes),
        })
    }

    /// Passes a message to UCX, which keeps the message until it has left.
    fn post(&mut self, send: Box<UcxSend>, header: usize, ep: NonNull<ffi::Ep>) -> Result<(), SendError> {
        let (peer, connection) = (send.peer, send.connection);
        let payload = send.payload.as_deref().unwrap_or_default();
        let (start, length) = (payload.as_ptr(), payload.len());
        let raw = Box::into_raw(send);
        let mut param = ffi::RequestParam::with_callback(on_sent, raw.cast());
        param.op_attr_mask |= ffi::UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = ffi::UCP_AM_SEND_FLAG_EAGER;
        // SAFETY: the endpoint is open. Header and payload lie in `raw` and its slab. Both stay until `on_sent` runs.
        // If the call completes or fails at once, they stay until they are released below.
        let request = unsafe {
            let prefixed = (&raw const (*raw).header).cast();
            let send = self.shared.ucx.ucp_am_send_nbx;
            send(ep.as_ptr(), MESSAGE_ID, prefixed, PREFIX + header, start.cast(), length, &param)
        };
        let error = ffi::pointer_error(request);
        if request.is_null() || error.is_some() {
            // SAFETY: UCX is done with the message and will not call back.
            drop(unsafe { Box::from_raw(raw) });
        }
        match error {
            None => Ok(()),
            Some(status) => {
                self.shared.fail(peer, connection, status);
                Err(SendError::Lost(peer))
            }
        }
    }

    /// Runs UCX's progress; its callbacks call `sink`.
    fn rounds(&mut self, sink: &mut Sink<'_>) -> usize {
        // SAFETY: only the lifetime changes; the pointer is removed before this function returns.
        let sink = unsafe { std::mem::transmute::<NonNull<Sink<'_>>, NonNull<Sink<'static>>>(NonNull::from(sink)) };
        self.shared.sink.set(Some(sink));
        let mut done = 0;
        for _ in 0..ROUNDS {
            let step = self.worker.progress();
            if step == 0 {
                break;
            }
            done += step;
        }
        self.shared.sink.set(None);
        if let Some(panic) = self.shared.panic.take() {
            resume_unwind(panic);
        }
        done
    }

    /// Reports each broken path once and closes its endpoint.
    fn report_lost(&mut self, sink: &mut Sink<'_>) -> usize {
        let failures = self.shared.lost.take();
        let mut reported = 0;
        for PathFailure { peer, connection, why } in failures {
            let current = self.peers.get(&peer).map(|known| known.connection);
            if current.is_none() || connection.is_some_and(|failed| Some(failed) != current) {
                continue;
            }
            let Some(known) = self.peers.remove(&peer) else {
                continue;
            };
            self.close(known.ep, known.context);
            sink(FabricEvent::PeerLost { peer, why });
            reported += 1;
        }
        reported
    }

    /// Closes an endpoint at once; UCX cancels its pending operations.
    fn close(&mut self, ep: NonNull<ffi::Ep>, context: Box<EndpointContext>) {
        let mut param = ffi::RequestParam::empty();
        param.op_attr_mask = ffi::UCP_OP_ATTR_FIELD_FLAGS;
        param.flags = ffi::UCP_EP_CLOSE_FLAG_FORCE;
        // SAFETY: the endpoint is open, and is not used after this call.
        let request = unsafe { (self.shared.ucx.ucp_ep_close_nbx)(ep.as_ptr(), &param) };
        if !request.is_null() && ffi::pointer_error(request).is_none() {
            self.closing.push(ClosingEndpoint::Closing { request, context });
        }
    }

    /// Advances endpoints that are being closed.
    fn advance_closing(&mut self) {
        for closing in std::mem::take(&mut self.closing) {
            match closing {
                ClosingEndpoint::Flushing { ep, request, until, context } => {
                    if self.pending(request) && Instant::now() < until {
                        self.closing.push(ClosingEndpoint::Flushing { ep, request, until, context });
                        continue;
                    }
                    // SAFETY: UCX returned the request; a pending one completes by the forced close.
                    unsafe { (self.shared.ucx.ucp_request_free)(request) };
                    self.close(ep, context);
                }
                ClosingEndpoint::Closing { request, context } if self.pending(request) => {
                    self.closing.push(ClosingEndpoint::Closing { request, context });
                }
                // SAFETY: a completed request, freed once.
                ClosingEndpoint::Closing { request, .. } => unsafe { (self.shared.ucx.ucp_request_free)(request) },
            }
        }
    }

    fn pending(&self, request: *mut c_void) -> bool {
        // SAFETY: a request that UCX returned and that is not freed.
        unsafe { (self.shared.ucx.ucp_request_check_status)(request) == ffi::UCS_INPROGRESS }
    }
}

impl Fabric for Ucx {
    fn id(&self) -> PeerId {
        self.id
    }

    fn local_address(&self) -> &[u8] {
        self.worker.address()
    }

    fn connect(&mut self, peer: PeerId, address: &[u8]) -> Result<(), ConnectError> {
        if let Some(known) = self.peers.get(&peer) {
            return match known.address == address {
                true => Ok(()),
                false => Err(ConnectError::AddressChanged(peer)),
            };
        }
        if self.peers.len() >= self.limits.peers {
            return Err(ConnectError::TooManyPeers { peer, limit: self.limits.peers });
        }
        let worker_address = worker::unframe(address).ok_or(ConnectError::Address { peer, length: address.len() })?;
        let connection = self.next_connection;
        self.next_connection = connection.wrapping_add(1);
        let context = Box::new(EndpointContext { peer, connection, shared: Rc::clone(&self.shared) });
        // SAFETY: the context is kept until the endpoint is closed; its address does not change with the box.
        let opened =
            unsafe { self.worker.open(worker_address, on_path_error, ptr::from_ref(&*context).cast_mut().cast()) };
        let ep = opened.map_err(|status| ConnectError::Transport { peer, why: self.shared.ucx.loss(status) })?;
        let load = Rc::default();
        self.peers.insert(peer, UcxPeer { ep, address: address.to_vec(), connection, sequence: 0, load, context });
        Ok(())
    }

    fn disconnect(&mut self, peer: PeerId) {
        let Some(known) = self.peers.remove(&peer) else {
            return;
        };
        let UcxPeer { ep, context, sequence, .. } = known;
        if sequence == 0 {
            // Nothing was ever sent, and a flush would wait for a peer that may be absent.
            self.close(ep, context);
            return;
        }
        let param = ffi::RequestParam::empty();
        // SAFETY: the endpoint is open.
        let request = unsafe { (self.shared.ucx.ucp_ep_flush_nbx)(ep.as_ptr(), &param) };
        if request.is_null() || ffi::pointer_error(request).is_some() {
            self.close(ep, context);
            return;
        }
        self.closing.push(ClosingEndpoint::Flushing { ep, request, until: Instant::now() + FLUSH_TIME, context });
    }

    fn payload_buffer(&mut self, length: usize) -> Option<SendBuffer> {
        let buffer = self.pool.buffer(length);
        if buffer.is_none() && length <= MAX_PAYLOAD {
            self.shared.starved.set(true);
        }
        buffer
    }

    fn ready(&mut self, peer: PeerId, length: usize) -> Result<(), SendError> {
        let load = self.peers.get(&peer).ok_or(SendError::Unknown(peer))?.load.get();
        if load.is_full(length, &self.limits) {
            self.shared.starved.set(true);
            return Err(SendError::Full(peer));
        }
        Ok(())
    }

    fn send(&mut self, peer: PeerId, header: &[u8], payload: SendPayload<'_>) -> Result<(), SendError> {
        let payload = outstanding::admit(self, peer, header, payload)?;
        let known = self.peers.get_mut(&peer).ok_or(SendError::Unknown(peer))?;
        let (ep, connection, load) = (known.ep, known.connection, Rc::clone(&known.load));
        let mut prefixed = [0; PREFIX + MAX_HEADER];
        let prefix = Prefix { from: self.id, connection, sequence: known.sequence };
        prefixed[..PREFIX].copy_from_slice(&prefix.encode());
        prefixed[PREFIX..PREFIX + header.len()].copy_from_slice(header);
        known.sequence = known.sequence.wrapping_add(1);
        load.set(load.get().with(payload.as_deref().map_or(0, <[u8]>::len)));
        let shared = Rc::clone(&self.shared);
        let send = UcxSend { header: prefixed, payload, peer, connection, load, shared };
        self.post(Box::new(send), header.len(), ep)
    }

    fn progress(&mut self, sink: &mut dyn FnMut(FabricEvent<'_>)) -> usize {
        let mut done = self.rounds(sink);
        self.advance_closing();
        done += self.report_lost(sink);
        if self.shared.room.take() {
            sink(FabricEvent::Room);
            done += 1;
        }
        done + self.shared.delivered.take()
    }

    fn event_fd(&self) -> BorrowedFd<'_> {
        self.worker.event_fd()
    }

    fn arm(&mut self) -> Armed {
        if self.shared.room.get() || !self.shared.lost.borrow().is_empty() {
            return Armed::Busy;
        }
        self.worker.arm()
    }
}

impl Drop for Ucx {
    /// Lets accepted messages leave, for a bounded time.
    fn drop(&mut self) {
        for peer in self.peers.keys().copied().collect::<Vec<_>>() {
            self.disconnect(peer);
        }
        let until = Instant::now() + 2 * FLUSH_TIME;
        loop {
            let moved = self.rounds(&mut |_| ());
            self.advance_closing();
            let left = until.saturating_duration_since(Instant::now());
            if self.closing.is_empty() || left.is_zero() {
                break;
            }
            if moved == 0 && self.worker.arm() == Armed::Armed {
                self.worker.sleep(left.min(FLUSH_TIME / 4));
            }
        }
    }
}
