//! A libfabric provider with one endpoint: domain, addresses, the counter of ended lists, and errors.
//!
//! Invariants: the last owner closes objects in the opposite order of their creation. A provider must be thread-safe
//! (`FI_THREAD_SAFE`) and progress by itself (`FI_PROGRESS_AUTO`), else it is refused. Never holds a list.

use std::ffi::{CStr, CString, c_int, c_void};
use std::net::Ipv4Addr;
use std::os::fd::BorrowedFd;
use std::ptr::{self, NonNull};

use super::OfiError;
use super::ffi::{self, Functions};

/// Least number of counters that lists of common sizes need ([`outboard_plan::deferred::MOST_COUNTERS`]).
const LEAST_COUNTERS: usize = outboard_plan::deferred::MOST_COUNTERS as usize;
/// Longest address of an endpoint, in bytes.
pub const MAX_OFI_ADDRESS: usize = 64;

pub(super) struct Provider {
    functions: Functions,
    pub(super) name: String,
    info: NonNull<ffi::Info>,
    fabric: *mut ffi::Fabric,
    domain: *mut ffi::Domain,
    av: *mut ffi::Av,
    cq: *mut ffi::Cq,
    pub(super) ep: *mut ffi::Ep,
    pub(super) ended: *mut ffi::Cntr,
    pub(super) address: Vec<u8>,
    cq_fd: c_int,
}

// SAFETY: the objects belong to no thread, and FI_THREAD_SAFE was requested from the provider.
unsafe impl Send for Provider {}
// SAFETY: shared access is safe for the same reason: FI_THREAD_SAFE was requested from the provider.
unsafe impl Sync for Provider {}

/// Capabilities requested step by step, so that an error can name the missing one.
const ASKED: [(&str, u64); 3] = [
    ("tagged messages on a reliable datagram endpoint that progresses by itself and takes any memory", ffi::FI_TAGGED),
    ("deferred work (FI_TRIGGER)", ffi::FI_TAGGED | ffi::FI_TRIGGER),
    (
        "receives from one sender alone (FI_DIRECTED_RECV)",
        ffi::FI_TAGGED | ffi::FI_TRIGGER | ffi::FI_DIRECTED_RECV | ffi::FI_SEND | ffi::FI_RECV,
    ),
];

impl Provider {
    /// Opens the provider called `name` at an address of this host.
    pub(super) fn open(name: &str, at: Ipv4Addr) -> Result<Provider, OfiError> {
        let functions = Functions::load_for_ever().map_err(|why| OfiError::Missing(why.to_string()))?;
        let mut found = None;
        for (capability, caps) in ASKED {
            let asked = getinfo(&functions, name, at, caps);
            free(
                &functions,
                found.replace(asked.map_err(|code| match code {
                    ffi::FI_ENODATA => {
                        OfiError::Cannot { provider: name.to_owned(), capability: capability.to_owned() }
                    }
                    code => OfiError::Step {
                        provider: name.to_owned(),
                        step: "fi_getinfo",
                        why: error_text(&functions, code),
                    },
                })?),
            );
        }
        let info = found.expect("something is asked for");
        let mut provider = Provider {
            functions,
            name: name.to_owned(),
            info,
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            ended: ptr::null_mut(),
            address: Vec::new(),
            cq_fd: -1,
        };
        provider.check_counters()?;
        provider.open_domain()?;
        provider.open_endpoint()?;
        Ok(provider)
    }

    fn check_counters(&self) -> Result<(), OfiError> {
        // SAFETY: fi_getinfo fills in the attributes, which live as long as the info.
        let counters = unsafe { (*self.info.as_ref().domain_attr).cntr_cnt };
        // 0 means that the provider gives no number.
        match counters == 0 || counters >= LEAST_COUNTERS {
            true => Ok(()),
            false => Err(self.cannot(format!("{LEAST_COUNTERS} counters; it has {counters}"))),
        }
    }

    fn open_domain(&mut self) -> Result<(), OfiError> {
        let info = self.info.as_ptr();
        // SAFETY: info is valid, every result points to valid memory, and a table's entries belong to its object.
        unsafe {
            let attributes = (*info).fabric_attr;
            let opened = (self.functions.fi_fabric)(attributes, &mut self.fabric, ptr::null_mut());
            self.done("fi_fabric", opened)?;
            let opened = ((*(*self.fabric).ops).domain)(self.fabric, info, &mut self.domain, ptr::null_mut());
            self.done("fi_domain", opened)?;
            let ops = &*(*self.domain).ops;
            let mut attributes: ffi::AvAttr = std::mem::zeroed();
            attributes.kind = ffi::FI_AV_MAP;
            let opened = (ops.av_open)(self.domain, &mut attributes, &mut self.av, ptr::null_mut());
            self.done("fi_av_open", opened)?;
            let mut attributes: ffi::CqAttr = std::mem::zeroed();
            (attributes.format, attributes.wait_obj) = (ffi::FI_CQ_FORMAT_TAGGED, ffi::FI_WAIT_FD);
            let opened = (ops.cq_open)(self.domain, &mut attributes, &mut self.cq, ptr::null_mut());
            self.done("fi_cq_open with a descriptor", opened)?;
            let fid: *mut ffi::Fid = self.cq.cast();
            let status = ((*(*fid).ops).control)(fid, ffi::FI_GETWAIT, (&raw mut self.cq_fd).cast());
            self.done("FI_GETWAIT", status)?;
        }
        self.ended = self.counter()?.into_raw();
        Ok(())
    }

    fn open_endpoint(&mut self) -> Result<(), OfiError> {
        // SAFETY: info and domain are valid, every result points to valid memory, and a table's entries belong to its
        // object.
        unsafe {
            let ops = &*(*self.domain).ops;
            let opened = (ops.endpoint)(self.domain, self.info.as_ptr(), &mut self.ep, ptr::null_mut());
            self.done("fi_endpoint", opened)?;
            let fid: *mut ffi::Fid = self.ep.cast();
            let table = &*(*fid).ops;
            self.done("fi_ep_bind", (table.bind)(fid, self.av.cast(), 0))?;
            // Counters count successes; the queue receives only errors.
            let errors_alone = ffi::FI_SEND | ffi::FI_RECV | ffi::FI_SELECTIVE_COMPLETION;
            self.done("fi_ep_bind", (table.bind)(fid, self.cq.cast(), errors_alone))?;
            self.done("fi_enable", (table.control)(fid, ffi::FI_ENABLE, ptr::null_mut()))?;
            let (mut name, mut length) = ([0u8; MAX_OFI_ADDRESS], MAX_OFI_ADDRESS);
            let status = ((*(*self.ep).cm).getname)(fid, name.as_mut_ptr().cast(), &mut length);
            self.done("fi_getname", status)?;
            self.address = name[..length].to_vec();
        }
        Ok(())
    }

    pub(super) fn counter(&self) -> Result<Counter, OfiError> {
        let (mut raw, wait_obj) = (ptr::null_mut(), ffi::FI_WAIT_UNSPEC);
        let events = ffi::FI_CNTR_EVENTS_COMP;
        let mut attributes = ffi::CntrAttr { events, wait_obj, wait_set: ptr::null_mut(), flags: 0 };
        // SAFETY: the domain is open; the result points to valid memory.
        let opened =
            unsafe { ((*(*self.domain).ops).cntr_open)(self.domain, &mut attributes, &mut raw, ptr::null_mut()) };
        self.done("fi_cntr_open (fewer calls at once may help)", opened)?;
        Ok(Counter(raw))
    }

    /// Inserts a peer's address; returns its name for sends and receives.
    pub(super) fn insert(&self, address: &[u8]) -> Result<u64, OfiError> {
        // A foreign address reaches C only if its length and family equal this endpoint's.
        if address.len() != self.address.len() || address[..2] != self.address[..2] {
            return Err(OfiError::Address { provider: self.name.clone(), length: address.len() });
        }
        let mut name = 0;
        // SAFETY: the addresses are open; `address` has the length that this provider's addresses have.
        let inserted =
            unsafe { ((*(*self.av).ops).insert)(self.av, address.as_ptr().cast(), 1, &mut name, 0, ptr::null_mut()) };
        match inserted {
            1 => Ok(name),
            code => Err(self.failed("fi_av_insert", code)),
        }
    }

    /// Passes a task to the provider.
    ///
    /// # Safety
    /// The memory that `work` points to stays until the task is complete or can no longer begin.
    pub(super) unsafe fn queue(&self, work: *mut ffi::DeferredWork) -> Result<(), c_int> {
        let fid: *mut ffi::Fid = self.domain.cast();
        // SAFETY: the domain is open; the caller is responsible for the task.
        match unsafe { ((*(*fid).ops).control)(fid, ffi::FI_QUEUE_WORK, work.cast()) } {
            0 => Ok(()),
            code => Err(-code),
        }
    }

    /// Cancels a receive that no message has matched; the queue of errors reports whether the cancellation worked.
    ///
    /// # Safety
    /// `context` belongs to a queued task whose memory stays.
    pub(super) unsafe fn cancel(&self, context: *mut c_void) {
        let fid: *mut ffi::Fid = self.ep.cast();
        // SAFETY: the endpoint is open. A receive that cannot be cancelled completes.
        unsafe { ((*(*self.ep).ops).cancel)(fid, context) };
    }

    /// Takes the next error: the context of the failed task, and the error code.
    pub(super) fn take_error(&self) -> Option<(*mut c_void, c_int)> {
        // SAFETY: all-zero bytes are a valid value: integers and null pointers.
        let mut entry: ffi::CqError = unsafe { std::mem::zeroed() };
        let mut unused = [0u64; 8];
        // SAFETY: the queue is open; completions of any format have less than 64 bytes, and errors are as declared.
        let read = unsafe {
            let ops = &*(*self.cq).ops;
            (ops.read)(self.cq, unused.as_mut_ptr().cast(), 1);
            (ops.readerr)(self.cq, &mut entry, 0)
        };
        (read == 1).then_some((entry.op_context, entry.err))
    }

    pub(super) fn errors_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the queue keeps its descriptor open until it is closed.
        unsafe { BorrowedFd::borrow_raw(self.cq_fd) }
    }

    /// Waits until the counter of ended lists is at least `threshold`.
    pub(super) fn wait_ended(&self, threshold: u64) {
        // SAFETY: the counter is open. The caller checks again after an interrupted wait.
        unsafe { ((*(*self.ended).ops).wait)(self.ended, threshold, -1) };
    }

    pub(super) fn count_ended(&self) -> u64 {
        read(self.ended)
    }

    pub(super) fn wake_waiter(&self) {
        // SAFETY: the counter is open.
        unsafe { ((*(*self.ended).ops).add)(self.ended, 1) };
    }

    fn done(&self, step: &'static str, code: c_int) -> Result<(), OfiError> {
        if code == 0 { Ok(()) } else { Err(self.failed(step, code)) }
    }

    pub(super) fn failed(&self, step: &'static str, code: c_int) -> OfiError {
        OfiError::Step { provider: self.name.clone(), step, why: self.error_text(code) }
    }

    pub(super) fn error_text(&self, code: c_int) -> String {
        error_text(&self.functions, code)
    }

    fn cannot(&self, capability: String) -> OfiError {
        OfiError::Cannot { provider: self.name.clone(), capability }
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        let objects: [*mut ffi::Fid; 6] =
            [self.ep.cast(), self.ended.cast(), self.cq.cast(), self.av.cast(), self.domain.cast(), self.fabric.cast()];
        objects.into_iter().filter(|fid| !fid.is_null()).for_each(close);
        // SAFETY: returned by fi_getinfo, released once.
        unsafe { (self.functions.fi_freeinfo)(self.info.as_ptr()) };
    }
}

pub(super) struct Counter(*mut ffi::Cntr);

// SAFETY: the provider that owns the counter is thread-safe.
unsafe impl Send for Counter {}

impl Counter {
    pub(super) fn raw(&self) -> *mut ffi::Cntr {
        self.0
    }

    pub(super) fn read(&self) -> u64 {
        read(self.0)
    }

    fn into_raw(self) -> *mut ffi::Cntr {
        std::mem::ManuallyDrop::new(self).0
    }
}

impl Drop for Counter {
    fn drop(&mut self) {
        close(self.0.cast());
    }
}

fn read(counter: *mut ffi::Cntr) -> u64 {
    // SAFETY: the counter is open.
    unsafe { ((*(*counter).ops).read)(counter) }
}

fn close(fid: *mut ffi::Fid) {
    // SAFETY: an open object, closed once.
    unsafe { ((*(*fid).ops).close)(fid) };
}

fn error_text(functions: &Functions, code: c_int) -> String {
    // SAFETY: returns a static NUL-terminated string for every value.
    let text = unsafe { CStr::from_ptr((functions.fi_strerror)(code.abs())) };
    text.to_string_lossy().into_owned()
}

fn free(functions: &Functions, info: Option<NonNull<ffi::Info>>) {
    // SAFETY: returned by fi_getinfo or fi_dupinfo, released once.
    info.into_iter().for_each(|info| unsafe { (functions.fi_freeinfo)(info.as_ptr()) });
}

/// Queries provider `name` at address `at` for these capabilities. The error is libfabric's code, positive.
fn getinfo(functions: &Functions, name: &str, at: Ipv4Addr, caps: u64) -> Result<NonNull<ffi::Info>, c_int> {
    let (name, node) = (CString::new(name).map_err(|_| ffi::FI_ENODATA)?, CString::new(at.to_string()));
    let node = node.expect("an address has no NUL byte");
    // SAFETY: a null argument requests a new info with all its attributes.
    let hints = NonNull::new(unsafe { (functions.fi_dupinfo)(ptr::null()) }).ok_or(libc::ENOMEM)?;
    let mut found = ptr::null_mut();
    // SAFETY: fi_dupinfo made the info with all attributes; libfabric frees the provider's name with free(3), so it
    // must come from malloc, as the result of strdup does.
    let code = unsafe {
        let info = hints.as_ptr();
        (*info).caps = caps;
        (*(*info).ep_attr).kind = ffi::FI_EP_RDM;
        (*(*info).tx_attr).op_flags = ffi::FI_TRANSMIT_COMPLETE;
        let domain = &mut *(*info).domain_attr;
        (domain.threading, domain.av_type) = (ffi::FI_THREAD_SAFE, ffi::FI_AV_MAP);
        (domain.control_progress, domain.data_progress) = (ffi::FI_PROGRESS_AUTO, ffi::FI_PROGRESS_AUTO);
        (*(*info).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        let flags = ffi::FI_SOURCE | ffi::FI_NUMERICHOST;
        (functions.fi_getinfo)(ffi::VERSION, node.as_ptr(), ptr::null(), flags, info, &mut found)
    };
    free(functions, Some(hints));
    NonNull::new(found).filter(|_| code == 0).ok_or(-code)
}
