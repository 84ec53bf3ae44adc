//! The part of libfabric that deferred work needs: structures and constants of `rdma/fabric.h` and its neighbours
//! (libfabric 1.17, Debian 12), loaded at run time and never linked, so that the daemon starts where it is missing.
//!
//! Invariant: layouts equal the installed header's, which the test `layout` shows with the C compiler. Most functions
//! are entries of tables that objects point to; a table is declared as far as it is used, and begins with its size.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

pub(super) const VERSION: u32 = 1 << 16 | 17;

pub(super) const FI_TAGGED: u64 = 1 << 3;
pub(super) const FI_RECV: u64 = 1 << 10;
pub(super) const FI_SEND: u64 = 1 << 11;
pub(super) const FI_TRIGGER: u64 = 1 << 20;
pub(super) const FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
pub(super) const FI_NUMERICHOST: u64 = 1 << 55;
pub(super) const FI_SOURCE: u64 = 1 << 57;
pub(super) const FI_DIRECTED_RECV: u64 = 1 << 59;
pub(super) const FI_SELECTIVE_COMPLETION: u64 = 1 << 59;

pub(super) const FI_AV_MAP: c_int = 1;
pub(super) const FI_PROGRESS_AUTO: c_int = 1;
pub(super) const FI_THREAD_SAFE: c_int = 1;
pub(super) const FI_EP_RDM: c_int = 3;
pub(super) const FI_WAIT_FD: c_int = 3;
pub(super) const FI_WAIT_UNSPEC: c_int = 1;
pub(super) const FI_CNTR_EVENTS_COMP: c_int = 0;
pub(super) const FI_CQ_FORMAT_TAGGED: c_int = 4;
pub(super) const FI_GETWAIT: c_int = 5;
pub(super) const FI_ENABLE: c_int = 6;
pub(super) const FI_QUEUE_WORK: c_int = 11;
pub(super) const FI_OP_TRECV: c_int = 2;
pub(super) const FI_OP_TSEND: c_int = 3;
pub(super) const FI_OP_CNTR_ADD: c_int = 10;

/// `FI_ENODATA`: no provider is as the hints ask.
pub(super) const FI_ENODATA: c_int = 61;
/// `FI_EAGAIN`.
pub(super) const FI_EAGAIN: c_int = 11;

/// `struct fid`.
#[repr(C)]
pub(super) struct Fid {
    pub(super) class: usize,
    pub(super) context: *mut c_void,
    pub(super) ops: *const Ops,
}

/// `struct fi_ops`.
#[repr(C)]
pub(super) struct Ops {
    pub(super) size: usize,
    pub(super) close: unsafe extern "C" fn(*mut Fid) -> c_int,
    pub(super) bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
    pub(super) control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
}

/// Declares an object of libfabric: a `struct fid` and what follows it as far as it is used.
macro_rules! objects {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $kind:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[repr(C)]
        pub(super) struct $name {
            pub(super) fid: Fid,
            $(pub(super) $field: $kind,)*
        }
    )*};
}

objects! {
    /// `struct fid_fabric`.
    Fabric { ops: *const FabricOps, api_version: u32 }
    /// `struct fid_domain`.
    Domain { ops: *const DomainOps }
    /// `struct fid_ep`.
    Ep { ops: *const EpOps, cm: *const CmOps }
    /// `struct fid_av`.
    Av { ops: *const AvOps }
    /// `struct fid_cntr`.
    Cntr { ops: *const CntrOps }
    /// `struct fid_cq`.
    Cq { ops: *const CqOps }
}

type Open<Parent, Attributes, Child> =
    unsafe extern "C" fn(*mut Parent, *mut Attributes, *mut *mut Child, *mut c_void) -> c_int;

/// `struct fi_ops_fabric`.
#[repr(C)]
pub(super) struct FabricOps {
    pub(super) size: usize,
    pub(super) domain: Open<Fabric, Info, Domain>,
}

/// `struct fi_ops_domain`.
#[repr(C)]
pub(super) struct DomainOps {
    pub(super) size: usize,
    pub(super) av_open: Open<Domain, AvAttr, Av>,
    pub(super) cq_open: Open<Domain, CqAttr, Cq>,
    pub(super) endpoint: Open<Domain, Info, Ep>,
    pub(super) scalable_ep: *const c_void,
    pub(super) cntr_open: Open<Domain, CntrAttr, Cntr>,
}

/// `struct fi_ops_ep`.
#[repr(C)]
pub(super) struct EpOps {
    pub(super) size: usize,
    pub(super) cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
}

/// `struct fi_ops_cm`.
#[repr(C)]
pub(super) struct CmOps {
    pub(super) size: usize,
    pub(super) setname: *const c_void,
    pub(super) getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
}

/// `struct fi_ops_av`.
#[repr(C)]
pub(super) struct AvOps {
    pub(super) size: usize,
    pub(super) insert: unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
}

/// `struct fi_ops_cntr`.
#[repr(C)]
pub(super) struct CntrOps {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Cntr) -> u64,
    pub(super) readerr: unsafe extern "C" fn(*mut Cntr) -> u64,
    pub(super) add: unsafe extern "C" fn(*mut Cntr, u64) -> c_int,
    pub(super) set: unsafe extern "C" fn(*mut Cntr, u64) -> c_int,
    pub(super) wait: unsafe extern "C" fn(*mut Cntr, u64, c_int) -> c_int,
}

/// `struct fi_ops_cq`.
#[repr(C)]
pub(super) struct CqOps {
    pub(super) size: usize,
    pub(super) read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
    pub(super) readfrom: *const c_void,
    pub(super) readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
}

/// `struct fi_cq_err_entry`.
#[repr(C)]
pub(super) struct CqError {
    pub(super) op_context: *mut c_void,
    pub(super) flags: u64,
    pub(super) len: usize,
    pub(super) buf: *mut c_void,
    pub(super) data: u64,
    pub(super) tag: u64,
    pub(super) olen: usize,
    pub(super) err: c_int,
    pub(super) prov_errno: c_int,
    pub(super) err_data: *mut c_void,
    pub(super) err_data_size: usize,
}

/// `struct fi_info`.
#[repr(C)]
pub(super) struct Info {
    pub(super) next: *mut Info,
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) addr_format: u32,
    pub(super) src_addrlen: usize,
    pub(super) dest_addrlen: usize,
    pub(super) src_addr: *mut c_void,
    pub(super) dest_addr: *mut c_void,
    pub(super) handle: *mut Fid,
    pub(super) tx_attr: *mut TxAttr,
    pub(super) rx_attr: *mut c_void,
    pub(super) ep_attr: *mut EpAttr,
    pub(super) domain_attr: *mut DomainAttr,
    pub(super) fabric_attr: *mut FabricAttr,
    pub(super) nic: *mut c_void,
}

/// The first fields of `struct fi_tx_attr`.
#[repr(C)]
pub(super) struct TxAttr {
    pub(super) caps: u64,
    pub(super) mode: u64,
    pub(super) op_flags: u64,
}

/// The first fields of `struct fi_ep_attr`.
#[repr(C)]
pub(super) struct EpAttr {
    pub(super) kind: c_int,
    pub(super) protocol: u32,
    pub(super) protocol_version: u32,
    pub(super) max_msg_size: usize,
}

/// The first fields of `struct fi_domain_attr`.
#[repr(C)]
pub(super) struct DomainAttr {
    pub(super) domain: *mut Domain,
    pub(super) name: *mut c_char,
    pub(super) threading: c_int,
    pub(super) control_progress: c_int,
    pub(super) data_progress: c_int,
    pub(super) resource_mgmt: c_int,
    pub(super) av_type: c_int,
    pub(super) mr_mode: c_int,
    pub(super) mr_key_size: usize,
    pub(super) cq_data_size: usize,
    pub(super) cq_cnt: usize,
    pub(super) ep_cnt: usize,
    pub(super) tx_ctx_cnt: usize,
    pub(super) rx_ctx_cnt: usize,
    pub(super) max_ep_tx_ctx: usize,
    pub(super) max_ep_rx_ctx: usize,
    pub(super) max_ep_stx_ctx: usize,
    pub(super) max_ep_srx_ctx: usize,
    pub(super) cntr_cnt: usize,
}

/// `struct fi_fabric_attr`.
#[repr(C)]
pub(super) struct FabricAttr {
    pub(super) fabric: *mut Fabric,
    pub(super) name: *mut c_char,
    pub(super) prov_name: *mut c_char,
    pub(super) prov_version: u32,
    pub(super) api_version: u32,
}

/// `struct fi_av_attr`.
#[repr(C)]
pub(super) struct AvAttr {
    pub(super) kind: c_int,
    pub(super) rx_ctx_bits: c_int,
    pub(super) count: usize,
    pub(super) ep_per_node: usize,
    pub(super) name: *const c_char,
    pub(super) map_addr: *mut c_void,
    pub(super) flags: u64,
}

/// `struct fi_cq_attr`.
#[repr(C)]
pub(super) struct CqAttr {
    pub(super) size: usize,
    pub(super) flags: u64,
    pub(super) format: c_int,
    pub(super) wait_obj: c_int,
    pub(super) signaling_vector: c_int,
    pub(super) wait_cond: c_int,
    pub(super) wait_set: *mut c_void,
}

/// `struct fi_cntr_attr`.
#[repr(C)]
pub(super) struct CntrAttr {
    pub(super) events: c_int,
    pub(super) wait_obj: c_int,
    pub(super) wait_set: *mut c_void,
    pub(super) flags: u64,
}

/// `struct fi_msg_tagged`.
#[repr(C)]
pub(super) struct MsgTagged {
    pub(super) msg_iov: *const libc::iovec,
    pub(super) desc: *mut *mut c_void,
    pub(super) iov_count: usize,
    pub(super) addr: u64,
    pub(super) tag: u64,
    pub(super) ignore: u64,
    pub(super) context: *mut c_void,
    pub(super) data: u64,
}

/// `struct fi_op_tagged`.
#[repr(C)]
pub(super) struct OpTagged {
    pub(super) ep: *mut Ep,
    pub(super) msg: MsgTagged,
    pub(super) flags: u64,
}

/// `struct fi_op_cntr`.
#[repr(C)]
pub(super) struct OpCntr {
    pub(super) cntr: *mut Cntr,
    pub(super) value: u64,
}

/// `struct fi_deferred_work`; `op` points to what `op_type` says.
#[repr(C)]
pub(super) struct DeferredWork {
    pub(super) context: [*mut c_void; 8],
    pub(super) threshold: u64,
    pub(super) triggering_cntr: *mut Cntr,
    pub(super) completion_cntr: *mut Cntr,
    pub(super) op_type: c_int,
    pub(super) op: *mut c_void,
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        /// The exported functions in use.
        pub(super) struct Functions {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn resolve(library: &Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the header, and the library is never unloaded.
                unsafe { Ok(Self { $($name: *library.get(stringify!($name).as_bytes())?,)* }) }
            }
        }
    };
}

functions! {
    fn fi_getinfo(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
    fn fi_freeinfo(*mut Info);
    fn fi_dupinfo(*const Info) -> *mut Info;
    fn fi_fabric(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int;
    fn fi_strerror(c_int) -> *const c_char;
}

/// Loads libfabric, for the life of the process: its threads and exit handlers outlive any owner.
pub(super) fn load() -> Result<Functions, libloading::Error> {
    // SAFETY: the constructor sets up tables and has no precondition; the library is never unloaded (forgotten below).
    let library = unsafe { Library::new("libfabric.so.1")? };
    let functions = Functions::resolve(&library)?;
    std::mem::forget(library);
    Ok(functions)
}

#[cfg(test)]
#[path = "layout.rs"]
mod layout;
