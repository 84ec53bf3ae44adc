//! Compares our libfabric structures and constants with the installed headers, by the C compiler.

use super::*;
use crate::layout::{Fact, check, constants, structure};

fn structures(facts: &mut Vec<Fact>) {
    structure!(facts, Fid = "struct fid" { class = "fclass", context = "context", ops = "ops" });
    structure!(facts, part Ops = "struct fi_ops" { close = "close", bind = "bind", control = "control" });
    structure!(facts, part Fabric = "struct fid_fabric" { fid = "fid", ops = "ops", api_version = "api_version" });
    structure!(facts, part FabricOps = "struct fi_ops_fabric" { domain = "domain" });
    structure!(facts, part Domain = "struct fid_domain" { fid = "fid", ops = "ops" });
    structure!(facts, part DomainOps = "struct fi_ops_domain" {
        av_open = "av_open", cq_open = "cq_open", endpoint = "endpoint", cntr_open = "cntr_open",
    });
    structure!(facts, part Ep = "struct fid_ep" { fid = "fid", ops = "ops", cm = "cm" });
    structure!(facts, part EpOps = "struct fi_ops_ep" { cancel = "cancel" });
    structure!(facts, part CmOps = "struct fi_ops_cm" { getname = "getname" });
    structure!(facts, part Av = "struct fid_av" { ops = "ops" });
    structure!(facts, part AvOps = "struct fi_ops_av" { insert = "insert" });
    structure!(facts, part Cntr = "struct fid_cntr" { ops = "ops" });
    structure!(facts, part CntrOps = "struct fi_ops_cntr" {
        read = "read", readerr = "readerr", add = "add", set = "set", wait = "wait",
    });
    structure!(facts, part Cq = "struct fid_cq" { ops = "ops" });
    structure!(facts, part CqOps = "struct fi_ops_cq" { read = "read", readerr = "readerr" });
}

fn attributes(facts: &mut Vec<Fact>) {
    structure!(facts, Info = "struct fi_info" {
        next = "next", caps = "caps", mode = "mode", addr_format = "addr_format", src_addr = "src_addr",
        handle = "handle", tx_attr = "tx_attr", rx_attr = "rx_attr", ep_attr = "ep_attr",
        domain_attr = "domain_attr", fabric_attr = "fabric_attr", nic = "nic",
    });
    structure!(facts, part TxAttr = "struct fi_tx_attr" { caps = "caps", mode = "mode", op_flags = "op_flags" });
    structure!(facts, part EpAttr = "struct fi_ep_attr" { kind = "type", max_msg_size = "max_msg_size" });
    structure!(facts, part DomainAttr = "struct fi_domain_attr" {
        threading = "threading", control_progress = "control_progress", data_progress = "data_progress",
        av_type = "av_type", mr_mode = "mr_mode", cntr_cnt = "cntr_cnt",
    });
    structure!(facts, FabricAttr = "struct fi_fabric_attr" { name = "name", prov_name = "prov_name" });
    structure!(facts, AvAttr = "struct fi_av_attr" { kind = "type", count = "count", flags = "flags" });
    structure!(facts, CqAttr = "struct fi_cq_attr" {
        size = "size", format = "format", wait_obj = "wait_obj", wait_cond = "wait_cond", wait_set = "wait_set",
    });
    structure!(facts, CqError = "struct fi_cq_err_entry" {
        op_context = "op_context", tag = "tag", err = "err", prov_errno = "prov_errno", err_data_size = "err_data_size",
    });
    structure!(facts, CntrAttr = "struct fi_cntr_attr" {
        events = "events", wait_obj = "wait_obj", wait_set = "wait_set", flags = "flags",
    });
    structure!(facts, MsgTagged = "struct fi_msg_tagged" {
        msg_iov = "msg_iov", desc = "desc", iov_count = "iov_count", addr = "addr", tag = "tag", ignore = "ignore",
        context = "context", data = "data",
    });
    structure!(facts, OpTagged = "struct fi_op_tagged" { ep = "ep", msg = "msg", flags = "flags" });
    structure!(facts, OpCntr = "struct fi_op_cntr" { cntr = "cntr", value = "value" });
    structure!(facts, DeferredWork = "struct fi_deferred_work" {
        context = "context", threshold = "threshold", triggering_cntr = "triggering_cntr",
        completion_cntr = "completion_cntr", op_type = "op_type", op = "op",
    });
}

#[test]
fn layouts_equal_the_installed_headers() {
    let mut facts = Vec::new();
    structures(&mut facts);
    attributes(&mut facts);
    let list = &mut facts;
    constants!(list: FI_TAGGED, FI_RECV, FI_SEND, FI_TRIGGER, FI_TRANSMIT_COMPLETE, FI_NUMERICHOST, FI_SOURCE,
        FI_DIRECTED_RECV, FI_SELECTIVE_COMPLETION, FI_AV_MAP, FI_PROGRESS_AUTO, FI_THREAD_SAFE, FI_EP_RDM,
        FI_WAIT_FD, FI_WAIT_UNSPEC, FI_CNTR_EVENTS_COMP, FI_CQ_FORMAT_TAGGED, FI_GETWAIT, FI_ENABLE, FI_QUEUE_WORK,
        FI_OP_TRECV, FI_OP_TSEND, FI_OP_CNTR_ADD, FI_ENODATA, FI_EAGAIN);
    let headers = [
        "rdma/fi_trigger.h",
        "rdma/fabric.h",
        "rdma/fi_domain.h",
        "rdma/fi_endpoint.h",
        "rdma/fi_cm.h",
        "rdma/fi_tagged.h",
        "rdma/fi_eq.h",
        "rdma/fi_errno.h",
    ];
    check(&headers, "libfabric-dev", &facts);
}
