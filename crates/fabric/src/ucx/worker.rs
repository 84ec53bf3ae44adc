//! Starting and stopping UCX, its worker and its endpoints.
//!
//! Invariant: context and worker are valid as long as the [`UcxWorker`] is. Never holds state about peers.

use std::ffi::{c_int, c_void};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::ptr::{self, NonNull};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::ffi::{self, Status};
use crate::{Armed, FabricLimits, MAX_ADDRESS, PeerLoss};

/// First bytes of every address of this fabric: kind and version of the framing.
const ADDRESS_TAG: [u8; 4] = *b"UCX1";
/// Tag and checksum before UCX's own address.
const ADDRESS_FRAME: usize = 8;
/// Oldest UCX with these structures.
const OLDEST: (u32, u32) = (1, 13);

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum UcxTransport {
    /// The transports of RDMA devices.
    #[default]
    Rdma,
    /// TCP, which authenticates nobody: for tests.
    Tcp,
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct UcxSettings {
    pub transport: UcxTransport,
    /// Network devices as UCX names them, separated by commas (`mlx5_0:1`); all if absent.
    pub devices: Option<String>,
    pub limits: FabricLimits,
}

#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum UcxError {
    #[error("cannot load UCX: {0}; install it (Debian: apt install libucx0)")]
    Missing(String),
    #[error("UCX {0}.{1} is too old; install 1.13 or newer")]
    TooOld(u32, u32),
    #[error("UCX refuses a setting: {0}")]
    Setting(String),
    #[error("UCX fails in {step}: {why}; do the network devices ({devices}) exist, and have they an IPv4 address?")]
    Start { step: &'static str, why: String, devices: String },
    #[error("UCX's address takes {0} bytes of {MAX_ADDRESS}; name fewer network devices")]
    AddressTooLong(usize),
}

pub(super) struct UcxWorker {
    ucx: Rc<ffi::Ucx>,
    context: *mut ffi::Context,
    worker: *mut ffi::Worker,
    address: Vec<u8>,
    event_fd: c_int,
}

/// Why an RDMA device is not used.
#[must_use]
pub fn rdma_is_asked_for(device: &str) -> String {
    format!("tcp; the RDMA device {device} is used with --fabric ucx, which authenticates nobody and is untried")
}

/// The RDMA device behind a network interface, as UCX names it (`mlx5_0:1`).
#[must_use]
pub fn rdma_device(interface: &str) -> Option<String> {
    let names = |path: &Path| -> Vec<_> {
        let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
    };
    let devices = Path::new("/sys/class/infiniband");
    names(devices).into_iter().find_map(|device| {
        let ports = devices.join(&device).join("ports");
        let port = names(&ports).into_iter().find(|port| {
            let owners = ports.join(port).join("gid_attrs/ndevs");
            let owner = |gid: &String| std::fs::read_to_string(owners.join(gid)).unwrap_or_default();
            names(&owners).iter().any(|gid| owner(gid).trim() == interface)
        })?;
        Some(format!("{device}:{port}"))
    })
}

/// Version of the UCX that would be loaded.
pub fn ucx_version() -> Result<(u32, u32, u32), UcxError> {
    load().map(|ucx| ucx.version())
}

fn load() -> Result<ffi::Ucx, UcxError> {
    let ucx = ffi::Ucx::load().map_err(|error| UcxError::Missing(error.to_string()))?;
    let (major, minor, _) = ucx.version();
    match (major, minor) >= OLDEST {
        true => Ok(ucx),
        false => Err(UcxError::TooOld(major, minor)),
    }
}

/// A number that differs between processes.
pub(super) fn random() -> u32 {
    RandomState::new().build_hasher().finish() as u32
}

/// FNV-1a. Protects UCX, which trusts addresses, against blobs that are not addresses.
fn checksum(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

/// UCX's own address within an address of this fabric.
pub(super) fn unframe(address: &[u8]) -> Option<&[u8]> {
    let (sum, inner) = address.strip_prefix(&ADDRESS_TAG)?.split_first_chunk()?;
    (address.len() <= MAX_ADDRESS && u32::from_le_bytes(*sum) == checksum(inner)).then_some(inner)
}

impl ffi::RequestParam {
    pub(super) const fn empty() -> Self {
        // SAFETY: all-zero bytes are a valid value: integers, null pointers, empty Option.
        unsafe { std::mem::zeroed() }
    }

    pub(super) const fn with_callback(callback: ffi::SendCallback, user_data: *mut c_void) -> Self {
        let mut param = Self::empty();
        param.op_attr_mask = ffi::UCP_OP_ATTR_FIELD_CALLBACK | ffi::UCP_OP_ATTR_FIELD_USER_DATA;
        param.cb = Some(callback);
        param.user_data = user_data;
        param
    }
}

impl ffi::Ucx {
    /// Converts a status of UCX to the loss of a peer.
    pub(super) fn loss(&self, status: Status) -> PeerLoss {
        match status {
            // UCX's TCP transport reports a reset connection as an endpoint timeout.
            ffi::UCS_ERR_CONNECTION_RESET | ffi::UCS_ERR_NOT_CONNECTED | ffi::UCS_ERR_ENDPOINT_TIMEOUT => {
                PeerLoss::Reset
            }
            ffi::UCS_ERR_UNREACHABLE | ffi::UCS_ERR_REJECTED => PeerLoss::Unreachable,
            ffi::UCS_ERR_TIMED_OUT => PeerLoss::TimedOut,
            other => PeerLoss::Transport(self.describe(other)),
        }
    }
}

impl UcxWorker {
    pub(super) fn start(settings: &UcxSettings) -> Result<(Self, Rc<ffi::Ucx>), UcxError> {
        let ucx = Rc::new(load()?);
        let devices = settings.devices.as_deref().unwrap_or("all");
        let failed = |step, status| UcxError::Start { step, why: ucx.describe(status), devices: devices.to_owned() };
        let context = open_context(&ucx, settings.transport, devices, &failed)?;
        let mut worker =
            Self { ucx: Rc::clone(&ucx), context, worker: ptr::null_mut(), address: Vec::new(), event_fd: -1 };
        worker.open_worker(&failed)?;
        Ok((worker, ucx))
    }

    fn open_worker(&mut self, failed: &dyn Fn(&'static str, Status) -> UcxError) -> Result<(), UcxError> {
        let check = |step, status| {
            if status == ffi::UCS_OK { Ok(()) } else { Err(failed(step, status)) }
        };
        // SAFETY: all-zero bytes are a valid value: integers, null pointers, empty Option.
        let mut params: ffi::WorkerParams = unsafe { std::mem::zeroed() };
        params.field_mask = ffi::UCP_WORKER_PARAM_FIELD_THREAD_MODE | ffi::UCP_WORKER_PARAM_FIELD_FLAGS;
        params.thread_mode = ffi::UCS_THREAD_MODE_SINGLE;
        params.flags = ffi::UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK;
        // SAFETY: the context is valid; parameters and results point to valid memory.
        let status = unsafe { (self.ucx.ucp_worker_create)(self.context, &params, &mut self.worker) };
        check("ucp_worker_create", status)?;
        // SAFETY: the worker is valid.
        let status = unsafe { (self.ucx.ucp_worker_get_efd)(self.worker, &mut self.event_fd) };
        check("ucp_worker_get_efd", status)?;
        let (mut address, mut length) = (ptr::null_mut(), 0);
        // SAFETY: the worker is valid; both results are valid places.
        let status = unsafe { (self.ucx.ucp_worker_get_address)(self.worker, &mut address, &mut length) };
        check("ucp_worker_get_address", status)?;
        // SAFETY: UCX returned `length` bytes there.
        let inner = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
        self.address = [&ADDRESS_TAG, &checksum(inner).to_le_bytes(), inner].concat();
        // SAFETY: returned by ucp_worker_get_address, released once.
        unsafe { (self.ucx.ucp_worker_release_address)(self.worker, address) };
        match length + ADDRESS_FRAME <= MAX_ADDRESS {
            true => Ok(()),
            false => Err(UcxError::AddressTooLong(length + ADDRESS_FRAME)),
        }
    }

    pub(super) fn address(&self) -> &[u8] {
        &self.address
    }

    /// Makes UCX call `callback` with `arg` for each whole active message `id`.
    ///
    /// # Safety
    /// `callback` may be called with `arg` until `self` is dropped.
    pub(super) unsafe fn receive(
        &self,
        id: u32,
        callback: ffi::AmRecvCallback,
        arg: *mut c_void,
    ) -> Result<(), UcxError> {
        let param = ffi::AmHandlerParam {
            field_mask: ffi::UCP_AM_HANDLER_PARAM_FIELD_ID
                | ffi::UCP_AM_HANDLER_PARAM_FIELD_FLAGS
                | ffi::UCP_AM_HANDLER_PARAM_FIELD_CB
                | ffi::UCP_AM_HANDLER_PARAM_FIELD_ARG,
            id,
            flags: ffi::UCP_AM_FLAG_WHOLE_MSG,
            cb: Some(callback),
            arg,
        };
        // SAFETY: the worker is valid, and the caller is responsible for callback and argument.
        match unsafe { (self.ucx.ucp_worker_set_am_recv_handler)(self.worker, &param) } {
            ffi::UCS_OK => Ok(()),
            status => Err(UcxError::Setting(format!("active message {id}: {}", self.ucx.describe(status)))),
        }
    }

    /// Opens an endpoint to UCX's own `address`.
    ///
    /// # Safety
    /// `callback` may be called with `arg` until the endpoint is closed.
    pub(super) unsafe fn open(
        &self,
        address: &[u8],
        callback: ffi::ErrorCallback,
        arg: *mut c_void,
    ) -> Result<NonNull<ffi::Ep>, Status> {
        // SAFETY: all-zero bytes are a valid value: integers, null pointers, empty Option.
        let mut params: ffi::EpParams = unsafe { std::mem::zeroed() };
        params.field_mask = ffi::UCP_EP_PARAM_FIELD_REMOTE_ADDRESS
            | ffi::UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE
            | ffi::UCP_EP_PARAM_FIELD_ERR_HANDLER;
        params.address = address.as_ptr().cast();
        params.err_mode = ffi::UCP_ERR_HANDLING_MODE_PEER;
        params.err_handler_cb = Some(callback);
        params.err_handler_arg = arg;
        let mut ep = ptr::null_mut();
        // SAFETY: the worker is valid; the address was made by a worker (checksum) and is copied by the call.
        match unsafe { (self.ucx.ucp_ep_create)(self.worker, &params, &mut ep) } {
            ffi::UCS_OK => NonNull::new(ep).ok_or(ffi::UCS_ERR_UNREACHABLE),
            status => Err(status),
        }
    }

    /// One round of UCX's progress, which runs the callbacks.
    pub(super) fn progress(&self) -> usize {
        // SAFETY: the worker is valid and used by one thread.
        unsafe { (self.ucx.ucp_worker_progress)(self.worker) as usize }
    }

    /// Readable when the armed worker has work.
    pub(super) fn event_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the worker keeps its descriptor open until it is destroyed.
        unsafe { BorrowedFd::borrow_raw(self.event_fd) }
    }

    pub(super) fn arm(&self) -> Armed {
        // SAFETY: the worker is valid.
        match unsafe { (self.ucx.ucp_worker_arm)(self.worker) } {
            ffi::UCS_OK => Armed::Armed,
            ffi::UCS_ERR_BUSY => Armed::Busy,
            status => panic!("UCX cannot arm its own descriptors: {}", self.ucx.describe(status)),
        }
    }

    /// Sleeps until the armed worker has work or `limit` has passed.
    pub(super) fn sleep(&self, limit: Duration) {
        let limit = Timespec::try_from(limit).ok();
        let fd = self.event_fd();
        // The caller checks again, interrupted or not.
        let _ = poll(&mut [PollFd::from_borrowed_fd(fd, PollFlags::IN)], limit.as_ref());
    }
}

impl Drop for UcxWorker {
    /// Destroys worker and context. UCX calls back for pending operations, so the callbacks' arguments must live until
    /// then.
    fn drop(&mut self) {
        // SAFETY: both are valid until here, by the invariant; each is destroyed once.
        unsafe {
            if !self.worker.is_null() {
                (self.ucx.ucp_worker_destroy)(self.worker);
            }
            (self.ucx.ucp_cleanup)(self.context);
        }
    }
}

/// Reads UCX's configuration, sets the options that this fabric relies on, and opens a context.
fn open_context(
    ucx: &ffi::Ucx,
    transport: UcxTransport,
    devices: &str,
    failed: &dyn Fn(&'static str, Status) -> UcxError,
) -> Result<*mut ffi::Context, UcxError> {
    let mut config = ptr::null_mut();
    // SAFETY: no prefix and no file name are allowed; the result is a valid place.
    let status = unsafe { (ucx.ucp_config_read)(ptr::null(), ptr::null(), &mut config) };
    if status != ffi::UCS_OK {
        return Err(failed("ucp_config_read", status));
    }
    let of_transport = match transport {
        UcxTransport::Rdma => &[(c"TLS", "ib")][..],
        // A conductor must not block in connect(2) while a host is down. Large segments mean fewer eager fragments.
        UcxTransport::Tcp => &[(c"TLS", "tcp"), (c"TCP_CONN_NB", "y"), (c"TCP_TX_SEG_SIZE", "64K")],
    };
    // The daemon's own heartbeat detects silent peers; UCX's rounds would wake an idle process.
    let of_all = [(c"NET_DEVICES", devices), (c"KEEPALIVE_INTERVAL", "inf")];
    let mut wanted = of_transport.iter().chain(&of_all);
    let configured =
        wanted.try_for_each(|&(name, value)| ucx.configure(config, name, value).map_err(UcxError::Setting));
    // SAFETY: all-zero bytes are a valid value: integers and null pointers.
    let mut params: ffi::Params = unsafe { std::mem::zeroed() };
    params.field_mask = ffi::UCP_PARAM_FIELD_FEATURES;
    params.features = ffi::UCP_FEATURE_AM | ffi::UCP_FEATURE_WAKEUP;
    let mut context = ptr::null_mut();
    let opened = configured.and_then(|()| {
        // SAFETY: parameters and configuration are valid; the result is a valid place.
        match unsafe { (ucx.ucp_init_version)(OLDEST.0, OLDEST.1, &params, config, &mut context) } {
            ffi::UCS_OK => Ok(context),
            status => Err(failed("ucp_init", status)),
        }
    });
    // SAFETY: read above, released once; the context keeps its own copy.
    unsafe { (ucx.ucp_config_release)(config) };
    opened
}
