//! The part of UCP that the UCX fabric uses: types, constants and functions of `ucp/api/ucp.h` (UCX 1.13, Debian 12).
//!
//! UCP appends fields to its structures and reads only those in `field_mask`, so a newer library accepts these.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use outboard_shm::functions;

use crate::foreign::{constants, structures};

/// `ucs_status_t`: a packed enum, one signed byte.
pub(super) type Status = i8;

constants! {
    UCS_OK: Status = 0;
    UCS_INPROGRESS: Status = 1;
    UCS_ERR_UNREACHABLE: Status = -6;
    UCS_ERR_BUSY: Status = -15;
    UCS_ERR_TIMED_OUT: Status = -20;
    UCS_ERR_REJECTED: Status = -23;
    UCS_ERR_NOT_CONNECTED: Status = -24;
    UCS_ERR_CONNECTION_RESET: Status = -25;
    UCS_ERR_ENDPOINT_TIMEOUT: Status = -80;
    UCS_ERR_LAST: Status = -100;
    UCP_PARAM_FIELD_FEATURES: u64 = 1;
    UCP_FEATURE_WAKEUP: u64 = 1 << 4;
    UCP_FEATURE_AM: u64 = 1 << 6;
    UCP_WORKER_PARAM_FIELD_THREAD_MODE: u64 = 1;
    UCP_WORKER_PARAM_FIELD_FLAGS: u64 = 1 << 5;
    UCP_WORKER_FLAG_IGNORE_REQUEST_LEAK: u64 = 1;
    UCS_THREAD_MODE_SINGLE: c_uint = 0;
    UCP_EP_PARAM_FIELD_REMOTE_ADDRESS: u64 = 1;
    UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE: u64 = 1 << 1;
    UCP_EP_PARAM_FIELD_ERR_HANDLER: u64 = 1 << 2;
    UCP_ERR_HANDLING_MODE_PEER: c_uint = 1;
    UCP_EP_CLOSE_FLAG_FORCE: u32 = 1;
    UCP_OP_ATTR_FIELD_CALLBACK: u32 = 1 << 1;
    UCP_OP_ATTR_FIELD_USER_DATA: u32 = 1 << 2;
    UCP_OP_ATTR_FIELD_FLAGS: u32 = 1 << 4;
    UCP_AM_SEND_FLAG_EAGER: u32 = 1 << 1;
    UCP_AM_FLAG_WHOLE_MSG: u32 = 1;
    UCP_AM_RECV_ATTR_FLAG_RNDV: u64 = 1 << 17;
    UCP_AM_HANDLER_PARAM_FIELD_ID: u64 = 1;
    UCP_AM_HANDLER_PARAM_FIELD_FLAGS: u64 = 1 << 1;
    UCP_AM_HANDLER_PARAM_FIELD_CB: u64 = 1 << 2;
    UCP_AM_HANDLER_PARAM_FIELD_ARG: u64 = 1 << 3;
}

pub(super) enum Config {}
pub(super) enum Context {}
pub(super) enum Worker {}
pub(super) enum Ep {}
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

structures! {
    whole Params = "ucp_params_t" {
        field_mask: u64,
        features: u64,
        request_size: usize,
        request_init: *const c_void,
        request_cleanup: *const c_void,
        tag_sender_mask: u64,
        mt_workers_shared: c_int,
        estimated_num_eps: usize,
        estimated_num_ppn: usize,
        name: *const c_char,
    }
    whole WorkerParams = "ucp_worker_params_t" {
        field_mask: u64,
        thread_mode: c_uint,
        cpu_mask: [u64; 16],
        events: c_uint,
        user_data: *mut c_void,
        event_fd: c_int,
        flags: u64,
        name: *const c_char,
        am_alignment: usize,
        client_id: u64,
    }
    whole SockAddr = "ucs_sock_addr_t" {
        addr: *const c_void,
        addrlen: u32,
    }
    // Spells out the fields of `ucp_err_handler_t`.
    whole EpParams = "ucp_ep_params_t" {
        field_mask: u64,
        address: *const Address,
        err_mode: c_uint,
        err_handler_cb = "err_handler.cb": Option<ErrorCallback>,
        err_handler_arg = "err_handler.arg": *mut c_void,
        user_data: *mut c_void,
        flags: c_uint,
        sockaddr: SockAddr,
        conn_request: *mut c_void,
        name: *const c_char,
        local_sockaddr: SockAddr,
    }
    whole AmHandlerParam = "ucp_am_handler_param_t" {
        field_mask: u64,
        id: c_uint,
        flags: u32,
        cb: Option<AmRecvCallback>,
        arg: *mut c_void,
    }
    whole AmRecvParam = "ucp_am_recv_param_t" {
        recv_attr: u64,
        reply_ep: *mut Ep,
    }
    // The declaration has only the member `send` of the union `cb`.
    whole RequestParam = "ucp_request_param_t" {
        op_attr_mask: u32,
        flags: u32,
        request: *mut c_void,
        cb: Option<SendCallback>,
        datatype: u64,
        user_data: *mut c_void,
        reply_buffer: *mut c_void,
        memory_type: c_uint,
        recv_info: *mut c_void,
        memh: *mut c_void,
    }
}

functions! {
    Ucx of "libucp.so.0":
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
    fn ucs_status_string(Status) -> *const c_char;
    fn ucs_debug_disable_signals();
    fn ucs_global_opts_set_value(*const c_char, *const c_char) -> Status;
}

impl Ucx {
    /// Loads UCX. Removes its signal handlers, because UCX must not handle this process's crashes. Silences its
    /// printing below fatal unless `UCX_LOG_LEVEL` is set: UCX reports through status values as well.
    pub(super) fn load() -> Result<Self, libloading::Error> {
        let ucx = Self::load_for_ever()?;
        // SAFETY: restores the handlers that the constructor replaced; called once per load, and harmless if repeated.
        unsafe { (ucx.ucs_debug_disable_signals)() };
        if std::env::var_os("UCX_LOG_LEVEL").is_none() {
            // SAFETY: both strings are NUL-terminated and copied by the callee.
            unsafe { (ucx.ucs_global_opts_set_value)(c"LOG_LEVEL".as_ptr(), c"fatal".as_ptr()) };
        }
        Ok(ucx)
    }

    pub(super) fn version(&self) -> (u32, u32, u32) {
        let (mut major, mut minor, mut release) = (0, 0, 0);
        // SAFETY: three valid places to write to.
        unsafe { (self.ucp_get_version)(&mut major, &mut minor, &mut release) };
        (major, minor, release)
    }

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

/// The error in a `ucs_status_ptr_t`, if it is one (`UCS_PTR_IS_ERR`): errors are the highest hundred addresses.
pub(super) fn pointer_error(pointer: *mut c_void) -> Option<Status> {
    let value = pointer as isize;
    (value < 0 && value >= UCS_ERR_LAST as isize).then_some(value as Status)
}

#[test]
#[ignore = "needs libucx-dev: make test"]
fn layouts_equal_the_installed_header() {
    let status = ("sizeof(ucs_status_t)".to_owned(), size_of::<Status>() as i128);
    let facts = [structures(), constants(), vec![status]].concat();
    crate::foreign::check(&["ucp/api/ucp.h"], &facts);
}
