//! The part of libfabric that deferred work needs: structures and constants of `rdma/fabric.h` and its neighbours
//! (libfabric 1.17, Debian 12).
//!
//! Most functions are reached through tables of objects. A table begins with its size; its unused tail is omitted.

use std::ffi::{c_char, c_int, c_void};

use outboard_shm::functions;

use crate::foreign::{constants, structures};

pub(super) const VERSION: u32 = 1 << 16 | 17;

constants! {
    FI_TAGGED: u64 = 1 << 3;
    FI_RECV: u64 = 1 << 10;
    FI_SEND: u64 = 1 << 11;
    FI_TRIGGER: u64 = 1 << 20;
    FI_TRANSMIT_COMPLETE: u64 = 1 << 27;
    FI_NUMERICHOST: u64 = 1 << 55;
    FI_SOURCE: u64 = 1 << 57;
    FI_DIRECTED_RECV: u64 = 1 << 59;
    FI_SELECTIVE_COMPLETION: u64 = 1 << 59;
    FI_AV_MAP: c_int = 1;
    FI_PROGRESS_AUTO: c_int = 1;
    FI_THREAD_SAFE: c_int = 1;
    FI_EP_RDM: c_int = 3;
    FI_WAIT_FD: c_int = 3;
    FI_WAIT_UNSPEC: c_int = 1;
    FI_CNTR_EVENTS_COMP: c_int = 0;
    FI_CQ_FORMAT_TAGGED: c_int = 4;
    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;
    FI_QUEUE_WORK: c_int = 11;
    FI_OP_TRECV: c_int = 2;
    FI_OP_TSEND: c_int = 3;
    FI_OP_CNTR_ADD: c_int = 10;
    FI_ENODATA: c_int = 61;
    FI_EAGAIN: c_int = 11;
}

type Open<Parent, Attributes, Child> =
    unsafe extern "C" fn(*mut Parent, *mut Attributes, *mut *mut Child, *mut c_void) -> c_int;

structures! {
    whole Fid = "struct fid" {
        class = "fclass": usize,
        context: *mut c_void,
        ops: *const Ops,
    }
    part Ops = "struct fi_ops" {
        size: usize,
        close: unsafe extern "C" fn(*mut Fid) -> c_int,
        bind: unsafe extern "C" fn(*mut Fid, *mut Fid, u64) -> c_int,
        control: unsafe extern "C" fn(*mut Fid, c_int, *mut c_void) -> c_int,
    }
    part Fabric = "struct fid_fabric" { fid: Fid, ops: *const FabricOps, api_version: u32 }
    part Domain = "struct fid_domain" { fid: Fid, ops: *const DomainOps }
    part Ep = "struct fid_ep" { fid: Fid, ops: *const EpOps, cm: *const CmOps }
    part Av = "struct fid_av" { fid: Fid, ops: *const AvOps }
    part Cntr = "struct fid_cntr" { fid: Fid, ops: *const CntrOps }
    part Cq = "struct fid_cq" { fid: Fid, ops: *const CqOps }
    part FabricOps = "struct fi_ops_fabric" {
        size: usize,
        domain: Open<Fabric, Info, Domain>,
    }
    part DomainOps = "struct fi_ops_domain" {
        size: usize,
        av_open: Open<Domain, AvAttr, Av>,
        cq_open: Open<Domain, CqAttr, Cq>,
        endpoint: Open<Domain, Info, Ep>,
        scalable_ep: *const c_void,
        cntr_open: Open<Domain, CntrAttr, Cntr>,
    }
    part EpOps = "struct fi_ops_ep" {
        size: usize,
        cancel: unsafe extern "C" fn(*mut Fid, *mut c_void) -> isize,
    }
    part CmOps = "struct fi_ops_cm" {
        size: usize,
        setname: *const c_void,
        getname: unsafe extern "C" fn(*mut Fid, *mut c_void, *mut usize) -> c_int,
    }
    part AvOps = "struct fi_ops_av" {
        size: usize,
        insert: unsafe extern "C" fn(*mut Av, *const c_void, usize, *mut u64, u64, *mut c_void) -> c_int,
    }
    part CntrOps = "struct fi_ops_cntr" {
        size: usize,
        read: unsafe extern "C" fn(*mut Cntr) -> u64,
        readerr: unsafe extern "C" fn(*mut Cntr) -> u64,
        add: unsafe extern "C" fn(*mut Cntr, u64) -> c_int,
        set: unsafe extern "C" fn(*mut Cntr, u64) -> c_int,
        wait: unsafe extern "C" fn(*mut Cntr, u64, c_int) -> c_int,
    }
    part CqOps = "struct fi_ops_cq" {
        size: usize,
        read: unsafe extern "C" fn(*mut Cq, *mut c_void, usize) -> isize,
        readfrom: *const c_void,
        readerr: unsafe extern "C" fn(*mut Cq, *mut CqError, u64) -> isize,
    }
    whole CqError = "struct fi_cq_err_entry" {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }
    whole Info = "struct fi_info" {
        next: *mut Info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: usize,
        dest_addrlen: usize,
        src_addr: *mut c_void,
        dest_addr: *mut c_void,
        handle: *mut Fid,
        tx_attr: *mut TxAttr,
        rx_attr: *mut c_void,
        ep_attr: *mut EpAttr,
        domain_attr: *mut DomainAttr,
        fabric_attr: *mut FabricAttr,
        nic: *mut c_void,
    }
    part TxAttr = "struct fi_tx_attr" {
        caps: u64,
        mode: u64,
        op_flags: u64,
    }
    part EpAttr = "struct fi_ep_attr" {
        kind = "type": c_int,
        protocol: u32,
        protocol_version: u32,
        max_msg_size: usize,
    }
    part DomainAttr = "struct fi_domain_attr" {
        domain: *mut Domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: c_int,
        data_progress: c_int,
        resource_mgmt: c_int,
        av_type: c_int,
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: usize,
        rx_ctx_cnt: usize,
        max_ep_tx_ctx: usize,
        max_ep_rx_ctx: usize,
        max_ep_stx_ctx: usize,
        max_ep_srx_ctx: usize,
        cntr_cnt: usize,
    }
    whole FabricAttr = "struct fi_fabric_attr" {
        fabric: *mut Fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: u32,
        api_version: u32,
    }
    whole AvAttr = "struct fi_av_attr" {
        kind = "type": c_int,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }
    whole CqAttr = "struct fi_cq_attr" {
        size: usize,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }
    whole CntrAttr = "struct fi_cntr_attr" {
        events: c_int,
        wait_obj: c_int,
        wait_set: *mut c_void,
        flags: u64,
    }
    whole MsgTagged = "struct fi_msg_tagged" {
        msg_iov: *const libc::iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: u64,
        tag: u64,
        ignore: u64,
        context: *mut c_void,
        data: u64,
    }
    whole OpTagged = "struct fi_op_tagged" {
        ep: *mut Ep,
        msg: MsgTagged,
        flags: u64,
    }
    whole OpCntr = "struct fi_op_cntr" {
        cntr: *mut Cntr,
        value: u64,
    }
    whole DeferredWork = "struct fi_deferred_work" {
        context: [*mut c_void; 8],
        threshold: u64,
        triggering_cntr: *mut Cntr,
        completion_cntr: *mut Cntr,
        op_type: c_int,
        op: *mut c_void,
    }
}

functions! {
    Functions of "libfabric.so.1":
    fn fi_getinfo(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
    fn fi_freeinfo(*mut Info);
    fn fi_dupinfo(*const Info) -> *mut Info;
    fn fi_fabric(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int;
    fn fi_strerror(c_int) -> *const c_char;
}

#[test]
#[ignore = "needs libfabric-dev: make test"]
fn layouts_equal_the_installed_headers() {
    let headers = ["fi_trigger", "fabric", "fi_domain", "fi_endpoint", "fi_cm", "fi_tagged", "fi_eq", "fi_errno"];
    let headers = headers.map(|name| format!("rdma/{name}.h"));
    let facts = [structures(), constants()].concat();
    crate::foreign::check(&headers.each_ref().map(String::as_str), &facts);
}
