//! The part of UCP that the UCX fabric uses: structures, constants and functions of `ucp/api/ucp.h` (UCX 1.13, Debian
//! 12), loaded at run time and never linked, so that the daemon starts where UCX is missing.
//!
//! Invariant: layouts equal the installed header's, which the test `layout` shows with the C compiler. UCP grows its
//! structures at the end behind `field_mask`, so a newer library accepts these.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use libloading::Library;

/// `ucs_status_t`: a packed enum, one signed byte.
pub(super) type Status = i8;

pub(super) const UCS_OK: Status = 0;
pub(super) const UCS_INPROGRESS: Status = 1;
pub(super) const UCS_ERR_UNREACHABLE: Status = -6;
pub(super) const UCS_ERR_BUSY: Status = -15;
pub(super) const UCS_ERR_TIMED_OUT: Status = -20;
pub(super) const UCS_ERR_REJECTED: Status = -23;
pub(super) const UCS_ERR_NOT_CONNECTED: Status = -24;
pub(super) const UCS_ERR_CONNECTION_RESET: Status = -25;
pub(super) const UCS_ERR_ENDPOINT_TIMEOUT: Status = -80;
pub(super) const UCS_ERR_LAST: Status = -100;

pub(super) const UCP_PARAM_FIELD_FEATURES: u64 = 1;
pub(super) const UCP_FEATURE_WAKEUP: u64 = 1 << 4;
pub(super) const UCP_FEATURE_AM: u64 = 1 << 6;
pub(super) const UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1;
pub(super) const UCP_WORKER_PARAM_FIELD_FLAGS: u64 = 1 << 5;
pub(super) const UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK: u64 = 1;
pub(super) const UCS_THREAD_MODE_SINGLE: c_uint = 0;
pub(super) const UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
pub(super) const UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2;
pub(super) const UCP_ERR_HANDLING_MODE_PEER: c_uint = 1;
pub(super) const UCP_EP_CLOSE_FLAG_FORCE: u32 = 1;
pub(super) const UCP_OP_ATTR_FIELD_CALLBACK: u32 = 1 << 1;
pub(super) const UCP_OP_ATTR_FIELD_USER_DATA: u32 = 1 << 2;
pub(super) const UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;
pub(super) const UCP_AM_SEND_FLAG_EAGER: u32 = 1 << 1;
pub(super) const UCP_AM_FLAG_WHOLE_MSG: u32 = 1;
pub(super) const UCP_AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17;
pub(super) const UCP_AM_HANDLER_PARAM_FIELD_ID: u64 = 1;
pub(super) const UCP_AM_HANDLER_PARAM_FIELD_FLAGS: u64 = 1 << 1;
pub(super) const UCP_AM_HANDLER_PARAM_FIELD_CB: u64 = 1 << 2;
pub(super) const UCP_AM_HANDLER_PARAM_FIELD_ARG: u64 = 1 << 3;

/// `ucp_config_t`.
pub(super) enum Config {}
/// What `ucp_context_h` points to.
pub(super) enum Context {}
/// What `ucp_worker_h` points to.
pub(super) enum Worker {}
/// What `ucp_ep_h` points to.
pub(super) enum Ep {}
/// `ucp_address_t`.
pub(super) enum Address {}

pub(super) type AmRecvCallback = unsafe extern "C" fn(
    arg: *mut c_void,
    header: *const c_void,
    header_length: usize,
    data: *mut c_void,
    length: usize,
    param: *const AmRecvParam,
) -> Status;
pub(super) type SendCallback = unsafe extern "C" fn(request: *mut c_void, status: Status, user_data: *mut c_void);
pub(super) type ErrorCallback = unsafe extern "C" fn(arg: *mut c_void, ep: *mut Ep, status: Status);

/// `ucp_params_t`.
#[repr(C)]
pub(super) struct Params {
    pub(super) field_mask: u64,
    pub(super) features: u64,
    pub(super) request_size: usize,
    pub(super) request_init: *const c_void,
    pub(super) request_cleanup: *const c_void,
    pub(super) tag_sender_mask: u64,
    pub(super) mt_workers_shared: c_int,
    pub(super) estimated_num_eps: usize,
    pub(super) estimated_num_ppn: usize,
    pub(super) name: *const c_char,
}

/// `ucp_worker_params_t`.
#[repr(C)]
pub(super) struct WorkerParams {
    pub(super) field_mask: u64,
    pub(super) thread_mode: c_uint,
    pub(super) cpu_mask: [u64; 16],
    pub(super) events: c_uint,
    pub(super) user_data: *mut c_void,
    pub(super) event_fd: c_int,
    pub(super) flags: u64,
    pub(super) name: *const c_char,
    pub(super) am_alignment: usize,
    pub(super) client_id: u64,
}

/// `ucs_sock_addr_t`.
#[repr(C)]
pub(super) struct SockAddr {
    pub(super) addr: *const c_void,
    pub(super) addrlen: u32,
}

/// `ucp_ep_params_t`, with `ucp_err_handler_t` spelled out.
#[repr(C)]
pub(super) struct EpParams {
    pub(super) field_mask: u64,
    pub(super) address: *const Address,
    pub(super) err_mode: c_uint,
    pub(super) err_handler_cb: Option<ErrorCallback>,
    pub(super) err_handler_arg: *mut c_void,
    pub(super) user_data: *mut c_void,
    pub(super) flags: c_uint,
    pub(super) sockaddr: SockAddr,
    pub(super) conn_request: *mut c_void,
    pub(super) name: *const c_char,
    pub(super) local_sockaddr: SockAddr,
}

/// `ucp_am_handler_param_t`.
#[repr(C)]
pub(super) struct AmHandlerParam {
    pub(super) field_mask: u64,
    pub(super) id: c_uint,
    pub(super) flags: u32,
    pub(super) cb: Option<AmRecvCallback>,
    pub(super) arg: *mut c_void,
}

/// `ucp_am_recv_param_t`.
#[repr(C)]
pub(super) struct AmRecvParam {
    pub(super) recv_attr: u64,
    pub(super) reply_ep: *mut Ep,
}

/// `ucp_request_param_t`; of the union `cb` only `send` is used.
#[repr(C)]
pub(super) struct RequestParam {
    pub(super) op_attr_mask: u32,
    pub(super) flags: u32,
    pub(super) request: *mut c_void,
    pub(super) cb: Option<SendCallback>,
    pub(super) datatype: u64,
    pub(super) user_data: *mut c_void,
    pub(super) reply_buffer: *mut c_void,
    pub(super) memory_type: c_uint,
    pub(super) recv_info: *mut c_void,
    pub(super) memh: *mut c_void,
}

/// Declares the function table: one field per symbol of the named library.
macro_rules! functions {
    ($($library:ident { $(fn $name:ident($($arg:ty),* $(,)?) $(-> $result:ty)?;)* })*) => {
        /// The functions of a loaded UCX, named as in its headers.
        pub(super) struct Functions {
            $($(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $result)?,)*)*
        }

        impl Functions {
            fn resolve(libraries: &Libraries) -> Result<Self, libloading::Error> {
                $($(
                    // SAFETY: the symbol has this C signature in the public headers of UCX 1.13 and newer.
                    let $name = *unsafe { libraries.$library.get(concat!(stringify!($name), "\0").as_bytes())? };
                )*)*
                Ok(Self { $($($name,)*)* })
            }
        }
    };
}

functions! {
    ucp {
        fn ucp_get_version(*mut c_uint, *mut c_uint, *mut c_uint);
        fn ucp_config_read(*const c_char, *const c_char, *mut *mut Config) -> Status;
        fn ucp_config_modify(*mut Config, *const c_char, *const c_char) -> Status;
        fn ucp_config_release(*mut Config);
        fn ucp_init_version(c_uint, c_uint, *const Params, *const Config, *mut *mut Context) -> Status;
        fn ucp_cleanup(*mut Context);
        fn ucp_worker_create(*mut Context, *const WorkerParams, *mut *mut Worker) -> Status;
        fn ucp_worker_destroy(*mut Worker);
        fn ucp_worker_get_address(*mut Worker, *mut *mut Address, *mut usize) -> Status;
        fn ucp_worker_release_address(*mut Worker, *mut Address);
        fn ucp_worker_progress(*mut Worker) -> c_uint;
        fn ucp_worker_get_efd(*mut Worker, *mut c_int) -> Status;
        fn ucp_worker_arm(*mut Worker) -> Status;
        fn ucp_worker_set_am_recv_handler(*mut Worker, *const AmHandlerParam) -> Status;
        fn ucp_ep_create(*mut Worker, *const EpParams, *mut *mut Ep) -> Status;
        fn ucp_ep_flush_nbx(*mut Ep, *const RequestParam) -> *mut c_void;
        fn ucp_ep_close_nbx(*mut Ep, *const RequestParam) -> *mut c_void;
        fn ucp_am_send_nbx(
            *mut Ep, c_uint, *const c_void, usize, *const c_void, usize, *const RequestParam
        ) -> *mut c_void;
        fn ucp_request_check_status(*mut c_void) -> Status;
        fn ucp_request_free(*mut c_void);
    }
    ucs {
        fn ucs_status_string(Status) -> *const c_char;
        fn ucs_debug_disable_signals();
        fn ucs_global_opts_set_value(*const c_char, *const c_char) -> Status;
    }
}

struct Libraries {
    ucp: Library,
    ucs: Library,
}

/// A loaded UCX. Stays loaded for the life of the process: its threads and exit handlers outlive any owner.
pub(super) struct Ucx {
    functions: Functions,
}

impl std::ops::Deref for Ucx {
    type Target = Functions;

    fn deref(&self) -> &Functions {
        &self.functions
    }
}

impl Ucx {
    /// Loads libucs and libucp, removes UCX's signal handlers (it has no business with a crash of ours) and silences
    /// its own printing below fatal unless `UCX_LOG_LEVEL` is set: what it reports reaches us as status values.
    pub(super) fn load() -> Result<Self, libloading::Error> {
        // SAFETY: the constructors of libucs and libucp read the environment and set up tables; they have no other
        // precondition. The libraries are never unloaded (forgotten below), so that no code of theirs vanishes.
        let libraries = unsafe { Libraries { ucs: Library::new("libucs.so.0")?, ucp: Library::new("libucp.so.0")? } };
        let functions = Functions::resolve(&libraries)?;
        std::mem::forget(libraries);
        // SAFETY: restores the handlers that the constructor replaced; called once per load, harmless when repeated.
        unsafe { (functions.ucs_debug_disable_signals)() };
        if std::env::var_os("UCX_LOG_LEVEL").is_none() {
            // SAFETY: both strings are NUL-terminated and copied by the callee.
            unsafe { (functions.ucs_global_opts_set_value)(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr()) };
        }
        Ok(Self { functions })
    }

    /// Version of the loaded library.
    pub(super) fn version(&self) -> (u32, u32, u32) {
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: three valid places to write to.
        unsafe { (self.ucp_get_version)(&mut major, &mut minor, &mut release) };
        (major, minor, release)
    }

    /// What UCX calls a status.
    pub(super) fn describe(&self, status: Status) -> String {
        // SAFETY: returns a static NUL-terminated string for every value.
        unsafe { CStr::from_ptr((self.ucs_status_string)(status)) }.to_string_lossy().into_owned()
    }

    /// Sets one configuration variable, without its prefix `UCX_`.
    pub(super) fn configure(&self, config: *mut Config, name: &CStr, value: &str) -> Result<(), String> {
        let text = CString::new(value).map_err(|_| format!("{name:?} holds a NUL byte"))?;
        // SAFETY: `config` was returned by ucp_config_read; both strings are NUL-terminated and copied.
        match unsafe { (self.ucp_config_modify)(config, name.as_ptr(), text.as_ptr()) } {
            UCS_OK => Ok(()),
            status => Err(format!("UCX_{}={value}: {}", name.to_string_lossy(), self.describe(status))),
        }
    }
}

/// The error in a `ucs_status_ptr_t`, if it is one (`UCS_PTR_IS_ERR`): the highest hundred addresses.
pub(super) fn pointer_error(pointer: *mut c_void) -> Option<Status> {
    let value = pointer as isize;
    (value < 0 && value >= UCS_ERR_LAST as isize).then_some(value as Status)
}

#[cfg(test)]
#[path = "layout.rs"]
mod layout;
